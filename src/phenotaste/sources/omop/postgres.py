"""A CDM in PostgreSQL: Ibis expressions run as queries on the server, and their rows stream into the workspace."""

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from phenotaste.errors import InputError
from phenotaste.sources.omop.backends import redacted
from phenotaste.sources.omop.cdm import CdmBackend, strict_cast
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table

CONNECT_TIMEOUT = 15  # seconds
IDS_PER_QUERY = 5000
BLOCK = 1 << 20  # bytes parsed at once

# All tables and views that the role may read; unlike information_schema, including materialised views.
READABLE = """
select n.nspname, c.relname from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'v', 'm', 'f', 'p')
  and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname not like 'pg\\_toast%'
  and pg_catalog.has_schema_privilege(n.oid, 'USAGE')
  and (pg_catalog.has_table_privilege(c.oid, 'SELECT') or pg_catalog.has_any_column_privilege(c.oid, 'SELECT'))
order by 1, 2
"""


class PostgresBackend(CdmBackend):
    """One read-only transaction, so that all tables are consistent; nothing is created on the server."""

    def __init__(self, workspace: Workspace, url: str) -> None:
        import ibis

        super().__init__(workspace, redacted(url))
        self.connection = _connect(url, self.label)
        self.names: dict[str, list[str]] | None = None
        with _translate_errors(self.label):
            self.backend = ibis.postgres.from_connection(self.connection)
            self.connection.execute("set datestyle to 'ISO'")
            self.connection.commit()

    def close(self) -> None:
        self.connection.close()

    def schemas(self) -> dict[str, list[str]]:
        if self.names is None:
            self.names = {}
            with _translate_errors(self.label):
                rows = self.connection.execute(READABLE).fetchall()
            for schema, table in rows:
                self.names.setdefault(schema, []).append(table)
        return self.names

    def open(self, schema: str, table: str) -> "Table":
        with _translate_errors(table):
            return self.backend.table(table, database=schema)

    def cast(self, table: "Table", title: str, kinds: Mapping[str, str]) -> "Table":
        present = {name: kind for name, kind in kinds.items() if name in table.columns}
        return table.mutate(**{name: strict_cast(table[name], kind) for name, kind in present.items()})

    def fetch(self, table: "Table", name: str) -> "Table":
        return self._stream([table], name)

    def lookup(self, table: "Table", key: str, ids: "Table", name: str) -> "Table":
        listed = ids.to_pyarrow().column(0).drop_null().unique().sort().to_pylist()
        chunks = [listed[at : at + IDS_PER_QUERY] for at in range(0, len(listed), IDS_PER_QUERY)] or [[-1]]
        return self._stream([table.filter(table[key].isin(chunk)) for chunk in chunks], name)

    def _stream(self, queries: "list[Table]", name: str) -> "Table":
        """Concatenate the rows of queries with the same columns, holding only a few blocks in memory."""
        import pyarrow as pa

        schema = queries[0].schema().to_pyarrow()
        failure: list[BaseException] = []

        def batches() -> "Iterator[pa.RecordBatch]":
            try:
                for query in queries:
                    yield from self._copied(query, schema)
            except BaseException as error:  # DuckDB would re-raise its message only
                failure.append(error)
                raise

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        with _translate_errors(name.removeprefix("omop_")):
            try:
                return self.workspace.ingest(reader, name)
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
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            yield from csv.open_csv(
                _CopyStream(copy),
                read_options=csv.ReadOptions(block_size=BLOCK),
                parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
                convert_options=csv.ConvertOptions(
                    column_types=schema,
                    null_values=[""],  # PostgreSQL quotes empty text, and writes null without quotes
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )


class _CopyStream(io.RawIOBase):
    """The rows of a COPY as a file that is read in blocks."""

    def __init__(self, copy: Any) -> None:
        self.copy, self.buffer, self.done = copy, bytearray(), False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self.done and (size < 0 or len(self.buffer) < size):
            row = self.copy.read()
            self.done = not row
            self.buffer += row
        size = len(self.buffer) if size < 0 else size
        head = bytes(self.buffer[:size])
        del self.buffer[:size]
        return head


def _connect(url: str, label: str) -> Any:
    import psycopg

    try:
        # libpq parses the URL, so that services, .pgpass, PGPASSWORD and every sslmode work.
        connection = psycopg.connect(url, client_encoding="UTF8", connect_timeout=_connect_timeout(url))
    except psycopg.ProgrammingError:
        raise InputError(_invalid_address(label)) from None
    except psycopg.Error as error:
        raise InputError(_connection_error(str(error), label)) from None
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    return connection


def _connect_timeout(url: str) -> int | None:
    given = "connect_timeout" in url or "PGCONNECT_TIMEOUT" in os.environ
    return None if given else CONNECT_TIMEOUT


def _invalid_address(label: str) -> str:
    # Without an example: `errors.safe` takes what is between an address and an @ for a password.
    return f"{label} is not a valid PostgreSQL address; write scheme, user, host, port and database."


def _connection_error(message: str, label: str) -> str:
    """Describe the error; the server's own message contains the user."""
    if "password authentication failed" in message or "no password supplied" in message:
        return f"{label} rejected the user or password; set the password in PGPASSWORD or a .pgpass file."
    if "database" in message and "does not exist" in message:
        return f"{label} does not exist as a database on that server; check its name."
    if "role" in message and "does not exist" in message:
        return f"{label} does not know the user; check the name in the URL or in PGUSER."
    if "SSL" in message:
        return f"{label} does not support the requested encryption; check sslmode."
    if "invalid port" in message or "invalid integer" in message:
        return _invalid_address(label)
    if "pg_hba.conf" in message:
        return (
            f"{label} does not allow this user to connect from this host; ask its administrator for access."
        )
    return f"{label} could not be reached; check host, port, network and that the server is running."


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    """Raise errors of the server as InputError: the original messages can quote values."""
    import psycopg
    import pyarrow as pa

    try:
        yield
    except psycopg.errors.InsufficientPrivilege:
        raise InputError(f"the role may not read {what}; ask for the SELECT privilege on it.") from None
    except psycopg.DataError:
        raise InputError(
            f"{what} has values that are not dates or numbers as its columns require; correct them."
        ) from None
    except psycopg.OperationalError:
        raise InputError(f"the connection was lost while {what} was read; try again.") from None
    except psycopg.Error:
        raise InputError(
            f"PostgreSQL could not read {what}; check that its columns are those of the OMOP CDM."
        ) from None
    except pa.ArrowInvalid:
        raise InputError(
            f"{what} has values that do not fit their column; check dates and numbers."
        ) from None
