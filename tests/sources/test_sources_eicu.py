"""eICU in its native tables, simulated with its columns; every number recomputed with pandas."""

import json
import shutil
from datetime import date, datetime, timedelta

import pandas as pd
import pytest

from helpers.cohorts import SHARED
from helpers.hospital_files import EICU_COLUMNS, eicu_tables, write_eicu
from phenotaste import build
from phenotaste.build.settings import Index, Settings, source_defaults
from phenotaste.errors import InputError
from phenotaste.sources import eicu
from phenotaste.sources.records import EVENTS, MEASUREMENTS
from phenotaste.sources.workspace import Workspace

ALL = ("diagnosis", "medication", "procedure", "measurement")
COLUMNS = SHARED / "design" / "eicu_columns.json"


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hospital") / "eicu"
    write_eicu(path)
    return path


@pytest.fixture(scope="module")
def frames():
    return eicu_tables()


@pytest.fixture(scope="module")
def records(workspace, folder):
    return eicu.read(workspace, folder, kinds=ALL)


def rows(table, *names):
    found = table.select(*(names or table.columns)).to_pyarrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.mark.skipif(not COLUMNS.exists(), reason="the list of eICU's columns is not available")
def test_the_simulated_tables_have_the_columns_of_eicu():
    known = {name.lower(): columns for name, columns in json.loads(COLUMNS.read_text()).items()}
    for name, columns in EICU_COLUMNS.items():
        if name != "lab":  # not listed there
            assert columns.split(",") == known[name.lower()]


def at(frame, frames, offset):
    """Times by hand: minutes from the admission to the hospital, at the beginning of 2001."""
    stays = frames["patient"].set_index("patientunitstayid").hospitaladmitoffset
    minutes = frame[offset] - frame.patientunitstayid.map(stays)
    return pd.Timestamp(2001, 1, 1) + pd.to_timedelta(minutes, "min")


def test_one_version_of_icd_is_read_from_mixed_fields(workspace, folder, records, frames):
    frame = frames["diagnosis"]
    expected = frame.icd9code.map({"428.0, I50.9": "428.0", "518.81, J96.00": "518.81", "": None}).where(
        lambda code: code.notna() | (frame.icd9code == ""), frame.icd9code
    )
    stays = frames["patient"].set_index("patientunitstayid").patienthealthsystemstayid
    wanted = zip(
        frame.patientunitstayid.map(stays), at(frame, frames, "diagnosisoffset"), expected, strict=True
    )
    found = records.events.filter(records.events.kind == "diagnosis")
    assert found.columns == EVENTS
    assert rows(found, "patient", "time", "code") == sorted(
        ((p, t.to_pydatetime(), None if pd.isna(c) else c) for p, t, c in wanted), key=repr
    )
    assert set(rows(found, "code", "vocabulary")) == {
        ("428.0", "ICD9CM"), ("518.81", "ICD9CM"), ("250.00", "ICD9CM"), ("N17.9", "ICD10CM"), (None, None)
    }  # fmt: skip
    tenth = eicu.read(workspace, folder, kinds=["diagnosis"], codes="icd10").events
    assert {code for (code,) in rows(tenth, "code")} == {"I50.9", "J96.00", "250.00", "N17.9", None}
    text = eicu.read(workspace, folder, kinds=["diagnosis"], codes="text").events
    assert ("disorder of kidney|acute renal failure",) in rows(text, "code")


def test_drugs_of_one_name_are_one_and_cancelled_orders_none(records, frames):
    drugs = records.events.filter(records.events.kind == "medication")
    n_units = len(frames["patient"])
    assert rows(drugs, "code") == [("heparin",)] * (2 * n_units)
    treatments = records.events.filter(records.events.kind == "procedure")
    assert rows(treatments, "code") == [("ventilation and oxygenation|intubation",)] * n_units


def test_measurements(records, frames):
    measured = records.measurements
    assert measured.columns == MEASUREMENTS
    sodium = measured.filter(measured.code == "sodium")
    expected = [(float(value), "mmol/L") for value in frames["lab"].labresult]
    assert rows(sodium, "value", "unit") == sorted(expected, key=repr)
    others = measured.filter(measured.code != "sodium")
    counts = others.code.value_counts().to_pandas().set_index("code").iloc[:, 0].to_dict()
    n_units = len(frames["patient"])
    assert counts == {"Local test": n_units, "noninvasivesystolic": n_units, "noninvasivediastolic": n_units}


def test_stays_persons_and_facts(records, frames):
    stays = frames["patient"]
    origin = datetime(2001, 1, 1)
    expected = [
        (
            row.patienthealthsystemstayid,
            str(row.patientunitstayid),
            origin + timedelta(minutes=-row.hospitaladmitoffset),
            origin + timedelta(minutes=row.unitdischargeoffset - row.hospitaladmitoffset),
        )
        for row in stays.itertuples()
    ]
    assert rows(records.visits, "patient", "visit", "time", "end_time") == sorted(expected, key=repr)
    persons = {row[0]: row[1:] for row in rows(records.persons, "patient", "birth", "death", "sex", "race")}
    assert len(persons) == stays.patienthealthsystemstayid.nunique()
    assert persons[1000] == (date(1911, 1, 1), None, "female", "caucasian")
    last = stays[stays.patienthealthsystemstayid == 1001].iloc[-1]
    died = origin + timedelta(minutes=int(last.hospitaldischargeoffset - last.hospitaladmitoffset))
    assert persons[1001][0] == date(1960, 1, 1)
    assert persons[1001][1] <= died.date()
    facts = {row[1:] for row in rows(records.facts, "patient", "name", "value") if row[0] == 1000}
    assert facts == {
        ("bmi", None),
        ("unit_type", "micu"),
        ("admission_source", "emergency department"),
        ("hospital_beds", ">= 500"),
        ("teaching", "t"),
        ("region", "south"),
    }


def test_unit_stays_as_patients(workspace, folder, frames):
    records = eicu.read(workspace, folder, stays="unit")
    assert records.persons.count().execute() == len(frames["patient"])
    assert set(rows(records.visits, "time")) == {(datetime(2001, 1, 1),)}


def test_days_are_counted_from_the_admission(workspace, records, frames):
    settings = source_defaults("eicu")
    cohort = build.cohort(workspace, records, settings).cohort
    coded = frames["diagnosis"][frames["diagnosis"].icd9code != ""]
    times = [coded.assign(time=at(coded, frames, "diagnosisoffset"))]
    given = frames["medication"][frames["medication"].drugordercancelled == "No"]
    times += [given.assign(time=at(given, frames, "drugstartoffset"))]
    times += [frames["infusiondrug"].assign(time=at(frames["infusiondrug"], frames, "infusionoffset"))]
    days = pd.concat(times)
    stays = frames["patient"].set_index("patientunitstayid").patienthealthsystemstayid
    days = days.assign(stay=days.patientunitstayid.map(stays), day=days.time.dt.date)
    assert cohort.n_visits == len(days.drop_duplicates(["stay", "day"]))


def test_times_are_minutes_and_the_first_hours_are_those_after_the_admission(workspace, records, frames):
    given = frames["medication"][frames["medication"].drugordercancelled == "No"]
    times = [at(given, frames, "drugstartoffset"), at(frames["infusiondrug"], frames, "infusionoffset")]
    minutes = (pd.concat(times) - pd.Timestamp(2001, 1, 1)) / pd.Timedelta(minutes=1)
    whole = build.cohort(workspace, records, Settings(kinds=("medication",), visit="1h")).cohort
    assert (whole.last_times.max(), whole.visit_times.min()) == (minutes.max(), minutes.min())
    limit = int(minutes.median() // 60) + 1
    chosen = Settings(kinds=("medication",), visit="1h", index=Index(first=f"{limit}h"))
    cohort = build.cohort(workspace, records, chosen).cohort
    assert cohort.visits.sum() == ((minutes >= 0) & (minutes < 60 * limit)).sum()
    assert 0 <= cohort.visit_times.min() <= cohort.last_times.max() < 60 * limit


@pytest.mark.parametrize(
    "absent", ["diagnosis", "medication", "infusiondrug", "lab", "vitalaperiodic", "hospital"]
)
def test_a_missing_table_is_named(workspace, tmp_path, absent):
    write_eicu(tmp_path / "eicu")
    (tmp_path / "eicu" / f"{absent}.csv.gz").unlink()
    records = eicu.read(workspace, tmp_path / "eicu", kinds=ALL)
    assert any(f"{absent} (" in note for note in records.notes)
    assert records.events.count().execute() > 0


def test_refusals(workspace, tmp_path, folder):
    with pytest.raises(InputError, match="eICU"):
        eicu.read(workspace, tmp_path)
    for wrong in ({"stays": "person"}, {"codes": "icd11"}):
        with pytest.raises(InputError, match="must be one of"):
            eicu.read(workspace, folder, **wrong)
    only = tmp_path / "only"
    only.mkdir()
    shutil.copy(folder / "patient.csv.gz", only)
    with pytest.raises(InputError, match=r"diagnosis\.csv"):
        eicu.read(workspace, only)
