"""CSV or Parquet files of events and, optionally, of static facts, with the user's own column names."""

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
    add_unlisted_patients,
    complete_rows,
    conform,
    distinct_patients,
    normalise_sex,
)
from phenotaste.sources.workspace import Workspace, translate_errors

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
OTHER_NAMES = {  # alternative names of the columns of a static table
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
    """Read a file of events and, optionally, one of static facts.

    `columns` maps the names of records.EVENTS and PERSONS to those in the files. `kind` and `vocabulary` are defaults
    for events without such a column, or without a value in it.

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
    event_table = select_events(workspace, events, names)
    static_table = None if static is None else select_static(workspace, static, names)
    integers = [t.patient.type().is_integer() for t in (event_table, static_table) if t is not None]
    patient = "integer" if all(integers) else "id"  # of one type in both
    event_table = cast_events(event_table, patient, default, vocabulary)
    if static_table is None:
        return Records(event_table, conform(distinct_patients(event_table), PERSONS))
    persons, facts = cast_static(static_table, patient, notes)
    persons = add_unlisted_patients(workspace, persons, event_table, "static", notes)
    return Records(event_table, persons, facts, notes=tuple(notes))


def cast_events(table: "Table", patient: str, default: str, vocabulary: str | None) -> "Table":
    events = typed_tables.cast_columns(table, "events", EVENT_KINDS | {"patient": patient})
    events = conform(events, EVENTS)
    if vocabulary is not None:
        events = events.mutate(vocabulary=events.vocabulary.coalesce(vocabulary))
    return events.mutate(kind=normalise_kinds(events, "kind" in table.columns, default))


def cast_static(table: "Table", patient: str, notes: list[str]) -> "tuple[Table, Table | None]":
    """A row for each patient, and the numeric facts that the builder bands."""
    others = [name for name in table.columns if name not in PERSON_KINDS]
    kinds = PERSON_KINDS | {"patient": patient} | dict.fromkeys(others, "text")
    if BMI in others:
        kinds[BMI] = "number"
    persons = one_row_each(typed_tables.cast_columns(table, "static", kinds), notes)
    facts = None
    if BMI in others:
        measured = persons.filter(persons[BMI].notnull())
        facts = conform(measured, FACTS, name=BMI, number=measured[BMI])
        others.remove(BMI)
    persons = conform(persons, [*PERSONS, *(name for name in others if name not in PERSONS)])
    return persons.mutate(sex=normalise_sex(persons.sex)), facts


def checked_names(columns: Mapping[str, str] | None, static: Path | None) -> dict[str, str]:
    names = dict(columns or {})
    for name in names:
        if name not in (*EVENTS, *PERSONS):
            listed = ", ".join(dict.fromkeys([*EVENTS, *PERSONS]))
            raise InputError(f"there is no column {name} to map; choose from: {listed}.")
        if name not in EVENTS and static is None:
            raise InputError(f"the column {name} belongs to a static table; give the table too.")
    return names


def checked_kind(kind: str | None) -> str:
    if kind is None:
        return DIAGNOSIS
    for name, words in KIND_WORDS.items():
        if kind.lower() in words:
            return name
    raise InputError(f"{kind} is not a kind of event; choose from: {', '.join(KINDS)}.")


def select_events(workspace: Workspace, path: Path, names: Mapping[str, str]) -> "Table":
    """The columns of events under the names of Records; those that the user mapped are required."""
    files = typed_tables.list_files(path, "events")
    needed = [name for name in EVENTS if name in REQUIRED or name in names]
    sources = {name: names.get(name, name) for name in EVENTS}
    table = typed_tables.select_columns(
        typed_tables.read_file(workspace, files, "events"),
        "events",
        [sources[name] for name in needed],
        [name for name in EVENTS if name not in needed],
    )
    table = table.select(
        **{name: table[source] for name, source in sources.items() if source in table.columns}
    )
    return typed_tables.materialised(workspace, table, files, "events")


def select_static(workspace: Workspace, path: Path, names: Mapping[str, str]) -> "Table":
    """All columns: those of PERSONS under these names, the others under the user's, in lower case."""
    files = typed_tables.list_files(path, "static")
    table = typed_tables.read_file(workspace, files, "static")
    remaining = {name.strip().lower(): name for name in table.columns}
    selected: dict[str, str] = {}
    for name in PERSONS:
        mapped = names.get(name)
        spellings = (name, *OTHER_NAMES.get(name, ()))
        if mapped is not None and (name == "patient" or mapped.lower() in remaining):
            spellings = (mapped, *spellings)
        elif mapped is not None:
            typed_tables.select_columns(table, "static", [mapped])  # raises: the user mapped an absent column
        source = next((remaining.pop(s.lower()) for s in spellings if s.lower() in remaining), None)
        if source is not None:
            selected[name] = source
    if "patient" not in selected:
        typed_tables.select_columns(table, "static", [names.get("patient", "patient")])
    selected |= {name: source for name, source in remaining.items() if name and name not in selected}
    table = table.select(**{name: table[source] for name, source in selected.items()})
    return typed_tables.materialised(workspace, table, files, "static")


def normalise_kinds(events: "Table", present: bool, default: str) -> "Value":
    """Map the spellings of kinds; unknown ones are refused."""
    import ibis

    if not present:
        return ibis.literal(default)
    words = {word: name for name, spellings in KIND_WORDS.items() for word in spellings}
    lower = events.kind.lower()
    with translate_errors("events"):
        unknown = (lower.notnull() & lower.notin(list(words))).sum().to_pyarrow().as_py()
    if unknown:
        raise InputError(
            f"column kind of events has {unknown:,} values other than {', '.join(KINDS)}; remove those rows, "
            "or correct their kind."
        )
    return lower.cases(*words.items(), else_=default)


def one_row_each(persons: "Table", notes: list[str]) -> "Table":
    """Merge identical rows of a patient; contradictory ones are refused."""
    persons = complete_rows(persons, "static", ["patient"], notes).distinct()
    with translate_errors("static"):
        extra = (persons.count() - persons.patient.nunique()).to_pyarrow().as_py()
    if extra:
        raise InputError(
            f"static has several rows for some patients ({extra:,} too many); keep one row per patient."
        )
    return persons
