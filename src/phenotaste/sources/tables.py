"""CSV or Parquet files of events and, optionally, of static facts, with the user's own column names."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.coding import EITHER_ICD, icd_by_form, icd_vocabulary_of, split_codes
from phenotaste.sources.records import (
    BMI,
    DIAGNOSIS,
    EVENTS,
    FACTS,
    KIND_OF_VOCABULARY,
    KIND_WORDS,
    KINDS,
    LABELS,
    MEASUREMENT,
    MEASUREMENTS,
    PERSONS,
    PROCEDURE,
    TIME_UNITS,
    Records,
    add_unlisted_patients,
    complete_rows,
    conform,
    distinct_patients,
    normalise_sex,
    union,
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
    "icd_version": "text",
    "unit": "text",
    "low": "number",
    "high": "number",
    "flag": "text",
}
EVENT_COLUMNS = tuple(EVENT_KINDS)  # those of Records, the version of ICD, and those of measurements
EVENTS_PREFIX, STATIC_PREFIX = "events.", "static."  # of column names that are not the same in both tables
PERSON_KINDS = {"patient": "id", "birth": "date", "death": "date"}
LABEL, LABELLED = (
    "label",
    "(label)",
)  # a column of the static table, where the user maps it, and its name here
STATIC_COLUMNS = (*PERSONS, LABEL)
DATES = ("birth", "death")  # a few unusable ones are missing, and do not refuse the table
VERSION = r"\d+(\.0)?"
MAX_VOCABULARIES = 10_000  # that are looked at; more are not vocabularies
OTHER_NAMES = {  # alternative names of the columns of a static table
    "birth": ("birth_date", "birthdate", "date_of_birth", "dob"),
    "death": ("death_date", "deathdate", "date_of_death", "dod"),
    "sex": ("gender",),
}


def read(
    workspace: Workspace,
    events: "Path | Sequence[Path]",
    static: Path | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    kind: str | None = None,
    vocabulary: str | Mapping[str, str] | None = None,
    split: str | None = None,
    kinds: Sequence[str] = (),
    time_unit: str | None = None,
    missing: Sequence[float] = (),
) -> Records:
    """Read one or more files of events and, optionally, one of static facts.

    Parameters
    ----------
    events : files or folders; all of them are read.
    columns : the names of records.EVENTS and PERSONS, and icd_version, unit, low, high and flag, mapped to those in the
        files; "events.patient" and "static.patient" where they differ between the two. "label" is a column of the
        static table with the outcome of each patient, 1 or 0, which is no static feature then.
    kind, vocabulary : defaults for events without such a column, or without a value in it; a mapping of kinds to
        vocabularies where they differ. "ICD" stands for ICD-9-CM or ICD-10-CM by the form of each code. A column
        icd_version (9 or 10) states the vocabulary of each row.
    split : characters that separate several codes in one field, such as ",;".
    kinds : with "measurement", events of that kind become measurements.
    time_unit : one of "minutes", "hours" and "days", for times that are numbers from zero, such as an admission, or
        "order", for times that are ranks; None: times are dates.
    missing : numbers that stand for missing values, in the values of events and in static columns.

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
    event_names, static_names = checked_names(columns, static)
    paths = [events] if isinstance(events, Path) else list(events)
    if not paths:
        raise InputError("there is no file of events; give at least one.")
    if time_unit is not None and time_unit not in TIME_UNITS:
        raise InputError(f"time_unit must be one of {', '.join(TIME_UNITS)}.")
    defaults = Defaults(None if kind is None else checked_kind(kind), checked_vocabularies(vocabulary), split)
    notes: list[str] = []
    tables = select_events(workspace, paths, event_names)
    static_table = None if static is None else select_static(workspace, static, static_names)
    integers = [t.patient.type().is_integer() for t in (*tables, static_table) if t is not None]
    patient = "integer" if all(integers) else "id"  # of one type in all
    kinds_of_events = EVENT_KINDS | {"patient": patient, "time": time_unit or "time"}
    all_events = union(cast_events(table, kinds_of_events, defaults, notes) for table in tables)
    all_events = all_events.mutate(value=without(all_events.value, missing))
    event_table, measurements = separated(all_events, MEASUREMENT in kinds)
    relative = time_unit is not None
    read = Records(
        event_table,
        conform(distinct_patients(all_events), PERSONS),
        measurements=measurements,
        time_unit=time_unit,
        shifted_dates=relative,
    )
    if static_table is None:
        return read._replace(notes=tuple(notes))
    if relative:
        static_table = without_dates(static_table, notes)
    persons, facts, outcomes = cast_static(static_table, patient, missing, notes)
    persons = add_unlisted_patients(workspace, persons, all_events, "static", notes)
    return read._replace(persons=persons, facts=facts, outcomes=outcomes, notes=tuple(notes))


class Defaults(NamedTuple):
    """What holds for events whose row does not say otherwise."""

    kind: str | None  # None: the kind that the vocabulary implies, else diagnosis
    vocabularies: Mapping[str, str]  # by kind
    split: str | None


def cast_events(table: "Table", types: Mapping[str, str], defaults: Defaults, notes: list[str]) -> "Table":
    """The columns of Records and of measurements."""
    try:
        events = typed_tables.cast_columns(table, "events", types)
    except InputError as error:
        if types["time"] != "time" or not str(error).startswith("column time "):
            raise
        raise InputError(
            f"{str(error).rstrip('.')}, or state the unit of times from zero (--time-unit)."
        ) from None
    events = conform(events, EVENT_COLUMNS)
    if defaults.split:
        events = split_codes(events, defaults.split)
    events = events.mutate(kind=normalise_kinds(events, defaults, notes))
    return events.mutate(vocabulary=row_vocabulary(events, defaults.vocabularies))


def row_vocabulary(events: "Table", defaults: Mapping[str, str]) -> "Value":
    """The vocabulary of each row: its own, by its version of ICD, or the default of its kind.

    What the values of the columns do not call for is left out of the expression, which is evaluated for every row.
    """
    own = events.vocabulary
    listed = events.select("vocabulary", version=events.icd_version.notnull()).distinct()
    with translate_errors("events"):
        rows = listed.limit(MAX_VOCABULARIES).to_pyarrow().to_pylist()
    spelt = {row["vocabulary"].strip().upper() for row in rows if row["vocabulary"]}
    chosen = own
    if any(re.fullmatch(VERSION, word) for word in spelt):  # versions in the column of vocabularies
        number = own.re_search(f"^{VERSION}$")
        chosen = number.ifelse(by_version(number.ifelse(own, None), events.kind), own)
    if any(row["version"] for row in rows):
        chosen = chosen.coalesce(by_version(events.icd_version, events.kind))
    if defaults:
        chosen = chosen.coalesce(events.kind.cases(*defaults.items(), else_=None))
    if EITHER_ICD in spelt | {name.upper() for name in defaults.values()}:
        chosen = (chosen.upper() == EITHER_ICD).ifelse(icd_by_form(events.code, events.kind), chosen)
    return chosen


def by_version(column: "Value", kind: "Value") -> "Value":
    version = column.re_extract(r"(10|9)", 1)  # also from ICD9 and ICD-10-CM
    return (kind == PROCEDURE).ifelse(
        icd_vocabulary_of(version, PROCEDURE), icd_vocabulary_of(version, DIAGNOSIS)
    )


def separated(events: "Table", requested: bool) -> "tuple[Table, Table | None]":
    """Events, and measurements where they are requested."""
    if not requested:
        return events.select(*EVENTS), None
    measured = events.kind == MEASUREMENT
    return events.filter(~measured).select(*EVENTS), events.filter(measured).select(*MEASUREMENTS)


def without(column: "Value", missing: Sequence[float]) -> "Value":
    """Null where a column has one of the numbers that stand for missing values."""
    if not missing:
        return column
    number = column if column.type().is_numeric() else column.try_cast("float64")
    return number.cast("float64").isin(list(missing)).fill_null(False).ifelse(None, column)


def without_dates(table: "Table", notes: list[str]) -> "Table":
    """A static table without dates, which cannot be compared with times that are none."""
    found = [name for name in DATES if name in table.columns]
    if found:
        notes.append(
            f"Times are not dates, so that static {' and '.join(found)} are ignored; give an age in years."
        )
    return table.drop(*found) if found else table


def cast_static(
    table: "Table", patient: str, missing: Sequence[float], notes: list[str]
) -> "tuple[Table, Table | None, Table | None]":
    """A row for each patient, the numeric facts that the builder bands, and the outcomes."""
    others = [name for name in table.columns if name not in PERSON_KINDS]
    kinds = PERSON_KINDS | {"patient": patient} | dict.fromkeys(others, "text")
    kinds |= {name: "number" for name in (BMI, LABELLED) if name in others}
    persons = one_row_each(typed_tables.cast_columns(table, "static", kinds, DATES, notes), notes)
    if missing:
        persons = persons.mutate(**{name: without(persons[name], missing) for name in others})
    facts = outcomes = None
    if LABELLED in others:
        outcomes = conform(persons, LABELS, value=persons[LABELLED])
        others.remove(LABELLED)
    if BMI in others:
        measured = persons.filter(persons[BMI].notnull())
        facts = conform(measured, FACTS, name=BMI, number=measured[BMI])
        others.remove(BMI)
    persons = conform(persons, [*PERSONS, *(name for name in others if name not in PERSONS)])
    return persons.mutate(sex=normalise_sex(persons.sex)), facts, outcomes


def checked_names(
    columns: Mapping[str, str] | None, static: Path | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The user's names of the columns of events and of static; the latter may keep a prefix, see select_static."""
    of_events: dict[str, str] = {}
    of_static: dict[str, str] = {}
    for given, theirs in (columns or {}).items():
        name = given.removeprefix(EVENTS_PREFIX).removeprefix(STATIC_PREFIX)
        known = {EVENTS_PREFIX: EVENT_COLUMNS, STATIC_PREFIX: STATIC_COLUMNS}
        names = next((names for prefix, names in known.items() if given.startswith(prefix)), None)
        if name not in (names or (*EVENT_COLUMNS, *STATIC_COLUMNS)):
            listed = ", ".join(dict.fromkeys(names or (*EVENT_COLUMNS, *STATIC_COLUMNS)))
            raise InputError(f"there is no column {given} to map; choose from: {listed}.")
        if static is None and (given.startswith(STATIC_PREFIX) or name not in EVENT_COLUMNS):
            raise InputError(f"the column {given} belongs to a static table; give the table too.")
        if not given.startswith(STATIC_PREFIX) and name in EVENT_COLUMNS:
            of_events[name] = theirs if given.startswith(EVENTS_PREFIX) else of_events.get(name, theirs)
        if not given.startswith(EVENTS_PREFIX) and name in STATIC_COLUMNS:
            of_static[given] = theirs
    return of_events, of_static


def checked_vocabularies(vocabulary: str | Mapping[str, str] | None) -> dict[str, str]:
    """The default vocabulary of each kind; that of events of any kind is not the vocabulary of measurements."""
    if vocabulary is None:
        return {}
    if isinstance(vocabulary, str):
        return dict.fromkeys(KIND_WORDS, vocabulary)
    return {checked_kind(kind): name for kind, name in vocabulary.items()}


def checked_kind(kind: str) -> str:
    for name, words in KIND_WORDS.items():
        if kind.lower() in words:
            return name
    raise InputError(f"{kind} is not a kind of event; choose from: {', '.join(KINDS)}.")


def select_events(workspace: Workspace, paths: Sequence[Path], names: Mapping[str, str]) -> "list[Table]":
    """The columns of each table of events under the names of Records; those that the user mapped are in some table."""
    files = [typed_tables.list_files(path, "events") for path in paths]
    tables = [typed_tables.read_file(workspace, listed, "events") for listed in files]
    present = [{name.strip().lower() for name in table.columns} for table in tables]
    for theirs in names.values():
        if not any(theirs.lower() in columns for columns in present):
            typed_tables.select_columns(tables[0], "events", [theirs])  # raises
    selected = []
    for listed, table, columns in zip(files, tables, present, strict=True):
        sources = {name: spelling(name, names.get(name), columns) for name in EVENT_COLUMNS}
        needed = [sources[name] for name in REQUIRED]
        others = [source for source in sources.values() if source not in needed]
        chosen = typed_tables.select_columns(table, "events", needed, dict.fromkeys(others))
        chosen = chosen.select(
            **{name: chosen[source] for name, source in sources.items() if source in chosen.columns}
        )
        selected.append(typed_tables.materialised(workspace, chosen, listed, "events"))
    return selected


def spelling(name: str, mapped: str | None, columns: set[str]) -> str:
    """The user's name of a column in a file that has it, else our own where the file has that."""
    return mapped if mapped and (mapped.lower() in columns or name not in columns) else name


def select_static(workspace: Workspace, path: Path, names: Mapping[str, str]) -> "Table":
    """All columns: those of PERSONS under these names, the others under the user's, in lower case.

    A name with the prefix "static." must be there; `patient` without it may be meant for events only.
    """
    files = typed_tables.list_files(path, "static")
    table = typed_tables.read_file(workspace, files, "static")
    remaining = {name.strip().lower(): name for name in table.columns}
    selected: dict[str, str] = {}
    for name in STATIC_COLUMNS:
        if name == LABEL and not {name, STATIC_PREFIX + name} & set(names):
            continue  # an unmapped column of this name is a static feature like any other
        own = names.get(STATIC_PREFIX + name)
        mapped = own or names.get(name)
        spellings = (name, *OTHER_NAMES.get(name, ()))
        if mapped is not None and ((name == "patient" and not own) or mapped.lower() in remaining):
            spellings = (mapped, *spellings)
        elif mapped is not None:
            typed_tables.select_columns(table, "static", [mapped])  # raises: the user mapped an absent column
        source = next((remaining.pop(s.lower()) for s in spellings if s.lower() in remaining), None)
        if source is not None:
            selected[LABELLED if name == LABEL else name] = source
    if "patient" not in selected:
        typed_tables.select_columns(table, "static", [names.get("patient", "patient")])
    selected |= {name: source for name, source in remaining.items() if name and name not in selected}
    table = table.select(**{name: table[source] for name, source in selected.items()})
    return typed_tables.materialised(workspace, table, files, "static")


def normalise_kinds(events: "Table", defaults: Defaults, notes: list[str]) -> "Value":
    """Map the spellings of kinds; unknown ones are refused. Events without one have the default kind.

    Without a default, it is the kind that their vocabulary implies, so that drugs do not become diagnoses.
    """
    words = {word: name for name, spellings in KIND_WORDS.items() for word in spellings}
    lower = events.kind.lower()
    vocabulary = events.vocabulary.strip().upper()
    names = set(defaults.vocabularies.values())
    if len(names) == 1:
        vocabulary = vocabulary.coalesce(next(iter(names)).upper())
    groups = events.group_by(kind=lower, vocabulary=vocabulary).aggregate(n=events.count())
    with translate_errors("events"):
        rows = groups.to_pyarrow().to_pylist()
    if unknown := sum(row["n"] for row in rows if row["kind"] is not None and row["kind"] not in words):
        raise InputError(
            f"column kind of events has {unknown:,} values other than {', '.join(KINDS)}; remove those rows, "
            "or correct their kind."
        )
    without = [row for row in rows if row["kind"] is None]
    implied = (
        {row["vocabulary"] for row in without} & set(KIND_OF_VOCABULARY) if defaults.kind is None else set()
    )
    guessed = 0 if defaults.kind else sum(row["n"] for row in without if row["vocabulary"] not in implied)
    if guessed:
        notes.append(
            f"Events without a kind, and of no vocabulary that implies one, taken as diagnoses: {guessed:,} "
            "(--kind sets another)."
        )
    other = defaults.kind or DIAGNOSIS
    if implied:
        kinds = {name: KIND_OF_VOCABULARY[name] for name in sorted(implied)}
        return lower.cases(*words.items(), else_=vocabulary.cases(*kinds.items(), else_=other))
    return lower.cases(*words.items(), else_=other)


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
