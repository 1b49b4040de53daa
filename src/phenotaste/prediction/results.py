"""An evaluation on disk: its settings, one checksummed file for each finished method and split, and tables."""

import hashlib
import json
import math
import os
import secrets
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import cohort_digest
from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.prediction.nested_split import Found
from phenotaste.selection.files import SUFFIX, read_tensors, result_bytes, sweep_drafts, write_file

SETTINGS, CELLS = "settings.json", "cells"
FORMAT = 1


class Task(NamedTuple):
    """One method on one split."""

    method: str
    split: int

    @property
    def name(self) -> str:
        return f"{self.method}-{self.split}"


class Folder:
    """Where an evaluation keeps what it has finished; every file in it is whole at any moment."""

    def __init__(self, path: Path, *, private: bool = False) -> None:
        """A `private` one has risks of single patients in its cells, which only their owner can read."""
        self.path, self.cells, self.private = path, path / CELLS, private

    def begin(self, cohort: Cohort, case: Array, settings: Mapping[str, Any], resume: bool) -> None:
        """Make the folder this evaluation's, or refuse: nobody else's results are touched."""
        mine = {
            "format": FORMAT,
            "library": __version__,
            "cohort": cohort_digest(cohort),
            "labels": hashlib.sha256(np.packbits(case).tobytes()).hexdigest(),
            "settings": json.loads(json.dumps(settings)),
        }
        if self.path.is_dir() and any(self.path.iterdir()):
            self._check_resumable(mine, resume)
        self.path.mkdir(parents=True, exist_ok=True)
        self.cells.mkdir(exist_ok=True, mode=0o700 if self.private else 0o777)
        for place in (self.path, self.cells):
            sweep_drafts(place)
        self.put(SETTINGS, json.dumps(mine, indent=1) + "\n")

    def _check_resumable(self, mine: dict[str, Any], resume: bool) -> None:
        theirs = self._settings()
        if theirs is None:
            raise InputError(
                f"{self.path} holds files that are not from a prediction: choose another folder."
            )
        if (theirs["cohort"], theirs["labels"]) != (mine["cohort"], mine["labels"]):
            raise InputError(
                f"{self.path} holds another cohort's or other labels' results: choose another folder."
            )
        if not resume:
            raise InputError(
                f"{self.path} holds a prediction already: go on with it (--resume, or resume=True), or choose another "
                "folder."
            )
        if theirs["library"] != mine["library"]:
            raise InputError(
                f"{self.path} was begun with phenotaste {theirs['library']}: finish it with that version, or choose "
                "another folder."
            )
        changed = [name for name, value in mine["settings"].items() if theirs["settings"].get(name) != value]
        if changed:
            raise InputError(
                f"{self.path} was begun with other {' and '.join(changed)}: go on with the same settings, or choose "
                "another folder."
            )

    def _settings(self) -> dict[str, Any] | None:
        """The settings there; None where the folder is not an evaluation's."""
        try:
            found = json.loads((self.path / SETTINGS).read_bytes())
            known = found["format"] == FORMAT and {"library", "cohort", "labels"} <= set(found)
            return found if known and isinstance(found["settings"], dict) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, task: Task, found: Found) -> None:
        write_file(self.place(task), result_bytes(found.arrays, without_nan(found.figures)))

    def found(self, task: Task) -> Found | None:
        """What was found; None where there is nothing, or nothing that can be trusted."""
        content = read_tensors(self.place(task))
        return None if content is None else Found(content[1], content[0])

    def place(self, task: Task) -> Path:
        return self.cells / f"{task.name}{SUFFIX}"

    def unfinished(self, tasks: list[Task]) -> list[Task]:
        """What is still to be done; a damaged file counts as not done, is said once, and will be replaced."""
        missing = [task for task in tasks if self.found(task) is None]
        damaged = sum(self.place(task).exists() for task in missing)
        if damaged:
            verb = "is" if damaged == 1 else "are"
            warnings.warn(
                f"{damaged} of the files in {self.cells} {verb} damaged: done once more.", stacklevel=3
            )
        return missing

    def put(self, name: str, content: str | bytes) -> None:
        write_file(self.path / name, content.encode() if isinstance(content, str) else content)

    def put_private(self, name: str, content: bytes) -> None:
        """A file only its owner can read, from its first byte on."""
        draft = self.path / f".{name}.{secrets.token_hex(8)}.partial"
        try:
            with open(draft, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path / name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def without_nan(value: Any) -> Any:
    """The same with None for what is not a number: JSON has no word for it."""
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
