"""Installed packages, and the requirements of the package and its extras, from metadata alone.

No package is imported for it, so that a broken installation can be examined, and quickly.
"""

import platform
import re
from importlib import metadata
from typing import NamedTuple

from phenotaste import __version__

REPORTED = ("numpy", "scipy", "numba", "scikit-learn", "torch", "dask")
DEVELOPER_EXTRAS = ("dev", "docs", "bench")
PURPOSES = {
    "gpu": "fits on a GPU, and the baselines GRUClassifier and CNTF",
    "dask": "fits on a Dask cluster",
    "anndata": "cohorts and phenotypes to AnnData",
    "ehrdata": "cohorts from ehrdata",
}


class Requirement(NamedTuple):
    """A required package with its specifier, and the installed version."""

    name: str
    specifier: str  # as pip takes it: torch>=2.11
    version: str | None
    satisfied: bool

    def __str__(self) -> str:
        return f"{self.name} {self.version}" if self.version else f"{self.name} is missing"


class Extra(NamedTuple):
    """An optional dependency group of the package."""

    name: str
    purpose: str
    requirements: list[Requirement]

    @property
    def ready(self) -> bool:
        return all(need.satisfied for need in self.requirements)


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def core_requirements() -> list[Requirement] | None:
    """Requirements of the package itself; None where it runs from source without being installed."""
    if installed_version("packaging") is None:  # it parses the other requirements
        return [Requirement("packaging", "packaging", None, satisfied=False)]
    return None if installed_version("phenotaste") is None else requirements_of("phenotaste", "")


def extras() -> list[Extra]:
    """The extras of the package that are meant for users."""
    if installed_version("phenotaste") is None or installed_version("packaging") is None:
        return []
    names = metadata.metadata("phenotaste").get_all("Provides-Extra") or []
    return [
        Extra(name, PURPOSES.get(name, ""), requirements_of("phenotaste", name))
        for name in names
        if name not in DEVELOPER_EXTRAS
    ]


def requirements_of(package: str, extra: str) -> list[Requirement]:
    """What `package[extra]` requires in addition to `package`; with an empty extra, what `package` requires."""
    from packaging import requirements

    result: dict[str, Requirement] = {}
    for requirement in map(requirements.Requirement, metadata.requires(package) or []):
        marker = requirement.marker
        if extra and (marker is None or marker.evaluate({"extra": ""})):
            continue
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        version = installed_version(requirement.name)
        satisfied = version is not None and requirement.specifier.contains(version, prereleases=True)
        specifier = f"{requirement.name}{requirement.specifier}"
        result[requirement.name] = Requirement(requirement.name, specifier, version, satisfied)
        if version is not None:
            for inner in sorted(requirement.extras):  # ibis-framework[duckdb] requires duckdb
                for need in requirements_of(requirement.name, inner):
                    result.setdefault(need.name, need)
    return list(result.values())


def bug_report() -> list[tuple[str, str]]:
    """The versions that a bug report needs, and nothing that identifies the user.

    Examples
    --------
    >>> from phenotaste import __version__, doctor
    >>> dict(doctor.bug_report())["phenotaste"] == __version__
    True
    """
    lines = [("phenotaste", __version__), ("Python", python_version()), ("System", system_version())]
    return [*lines, *((name, installed_version(name) or "not installed") for name in REPORTED)]


def python_version() -> str:
    implementation = platform.python_implementation()
    return platform.python_version() + ("" if implementation == "CPython" else f" ({implementation})")


def system_version() -> str:
    """System, release number and processor; the rest of the release name may identify a company."""
    number = re.match(r"[\d.]*\d", platform.release())
    windows = " under Windows" if "microsoft" in platform.release().lower() else ""
    parts = [platform.system(), number[0] if number else "", platform.machine()]
    library = " ".join(platform.libc_ver())
    return " ".join(part for part in parts if part) + windows + (f", {library}" if library.strip() else "")
