"""A folder of native tables, one file per table; absent tables are recorded, so that a note can name them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table


class TableFolder:
    """CSV (also gzipped) or Parquet files of a folder or of some of its subfolders, by table name, ignoring case."""

    def __init__(
        self, workspace: Workspace, folder: Path, *, subfolders: Sequence[str] = (), expected: str = ""
    ) -> None:
        self.workspace, self.folder = workspace, folder
        self.missing: list[str] = []
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; give the folder {expected}.")
        self.files: dict[str, Path] = {}
        for inside in (folder, *(folder / name for name in subfolders)):
            for file in sorted(inside.iterdir()) if inside.is_dir() else ():
                if file.is_file() and file.name.lower().endswith(typed_tables.CSV + typed_tables.PARQUET):
                    self.files.setdefault(file.name.lower().split(".")[0], file)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.files

    def load(self, name: str, types: Mapping[str, str], required: Iterable[str]) -> "Table | None":
        """The columns of `types`; None, and recorded as missing, where there is no such file."""
        if name not in self:
            if name not in self.missing:
                self.missing.append(name)
            return None
        return typed_tables.load(self.workspace, self.files[name.lower()], name, types, required)

    def missing_note(self, consequences: Mapping[str, str]) -> list[str]:
        return missing_note("tables", self.missing, consequences)


def missing_note(what: str, missing: Sequence[str], consequences: Mapping[str, str]) -> list[str]:
    """A note that names the missing tables or resources, and what is absent without them; none if all are there."""
    named = [f"{name} ({consequences[name]})" if name in consequences else name for name in missing]
    return [f"Missing {what}: {', '.join(named)}."] if named else []
