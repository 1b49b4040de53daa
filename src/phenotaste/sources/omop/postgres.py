"""A CDM in PostgreSQL: Ibis expressions become queries there, and their rows stream into the workspace."""

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm import Place, plain_cast
from phenotaste.sources.omop.location import redacted
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table

PATIENCE = 15  # seconds until a host counts as unreachable
IDS_IN_A_QUERY = 5000
BLOCK = 1 << 20  # bytes that are parsed at a time

# What the role may read, whatever the kind of table; the catalogue also knows materialised views.
READABLE = """
select n.nspname, c.relname from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'v', 'm', 'f', 'p')
  and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\\_toast%'
  and pg_catalog.has_schema_privilege(n.oid, 'USAGE')
  and (pg_catalog.has_table_privilege(c.oid, 'SELECT') or pg_catalog.has_any_column_privilege(c.oid, 'SELECT'))
order by 1, 2
"""


class Postgres(Place):
    """One read-only transaction, so that all tables are of one moment; nothing is created on the server."""

    def __init__(self, workspace: Workspace, url: str) -> None:
        import ibis

        super().__init__(workspace, redacted(url))
        self.link = _connect(url, self.where)
        self.found: dict[str, list[str]] | None = None
        with _refusing(self.where):
            self.backend = ibis.postgres.from_connection(self.link)
            self.link.execute("set datestyle to 'ISO'")
            self.link.commit()

    def close(self) -> None:
        self.link.close()

    def schemas(self) -> dict[str, list[str]]:
        if self.found is None:
            self.found = {}
            with _refusing(self.where):
                rows = self.link.execute(READABLE).fetchall()
            for schema, table in rows:
                self.found.setdefault(schema, []).append(table)
        return self.found

    def open(self, schema: str, table: str) -> "Table":
        with _refusing(table):
            return self.backend.table(table, database=schema)

    def typed(self, table: "Table", title: str, kinds: Mapping[str, str]) -> "Table":
        present = {name: kind for name, kind in kinds.items() if name in table.columns}
        return table.mutate(**{name: plain_cast(table[name], kind) for name, kind in present.items()})

    def fetch(self, table: "Table", name: str) -> "Table":
        return self._stream([table], name)

    def lookup(self, table: "Table", key: str, ids: "Table", name: str) -> "Table":
        listed = ids.to_pyarrow().column(0).drop_null().unique().sort().to_pylist()
        pieces = [listed[at : at + IDS_IN_A_QUERY] for at in range(0, len(listed), IDS_IN_A_QUERY)] or [[-1]]
        return self._stream([table.filter(table[key].isin(piece)) for piece in pieces], name)

    def _stream(self, queries: "list[Table]", name: str) -> "Table":
        """The rows of queries of one shape, one after another, never more than a few blocks in memory."""
        import pyarrow as pa

        schema = queries[0].schema().to_pyarrow()
        failure: list[BaseException] = []

        def batches() -> "Iterator[pa.RecordBatch]":
            try:
                for query in queries:
                    yield from self._copied(query, schema)
            except BaseException as error:  # DuckDB would hand on its text alone
                failure.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        with _refusing(name.removeprefix("omop_")):
            try:
                return self.workspace.take(reader, name)
            except Exception:
                if failure:
                    raise failure[0] from None
                raise

    def _copied(self, query: "Table", schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
        import ibis
        from psycopg import sql
        from pyarrow import csv

        text = sql.SQL(str(ibis.to_sql(query, dialect="postgres")))
        statement = sql.SQL("copy ({}) to stdout (format csv, header)").format(text)
        with self.link.cursor() as cursor, cursor.copy(statement) as copy:
            yield from csv.open_csv(
                _Rows(copy),
                read_options=csv.ReadOptions(block_size=BLOCK),
                parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
                convert_options=csv.ConvertOptions(
                    column_types=schema,
                    null_values=[""],  # PostgreSQL quotes text that is empty, and leaves a null bare
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )


class _Rows(io.RawIOBase):
    """What a COPY sends, as a file: it comes row by row, and is asked for in blocks."""

    def __init__(self, copy: Any) -> None:
        self.copy, self.rest, self.done = copy, bytearray(), False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self.done and (size < 0 or len(self.rest) < size):
            row = self.copy.read()
            self.done = not row
            self.rest += row
        size = len(self.rest) if size < 0 else size
        head = bytes(self.rest[:size])
        del self.rest[:size]
        return head


def _connect(url: str, where: str) -> Any:
    import psycopg

    try:
        # libpq reads the URL itself: it knows services, .pgpass, PGPASSWORD and every sslmode.
        link = psycopg.connect(url, client_encoding="UTF8", connect_timeout=_patience(url))
    except psycopg.ProgrammingError:
        raise InputError(_no_address(where)) from None
    except psycopg.Error as error:
        raise InputError(_why_not(str(error), where)) from None
    link.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    link.read_only = True
    return link


def _patience(url: str) -> int | None:
    said = "connect_timeout" in url or "PGCONNECT_TIMEOUT" in os.environ
    return None if said else PATIENCE


def _no_address(where: str) -> str:
    return f"{where} is no address that PostgreSQL understands; write postgresql://user@host:5432/database."


def _why_not(message: str, where: str) -> str:
    """The reason as a sentence of our own: the server's names the user."""
    if "password authentication failed" in message or "no password supplied" in message:
        return f"{where} refused the user or the password; give it in the URL, in PGPASSWORD or in a .pgpass file."
    if "database" in message and "does not exist" in message:
        return f"{where} does not exist as a database on that server; check its name."
    if "role" in message and "does not exist" in message:
        return f"{where} does not know the user; check the name in the URL or in PGUSER."
    if "SSL" in message:
        return f"{where} does not speak with the encryption that was asked for; check sslmode."
    if "invalid port" in message or "invalid integer" in message:
        return _no_address(where)
    if "pg_hba.conf" in message:
        return f"{where} does not let this user in from here; ask who runs the server for access."
    return f"{where} could not be reached; check host, port, network and that the server is running."


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """The server's errors as a sentence: its own may quote a value."""
    import psycopg
    import pyarrow as pa

    try:
        yield
    except psycopg.errors.InsufficientPrivilege:
        raise InputError(f"the role may not read {what}; ask for the right to select from it.") from None
    except psycopg.DataError:
        raise InputError(
            f"{what} holds values that are no date or number as its column must be; correct them."
        ) from None
    except psycopg.OperationalError:
        raise InputError(f"the connection was lost while {what} was read; try again.") from None
    except psycopg.Error:
        raise InputError(
            f"PostgreSQL could not read {what}; check that its columns are as OMOP has them."
        ) from None
    except pa.ArrowInvalid:
        raise InputError(
            f"{what} holds values that do not fit their column; check dates and numbers."
        ) from None
