"""Events and static facts from any table, with the user's own column names."""

from datetime import date, datetime

import pandas as pd
import pytest

from phenotaste.errors import InputError
from phenotaste.sources import tables
from phenotaste.sources.records import EVENTS, PERSONS
from phenotaste.sources.workspace import Workspace

EVENT_ROWS = pd.DataFrame(
    {
        "patient": [1, 1, 2, 3],
        "time": ["2020-01-05", "2020-01-06", "2020-01-07", "2020-01-08"],
        "visit": ["a", "a", None, "b"],
        "code": ["401.9", "C09AA02", "250.0", "V58"],
        "kind": ["Dx", "drug", None, "DIAGNOSIS"],
        "value": [1.0, 2.5, None, None],
    }
)
STATIC_ROWS = pd.DataFrame(
    {
        "Patient": [1, 2, 4],
        "DOB": ["1950-03-01", "1960-03-01", None],
        "Gender": ["F", "male", "other"],
        "Region": ["north", "south", ""],
        "BMI": [31.5, None, 22.0],
    }
)


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


def written(frame, path):
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    return path


def rows(table, *names):
    found = table.select(*names).to_pyarrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.mark.parametrize("events_name", ["e.csv", "e.csv.gz", "e.parquet"])
@pytest.mark.parametrize("static_name", ["s.csv", "s.parquet"])
def test_events_and_static_facts(workspace, tmp_path, events_name, static_name):
    records = tables.read(
        workspace, written(EVENT_ROWS, tmp_path / events_name), written(STATIC_ROWS, tmp_path / static_name)
    )
    as_id = (
        int if events_name == static_name.replace("s.", "e.") == "e.parquet" else str
    )  # a CSV has text only
    assert records.events.columns == EVENTS
    assert rows(records.events, *EVENTS) == sorted(
        [
            (as_id(1), datetime(2020, 1, 5), "a", "401.9", None, "diagnosis", 1.0),
            (as_id(1), datetime(2020, 1, 6), "a", "C09AA02", None, "medication", 2.5),
            (as_id(2), datetime(2020, 1, 7), None, "250.0", None, "diagnosis", None),
            (as_id(3), datetime(2020, 1, 8), "b", "V58", None, "diagnosis", None),
        ],
        key=repr,
    )
    assert records.persons.columns == (*PERSONS, "region")
    assert rows(records.persons, "patient", "birth", "death", "sex", "region") == [
        (as_id(1), date(1950, 3, 1), None, "female", "north"),
        (as_id(2), date(1960, 3, 1), None, "male", "south"),
        (as_id(3), None, None, None, None),
        (as_id(4), None, None, "other", None),
    ]
    assert rows(records.facts, "patient", "time", "name", "number") == [
        (as_id(1), None, "bmi", 31.5),
        (as_id(4), None, "bmi", 22.0),
    ]
    assert records.notes == (
        "Events without a kind, and of no vocabulary that implies one, taken as diagnoses: 1 (--kind sets another).",
        "Patients with events but without a row in static, whose static facts are missing: 1.",
    )


def test_drugs_without_a_kind_are_medications_by_their_vocabulary(workspace, tmp_path):
    frame = pd.DataFrame(
        {
            "patient": range(5),
            "time": "2020-01-05",
            "code": ["C09AA02", "197361", "I10", "X", "2345-7"],
            "vocabulary": ["ATC", "rxnorm", "ICD10CM", "local", "LOINC"],
        }
    )
    file = written(frame, tmp_path / "e.csv")
    records = tables.read(workspace, file)
    kinds = ["medication", "medication", "diagnosis", "diagnosis"]
    assert [row[1] for row in rows(records.events, "patient", "kind")][: len(kinds)] == kinds
    assert [note for note in records.notes if "taken as diagnoses: 1 " in note] == list(records.notes)
    stated = tables.read(workspace, file, kind="procedure")
    assert {row[0] for row in rows(stated.events, "kind")} == {"procedure"}
    assert stated.notes == ()
    drugs = tables.read(
        workspace, written(frame[["patient", "time", "code"]], tmp_path / "d.csv"), vocabulary="NDC"
    )
    assert {row[0] for row in rows(drugs.events, "kind")} == {"medication"}


def test_own_names_for_columns(workspace, tmp_path):
    events = EVENT_ROWS.rename(columns={"patient": "MRN", "time": "When", "code": "ICD", "kind": "type"})
    static = STATIC_ROWS.rename(columns={"Patient": "mrn", "DOB": "born", "Gender": "Sex_at_birth"})
    records = tables.read(
        workspace,
        written(events, tmp_path / "e.csv"),
        written(static, tmp_path / "s.csv"),
        columns={"patient": "mrn", "time": "when", "code": "icd", "sex": "SEX_AT_BIRTH", "birth": "born"},
        kind="px",
        vocabulary="ICD9CM",
    )
    assert {row[0] for row in rows(records.events, "kind")} == {"procedure"}  # "type" was not mapped
    assert {row[0] for row in rows(records.events, "vocabulary")} == {"ICD9CM"}
    assert rows(records.persons, "patient", "sex", "birth")[0] == ("1", "female", date(1950, 3, 1))
    assert records.persons.columns == (*PERSONS, "region")


def test_a_folder_of_parts_is_one_table(workspace, tmp_path):
    (tmp_path / "events" / "deep").mkdir(parents=True)
    written(EVENT_ROWS[:2], tmp_path / "events" / "1.parquet")
    written(EVENT_ROWS[2:], tmp_path / "events" / "deep" / "2.parquet")
    (tmp_path / "events" / "_SUCCESS").touch()
    records = tables.read(workspace, tmp_path / "events")
    assert rows(records.persons, "patient") == [(1,), (2,), (3,)]
    assert records.events.count().to_pyarrow().as_py() == 4


def test_rows_without_patient_time_or_code_are_left_for_the_builder_to_count(workspace, tmp_path):
    without = [EVENT_ROWS.assign(**{name: " "})[:1] for name in ("patient", "time", "code")]
    static = written(STATIC_ROWS, tmp_path / "s.csv")
    records = tables.read(workspace, written(pd.concat([EVENT_ROWS, *without]), tmp_path / "e.csv"), static)
    assert [row.count(None) for row in rows(records.events, "patient", "time", "code")].count(1) == 3
    assert rows(records.persons, "patient") == [("1",), ("2",), ("3",), ("4",)]


def test_the_same_static_row_twice_is_one(workspace, tmp_path):
    events = written(EVENT_ROWS, tmp_path / "e.csv")
    twice = pd.concat([STATIC_ROWS, STATIC_ROWS])
    records = tables.read(workspace, events, written(twice, tmp_path / "s.csv"))
    assert records.persons.count().to_pyarrow().as_py() == 4
    other = pd.concat([STATIC_ROWS, STATIC_ROWS.assign(Region="east")])
    with pytest.raises(InputError, match=r"static has several rows for some patients \(3 too many\)"):
        tables.read(workspace, events, written(other, tmp_path / "s.csv"))


@pytest.mark.parametrize(
    ("events", "static", "options", "message"),
    [
        (
            EVENT_ROWS.drop(columns="code"),
            None,
            {},
            "events lacks the column code; its columns are: patient, time",
        ),
        (EVENT_ROWS, None, {"columns": {"visit": "stay"}}, "events lacks the column stay;"),
        (
            EVENT_ROWS,
            None,
            {"columns": {"colour": "x"}},
            "there is no column colour to map; choose from: patient,",
        ),
        (
            EVENT_ROWS,
            None,
            {"columns": {"sex": "x"}},
            "the column sex belongs to a static table",
        ),
        (EVENT_ROWS, STATIC_ROWS, {"columns": {"sex": "x"}}, "static lacks the column x;"),
        (EVENT_ROWS, STATIC_ROWS.drop(columns="Patient"), {}, "static lacks the column patient;"),
        (
            EVENT_ROWS.assign(kind="visit"),
            None,
            {},
            "column kind of events has 4 values other than diagnosis, ",
        ),
        (
            EVENT_ROWS,
            None,
            {"kind": "note"},
            "note is not a kind of event; choose from: diagnosis, medication, ",
        ),
        (EVENT_ROWS.assign(time="soon"), None, {}, "column time of events has 4 values that are not times;"),
        (EVENT_ROWS.assign(value="x"), None, {}, "column value of events has 4 values that are not numbers;"),
        (
            EVENT_ROWS,
            STATIC_ROWS.assign(DOB="x"),
            {},
            "column birth of static has 3 values that are not dates;",
        ),
    ],
)
def test_bad_input_is_one_sentence(workspace, tmp_path, events, static, options, message):
    static_file = None if static is None else written(static, tmp_path / "s.csv")
    with pytest.raises(InputError) as caught:
        tables.read(workspace, written(events, tmp_path / "e.csv"), static_file, **options)
    assert message in str(caught.value)
    assert str(caught.value).count(".") == 1


def test_a_code_that_became_a_number_is_refused(workspace, tmp_path):
    spoilt = written(EVENT_ROWS.assign(code=[401.9, 250.0, 58.0, 1.0]), tmp_path / "e.parquet")
    with pytest.raises(
        InputError, match="column code of events is of the type float64 and cannot hold codes"
    ):
        tables.read(workspace, spoilt)
    whole = written(EVENT_ROWS.assign(code=[84114007, 1, 2, 3]), tmp_path / "w.parquet")  # SNOMED
    assert rows(tables.read(workspace, whole).events, "code")[3] == ("84114007",)
