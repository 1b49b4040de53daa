"""The last step of every source: rows in the shape of Records, nobody lost, and a sentence about what was left out.

Events that lack a patient, a time or a code are handed on: the builder counts them in its attrition table.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from phenotaste.sources.workspace import Workspace, new_name, refusing

if TYPE_CHECKING:
    from ibis import Table, Value

TYPES = {
    "time": "timestamp",
    "birth": "date",
    "death": "date",
    "start": "date",
    "end": "date",
    "value": "float64",
    "number": "float64",
}  # the other columns of Records are text

SEXES = {"f": "female", "female": "female", "w": "female", "m": "male", "male": "male"}


def shaped(table: "Table", names: Sequence[str], **given: Any) -> "Table":
    """These columns in this order: as given, else the table's own, else null."""
    import ibis

    chosen = {}
    for name in names:
        if name in given:
            chosen[name] = given[name] if isinstance(given[name], ibis.Expr) else ibis.literal(given[name])
        elif name in table.columns:
            chosen[name] = table[name]
        else:
            chosen[name] = ibis.null(TYPES.get(name, "string"))
    return table.select(**chosen)


def union(tables: Iterable["Table"]) -> "Table":
    """All rows; unlike ibis.union this takes a single table too."""
    import ibis

    first, *others = tables
    return ibis.union(first, *others) if others else first


def sound_rows(table: "Table", title: str, needed: Sequence[str], notes: list[str]) -> "Table":
    """The rows that have all of these; a note counts the others."""
    complete = table[needed[0]].notnull()
    for name in needed[1:]:
        complete = complete & table[name].notnull()
    with refusing(title):
        lost = int((~complete).sum().to_pyarrow().as_py() or 0)
    if not lost:
        return table
    notes.append(f"Rows of {title} that lack {' or '.join(needed)} and are left out: {lost:,}.")
    return table.filter(complete)


def patients_of(events: "Table") -> "Table":
    return events.filter(events.patient.notnull()).select("patient").distinct()


def with_strangers(
    workspace: Workspace, persons: "Table", events: "Table", title: str, notes: list[str]
) -> "Table":
    """Persons and, with nothing known about them, the patients whom only the events know; a note counts these."""
    strangers = patients_of(events).anti_join(persons, "patient")
    with refusing("events"):
        strangers = workspace.con.create_table(new_name(), strangers)
        count = strangers.count().to_pyarrow().as_py()
    if not count:
        return persons
    notes.append(
        f"Patients with events, but without a row in {title}, so that static facts are missing: {count:,}."
    )
    return persons.union(shaped_like(strangers, persons))


def shaped_like(table: "Table", model: "Table") -> "Table":
    import ibis

    kinds = model.schema()
    return table.select(
        **{name: table[name] if name in table.columns else ibis.null(kinds[name]) for name in model.columns}
    )


def plain_sex(column: "Value") -> "Value":
    """ "female" and "male" in whatever way they were written; other values in lower case."""
    lower = column.lower()
    return lower.cases(*SEXES.items(), else_=lower)
