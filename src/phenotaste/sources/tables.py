"""Any table of events and, if there is one, of static facts, as CSV or Parquet under the user's own column names."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.records import (
    BMI,
    DIAGNOSIS,
    EVENTS,
    FACTS,
    KINDS,
    MEDICATION,
    PERSONS,
    PROCEDURE,
    Records,
)
from phenotaste.sources.shaping import patients_of, plain_sex, shaped, sound_rows, with_strangers
from phenotaste.sources.workspace import Workspace, refusing

if TYPE_CHECKING:
    from ibis import Table, Value

REQUIRED = ("patient", "time", "code")
EVENT_KINDS = {
    "patient": "id",
    "time": "time",
    "visit": "id",
    "code": "code",
    "vocabulary": "text",
    "kind": "text",
    "value": "number",
}
PERSON_KINDS = {"patient": "id", "birth": "date", "death": "date"}
OTHER_NAMES = {  # of what a static table may say about everybody
    "birth": ("birth_date", "birthdate", "date_of_birth", "dob"),
    "death": ("death_date", "deathdate", "date_of_death", "dod"),
    "sex": ("gender",),
}
KIND_WORDS = {
    DIAGNOSIS: ("diagnosis", "diagnoses", "condition", "conditions", "dx"),
    MEDICATION: ("medication", "medications", "drug", "drugs", "rx"),
    PROCEDURE: ("procedure", "procedures", "px"),
}


def read(
    workspace: Workspace,
    events: Path,
    static: Path | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    kind: str | None = None,
    vocabulary: str | None = None,
) -> Records:
    """The records of a file of events and, if there is one, of static facts.

    `columns` says what our names (records.EVENTS and PERSONS) are called in the files. `kind` and `vocabulary` hold
    where the events have no such column, or no value in it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste.sources import tables
    >>> from phenotaste.sources.workspace import Workspace
    >>> written = Path("events.csv").write_text("pid,time,code\\n1,2020-01-01,I10\\n")
    >>> with Workspace() as workspace:
    ...     records = tables.read(workspace, Path("events.csv"), columns={"patient": "pid"}, vocabulary="ICD10CM")
    ...     records.events.select("patient", "vocabulary", "code").to_pandas().to_numpy().tolist()
    [['1', 'ICD10CM', 'I10']]
    """
    names = checked_names(columns, static)
    default = checked_kind(kind)
    notes: list[str] = []
    found = chosen_events(workspace, events, names)
    known = None if static is None else chosen_static(workspace, static, names)
    whole = [table.patient.type().is_integer() for table in (found, known) if table is not None]
    patient = "integer" if all(whole) else "id"  # of one type in both
    happened = typed_events(found, patient, default, vocabulary)
    if known is None:
        return Records(happened, shaped(patients_of(happened), PERSONS))
    persons, facts = typed_static(known, patient, notes)
    persons = with_strangers(workspace, persons, happened, "static", notes)
    return Records(happened, persons, facts, notes=tuple(notes))


def typed_events(found: "Table", patient: str, default: str, vocabulary: str | None) -> "Table":
    events = typed_tables.typed(found, "events", EVENT_KINDS | {"patient": patient})
    events = shaped(events, EVENTS)
    if vocabulary is not None:
        events = events.mutate(vocabulary=events.vocabulary.coalesce(vocabulary))
    return events.mutate(kind=plain_kinds(events, "kind" in found.columns, default))


def typed_static(known: "Table", patient: str, notes: list[str]) -> "tuple[Table, Table | None]":
    """A row for each patient, and what is a number that the builder cuts into bands."""
    others = [name for name in known.columns if name not in PERSON_KINDS]
    kinds = PERSON_KINDS | {"patient": patient} | dict.fromkeys(others, "text")
    if BMI in others:
        kinds[BMI] = "number"
    persons = one_row_each(typed_tables.typed(known, "static", kinds), notes)
    facts = None
    if BMI in others:
        measured = persons.filter(persons[BMI].notnull())
        facts = shaped(measured, FACTS, name=BMI, number=measured[BMI])
        others.remove(BMI)
    persons = shaped(persons, [*PERSONS, *(name for name in others if name not in PERSONS)])
    return persons.mutate(sex=plain_sex(persons.sex)), facts


def checked_names(columns: Mapping[str, str] | None, static: Path | None) -> dict[str, str]:
    names = dict(columns or {})
    for ours in names:
        if ours not in (*EVENTS, *PERSONS):
            listed = ", ".join(dict.fromkeys([*EVENTS, *PERSONS]))
            raise InputError(f"there is no column {ours} to map; the names are: {listed}.")
        if ours not in EVENTS and static is None:
            raise InputError(f"the column {ours} is one of a static table, and there is none; give it.")
    return names


def checked_kind(kind: str | None) -> str:
    if kind is None:
        return DIAGNOSIS
    for ours, words in KIND_WORDS.items():
        if kind.lower() in words:
            return ours
    raise InputError(f"{kind} is no kind of event; it is one of: {', '.join(KINDS)}.")


def chosen_events(workspace: Workspace, path: Path, names: Mapping[str, str]) -> "Table":
    """The columns of events under our names; one that the user mapped must be there."""
    files = typed_tables.tables_in(path, "events")
    needed = [name for name in EVENTS if name in REQUIRED or name in names]
    places = {name: names.get(name, name) for name in EVENTS}
    table = typed_tables.columns(
        typed_tables.read_file(workspace, files, "events"),
        "events",
        [places[name] for name in needed],
        [name for name in EVENTS if name not in needed],
    )
    table = table.select(**{name: table[place] for name, place in places.items() if place in table.columns})
    return typed_tables.settled(workspace, table, files, "events")


def chosen_static(workspace: Workspace, path: Path, names: Mapping[str, str]) -> "Table":
    """All columns: those that mean something to us under our names, the rest under the user's, in lower case."""
    files = typed_tables.tables_in(path, "static")
    table = typed_tables.read_file(workspace, files, "static")
    places = {name.strip().lower(): name for name in table.columns}
    ours: dict[str, str] = {}
    for name in PERSONS:
        mapped = names.get(name)
        spellings = (name, *OTHER_NAMES.get(name, ()))
        if mapped is not None and (name == "patient" or mapped.lower() in places):
            spellings = (mapped, *spellings)
        elif mapped is not None:
            typed_tables.columns(table, "static", [mapped])  # refuses: the user said that it is there
        place = next((places.pop(spelt.lower()) for spelt in spellings if spelt.lower() in places), None)
        if place is not None:
            ours[name] = place
    if "patient" not in ours:
        typed_tables.columns(table, "static", [names.get("patient", "patient")])
    ours |= {name: place for name, place in places.items() if name and name not in ours}
    table = table.select(**{name: table[place] for name, place in ours.items()})
    return typed_tables.settled(workspace, table, files, "static")


def plain_kinds(events: "Table", present: bool, default: str) -> "Value":
    """The kinds in our words; one that is in nobody's is refused."""
    import ibis

    if not present:
        return ibis.literal(default)
    words = {word: ours for ours, spellings in KIND_WORDS.items() for word in spellings}
    lower = events.kind.lower()
    with refusing("events"):
        unknown = (lower.notnull() & lower.notin(list(words))).sum().to_pyarrow().as_py()
    if unknown:
        raise InputError(
            f"column kind of events has {unknown:,} values other than {', '.join(KINDS)}; leave those rows out, "
            "or name their kind."
        )
    return lower.cases(*words.items(), else_=default)


def one_row_each(persons: "Table", notes: list[str]) -> "Table":
    """Rows that say the same of a patient are one; those that contradict each other are refused."""
    persons = sound_rows(persons, "static", ["patient"], notes).distinct()
    with refusing("static"):
        extra = (persons.count() - persons.patient.nunique()).to_pyarrow().as_py()
    if extra:
        raise InputError(
            f"static has several rows for some patients (too many: {extra:,}); keep one for each."
        )
    return persons
