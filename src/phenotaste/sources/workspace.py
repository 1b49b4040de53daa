"""A private DuckDB database that one build works in: large tables stay on disk, and go when the build is done."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from ibis import Table
    from ibis.backends.duckdb import Backend

MEMORY = 3 * 2**30  # DuckDB's own share: what Arrow and numpy hold of the result comes on top


class Workspace:
    """Open with `with`; `folder` is where the database may spill patients' data, a private temporary one by default.

    Examples
    --------
    >>> import os
    >>> from phenotaste.sources.workspace import Workspace
    >>> with Workspace() as workspace:
    ...     there = os.path.isdir(workspace.folder)
    >>> there, os.path.isdir(workspace.folder)
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

        self.folder = tempfile.mkdtemp(prefix="phenotaste-", dir=folder)  # readable by its owner only
        try:
            settings: dict[str, Any] = {} if threads is None else {"threads": threads}
            self.con: Backend = ibis.duckdb.connect(
                os.path.join(self.folder, "work.duckdb"),
                memory_limit=f"{memory // 2**20}MiB",
                temp_directory=os.path.join(self.folder, "spill"),
                autoinstall_known_extensions=False,  # nothing is ever fetched from the network
                autoload_known_extensions=False,
                preserve_insertion_order=False,  # order costs memory; whoever needs one sorts
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
        """Remove the database and all that it held; `with` does so by itself.

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

    def keep(self, table: "Table", name: str) -> "Table":
        """The rows of an expression, computed once and kept under a name (an earlier one of it is replaced)."""
        fresh, final = f"{name} (new)", _quoted(name)
        with refusing(name):
            self._drop(fresh)
            self.con.create_table(fresh, table)
            self._drop(name)  # only now: the expression may read the earlier one
            self.con.con.execute(f"ALTER TABLE {_quoted(fresh)} RENAME TO {final}")
            return self.con.table(name)

    def take(self, batches: "pa.RecordBatchReader", name: str) -> "Table":
        """Rows that come from outside, batch by batch."""
        incoming = f"{name} (incoming)"
        with refusing(name):
            self.con.con.register(incoming, batches)
            try:
                return self.keep(self.con.table(incoming), name)
            finally:
                self.con.con.unregister(incoming)

    def _drop(self, name: str) -> None:
        # Not through Ibis 12: with sqlglot 30.30 its DROP statements lose the table's name.
        self.con.con.execute(f"DROP TABLE IF EXISTS {_quoted(name)}")


def new_name() -> str:
    """A name that no table of a workspace has yet."""
    from ibis import util

    return str(util.gen_name("phenotaste"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """DuckDB's errors as a sentence: its own quote the values that they stumble over, which may be a patient's."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException:
        raise InputError(
            f"there is not enough memory or disk for {what}; free some, or use a larger machine."
        ) from None
    except duckdb.IOException:
        raise InputError(
            f"{what} could not be read or written; check that the file is whole, the disk and your rights."
        ) from None
    except (
        duckdb.ConversionException,
        duckdb.InvalidInputException,
        duckdb.OutOfRangeException,
        duckdb.SerializationException,
    ) as error:
        raise InputError(f"{what} {fault(str(error).lower())}.") from None


def fault(message: str) -> str:
    """What a message of DuckDB is about, without the values that it quotes."""
    if "invalid unicode" in message:
        return "is not UTF-8 text; save it as UTF-8"
    if "csv error" in message or "sniffing" in message:
        return (
            "is no sound CSV: some rows do not have the header's number of columns, or a quote is left open"
        )
    if "parquet" in message or "thrift" in message or "snappy" in message:
        return "is no sound Parquet file; write it again"
    return "holds values that do not fit their column; check dates and numbers"
