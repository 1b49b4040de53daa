"""Events without an encounter: in the encounter that covers their time, else in the nearest, else by day."""

from datetime import datetime, timedelta

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helpers.records import event, person, records
from phenotaste import build
from phenotaste.build.placement import Placed, intervals, place
from phenotaste.build.settings import Index, Settings
from phenotaste.sources.workspace import Workspace

BEGIN = datetime(2020, 1, 1)
DAY = timedelta(days=1)
TYPES = {"patient": pa.int32(), "encounter": pa.int64(), "visit": pa.int64()}


@pytest.fixture(scope="module")
def workspace():
    with Workspace(threads=1) as opened:
        yield opened


def table(workspace, name, rows, columns):
    arrays = {
        column: pa.array([row[at] for row in rows], TYPES.get(column, pa.timestamp("us")))
        for at, column in enumerate(columns)
    }
    return workspace.ingest(pa.table(arrays).to_reader(), name)


# --- against a search through all encounters ---------------------------------------------------------------


def end_of_day(time):
    midnight = datetime.combine(time.date(), datetime.min.time())
    return time + DAY - timedelta(microseconds=1) if time == midnight else time


def searched(time, encounters, hours):
    """The encounter of a time by comparison with every encounter (number, start, end), and how it was found."""
    until = end_of_day(time)
    covering = [(start, end, number) for number, start, end in encounters if start <= until and end >= time]
    if covering:
        return max(covering, key=lambda one: (one[0], -one[1].timestamp(), one[2]))[2], "covered"
    before = [(time - end, -start.timestamp(), -number) for number, start, end in encounters if end < time]
    after = [(start - until, end.timestamp(), number) for number, start, end in encounters if start > until]
    distances = [
        (min(found)[0], way, abs(min(found)[2])) for way, found in enumerate((before, after)) if found
    ]
    if distances and min(distances)[0] <= timedelta(hours=hours):
        return min(distances)[2], "near"
    return None, "by_day"


moments = st.builds(
    lambda hour, whole: BEGIN + timedelta(hours=hour - hour % 24 if whole else hour),
    st.integers(0, 240),
    st.booleans(),
)
stays = st.builds(
    lambda start, hours: (start, start + timedelta(hours=hours)), moments, st.sampled_from([0, 0, 3, 30, 100])
)


some_stays = {
    "stays": st.lists(st.tuples(st.integers(0, 2), stays), max_size=10),
    "times": st.lists(st.tuples(st.integers(0, 2), moments), min_size=1, max_size=15),
    "hours": st.sampled_from([0, 5, 24]),
}


def check_against_a_search(workspace, stays, times, hours):
    listed = [(patient, number, start, end) for number, (patient, (start, end)) in enumerate(stays, 1)]
    events = table(
        workspace, "some events", [(k, None, t) for k, t in times], ("patient", "encounter", "time")
    )
    visits = table(workspace, "some visits", listed, ("patient", "encounter", "time", "end_time"))
    found, counts = place(workspace, events, intervals(events, visits), hours)
    rows = found.to_pandas().sort_values(["patient", "time"])
    expected = []
    for patient, time in sorted(times):
        own = [(number, start, end_of_day(end)) for k, number, start, end in listed if k == patient]
        expected.append(searched(time, own, hours))
    assert [None if pd.isna(one) else int(one) for one in rows["placed"]] == [one for one, _ in expected]
    ways = [way for _, way in expected]
    assert counts == Placed(0, *(ways.count(way) for way in ("covered", "near", "by_day")))


@hypothesis_settings(max_examples=20, deadline=None)
@given(**some_stays)
def test_each_event_is_placed_as_by_a_search_of_all_encounters(workspace, stays, times, hours):
    check_against_a_search(workspace, stays, times, hours)


@pytest.mark.slow
@hypothesis_settings(max_examples=100, deadline=None)
@given(**some_stays)
def test_more_events_are_placed_as_by_a_search_of_all_encounters(workspace, stays, times, hours):
    check_against_a_search(workspace, stays, times, hours)


# --- whole builds ------------------------------------------------------------------------------------------


def visit(patient, number, start, end=None):
    return {
        "patient": patient,
        "visit": number,
        "time": pd.Timestamp(start),
        "end_time": end and pd.Timestamp(end),
    }


def built(workspace, events, visits=None, **settings):
    people = [person(patient) for patient in sorted({row["patient"] for row in events})]
    others = {} if visits is None else {"visits": visits}
    return build.cohort(workspace, records(workspace, events, people, **others), Settings(**settings))


STAY = [
    event("a", "2020-03-01 10:00", "dx", "stay"),
    event("a", "2020-03-03 09:00", "drug", kind="medication"),  # covered
    event("a", "2020-03-06 20:00", "late", kind="medication"),  # ten hours after the end
    event("a", "2020-03-01", "dated", kind="medication"),  # a date: the day on which the stay begins
    event("a", "2020-05-01", "far", kind="medication"),
]


def test_diagnoses_and_drugs_of_a_stay_are_one_visit(workspace):
    found = built(workspace, STAY, [visit("a", "stay", "2020-03-01 08:00", "2020-03-06 10:00")])
    names = [name.partition(" ")[0] for name in found.cohort.feature_names]
    rows = [sorted(names[j] for j in row.nonzero()[0]) for row in found.cohort.visits.toarray()]
    assert rows == [["Dx_dx", "Rx_dated", "Rx_drug", "Rx_late"], ["Rx_far"]]
    keys = ("events_with_encounter", "events_covered_by_encounter", "events_near_encounter", "events_by_day")
    assert [found.quality[key] for key in keys] == [1, 2, 1, 1]
    note = (
        "1 events have an encounter of their own; 2 were placed in the encounter that covers their time and 1 in the "
        "nearest one within 24 hours; 1 are in no encounter and form visits by day."
    )
    assert note in found.notes
    assert found.cohort.visit_times.astype(str).tolist()[0] == "2020-03-01T00:00:00.000000"


def test_without_listed_encounters_their_events_are_the_intervals(workspace):
    rows = [
        event("a", "2020-03-01 10:00", "one", "stay"),
        event("a", "2020-03-09 10:00", "two", "stay"),
        event("a", "2020-03-05", "lab"),
    ]
    found = built(workspace, rows)
    assert (found.settings.visit, found.cohort.n_visits) == ("encounter", 1)


def test_the_tolerance_is_a_setting(workspace):
    stay = [visit("a", "stay", "2020-03-01 08:00", "2020-03-06 10:00")]
    assert built(workspace, STAY, stay, place_hours=9.0).cohort.n_visits == 3
    assert built(workspace, STAY, stay, place_hours=10.0).cohort.n_visits == 2
    assert built(workspace, STAY, stay, visit="day").quality["events_near_encounter"] is None


def test_units_are_chosen_by_what_is_placed(workspace):
    """Most events lack an encounter: encounters where they are in one, else days."""
    labs = [event("a", f"2020-03-02 {hour:02}:30", f"lab{hour}") for hour in range(8)]
    stay = [visit("a", "stay", "2020-03-01 08:00", "2020-03-06 10:00")]
    assert built(workspace, STAY[:1] + labs, stay).settings.visit == "encounter"
    later = [row | {"time": row["time"] + pd.Timedelta(days=60)} for row in labs]
    assert built(workspace, STAY[:1] + later, stay).settings.visit == "day"


@pytest.mark.parametrize("later", [[], [visit("a", "next", "2020-03-31 02:00", "2020-04-09")]], ids=len)
def test_an_encounter_after_the_window_places_nothing(workspace, later):
    """Two days before the window ends on 31 March are two visits, also where a stay begins two hours after it."""
    rows = [
        event("a", "2020-03-30 08:00", "one"),
        event("a", "2020-03-30 20:00", "two"),
        event("a", "2020-03-02", "dx", "stay"),
    ]
    rows += [event("a", "2020-03-29 23:00", "three")]
    stated = [{"patient": "a", "time": pd.Timestamp("2020-03-31"), "value": 1.0}]
    found = records(
        workspace,
        rows,
        [person("a")],
        labels=stated,
        visits=[visit("a", "stay", "2020-03-01", "2020-03-03"), *later],
    )
    cohort = build.cohort(
        workspace,
        found,
        Settings(visit="encounter", index=Index(gap=0, covered=False), place_hours=30.0),
    ).cohort
    assert cohort.visit_times.astype("M8[h]").astype(str).tolist() == [
        "2020-03-01T00",
        "2020-03-29T23",
        "2020-03-30T08",
    ]
