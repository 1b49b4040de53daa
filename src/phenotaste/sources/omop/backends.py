"""Opening a CDM from its location: a DuckDB database, a folder of Parquet or CSV files, or PostgreSQL."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError, safe
from phenotaste.sources.omop.cdm import CdmBackend
from phenotaste.sources.omop.cdm_schema import CONCEPT, VOCABULARY_TABLES
from phenotaste.sources.typed_tables import CSV, PARQUET, read_file
from phenotaste.sources.workspace import Workspace, translate_errors

if TYPE_CHECKING:
    from ibis import Table

    from phenotaste.sources.omop.cdm import CdmBackend

CATALOG = "omop_cdm"  # of the user's database within the workspace
LIST_TABLES = (
    "select table_schema, table_name from information_schema.tables where table_catalog = ? order by all"
)

SCHEME = re.compile(r"^([a-z][a-z0-9+.:-]*)://", re.IGNORECASE)
SERVER = r"(?:[\w.%-]*|\[[0-9a-fA-F:.]+\])(?::\d*)?"
SERVERS = re.compile(rf"{SERVER}(?:,{SERVER})*")


class DuckDBBackend(CdmBackend):
    """A database file, attached read-only to the workspace; its views cannot read other files."""

    def __init__(self, workspace: Workspace, path: Path) -> None:
        import duckdb

        super().__init__(workspace, path.name)
        try:
            # Ibis quotes the path without escaping it.
            workspace.con.attach(str(path.resolve()).replace("'", "''"), CATALOG, read_only=True)
        except duckdb.Error:
            raise InputError(
                f"{path} could not be opened as a DuckDB database; check that it is one, that you may read it, "
                "and that no other program has it open for writing."
            ) from None
        workspace.confine()
        self.names: dict[str, list[str]] | None = None

    def schemas(self) -> dict[str, list[str]]:
        if self.names is None:
            rows = self.workspace.con.con.execute(LIST_TABLES, [CATALOG]).fetchall()
            self.names = {}
            for schema, table in rows:
                self.names.setdefault(schema, []).append(table)
        return self.names

    def open(self, schema: str, table: str) -> "Table":
        import duckdb
        from ibis.common.exceptions import TableNotFound

        try:
            with translate_errors(table):
                return self.workspace.con.table(table, database=(CATALOG, schema))
        except (duckdb.Error, TableNotFound):
            raise InputError(
                f"{table} of {self.label} cannot be read; if it is a view, store its rows as a table."
            ) from None


class FolderBackend(CdmBackend):
    """A folder of files; subfolders are schemas, the folder itself is the schema ""."""

    def __init__(self, workspace: Workspace, path: Path) -> None:
        super().__init__(workspace, path.name or str(path))
        self.path = path
        self.names: dict[str, list[str]] | None = None

    def schemas(self) -> dict[str, list[str]]:
        if self.names is None:
            _check_readable(self.path)
            inside = {entry.name: entry for entry in sorted(self.path.iterdir()) if _is_visible_folder(entry)}
            self.names = {"": list(_tables(self.path))} | {n: list(_tables(p)) for n, p in inside.items()}
        return self.names

    def open(self, schema: str, table: str) -> "Table":
        files = _tables(self.path / schema)[table]
        # OHDSI's Athena writes vocabularies with tabs, and quotes in names stand for themselves.
        plain = table.lower() in VOCABULARY_TABLES
        return read_file(self.workspace, files, table, quoted_tabs=not plain)

    def materialise(self, table: "Table", name: str) -> "Table":
        if all(kind.is_string() for kind in table.schema().types):  # CSV: parse it once
            return self.workspace.materialise(table, name)
        return table


def _tables(folder: Path) -> dict[str, list[Path]]:
    """The files of each table: person.csv, PERSON.parquet, or a subfolder person of part files."""
    tables: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith((".", "_")):
            continue
        files = [entry]
        if entry.is_dir():
            files = sorted(part for part in entry.iterdir() if _stem(part) is not None and part.is_file())
        stem = _stem(entry) or entry.name
        if not files or _stem(files[0]) is None:
            continue
        if stem in tables:
            raise InputError(f"{folder.name} has {stem} in more than one format; keep one of them.")
        tables[stem] = files
    return tables


def _check_readable(folder: Path) -> None:
    if not os.access(folder, os.R_OK | os.X_OK):
        raise InputError(f"{folder} cannot be read; check your permissions.")


def _is_visible_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith((".", "_"))


def _stem(path: Path) -> str | None:
    name = path.name.lower()
    suffix = max((s for s in (*CSV, *PARQUET) if name.endswith(s)), key=len, default=None)
    hidden = name.startswith((".", "_"))
    return None if suffix is None or hidden else os.path.basename(path.name)[: -len(suffix)]


def redacted(location: str) -> str:
    """Remove user, password and parameters from a location, for messages and stored records.

    Examples
    --------
    >>> redacted("postgresql://ann:secret@db.example.org:5432/cdm?sslmode=require")
    'postgresql://db.example.org:5432/cdm'
    >>> redacted("data/cdm.duckdb")
    'data/cdm.duckdb'
    """
    scheme = SCHEME.match(location)
    if not scheme:
        return "…" if "password" in location.lower() else safe(location)
    authority, rest = re.fullmatch(r"([^/?#]*)(.*)", location[scheme.end() :], re.DOTALL).groups()  # type: ignore[union-attr]
    servers = authority.rpartition("@")[2]
    if "@" in rest or not SERVERS.fullmatch(servers):  # a password that contains a slash, or without a user
        return f"{scheme[1]}://…"
    return f"{scheme[1]}://{servers}{re.split(r'[?#&=]', rest)[0]}"


def holds_password(location: str) -> bool:
    """Whether a location is an address with a password.

    Examples
    --------
    >>> holds_password("postgresql://ann:secret@db.example.org/cdm"), holds_password("postgresql://ann@host/cdm")
    (True, False)
    """
    scheme = SCHEME.match(location)
    userinfo = location[scheme.end() :].rpartition("@")[0] if scheme else ""
    return ":" in userinfo or bool(scheme and re.search("[?&]password=", location))


@contextmanager
def open_cdm(
    workspace: Workspace,
    location: str,
    schema: str | None,
    vocabulary_schema: str | None = None,
    vocabulary_folder: Path | None = None,
) -> "Iterator[CdmBackend]":
    """Open the CDM at a location and select its schemas; a server connection is closed at the end."""
    if vocabulary_schema is not None and vocabulary_folder is not None:
        raise InputError("the vocabulary is given both as a schema and as a folder; give one of them.")
    cdm = _backend(workspace, location)
    try:
        cdm.select_schema(schema)
        if vocabulary_schema is not None:
            cdm.vocabulary = cdm.in_schema(vocabulary_schema)
        elif vocabulary_folder is not None:
            cdm.vocabulary = _vocabulary_folder(workspace, vocabulary_folder)
        yield cdm
    finally:
        cdm.close()


def _vocabulary_folder(workspace: Workspace, path: Path) -> FolderBackend:
    """The tables of a folder, such as a download from OHDSI's Athena."""
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; give the folder with the vocabulary tables.")
    folder = FolderBackend(workspace, path)
    folder.schema = ""
    if not folder.has(CONCEPT):
        raise InputError(f"{path} has no concept table; give the folder with the vocabulary tables.")
    return folder


def _backend(workspace: Workspace, location: str) -> "CdmBackend":
    from phenotaste.sources.omop.postgres import PostgresBackend

    shown = redacted(location)
    scheme = SCHEME.match(location)
    if scheme:
        if scheme[1].lower() not in ("postgres", "postgresql"):
            raise InputError(
                f"{shown} is not a supported address; use one of PostgreSQL, which begins with postgresql:."
            )
        return PostgresBackend(workspace, location)
    path = Path(location)
    if path.is_dir():
        return FolderBackend(workspace, path)
    if path.is_file():
        return DuckDBBackend(workspace, path)
    raise InputError(f"{shown} does not exist; give a DuckDB file, a folder or a postgresql:// address.")
