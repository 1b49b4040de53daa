"""A Synthea CSV export, of old and of new layout: patients, encounters, conditions, medications and what else helps."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.records import (
    BMI,
    DIAGNOSIS,
    EVENTS,
    FACTS,
    ICD9CM,
    ICD10CM,
    MEDICATION,
    NAMES,
    PERSONS,
    PROCEDURE,
    RXNORM,
    SMOKING,
    SNOMED,
    VISITS,
    Records,
)
from phenotaste.sources.shaping import plain_sex, shaped, sound_rows, union, with_strangers
from phenotaste.sources.workspace import Workspace, refusing

if TYPE_CHECKING:
    from ibis import Table, Value

# Old exports say DATE where new ones say START, and lack SYSTEM; names are matched whatever the case (Id, ID).
ID, PATIENT, ENCOUNTER, START, DATE = "Id", "PATIENT", "ENCOUNTER", "START", "DATE"
CODE, SYSTEM, DESCRIPTION, VALUE = "CODE", "SYSTEM", "DESCRIPTION", "VALUE"
BIRTH, DEATH, SEX, RACE, ETHNICITY = "BIRTHDATE", "DEATHDATE", "GENDER", "RACE", "ETHNICITY"

PATIENT_KINDS = {ID: "id", BIRTH: "date", DEATH: "date", SEX: "text", RACE: "text", ETHNICITY: "text"}
ENCOUNTER_KINDS = {ID: "id", PATIENT: "id", START: "time", DATE: "time"}
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

# SYSTEM is a FHIR address; words in it, in lower case, and our name of the vocabulary.
SYSTEMS = {"icd-10-cm": ICD10CM, "icd-9-cm": ICD9CM, "snomed": SNOMED, "rxnorm": RXNORM}

LOINC_BMI, LOINC_SMOKING = "39156-5", "72166-2"
# Words in the answer to 72166-2, in lower case; the first that is found decides.
SMOKERS = {
    "unknown": None,
    "never": "no",
    "former": "quit",
    "ex-smoker": "quit",
    "smoke": "yes",
    "smoking": "yes",
}


class Listing(NamedTuple):
    """A file of events: what they are, and in which vocabulary unless it says so itself."""

    name: str
    kind: str
    vocabulary: str


LISTINGS = (
    Listing("conditions", DIAGNOSIS, SNOMED),
    Listing("medications", MEDICATION, RXNORM),
    Listing("procedures", PROCEDURE, SNOMED),
)


def read(workspace: Workspace, folder: Path) -> Records:
    """Events of conditions, medications and procedures; of observations, body mass index and smoking as facts.

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
    files = files_by_name(folder)
    notes: list[str] = []
    listed = {
        listing: read_listing(workspace, files[listing.name], listing)
        for listing in LISTINGS
        if listing.name in files
    }
    events = union(shaped(table, EVENTS, kind=listing.kind) for listing, table in listed.items())
    names = union(table.select(*NAMES).filter(table.name.notnull()) for table in listed.values())
    persons = read_patients(workspace, files["patients"], notes)
    return Records(
        events,
        with_strangers(workspace, persons, events, "patients", notes),
        read_facts(workspace, files["observations"], notes) if "observations" in files else None,
        visits=read_visits(workspace, files["encounters"], notes) if "encounters" in files else None,
        names=names.group_by("vocabulary", "code").aggregate(name=names.name.min()),
        notes=tuple(notes),
    )


def files_by_name(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the one that holds Synthea's CSV files.")
    files: dict[str, Path] = {}
    for file in sorted(folder.iterdir()):
        name = file.name.lower()
        if file.is_file() and name.endswith(typed_tables.CSV + typed_tables.PARQUET):
            files.setdefault(name.split(".")[0], file)
    if "patients" not in files:
        raise InputError(f"{folder} holds no patients.csv; give the csv folder of a Synthea export.")
    if not any(listing.name in files for listing in LISTINGS):
        raise InputError(f"{folder} holds neither conditions.csv nor medications.csv; export them.")
    return files


def read_listing(workspace: Workspace, file: Path, listing: Listing) -> "Table":
    """patient, time, visit, vocabulary, code and name of each row."""
    table = typed_tables.load(workspace, file, listing.name, EVENT_KINDS, required=(PATIENT, CODE))
    return table.select(
        patient=table[PATIENT],
        time=start_of(table, listing.name),
        visit=optional(table, ENCOUNTER),
        vocabulary=vocabulary_of(table, listing),
        code=table[CODE],
        name=optional(table, DESCRIPTION),
    )


def start_of(table: "Table", title: str) -> "Value":
    if START not in table.columns and DATE not in table.columns:
        raise InputError(f"{title} lacks the column {START} (or {DATE}, in old exports); export it again.")
    return table[START if START in table.columns else DATE]


def optional(table: "Table", name: str) -> "Value":
    import ibis

    return table[name] if name in table.columns else ibis.null("string")


def vocabulary_of(table: "Table", listing: Listing) -> "Value":
    import ibis

    if SYSTEM not in table.columns:
        return ibis.literal(listing.vocabulary)
    system = table[SYSTEM].lower()
    branches = [(system.contains(word), vocabulary) for word, vocabulary in SYSTEMS.items()]
    return ibis.cases(*branches, else_=listing.vocabulary)


def read_patients(workspace: Workspace, file: Path, notes: list[str]) -> "Table":
    table = typed_tables.load(workspace, file, "patients", PATIENT_KINDS, required=(ID, BIRTH))
    persons = table.select(
        patient=table[ID],
        birth=table[BIRTH],
        death=table[DEATH] if DEATH in table.columns else optional(table, DEATH).cast("date"),
        sex=plain_sex(optional(table, SEX)),
        race=optional(table, RACE).lower(),
        ethnicity=optional(table, ETHNICITY).lower(),
    )
    persons = shaped(sound_rows(persons, "patients", ("patient",), notes).distinct(), PERSONS)
    with refusing("patients"):
        extra = (persons.count() - persons.patient.nunique()).to_pyarrow().as_py()
    if extra:
        raise InputError(
            f"patients has several rows for some patients (too many: {extra:,}); keep one for each."
        )
    return persons


def read_visits(workspace: Workspace, file: Path, notes: list[str]) -> "Table":
    table = typed_tables.load(workspace, file, "encounters", ENCOUNTER_KINDS, required=(ID, PATIENT))
    visits = table.select(patient=table[PATIENT], visit=table[ID], time=start_of(table, "encounters"))
    return sound_rows(visits, "encounters", VISITS, notes)


def read_facts(workspace: Workspace, file: Path, notes: list[str]) -> "Table":
    """Body mass index and smoking; what else was observed is no static fact."""
    import ibis

    table = typed_tables.load(
        workspace, file, "observations", OBSERVATION_KINDS, required=(DATE, PATIENT, CODE, VALUE)
    )
    table = sound_rows(
        table.filter(table[CODE].isin([LOINC_BMI, LOINC_SMOKING])), "observations", (DATE, PATIENT), notes
    )
    answer = table[VALUE].lower()
    smoker = ibis.cases(*((answer.contains(word), level) for word, level in SMOKERS.items()), else_=None)
    is_bmi = table[CODE] == LOINC_BMI
    facts = shaped(
        table,
        FACTS,
        patient=table[PATIENT],
        time=table[DATE],
        name=is_bmi.ifelse(BMI, SMOKING),
        value=is_bmi.ifelse(None, smoker),
        number=is_bmi.ifelse(table[VALUE].try_cast("float64"), None),
    )
    return facts.filter(facts.value.notnull() | facts.number.notnull())
