"""A FHIR bulk export like Synthea's: events, references, codings, periods, components and what may be missing."""

import json
from collections import Counter
from datetime import date, datetime

import pytest

from helpers.fhir_files import SNOMED, concept, fhir_resources, write_fhir
from phenotaste import build
from phenotaste.build.settings import Groups, Settings
from phenotaste.errors import InputError
from phenotaste.sources import fhir
from phenotaste.sources.records import EVENTS, MEASUREMENTS
from phenotaste.sources.workspace import Workspace

ALL = ("diagnosis", "medication", "procedure", "measurement")


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


@pytest.fixture(scope="module")
def resources():
    return fhir_resources()


@pytest.fixture(scope="module")
def records(workspace, resources, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bulk") / "fhir"
    write_fhir(folder, resources)
    return fhir.read(workspace, folder, kinds=ALL)


def rows(table, *names):
    found = table.select(*(names or table.columns)).to_pyarrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def instant(text):
    return datetime.fromisoformat(text).replace(tzinfo=None)


def ids(resource, encounter="encounter"):
    patient = resource["subject"]["reference"].removeprefix("Patient/").removeprefix("urn:uuid:")
    return patient, resource[encounter]["reference"].removeprefix("Encounter/")


def test_events(records, resources):
    expected = []
    for row in resources["Condition"]:
        icd = [coding for coding in row["code"]["coding"] if "icd" in coding["system"]]
        code = icd[0]["code"] if icd else "38341003"
        expected.append(
            (*ids(row), instant(row["recordedDate"]), code, "ICD10CM" if icd else "SNOMED", "diagnosis")
        )
    for row in resources["MedicationRequest"]:
        expected.append((*ids(row), instant(row["authoredOn"]), "314076", "RxNorm", "medication"))
    for row in resources["MedicationAdministration"]:
        time = instant(row["effectiveDateTime"])
        expected.append((*ids(row, "context"), time, "1807510", "RxNorm", "medication"))
    for row in resources["Procedure"]:
        time = instant(row["performedPeriod"]["start"])
        expected.append((*ids(row), time, "430193006", "SNOMED", "procedure"))
    assert records.events.columns == EVENTS
    found = rows(records.events, "patient", "visit", "time", "code", "vocabulary", "kind")
    assert found == sorted(expected, key=repr)
    assert any("MedicationStatement (" in note for note in records.notes)


def test_measurements_have_ranges_flags_and_components(records, resources):
    assert records.measurements.columns == MEASUREMENTS
    glucose = records.measurements.filter(records.measurements.code == "2345-7")
    expected = [
        (value, "mg/dL", 70.0, 105.0, "H" if value > 105 else "N")
        for row in resources["Observation"]
        if row["code"]["text"] == "Glucose"
        for value in [row["valueQuantity"]["value"]]
    ]
    assert rows(glucose, "value", "unit", "low", "high", "flag") == sorted(expected, key=repr)
    n_visits = len(resources["Encounter"])
    counts = Counter(code for (code,) in rows(records.measurements, "code"))
    assert counts == dict.fromkeys(("2345-7", "8480-6", "8462-4", "39156-5"), n_visits)
    assert ("LOINC", "8480-6", "Systolic") in rows(records.names, "vocabulary", "code", "name")


def test_patients_encounters_and_facts(records, resources):
    persons = {row[0]: row[1:] for row in rows(records.persons)}
    assert persons["p0"] == (date(1940, 1, 1), None, "male", "white", None, "married")
    assert persons["p1"][:3] == (date(1941, 3, 1), date(2023, 5, 1), "female")
    encounters = [
        (
            ids({**row, "encounter": {"reference": row["id"]}})[0],
            row["id"],
            *map(instant, row["period"].values()),
        )
        for row in resources["Encounter"]
    ]
    assert rows(records.visits, "patient", "visit", "time", "end_time") == sorted(encounters, key=repr)
    assert set(rows(records.facts, "name", "value", "number")) == {
        ("bmi", None, 31.5),
        ("smoking", "Ex-smoker (finding)", None),
    }


def test_onset_and_chosen_medications(workspace, resources, tmp_path):
    write_fhir(tmp_path / "bulk", resources)
    records = fhir.read(workspace, tmp_path / "bulk", condition_date="onset", medications=["request"])
    diagnoses = records.events.filter(records.events.kind == "diagnosis")
    assert set(rows(diagnoses, "time")) == {(datetime(2010, 6, 1),)}
    assert set(rows(records.events, "kind", "code")) >= {("medication", "314076")}
    assert ("medication", "1807510") not in rows(records.events, "kind", "code")
    for wrong in ({"condition_date": "birth"}, {"medications": ["pills"]}, {"medications": []}):
        with pytest.raises(InputError, match="must be"):
            fhir.read(workspace, tmp_path / "bulk", **wrong)


@pytest.mark.parametrize(
    "absent", ["Encounter", "Condition", "MedicationRequest", "Procedure", "Observation"]
)
def test_missing_resources_are_named(workspace, resources, tmp_path, absent):
    write_fhir(tmp_path / "bulk", {name: rows for name, rows in resources.items() if name != absent})
    records = fhir.read(workspace, tmp_path / "bulk", kinds=ALL)
    assert any(f"{absent} (" in note for note in records.notes)
    assert records.events.count().execute() > 0


def test_no_event_or_no_patient_is_refused(workspace, resources, tmp_path):
    write_fhir(tmp_path / "patients", {"Patient": resources["Patient"]})
    with pytest.raises(InputError, match="Condition"):
        fhir.read(workspace, tmp_path / "patients")
    write_fhir(tmp_path / "conditions", {"Condition": resources["Condition"]})
    with pytest.raises(InputError, match="no file of Patient"):
        fhir.read(workspace, tmp_path / "conditions")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "Patient.ndjson").write_text("{'secret': 1}\n")
    with pytest.raises(InputError, match="not newline-delimited JSON") as caught:
        fhir.read(workspace, tmp_path / "broken")
    assert "secret" not in str(caught.value)


def written(folder, **resources):
    folder.mkdir()
    for name, listed in resources.items():
        lines = [json.dumps({"resourceType": name, **row}) for row in listed]
        (folder / f"{name}.ndjson").write_text("\n".join(lines))
    return folder


def test_forms_of_references_void_rows_and_concepts_without_a_code(workspace, tmp_path):
    heart = concept(SNOMED, "84114007", "Heart failure")
    times = {"recordedDate": "2020"}
    subjects = ("Patient/a", "urn:uuid:a", "https://host/fhir/Patient/a/_history/3", "Patient?identifier=x|a")
    conditions = [{"subject": {"reference": text}, "code": heart, **times} for text in subjects]
    a = {"subject": {"reference": "Patient/a"}}
    conditions += [
        {**a, "code": heart, **times, "verificationStatus": {"coding": [{"code": "refuted"}]}},
        {**a, "code": heart, **times, "verificationStatus": "entered-in-error"},
        {**a, "code": {"text": "Feels Unwell"}, "encounter": {"reference": "Encounter/e"}},
        {**a, "code": {"coding": [{"system": "urn:local", "code": "X1"}]}, **times},
    ]
    visit = {"id": "e", **a, "period": {"start": "2021-02-03T04:05:00+01:00"}}
    folder = written(tmp_path / "bulk", Patient=[{"id": "a"}], Condition=conditions, Encounter=[visit])
    records = fhir.read(workspace, folder, kinds=["diagnosis"])
    new_year = datetime(2020, 1, 1)
    assert rows(records.events, "patient", "time", "code", "vocabulary") == sorted(
        [("a", new_year, "84114007", "SNOMED")] * 4
        + [("a", datetime(2021, 2, 3, 3, 5), "feels unwell", None), ("a", new_year, "X1", "urn:local")],
        key=repr,
    )
    assert any("ignored: 2." in note for note in records.notes)


def test_medications_may_be_contained_or_of_r5(workspace, tmp_path):
    a = {"subject": {"reference": "Patient/a"}, "authoredOn": "2020-01-05"}
    drug = concept("http://www.nlm.nih.gov/research/umls/rxnorm", "314076", "lisinopril")
    contained = [{"resourceType": "Medication", "id": "m", "code": drug}]
    requests = [
        {**a, "medicationReference": {"reference": "#m"}, "contained": contained},
        {**a, "medication": {"concept": drug}},
    ]
    folder = written(tmp_path / "bulk", Patient=[{"id": "a"}], MedicationRequest=requests)
    records = fhir.read(workspace, folder, kinds=["medication"])
    assert rows(records.events, "code", "vocabulary") == [("314076", "RxNorm")] * 2


def test_a_cohort(workspace, records, resources):
    settings = Settings(kinds=ALL, groups=Groups(ccs="single", unmapped="keep"))
    cohort = build.cohort(workspace, records, settings).cohort
    assert (len(cohort), cohort.n_visits) == (len(resources["Patient"]), len(resources["Encounter"]))
    names = set(cohort.feature_names)
    assert "Dx_Congestive heart failure; nonhypertensive [108.]" in names
    assert {"Rx_lisinopril 10 MG Oral Tablet [314076]", "Lab_Glucose high [2345-7]"} <= names
    assert {"smoking=quit", "race=white", "bmi=moderately obese (30-35)"} <= set(cohort.static_names)
