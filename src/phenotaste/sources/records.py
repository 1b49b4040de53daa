"""The tables that every source provides, and functions that bring its rows into their format."""

from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

from phenotaste.sources.workspace import Workspace, translate_errors, unique_name

if TYPE_CHECKING:
    from ibis import Table, Value

DIAGNOSIS, MEDICATION, PROCEDURE = "diagnosis", "medication", "procedure"
KINDS = (DIAGNOSIS, MEDICATION, PROCEDURE)

# Timestamps have no time zone: zoned ones are converted to UTC, dates are midnight. Patients are integers or text,
# of one type in all tables. Unknown values are null; a table that a source lacks is None.
EVENTS = ("patient", "time", "visit", "code", "vocabulary", "kind", "value")
PERSONS = ("patient", "birth", "death", "sex", "race", "ethnicity")
FACTS = ("patient", "time", "name", "value", "number")
VISITS = ("patient", "visit", "time")
PERIODS = ("patient", "start", "end")
LABELS = ("patient", "time", "value")
NAMES = ("vocabulary", "code", "name")

# Vocabularies of the code groupers, spelt as in OMOP.
ICD9CM, ICD10CM, ATC, RXNORM, NDC, SNOMED = "ICD9CM", "ICD10CM", "ATC", "RxNorm", "NDC", "SNOMED"

# Facts that the builder normalises or bands; sources may add other facts.
SMOKING, ALCOHOL, BMI = "smoking", "alcohol", "bmi"

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


class Records(NamedTuple):
    """The tables of one source, with the columns above, as lazy expressions.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste.sources import tables
    >>> from phenotaste.sources.workspace import Workspace
    >>> written = Path("events.csv").write_text("patient,time,code\\n1,2020-01-01,I10\\n")
    >>> with Workspace() as workspace:
    ...     records = tables.read(workspace, Path("events.csv"), kind="diagnosis", vocabulary="ICD10CM")
    ...     records.events.columns
    ('patient', 'time', 'visit', 'code', 'vocabulary', 'kind', 'value')
    """

    events: (
        "Table"  # time: timestamp; visit: text or null; code, vocabulary, kind: text; value: float or null
    )
    persons: "Table"  # one row per patient; birth, death: date; the rest text; other columns are static too
    facts: "Table | None" = (
        None  # time: timestamp from which it is known, or null; value: text; number: float
    )
    visits: "Table | None" = (
        None  # encounters, with or without codes; visit: text; time: timestamp of the start
    )
    periods: "Table | None" = None  # observation periods; start, end: date, both inclusive
    labels: "Table | None" = None  # index times and outcomes stated by the source; value: 0, 1 or null
    names: "Table | None" = None  # readable names of codes
    index_codes: tuple[str, ...] = ()  # resolved code sets, as patterns of the settings
    as_of: date | None = None  # the reference date of ages, where the source has one
    notes: tuple[str, ...] = ()  # remarks for the user on choices of the source


def conform(table: "Table", names: Sequence[str], **given: Any) -> "Table":
    """Select these columns in this order: as given, else the table's own, else null."""
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
    """All rows; unlike ibis.union, accepts a single table."""
    import ibis

    first, *others = tables
    return ibis.union(first, *others) if others else first


def complete_rows(table: "Table", title: str, required: Sequence[str], notes: list[str]) -> "Table":
    """The rows without nulls in the required columns; a note counts the others.

    Not for events: the builder counts incomplete ones in its attrition table.
    """
    complete = table[required[0]].notnull()
    for name in required[1:]:
        complete = complete & table[name].notnull()
    with translate_errors(title):
        lost = int((~complete).sum().to_pyarrow().as_py() or 0)
    if not lost:
        return table
    notes.append(f"Rows of {title} without {' or '.join(required)}, ignored: {lost:,}.")
    return table.filter(complete)


def distinct_patients(events: "Table") -> "Table":
    return events.filter(events.patient.notnull()).select("patient").distinct()


def add_unlisted_patients(
    workspace: Workspace, persons: "Table", events: "Table", title: str, notes: list[str]
) -> "Table":
    """Add the patients who have events but no row in persons, with null facts; a note counts them."""
    unlisted = distinct_patients(events).anti_join(persons, "patient")
    with translate_errors("events"):
        unlisted = workspace.con.create_table(unique_name(), unlisted)
        count = unlisted.count().to_pyarrow().as_py()
    if not count:
        return persons
    notes.append(
        f"Patients with events but without a row in {title}, whose static facts are missing: {count:,}."
    )
    return persons.union(conform_to(unlisted, persons))


def conform_to(table: "Table", model: "Table") -> "Table":
    import ibis

    kinds = model.schema()
    return table.select(
        **{name: table[name] if name in table.columns else ibis.null(kinds[name]) for name in model.columns}
    )


def normalise_sex(column: "Value") -> "Value":
    """Map the spellings of "female" and "male"; other values in lower case."""
    lower = column.lower()
    return lower.cases(*SEXES.items(), else_=lower)
