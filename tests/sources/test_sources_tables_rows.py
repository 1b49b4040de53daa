"""Tables as they come: several files, columns named apart, vocabularies by row, mixed fields, bad dates."""

from datetime import date, datetime

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phenotaste.errors import InputError
from phenotaste.sources import coding, tables, typed_tables
from phenotaste.sources.records import MEASUREMENTS
from phenotaste.sources.workspace import Workspace

DAY = "2020-01-05"


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


def written(path, **columns):
    frame = pd.DataFrame(columns)
    if path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    return path


def rows(table, *names):
    found = table.select(*(names or table.columns)).to_pyarrow().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def test_every_file_of_events_is_read(workspace, tmp_path):
    first = written(tmp_path / "dx.csv", patient=[1, 2], time=[DAY] * 2, code=["I10", "E119"])
    second = written(tmp_path / "rx.parquet", patient=[2], time=[DAY], code=["C09AA02"], kind=["drug"])
    records = tables.read(workspace, [first, second], vocabulary={"dx": "ICD10CM", "drug": "ATC"})
    assert rows(records.events, "patient", "code", "vocabulary", "kind") == [
        ("1", "I10", "ICD10CM", "diagnosis"),
        ("2", "C09AA02", "ATC", "medication"),
        ("2", "E119", "ICD10CM", "diagnosis"),
    ]
    with pytest.raises(InputError, match="at least one"):
        tables.read(workspace, [])


def test_a_column_may_be_in_some_of_the_files(workspace, tmp_path):
    first = written(tmp_path / "dx.csv", pid=[1], day=[DAY], icd=["I10"], version=[10])
    second = written(tmp_path / "lab.csv", pid=[1], time=[DAY], icd=["glucose"], kind=["lab"], value=[180])
    columns = {"patient": "pid", "time": "day", "code": "icd", "icd_version": "version"}
    records = tables.read(workspace, [first, second], columns=columns, kinds=["measurement"])
    assert rows(records.events, "code", "vocabulary") == [("I10", "ICD10CM")]
    assert rows(records.measurements, "code", "value") == [("glucose", 180.0)]
    with pytest.raises(InputError, match="events lacks the column colour"):
        tables.read(workspace, [first, second], columns=columns | {"unit": "colour"})
    with pytest.raises(InputError, match="events lacks the column day"):
        tables.read(workspace, [first, written(tmp_path / "e.csv", pid=[1], icd=["I10"])], columns=columns)


def test_columns_are_named_apart_in_events_and_static(workspace, tmp_path):
    events = written(tmp_path / "e.csv", pid=["a"], patient=["x"], time=[DAY], code=["I10"])
    static = written(tmp_path / "s.csv", subject=["a"], pid=["other"], sex=["F"])
    columns = {"events.patient": "pid", "static.patient": "subject"}
    records = tables.read(workspace, events, static, columns=columns)
    assert rows(records.events, "patient") == [("a",)]
    assert rows(records.persons, "patient", "sex", "pid") == [("a", "female", "other")]
    both = {"patient": "pid", "static.patient": "subject"}
    assert rows(tables.read(workspace, events, static, columns=both).persons, "patient") == [("a",)]
    for wrong, message in (
        ({"static.patient": "nobody"}, "static lacks the column nobody"),
        ({"static.code": "x"}, "no column static.code"),
        ({"events.birth": "x"}, "no column events.birth"),
    ):
        with pytest.raises(InputError, match=message):
            tables.read(workspace, events, static, columns={"events.patient": "pid"} | wrong)
    with pytest.raises(InputError, match="static table"):
        tables.read(workspace, events, columns={"static.patient": "subject"})


def test_the_version_of_icd_is_stated_by_row(workspace, tmp_path):
    events = written(
        tmp_path / "e.csv",
        patient=[1] * 6,
        time=[DAY] * 6,
        code=["4280", "I509", "3893", "02HV33Z", "x", "y"],
        kind=["dx", "dx", "px", "px", "dx", "dx"],
        version=["9", "10.0", "ICD-9", "10", None, "11"],
    )
    expected = {
        "4280": "ICD9CM",
        "I509": "ICD10CM",
        "3893": "ICD9Proc",
        "02HV33Z": "ICD10PCS",
        "x": "local",
        "y": "local",
    }
    records = tables.read(workspace, events, columns={"icd_version": "version"}, vocabulary="local")
    assert dict(rows(records.events, "code", "vocabulary")) == expected
    records = tables.read(workspace, events, columns={"vocabulary": "version"}, vocabulary="local")
    assert dict(rows(records.events, "code", "vocabulary")) == expected | {"3893": "ICD-9"}


def test_fields_with_several_codes_are_split_when_told_to(workspace, tmp_path):
    events = written(
        tmp_path / "e.csv", patient=[1, 2, 3], time=[DAY] * 3, code=["401.9, I10;E11.9,", " ", "V58.61"]
    )
    whole = tables.read(workspace, events)
    assert ("401.9, I10;E11.9,",) in rows(whole.events, "code")
    records = tables.read(workspace, events, split=",;", vocabulary="ICD")
    assert rows(records.events, "patient", "code", "vocabulary") == [
        ("1", "401.9", "ICD9CM"),
        ("1", "E11.9", "ICD10CM"),
        ("1", "I10", "ICD10CM"),
        ("2", None, None),
        ("3", "V58.61", "ICD9CM"),
    ]


FORMS = {
    "ICD9CM": ("401.9", "4019", "428", "V58.61", "V5861", "E880.9", "E9478"),
    "ICD10CM": ("I10", "E11.9", "E119", "E1165", "U07.1", "V86.99XA", "C7A.00", "Z79.4", "M1A0110"),
    None: ("?", "diabetes"),
}


def test_icd_by_form(workspace):
    codes = pd.DataFrame([(code, name) for name, listed in FORMS.items() for code in listed])
    import ibis

    table = ibis.memtable(codes.set_axis(["code", "name"], axis=1))
    found = workspace.con.to_pyarrow(
        table.select("code", "name", found=coding.icd_by_form(table.code, ibis.literal("diagnosis")))
    )
    assert [(row["code"], row["found"]) for row in found.to_pylist() if row["found"] != row["name"]] == []


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(10_000_000, 99_999_999_999), min_size=1, max_size=20))
def test_ndc_codes_do_not_depend_on_leading_zeros(numbers):
    import ibis

    with_zeros = [f"{number:011d}" for number in numbers]
    hyphenated = [f"{code[:5].removeprefix('0')}-{code[5:9]}-{code[9:]}" for code in with_zeros]
    spelt = pd.DataFrame({"a": with_zeros, "b": [str(n) for n in numbers], "c": [f"{n}.0" for n in numbers]})
    table = ibis.memtable(spelt.assign(d=hyphenated))
    found = table.select(**{name: coding.normalise_ndc(table[name]) for name in "abcd"}).to_pandas()
    for name in "abcd":
        assert found[name].tolist() == with_zeros


def test_values_become_measurements_when_requested(workspace, tmp_path):
    events = written(
        tmp_path / "e.csv",
        patient=[1, 1],
        time=[DAY] * 2,
        code=["glucose", "I10"],
        kind=["lab", "dx"],
        value=[180, None],
        unit=["mg/dL", None],
        low=[70, None],
        high=[105, None],
        flag=["H", None],
    )
    records = tables.read(workspace, events, kinds=("diagnosis", "measurement"))
    assert rows(records.events, "code", "kind") == [("I10", "diagnosis")]
    assert records.measurements.columns == MEASUREMENTS
    assert rows(records.measurements) == [
        ("1", datetime(2020, 1, 5), None, "glucose", None, 180.0, "mg/dL", 70.0, 105.0, "H")
    ]
    assert tables.read(workspace, events).measurements is None


def test_a_bad_date_of_birth_among_many_is_missing_and_counted(workspace, tmp_path):
    events = written(tmp_path / "e.csv", patient=range(100), time=[DAY] * 100, code=["I10"] * 100)
    births = ["1950-01-01"] * 99 + ["1950-02-30"]
    static = written(tmp_path / "s.csv", patient=range(100), birth=births)
    records = tables.read(workspace, events, static, kind="diagnosis")
    assert records.notes == ("Column birth of static has 1 value that is not a date, counted as missing.",)
    assert dict(rows(records.persons, "patient", "birth"))["99"] is None
    assert dict(rows(records.persons, "patient", "birth"))["98"] == date(1950, 1, 1)
    wrong = written(tmp_path / "w.csv", patient=range(100), birth=["01.01.1950"] * 10 + births[10:])
    with pytest.raises(InputError, match="11 values that are not dates"):
        tables.read(workspace, events, wrong)


def test_a_long_list_of_columns_says_that_it_stops(workspace, tmp_path):
    many = {f"c{number}": [1] for number in range(45)}
    with pytest.raises(InputError, match="c39 and 5 more"):
        tables.read(workspace, written(tmp_path / "e.csv", **many))
    assert typed_tables.listed_names(["a", "b"]) == "a, b"
