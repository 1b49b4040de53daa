"""The backend of a CDM: tables located by name, columns converted, rows fetched into the workspace."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm_schema import CONCEPT, LOCAL, PERSON, TABLES, TOLERATED, VOCABULARY_TABLES
from phenotaste.sources.records import union
from phenotaste.sources.typed_tables import TYPE_NAMES, can_hold, cast_columns, select_columns
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table, Value


class CdmBackend(ABC):
    """The tables of one CDM as Ibis expressions; `label` identifies it in messages and contains no secret."""

    def __init__(self, workspace: Workspace, label: str) -> None:
        self.workspace, self.label = workspace, label
        self.schema: str | None = None
        self.notes: list[str] = []  # on values that could not be used
        self.tables: dict[str, Table | None] = {}
        self.vocabulary: CdmBackend = self  # the backend of the vocabulary tables

    @abstractmethod
    def schemas(self) -> dict[str, list[str]]:
        """The table names of each schema, in their original spelling."""

    @abstractmethod
    def open(self, schema: str, table: str) -> "Table":
        """A table without conversion."""

    def materialise(self, table: "Table", name: str) -> "Table":
        """Copy a table into the workspace where repeated reads are expensive, as for CSV."""
        return table

    def cast(self, table: "Table", title: str, kinds: Mapping[str, str]) -> "Table":
        """Convert columns as `typed_tables.cast_columns` does."""
        return cast_columns(table, title, kinds, TOLERATED.get(title, ()), self.notes)

    def fetch(self, table: "Table", name: str) -> "Table":
        """An expression over tables of the CDM as a table of the workspace."""
        return table

    def lookup(self, table: "Table", key: str, ids: "Table", name: str) -> "Table":
        """The rows whose integer key is in `ids` (a table of one column in the workspace)."""
        keys = ids.rename(requested=ids.columns[0])
        rows = table.semi_join(keys, table[key] == keys.requested)
        return self.workspace.materialise(rows, name)

    def close(self) -> None:
        """Release connections after reading; files stay open as long as the workspace."""
        return

    def select_schema(self, schema: str | None) -> None:
        """Select the requested schema, or the only one that has a person table."""
        candidates = self.schemas_with(PERSON)
        listed = ", ".join(candidates)
        if schema is None:
            if not candidates:
                raise InputError(f"{self.label} has no readable person table; check that it is an OMOP CDM.")
            if len(candidates) > 1 and "" not in candidates:
                raise InputError(
                    f"{self.label} has more than one schema with a person table; choose one: {listed}."
                )
            self.schema = (
                "" if "" in candidates else candidates[0]
            )  # "": the folder itself precedes its subfolders
            return
        matches = _matches(schema, self.schemas())
        if not matches:
            hint = f"those with a person table are: {listed}" if candidates else "none has a person table"
            raise InputError(f"{self.label} has no readable schema of that name; {hint}.")
        self.schema = _single(matches, schema, self.label)
        if self.schema not in candidates:
            hint = f"; those with one are: {listed}" if candidates else ""
            raise InputError(f"{self.label} has no person table in that schema{hint}.")

    def in_schema(self, schema: str) -> "CdmBackend":
        """The same backend, with the vocabulary tables of another of its schemas."""
        listed = ", ".join(self.schemas_with(CONCEPT)) or "none"
        matches = _matches(schema, self.schemas())
        if not matches:
            raise InputError(
                f"{self.label} has no readable schema of the name given for the vocabulary; those with a concept "
                f"table are: {listed}."
            )
        other = copy(self)
        other.schema, other.tables = _single(matches, schema, self.label), {}
        if not other.has(CONCEPT):
            raise InputError(
                f"{self.label} has no concept table in the schema given for the vocabulary; those with one are: "
                f"{listed}."
            )
        return other

    def schemas_with(self, table: str) -> list[str]:
        return [name for name, tables in self.schemas().items() if _matches(table, tables)]

    def has(self, name: str) -> bool:
        assert self.schema is not None
        return bool(_matches(name, self.schemas()[self.schema]))

    def table(self, name: str) -> "Table | None":
        """A table of the CDM with the columns of its layout, converted; None where it does not exist."""
        assert self.schema is not None
        if name not in self.tables:
            self.tables[name] = self.read_table(self.schema, name, name)
        return self.tables[name]

    def read_table(self, schema: str, name: str, layout: str) -> "Table | None":
        """A table with the columns of `layout`, possibly in another schema and under another name."""
        spellings = (name, LOCAL + name) if layout in VOCABULARY_TABLES else (name,)
        found = [_matches(spelling, self.schemas().get(schema, [])) for spelling in spellings]
        parts = [
            self._converted(schema, _single(matches, layout, self.label), layout)
            for matches in found
            if matches
        ]
        if not parts:
            return None
        common = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
        return parts[0] if len(parts) == 1 else union(part.select(*common) for part in parts)

    def _converted(self, schema: str, name: str, layout: str) -> "Table":
        required, optional = TABLES[layout]
        selected = select_columns(self.open(schema, name), layout, required, optional)
        kinds = {**required, **optional}
        check_types(selected, layout, kinds)
        table = self.materialise(selected, f"omop_raw_{name}")
        others = {c: k for c, k in kinds.items() if k != "id"}
        ids = {c: identifier(table[c]) for c, k in kinds.items() if k == "id" and c in table.columns}
        return self.cast(table.mutate(**ids), layout, others)


def identifier(column: "Value") -> "Value":
    """An id as an integer or as stripped text, depending on its type; "12.0" becomes "12"."""
    kind = column.type()
    if kind.is_string():
        return column.strip().nullif("").re_replace(r"^(-?[0-9]+)\.0+$", r"\1")
    if kind.is_integer():
        return column  # unchanged, so that a database can use its index
    if kind.is_floating() or kind.is_decimal():
        return column.cast("int64")
    return column.cast("string")


def event_time(table: "Table", name: str, date: str, datetime: str | None) -> "Value":
    """The time of an event: its timestamp, or its date where that is missing or another day."""
    import ibis

    moment = table[datetime] if datetime is not None and datetime in table.columns else None
    if date not in table.columns:
        if moment is None:
            raise InputError(f"{name} lacks the column {date}; add it.")
        return moment
    day = table[date].cast("timestamp")
    if moment is None:
        return day
    return ibis.cases((table[date].isnull() | (moment.cast("date") == table[date]), moment), else_=day)


def column_or_null(table: "Table", column: str | None, kind: str) -> "Value":
    """A column, or null of this type where the table lacks it."""
    import ibis

    return table[column] if column is not None and column in table.columns else ibis.null(kind)


def check_types(table: "Table", title: str, kinds: Mapping[str, str]) -> None:
    """Refuse a column whose type cannot hold the values that the CDM specifies."""
    for name, kind in kinds.items():
        if name in table.columns and not can_hold(table[name], kind):
            raise InputError(
                f"column {name} of {title} is of the type {table[name].type()} and cannot hold {TYPE_NAMES[kind]}s; "
                "convert it."
            )


def strict_cast(column: "Value", kind: str) -> "Value":
    """As `typed_tables.cast_columns`, for databases without a safe cast: an invalid value fails the query."""
    source = column.type()
    if source.is_string():
        column = column.strip().nullif("")
    if kind == "text":
        return column.cast("string")
    if kind == "number":
        return column.cast("float64")
    if kind == "integer":
        # A cast, even to a wider type, would keep the database from using its index.
        return column if source.is_integer() else column.cast("float64").cast("int64")
    if source.is_numeric():  # 20081231
        column = column.cast("int64").cast("string")
    if source.is_timestamp() and source.timezone is not None:
        column = column.cast("timestamp('UTC')")
    moment = column.cast("timestamp")
    return moment.cast("date") if kind == "date" else moment


def _matches(name: str, names: "Mapping[str, object] | list[str]") -> list[str]:
    """Exact matches of a name or, without one, matches that ignore case."""
    exact = [other for other in names if other == name]
    return exact or [other for other in names if other.lower() == name.lower()]


def _single(matches: list[str], name: str, label: str) -> str:
    if len(matches) > 1:
        raise InputError(f"{label} has more than one {name}, differing in case only; rename the others.")
    return matches[0]
