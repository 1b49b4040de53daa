"""Files and columns as sources need them: found by name whatever the case, typed, and refused with a sentence."""

import gzip
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace, new_name, refusing

if TYPE_CHECKING:
    from ibis import Table, Value

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
PARQUET = (".parquet", ".pq")
DELIMITERS = (",", "\t", ";", "|")
NOUNS = {  # the kinds of columns, and what a value of one is called
    "text": "text",
    "id": "identifier",
    "code": "code",
    "date": "date",
    "time": "time",
    "number": "number",
    "integer": "whole number",
}


def load(
    workspace: Workspace,
    paths: Path | Sequence[Path],
    title: str,
    kinds: Mapping[str, str],
    required: Iterable[str],
) -> "Table":
    """The columns that `kinds` names, typed; of those not required, the ones that are there."""
    table = read_file(workspace, paths, title)
    needed = list(required)
    table = columns(table, title, needed, [name for name in kinds if name not in needed])
    return typed(settled(workspace, table, paths, title), title, kinds)


def settled(workspace: Workspace, table: "Table", paths: Path | Sequence[Path], title: str) -> "Table":
    """Columns chosen from a CSV, copied into the workspace; those of Parquet stay where they are.

    A CSV is slow to read and would be read again for every question; its faults show here, under its title.
    """
    if not is_csv(paths):
        return table
    with refusing(title):
        return workspace.con.create_table(new_name(), table)


def read_file(workspace: Workspace, paths: Path | Sequence[Path], title: str) -> "Table":
    """One table of one or more files of the same kind; every column of a CSV is text."""
    files = [paths] if isinstance(paths, Path) else list(paths)
    for file in files:
        if not file.exists():
            raise InputError(f"{file} does not exist; check the path.")
        if file.is_dir():
            raise InputError(f"{file} is a folder; give the file of {title}.")
    names = [str(file) for file in files]
    if all(name.lower().endswith(PARQUET) for name in names):
        with refusing(title):
            return workspace.con.read_parquet([literal(name) for name in names], union_by_name=True)
    if is_csv(files):
        delimiters = {delimiter(file, title) for file in files}
        if len(delimiters) > 1:
            raise InputError(
                f"the files of {title} separate their columns in different ways; use commas in all."
            )
        with refusing(title):
            return workspace.con.read_csv(
                [literal(name) for name in names],
                all_varchar=True,
                header=True,
                union_by_name=True,
                delim=delimiters.pop(),  # what is left to guess, DuckDB may guess wrongly
                quote='"',
                escape='"',
                comment="",
                skip=0,
            )
    raise InputError(f"{title} is neither all CSV nor all Parquet ({files[0].name}); convert it.")


def tables_in(path: Path, title: str) -> list[Path]:
    """The file, or the Parquet files of a folder and its folders, or else its CSV files."""
    if not path.is_dir():
        return [path]
    inside = sorted(
        file for file in path.rglob("*") if file.is_file() and not file.name.startswith((".", "_"))
    )
    for endings in (PARQUET, CSV):
        files = [file for file in inside if file.name.lower().endswith(endings)]
        if files:
            return files
    raise InputError(f"{path} holds no CSV and no Parquet file with {title}; check the path.")


def is_csv(paths: Path | Sequence[Path]) -> bool:
    files = [paths] if isinstance(paths, Path) else paths
    return all(str(file).lower().endswith(CSV) for file in files)


def literal(name: str) -> str:
    """A path that DuckDB takes as it stands: stars, question marks and brackets are patterns to it."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def delimiter(file: Path, title: str) -> str:
    """What separates the columns of a CSV, by its header, which is checked on the way."""
    try:
        with gzip.open(file) if str(file).lower().endswith(".gz") else file.open("rb") as opened:
            header = opened.readline().decode("utf-8-sig").rstrip("\r\n")
    except (OSError, EOFError, zlib.error):
        raise InputError(
            f"{title} could not be read ({file.name}); check that the file is whole and your rights."
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{title} is not UTF-8 text ({file.name}); save it as UTF-8.") from None
    if not header.strip():
        raise InputError(
            f"{title} is empty or lacks a header ({file.name}); name its columns in the first line."
        )
    separator = max(DELIMITERS, key=header.count)
    names = [name.strip().strip('"').lower() for name in header.split(separator)]
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise InputError(f"{title} has the column {twice[0]} more than once; rename one of them.")
    return separator


def columns(table: "Table", title: str, required: Iterable[str], optional: Iterable[str] = ()) -> "Table":
    """The wanted columns under the names asked for, whatever the case in the source; optional ones where present."""
    found: dict[str, list[str]] = {}
    for name in table.columns:
        found.setdefault(name.strip().lower(), []).append(name)
    chosen = {}
    for wanted in [*required, *optional]:
        places = found.get(wanted.lower(), [])
        if len(places) > 1:
            raise InputError(f"{title} has the column {wanted} more than once; rename one of them.")
        if places:
            chosen[wanted] = table[places[0]]
    missing = [wanted for wanted in required if wanted not in chosen]
    if missing:
        listed = ", ".join(table.columns[:40])
        raise InputError(f"{title} lacks the column {missing[0]}; its columns are: {listed}.")
    return table.select(**chosen)


def typed(table: "Table", title: str, kinds: Mapping[str, str]) -> "Table":
    """Columns as kinds of NOUNS; a value that cannot be read so is refused.

    "id" and "code" are text, and "id" undoes what tools do to numbers that may be missing (12 to 12.0).
    Empty text is no value. Columns that the table lacks are passed over, so that optional ones may be named.
    """
    wanted = {name: kind for name, kind in kinds.items() if name in table.columns}
    for name, kind in wanted.items():
        if not readable(table[name], kind):
            raise InputError(
                f"column {name} of {title} is of the type {table[name].type()} and cannot hold {NOUNS[kind]}s; "
                "convert it."
            )
    plain = table.mutate(**{name: blank_to_null(table[name]) for name in wanted})
    cast = {name: as_kind(plain[name], kind) for name, kind in wanted.items()}
    doubtful = [name for name, kind in wanted.items() if may_fail(plain[name], kind)]
    if doubtful:
        lost = {name: (plain[name].notnull() & cast[name].isnull()).sum() for name in doubtful}
        with refusing(title):
            counts = plain.aggregate(**lost).to_pyarrow().to_pylist()[0]
        for name, count in counts.items():
            if count:
                noun = NOUNS[wanted[name]]
                some = f"1 value that is no {noun}" if count == 1 else f"{count:,} values that are no {noun}s"
                raise InputError(f"column {name} of {title} has {some}; correct the file.")
    return plain.mutate(**cast)


def readable(column: "Value", kind: str) -> bool:
    """Whether a column's type can hold such values at all."""
    source = column.type()
    if source.is_string() or is_void(column):
        return True
    if kind == "text":
        return bool(source.is_primitive() or source.is_decimal() or source.is_uuid())
    if kind == "id":
        return bool(source.is_numeric() or source.is_uuid()) and not source.is_boolean()
    if kind == "code":  # a number with decimals has lost the zeros that tell one code from another
        return bool(source.is_integer())
    if kind == "number":
        return bool(source.is_numeric() or source.is_boolean())
    if kind == "integer":
        return bool(source.is_numeric())
    return bool(source.is_date() or source.is_timestamp() or source.is_numeric()) and not source.is_boolean()


def is_void(column: "Value") -> bool:
    """Whether the column was written without a type, because it has no value at all."""
    source = column.type()
    return bool(source.is_null() or (source.is_unknown() and "NULL" in str(source)))


def may_fail(column: "Value", kind: str) -> bool:
    source = column.type()
    if source.is_string():
        return kind not in ("text", "id", "code")
    if source.is_integer():
        return kind in ("date", "time")
    return bool(source.is_numeric()) and kind not in ("text", "number")


def blank_to_null(column: "Value") -> "Value":
    source = column.type()
    if is_void(column):
        return column.cast("string")
    if source.is_string():
        return column.strip().nullif("")
    return column.isnan().ifelse(None, column) if source.is_floating() else column


def as_kind(column: "Value", kind: str) -> "Value":
    source = column.type()
    if kind == "id":
        if source.is_string():
            return column.endswith(".0").ifelse(column.substr(0, column.length() - 2), column)
        return (column if source.is_integer() or source.is_uuid() else whole(column)).cast("string")
    if kind in ("text", "code"):
        if source.is_floating():
            return whole(column).cast("string").coalesce(column.cast("string"))
        return column.cast("string")
    if kind == "number":
        number = column.try_cast("float64") if source.is_string() else column.cast("float64")
        return (number.isnan() | number.isinf()).ifelse(None, number)
    if kind == "integer":
        return column.cast("int64") if source.is_integer() else whole(column)
    return as_time(column, kind)


def whole(column: "Value") -> "Value":
    """Whole numbers, also those written 12.0; null for others. Text is not led through floats: they round."""
    if column.type().is_string():
        number = column.try_cast("int64")
        return (column.try_cast("float64") == number.cast("float64")).ifelse(number, None)
    sound = (column == column.floor()) & (column.abs() < 2**62)
    return sound.ifelse(column, None).cast("int64")


def as_time(column: "Value", kind: str) -> "Value":
    """Times in UTC from dates, times, ISO 8601 text and the spelling 20081231, also as a number."""
    source = column.type()
    if source.is_date() or source.is_timestamp():
        if source.is_timestamp() and source.timezone is not None:
            column = column.cast("timestamp('UTC')").cast("timestamp")
        return column.cast("date" if kind == "date" else "timestamp")
    if source.is_numeric():
        column = whole(column).cast("string")
    iso = column.re_replace(r"^(\d{4})[/]?(\d{2})[/]?(\d{2})$", r"\1-\2-\3")
    moment = iso.re_search(r"^\d{4}-").ifelse(iso, None).try_cast("timestamp('UTC')").cast("timestamp")
    return moment.cast("date") if kind == "date" else moment
