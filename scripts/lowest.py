"""Prints the lowest versions declared in pyproject.toml as a constraints file for `make test-lowest`.

Packages that only developers need are not constrained.
"""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
DEVELOPER_EXTRAS = ("dev", "bench", "docs")
BOUND = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^\]]*\])?\s*(?P<rest>.*)")


def lowest(requirement: str) -> tuple[str, str]:
    """Split a requirement into name and lower bound: `numpy>=2.0` gives `numpy`, `2.0`."""
    match = BOUND.fullmatch(requirement.strip())
    bounds = [part.strip() for part in match["rest"].split(";")[0].split(",")] if match else []
    versions = [part.removeprefix(">=").strip() for part in bounds if part.startswith(">=")]
    if not match or len(versions) != 1:
        raise SystemExit(f"{requirement!r} in {PYPROJECT.name} has no lower bound: write name>=version.")
    return match["name"].lower(), versions[0]


def declared(pyproject: Path = PYPROJECT) -> dict[str, str]:
    """The lowest version of every package that users install, including extras."""
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"]]
    for extra in sorted(set(extras) - set(DEVELOPER_EXTRAS)):
        requirements += extras[extra]
    return dict(sorted(lowest(requirement) for requirement in requirements))


if __name__ == "__main__":
    for name, version in declared().items():
        print(f"{name}=={version}")
