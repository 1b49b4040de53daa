"""A Synthea CSV export in the old or new layout: patients, encounters, events and observations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.records import (
    BMI,
    CODED_KINDS,
    DIAGNOSIS,
    EVENTS,
    FACTS,
    ICD9CM,
    ICD10CM,
    MEASUREMENT,
    MEASUREMENTS,
    MEDICATION,
    NAMES,
    PERSONS,
    PROCEDURE,
    RXNORM,
    SMOKING,
    SNOMED,
    VISITS,
    Records,
    add_unlisted_patients,
    complete_rows,
    conform,
    normalise_sex,
    union,
)
from phenotaste.sources.workspace import Workspace, translate_errors

if TYPE_CHECKING:
    from ibis import Table, Value

# Old exports have DATE in place of START, and no SYSTEM; names are matched ignoring case (Id, ID).
ID, PATIENT, ENCOUNTER, START, STOP, DATE = "Id", "PATIENT", "ENCOUNTER", "START", "STOP", "DATE"
CODE, SYSTEM, DESCRIPTION, VALUE = "CODE", "SYSTEM", "DESCRIPTION", "VALUE"
UNITS = "UNITS"
BIRTH, DEATH, SEX, RACE, ETHNICITY = "BIRTHDATE", "DEATHDATE", "GENDER", "RACE", "ETHNICITY"

PATIENT_KINDS = {ID: "id", BIRTH: "date", DEATH: "date", SEX: "text", RACE: "text", ETHNICITY: "text"}
ENCOUNTER_KINDS = {ID: "id", PATIENT: "id", START: "time", DATE: "time", STOP: "time"}
EVENT_KINDS = {
    START: "time",
    DATE: "time",
    PATIENT: "id",
    ENCOUNTER: "id",
    SYSTEM: "text",
    CODE: "code",
    DESCRIPTION: "text",
}
OBSERVATION_KINDS = {DATE: "time", PATIENT: "id", CODE: "code", VALUE: "text"}
RESULT_KINDS = OBSERVATION_KINDS | {ENCOUNTER: "id", DESCRIPTION: "text", UNITS: "text"}
FILE_KINDS = {
    "patients": PATIENT_KINDS,
    "encounters": ENCOUNTER_KINDS,
    **dict.fromkeys(("conditions", "medications", "procedures"), EVENT_KINDS),
    "observations": RESULT_KINDS,
}

# Words in SYSTEM, a FHIR address, in lower case, and the vocabulary.
SYSTEMS = {"icd-10-cm": ICD10CM, "icd-9-cm": ICD9CM, "snomed": SNOMED, "rxnorm": RXNORM}

LOINC = "LOINC"
LOINC_BMI, LOINC_SMOKING = "39156-5", "72166-2"
# Words in the answer to 72166-2, in lower case; the first match counts.
SMOKERS = {
    "unknown": None,
    "never": "no",
    "former": "quit",
    "ex-smoker": "quit",
    "smoke": "yes",
    "smoking": "yes",
}


class EventFile(NamedTuple):
    """A file of events, with their kind and default vocabulary."""

    name: str
    kind: str
    vocabulary: str


EVENT_FILES = (
    EventFile("conditions", DIAGNOSIS, SNOMED),
    EventFile("medications", MEDICATION, RXNORM),
    EventFile("procedures", PROCEDURE, SNOMED),
)


def read(
    workspace: Workspace,
    folder: Path,
    *,
    kinds: Sequence[str] = CODED_KINDS,
    columns: Mapping[str, str] | None = None,
) -> Records:
    """Read conditions, medications and procedures as events, and body mass index and smoking as facts.

    With "measurement" among the kinds, numeric observations are read as measurements. `columns` maps names of the
    present format to those in the files, where they differ: "START", or "encounters.START" for one file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste.sources import synthea
    >>> from phenotaste.sources.workspace import Workspace
    >>> Path("synthea").mkdir()
    >>> patients = "Id,BIRTHDATE,DEATHDATE,RACE,ETHNICITY,GENDER\\np1,1950-03-01,,white,nonhispanic,F\\n"
    >>> conditions = "START,PATIENT,ENCOUNTER,CODE,DESCRIPTION\\n2020-01-05,p1,e1,84114007,Heart failure\\n"
    >>> sizes = Path("synthea/patients.csv").write_text(patients), Path("synthea/conditions.csv").write_text(conditions)
    >>> with Workspace() as workspace:
    ...     records = synthea.read(workspace, Path("synthea"))
    ...     records.events.select("patient", "vocabulary", "code").to_pandas().to_numpy().tolist()
    [['p1', 'SNOMED', '84114007']]
    """
    files = Export(workspace, folder, columns or {})
    notes: list[str] = []
    tables = {file: read_events(files, file) for file in EVENT_FILES if file.name in files}
    events = union(conform(table, EVENTS, kind=file.kind) for file, table in tables.items())
    names = union(table.select(*NAMES).filter(table.name.notnull()) for table in tables.values())
    results = None
    if MEASUREMENT in kinds and "observations" in files:
        results = read_results(files)
        names = union([names, results.select(*NAMES).filter(results.name.notnull())])
    persons = read_patients(files, notes)
    facts = read_facts(files, notes) if "observations" in files else None
    visits = read_visits(files, notes) if "encounters" in files else None
    files.check_columns()
    return Records(
        events,
        add_unlisted_patients(workspace, persons, events, "patients", notes),
        facts,
        visits=visits,
        names=names.group_by("vocabulary", "code").aggregate(name=names.name.min()),
        notes=tuple(notes),
        measurements=None if results is None else results.select(*MEASUREMENTS),
    )


class Export:
    """The files of an export, read with the user's names of columns."""

    def __init__(self, workspace: Workspace, folder: Path, columns: Mapping[str, str]) -> None:
        self.workspace, self.files = workspace, files_by_name(folder)
        self.columns = dict(columns)
        self.unused = set(columns)
        known = {name.lower(): name for kinds in FILE_KINDS.values() for name in kinds}
        for given in columns:
            file, dot, name = given.rpartition(".")
            if name.lower() not in known or (dot and file.lower() not in FILE_KINDS):
                listed = ", ".join(known.values())
                raise InputError(f"there is no column {given} to map; choose from: {listed}.")

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def load(
        self,
        name: str,
        kinds: Mapping[str, str],
        required: Sequence[str],
        tolerated: Sequence[str] = (),
        notes: list[str] | None = None,
    ) -> "Table":
        file = self.files[name]
        present = {
            column.strip().lower() for column in typed_tables.read_file(self.workspace, file, name).columns
        }
        names: dict[str, str] = {}
        for given, theirs in self.columns.items():
            of_file, dot, ours = given.rpartition(".")
            spelt = next((kind for kind in kinds if kind.lower() == ours.lower()), None)
            if spelt and theirs.lower() in present and (not dot or of_file.lower() == name):
                names[spelt] = theirs
                self.unused.discard(given)
        return typed_tables.load(self.workspace, file, name, kinds, required, tolerated, notes, names)

    def check_columns(self) -> None:
        for given in sorted(self.unused):
            raise InputError(f"no file has the column {self.columns[given]} for {given}; correct the name.")


def files_by_name(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of Synthea's CSV files.")
    files: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        name = file.name.lower()
        if file.is_file() and name.endswith(typed_tables.CSV + typed_tables.PARQUET):
            files.setdefault(name.split(".")[0], file)
    if "patients" not in files:
        raise InputError(f"{folder} contains no patients.csv; give the csv folder of a Synthea export.")
    if not any(file.name in files for file in EVENT_FILES):
        raise InputError(f"{folder} contains neither conditions.csv nor medications.csv; export them.")
    return files


def read_events(files: Export, file: EventFile) -> "Table":
    """patient, time, visit, vocabulary, code and name of each row."""
    table = files.load(file.name, EVENT_KINDS, (PATIENT, CODE))
    return table.select(
        patient=table[PATIENT],
        time=start_time(table, file.name),
        visit=column_or_null(table, ENCOUNTER),
        vocabulary=event_vocabulary(table, file),
        code=table[CODE],
        name=column_or_null(table, DESCRIPTION),
    )


def start_time(table: "Table", title: str) -> "Value":
    if START not in table.columns and DATE not in table.columns:
        raise InputError(
            f"{title} lacks the column {START} (or {DATE} in old exports); name it with --column "
            f"{title}.{START}=NAME, or export it again."
        )
    return table[START if START in table.columns else DATE]


def column_or_null(table: "Table", name: str) -> "Value":
    import ibis

    return table[name] if name in table.columns else ibis.null("string")


def event_vocabulary(table: "Table", file: EventFile) -> "Value":
    import ibis

    if SYSTEM not in table.columns:
        return ibis.literal(file.vocabulary)
    system = table[SYSTEM].lower()
    branches = [(system.contains(word), vocabulary) for word, vocabulary in SYSTEMS.items()]
    return ibis.cases(*branches, else_=file.vocabulary)


def read_patients(files: Export, notes: list[str]) -> "Table":
    table = files.load("patients", PATIENT_KINDS, (ID, BIRTH), (BIRTH, DEATH), notes)
    persons = table.select(
        patient=table[ID],
        birth=table[BIRTH],
        death=table[DEATH] if DEATH in table.columns else column_or_null(table, DEATH).cast("date"),
        sex=normalise_sex(column_or_null(table, SEX)),
        race=column_or_null(table, RACE).lower(),
        ethnicity=column_or_null(table, ETHNICITY).lower(),
    )
    persons = conform(complete_rows(persons, "patients", ("patient",), notes).distinct(), PERSONS)
    with translate_errors("patients"):
        extra = (persons.count() - persons.patient.nunique()).to_pyarrow().as_py()
    if extra:
        raise InputError(
            f"patients has several rows for some patients ({extra:,} too many); keep one row per patient."
        )
    return persons


def read_visits(files: Export, notes: list[str]) -> "Table":
    import ibis

    table = files.load("encounters", ENCOUNTER_KINDS, (ID, PATIENT))
    visits = table.select(
        patient=table[PATIENT],
        visit=table[ID],
        time=start_time(table, "encounters"),
        end_time=table[STOP] if STOP in table.columns else ibis.null("timestamp"),
    )
    return complete_rows(visits, "encounters", VISITS, notes)


def read_facts(files: Export, notes: list[str]) -> "Table":
    """Body mass index and smoking; other observations are ignored."""
    import ibis

    table = files.load("observations", OBSERVATION_KINDS, (DATE, PATIENT, CODE, VALUE))
    table = complete_rows(
        table.filter(table[CODE].isin([LOINC_BMI, LOINC_SMOKING])), "observations", (DATE, PATIENT), notes
    )
    answer = table[VALUE].lower()
    smoker = ibis.cases(*((answer.contains(word), level) for word, level in SMOKERS.items()), else_=None)
    is_bmi = table[CODE] == LOINC_BMI
    facts = conform(
        table,
        FACTS,
        patient=table[PATIENT],
        time=table[DATE],
        name=is_bmi.ifelse(BMI, SMOKING),
        value=is_bmi.ifelse(None, smoker),
        number=is_bmi.ifelse(table[VALUE].try_cast("float64"), None),
    )
    return facts.filter(facts.value.notnull() | facts.number.notnull())


def read_results(files: Export) -> "Table":
    """Observations with a number, and the names of their codes; Synthea states no reference ranges."""
    table = files.load("observations", RESULT_KINDS, (DATE, PATIENT, CODE, VALUE))
    table = table.mutate(number=table[VALUE].try_cast("float64"))
    table = table.filter(table.number.notnull())
    return conform(
        table,
        (*MEASUREMENTS, "name"),
        patient=table[PATIENT],
        time=table[DATE],
        visit=column_or_null(table, ENCOUNTER),
        code=table[CODE],
        vocabulary=LOINC,
        value=table.number,
        unit=column_or_null(table, UNITS),
        name=column_or_null(table, DESCRIPTION),
    )
