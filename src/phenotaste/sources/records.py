"""What every source hands on: events, persons and what else it knows, as tables of one workspace."""

from datetime import date
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ibis import Table

DIAGNOSIS, MEDICATION, PROCEDURE = "diagnosis", "medication", "procedure"
KINDS = (DIAGNOSIS, MEDICATION, PROCEDURE)

# Times are without a zone: those that had one are in UTC, dates are midnight. Patients are integers or text,
# of one type in all tables. What a source does not know is null, or the table is None.
EVENTS = ("patient", "time", "visit", "code", "vocabulary", "kind", "value")
PERSONS = ("patient", "birth", "death", "sex", "race", "ethnicity")
FACTS = ("patient", "time", "name", "value", "number")
VISITS = ("patient", "visit", "time")
PERIODS = ("patient", "start", "end")
LABELS = ("patient", "time", "value")
NAMES = ("vocabulary", "code", "name")

# Vocabularies that code groupers know, spelt as OMOP spells them.
ICD9CM, ICD10CM, ATC, RXNORM, NDC, SNOMED = "ICD9CM", "ICD10CM", "ATC", "RxNorm", "NDC", "SNOMED"

# Names of facts that the builder can cut into bands; sources may add facts under names of their own.
SMOKING, ALCOHOL, BMI = "smoking", "alcohol", "bmi"


class Records(NamedTuple):
    """The tables of one source, of the columns above; each is read only when somebody asks for its rows.

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
    persons: (
        "Table"  # a row for each patient; birth, death: date; the rest text; further columns are static too
    )
    facts: "Table | None" = (
        None  # what may change: time: timestamp from which it is known; value: text; number: float
    )
    visits: "Table | None" = (
        None  # encounters, also those without a code; visit: text; time: timestamp of the start
    )
    periods: "Table | None" = None  # when a patient was under observation; start, end: date, both inclusive
    labels: "Table | None" = None  # index times and outcomes that the source brings; value: 0, 1 or null
    names: "Table | None" = None  # readable names of codes
    index_codes: tuple[str, ...] = ()  # code sets that the source resolved, written as settings write them
    as_of: date | None = None  # the date that persons' ages are stated for, where a source has such a date
    notes: tuple[str, ...] = ()  # sentences about choices the source made, for the user to read
