"""A place where a CDM lives: its tables found by name, their columns typed, and rows brought into the workspace."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources.omop.cdm_schema import PERSON, TABLES
from phenotaste.sources.typed_tables import NOUNS, columns, readable, typed
from phenotaste.sources.workspace import Workspace

if TYPE_CHECKING:
    from ibis import Table, Value


class Place(ABC):
    """Tables of one CDM as Ibis expressions. `where` names the place in sentences and holds no secret."""

    def __init__(self, workspace: Workspace, where: str) -> None:
        self.workspace, self.where = workspace, where
        self.schema: str | None = None
        self.known: dict[str, Table | None] = {}

    @abstractmethod
    def schemas(self) -> dict[str, list[str]]:
        """The tables that each schema holds, as they are spelt."""

    @abstractmethod
    def open(self, schema: str, table: str) -> "Table":
        """A table as it is."""

    def settle(self, table: "Table", name: str) -> "Table":
        """The chosen columns of a table, where it pays to read them once: text that must be parsed."""
        return table

    def typed(self, table: "Table", title: str, kinds: Mapping[str, str]) -> "Table":
        """Columns as `reading.typed` makes them."""
        return typed(table, title, kinds)

    def fetch(self, table: "Table", name: str) -> "Table":
        """An expression over this place's tables as a table of the workspace."""
        return table

    def lookup(self, table: "Table", key: str, ids: "Table", name: str) -> "Table":
        """The rows of an expression whose integer key is among `ids` (a table of one column in the workspace)."""
        wanted = ids.rename(wanted=ids.columns[0])
        found = table.semi_join(wanted, table[key] == wanted.wanted)
        return self.workspace.keep(found, name)

    def close(self) -> None:
        """What must be let go when everything is read; files stay open as long as the workspace."""
        return

    def choose(self, schema: str | None) -> None:
        """Settle on the schema asked for, or on the only one that holds a person table."""
        held = [name for name, tables in self.schemas().items() if _same(PERSON, tables)]
        listed = ", ".join(held)
        if schema is None:
            if not held:
                raise InputError(f"{self.where} has no person table that can be read; is it an OMOP CDM?")
            if len(held) > 1 and "" not in held:
                raise InputError(
                    f"{self.where} has more than one schema with a person table; choose one: {listed}."
                )
            self.schema = "" if "" in held else held[0]  # "": the folder itself, before folders inside it
            return
        places = _same(schema, self.schemas())
        if not places:
            hint = f"those with a person table are: {listed}" if held else "none has a person table"
            raise InputError(f"{self.where} has no schema of that name that can be read; {hint}.")
        self.schema = _only(places, schema, self.where)
        if self.schema not in held:
            hint = f"; those with one are: {listed}" if held else ""
            raise InputError(f"{self.where} has no person table in that schema{hint}.")

    def has(self, name: str) -> bool:
        assert self.schema is not None
        return bool(_same(name, self.schemas()[self.schema]))

    def table(self, name: str) -> "Table | None":
        """A table of the CDM with the columns that are read, typed; None where the place has no such table."""
        assert self.schema is not None
        if name not in self.known:
            self.known[name] = self.named(self.schema, name, name)
        return self.known[name]

    def named(self, schema: str, name: str, layout: str) -> "Table | None":
        """A table laid out as `layout` says, that may lie elsewhere and have a name of its own."""
        places = _same(name, self.schemas().get(schema, []))
        if not places:
            return None
        raw = self.open(schema, _only(places, layout, self.where))
        wanted = TABLES[layout]
        chosen = columns(raw, layout, wanted.required, wanted.optional)
        kinds = {**wanted.required, **wanted.optional}
        refuse_types(chosen, layout, kinds)
        kept = self.settle(chosen, f"omop_raw_{layout}")
        plain = {c: k for c, k in kinds.items() if k != "id"}
        ids = {c: identifier(kept[c]) for c, k in kinds.items() if k == "id" and c in kept.columns}
        return self.typed(kept.mutate(**ids), layout, plain)


def identifier(column: "Value") -> "Value":
    """An id as an integer or as text without blanks, whichever it is; "12.0" is what some tools make of 12."""
    kind = column.type()
    if kind.is_string():
        return column.strip().nullif("").re_replace(r"^(-?[0-9]+)\.0+$", r"\1")
    if kind.is_integer():
        return column  # as it is, so that a database can use its index
    if kind.is_floating() or kind.is_decimal():
        return column.cast("int64")
    return column.cast("string")


def day(table: "Table", name: str, date: str, datetime: str | None) -> "Value":
    """The date of an event; only where there is no column of dates, the day of its time."""
    if date in table.columns:
        return table[date]
    if datetime is not None and datetime in table.columns:
        return table[datetime].cast("date")
    raise InputError(f"{name} lacks the column {date}; add it.")


def or_null(table: "Table", column: str | None, kind: str) -> "Value":
    """A column, or nothing of its type where the table lacks it."""
    import ibis

    return table[column] if column is not None and column in table.columns else ibis.null(kind)


def refuse_types(table: "Table", title: str, kinds: Mapping[str, str]) -> None:
    """Refuse a column whose type cannot hold what the CDM has there."""
    for name, kind in kinds.items():
        if name in table.columns and not readable(table[name], kind):
            raise InputError(
                f"column {name} of {title} is of the type {table[name].type()} and cannot hold {NOUNS[kind]}s; "
                "convert it."
            )


def plain_cast(column: "Value", kind: str) -> "Value":
    """As `reading.typed`, for databases that know no cast which forgives: a bad value fails the query."""
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


def _same(name: str, names: "Mapping[str, object] | list[str]") -> list[str]:
    """Those of the names that are this one: as it is spelt or, failing that, whatever the case."""
    exact = [other for other in names if other == name]
    return exact or [other for other in names if other.lower() == name.lower()]


def _only(places: list[str], name: str, where: str) -> str:
    if len(places) > 1:
        raise InputError(f"{where} has more than one {name}, told apart by case only; rename the others.")
    return places[0]
