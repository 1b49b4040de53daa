"""CSV and Parquet files as typed tables: columns matched by name, ignoring case, and values converted or refused."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.records import DAYS, HOURS, MINUTES, ORDER, ORIGIN
from phenotaste.sources.workspace import Workspace, translate_errors, unique_name
from phenotaste.storage.input_files import check_regular, limited_lines, open_lines

if TYPE_CHECKING:
    from ibis import Table, Value

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
PARQUET = (".parquet", ".pq")
DELIMITERS = (",", "\t", ";", "|")
MAX_LISTED = 40  # names in a message
MAX_TOLERATED = 0.05  # share of a column that may be unusable, where some are tolerated
TYPE_NAMES = {  # column types, and what a value of each is called in messages
    "text": "text",
    "id": "identifier",
    "code": "code",
    "date": "date",
    "time": "time",
    "number": "number",
    "integer": "integer",
    MINUTES: "number",
    HOURS: "number",
    DAYS: "number",
    ORDER: "integer",
}
MICROSECONDS = {MINUTES: 60e6, HOURS: 3600e6, DAYS: 86400e6, ORDER: 86400e6}  # of times that are not dates
LONGEST = 8e18  # microseconds from zero that a timestamp can hold: some ninety million days or ranks


def load(
    workspace: Workspace,
    paths: Path | Sequence[Path],
    title: str,
    types: Mapping[str, str],
    required: Iterable[str],
    tolerated: Iterable[str] = (),
    notes: list[str] | None = None,
    names: Mapping[str, str] | None = None,
) -> "Table":
    """Read the columns of `types`; those not required may be absent. `tolerated` as in cast_columns.

    `names` are the columns of the file, ignoring case, that are to be read under other names.
    """
    table = read_file(workspace, paths, title)
    if names:
        table = renamed(table, names)
    needed = list(required)
    table = select_columns(table, title, needed, [name for name in types if name not in needed])
    return cast_columns(materialised(workspace, table, paths, title), title, types, tolerated, notes)


def renamed(table: "Table", names: Mapping[str, str]) -> "Table":
    """The table with these columns under the names that are their keys, in place of columns of the same name."""
    spellings = {name.strip().lower(): name for name in table.columns}
    chosen = {
        ours: spellings[theirs.lower()] for ours, theirs in names.items() if theirs.lower() in spellings
    }
    replaced = {name.lower() for name in chosen}
    others = {name: name for key, name in spellings.items() if key not in replaced}
    return table.select(**{ours: table[theirs] for ours, theirs in (others | chosen).items()})


def materialised(workspace: Workspace, table: "Table", paths: Path | Sequence[Path], title: str) -> "Table":
    """Copy columns of a CSV file into the workspace; Parquet files are read in place.

    A CSV file is slow to parse and would be parsed again by every query; its errors are raised here, with its title.
    """
    if not is_csv(paths):
        return table
    with translate_errors(title):
        return workspace.con.create_table(unique_name(), table)


def read_file(
    workspace: Workspace, paths: Path | Sequence[Path], title: str, quoted_tabs: bool = True
) -> "Table":
    """Read one or more files of the same format as one table; every column of a CSV is text.

    Without `quoted_tabs`, quotes in files with tabs are part of the text.
    """
    files = [paths] if isinstance(paths, Path) else list(paths)
    for file in files:
        check_regular(file, title)
    names = [str(file) for file in files]
    if all(name.lower().endswith(PARQUET) for name in names):
        with translate_errors(title):
            patterns = [escape_glob(name) for name in names]
            return workspace.read_files(lambda con: con.read_parquet(patterns, union_by_name=True))
    if is_csv(files):
        delimiters = {delimiter(file, title) for file in files}
        if len(delimiters) > 1:
            raise InputError(f"the files of {title} use different column separators; use commas in all.")
        separator = delimiters.pop()  # explicit: DuckDB's sniffer can guess wrongly
        quote = '"' if quoted_tabs or separator != "\t" else ""
        with translate_errors(title):
            options = {
                "all_varchar": True,
                "header": True,
                "union_by_name": True,
                "delim": separator,
                "quote": quote,
                "escape": quote,
                "comment": "",
                "skip": 0,
            }
            patterns = [escape_glob(name) for name in names]
            return workspace.read_files(lambda con: con.read_csv(patterns, **options))
    raise InputError(f"{title} is neither all CSV nor all Parquet ({files[0].name}); convert it.")


def list_files(path: Path, title: str) -> list[Path]:
    """The file itself, or the Parquet files of a folder and its subfolders, or else its CSV files."""
    if not path.is_dir():
        return [path]
    inside = sorted(
        file for file in path.rglob("*") if file.is_file() and not file.name.startswith((".", "_"))
    )
    for endings in (PARQUET, CSV):
        files = [file for file in inside if file.name.lower().endswith(endings)]
        if files:
            return files
    raise InputError(f"{path} contains no CSV or Parquet file with {title}; check the path.")


def is_csv(paths: Path | Sequence[Path]) -> bool:
    files = [paths] if isinstance(paths, Path) else paths
    return all(str(file).lower().endswith(CSV) for file in files)


def escape_glob(name: str) -> str:
    """Escape stars, question marks and brackets, which DuckDB would expand as a pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def delimiter(file: Path, title: str) -> str:
    """Detect the column separator of a CSV from its header, and check the header."""
    try:
        with open_lines(file) as stream:
            header = next(limited_lines(stream, file.name), b"").decode("utf-8-sig").rstrip("\r\n")
    except (OSError, EOFError, zlib.error):
        raise InputError(
            f"{title} could not be read ({file.name}); check that the file is complete and your permissions."
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{title} is not UTF-8 text ({file.name}); save it as UTF-8.") from None
    if not header.strip():
        raise InputError(
            f"{title} is empty or lacks a header ({file.name}); put the column names in the first line."
        )
    separator = max(DELIMITERS, key=header.count)
    names = [name.strip().strip('"').lower() for name in header.split(separator)]
    repeated = [name for name in names if name and names.count(name) > 1]
    if repeated:
        raise InputError(f"{title} has the column {repeated[0]} more than once; rename one of them.")
    return separator


def select_columns(
    table: "Table", title: str, required: Iterable[str], optional: Iterable[str] = ()
) -> "Table":
    """Select columns by name, ignoring case, under the requested spelling; optional ones where present."""
    spellings: dict[str, list[str]] = {}
    for name in table.columns:
        spellings.setdefault(name.strip().lower(), []).append(name)
    selected = {}
    for name in [*required, *optional]:
        matches = spellings.get(name.lower(), [])
        if len(matches) > 1:
            raise InputError(f"{title} has the column {name} more than once; rename one of them.")
        if matches:
            selected[name] = table[matches[0]]
    missing = [name for name in required if name not in selected]
    if missing:
        raise InputError(
            f"{title} lacks the column {missing[0]}; its columns are: {listed_names(table.columns)}."
        )
    return table.select(**selected)


def listed_names(names: Sequence[str]) -> str:
    """Names for a message: the first ones, and the number of the others."""
    listed = ", ".join(names[:MAX_LISTED])
    return listed if len(names) <= MAX_LISTED else f"{listed} and {len(names) - MAX_LISTED:,} more"


def cast_columns(
    table: "Table",
    title: str,
    types: Mapping[str, str],
    tolerated: Iterable[str] = (),
    notes: list[str] | None = None,
) -> "Table":
    """Convert columns to the types of TYPE_NAMES; a value that cannot be converted is refused.

    "id" and "code" are text, and "id" restores integers that were exported as floats (12.0). Empty text is null.
    Columns that the table lacks are ignored, so that `types` may include optional ones. In the `tolerated` columns a
    few values that cannot be converted are null, and counted in `notes`; many are a wrong format, and refused.
    """
    present = {name: kind for name, kind in types.items() if name in table.columns}
    for name, kind in present.items():
        if not can_hold(table[name], kind):
            raise InputError(
                f"column {name} of {title} is of the type {table[name].type()} and cannot hold {TYPE_NAMES[kind]}s; "
                "convert it."
            )
    plain = table.mutate(**{name: blank_to_null(table[name]) for name in present})
    cast = {name: cast_column(plain[name], kind) for name, kind in present.items()}
    fallible = [name for name, kind in present.items() if may_fail(plain[name], kind)]
    if fallible:
        lost = {name: (plain[name].notnull() & cast[name].isnull()).sum() for name in fallible}
        filled = {f"{name} filled": plain[name].count() for name in fallible}
        with translate_errors(title):
            counts = plain.aggregate(**lost, **filled).to_pyarrow().to_pylist()[0]
        few = {name: counts[f"{name} filled"] * MAX_TOLERATED for name in tolerated if name in fallible}
        for name in fallible:
            if not counts[name]:
                continue
            found = f"column {name} of {title} has {unconverted(counts[name], TYPE_NAMES[present[name]])}"
            if notes is None or counts[name] > few.get(name, 0):
                raise InputError(f"{found}; correct the file.")
            notes.append(f"{found[0].upper()}{found[1:]}, counted as missing.")
    return plain.mutate(**cast)


def unconverted(count: int, noun: str) -> str:
    article = "an" if noun[0] in "aeiou" else "a"
    return f"1 value that is not {article} {noun}" if count == 1 else f"{count:,} values that are not {noun}s"


def can_hold(column: "Value", kind: str) -> bool:
    """Whether a column's type can hold such values."""
    source = column.type()
    if source.is_string() or is_untyped(column):
        return True
    if kind == "text":
        return bool(source.is_primitive() or source.is_decimal() or source.is_uuid())
    if kind == "id":
        return bool(source.is_numeric() or source.is_uuid()) and not source.is_boolean()
    if kind == "code":  # a float has lost the leading zeros that distinguish codes
        return bool(source.is_integer())
    if kind == "number":
        return bool(source.is_numeric() or source.is_boolean())
    if kind == "integer" or kind in MICROSECONDS:
        return bool(source.is_numeric()) and not source.is_boolean()
    return bool(source.is_date() or source.is_timestamp() or source.is_numeric()) and not source.is_boolean()


def is_untyped(column: "Value") -> bool:
    """Whether the column was written without a type because all its values are null."""
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
    if is_untyped(column):
        return column.cast("string")
    if source.is_string():
        return column.strip().nullif("")
    return column.isnan().ifelse(None, column) if source.is_floating() else column


def cast_column(column: "Value", kind: str) -> "Value":
    source = column.type()
    if kind == "id":
        if source.is_string():
            return column.endswith(".0").ifelse(column.substr(0, column.length() - 2), column)
        return (column if source.is_integer() or source.is_uuid() else to_integer(column)).cast("string")
    if kind in ("text", "code"):
        if source.is_floating():
            return to_integer(column).cast("string").coalesce(column.cast("string"))
        return column.cast("string")
    if kind == "number":
        number = column.try_cast("float64") if source.is_string() else column.cast("float64")
        return (number.isnan() | number.isinf()).ifelse(None, number)
    if kind == "integer":
        return column.cast("int64") if source.is_integer() else to_integer(column)
    if kind in MICROSECONDS:
        return from_origin(column, kind)
    return to_time(column, kind)


def from_origin(column: "Value", unit: str) -> "Value":
    """Timestamps from numbers of minutes, hours or days from zero; a rank is a day of its own."""
    import ibis

    number = to_integer(column) if unit == ORDER and not column.type().is_integer() else column
    number = number.try_cast("float64") if number.type().is_string() else number.cast("float64")
    passed = (number * MICROSECONDS[unit]).round()
    passed = (passed.abs() <= LONGEST).ifelse(passed, None).cast("int64")
    return ibis.literal(ORIGIN, type="timestamp") + passed.as_interval("us")


def to_integer(column: "Value") -> "Value":
    """Integers, also those written 12.0; null for others. Text is not converted through floats, which round."""
    if column.type().is_string():
        number = column.try_cast("int64")
        return (column.try_cast("float64") == number.cast("float64")).ifelse(number, None)
    exact = (column == column.floor()) & (column.abs() < 2**62)
    return exact.ifelse(column, None).cast("int64")


def to_time(column: "Value", kind: str) -> "Value":
    """Timestamps in UTC from dates, timestamps, ISO 8601 text, and 20081231 as text or number."""
    source = column.type()
    if source.is_date() or source.is_timestamp():
        if source.is_timestamp() and source.timezone is not None:
            column = column.cast("timestamp('UTC')").cast("timestamp")
        return column.cast("date" if kind == "date" else "timestamp")
    if source.is_numeric():
        column = to_integer(column).cast("string")
    iso = column.re_replace(r"^(\d{4})[/]?(\d{2})[/]?(\d{2})$", r"\1-\2-\3")
    moment = iso.re_search(r"^\d{4}-").ifelse(iso, None).try_cast("timestamp('UTC')").cast("timestamp")
    return moment.cast("date") if kind == "date" else moment
