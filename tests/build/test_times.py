"""Times as they come: durations, times from zero and ranks, visits of some hours, the first part of a history,
several index times a patient."""

from datetime import date

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helpers.records import event, person, records
from phenotaste import Cohort, build
from phenotaste.build import durations, window_figure
from phenotaste.build.settings import Index, Settings, Static
from phenotaste.build.windows import window
from phenotaste.errors import InputError
from phenotaste.sources import tables
from phenotaste.sources.workspace import Workspace

UNITS = {"min": "min", "h": "h", "d": "D", "w": "W"}


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


@given(st.integers(0, 50_000), st.sampled_from([*UNITS, "mo"]), st.sampled_from(["", " ", "long", "upper"]))
def test_durations_are_read_as_they_are_written(number, unit, style):
    length = durations.Duration(number, unit)
    if length.minutes > 1200 * 31 * 24 * 60:
        assert durations.parse(length.text()) is None
        return
    text = {"long": str(length), "upper": length.text().upper()}.get(style, f"{number}{style}{unit}")
    assert durations.parse(text) == length
    assert durations.normalised(text) == length.text()


@pytest.mark.parametrize("text", ["", "h", "-1h", "1.5h", "1 fortnight", "٣h", None, True, 1.0, -1])
def test_what_is_no_duration(text):
    assert durations.parse(text) is None
    assert durations.normalised(text) is text


@given(
    st.datetimes(pd.Timestamp("1990-01-01"), pd.Timestamp("2030-01-01")),
    st.integers(1, 400),
    st.sampled_from(list(UNITS)),
    st.integers(0, 400),
    st.sampled_from(list(UNITS)),
)
def test_windows_are_those_of_pandas(moment, length, unit, gap, gap_unit):
    index = Index(window=f"{length}{unit}", gap=f"{gap}{gap_unit}")
    start, end = window(np.array([moment], "datetime64[us]"), index)
    expected = pd.Timestamp(moment) - pd.Timedelta(gap, UNITS[gap_unit])
    assert pd.Timestamp(end[0]) == expected
    assert pd.Timestamp(start[0]) == expected - pd.Timedelta(length, UNITS[unit])


def written(path, rows, *names):
    pd.DataFrame(rows, columns=names).to_csv(path, index=False)
    return path


def from_minutes(workspace, tmp_path, rows, settings=None, unit="minutes", static=None, **options):
    events = written(tmp_path / "E.csv", rows, "patient", "time", "code")
    read = tables.read(workspace, events, static, time_unit=unit, vocabulary="X", **options)
    return build.cohort(workspace, read, settings or Settings())


@pytest.mark.parametrize(("unit", "per_day"), [("minutes", 1440), ("hours", 24), ("days", 1)])
def test_times_from_zero_stay_numbers_in_their_unit(workspace, tmp_path, unit, per_day):
    rows = [
        ("a", -0.5, "x"),
        ("a", 0, "x"),
        ("a", per_day - 0.25, "y"),
        ("a", per_day, "x"),
        ("b", 3.5 * per_day, "x"),
    ]
    cohort = from_minutes(workspace, tmp_path, rows, unit=unit).cohort
    # A day is 24 hours from zero, and one before it.
    assert cohort.visit_times.tolist() == [-0.5, 0, per_day, 3.5 * per_day]
    assert cohort.last_times.tolist() == [per_day, 3.5 * per_day]
    assert cohort.origin["time_unit"] == unit
    assert cohort.visits.toarray().tolist() == [[1, 0], [1, 1], [1, 0], [1, 0]]


@hypothesis_settings(max_examples=10)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3000, 9000), st.sampled_from("xyz")), min_size=1),
    st.sampled_from(["30min", "1h", "6h", "12h", "24h", "2d"]),
    st.sampled_from([None, "90min", "48h", "3d"]),
)
def test_visits_of_some_hours_are_those_of_pandas(workspace, tmp_path_factory, rows, visit, first):
    frame = pd.DataFrame(rows, columns=["patient", "time", "code"]).drop_duplicates()
    if first is not None:
        frame = frame[(frame.time >= 0) & (frame.time < durations.parse(first).minutes)]
    index = None if first is None else Index(first=first)
    folder = tmp_path_factory.mktemp("times")
    if not len(frame):
        with pytest.raises(InputError, match="no event is in a window"):
            from_minutes(workspace, folder, rows, Settings(visit=visit, index=index))
        return
    cohort = from_minutes(workspace, folder, rows, Settings(visit=visit, index=index)).cohort
    visits = frame.groupby(["patient", frame.time // durations.parse(visit).minutes])
    assert cohort.visit_times.tolist() == visits.time.min().tolist()
    assert np.repeat(cohort.patient_ids, cohort.visit_counts).tolist() == visits.patient.first().tolist()
    counts = frame.groupby(["patient", frame.time // durations.parse(visit).minutes, "code"]).size()
    assert cohort.visits.toarray().tolist() == counts.unstack(fill_value=0).to_numpy().tolist()
    assert cohort.last_times.tolist() == frame.groupby("patient").time.max().tolist()


def test_ranks_have_an_order_and_no_durations(workspace, tmp_path):
    rows = [("a", 7, "x"), ("a", 20_200_101, "y"), ("a", 7, "y"), ("b", 0, "x")]
    cohort = from_minutes(workspace, tmp_path, rows, unit="order").cohort
    assert cohort.visit_times.tolist() == [7, 20_200_101, 0]
    assert cohort.visit_times.dtype.kind == "i"
    for refused in ({"index": Index(first="48h")}, {"visit": "6h"}, {"visit": "week"}):
        with pytest.raises(InputError, match="times are an order only"):
            from_minutes(workspace, tmp_path, rows, Settings(**refused), unit="order")
    with pytest.raises(InputError, match="column time of events has 1 value that is not an integer"):
        from_minutes(workspace, tmp_path, [*rows, ("b", 1.5, "x")], unit="order")


def test_numbers_without_a_unit_are_refused_with_the_remedy(workspace, tmp_path):
    with pytest.raises(
        InputError, match=r"column time of events has 1 value that is not a time.*unit of times"
    ):
        from_minutes(workspace, tmp_path, [("a", 17, "x")], unit=None)


def test_the_figure_shows_first_parts_and_hours():
    for index, words in (
        (Index(first="48h"), ["first 48 hours", "end of the window"]),
        (Index(window="36h", gap="12h"), ["36 hours", "48 hours before", "12 hours before"]),
        (Index(window="30d", gap="12h"), ["30 days and 12 hours before"]),
    ):
        text = window_figure.windows(Settings(index=index)).decode()
        assert all(word in text for word in words)


def test_dates_are_not_times_from_zero(workspace, tmp_path):
    with pytest.raises(InputError, match="column time of events has 1 value that is not a number"):
        from_minutes(workspace, tmp_path, [("a", "2020-01-01", "x")])
    with pytest.raises(InputError, match="time_unit must be one of minutes"):
        from_minutes(workspace, tmp_path, [("a", 1, "x")], unit="seconds")


def test_static_columns_beside_times_from_zero(workspace, tmp_path):
    columns = ("patient", "birth", "age", "height", "died")
    static = written(
        tmp_path / "S.csv",
        [("a", "1950-01-01", 54, -1, 1), ("b", None, -1, 180, 0), ("c", None, 3, 1, -1)],
        *columns,
    )
    built = from_minutes(
        workspace,
        tmp_path,
        [("a", 1, "x"), ("b", 2, "x"), ("c", 2, "x")],
        Settings(static=Static(age_bands=(18, 60))),
        static=static,
        missing=[-1.0],
        columns={"label": "died"},
    )
    assert any("static birth are ignored" in note for note in built.notes)
    np.testing.assert_array_equal(built.cohort.labels, [1, 0, np.nan])
    names = ["age=<18", "age=18-59", "age=missing", "height=1", "height=180", "height=missing"]
    assert built.cohort.static_names.tolist() == names
    assert built.cohort.static.tolist() == [[0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 1, 0], [1, 0, 0, 1, 0, 0]]
    with pytest.raises(InputError, match="label of the static table has no time"):
        from_minutes(
            workspace, tmp_path, [("a", 1, "x")], Settings(index=Index(codes=("X:x",))), static=static,
            columns={"label": "died"},
        )  # fmt: skip


def test_the_first_hours_begin_with_the_first_event_or_encounter(workspace):
    events = [
        event("a", "2020-01-01 22:00", "x"),
        event("a", "2020-01-02 00:30", "x"),
        event("a", "2020-01-02 20:59", "y"),
        event("a", "2020-01-02 21:00", "z"),  # 24 hours after the encounter began
        event("b", "2020-05-01 10:00", "x"),
        event("b", "2020-05-02 10:00", "z"),
    ]
    visits = [{"patient": "a", "visit": "v", "time": pd.Timestamp("2020-01-01 21:00"), "end_time": None}]
    source = records(workspace, events, [person("a"), person("b")], visits=visits)
    built = build.cohort(workspace, source, Settings(visit="12h", index=Index(first="24h")))
    assert built.cohort.feature_names.tolist() == ["Dx_x [X]", "Dx_y [X]"]
    assert built.cohort.visit_counts.tolist() == [
        2,
        1,
    ]  # counted from the start of the window, not from midnight
    rows = built.patients.to_pylist()
    assert [str(row["window_start"]) for row in rows] == ["2020-01-01 21:00:00", "2020-05-01 10:00:00"]
    assert [row["index_date"] for row in rows] == [row["window_end"] for row in rows]
    days = build.cohort(
        workspace, source, Settings(visit="day", index=Index(first="1d"))
    )  # dates, from midnight
    assert days.cohort.feature_names.tolist() == ["Dx_x [X]"]


def test_labels_of_the_first_hours_need_no_time_and_are_not_in_the_past(workspace, tmp_path):
    source = records(workspace, [event(k, "2020-01-01", "x") for k in "abcd"], [person(k) for k in "abcd"])
    file = written(tmp_path / "labels.csv", [("a", 1), ("b", 0), ("c", None)], "patient", "label")
    built = build.cohort(workspace, source, Settings(index=Index(first="48h", labels=str(file))))
    np.testing.assert_array_equal(built.cohort.labels, [1, 0, np.nan])
    rows = [("a", "2020-01-02 23:59", 1), ("b", "2020-01-03 00:00", 1), ("c", None, 0)]
    file = written(tmp_path / "timed.csv", rows, "patient", "time", "value")
    built = build.cohort(workspace, source, Settings(index=Index(first="48h", labels=str(file))))
    assert built.cohort.patient_ids.tolist() == ["b", "c"]  # a has the outcome before the window ends
    assert "labelled, not before the window ends" in built.attrition["step"].tolist()


def test_the_first_days_are_observed_to_their_end(workspace):
    periods = [
        {"patient": k, "start": date(2020, 1, 1), "end": date(2020, 1, last)}
        for k, last in (("a", 2), ("b", 1))
    ]
    source = records(
        workspace, [event(k, "2020-01-01", "x") for k in "ab"], [person(k) for k in "ab"], periods=periods
    )
    for first in ("2d", "48h"):
        built = build.cohort(workspace, source, Settings(index=Index(first=first)))
        assert built.cohort.patient_ids.tolist() == ["a"]
        assert "observed until the window ends" in built.attrition["step"].tolist()
    built = build.cohort(workspace, source, Settings(index=Index(first="2d", covered=False)))
    assert built.cohort.patient_ids.tolist() == ["a", "b"]


def labelled_source(workspace, *more):
    events = [
        event(k, f"2020-01-0{day} 08:00", code) for k in "ab" for day, code in ((1, "x"), (2, "y"), (3, "z"))
    ]
    events += more
    labels = [
        {"patient": k, "time": pd.Timestamp(time), "value": value}
        for k, time, value in [
            ("a", "2020-01-02 12:00", 0.0), ("a", "2020-01-03 12:00", 1.0), ("a", "2020-01-03 12:00", 0.0),
            ("b", "2020-01-03 08:00", 0.0),
        ]
    ]  # fmt: skip
    facts = [
        {"patient": "a", "time": pd.Timestamp("2020-01-02 13:00"), "name": "smoking", "value": "yes"},
    ]
    return records(
        workspace, events, [person("a", sex="f"), person("b", sex="m")], labels=labels, facts=facts
    )


def test_every_index_time_is_a_row_with_its_own_window_label_and_facts(workspace, tmp_path):
    chosen = Settings(visit="day", index=Index(window="36h", gap="0h", covered=False))
    built = build.cohort(workspace, labelled_source(workspace), chosen)
    cohort = built.cohort
    ids = ["a@2020-01-02T12:00:00.000000", "a@2020-01-03T12:00:00.000000", "b@2020-01-03T08:00:00.000000"]
    assert cohort.patient_ids.tolist() == ids
    assert cohort.groups.tolist() == ["a", "a", "b"]
    assert cohort.labels.tolist() == [0, 1, 0]
    features = [
        "".join(sorted({cohort.feature_names[j][3] for j in part.visits.indices}))
        for part in (cohort[k] for k in range(3))
    ]
    assert features == ["xy", "yz", "y"]  # an event at the index is not in the window
    assert cohort.static_names.tolist() == ["sex=f", "sex=m", "smoking=yes", "smoking=missing"]
    assert cohort.static.tolist() == [[1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert str(cohort.last_times[1]) == "2020-01-03T08:00:00.000000"
    assert built.patients["patient"].to_pylist() == ["a", "a", "b"]
    assert built.patients["row"].to_pylist() == ids
    built.save(tmp_path / "COHORT")
    assert Cohort.load(tmp_path / "COHORT").groups.tolist() == ["a", "a", "b"]
    first = build.cohort(
        workspace, labelled_source(workspace), Settings(visit="day", index=Index(
            window="36h", gap="0h", covered=False, label_rows="first"))
    )  # fmt: skip
    assert (first.cohort.patient_ids.tolist(), first.cohort.groups) == (["a", "b"], None)


def test_minimums_of_patients_do_not_count_rows(workspace):
    source = labelled_source(workspace, event("a", "2020-01-02 09:00", "w"))  # in both windows of one patient
    index = Index(window="36h", gap="0h", covered=False)
    built = build.cohort(workspace, source, Settings(visit="day", index=index))
    counts = np.diff(built.cohort.visits.tocsc().indptr)
    assert dict(zip(built.cohort.feature_names, counts, strict=True))["Dx_w [X]"] == 2
    built = build.cohort(workspace, source, Settings(visit="day", index=index, min_patients=2))
    assert built.cohort.feature_names.tolist() == ["Dx_y [X]"]


def test_history_is_covered_to_the_hour(workspace):
    labels = [{"patient": k, "time": pd.Timestamp("2020-01-03 12:00"), "value": 1.0} for k in "ab"]
    events = [event("a", "2020-01-02 00:00"), event("b", "2020-01-02 00:01")]
    source = records(workspace, events, [person("a"), person("b")], labels=labels)
    built = build.cohort(workspace, source, Settings(index=Index(window="36h", gap="0h")))
    assert built.cohort.patient_ids.tolist() == ["a"]
    both = build.cohort(workspace, source, Settings(index=Index(window="1d", gap="0d")))
    assert both.cohort.patient_ids.tolist() == ["a", "b"]  # dates


def test_washouts_are_in_hours_too(workspace):
    labels = [{"patient": "a", "time": pd.Timestamp("2020-01-03 12:00"), "value": 1.0}]
    events = [
        event("a", "2019-12-01"),
        event("a", "2020-01-03 06:00", "index"),
        event("a", "2020-01-02 13:00"),
    ]
    source = records(workspace, events, [person("a")], labels=labels)
    for washout, kept in (("5h", 1), ("6h", 0)):
        index = Index(("X:index",), window="48h", gap="8h", washout=washout)
        if kept:
            built = build.cohort(workspace, source, Settings(index=index))
            assert len(built.cohort) == kept
            assert "5 hours of history" in " ".join(built.attrition["step"])
        else:
            with pytest.raises(InputError, match="wash-out"):
                build.cohort(workspace, source, Settings(index=index))


def test_a_result_in_several_windows_is_learnt_from_once(workspace):
    people = [f"p{k:02}" for k in range(12)]
    result = {"time": pd.Timestamp("2020-01-01 10:00"), "code": "glucose"}
    measurements = [result | {"patient": k, "value": float(n)} for n, k in enumerate(people)]
    label = {"time": pd.Timestamp("2020-01-01 20:00"), "value": 1.0}
    labels = [label | {"patient": k} for k in people]
    labels += [
        label | {"patient": "p00", "time": pd.Timestamp(f"2020-01-01 2{hour}:00")} for hour in (1, 2, 3)
    ]
    source = records(
        workspace, [], [person(k) for k in people], measurements=measurements, labels=labels
    )  # fmt: skip
    chosen = Settings(kinds=("measurement",), index=Index(window="24h", gap="0h", covered=False))
    built = build.cohort(workspace, source, chosen)
    assert [row.values for row in built.thresholds] == [12]
    assert built.cohort.groups.tolist().count("p00") == 4
