"""The time of the last record used of each patient, which exports carry: no used record is later."""

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from helpers.records import event, person, records
from phenotaste import TASTE, build
from phenotaste.build.settings import Index, Settings, Static
from phenotaste.ecosystem import Rule, write_meds_labels, write_omop_cohort
from phenotaste.errors import InputError
from phenotaste.sources.workspace import Workspace

HOURS = st.integers(0, 24 * 90)
BEGIN = pd.Timestamp("2020-01-01")


@pytest.fixture(scope="module")
def workspace():
    with Workspace() as opened:
        yield opened


rows = st.lists(
    st.tuples(
        st.integers(1, 4), HOURS, st.sampled_from(["a", "b", None]), st.sampled_from(["401", "250", "rare"])
    ),
    min_size=1,
    max_size=30,
)
facts = st.lists(st.tuples(st.integers(1, 4), HOURS), max_size=5)


def fact(patient, hour):
    return {
        "patient": str(patient),
        "time": BEGIN + pd.Timedelta(hours=hour),
        "name": "housing",
        "value": "yes",
    }


@hypothesis_settings(max_examples=10, deadline=None)
@given(
    rows=rows,
    facts=facts,
    visit=st.sampled_from(["encounter", "day", "month"]),
    labelled=st.booleans(),
    static=st.sampled_from([None, ("sex",)]),
)
def test_no_record_used_is_later(workspace, rows, facts, visit, labelled, static):
    """Recomputed from the rows; the windows of the labels end after 60 days."""
    end = BEGIN + pd.Timedelta(days=60)
    events = [event(str(k), BEGIN + pd.Timedelta(hours=h), code, v) for k, h, v, code in rows]
    stated = [{"patient": str(k), "time": end, "value": 1.0} for k in range(1, 5)]
    read = records(
        workspace,
        events,
        [person(str(k), sex="f") for k in range(1, 5)],
        facts=[fact(*row) for row in facts],
        **({"labels": stated} if labelled else {}),
    )
    index = Index(gap=0, covered=False) if labelled else None
    try:
        cohort = build.cohort(
            workspace, read, Settings(visit=visit, index=index, static=Static(static))
        ).cohort
    except InputError:
        assert labelled  # no event in the window
        return
    times = pd.DataFrame([(row["patient"], row["time"]) for row in events], columns=["patient", "time"])
    if static is None:
        used = [(row["patient"], row["time"]) for row in (fact(*pair) for pair in facts)]
        used = pd.DataFrame(used, columns=["patient", "time"])
        times = pd.concat([times, used[used["patient"].isin(times["patient"])]])
    if labelled:
        times = times[times["time"] < end]
    expected = times.groupby("patient")["time"].max()
    assert cohort.last_times.tolist() == [expected[p].to_pydatetime() for p in cohort.patient_ids]


def test_exports_carry_the_last_event_of_a_stay(workspace, tmp_path):
    """A stay of five days: both dates are its last event, not its beginning."""
    events = [
        event(str(k), f"2020-03-0{day} 10:00", code, "stay")
        for k in range(20, 50)
        for day, code in ((1, "401"), (6, "250"))
    ]
    visits = [
        {"patient": str(k), "visit": "stay", "time": pd.Timestamp("2020-03-01 08:00")} for k in range(20, 50)
    ]
    read = records(workspace, events, [person(str(k)) for k in range(20, 50)], visits=visits)
    cohort = build.cohort(workspace, read, Settings()).cohort
    assert set(cohort.visit_times.astype(str)) == {"2020-03-01T08:00:00.000000"}
    model = TASTE(1, n_init=1, init="random", random_state=0, max_iter=3).fit(cohort)
    write_meds_labels(model, cohort, tmp_path / "labels", Rule("score", 1e-9))
    times = pq.read_table(tmp_path / "labels" / "phenotype_1.parquet")["prediction_time"].to_pylist()
    assert {str(time) for time in times} == {"2020-03-06 10:00:00"}
    write_omop_cohort(model, cohort[3:], tmp_path / "omop", Rule("score", 1e-9))
    found = pd.read_csv(tmp_path / "omop" / "cohort.csv")
    assert set(found["cohort_start_date"]) == {"2020-03-01"}
    assert set(found["cohort_end_date"]) == {"2020-03-06"}
    cohort.save(tmp_path / "saved")
    again = type(cohort).load(tmp_path / "saved")
    np.testing.assert_array_equal(again.last_times, cohort.last_times)
    again.last_times = None  # as saved by an earlier version
    with pytest.raises(InputError, match="build the cohort again"):
        write_meds_labels(model, again, tmp_path / "old")
