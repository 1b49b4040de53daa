"""A study on disk: its settings, and one small file for each finished cell, checksummed and written in one step."""

import hashlib
import json
import math
import re
import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phenotaste import __version__
from phenotaste.errors import InputError
from phenotaste.selection.files import sweep_drafts, write_file
from phenotaste.studies.study import Cell, Options, Row

SETTINGS, CELLS, WORK = "settings.json", "cells", "work"
FORMAT = 1


class Folder:
    """Where a study keeps what it has finished; every file in it is whole at any moment."""

    def __init__(self, path: Path) -> None:
        self.path, self.cells = path, path / CELLS

    def begin(self, name: str, options: Options, resume: bool) -> None:
        """Make the folder this study's, or refuse: nobody else's results are touched."""
        mine = {"format": FORMAT, "library": __version__, "study": name, "options": asdict(options)}
        if self.path.is_dir() and any(self.path.iterdir()):
            self._check_resumable(mine, resume)
        self.path.mkdir(parents=True, exist_ok=True)
        self.cells.mkdir(exist_ok=True)
        for place in (self.path, self.cells):
            sweep_drafts(place)
        self.put(SETTINGS, json.dumps(mine, indent=1) + "\n")

    def _check_resumable(self, mine: dict[str, Any], resume: bool) -> None:
        theirs = self._settings()
        if theirs is None:
            raise InputError(f"{self.path} holds files that are not from a study: choose another folder.")
        if theirs["study"] != mine["study"]:
            raise InputError(f"{self.path} holds the study {theirs['study']}: choose another folder.")
        if not resume:
            raise InputError(
                f"{self.path} holds this study already: go on with it (--resume, or resume=True), or choose another "
                "folder."
            )
        if theirs["library"] != mine["library"]:
            raise InputError(
                f"{self.path} was begun with phenotaste {theirs['library']}: finish it with that version, or choose "
                "another folder."
            )
        changed = [
            name for name, value in mine["options"].items() if theirs["options"].get(name, None) != value
        ]
        if changed:
            raise InputError(
                f"{self.path} was begun with another {' and '.join(changed)}: go on with the same options, or choose "
                "another folder."
            )

    def _settings(self) -> dict[str, Any] | None:
        """The settings there; None where the folder is not a study's."""
        try:
            found = json.loads((self.path / SETTINGS).read_bytes())
            known = found["format"] == FORMAT and {"library", "study", "options"} <= set(found)
            return found if known and isinstance(found["options"], dict) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, cell: Cell, rows: list[Row], facts: Row) -> None:
        """A finished cell: what it found, and what holds for all of its rows."""
        record = {"cell": cell, "rows": [plain(row) for row in rows], "facts": plain(facts)}
        content = json.dumps(record)
        write_file(self.place(cell), json.dumps({"sha256": digest(content), "record": content}).encode())

    def rows(self, cell: Cell) -> list[Row] | None:
        """The rows of a finished cell; None where there are none, or none that can be trusted."""
        try:
            found = json.loads(self.place(cell).read_bytes())
            if digest(found["record"]) != found["sha256"]:
                return None
            record = json.loads(found["record"])
            if record["cell"] != cell:
                return None
            return [{**cell, **row, "cell": short_name(cell), **record["facts"]} for row in record["rows"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def unfinished(self, cells: Iterable[Cell]) -> list[Cell]:
        """What is still to be done; a damaged file counts as not done, is said once, and will be replaced."""
        missing, damaged = [], 0
        for cell in cells:
            if self.rows(cell) is None:
                damaged += self.place(cell).exists()
                missing.append(cell)
        if damaged:
            verb = "is" if damaged == 1 else "are"
            warnings.warn(
                f"{damaged} of the files in {self.cells} {verb} damaged: done once more.", stacklevel=3
            )
        return missing

    def place(self, cell: Cell) -> Path:
        return self.cells / f"{name_of(cell)}.json"

    def workplace(self, cell: Cell) -> Path:
        return self.path / WORK / name_of(cell)

    def put(self, name: str, content: str | bytes) -> None:
        write_file(self.path / name, content.encode() if isinstance(content, str) else content)


def name_of(cell: Cell) -> str:
    """A name for files: the cell's words, and a few letters that tell apart what reads alike."""
    words = "-".join(
        re.sub(r"[^A-Za-z0-9.+]", "", str(value)) for value in cell.values() if value is not None
    )
    return f"{words[:100]}-{digest(json.dumps(cell))[:8]}"


def short_name(cell: Cell) -> str:
    """The letters that tell it from all others."""
    return name_of(cell)[-8:]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def plain(row: Row) -> Row:
    """Numbers as JSON has them: numpy's as Python's, and None for what is not finite."""
    found = {key: value.item() if hasattr(value, "item") else value for key, value in row.items()}
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in found.items()
    }
