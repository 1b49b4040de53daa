"""A CDM in files: a DuckDB database, or a folder of Parquet or CSV with a file or a folder for each table."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm import Place
from phenotaste.sources.typed_tables import CSV, PARQUET, read_file
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table

CATALOG = "omop_cdm"  # the name that the user's database has within the workspace
TABLES_HELD = (
    "select table_schema, table_name from information_schema.tables where table_catalog = ? order by all"
)


class DuckDB(Place):
    """A database file, attached beside the workspace's own and never written to."""

    def __init__(self, workspace: Workspace, path: Path) -> None:
        import duckdb

        super().__init__(workspace, path.name)
        try:
            # Ibis puts the path between quotes as it is.
            workspace.con.attach(str(path.resolve()).replace("'", "''"), CATALOG, read_only=True)
        except duckdb.Error:
            raise InputError(
                f"{path} could not be opened as a DuckDB database; is it one, may you read it, "
                "and has no other program opened it for writing?"
            ) from None
        self.found: dict[str, list[str]] | None = None

    def schemas(self) -> dict[str, list[str]]:
        if self.found is None:
            held = self.workspace.con.con.execute(TABLES_HELD, [CATALOG]).fetchall()
            self.found = {}
            for schema, table in held:
                self.found.setdefault(schema, []).append(table)
        return self.found

    def open(self, schema: str, table: str) -> "Table":
        return self.workspace.con.table(table, database=(CATALOG, schema))


class Folder(Place):
    """A folder of files; folders inside it count as schemas, the folder itself is the schema ""."""

    def __init__(self, workspace: Workspace, path: Path) -> None:
        super().__init__(workspace, path.name or str(path))
        self.path = path
        self.found: dict[str, list[str]] | None = None

    def schemas(self) -> dict[str, list[str]]:
        if self.found is None:
            _refuse_unlisted(self.path)
            inside = {entry.name: entry for entry in sorted(self.path.iterdir()) if _folder(entry)}
            self.found = {"": list(_tables(self.path))} | {n: list(_tables(p)) for n, p in inside.items()}
        return self.found

    def open(self, schema: str, table: str) -> "Table":
        files = _tables(self.path / schema)[table]
        return read_file(self.workspace, files, table)

    def settle(self, table: "Table", name: str) -> "Table":
        if all(kind.is_string() for kind in table.schema().types):  # from CSV: parse it once
            return self.workspace.keep(table, name)
        return table


def _tables(folder: Path) -> dict[str, list[Path]]:
    """The files of each table: person.csv, PERSON.parquet, or a folder person with part files in it."""
    found: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith((".", "_")):
            continue
        files = [entry]
        if entry.is_dir():
            files = sorted(part for part in entry.iterdir() if _stem(part) is not None and part.is_file())
        stem = _stem(entry) or entry.name
        if not files or _stem(files[0]) is None:
            continue
        if stem in found:
            raise InputError(f"{folder.name} has {stem} in more than one form; leave one of them.")
        found[stem] = files
    return found


def _refuse_unlisted(folder: Path) -> None:
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(f"{folder} may not be read; check your rights.")


def _folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith((".", "_"))


def _stem(path: Path) -> str | None:
    name = path.name.lower()
    suffix = max((s for s in (*CSV, *PARQUET) if name.endswith(s)), key=len, default=None)
    hidden = name.startswith((".", "_"))
    return None if suffix is None or hidden else os.path.basename(path.name)[: -len(suffix)]
