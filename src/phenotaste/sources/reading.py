"""Files and columns as sources need them: found by name whatever the case, typed, and refused with a sentence."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace, refusing

if TYPE_CHECKING:
    from ibis import Table, Value

CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz")
PARQUET = (".parquet", ".pq")


def read_file(workspace: Workspace, paths: Path | Sequence[Path], title: str) -> "Table":
    """One table of one or more files of the same kind; every column of a CSV is text."""
    files = [paths] if isinstance(paths, Path) else list(paths)
    for file in files:
        if not file.exists():
            raise InputError(f"{file} does not exist; check the path.")
    names = [str(file) for file in files]
    if all(name.lower().endswith(PARQUET) for name in names):
        with refusing(title):
            return workspace.con.read_parquet(names, union_by_name=True)
    if all(name.lower().endswith(CSV) for name in names):
        with refusing(title):
            return workspace.con.read_csv(names, all_varchar=True, header=True, union_by_name=True)
    raise InputError(f"{title} is neither CSV nor Parquet ({files[0].name}); convert it.")


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
    """Columns as "text", "date", "time", "number" or "integer"; a value that cannot be read so is refused.

    Empty text is no value. Columns that the table lacks are passed over, so that optional ones may be named.
    """
    wanted = {name: kind for name, kind in kinds.items() if name in table.columns}
    plain = table.mutate(**{name: blank_to_null(table[name]) for name in wanted})
    cast = {name: as_kind(plain[name], kind) for name, kind in wanted.items()}
    doubtful = [name for name in wanted if plain[name].type().is_string() and wanted[name] != "text"]
    if doubtful:
        lost = {name: (plain[name].notnull() & cast[name].isnull()).sum() for name in doubtful}
        with refusing(title):
            counts = plain.aggregate(**lost).to_pyarrow().to_pylist()[0]
        for name, count in counts.items():
            if count:
                raise InputError(
                    f"column {name} of {title} has {count:,} values that are no {wanted[name]}; correct them."
                )
    return plain.mutate(**cast)


def blank_to_null(column: "Value") -> "Value":
    return column.strip().nullif("") if column.type().is_string() else column


def as_kind(column: "Value", kind: str) -> "Value":
    source = column.type()
    if kind == "text":
        if source.is_floating():  # an id that some tool turned into 12.0
            return column.cast("int64").cast("string")
        return column.cast("string")
    if kind == "number":
        return column.try_cast("float64")
    if kind == "integer":
        return column.try_cast("float64").try_cast("int64") if source.is_string() else column.cast("int64")
    if not source.is_string():
        if source.is_timestamp() and source.timezone is not None:
            column = column.cast("timestamp('UTC')").cast("timestamp")
        return column.cast("date" if kind == "date" else "timestamp")
    iso = column.re_replace(r"^(\d{4})[/]?(\d{2})[/]?(\d{2})$", r"\1-\2-\3")
    moment = iso.try_cast("timestamp('UTC')").cast("timestamp")
    return moment.cast("date") if kind == "date" else moment
