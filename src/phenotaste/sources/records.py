"""The tables that every source provides, and functions that bring its rows into their format."""

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from phenotaste.sources.workspace import Workspace, translate_errors, unique_name

if TYPE_CHECKING:
    from ibis import Table, Value

DIAGNOSIS, MEDICATION, PROCEDURE, MEASUREMENT = "diagnosis", "medication", "procedure", "measurement"
CODED_KINDS = (DIAGNOSIS, MEDICATION, PROCEDURE)
KINDS = (*CODED_KINDS, MEASUREMENT)
# Spellings of the kinds, in lower case.
KIND_WORDS = {
    DIAGNOSIS: ("diagnosis", "diagnoses", "condition", "conditions", "dx"),
    MEDICATION: ("medication", "medications", "drug", "drugs", "rx"),
    PROCEDURE: ("procedure", "procedures", "px"),
    MEASUREMENT: (
        "measurement",
        "measurements",
        "lab",
        "labs",
        "observation",
        "observations",
        "vital",
        "vitals",
    ),
}

# The kind that a vocabulary implies, where its events state none; vocabularies in upper case.
KIND_OF_VOCABULARY = {
    **dict.fromkeys(
        ("ICD9", "ICD9CM", "ICD-9-CM", "ICD10", "ICD10CM", "ICD-10-CM", "ICD", "SNOMED"), DIAGNOSIS
    ),
    **dict.fromkeys(("ATC", "NDC", "RXNORM", "RXNORM EXTENSION"), MEDICATION),
    **dict.fromkeys(("ICD9PROC", "ICD10PCS", "CPT", "CPT4", "HCPCS"), PROCEDURE),
    "LOINC": MEASUREMENT,
}

# Timestamps have no time zone: zoned ones are converted to UTC, dates are midnight. Patients are integers or text,
# of one type in all tables. Unknown values are null; a table that a source lacks is None.
EVENTS = ("patient", "time", "visit", "code", "vocabulary", "kind", "value")
MEASUREMENTS = ("patient", "time", "visit", "code", "vocabulary", "value", "unit", "low", "high", "flag")
PERSONS = ("patient", "birth", "death", "sex", "race", "ethnicity")
FACTS = ("patient", "time", "name", "value", "number")
VISITS = ("patient", "visit", "time")  # and, where the source has it, end_time
PERIODS = ("patient", "start", "end")
LABELS = ("patient", "time", "value")
NAMES = ("vocabulary", "code", "name")

# Times that are not dates are counted from zero in one of these units; "order" is a rank. Zero is ORIGIN in all
# tables, a Monday at the beginning of a year.
MINUTES, HOURS, DAYS, ORDER = TIME_UNITS = ("minutes", "hours", "days", "order")
ORIGIN = datetime(2001, 1, 1)

# Vocabularies of the code groupers, spelt as in OMOP.
ICD9CM, ICD10CM, ATC, RXNORM, NDC, SNOMED = "ICD9CM", "ICD10CM", "ATC", "RxNorm", "NDC", "SNOMED"

# Facts that the builder normalises or bands; sources may add other facts.
SMOKING, ALCOHOL, BMI = "smoking", "alcohol", "bmi"

TYPES = {
    "time": "timestamp",
    "end_time": "timestamp",
    "birth": "date",
    "death": "date",
    "start": "date",
    "end": "date",
    "value": "float64",
    "number": "float64",
    "low": "float64",
    "high": "float64",
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
    # Encounters, with or without codes; visit: text; time: timestamp of the start, end_time: of the end or null.
    visits: "Table | None" = None
    periods: "Table | None" = None  # observation periods; start, end: date, both inclusive
    labels: "Table | None" = None  # index times and outcomes stated by the source; value: 0, 1 or null
    names: "Table | None" = None  # readable names of codes
    index_codes: tuple[str, ...] = ()  # resolved code sets, as patterns of the settings
    as_of: date | None = None  # the reference date of ages, where the source has one
    notes: tuple[str, ...] = ()  # remarks for the user on choices of the source
    warnings: tuple[
        str, ...
    ] = ()  # what the user must know before using the cohort, such as a missing vocabulary
    # value, low, high: float, the last two the row's own reference range; unit, flag: text as in the source.
    measurements: "Table | None" = None
    outcomes: "Table | None" = None  # LABELS without a time: the outcome of each patient
    time_unit: str | None = None  # of TIME_UNITS, where times are not dates
    shifted_dates: bool = False  # shifted for each patient: dates after today are expected


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
    """All rows; unlike ibis.union, accepts a single table, and timestamps of different precision."""
    import ibis

    first, *others = tables
    types = {name: type_ for name, type_ in first.schema().items() if type_.is_timestamp()}
    others = [table.cast({name: types[name] for name in table.columns if name in types}) for table in others]
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
