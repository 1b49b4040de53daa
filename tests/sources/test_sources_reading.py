"""Reading files: columns found by name and typed, and one sentence, without values, for each way to be wrong."""

import gzip
from datetime import UTC, date, datetime, timedelta, timezone

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phenotaste.errors import InputError
from phenotaste.sources import typed_tables
from phenotaste.sources.workspace import Workspace

SECRET = "secret17"  # stands for anything about a patient: no message may repeat it


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


def loaded(workspace, path, kinds, required=()):
    return typed_tables.load(workspace, path, "claims", kinds, required).to_pyarrow().to_pylist()


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert SECRET not in message
    assert message.endswith(".")
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


@pytest.mark.parametrize(
    "text",
    [
        b"Patient,CODE,Note\n1,4019,x\n",
        b"\xef\xbb\xbfPatient,CODE,Note\r\n1,4019,x\r\n",  # a byte order mark, Windows' line ends
        b'"Patient","CODE","Note"\n"1","4019","a, ""b""\nc"\n',
        b"Patient;CODE;Note\n1;4019;1,5\n",
        b"Patient\tCODE\tNote\n 1 \t4019 \t# no comment\n",
        b"patient,extra,code,\n1,,4019,\n",
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_csv_in_many_spellings(workspace, tmp_path, text, packed):
    file = tmp_path / ("c.csv.gz" if packed else "C.CSV")
    file.write_bytes(gzip.compress(text) if packed else text)
    assert loaded(workspace, file, {"patient": "id", "code": "code"}) == [{"patient": "1", "code": "4019"}]


@pytest.mark.parametrize("name", ["x*", "x?", "x[1]"])
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_path_is_not_a_glob_pattern(workspace, tmp_path, name, ending):
    for number, file in enumerate([tmp_path / (name + ending), tmp_path / f"x1{ending}"]):
        frame = pd.DataFrame({"a": [number]})
        frame.to_csv(file, index=False) if ending == ".csv" else frame.to_parquet(file)
    assert loaded(workspace, tmp_path / (name + ending), {"a": "integer"}) == [{"a": 0}]


def test_several_files_may_differ_in_their_columns(workspace, tmp_path):
    (tmp_path / "1.csv").write_text("b,a\n1,2\n")
    (tmp_path / "2.csv").write_text("a\n3\n")
    files = [tmp_path / "1.csv", tmp_path / "2.csv"]
    rows = loaded(workspace, files, {"a": "integer", "b": "integer"})
    assert sorted(rows, key=lambda row: row["a"]) == [{"a": 2, "b": 1}, {"a": 3, "b": None}]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"", ("is empty", "a.csv")),
        ("a.csv.gz", gzip.compress(b"", mtime=0), ("is empty", "a.csv.gz")),
        ("a.csv", b"\n\n", ("lacks a header",)),
        ("a.csv.gz", b"no gzip", ("could not be read", "complete")),
        (
            "a.csv.gz",
            gzip.compress(b"a,b\n" + f"{SECRET},2\n".encode() * 200_000, mtime=0)[:-300],
            ("could not be read", "complete"),
        ),
        ("a.csv", f"a,b\n{SECRET},2\n{SECRET},2,3\n".encode(), ("is not a valid CSV file",)),
        ("a.csv", f"a,b\n{SECRET},2\n{SECRET}\n".encode(), ("is not a valid CSV file",)),
        ("a.csv", f'a,b\n{SECRET},2\n3,"{SECRET}\n'.encode(), ("is not a valid CSV file",)),
        ("a.csv", f"a,b\n{SECRET},é\n".encode("latin1"), ("is not UTF-8 text",)),
        ("a.csv", "a,é\n1,2\n".encode("latin1"), ("is not UTF-8 text",)),
        ("a.csv", b"a,b,A\n1,2,3\n", ("the column a more than once",)),
        ("a.csv", b"b,c\n1,2\n", ("lacks the column a; its columns are: b, c.",)),
        ("a.parquet", b"", ("is not a valid Parquet file",)),
        ("a.parquet", b"PAR1" + b"x" * 100 + b"PAR1", ("is not a valid Parquet file",)),
        ("a.xlsx", b"x", ("neither all CSV nor all Parquet", "a.xlsx")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_that_cannot_be_read(workspace, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    message = refused(lambda: loaded(workspace, tmp_path / name, {"a": "text"}, ["a"]), *words)
    assert message.startswith("claims ")


def test_rows_that_go_wrong_late_in_a_file(workspace, tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 50_000 + f"1,2,{SECRET}\n")
    refused(lambda: loaded(workspace, tmp_path / "a.csv", {"a": "text"}), "claims is not a valid CSV file")


def test_a_parquet_file_with_a_hole(workspace, tmp_path):
    pq.write_table(
        pa.table({"a": [f"{n}{SECRET}" for n in range(9999)]}), tmp_path / "a.parquet", use_dictionary=False
    )
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[40:4000] = bytes(3960)
    (tmp_path / "a.parquet").write_bytes(content)
    with_dates = {"a": "date"}  # which asks for the values
    refused(lambda: loaded(workspace, tmp_path / "a.parquet", with_dates), "claims ")


def test_missing_files_and_folders(workspace, tmp_path):
    refused(lambda: loaded(workspace, tmp_path / "none.csv", {}), "none.csv does not exist")
    refused(lambda: loaded(workspace, tmp_path, {}), "is a folder")
    refused(
        lambda: typed_tables.list_files(tmp_path, "claims"), "contains no CSV or Parquet file with claims"
    )


@pytest.mark.parametrize(
    ("kind", "bad", "noun"),
    [
        ("date", "2008-02-30", "dates"),
        ("date", "08/16/2008", "dates"),
        ("date", "infinity", "dates"),
        ("time", "2008-01-01 25:00", "times"),
        ("time", "1217", "times"),
        ("number", "1,5", "numbers"),
        ("number", "inf", "numbers"),
        ("integer", "1.5", "integers"),
        ("integer", "x", "integers"),
    ],
)
def test_values_of_the_wrong_kind_are_counted_and_not_quoted(workspace, tmp_path, kind, bad, noun):
    (tmp_path / "a.csv").write_text(f'a\n"{bad}"\n""\n"{bad}"\n"{bad}"\n')
    message = refused(lambda: loaded(workspace, tmp_path / "a.csv", {"a": kind}))
    assert message == f"column a of claims has 3 values that are not {noun}; correct the file."
    assert bad not in message


def test_types_that_cannot_hold_such_values(workspace, tmp_path):
    table = pa.table({"float": [401.9], "list": [[1]], "flag": [True], "day": [date(2020, 1, 1)]})
    pq.write_table(table, tmp_path / "a.parquet")
    for name, kind in [
        ("float", "code"),
        ("list", "text"),
        ("flag", "date"),
        ("day", "id"),
        ("day", "number"),
    ]:
        refused(
            lambda name=name, kind=kind: loaded(workspace, tmp_path / "a.parquet", {name: kind}),
            f"column {name} of claims is of the type",
            "convert it",
        )


def test_numeric_columns_are_converted_back_to_ids(workspace, tmp_path):
    ids = pd.DataFrame({"a": [9007199254740993, 12]}, dtype="Int64")
    floats = pd.DataFrame({"a": [12.0, None], "b": ["x", "y"]})
    floats.to_csv(tmp_path / "a.csv", index=False)
    floats.to_parquet(tmp_path / "a.parquet")
    ids.to_csv(tmp_path / "b.csv", index=False)
    for name in ("a.csv", "a.parquet"):
        assert {row["a"] for row in loaded(workspace, tmp_path / name, {"a": "id"})} == {"12", None}
        assert {row["a"] for row in loaded(workspace, tmp_path / name, {"a": "integer"})} == {12, None}
    assert [row["a"] for row in loaded(workspace, tmp_path / "b.csv", {"a": "integer"})] == [
        9007199254740993,
        12,
    ]
    (tmp_path / "c.csv").write_text("a\n250.0\n")  # a code of ICD, and no number
    assert loaded(workspace, tmp_path / "c.csv", {"a": "code"}) == [{"a": "250.0"}]


def test_a_column_without_any_value_has_no_type(workspace, tmp_path):
    pq.write_table(pa.table({name: pa.nulls(2) for name in typed_tables.TYPE_NAMES}), tmp_path / "a.parquet")
    kinds = {name: name for name in typed_tables.TYPE_NAMES}
    table = typed_tables.load(workspace, tmp_path / "a.parquet", "claims", kinds, kinds)
    assert table.to_pyarrow().to_pylist() == [dict.fromkeys(kinds)] * 2
    assert table.date.type().is_date()
    assert table.time.type().is_timestamp()


SPELLINGS = (
    "%Y-%m-%d",
    "%Y%m%d",
    "%Y/%m/%d",
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%SZ",
)


@given(
    moments=st.lists(
        st.tuples(
            st.datetimes(datetime(1900, 1, 2), datetime(2100, 1, 1)),
            st.sampled_from(SPELLINGS),
            st.integers(-14 * 4, 14 * 4),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_dates_and_times_in_any_iso_spelling_come_out_in_utc(workspace, tmp_path_factory, moments):
    texts, expected = [], []
    for moment, spelling, quarters in moments:
        text = moment.strftime(spelling)
        plain = datetime.strptime(text.removesuffix("Z"), spelling.removesuffix("Z"))
        if "%H" in spelling and not text.endswith("Z"):  # a zone, in quarters of an hour
            zone = timezone(timedelta(minutes=15 * quarters))
            text = f"{text}{'-' if quarters < 0 else '+'}{abs(quarters) // 4:02}:{abs(quarters) % 4 * 15:02}"
            plain = plain.replace(tzinfo=zone).astimezone(UTC).replace(tzinfo=None)
        texts.append(text)
        expected.append(plain)
    file = tmp_path_factory.mktemp("dates") / "a.csv"
    file.write_text("\n".join(["day,time", *(f"{text},{text}" for text in texts)]))
    rows = loaded(workspace, file, {"day": "date", "time": "time"})
    assert sorted(row["time"] for row in rows) == sorted(expected)
    assert sorted(row["day"] for row in rows) == sorted(moment.date() for moment in expected)


def test_times_of_parquet_in_whatever_type(workspace, tmp_path):
    moment = datetime(2020, 5, 17, 3, 30)
    table = pa.table(
        {
            "second": pa.array([moment], pa.timestamp("s")),
            "nano": pa.array([moment], pa.timestamp("ns")),
            "zoned": pa.array([moment], pa.timestamp("us", "America/New_York")),
            "day": pa.array([moment.date()]),
            "number": [20200517],
            "float": [20200517.0],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (row,) = loaded(workspace, tmp_path / "a.parquet", dict.fromkeys(table.column_names, "time"))
    assert {row[name] for name in ("second", "nano", "zoned")} == {moment}
    assert {row[name] for name in ("day", "number", "float")} == {datetime(2020, 5, 17)}
