"""Calendar months, windows and observation periods, against DuckDB and against plain Python."""

from datetime import date, datetime, timedelta
from xml.etree import ElementTree

import ibis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phenotaste.build import window_figure
from phenotaste.build.durations import add_months
from phenotaste.build.settings import Index, Match, Settings
from phenotaste.build.windows import OPEN_END, Periods, inside, known_by_end, window
from phenotaste.sources.workspace import Workspace

days = st.dates(date(1890, 1, 1), date(2120, 12, 31))


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


@pytest.mark.parametrize(
    ("day", "months", "expected"),
    [
        ("2023-08-31", 6, "2023-02-28"),
        ("2024-08-31", 6, "2024-02-29"),
        ("2024-02-29", 12, "2023-02-28"),
        ("2024-02-29", 48, "2020-02-29"),
        ("2024-03-31", 1, "2024-02-29"),
        ("2024-01-15", 1, "2023-12-15"),
        ("1970-01-31", 2, "1969-11-30"),
        ("2024-05-31", 0, "2024-05-31"),
    ],
)
def test_a_month_earlier_is_the_same_day_or_the_last_of_that_month(day, months, expected):
    assert add_months(np.array([day], "datetime64[D]"), -months)[0] == np.datetime64(expected)


def test_a_missing_date_stays_missing():
    assert np.isnat(add_months(np.array(["NaT"], "datetime64[D]"), -6)).all()


@given(st.lists(days, min_size=1, max_size=40), st.integers(0, 400))
def test_months_are_those_of_the_database(workspace, dates, months):
    """Also ends of months and leap days, which every list is given beside its random days."""
    dates = [
        *dates,
        date(2024, 2, 29),
        date(2023, 8, 31),
        date(1900, 3, 1),
        date(2000, 2, 29),
        date(2023, 12, 31),
    ]
    table = ibis.memtable({"n": range(len(dates)), "day": dates}, schema={"n": "int64", "day": "date"})
    earlier = (table.day - ibis.interval(months=months)).cast("date")
    rows = workspace.con.to_pyarrow(table.select("n", earlier=earlier).order_by("n"))
    assert rows["earlier"].to_pylist() == add_months(np.array(dates, "datetime64[D]"), -months).tolist()


@given(days, st.integers(1, 60), st.integers(0, 24))
def test_a_window_ends_no_later_than_its_index_and_has_days(day, length, gap):
    start, end = window(np.array([day], "datetime64[D]"), Index(window=length, gap=gap))
    assert start[0] < end[0] <= np.datetime64(day)


moments = st.datetimes(datetime(2019, 12, 20), datetime(2020, 3, 20)) | st.sampled_from(
    [
        datetime(2020, 1, 1),
        datetime(2020, 1, 1) - timedelta(microseconds=1),
        datetime(2020, 2, 29),
        datetime(2020, 2, 29) - timedelta(microseconds=1),
        datetime(2020, 2, 29, 23, 59, 59, 999999),
        datetime(2020, 2, 9),  # twenty days earlier
        datetime(2020, 2, 9) - timedelta(microseconds=1),
        datetime(2020, 3, 1),
    ]
)


@given(
    st.lists(st.tuples(st.integers(0, 3), moments), min_size=1, max_size=60),
    st.lists(
        st.sampled_from([date(2020, 1, 1), date(2020, 2, 29), date(2020, 3, 1)]), min_size=4, max_size=4
    ),
)
def test_only_records_inside_the_window_are_kept(workspace, rows, ends):
    """The start belongs to the window, the end does not; the last patient has no window at all."""
    events = ibis.memtable(
        {"patient": [p for p, _ in rows], "time": [t for _, t in rows], "n": range(len(rows))},
        schema={"patient": "int32", "time": "timestamp(6)", "n": "int64"},
    )
    start = [end - timedelta(days=20) for end in ends[:3]]
    anchors = ibis.memtable(
        {"row": [0, 1, 2], "patient": [0, 1, 2], "start": start, "end": ends[:3]},
        schema={"row": "int32", "patient": "int32", "start": "date", "end": "date"},
    ).cast({"start": "timestamp(6)", "end": "timestamp(6)"})

    def midnight(day):
        return datetime(day.year, day.month, day.day)

    left = workspace.con.to_pyarrow(inside(events, anchors))
    expected = [n for n, (p, t) in enumerate(rows) if p < 3 and midnight(start[p]) <= t < midnight(ends[p])]
    assert sorted(left["n"].to_pylist()) == expected
    assert left.column_names == ["patient", "time", "n"]
    left = workspace.con.to_pyarrow(known_by_end(events, anchors))
    expected = [n for n, (p, t) in enumerate(rows) if p < 3 and t < midnight(ends[p])]
    assert sorted(left["n"].to_pylist()) == expected


def test_the_first_moment_belongs_to_the_window_and_the_end_does_not(workspace):
    start, end = datetime(2020, 2, 9), datetime(2020, 2, 29)
    tick = timedelta(microseconds=1)
    times = [start - tick, start, end - tick, end]
    events = ibis.memtable(
        {"patient": [0] * 4, "time": times}, schema={"patient": "int32", "time": "timestamp(6)"}
    )
    anchors = ibis.memtable(
        {"row": [0], "patient": [0], "start": [start], "end": [end]},
        schema={"row": "int32", "patient": "int32", "start": "timestamp(6)", "end": "timestamp(6)"},
    )
    left = workspace.con.to_pyarrow(inside(events, anchors))["time"].to_pylist()
    assert sorted(left) == [start, end - tick]


def test_a_fact_without_a_time_was_always_known(workspace):
    facts = ibis.memtable({"patient": [0], "time": [None]}, schema={"patient": "int32", "time": "timestamp"})
    anchors = ibis.memtable(
        {"row": [0], "patient": [0], "end": [datetime(2020, 1, 1)]},
        schema={"row": "int32", "patient": "int32", "end": "timestamp"},
    )
    assert len(workspace.con.to_pyarrow(known_by_end(facts, anchors))) == 1


stretches = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(-2, 15) | st.none()), max_size=25
)


@given(stretches, st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50), st.integers(0, 20)), min_size=1))
def test_a_history_covers_the_union_of_its_periods(rows, questions):
    origin = np.datetime64("2020-01-01")
    covered = {
        (p, day)
        for p, start, length in rows
        for day in range(start, 100 if length is None else start + length + 1)
    }
    patient = np.array([p for p, _, _ in rows], np.int64)
    start = origin + np.array([s for _, s, _ in rows], np.int64)
    end = np.array(["NaT" if n is None else str(origin + s + n) for _, s, n in rows], "datetime64[D]")
    periods = Periods.merged(5, patient, start, end)
    who, first, length = np.array(questions).T
    found = periods.covers(who, origin + first, origin + first + length)
    expected = [all((p, day) in covered for day in range(a, a + n + 1)) for p, a, n in questions]
    assert found.tolist() == expected


def test_adjacent_periods_are_merged_and_a_day_between_separates_them():
    start = np.array(["2020-01-01", "2020-02-01", "2020-01-01", "2020-02-02"], "datetime64[D]")
    end = np.array(["2020-01-31", "2020-02-29"] * 2, "datetime64[D]")
    periods = Periods.merged(2, np.array([0, 0, 1, 1]), start, end)
    assert periods.covers(np.array([0, 1]), start[0], end[1]).tolist() == [True, False]
    assert periods.pointer.tolist() == [0, 1, 3]


def test_a_period_without_a_start_is_ignored_and_one_without_an_end_is_open():
    dates = np.array(["NaT", "2020-01-01"], "datetime64[D]")
    periods = Periods.merged(2, np.array([0, 1]), dates, np.array(["2020-05-05", "NaT"], "datetime64[D]"))
    assert periods.pointer.tolist() == [0, 0, 1]
    assert periods.end.tolist() == [OPEN_END.item()]


@pytest.mark.parametrize("match", [None, Match(ratio=4)])
@pytest.mark.parametrize(
    ("gap", "end"), [(6, "6 months before the index date"), (1, "1 month"), (0, "the index date")]
)
def test_the_figure_is_valid_deterministic_svg_with_a_description(match, gap, end):
    settings = Settings(index=Index(("CCS:108",), gap=gap, washout=12), match=match)
    drawn = window_figure.windows(settings)
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join(root.itertext())
    assert f"in the 24 months that end {end}" in words
    assert drawn == window_figure.windows(settings)
    assert drawn != window_figure.windows(settings, labelled=True)
