"""Where a CDM lives, as the user writes it and as it may be shown."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from phenotaste.sources.omop.cdm import Place

SCHEME = re.compile(r"^([a-z][a-z0-9+.:-]*)://", re.IGNORECASE)
SERVER = r"(?:[\w.%-]*|\[[0-9a-fA-F:.]+\])(?::\d*)?"
SERVERS = re.compile(rf"{SERVER}(?:,{SERVER})*")


def redacted(location: str) -> str:
    """The location without user, password and parameters: what is printed and stored.

    Examples
    --------
    >>> redacted("postgresql://ann:secret@db.example.org:5432/cdm?sslmode=require")
    'postgresql://db.example.org:5432/cdm'
    >>> redacted("data/cdm.duckdb")
    'data/cdm.duckdb'
    """
    found = SCHEME.match(location)
    if not found:
        return "…" if "password" in location.lower() else location
    authority, rest = re.fullmatch(r"([^/?#]*)(.*)", location[found.end() :], re.DOTALL).groups()  # type: ignore[union-attr]
    servers = authority.rpartition("@")[2]
    if "@" in rest or not SERVERS.fullmatch(servers):  # a password with a slash in it, or one without a user
        return f"{found[1]}://…"
    return f"{found[1]}://{servers}{re.split(r'[?#&=]', rest)[0]}"


@contextmanager
def opened(workspace: Workspace, location: str, schema: str | None) -> "Iterator[Place]":
    """The CDM at a location, settled on one schema; a connection to a server is closed in the end."""
    place = _place(workspace, location)
    try:
        place.choose(schema)
        yield place
    finally:
        place.close()


def _place(workspace: Workspace, location: str) -> "Place":
    from phenotaste.sources.omop.backends import DuckDB, Folder
    from phenotaste.sources.omop.postgres import Postgres

    shown = redacted(location)
    scheme = SCHEME.match(location)
    if scheme:
        if scheme[1].lower() not in ("postgres", "postgresql"):
            raise InputError(
                f"{shown} is no kind of address that is known; write postgresql://user@host/database."
            )
        return Postgres(workspace, location)
    path = Path(location)
    if path.is_dir():
        return Folder(workspace, path)
    if path.is_file():
        return DuckDB(workspace, path)
    raise InputError(f"{shown} does not exist; give a DuckDB file, a folder or a postgresql:// address.")
