"""A FHIR bulk export: newline-delimited JSON files, one type of resource in each, of R4 or its neighbours.

References may be relative (Patient/ID), absolute, or urn:uuid:ID. Of several codings of a concept one is used, in an
order of vocabularies that depends on the resource.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.records import (
    ATC,
    BMI,
    DIAGNOSIS,
    EVENTS,
    FACTS,
    ICD9CM,
    ICD10CM,
    MEASUREMENT,
    MEASUREMENTS,
    MEDICATION,
    NAMES,
    NDC,
    PERSONS,
    PROCEDURE,
    RXNORM,
    SMOKING,
    SNOMED,
    Records,
    add_unlisted_patients,
    complete_rows,
    conform,
    distinct_patients,
    normalise_sex,
    union,
)
from phenotaste.sources.table_folder import missing_note
from phenotaste.sources.workspace import Workspace, translate_errors, unique_name
from phenotaste.storage.input_files import limited_lines, open_lines

if TYPE_CHECKING:
    from ibis import Table, Value

DATES = ("recorded", "onset")
"""Values of `condition_date`."""

MEDICATIONS = ("request", "administration", "statement")
"""Values of `medications`."""

MAX_RESOURCE = 2**24  # bytes of a line, as in DuckDB's JSON reader
ENDINGS = (".ndjson", ".jsonl", ".ndjson.gz", ".jsonl.gz")
LOINC, CPT, HCPCS, ICD10PCS = "LOINC", "CPT4", "HCPCS", "ICD10PCS"
SYSTEMS = {
    "http://hl7.org/fhir/sid/icd-10-cm": ICD10CM,
    "urn:oid:2.16.840.1.113883.6.90": ICD10CM,
    "http://hl7.org/fhir/sid/icd-9-cm": ICD9CM,
    "urn:oid:2.16.840.1.113883.6.103": ICD9CM,
    "http://snomed.info/sct": SNOMED,
    "urn:oid:2.16.840.1.113883.6.96": SNOMED,
    "http://www.nlm.nih.gov/research/umls/rxnorm": RXNORM,
    "urn:oid:2.16.840.1.113883.6.88": RXNORM,
    "http://www.whocc.no/atc": ATC,
    "http://hl7.org/fhir/sid/ndc": NDC,
    "urn:oid:2.16.840.1.113883.6.69": NDC,
    "http://loinc.org": LOINC,
    "http://www.ama-assn.org/go/cpt": CPT,
    "https://www.cms.gov/Medicare/Coding/HCPCSReleaseCodeSets": HCPCS,
    "http://www.cms.gov/Medicare/Coding/ICD10": ICD10PCS,
    "http://hl7.org/fhir/sid/icd-10-pcs": ICD10PCS,
}
CODING = 'STRUCT("system" VARCHAR, code VARCHAR, display VARCHAR)[]'
CONCEPT = f'STRUCT(coding {CODING}, "text" VARCHAR)'
REFERENCE, PERIOD = "STRUCT(reference VARCHAR)", 'STRUCT("start" VARCHAR, "end" VARCHAR)'
QUANTITY = 'STRUCT("value" DOUBLE, unit VARCHAR, code VARCHAR)'
RANGES = 'STRUCT(low STRUCT("value" DOUBLE), high STRUCT("value" DOUBLE))[]'
COMPONENTS = (
    f'STRUCT(code {CONCEPT}, "valueQuantity" {QUANTITY}, "referenceRange" {RANGES}, interpretation JSON)[]'
)
EXTENSIONS = 'STRUCT(url VARCHAR, extension STRUCT(url VARCHAR, "valueString" VARCHAR)[])[]'
RACE, ETHNICITY = "us-core-race", "us-core-ethnicity"
LOINC_BMI, LOINC_SMOKING = "39156-5", "72166-2"
# Rows of these states describe nothing that happened.
VOID = (
    "entered-in-error",
    "refuted",
    "cancelled",
    "not-done",
    "not-taken",
    "draft",
    "preparation",
    "in-error",
)
MISSING = "none of the resources of the requested kinds"


class Resource(NamedTuple):
    """A type of resource whose rows are events."""

    name: str
    kind: str
    times: tuple[str, ...]  # the first that is present counts; a dot leads into a period
    vocabularies: tuple[str, ...]  # in order of preference
    state: str = "status"


PREFERRED_DRUGS = (RXNORM, ATC, NDC)
CONDITION_TIMES = ("recordedDate", "assertedDate", "onsetDateTime", "onsetPeriod.start")
CONDITION = Resource("Condition", DIAGNOSIS, CONDITION_TIMES, (ICD10CM, ICD9CM, SNOMED), "verificationStatus")
REQUEST = Resource("MedicationRequest", MEDICATION, ("authoredOn",), PREFERRED_DRUGS)
ADMINISTRATION = Resource(
    "MedicationAdministration",
    MEDICATION,
    ("effectiveDateTime", "effectivePeriod.start", "occurenceDateTime"),
    PREFERRED_DRUGS,
)
STATEMENT = Resource(
    "MedicationStatement",
    MEDICATION,
    ("effectiveDateTime", "effectivePeriod.start", "dateAsserted"),
    PREFERRED_DRUGS,
)
PERFORMED = ("performedDateTime", "performedPeriod.start", "occurrenceDateTime", "occurrencePeriod.start")
PROCEDURES = Resource("Procedure", PROCEDURE, PERFORMED, (ICD10PCS, CPT, HCPCS, SNOMED))
OBSERVATION = Resource(
    "Observation",
    MEASUREMENT,
    ("effectiveDateTime", "effectivePeriod.start", "effectiveInstant", "issued"),
    (LOINC, SNOMED),
)
WITHOUT = {
    "Encounter": "no encounters",
    "Condition": "no diagnoses",
    "MedicationRequest": "no requested medications",
    "MedicationAdministration": "no administered medications",
    "MedicationStatement": "no stated medications",
    "Medication": "references to medications are not resolved",
    "Procedure": "no procedures",
    "Observation": "no measurements, body mass index and smoking",
}


def read(
    workspace: Workspace,
    folder: Path,
    *,
    kinds: Iterable[str] = (DIAGNOSIS, MEDICATION),
    medications: Iterable[str] = MEDICATIONS,
    condition_date: str = "recorded",
) -> Records:
    """Read the NDJSON files of a folder and its subfolders, gzipped or not; missing resources are named in a note.

    Parameters
    ----------
    kinds : any of "diagnosis", "medication", "procedure", "measurement".
    medications : some of `fhir.MEDICATIONS`; a drug that was requested and given is in both.
    condition_date : one of `fhir.DATES`. "recorded" dates conditions when they became known; "onset" may be years
        before, when nobody could use them for a prediction. The other is used where one is absent.

    Examples
    --------
    >>> import json
    >>> from pathlib import Path
    >>> from phenotaste.sources import fhir
    >>> from phenotaste.sources.workspace import Workspace
    >>> Path("bulk").mkdir()
    >>> patient = {"resourceType": "Patient", "id": "p1", "birthDate": "1950-03-01", "gender": "female"}
    >>> coding = {"system": "http://snomed.info/sct", "code": "84114007", "display": "Heart failure"}
    >>> condition = {"resourceType": "Condition", "subject": {"reference": "Patient/p1"}, "code": {"coding": [coding]}}
    >>> condition["recordedDate"] = "2020-01-05"
    >>> for resource in (patient, condition):
    ...     size = Path("bulk", resource["resourceType"] + ".ndjson").write_text(json.dumps(resource))
    >>> with Workspace() as workspace:
    ...     records = fhir.read(workspace, Path("bulk"), kinds=["diagnosis"])
    ...     records.events.select("patient", "vocabulary", "code").to_pandas().to_numpy().tolist()
    [['p1', 'SNOMED', '84114007']]
    """
    chosen = tuple(kinds)
    resources = requested(chosen, tuple(medications), condition_date)
    export = Export(workspace, folder)
    notes: list[str] = []
    visits = read_visits(export, notes)
    coded = [rows for resource in resources if (rows := read_coded(export, resource, notes)) is not None]
    results = read_results(export, notes) if MEASUREMENT in chosen else None
    if not coded and results is None:
        raise InputError(
            f"{folder} has {MISSING} ({', '.join(export.missing)}); export them, or choose other kinds."
        )
    named = [*coded, *([] if results is None else [results])]
    events = events_of(coded, results, visits)
    measurements = None if results is None else dated(results, visits).select(*MEASUREMENTS)
    seen = union(distinct_patients(table) for table in named).distinct()
    names = union(table.select(*NAMES) for table in named)
    names = names.filter(names.name.notnull() & names.code.notnull())
    return Records(
        events,
        add_unlisted_patients(workspace, read_patients(export, notes), seen, "Patient", notes),
        read_facts(export),
        visits=visits,
        names=names.group_by("vocabulary", "code").aggregate(name=names.name.min()),
        notes=(*missing_note("resources", export.missing, WITHOUT), *notes),
        measurements=measurements,
    )


def requested(kinds: Sequence[str], medications: Sequence[str], condition_date: str) -> list[Resource]:
    if condition_date not in DATES:
        raise InputError(f"condition_date must be one of {', '.join(DATES)}.")
    if not medications or any(name not in MEDICATIONS for name in medications):
        raise InputError(f"medications must be among {', '.join(MEDICATIONS)}; choose at least one.")
    drugs = dict(zip(MEDICATIONS, (REQUEST, ADMINISTRATION, STATEMENT), strict=True))
    condition = CONDITION
    if condition_date == "onset":
        condition = CONDITION._replace(times=(*CONDITION_TIMES[2:], *CONDITION_TIMES[:2]))
    chosen = [condition, *(drugs[name] for name in MEDICATIONS if name in medications), PROCEDURES]
    return [resource for resource in chosen if resource.kind in kinds]


class Export:
    """The files of an export by the type of their resources."""

    def __init__(self, workspace: Workspace, folder: Path) -> None:
        self.workspace, self.folder = workspace, folder
        self.missing: list[str] = []
        self.files: dict[str, list[Path]] = {}
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; give the folder of a FHIR bulk export.")
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file.name.lower().endswith(ENDINGS):
                self.files.setdefault(resource_type(file), []).append(file)
        if "Patient" not in self.files:
            raise InputError(
                f"{folder} contains no file of Patient resources ({', '.join(ENDINGS[:2])}); give the folder of a "
                "FHIR bulk export."
            )

    def read(self, resource: str, columns: Mapping[str, str], *, needed: bool = True) -> "Table | None":
        """The resources of a type, with columns of DuckDB's types; None, and recorded as missing, without a file."""
        if resource not in self.files:
            if needed and resource not in self.missing:
                self.missing.append(resource)
            return None
        names = [typed_tables.escape_glob(str(file)) for file in self.files[resource]]
        types = {"resourceType": "VARCHAR", "id": "VARCHAR", **columns}
        with translate_errors(resource):
            table = self.workspace.con.read_json(names, format="newline_delimited", columns=types)
        return table.filter(table.resourceType == resource)

    def stored(self, table: "Table", title: str) -> "Table":
        """Copy the rows into the workspace; the files would be parsed again by every query."""
        with translate_errors(title):
            return self.workspace.con.create_table(unique_name(), table)


def resource_type(file: Path) -> str:
    """The type of the first resource of a file; empty where there is none."""
    try:
        with open_lines(file) as stream:
            lines = limited_lines(stream, file.name, MAX_RESOURCE)
            first = next((line for line in lines if line.strip()), b"{}")
        found = json.loads(first)
    except InputError:
        raise
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        raise InputError(
            f"{file.name} is not newline-delimited JSON; export the resources again, one in each line."
        ) from None
    return str(found.get("resourceType", "")) if isinstance(found, dict) else ""


def target(reference: "Value") -> "Value":
    """The id in a reference: Patient/ID, https://host/Patient/ID/_history/1, urn:uuid:ID, Patient?identifier=x|ID."""
    return reference.re_replace(r"/_history/.*$", "").re_extract(r"([^/:|#]+)$", 1).nullif("")


def text_or_null(table: "Table", name: str) -> "Value":
    """A column, or the start or end of a period, with dates of a year or month completed."""
    first, _, inner = name.partition(".")
    value = table[first][inner] if inner else table[first]
    return value.re_replace(r"^(\d{4})$", r"\1-01-01").re_replace(r"^(\d{4}-\d{2})$", r"\1-01")


def first_of(table: "Table", names: Iterable[str]) -> "Value":
    first, *others = [text_or_null(table, name) for name in names]
    for other in others:
        first = first.coalesce(other)
    return first


def coded_concept(concept: "Value", vocabularies: Sequence[str]) -> "tuple[Value, Value, Value]":
    """Code, vocabulary and name: of the preferred vocabulary, else of the first coding, else the text itself."""
    import ibis

    codings = concept["coding"]
    chosen = codings[0]
    for vocabulary in reversed(vocabularies):
        addresses = [address for address, name in SYSTEMS.items() if name == vocabulary]
        found = codings.filter(lambda coding, known=addresses: coding["system"].isin(known))
        chosen = (found.length() > 0).ifelse(found[0], chosen)
    code, text = chosen["code"].nullif(""), concept["text"]
    vocabulary = chosen["system"].cases(*SYSTEMS.items(), else_=chosen["system"])
    name = code.isnull().ifelse(ibis.null("string"), chosen["display"].coalesce(text))
    return code.coalesce(text.lower()), code.isnull().ifelse(ibis.null("string"), vocabulary), name


def period_columns(times: Iterable[str]) -> dict[str, str]:
    return {name.partition(".")[0]: PERIOD if "." in name else "VARCHAR" for name in times}


def read_coded(export: Export, resource: Resource, notes: list[str]) -> "Table | None":
    """EVENTS and the name of each code."""
    columns = {"subject": REFERENCE, "encounter": REFERENCE, "context": REFERENCE, resource.state: "JSON"}
    columns |= period_columns(resource.times)
    drug = resource.kind == MEDICATION
    columns |= DRUG_COLUMNS if drug else {"code": CONCEPT}
    table = export.read(resource.name, columns)
    if table is None:
        return None
    table = in_effect(table, resource, notes)
    concept = medication_concept(export, table) if drug else None
    table = table if concept is None else concept
    code, vocabulary, name = coded_concept(table.code, resource.vocabularies)
    rows = table.select(
        patient=target(table.subject["reference"]),
        time=first_of(table, resource.times),
        visit=target(table.encounter["reference"].coalesce(table.context["reference"])),
        code=code,
        vocabulary=vocabulary,
        name=name,
    )
    rows = export.stored(rows, resource.name)
    rows = typed_tables.cast_columns(rows, resource.name, {"time": "time"}, ("time",), notes)
    return conform(rows, (*EVENTS, "name"), kind=resource.kind)


DRUG_COLUMNS = {
    "medicationCodeableConcept": CONCEPT,
    "medicationReference": REFERENCE,
    "medication": f"STRUCT(concept {CONCEPT}, reference {REFERENCE})",  # of R5
    "contained": "JSON",
}


def medication_concept(export: Export, table: "Table") -> "Table":
    """The rows with the concept of their drug as `code`: their own, that of a Medication, or a contained one."""
    own = table.medicationCodeableConcept.coalesce(table.medication["concept"])
    reference = table.medicationReference["reference"].coalesce(table.medication["reference"]["reference"])
    inside = table.contained[0]["code"].try_cast(own.type())
    rows = table.mutate(
        code=own.coalesce(reference.startswith("#").ifelse(inside, None)), drug=target(reference)
    )
    listed = export.read("Medication", {"code": CONCEPT}, needed=False)
    if listed is None:
        return rows
    drugs = listed.select(drug_id=listed.id, drug_code=listed.code)
    joined = rows.left_join(drugs, rows.drug == drugs.drug_id)
    return joined.mutate(code=joined.code.coalesce(joined.drug_code))


def in_effect(table: "Table", resource: Resource, notes: list[str]) -> "Table":
    """The resources that state something that happened; a note counts the others."""
    state = table[resource.state]
    # A code (status), or a concept (verificationStatus of R4).
    word = state.str.coalesce(state["coding"][0]["code"].str).lower()
    void = word.isin(VOID).coalesce(False)
    with translate_errors(resource.name):
        count = int(void.sum().to_pyarrow().as_py() or 0)
    if not count:
        return table
    notes.append(
        f"{resource.name} resources that were entered in error, refuted or not done, ignored: {count:,}."
    )
    return table.filter(~void)


def read_visits(export: Export, notes: list[str]) -> "Table | None":
    table = export.read("Encounter", {"subject": REFERENCE, "period": PERIOD, "actualPeriod": PERIOD})
    if table is None:
        return None
    rows = table.select(
        patient=target(table.subject["reference"]),
        visit=table.id,
        time=first_of(table, ("period.start", "actualPeriod.start")),
        end_time=first_of(table, ("period.end", "actualPeriod.end")),
    )
    types = {"time": "time", "end_time": "time"}
    rows = typed_tables.cast_columns(export.stored(rows, "Encounter"), "Encounter", types, types, notes)
    return complete_rows(rows, "Encounter", ("patient", "visit", "time"), notes)


def dated(rows: "Table", visits: "Table | None") -> "Table":
    """Rows without a time take the start of their encounter."""
    if visits is None:
        return rows
    starts = visits.select(start=visits.time, encounter=visits.visit)
    joined = rows.left_join(starts, rows.visit == starts.encounter)
    return joined.select(
        *[name for name in rows.columns if name != "time"], time=joined.time.coalesce(joined.start)
    )


def events_of(coded: "Sequence[Table]", results: "Table | None", visits: "Table | None") -> "Table":
    if coded:
        return dated(union(coded), visits).select(*EVENTS)
    assert results is not None
    return conform(results.limit(0), EVENTS, kind=MEASUREMENT)


def read_patients(export: Export, notes: list[str]) -> "Table":
    columns = {
        "birthDate": "VARCHAR",
        "gender": "VARCHAR",
        "deceasedDateTime": "VARCHAR",
        "extension": EXTENSIONS,
        "maritalStatus": CONCEPT,
    }
    table = export.read("Patient", columns)
    assert table is not None
    marital = table.maritalStatus["text"].coalesce(table.maritalStatus["coding"][0]["display"])
    rows = table.select(
        patient=table.id,
        birth=text_or_null(table, "birthDate"),
        death=text_or_null(table, "deceasedDateTime"),
        sex=normalise_sex(table.gender),
        race=us_core(table, RACE),
        ethnicity=us_core(table, ETHNICITY),
        marital_status=marital.lower(),
    )
    types = {"birth": "date", "death": "date"}
    rows = typed_tables.cast_columns(export.stored(rows, "Patient"), "Patient", types, types, notes)
    rows = conform(
        complete_rows(rows, "Patient", ("patient",), notes).distinct(), (*PERSONS, "marital_status")
    )
    with translate_errors("Patient"):
        extra = (rows.count() - rows.patient.nunique()).to_pyarrow().as_py()
    if extra:
        raise InputError(
            f"Patient has several resources for some patients ({extra:,} too many); export each once."
        )
    return rows


def us_core(table: "Table", name: str) -> "Value":
    """The text of an extension of US Core."""
    found = table.extension.filter(lambda each: each["url"].contains(name))[0]["extension"]
    return found.filter(lambda each: each["url"] == "text")[0]["valueString"].lower()


def observations(export: Export) -> "Table | None":
    columns = {"subject": REFERENCE, "encounter": REFERENCE, "context": REFERENCE, "status": "JSON"}
    columns |= {"code": CONCEPT, "valueQuantity": QUANTITY, "valueCodeableConcept": CONCEPT}
    columns |= {"referenceRange": RANGES, "interpretation": "JSON", "component": COMPONENTS}
    return export.read("Observation", columns | period_columns(OBSERVATION.times))


def read_results(export: Export, notes: list[str]) -> "Table | None":
    """MEASUREMENTS and the name of each code, of observations with a number and of their components."""
    table = observations(export)
    if table is None:
        return None
    table = in_effect(table, OBSERVATION, notes)
    common = {
        "patient": target(table.subject["reference"]),
        "time": first_of(table, OBSERVATION.times),
        "visit": target(table.encounter["reference"].coalesce(table.context["reference"])),
    }
    own = table.filter(table.valueQuantity["value"].notnull())
    rows = own.select(**common, **result_columns(own))
    parts = table.select(**common, part=table.component.unnest())
    parts = parts.select(
        "patient", "time", "visit", **{name: parts.part[name] for name in ("code", *RESULT_COLUMNS)}
    )
    parts = parts.filter(parts.valueQuantity["value"].notnull())
    inner = parts.select("patient", "time", "visit", **result_columns(parts))
    rows = export.stored(union([rows, inner]), "Observation")
    rows = typed_tables.cast_columns(rows, "Observation", {"time": "time"}, ("time",), notes)
    return conform(rows, (*MEASUREMENTS, "name"))


RESULT_COLUMNS = ("valueQuantity", "referenceRange", "interpretation")


def result_columns(table: "Table") -> "dict[str, Value]":
    code, vocabulary, name = coded_concept(table.code, OBSERVATION.vocabularies)
    quantity, ranges, meaning = (table[column] for column in RESULT_COLUMNS)
    flag = meaning[0]["coding"][0]["code"].str.coalesce(meaning["coding"][0]["code"].str)  # R4, earlier
    return {
        "code": code,
        "vocabulary": vocabulary,
        "name": name,
        "value": quantity["value"],
        "unit": quantity["unit"].coalesce(quantity["code"]),
        "low": ranges[0]["low"]["value"],
        "high": ranges[0]["high"]["value"],
        "flag": flag,
    }


def read_facts(export: Export) -> "Table | None":
    """Body mass index and smoking; the builder normalises the answers."""
    import ibis

    table = observations(export)
    if table is None:
        return None
    code, _, _ = coded_concept(table.code, (LOINC,))
    answer = table.valueCodeableConcept["text"].coalesce(table.valueCodeableConcept["coding"][0]["display"])
    rows = table.select(
        patient=target(table.subject["reference"]),
        time=first_of(table, OBSERVATION.times),
        code=code,
        answer=answer,
        number=table.valueQuantity["value"],
    )
    rows = export.stored(rows.filter(rows.code.isin([LOINC_BMI, LOINC_SMOKING])), "Observation")
    rows = typed_tables.cast_columns(rows, "Observation", {"time": "time"}, ("time",), [])
    is_bmi = rows.code == LOINC_BMI
    facts = conform(
        rows,
        FACTS,
        name=is_bmi.ifelse(BMI, SMOKING),
        value=is_bmi.ifelse(ibis.null("string"), rows.answer),
        number=is_bmi.ifelse(rows.number, ibis.null("float64")),
    )
    return facts.filter(facts.time.notnull() & (facts.value.notnull() | facts.number.notnull()))
