"""A selection on disk: its settings, one file for each finished fit, and the tables made of them."""

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import cohort_digest
from phenotaste.errors import InputError
from phenotaste.selection.files import SUFFIX, Result, read_result, sweep_drafts, write_file, write_result
from phenotaste.selection.grid import Fitting, Grid, Task

SETTINGS, FITS = "settings.json", "fits"
FORMAT = 1


class Folder:
    """Where a selection keeps what it has finished; every file in it is whole at any moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fits = path / FITS

    def begin(self, cohort: Cohort, grid: Grid, fitting: Fitting, resume: bool) -> None:
        """Make the folder this selection's, or refuse: nobody else's results are touched."""
        mine = {
            "format": FORMAT,
            "library": __version__,
            "cohort": cohort_digest(cohort),
            "fitting": asdict(fitting),
            "grid": asdict(grid),
        }
        if self.path.is_dir() and any(self.path.iterdir()):
            self._check_resumable(mine, grid, resume)
        self.path.mkdir(parents=True, exist_ok=True)
        self.fits.mkdir(exist_ok=True)
        sweep_drafts(self.path)
        sweep_drafts(self.fits)
        write_file(self.path / SETTINGS, (json.dumps(mine, indent=1) + "\n").encode())

    def _check_resumable(self, mine: dict[str, Any], grid: Grid, resume: bool) -> None:
        theirs = self._settings()
        if theirs is None:
            raise InputError(f"{self.path} holds files that are not from a selection: choose another folder.")
        if theirs["cohort"] != mine["cohort"]:
            raise InputError(f"{self.path} holds another cohort's results: choose another folder.")
        if not resume:
            raise InputError(
                f"{self.path} holds a selection already: go on with it (--resume, or resume=True), or choose "
                "another folder."
            )
        if theirs["library"] != mine["library"]:
            raise InputError(
                f"{self.path} was begun with phenotaste {theirs['library']}: finish it with that version, or choose "
                "another folder."
            )
        changed = [name for name, value in mine["fitting"].items() if theirs["fitting"].get(name) != value]
        if changed:
            raise InputError(
                f"{self.path} was begun with another {' and '.join(changed)}: go on with the same settings, or "
                "choose another folder."
            )
        if not grid.holds(Grid(**{name: _tuple(value) for name, value in theirs["grid"].items()})):
            raise InputError(
                f"{self.path} holds a grid that this one lacks parts of: a grid may grow, not shrink; keep its "
                "ranks, lams, mus and starts, or choose another folder."
            )

    def _settings(self) -> dict[str, Any] | None:
        """The settings there; None where the folder is not a selection's."""
        try:
            found = json.loads((self.path / SETTINGS).read_bytes())
            known = {"format", "library", "cohort", "fitting", "grid"} <= set(found) and found[
                "format"
            ] == FORMAT
            Grid(**{name: _tuple(value) for name, value in found["grid"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return found if known else None

    def keep(self, task: Task, result: Result) -> None:
        write_result(self.place(task), result)

    def result(self, task: Task) -> Result | None:
        """The result of a finished fit; None where there is none, or none that can be trusted."""
        return read_result(self.place(task))

    def place(self, task: Task) -> Path:
        return self.fits / f"{task.name}{SUFFIX}"

    def unfinished(self, tasks: list[Task]) -> list[Task]:
        """What is still to be done; a damaged file counts as not done, is said once, and will be replaced."""
        there = {path.name for path in self.fits.iterdir()}
        missing, damaged = [], 0
        for task in tasks:
            if f"{task.name}{SUFFIX}" not in there:
                missing.append(task)
            elif self.result(task) is None:
                damaged += 1
                missing.append(task)
        if damaged:
            warnings.warn(
                f"{damaged} of the files in {self.fits} {'is' if damaged == 1 else 'are'} damaged: "
                "fitted once more.",
                stacklevel=3,
            )
        return missing

    def put(self, name: str, content: str | bytes) -> None:
        write_file(self.path / name, content.encode() if isinstance(content, str) else content)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
