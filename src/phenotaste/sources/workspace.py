"""A private temporary DuckDB database for one build: large tables stay on disk, and are removed at the end."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table
    from ibis.backends.duckdb import Backend

MEMORY = 3 * 2**30  # limit for DuckDB alone; Arrow and NumPy arrays of the result come on top


class Workspace:
    """A context manager; patient data spill to a private subfolder of `folder`, by default the temporary directory.

    Examples
    --------
    >>> import os
    >>> from phenotaste.sources.workspace import Workspace
    >>> with Workspace() as workspace:
    ...     exists = os.path.isdir(workspace.folder)
    >>> exists, os.path.isdir(workspace.folder)
    (True, False)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        memory: int = MEMORY,
        threads: int | None = None,
    ) -> None:
        import ibis

        self.confined = False
        self.folder = tempfile.mkdtemp(prefix="phenotaste-", dir=folder)  # readable by its owner only
        try:
            settings: dict[str, Any] = {} if threads is None else {"threads": threads}
            self.con: Backend = ibis.duckdb.connect(
                os.path.join(self.folder, "work.duckdb"),
                memory_limit=f"{memory // 2**20}MiB",
                temp_directory=os.path.join(self.folder, "spill"),
                autoinstall_known_extensions=False,  # no network access
                autoload_known_extensions=False,
                preserve_insertion_order=False,  # saves memory; queries sort where they need an order
                **settings,
            )
            self.con.con.execute("SET TimeZone = 'UTC'")
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def __enter__(self) -> "Workspace":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the database and its folder; done automatically at the end of `with`.

        Examples
        --------
        >>> import os
        >>> from phenotaste.sources.workspace import Workspace
        >>> workspace = Workspace()
        >>> workspace.close()
        >>> os.path.isdir(workspace.folder)
        False
        """
        with suppress(Exception):
            self.con.disconnect()
        shutil.rmtree(self.folder, ignore_errors=True)

    def confine(self) -> None:
        """From now on no query reads another file: the views of a foreign database would read any of the user's."""
        self.con.con.execute("SET enable_external_access = false")
        self.confined = True

    def read_files(self, read: "Callable[[Backend], Table]") -> "Table":
        """The table that `read` opens on a connection; once confined, another database reads it and rows are copied."""
        if not self.confined:
            return read(self.con)
        with Workspace() as other:
            return self.ingest(read(other.con).to_pyarrow().to_reader(), unique_name())

    def materialise(self, table: "Table", name: str) -> "Table":
        """Store the rows of an expression as a table, replacing an earlier table of this name."""
        new, final = f"{name} (new)", _quoted(name)
        with translate_errors(name):
            self._drop(new)
            self.con.create_table(new, table)
            self._drop(name)  # only now: the expression may read the earlier table
            self.con.con.execute(f"ALTER TABLE {_quoted(new)} RENAME TO {final}")
            return self.con.table(name)

    def materialise_sql(self, query: str, name: str) -> "Table":
        """Store the rows of a query in DuckDB's SQL as a table, replacing an earlier table of this name."""
        with translate_errors(name):
            self._drop(name)
            # Not through Ibis, which leaves a result open that describes the query.
            self.con.con.execute(f"CREATE TABLE {_quoted(name)} AS {query}").fetchall()
            return self.con.table(name)

    def ingest(self, batches: "pa.RecordBatchReader", name: str) -> "Table":
        """Store record batches as a table."""
        incoming = f"{name} (incoming)"
        with translate_errors(name):
            self.con.con.register(incoming, batches)
            try:
                return self.materialise(self.con.table(incoming), name)
            finally:
                self.con.con.unregister(incoming)

    def _drop(self, name: str) -> None:
        # Not through Ibis 12, whose DROP statements lose the table's name with sqlglot 30.30.
        self.con.con.execute(f"DROP TABLE IF EXISTS {_quoted(name)}")


def unique_name() -> str:
    """A table name that is not used in any workspace."""
    from ibis import util

    return str(util.gen_name("phenotaste"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise DuckDB errors as InputError: the original messages quote values, which may be patient data."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException:
        raise InputError(
            f"there is not enough memory or disk space for {what}; free some, or use a larger machine."
        ) from None
    except duckdb.PermissionException:
        raise InputError(
            f"{what} reads a file outside the database through a view; store the rows of the view as a table."
        ) from None
    except (duckdb.IOException, duckdb.InternalException, duckdb.FatalException):
        raise InputError(unreadable(what)) from None
    except (
        duckdb.ConversionException,
        duckdb.InvalidInputException,
        duckdb.OutOfRangeException,
        duckdb.SerializationException,
    ) as error:
        raise InputError(f"{what} {describe_error(str(error).lower())}.") from None
    except duckdb.Error as error:
        if type(error) is duckdb.Error:  # a block of a database file that does not match its checksum
            raise InputError(unreadable(what)) from None
        raise


def unreadable(what: str) -> str:
    return f"{what} could not be read or written; check that the file is complete, the disk, and your permissions."


def describe_error(message: str) -> str:
    """The cause of a DuckDB error, without the values that its message quotes."""
    if "invalid unicode" in message:
        return "is not UTF-8 text; save it as UTF-8"
    if "csv error" in message or "sniffing" in message:
        return "is not a valid CSV file: some rows differ from the header in length, or a quote is not closed"
    if "parquet" in message or "thrift" in message or "snappy" in message:
        return "is not a valid Parquet file; write it again"
    return "holds values that do not fit their column; check dates and numbers"
