"""EHRData objects of the real package, read as cohorts."""

from types import SimpleNamespace

import dask.array
import ehrdata
import numpy as np
import pandas as pd
import pytest
import sparse
from hypothesis import given
from hypothesis import strategies as st

from helpers import cohorts
from phenotaste import TASTE, Cohort, ecosystem
from phenotaste.errors import InputError

KINDS = {
    "array": lambda tensor: tensor,
    "float32": lambda tensor: tensor.astype(np.float32),
    "objects": lambda tensor: tensor.astype(object),
    "sparse, missing left out": lambda tensor: sparse.COO.from_numpy(tensor, fill_value=np.nan),
    "sparse, zeros left out": lambda tensor: sparse.COO.from_numpy(tensor),
    "dask": lambda tensor: dask.array.from_array(tensor, chunks=2),
}


def spread(cohort, rng):
    """The cohort as patients × variables × time, each visit at a time of its own, and which these are.

    What is zero within a visit is recorded or missing, as it happens, but something of each visit is recorded.
    """
    counts = cohort.visit_counts
    tensor = np.full((len(cohort), cohort.n_features, counts.max(initial=0) + 3), np.nan)
    times = []
    for k, count in enumerate(counts):
        chosen = np.sort(rng.choice(tensor.shape[2], count, replace=False))
        rows = cohort.visits[cohort.offsets[k] : cohort.offsets[k + 1]].toarray()
        rows[(rows == 0) & (rng.random(rows.shape) < 0.5)] = np.nan
        rows[np.isnan(rows).all(axis=1), 0] = 0
        tensor[k][:, chosen] = rows.T
        times.append(chosen)
    return tensor, np.concatenate(times)


def lately(tensor, obs, var, tem):
    """How ehrdata 0.5 keeps a tensor, also a sparse one: as X. It asks for Python 3.12, so here is its shape alone."""
    names = {"obs_names": obs.index, "var_names": var.index}
    return SimpleNamespace(X=tensor, layers={}, obs=obs, var=var, tem=tem, **names)


def edata_of(tensor, obs=None, tem=None):
    K, J, T = tensor.shape
    obs = pd.DataFrame(index=[f"p{k}" for k in range(K)]) if obs is None else obs
    tem = pd.DataFrame({"step": np.arange(T)}) if tem is None else tem
    if isinstance(tensor, sparse.COO):
        return lately(tensor, obs, pd.DataFrame(index=[f"code {j}" for j in range(J)]), tem)
    return ehrdata.EHRData(
        R=tensor, obs=obs, var=pd.DataFrame(index=[f"code {j}" for j in range(J)]), tem=tem
    )


@pytest.fixture
def three():
    """Two patients, two variables, three times; nothing is recorded of the first at the second time."""
    nan = np.nan
    tensor = np.array([[[1, nan, 0], [nan, nan, 3]], [[0, 2, nan], [0, nan, 4]]])
    obs = pd.DataFrame(
        {
            "person": [30, 10],
            "sex": pd.Categorical(["f", "m"]),
            "smoker": [1.0, 0.0],
            "seen": [np.nan, 1.0],
            "start": pd.to_datetime(["2020-01-01", "2021-06-30"]),
        },
        index=["a", "b"],
    )
    tem = pd.DataFrame(
        {
            "hours": pd.to_timedelta([0, 12, 36], "h"),
            "day": pd.to_datetime(["2020-01-01", "2020-02-01", "2020-03-01"]),
            "days": [0.0, 0.5, 7.0],
            "words": ["first", "second", "third"],
        }
    )
    return edata_of(tensor, obs, tem)


@given(
    st.integers(0, 10_000),
    st.integers(1, 6),
    st.sampled_from([(0, 3), (1, 6)]),
    st.sampled_from(sorted(KINDS)),
)
def test_a_cohort_on_a_time_grid_round_trips(seed, n_patients, visits, kind):
    cohort = cohorts.cohort(seed, n_patients=n_patients, n_static=0, visits=visits)
    tensor, times = spread(cohort, np.random.default_rng(seed))
    found = ecosystem.from_ehrdata(edata_of(KINDS[kind](tensor)))
    np.testing.assert_array_equal(found.offsets, cohort.offsets)
    np.testing.assert_array_equal(found.visits.toarray(), cohort.visits.toarray())
    np.testing.assert_array_equal(found.visit_times, times)
    assert list(found.patient_ids) == [f"p{k}" for k in range(n_patients)]
    assert list(found.feature_names) == [f"code {j}" for j in range(cohort.n_features)]


def test_nan_is_no_visit_and_a_recorded_zero_is_one(three):
    found = ecosystem.from_ehrdata(three)
    np.testing.assert_array_equal(found.offsets, [0, 2, 5])
    np.testing.assert_array_equal(found.visits.toarray(), [[1, 0], [0, 3], [0, 0], [2, 0], [0, 4]])
    np.testing.assert_array_equal(found.visit_times, [0, 2, 0, 1, 2])


def test_a_slice_in_time_is_cut(three):
    found = ecosystem.from_ehrdata(three[:, :, 1:])
    np.testing.assert_array_equal(found.visits.toarray(), [[0, 3], [2, 0], [0, 4]])
    np.testing.assert_array_equal(ecosystem.from_ehrdata(three[1:, ["code 1"]]).visits.toarray(), [[0], [4]])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_recorded_values_count_one_each(kind):
    edata = edata_of(KINDS[kind](np.array([[[-5.0, np.nan, 0.0], [np.nan, np.nan, 7.0]]])))
    found = ecosystem.from_ehrdata(edata, values="recorded")
    np.testing.assert_array_equal(found.visits.toarray(), [[1, 0], [1, 1]])
    with pytest.raises(InputError, match="'code 0' is negative"):
        ecosystem.from_ehrdata(edata)


def test_ids_static_features_and_labels_are_columns_of_obs(three):
    found = ecosystem.from_ehrdata(three, patient="person", static=["sex", "smoker"], labels="seen")
    assert found.patient_ids.tolist() == [30, 10]
    assert found.patient_ids.dtype == np.int64
    assert found.static_names.tolist() == ["sex=f", "sex=m", "smoker"]
    np.testing.assert_array_equal(found.static, [[1, 0, 1], [0, 1, 0]])
    np.testing.assert_array_equal(found.labels, [np.nan, 1])
    assert ecosystem.from_ehrdata(three).static is None


def test_times_come_from_tem_and_from_each_patients_start(three):
    assert ecosystem.from_ehrdata(three, time="hours").visit_times.tolist() == [0, 1.5, 0, 0.5, 1.5]
    days = ecosystem.from_ehrdata(three, time="day").visit_times.astype("M8[D]").astype(str)
    assert days.tolist() == ["2020-01-01", "2020-03-01", "2020-01-01", "2020-02-01", "2020-03-01"]
    for time, expected in (
        ("hours", ["2020-01-01T00", "2020-01-02T12", "2021-06-30T00", "2021-06-30T12", "2021-07-01T12"]),
        ("days", ["2020-01-01T00", "2020-01-08T00", "2021-06-30T00", "2021-06-30T12", "2021-07-07T00"]),
        (None, ["2020-01-01T00", "2020-01-03T00", "2021-06-30T00", "2021-07-01T00", "2021-07-02T00"]),
    ):
        found = ecosystem.from_ehrdata(three, time=time, start="start").visit_times
        assert found.astype("M8[h]").astype(str).tolist() == expected


@pytest.mark.parametrize("times", [[0, 2, 5], ["2020-01-01", "2020-03-01", "2021-05-01T12:00"]])
def test_long_tables_give_the_same_cohort_as_ehrdata(times):
    """Its patients are listed as they come, so they come in order here."""
    table = pd.DataFrame(
        {
            "observation_id": ["a", "a", "a", "b", "b"],
            "variable": ["x", "y", "x", "x", "y"],
            "time": [times[i] for i in (0, 0, 2, 1, 1)],
            "value": [1.0, 2.0, 3.0, 4.0, 5.0],
        }
    )
    found = ecosystem.from_ehrdata(ehrdata.io.from_pandas(table, format="long"), time="index")
    expected = Cohort.from_events(
        table, patient="observation_id", time="time", feature="variable", value="value"
    )
    np.testing.assert_array_equal(found.visits.toarray(), expected.visits.toarray())
    for name in ("offsets", "patient_ids", "feature_names", "visit_times"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_one_of_several_layers_and_x_itself(three):
    three.layers["doubled"] = three.R * 2
    with pytest.raises(InputError, match=r"more than one layer .*\(doubled, R_layer\)|\(R_layer, doubled\)"):
        ecosystem.from_ehrdata(three)
    plain = ecosystem.from_ehrdata(three, layer="R").visits.toarray()
    np.testing.assert_array_equal(ecosystem.from_ehrdata(three, layer="R_layer").visits.toarray(), plain)
    np.testing.assert_array_equal(ecosystem.from_ehrdata(three, layer="doubled").visits.toarray(), 2 * plain)
    newer = lately(three.R, three.obs, three.var, three.tem)
    np.testing.assert_array_equal(ecosystem.from_ehrdata(newer).visits.toarray(), plain)


def with_text(edata):
    tensor = edata.R.astype(object)
    tensor[0, 0, 0] = "secret"
    return edata_of(tensor, edata.obs, edata.tem)


@pytest.mark.parametrize(
    ("change", "asked", "words"),
    [
        (lambda e: 5, {}, "not int"),
        (lambda e: ehrdata.EHRData(np.eye(2)), {}, "no layer"),
        (lambda e: e, {"layer": "other"}, "no layer 'other'"),
        (lambda e: e, {"values": "mean"}, "choose 'given' or 'recorded'"),
        (with_text, {}, "not numbers"),
        (lambda e: e, {"static": "sex"}, "a single string"),
        (lambda e: e, {"static": ["weight"]}, "no column 'weight'"),
        (lambda e: e, {"static": ["start"]}, "contains dates"),
        (lambda e: e, {"patient": "weight"}, "no column 'weight'"),
        (lambda e: e, {"labels": "weight"}, "no column 'weight'"),
        (lambda e: e, {"time": "weight"}, "tem has no column 'weight'"),
        (lambda e: e, {"time": "words"}, "numbers, durations or dates"),
        (lambda e: e, {"start": "person"}, "start must be a column of obs with dates"),
        (lambda e: e, {"start": "start", "time": "day"}, "start must be a column of obs with dates"),
    ],
)
def test_errors_name_the_remedy_and_quote_no_value(three, change, asked, words):
    with pytest.raises(InputError, match=words) as refusal:
        ecosystem.from_ehrdata(change(three), **asked)
    assert "secret" not in str(refusal.value)
    assert str(refusal.value).endswith(".")


def test_a_layer_that_was_not_cut_with_the_times_is_refused(three):
    three.layers["doubled"] = three.R * 2
    with pytest.raises(InputError, match="slice both"):
        ecosystem.from_ehrdata(three[:, :, 1:], layer="doubled")


def test_what_was_read_can_be_fitted(three):
    found = ecosystem.from_ehrdata(three, static=["sex"])
    assert TASTE(rank=1, n_init=1, random_state=0).fit_transform(found).shape == (2, 1)
