"""A simulated FHIR bulk export in the form of Synthea's."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

SNOMED, LOINC = "http://snomed.info/sct", "http://loinc.org"
RXNORM, ICD10 = "http://www.nlm.nih.gov/research/umls/rxnorm", "http://hl7.org/fhir/sid/icd-10-cm"
CONDITIONS = {
    "84114007": ("Heart failure", "I50.9"),
    "44054006": ("Diabetes", "E11.9"),
    "38341003": ("Hypertension", ""),
}
US_CORE = "http://hl7.org/fhir/us/core/StructureDefinition/us-core-"


def concept(system: str, code: str, display: str) -> dict[str, Any]:
    return {"coding": [{"system": system, "code": code, "display": display}], "text": display}


def quantity(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit, "system": "http://unitsofmeasure.org", "code": unit}


def patient(number: int) -> dict[str, Any]:
    named = [
        {"url": "ombCategory", "valueCoding": {"code": "2106-3"}},
        {"url": "text", "valueString": "White"},
    ]
    return {
        "id": f"p{number}",
        "extension": [
            {"url": f"{US_CORE}race", "extension": named},
            {"url": "birthplace", "valueAddress": {}},
        ],
        "birthDate": f"{1940 + number}-03-01" if number else "1940",
        "gender": "female" if number % 2 else "male",
        "maritalStatus": {"coding": [{"code": "M", "display": "Married"}], "text": "Married"},
        **({"deceasedDateTime": "2023-05-01T10:00:00-05:00"} if number == 1 else {}),
    }


def fhir_resources(n_patients: int = 8, seed: int = 0) -> dict[str, list[dict[str, Any]]]:
    """Resources by type: four encounters a patient, each with conditions, drugs, a procedure and observations."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[dict[str, Any]]] = {"Patient": [patient(number) for number in range(n_patients)]}
    for number in range(n_patients):
        # Both forms of references occur.
        subject = {"reference": f"Patient/p{number}" if number % 2 else f"urn:uuid:p{number}"}
        for day in np.sort(rng.choice(700, 4, replace=False)):
            start = str(np.datetime64("2020-01-01") + day)
            visit = f"e{number}-{day}"
            link = {"reference": f"Encounter/{visit}"}
            period = {"start": f"{start}T09:00:00Z", "end": f"{start}T09:30:00Z"}
            add(found, "Encounter", id=visit, subject=subject, period=period)
            both = {"subject": subject, "encounter": link}
            for code in rng.choice(list(CONDITIONS), rng.integers(1, 3), replace=False):
                add_condition(found, both, str(code), start)
            add_drugs(found, subject, link, start)
            add(
                found, "Procedure", **both, status="completed", performedPeriod=period,
                code=concept(SNOMED, "430193006", "Medication reconciliation"),
            )  # fmt: skip
            add_observations(found, both, start, rng)
    return found


def add(found: dict[str, list[dict[str, Any]]], name: str, **values: Any) -> None:
    found.setdefault(name, []).append(values)


def add_condition(
    found: dict[str, list[dict[str, Any]]], both: dict[str, Any], code: str, start: str
) -> None:
    display, icd = CONDITIONS[code]
    coded = concept(SNOMED, code, display)
    if icd:
        coded["coding"].append({"system": ICD10, "code": icd, "display": f"{display} (ICD)"})
    verified = {"coding": [{"code": "confirmed"}]}
    dates = {"onsetDateTime": "2010-06", "recordedDate": f"{start}T09:05:00Z"}
    add(found, "Condition", **both, code=coded, verificationStatus=verified, **dates)


def add_drugs(
    found: dict[str, list[dict[str, Any]]], subject: dict[str, Any], link: dict[str, Any], start: str
) -> None:
    lisinopril = concept(RXNORM, "314076", "lisinopril 10 MG Oral Tablet")
    rest = {"subject": subject, "status": "active"}
    add(
        found, "MedicationRequest", **rest, encounter=link, authoredOn=f"{start}T09:10:00Z",
        medicationCodeableConcept=lisinopril,
    )  # fmt: skip
    add(
        found, "MedicationAdministration", **rest, context=link, effectiveDateTime=f"{start}T09:20:00+00:00",
        medicationReference={"reference": "urn:uuid:m1"},
    )  # fmt: skip
    found["Medication"] = [{"id": "m1", "code": concept(RXNORM, "1807510", "vancomycin 1000 MG Injection")}]


def add_observations(
    found: dict[str, list[dict[str, Any]]], both: dict[str, Any], start: str, rng: np.random.Generator
) -> None:
    rest = {**both, "status": "final", "effectiveDateTime": f"{start}T09:15:00Z"}
    glucose = quantity(round(float(rng.normal(100, 30)), 1), "mg/dL")
    ranges = [{"low": {"value": 70}, "high": {"value": 105}}]
    flag = [{"coding": [{"code": "H" if glucose["value"] > 105 else "N"}]}]
    add(
        found, "Observation", **rest, code=concept(LOINC, "2345-7", "Glucose"), valueQuantity=glucose,
        referenceRange=ranges, interpretation=flag,
    )  # fmt: skip
    parts = [
        {"code": concept(LOINC, "8480-6", "Systolic"), "valueQuantity": quantity(120, "mm[Hg]")},
        {"code": concept(LOINC, "8462-4", "Diastolic"), "valueQuantity": quantity(80, "mm[Hg]")},
    ]
    add(found, "Observation", **rest, code=concept(LOINC, "85354-9", "Blood pressure"), component=parts)
    bmi = concept(LOINC, "39156-5", "Body mass index")
    add(found, "Observation", **rest, code=bmi, valueQuantity=quantity(31.5, "kg/m2"))
    smoking = {"valueCodeableConcept": concept(SNOMED, "8517006", "Ex-smoker (finding)")}
    add(found, "Observation", **rest, code=concept(LOINC, "72166-2", "Tobacco smoking status"), **smoking)


def write_fhir(folder: Path, resources: dict[str, list[dict[str, Any]]] | None = None) -> None:
    """One file for each type, as a server writes them; Observation in two, one of them gzipped."""
    folder.mkdir(parents=True)
    for name, rows in (resources or fhir_resources()).items():
        lines = [json.dumps({"resourceType": name, **row}) for row in rows]
        if name == "Observation":
            half = len(lines) // 2
            (folder / "Observation.001.ndjson.gz").write_bytes(
                gzip.compress("\n".join(lines[:half]).encode())
            )
            lines = lines[half:]
        (folder / f"{name}.ndjson").write_text("\n".join(lines) + "\n", encoding="utf-8")
