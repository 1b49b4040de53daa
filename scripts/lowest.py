"""Prints the lowest versions that pyproject.toml declares as a constraints file, for `make test-lowest`.

What is only there for developers is left alone: nobody who uses the package is promised anything about it.
"""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
FOR_DEVELOPERS = ("dev", "bench", "docs")
BOUND = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^\]]*\])?\s*(?P<rest>.*)")


def lowest(requirement: str) -> tuple[str, str]:
    """The name and the lower bound of a requirement, which must have one: `numpy>=2.0` gives `numpy`, `2.0`."""
    found = BOUND.fullmatch(requirement.strip())
    bounds = [part.strip() for part in found["rest"].split(";")[0].split(",")] if found else []
    versions = [part.removeprefix(">=").strip() for part in bounds if part.startswith(">=")]
    if not found or len(versions) != 1:
        raise SystemExit(f"{requirement!r} in {PYPROJECT.name} has no lower bound: write name>=version.")
    return found["name"].lower(), versions[0]


def declared(pyproject: Path = PYPROJECT) -> dict[str, str]:
    """Every package that users get, with or without extras, and its lowest version."""
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"]]
    for extra in sorted(set(extras) - set(FOR_DEVELOPERS)):
        wanted += extras[extra]
    return dict(sorted(lowest(requirement) for requirement in wanted))


if __name__ == "__main__":
    for name, version in declared().items():
        print(f"{name}=={version}")
