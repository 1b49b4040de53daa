"""Which packages are installed, which the package and its extras need, and what is missing: from metadata alone.

Nothing is imported that is looked at, so a broken installation can still be examined, and quickly.
"""

import platform
import re
from importlib import metadata
from typing import NamedTuple

from phenotaste import __version__

IN_A_REPORT = ("numpy", "scipy", "numba", "scikit-learn", "torch", "dask")
FOR_DEVELOPERS = ("dev", "docs", "bench")
PURPOSES = {
    "gpu": "fits on a GPU, and the baselines GRUClassifier and CNTF",
    "dask": "fits on a Dask cluster",
    "anndata": "cohorts and phenotypes to AnnData",
    "ehrdata": "cohorts from ehrdata",
}


class Need(NamedTuple):
    """A package that something needs, the versions that will do, and the one that is there."""

    name: str
    wanted: str  # as pip takes it: torch>=2.11
    version: str | None
    fits: bool

    @property
    def told(self) -> str:
        return f"{self.name} {self.version}" if self.version else f"{self.name} is missing"


class Extra(NamedTuple):
    """An optional part of the package."""

    name: str
    purpose: str
    needs: list[Need]

    @property
    def ready(self) -> bool:
        return all(need.fits for need in self.needs)


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def core_needs() -> list[Need] | None:
    """What the package itself needs; None where it runs from source without being installed."""
    if installed("packaging") is None:
        return [Need("packaging", "packaging", None, fits=False)]  # what reads the others' needs
    return None if installed("phenotaste") is None else needs_of("phenotaste", "")


def extras() -> list[Extra]:
    if installed("phenotaste") is None or installed("packaging") is None:
        return []
    names = metadata.metadata("phenotaste").get_all("Provides-Extra") or []
    return [
        Extra(name, PURPOSES.get(name, ""), needs_of("phenotaste", name))
        for name in names
        if name not in FOR_DEVELOPERS
    ]


def needs_of(package: str, extra: str) -> list[Need]:
    """What `package[extra]` adds to a plain `package`, or with no extra what that one needs."""
    from packaging.requirements import Requirement

    found: dict[str, Need] = {}
    for requirement in map(Requirement, metadata.requires(package) or []):
        marker = requirement.marker
        if extra and (marker is None or marker.evaluate({"extra": ""})):
            continue
        if marker is not None and not marker.evaluate({"extra": extra}):
            continue
        version = installed(requirement.name)
        fits = version is not None and requirement.specifier.contains(version, prereleases=True)
        wanted = f"{requirement.name}{requirement.specifier}"
        found[requirement.name] = Need(requirement.name, wanted, version, fits)
        if version is not None:
            for inner in sorted(requirement.extras):  # ibis-framework[duckdb] needs duckdb
                for need in needs_of(requirement.name, inner):
                    found.setdefault(need.name, need)
    return list(found.values())


def bug_report() -> list[tuple[str, str]]:
    """What a bug report needs to say, and nothing that says who wrote it.

    Examples
    --------
    >>> from phenotaste import __version__, doctor
    >>> dict(doctor.bug_report())["phenotaste"] == __version__
    True
    """
    lines = [("phenotaste", __version__), ("Python", python()), ("System", system())]
    return [*lines, *((name, installed(name) or "not installed") for name in IN_A_REPORT)]


def python() -> str:
    kind = platform.python_implementation()
    return platform.python_version() + ("" if kind == "CPython" else f" ({kind})")


def system() -> str:
    """System, version and processor. Of the kernel's name only the number: the rest may be a company's own."""
    number = re.match(r"[\d.]*\d", platform.release())
    windows = " under Windows" if "microsoft" in platform.release().lower() else ""
    parts = [platform.system(), number[0] if number else "", platform.machine()]
    library = " ".join(platform.libc_ver())
    return " ".join(part for part in parts if part) + windows + (f", {library}" if library.strip() else "")
