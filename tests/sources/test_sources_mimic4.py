"""MIMIC-IV in its native tables: a small hospital, and the public demo recomputed with pandas."""

from datetime import date, datetime

import numpy as np
import pandas as pd
import pytest

from helpers.cohorts import SHARED
from helpers.hospital_files import MIMIC4, write_tables
from phenotaste import build
from phenotaste.build.settings import Measurements, Settings
from phenotaste.errors import InputError
from phenotaste.sources import mimic4
from phenotaste.sources.records import EVENTS, MEASUREMENTS
from phenotaste.sources.workspace import Workspace

DEMO = SHARED / "data" / "mimic4demo"
ALL = ("diagnosis", "medication", "procedure", "measurement")
needs_demo = pytest.mark.skipif(not DEMO.is_dir(), reason="the MIMIC-IV demo is not available")


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


def rows(table, *names):
    found = table.select(*(names or table.columns)).to_pyarrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.mark.parametrize(("subfolder", "zipped"), [("hosp", True), ("", False)])
def test_all_tables(workspace, tmp_path, subfolder, zipped):
    write_tables(tmp_path / subfolder, MIMIC4, zipped=zipped)
    records = mimic4.read(workspace, tmp_path, kinds=ALL)
    assert records.events.columns == EVENTS
    discharges = datetime(2150, 1, 9, 12), datetime(2151, 2, 6, 12), datetime(2160, 5, 4, 18)
    assert rows(records.events, "patient", "time", "visit", "code", "vocabulary", "kind") == sorted(
        [
            (1, discharges[0], "11", "4280", "ICD9CM", "diagnosis"),
            (1, discharges[1], "12", "I5032", "ICD10CM", "diagnosis"),
            (1, discharges[1], "12", "I10", "ICD10CM", "diagnosis"),
            (2, discharges[2], "21", "0389", "ICD9CM", "diagnosis"),
            (1, datetime(2150, 1, 5, 20), "11", "furosemide", None, "medication"),
            (1, datetime(2151, 2, 5, 20), "12", "furosemide", None, "medication"),
            (2, datetime(2160, 5, 1, 8), "21", "heparin sodium", None, "medication"),
            (2, datetime(2160, 5, 2), "21", "3893", "ICD9Proc", "procedure"),
        ],
        key=repr,
    )
    assert rows(records.persons, "patient", "birth", "death", "sex") == [
        (1, date(2090, 1, 1), None, "female"),
        (2, date(2069, 1, 1), date(2161, 3, 1), "male"),
        (3, date(2130, 1, 1), None, "female"),
    ]
    assert rows(records.visits, "patient", "visit", "time", "end_time") == [
        (1, "11", datetime(2150, 1, 5, 10), discharges[0]),
        (1, "12", datetime(2151, 2, 5, 10), discharges[1]),
        (2, "21", datetime(2160, 5, 1, 0, 30), discharges[2]),
    ]
    assert records.shifted_dates


def test_measurements_carry_their_reference_range(workspace, tmp_path):
    records = mimic4.read(workspace, write_tables(tmp_path, MIMIC4), kinds=["measurement"])
    assert records.measurements.columns == MEASUREMENTS
    assert records.events.count().execute() == 0
    assert rows(records.measurements) == sorted(
        [
            (
                1,
                datetime(2150, 1, 6, 6),
                "11",
                "50931",
                "MIMIC-IV item",
                250.0,
                "mg/dL",
                70.0,
                105.0,
                "abnormal",
            ),
            (1, datetime(2150, 6, 6, 6), None, "50931", "MIMIC-IV item", 90.0, "mg/dL", 70.0, 105.0, None),
            (2, datetime(2160, 5, 2, 6), "21", "51466", "MIMIC-IV item", None, None, None, None, "abnormal"),
        ],
        key=repr,
    )
    assert rows(records.names, "code", "name") == [("50931", "Glucose, blood"), ("51466", "Blood, urine")]


def test_facts_are_known_from_the_admission_on(workspace, tmp_path):
    facts = mimic4.read(workspace, write_tables(tmp_path, MIMIC4)).facts
    assert rows(facts.filter(facts.patient == 1), "time", "name", "value", "number") == sorted(
        [
            (datetime(2150, 1, 5), "bmi", None, 31.5),
            (datetime(2150, 1, 5, 10), "insurance", "medicare", None),
            (datetime(2150, 1, 5, 10), "language", "english", None),
            (datetime(2150, 1, 5, 10), "marital_status", "married", None),
            (datetime(2150, 1, 5, 10), "race", "white", None),
            (datetime(2151, 2, 5, 10), "insurance", "other", None),
            (datetime(2151, 2, 5, 10), "marital_status", "widowed", None),
        ],
        key=repr,
    )


def test_drugs_by_ndc_code_and_drug_types(workspace, tmp_path):
    write_tables(tmp_path, MIMIC4)
    records = mimic4.read(workspace, tmp_path, kinds=["medication"], drugs="ndc")
    assert rows(records.events, "code", "vocabulary") == [("00409610204", "NDC")] * 2 + [(None, "NDC")]
    assert any("BASE, left out: 1" in note for note in records.notes)
    records = mimic4.read(workspace, tmp_path, kinds=["medication"], drug_types=mimic4.DRUG_TYPES)
    assert records.events.count().execute() == 4
    for wrong in ({"drugs": "atc"}, {"drug_types": ["PILLS"]}, {"drug_types": []}):
        with pytest.raises(InputError, match="drug"):
            mimic4.read(workspace, tmp_path, **wrong)


@pytest.mark.parametrize("absent", MIMIC4)
def test_a_missing_table_is_named(workspace, tmp_path, absent):
    write_tables(tmp_path, {name: text for name, text in MIMIC4.items() if name != absent})
    records = mimic4.read(workspace, tmp_path, kinds=ALL)
    assert any(f"{absent} (" in note for note in records.notes)
    assert records.events.patient.nunique().execute() == 2
    if absent in ("patients", "admissions"):
        settings = Settings(kinds=("diagnosis", "medication", "procedure"))
        assert build.cohort(workspace, records, settings).cohort.shape[0] == 2


def test_a_folder_without_events_is_refused(workspace, tmp_path):
    write_tables(tmp_path, {"patients": MIMIC4["patients"]})
    with pytest.raises(InputError, match="diagnoses_icd"):
        mimic4.read(workspace, tmp_path)
    with pytest.raises(InputError, match="MIMIC-IV"):
        mimic4.read(workspace, tmp_path / "nowhere")


def test_shifted_dates_are_not_in_the_future(workspace, tmp_path):
    records = mimic4.read(workspace, write_tables(tmp_path, MIMIC4))
    assert build.cohort(workspace, records, Settings()).quality["events_in_the_future"] == 0
    unshifted = records._replace(shifted_dates=False)
    assert build.cohort(workspace, unshifted, Settings()).quality["events_in_the_future"] == 7


def csv(name, **more):
    return pd.read_csv(DEMO / "hosp" / f"{name}.csv.gz", dtype={"icd_code": str, "ndc": str}, **more)


@pytest.fixture(scope="module")
def demo(workspace):
    return mimic4.read(workspace, DEMO, kinds=ALL)


@needs_demo
def test_demo_counts(demo):
    drugs = csv("prescriptions")
    counts = demo.events.kind.value_counts().to_pandas().set_index("kind").iloc[:, 0].to_dict()
    assert counts == {
        "diagnosis": len(csv("diagnoses_icd")),
        "medication": int((drugs.drug_type != "BASE").sum()),
        "procedure": len(csv("procedures_icd")),
    }
    assert counts == {"diagnosis": 4506, "medication": 14410, "procedure": 722}
    labs = demo.measurements.to_pandas()
    expected = csv("labevents")
    assert len(labs) == len(expected) == 107727
    for ours, theirs in {"value": "valuenum", "low": "ref_range_lower", "high": "ref_range_upper"}.items():
        assert labs[ours].sum() == pytest.approx(expected[theirs].sum())
        assert labs[ours].notna().sum() == expected[theirs].notna().sum()
    assert (labs.flag == "abnormal").sum() == (expected.flag == "abnormal").sum()
    assert labs.visit.isna().sum() == expected.hadm_id.isna().sum()
    assert (demo.persons.count().execute(), demo.visits.count().execute()) == (100, 275)


@needs_demo
def test_demo_patient_row_by_row(demo):
    """All events of the patient with the most diagnoses."""
    diagnoses, admissions, procedures = csv("diagnoses_icd"), csv("admissions"), csv("procedures_icd")
    patient = int(diagnoses.subject_id.value_counts().index[0])
    ends = admissions.set_index("hadm_id").dischtime
    versions = {("d", 9): "ICD9CM", ("d", 10): "ICD10CM", ("p", 9): "ICD9Proc", ("p", 10): "ICD10PCS"}
    expected = [
        (
            pd.Timestamp(ends[row.hadm_id]),
            str(row.hadm_id),
            row.icd_code,
            versions["d", row.icd_version],
            "diagnosis",
        )
        for row in diagnoses[diagnoses.subject_id == patient].itertuples()
    ]
    expected += [
        (
            pd.Timestamp(row.chartdate),
            str(row.hadm_id),
            row.icd_code,
            versions["p", row.icd_version],
            "procedure",
        )
        for row in procedures[procedures.subject_id == patient].itertuples()
    ]
    drugs = csv("prescriptions").query("subject_id == @patient and drug_type != 'BASE'")
    names = drugs.drug.str.strip().str.lower().str.replace("*nf*", "").str.strip()
    names = names.str.replace(r"\s+", " ", regex=True)
    expected += [
        (pd.Timestamp(time), str(visit), name, None, "medication")
        for time, visit, name in zip(drugs.starttime, drugs.hadm_id, names, strict=True)
    ]
    ours = demo.events.filter(demo.events.patient == patient)
    found = rows(ours, "time", "visit", "code", "vocabulary", "kind")
    assert found == sorted(((row[0].to_pydatetime(), *row[1:]) for row in expected), key=repr)
    labs = csv("labevents").query("subject_id == @patient")
    measured = demo.measurements.filter(demo.measurements.patient == patient)
    assert sorted(measured.code.to_pandas()) == sorted(labs.itemid.astype(str))


@needs_demo
def test_demo_cohort_entry_by_entry(workspace, demo):
    """Every entry of the matrix is the number of distinct times of a code in an admission."""
    built = build.cohort(
        workspace, demo._replace(measurements=None), Settings(kinds=("diagnosis", "procedure"))
    )
    cohort = built.cohort
    diagnoses, procedures = csv("diagnoses_icd"), csv("procedures_icd")
    expected = pd.concat([diagnoses.assign(kind="Dx_"), procedures.assign(kind="Px_")])
    names = csv("d_icd_diagnoses").set_index(["icd_code", "icd_version"]).long_title.to_dict()
    vocabularies = {9: "ICD9Proc", 10: "ICD10PCS"}

    def feature(row):
        name = names.get((row.icd_code, row.icd_version)) if row.kind == "Dx_" else None
        shown = (
            f"{' '.join(name.split())} [{row.icd_code}]"
            if name
            else f"{row.icd_code} [{vocabularies[row.icd_version]}]"
        )
        return row.kind + shown

    expected["feature"] = [feature(row) for row in expected.itertuples()]
    expected["chartdate"] = expected.chartdate.fillna("discharge")
    entries = (
        expected.drop_duplicates(["hadm_id", "feature", "chartdate"]).groupby(["hadm_id", "feature"]).size()
    )
    assert cohort.visits.nnz == len(entries)
    assert cohort.visits.sum() == entries.sum()
    per_feature = pd.Series(np.asarray(cohort.visits.sum(axis=0)).ravel(), cohort.feature_names)
    pd.testing.assert_series_equal(
        per_feature.sort_index(), entries.groupby("feature").sum().astype(float), check_names=False
    )


@needs_demo
def test_demo_with_every_kind(workspace, demo):
    """High glucose is counted where the value exceeds the reference range of its own row."""
    cohort = build.cohort(workspace, demo, Settings(kinds=ALL)).cohort
    assert {name.partition("_")[0] for name in cohort.feature_names} == {"Dx", "Rx", "Px", "Lab"}
    glucose = csv("labevents").query("itemid == 50931 and valuenum > ref_range_upper")
    column = list(cohort.feature_names).index("Lab_Glucose, blood high [50931]")
    times = glucose.drop_duplicates(["subject_id", "hadm_id", "charttime"])
    assert cohort.visits[:, [column]].sum() == len(times)


@needs_demo
def test_demo_entries_of_every_kind(workspace, demo):
    """Patients, visits and the sums of entries of each kind, recomputed from the files."""
    results = Measurements(quantiles=None)
    cohort = build.cohort(workspace, demo, Settings(kinds=ALL, measurements=results)).cohort
    sums = pd.Series(np.asarray(cohort.visits.sum(axis=0)).ravel(), cohort.feature_names)
    found = sums.groupby(sums.index.str.partition("_").get_level_values(0)).sum().to_dict()
    drugs = csv("prescriptions").query("drug_type != 'BASE'").dropna(subset="starttime")
    name = drugs.drug.str.lower().str.replace("*nf*", "").str.split().str.join(" ")
    drugs = drugs.assign(name=name).drop_duplicates(["hadm_id", "name", "starttime"])
    labs = csv("labevents")
    low, high = labs.valuenum < labs.ref_range_lower, labs.valuenum > labs.ref_range_upper
    ranged = labs.valuenum.notna() & (labs.ref_range_lower.notna() | labs.ref_range_upper.notna())
    flagged = ~ranged & (labs.flag == "abnormal")
    level = np.select([ranged & low, ranged & high, flagged], ["low", "high", "abnormal"], "")
    labs = labs.assign(level=level)[level != ""]
    labs = labs.drop_duplicates(["subject_id", "hadm_id", "itemid", "charttime", "level"])
    diagnoses, procedures = csv("diagnoses_icd"), csv("procedures_icd")
    assert found == {
        "Dx": len(diagnoses.drop_duplicates(["hadm_id", "icd_code", "icd_version"])),
        "Px": len(procedures.drop_duplicates(["hadm_id", "icd_code", "icd_version", "chartdate"])),
        "Rx": len(drugs),
        "Lab": len(labs),
    }
    assert len(cohort) == csv("patients").subject_id.nunique() == 100
    without = build.cohort(workspace, demo._replace(measurements=None), Settings(kinds=ALL[:3])).cohort
    assert without.visits.shape[0] == len(csv("admissions")) == 275
