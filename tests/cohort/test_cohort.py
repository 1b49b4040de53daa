"""Cohort: what it accepts, what it refuses and in which words, choosing patients, tables, files."""

import json
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from phenotaste.cohort import Cohort, PatientIndexError, checks
from phenotaste.errors import InputError
from phenotaste.storage import tensors

SECRET = "id-4711"
OPTIONAL = ("static", "visit_times", "last_times", "feature_names", "static_names", "labels", "groups")


def parts(**changes):
    """Three patients with 2, 0 and 1 visits."""
    given = {
        "visits": np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0], [3.0, 0.0, 0.0]]),
        "offsets": [0, 2, 2, 3],
        "static": np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]),
        "patient_ids": ["a", SECRET, "c"],
        "visit_times": np.array(["2020-01-01", "2020-02-01", "2019-01-01"], "M8[D]"),
        "feature_names": ["flu", "gout", "cough"],
        "static_names": ["male", "old"],
        "labels": [1, 0, np.nan],
        "last_times": np.array(["2020-02-09", "NaT", "2019-01-01"], "M8[D]"),
        "groups": ["p", SECRET, "p"],
    }
    return given | changes


def cohort(**changes):
    return Cohort(**parts(**changes))


def assert_same(one, two):
    assert one.shape == two.shape
    assert one.allow_negative == two.allow_negative
    np.testing.assert_array_equal(one.visits.toarray(), two.visits.toarray())
    assert one.visits.dtype == two.visits.dtype
    for name in ("offsets", "patient_ids", *OPTIONAL):
        mine, theirs = getattr(one, name), getattr(two, name)
        if mine is None or theirs is None:
            assert mine is theirs, name
        else:
            np.testing.assert_array_equal(mine, theirs, err_msg=name)
            assert mine.dtype.kind == theirs.dtype.kind, name


def sentence_of(action, *args, **kwargs):
    with pytest.raises(InputError) as caught:
        action(*args, **kwargs)
    sentence = str(caught.value)
    assert SECRET not in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@st.composite
def cohorts(draw):
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    K, n, J = len(counts), sum(counts), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    visits = rng.poisson(0.7, (n, J)).astype(draw(st.sampled_from(["f4", "f8"])))
    optional = {
        "static": rng.random((K, 3)),
        "patient_ids": draw(
            st.lists(st.text(max_size=3), min_size=K, max_size=K, unique_by=lambda t: t.strip("\0"))
        ),
        "visit_times": np.arange(n).astype(draw(st.sampled_from(["i8", "f8", "M8[D]", "M8[us]"]))),
        "feature_names": [f"f{j}" for j in range(J)],
        "labels": rng.integers(0, 2, K),
        "groups": rng.integers(0, 3, K),
    }
    chosen = {name: value for name, value in optional.items() if draw(st.booleans())}
    if "static" in chosen and draw(st.booleans()):
        chosen["static_names"] = ["x", "y", "z"]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if "visit_times" in chosen and draw(st.booleans()):
        chosen["last_times"] = (offsets[1:] + 1).astype(chosen["visit_times"].dtype)
    return Cohort(visits, offsets, **chosen)


quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# --- what it accepts -------------------------------------------------------------------------------------


def test_sizes_and_names():
    c = cohort()
    assert (len(c), c.shape, c.n_patients, c.n_visits, c.n_features, c.n_static) == (3, (3, 3), 3, 3, 3, 2)
    assert c.visit_counts.tolist() == [2, 0, 1]
    assert _num_samples(c) == 3
    assert repr(c) == "Cohort(3 patients, 3 visits, 3 features, 2 static features)"
    assert c.feature_names.tolist() == ["flu", "gout", "cough"]


def test_defaults_of_omitted_arguments():
    c = Cohort([[1, 2]], [0, 1])
    assert c.patient_ids.tolist() == [0]
    assert all(getattr(c, name) is None for name in OPTIONAL)
    assert (c.n_static, c.allow_negative) == (0, False)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("family", [sp.csr_array, sp.csr_matrix])
def test_every_sparse_format_is_the_same_cohort(form, family):
    c = cohort(visits=family(parts()["visits"]).asformat(form))
    assert isinstance(c.visits, sp.csr_array)
    assert_same(c, cohort())


@pytest.mark.parametrize(
    ("dtype", "kept"), [("f4", "f4"), ("f8", "f8"), ("i8", "f8"), ("u1", "f8"), ("?", "f8"), ("f2", "f8")]
)
@pytest.mark.parametrize("sparse", [True, False])
def test_float32_is_kept_and_the_rest_is_float64(dtype, kept, sparse):
    visits = np.array([[1, 0], [0, 1]], dtype)
    if sparse and dtype == "f2":
        return  # scipy has no such matrix
    c = Cohort(sp.csr_array(visits) if sparse else visits, [0, 2])
    assert c.visits.dtype == kept
    assert c.visits.indices.dtype == c.visits.indptr.dtype == np.int32
    assert c.visits.toarray().tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("data", "indices", "tidy_data", "tidy_indices"),
    [
        ([1, 2], [2, 0], [2, 1], [0, 2]),
        ([1, 2, 3], [2, 0, 2], [2, 4], [0, 2]),
        ([1, 0, 3], [0, 1, 2], [1, 3], [0, 2]),
        ([1, 0, 3, 4], [2, 1, 0, 0], [7, 1], [0, 2]),
    ],
    ids=["unsorted", "repeated", "zero", "all three"],
)
def test_noncanonical_matrices_are_canonicalised_in_a_copy(data, indices, tidy_data, tidy_indices):
    caller = sp.csr_matrix((np.array(data, float), np.array(indices), np.array([0, len(data), len(data)])))
    before = [caller.data.copy(), caller.indices.copy(), caller.indptr.copy()]
    c = Cohort(caller, [0, 2])
    assert c.visits.data.tolist() == tidy_data
    assert c.visits.indices.tolist() == tidy_indices
    assert c.visits.indptr.tolist() == [0, 2, 2]
    for mine, was in zip([caller.data, caller.indices, caller.indptr], before, strict=True):
        np.testing.assert_array_equal(mine, was)


@pytest.mark.parametrize("row", range(6))
@pytest.mark.parametrize("fault", ["unsorted", "zero"])
def test_noncanonical_entries_are_detected_anywhere(row, fault, monkeypatch):
    monkeypatch.setattr(checks, "ENTRIES_PER_BLOCK", 3)  # several blocks of rows of 1, 2 … 6 entries
    lengths = np.arange(1, 7)
    indices = np.concatenate([np.arange(n) for n in lengths])
    data, bounds = np.ones(len(indices)), np.concatenate([[0], np.cumsum(lengths)])
    assert checks.is_canonical(sp.csr_array((data, indices, bounds), shape=(6, 6)))
    last = bounds[row + 1] - 1
    if fault == "zero":
        data[last] = 0
    elif row > 0:
        indices[last], indices[last - 1] = indices[last - 1], indices[last]
    untidy = fault == "zero" or row > 0
    assert checks.is_canonical(sp.csr_array((data, indices, bounds), shape=(6, 6))) is not untidy


def test_big_arrays_are_shared_not_copied_and_only_the_view_is_read_only():
    visits, static = sp.csr_array(parts()["visits"]), parts()["static"]
    c = cohort(visits=visits, static=static)
    for mine, theirs in [
        (c.visits.data, visits.data),
        (c.visits.indices, visits.indices),
        (c.visits.indptr, visits.indptr),
        (c.static, static),
    ]:
        assert np.shares_memory(mine, theirs)
        assert theirs.flags.writeable


def test_every_array_is_read_only():
    for c in (cohort(), cohort()[[2, 0]], cohort()[:2]):
        arrays = [c.visits.data, c.visits.indices, c.visits.indptr, c.offsets, c.patient_ids]
        for array in arrays + [getattr(c, name) for name in OPTIONAL]:
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[...] = array


def test_a_data_frame_names_the_static_features():
    frame = pd.DataFrame({"age": [0.5, 1.0, 0.2], "male": [True, False, True]})
    c = cohort(static=frame, static_names=None)
    assert c.static_names.tolist() == ["age", "male"]
    np.testing.assert_array_equal(c.static, [[0.5, 1], [1, 0], [0.2, 1]])
    assert c.static.flags.c_contiguous
    assert cohort(static=frame).static_names.tolist() == ["male", "old"]
    assert cohort(static=pd.DataFrame(np.ones((3, 2))), static_names=None).static_names is None


def test_patients_without_any_visit():
    c = Cohort(np.zeros((0, 4)), [0, 0, 0])
    assert c.shape == (2, 4)
    assert c[1].shape == (1, 4)
    assert c.summary().visits_median == 0


def test_negative_values_when_allowed():
    c = Cohort([[-1.0, 2.0]], [0, 1], [[-0.5]], allow_negative=True)
    assert c.visits.toarray().tolist() == [[-1, 2]]
    assert c[0].allow_negative


def test_numpy_does_not_treat_a_cohort_as_a_sequence():
    assert "not one array" in sentence_of(np.asarray, cohort())


def test_importing_is_fast():
    code = (
        "import sys, phenotaste.cohort; "
        "print([m for m in ('pandas', 'pyarrow', 'sklearn', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- what it refuses -------------------------------------------------------------------------------------

nan, inf = np.nan, np.inf
bad_csr = sp.csr_array(parts()["visits"])
bad_csr.indices = np.array([0, 7, 1, 0], np.int32)
negative_csr = sp.csr_array(parts()["visits"])
negative_csr.indices = np.array([0, -1, 1, 0], np.int32)
falling_csr = sp.csr_array(parts()["visits"])
falling_csr.indptr = np.array([0, 3, 2, 4], np.int32)
long_csr = sp.csr_array(parts()["visits"])
long_csr.indptr = np.array([0, 2, 3, 9], np.int32)
bad_csc = sp.csc_array(parts()["visits"])
bad_csc.indices = np.array([0, 7, 1, 0], np.int32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"visits": [[1, 0, 2], [0, nan, 0], [3, 0, 0]]},
            "'gout' is missing (NaN) in a visit of the patient at position 0",
        ),
        (
            {"visits": [[1, 0, 2], [0, 0, 0], [inf, 0, 0]]},
            "'flu' is infinite in a visit of the patient at position 2",
        ),
        (
            {"visits": [[1, 0, -2], [0, 0, 0], [0, 0, 0]]},
            "'cough' is negative in a visit of the patient at position 0",
        ),
        (
            {"visits": [[1, 0, -2], [0, 0, 0], [0, 0, 0]], "feature_names": None},
            "feature at position 2 is negative",
        ),
        ({"visits": [1, 2, 3]}, "visits must have 2 dimension"),
        ({"visits": [[1, 2], [3]]}, "ragged"),
        ({"visits": [["a", "b", "c"]] * 3}, "visits must hold numbers, not str"),
        ({"visits": np.ones((3, 3), complex)}, "visits must hold numbers, not complex128"),
        ({"visits": np.ones((3, 3), object)}, "visits must hold numbers, not object"),
        ({"visits": sp.csr_array(np.ones((3, 3), complex))}, "matrix of numbers"),
        ({"visits": np.zeros((3, 0)), "feature_names": None}, "no columns"),
        ({"visits": bad_csr}, "outside its 3 features"),
        ({"visits": negative_csr}, "outside its 3 features"),
        ({"visits": falling_csr}, "indptr does not match"),
        ({"visits": long_csr}, "indptr does not match"),
        ({"visits": bad_csc}, "not a valid sparse matrix"),
        ({"offsets": [1, 2, 2, 3]}, "start at 0"),
        ({"offsets": [0, 2, 1, 3]}, "decreases at the patient at position 1"),
        ({"offsets": [0, 2, 2, 4]}, "ends at 4 but there are 3 visits"),
        ({"offsets": [0, 2, 2, 2]}, "ends at 2 but there are 3 visits"),
        ({"offsets": [0]}, "no patients"),
        ({"offsets": []}, "no patients"),
        ({"offsets": [0.0, 2.0, 2.0, 3.0]}, "offsets must hold integers, not float64"),
        ({"offsets": [False, True]}, "offsets must hold integers, not bool"),
        ({"static": [[0, 1], [1, nan], [1, 1]]}, "'old' is missing (NaN) for the patient at position 1"),
        ({"static": [[0, 1], [1, 0], [-inf, 1]]}, "'male' is infinite for the patient at position 2"),
        (
            {"static": [[0, -1], [1, 0], [1, 1]], "static_names": None},
            "static feature at position 1 is negative",
        ),
        ({"static": [0, 1, 1]}, "static must have 2 dimension"),
        ({"static": [[0, 1], [1, 0]]}, "static has 2 entries for 3 patients"),
        ({"static": [["x", "y"]] * 3}, "static must hold numbers"),
        ({"static": pd.DataFrame({"sex": ["m", "f", "m"], "b": 1})}, "static column 'sex' must hold numbers"),
        ({"static": None}, "static_names is given without static"),
        ({"patient_ids": ["a", SECRET, SECRET]}, "patient at position 2 has the id of an earlier one"),
        ({"patient_ids": [5, 5, 6]}, "patient at position 1 has the id of an earlier one"),
        ({"patient_ids": [1, 2]}, "patient_ids has 2 entries for 3 patients"),
        ({"patient_ids": [1.0, 2.0, 3.0]}, "patient_ids must hold integers or strings"),
        ({"patient_ids": np.array(["a", None, 3], object)}, "patient_ids must hold integers or strings"),
        ({"visit_times": [1, 2]}, "visit_times has 2 entries for 3 visits"),
        ({"visit_times": [2, 1, 0]}, "earlier than the visit before for the patient at position 0"),
        ({"visit_times": [1, 2, nan]}, "visit_times is missing or infinite for the patient at position 2"),
        ({"visit_times": np.array(["2020", "2021", "NaT"], "M8[D]")}, "missing or infinite"),
        ({"visit_times": ["2020-01-01"] * 3}, "visit_times must hold dates"),
        ({"visit_times": pd.to_datetime(["2020-01-01"] * 3, utc=True)}, "visit_times must hold dates"),
        ({"visit_times": None}, "last_times needs visit_times"),
        ({"visit_times": [1, 2, 0]}, "must both be dates or both be numbers"),
        ({"last_times": np.array(["2020-03"] * 2, "M8[D]")}, "last_times has 2 entries for 3 patients"),
        ({"last_times": ["2020-03"] * 3}, "last_times must hold dates"),
        (
            {"last_times": np.array(["2020-01-31"] * 3, "M8[D]")},
            "before the last visit for the patient at position 0",
        ),
        (
            {"last_times": np.array(["2021"] * 2 + ["NaT"], "M8[D]")},
            "missing or before the last visit for the patient at",
        ),
        ({"feature_names": ["a", "b"]}, "feature_names has 2 entries for 3 columns"),
        ({"feature_names": ["a", "b", "a"]}, "feature_names contains 'a' more than once"),
        ({"feature_names": [1, 2, 3]}, "feature_names must hold strings"),
        ({"static_names": ["a", "a"]}, "static_names contains 'a' more than once"),
        ({"labels": [1, 0]}, "labels has 2 entries for 3 patients"),
        ({"labels": ["case", "control", "case"]}, "labels must hold numbers"),
        ({"labels": [1, inf, 0]}, "labels is infinite for the patient at position 1"),
        ({"groups": ["a", SECRET]}, "groups has 2 entries for 3 rows"),
        ({"groups": [1.0, 2.0, 3.0]}, "groups must hold integers or strings"),
    ],
)
def test_errors_name_the_location_and_the_remedy(changes, words):
    assert words in sentence_of(cohort, **changes)


def test_times_may_restart_with_each_patient():
    assert cohort(visit_times=[5, 5, 1], last_times=None).visit_times.tolist() == [5, 5, 1]


# --- choosing patients -----------------------------------------------------------------------------------


def patient(c, k):
    """All that is known of one patient, for comparison."""
    rows = slice(c.offsets[k], c.offsets[k + 1])
    return (
        c.visits.toarray()[rows].tolist(),
        None if c.static is None else c.static[k].tolist(),
        None if c.labels is None else c.labels[k].tolist(),
        None if c.visit_times is None else c.visit_times[rows].tolist(),
    )


@quick
@given(cohorts(), st.data())
def test_indexing_matches_numpy(c, data):
    K = len(c)
    index = data.draw(
        st.integers(-K, K - 1)
        | st.lists(st.integers(-K, K - 1), min_size=1, max_size=8)
        | st.lists(st.integers(-K, K - 1), min_size=1).map(np.array)
        | st.lists(st.booleans(), min_size=K, max_size=K).filter(any)
        | st.slices(K).filter(lambda s: len(range(K)[s]) > 0)
    )
    expected = np.atleast_1d(np.arange(K)[index])
    for chosen in (c[index], c[index, ...], c[index, :]):
        assert [patient(chosen, k) for k in range(len(chosen))] == [patient(c, k) for k in expected]
        assert chosen.visits.has_canonical_format
        assert chosen.shape == (len(expected), c.n_features)
        assert chosen.feature_names is c.feature_names
        # A chosen cohort satisfies every rule of the constructor.
        again = {name: getattr(chosen, name) for name in ("patient_ids", *OPTIONAL)}
        assert_same(Cohort(chosen.visits, chosen.offsets, **again), chosen)
    if len(set(expected)) == len(expected):
        assert c[index].patient_ids.tolist() == c.patient_ids[expected].tolist()


def test_repeated_patients_get_unique_ids():
    assert cohort()[[0, 0, 2, 0]].patient_ids.tolist() == ["a", "a#2", "c", "a#3"]
    assert cohort(patient_ids=[7, 8, 9])[[1, 1]].patient_ids.tolist() == ["8", "8#2"]
    assert cohort(patient_ids=["a", "a#2", "c"])[[0, 1, 0, 1]].patient_ids.tolist() == [
        "a",
        "a#2",
        "a#3",
        "a#2#2",
    ]


def test_contiguous_slices_are_views():
    c = cohort()
    assert np.shares_memory(c[1:].visits.data, c.visits.data)
    assert np.shares_memory(c[1:].static, c.static)


@pytest.mark.parametrize("index", [3, -4, [0, 3], np.array([-4]), [2**40]])
def test_positions_out_of_range(index):
    assert "out of range" in sentence_of(cohort().__getitem__, index)
    with pytest.raises(IndexError):
        cohort()[index]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ([], "is empty"),
        ([False] * 3, "is empty"),
        (slice(2, 1), "is empty"),
        ([True, False], "mask"),
        (True, "mask"),
        ([0.0], "by position"),
        (SECRET, "by position"),
        ([[0, 1]], "by position"),
        ((0, 1), "by patient only"),
        ((slice(None), [0, 1]), "by patient only"),
    ],
)
def test_invalid_indices_are_refused(index, words):
    assert words in sentence_of(cohort().__getitem__, index)
    with pytest.raises(PatientIndexError):
        cohort()[index]


def test_iteration_ends():
    assert [c.patient_ids.tolist() for c in cohort()] == [["a"], [SECRET], ["c"]]


def test_scikit_learn_splits_a_cohort():
    c = Cohort(np.ones((20, 2)), np.arange(21), static=np.arange(20.0)[:, None], labels=[0, 1] * 10)
    for folds in (KFold(4), StratifiedKFold(5, shuffle=True, random_state=0)):
        for train, test in folds.split(c, c.labels):
            kept, held = _safe_indexing(c, train), _safe_indexing(c, test)
            assert isinstance(held, Cohort)
            assert held.static.ravel().tolist() == test.tolist()
            assert sorted([*kept.patient_ids, *held.patient_ids]) == list(range(20))
    train, test, y_train, y_test = train_test_split(c, c.labels, random_state=0)
    assert (len(train), len(test)) == (15, 5)
    assert train.labels.tolist() == y_train.tolist()
    assert test.labels.tolist() == y_test.tolist()
    assert _safe_indexing(c, np.arange(20) % 2 == 0).labels.tolist() == [0] * 10


def test_summary():
    s = cohort().summary()
    expected = {
        "patients": 3,
        "visits": 3,
        "features": 3,
        "static_features": 2,
        "nonzeros": 4,
        "density": 4 / 9,
        "visits_median": 1.0,
        "visits_min": 0,
        "visits_max": 2,
        "empty_histories": 1,
        "empty_visits": 0,
        "cases": 1,
        "controls": 1,
        "groups": 2,
    }
    assert s.as_dict() == expected
    assert json.loads(json.dumps(s.as_dict())) == expected
    assert "1 cases, 1 controls" in str(s)
    assert SECRET not in str(s) + repr(s) + repr(cohort())
    assert cohort(labels=[1, 2, 3]).summary().cases is None
    assert cohort(labels=[True, False, True]).summary().cases == 2
    assert cohort(visits=[[0, 0, 0], [1, 0, 0], [0, 0, 0]]).summary().empty_visits == 2
    assert "labels" not in str(cohort(labels=None).summary())
    assert "patients   2 with 3 rows, 1 of them without visits" in str(cohort().summary())
    assert "patients   3, 1 of them without visits" in str(cohort(groups=None).summary())


# --- files -----------------------------------------------------------------------------------------------


@quick
@given(cohorts(), st.booleans())
def test_a_saved_cohort_comes_back(tmp_path, c, mmap):
    c.save(tmp_path / "c")
    assert_same(Cohort.load(tmp_path / "c", mmap=mmap), c)


def is_mapped(array):
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def test_mapped_arrays_stay_mapped(tmp_path):
    cohort().save(tmp_path / "c")
    for c in (Cohort.load(tmp_path / "c"), Cohort.load(tmp_path / "c")[1:]):
        for array in (c.visits.data, c.visits.indices, c.static, c.visit_times, c.labels):
            assert is_mapped(array)
    assert is_mapped(Cohort.load(tmp_path / "c").offsets)
    assert not is_mapped(Cohort.load(tmp_path / "c", mmap=False).visits.data)


def test_negative_values_survive_saving(tmp_path):
    c = cohort(visits=-parts()["visits"], allow_negative=True)
    c.save(tmp_path / "c")
    assert_same(Cohort.load(tmp_path / "c"), c)


def test_a_cohort_is_not_saved_over_a_model(tmp_path):
    tensors.write(tmp_path / "m", "model", {}, {})
    assert "does not hold a cohort" in sentence_of(cohort().save, tmp_path / "m")
    assert "does not hold a cohort" in sentence_of(Cohort.load, tmp_path / "m")


def set_in(arrays, name, position, value):
    arrays[name] = arrays[name].copy()
    arrays[name][position] = value


@pytest.mark.parametrize(
    "forge",
    [
        lambda a, m: set_in(a, "visits.indices", 0, 10**6),
        lambda a, m: set_in(a, "visits.indices", 0, -1),
        lambda a, m: set_in(a, "visits.indptr", 1, 10**6),
        lambda a, m: set_in(a, "visits.indptr", -1, 10**6),
        lambda a, m: set_in(a, "visits.indptr", 0, -5),
        lambda a, m: set_in(a, "offsets", 1, 10**6),
        lambda a, m: set_in(a, "offsets", -1, 10**6),
        lambda a, m: set_in(a, "visits.data", 0, nan),
        lambda a, m: a.update({"visits.data": a["visits.data"][:-1]}),
        lambda a, m: a.update({"visits.indices": a["visits.indices"].astype(float)}),
        lambda a, m: a.update({"visits.indptr": np.array(3)}),
        lambda a, m: a.update({"visits.indptr": np.array([], np.int32)}),
        lambda a, m: a.update(offsets=a["offsets"].astype(float)),
        lambda a, m: a.update(static=a["static"][:-1]),
        lambda a, m: a.update(labels=a["labels"][:-1]),
        lambda a, m: a.update(patient_ids=np.array([SECRET] * 3)),
        lambda a, m: a.update(surprise=np.zeros(3)),
        lambda a, m: a.pop("offsets"),
        lambda a, m: a.pop("visits.data"),
        lambda a, m: m.pop("n_features"),
        lambda a, m: (m.update(n_features=-1), a.pop("feature_names")),
        lambda a, m: (m.update(n_features=2**70), a.pop("feature_names")),
        lambda a, m: m.update(n_features="3"),
        lambda a, m: m.update(n_features=None),
        lambda a, m: m.update(n_features=2),
        lambda a, m: m.pop("allow_negative"),
    ],
)
def test_forged_files_with_a_valid_checksum_are_refused(tmp_path, forge):
    cohort().save(tmp_path / "c")
    files, meta = tensors.read(tmp_path / "c", "cohort")
    forge(files["cohort"], meta)
    tensors.write(tmp_path / "c", "cohort", files, meta)
    assert str(tmp_path / "c") in sentence_of(Cohort.load, tmp_path / "c")


def test_a_file_without_the_cohort_is_refused(tmp_path):
    tensors.write(tmp_path / "c", "cohort", {"other": {}}, {})
    assert "lacks parts" in sentence_of(Cohort.load, tmp_path / "c")


# --- events ----------------------------------------------------------------------------------------------

EVENTS = pd.DataFrame(
    {
        "patient": ["b", "a", "a", "a", "b", "a", "a"],
        "time": pd.to_datetime(
            ["2020-03-01", "2020-02-01", "2020-01-01", "2020-01-01", "2020-03-01", "2020-01-01", "2020-02-01"]
        ),
        "feature": ["gout", "flu", "gout", "flu", "cough", "gout", "flu"],
        "value": [1.5, 2.0, 1.0, 1.0, 0.0, 3.0, 0.5],
    }
)
STATIC = pd.DataFrame(
    {
        "patient": ["c", "b", "a"],
        "sex": pd.Categorical(["m", "f", "f"], categories=["x", "m", "f"]),
        "smoker": [True, False, True],
        "race": ["w", "b", "w"],
        "risk": [0.5, 0.25, 1.0],
    }
)


def events(**changes):
    return EVENTS.assign(**changes)


def test_events_become_visits():
    c = Cohort.from_events(EVENTS)
    assert c.patient_ids.tolist() == ["a", "b"]
    assert c.feature_names.tolist() == ["cough", "flu", "gout"]
    assert c.offsets.tolist() == [0, 2, 3]
    assert c.visits.toarray().tolist() == [[0, 1, 2], [0, 2, 0], [1, 0, 1]]
    assert c.visit_times.astype("M8[D]").astype(str).tolist() == ["2020-01-01", "2020-02-01", "2020-03-01"]
    assert c.static is None


def test_values_are_summed_and_zeros_are_not_stored():
    c = Cohort.from_events(EVENTS, value="value")
    assert c.visits.toarray().tolist() == [[0, 1, 4], [0, 2.5, 0], [0, 0, 1.5]]
    assert c.visits.nnz == 4


def test_static_rows_become_static_features():
    c = Cohort.from_events(EVENTS, STATIC)
    assert c.patient_ids.tolist() == ["a", "b", "c"]
    assert c.static_names.tolist() == ["sex=f", "sex=m", "smoker", "race=b", "race=w", "risk"]
    assert c.static.tolist() == [[1, 0, 1, 0, 1, 1.0], [1, 0, 0, 1, 0, 0.25], [0, 1, 1, 0, 1, 0.5]]
    assert c.visit_counts.tolist() == [2, 1, 0]
    assert c.summary().empty_histories == 1
    np.testing.assert_array_equal(c.visits.toarray(), Cohort.from_events(EVENTS).visits.toarray())


def tables(frame):
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    halves = pa.concat_tables([arrow.slice(0, 2), arrow.slice(2)])
    yield "polars", pl.from_pandas(frame)
    yield "arrow", arrow
    yield "chunks", halves
    yield "batches", pa.RecordBatchReader.from_batches(halves.schema, halves.to_batches())
    yield "shuffled", frame.sample(frac=1, random_state=1)
    yield "other columns", frame.assign(junk=[object()] * len(frame))
    texts = {name: "category" for name in ("patient", "feature", "race") if name in frame}
    yield "categorical", frame.astype(texts)
    yield "polars categorical", pl.from_pandas(frame).with_columns(pl.col(list(texts)).cast(pl.Categorical))


@pytest.mark.parametrize("form", [name for name, _ in tables(EVENTS)])
def test_every_kind_of_table_gives_the_same_cohort(form):
    frame, facts = (
        dict(tables(EVENTS))[form],
        dict(tables(STATIC))[form if form != "other columns" else "arrow"],
    )
    assert_same(
        Cohort.from_events(frame, facts, value="value"), Cohort.from_events(EVENTS, STATIC, value="value")
    )


def test_columns_may_have_other_names():
    renamed = EVENTS.rename(columns={"patient": "person", "time": "date", "feature": "code"})
    names = {"patient": "person", "time": "date", "feature": "code"}
    assert_same(Cohort.from_events(renamed, **names), Cohort.from_events(EVENTS))


def test_integer_patients_and_features():
    frame = pd.DataFrame({"patient": [10, 9, 9], "time": [1, 2, 1], "feature": [2, 10, 2]})
    c = Cohort.from_events(frame, pd.DataFrame({"patient": np.array([9, 10], np.uint8), "x": [0, 1]}))
    assert c.patient_ids.tolist() == [9, 10]
    assert c.feature_names.tolist() == ["2", "10"]
    assert c.visits.toarray().tolist() == [[1, 0], [0, 1], [1, 0]]
    assert c.static.ravel().tolist() == [0, 1]


def test_large_ids_stay_distinct_for_every_type():
    ids = [2**53, 2**53 + 1]
    frame = pd.DataFrame({"patient": ids, "time": 1, "feature": ["u", "v"]})
    c = Cohort.from_events(frame, pd.DataFrame({"patient": np.array(ids, np.uint64), "x": [0.0, 1.0]}))
    assert c.patient_ids.tolist() == ids
    assert c.visits.toarray().tolist() == [[1, 0], [0, 1]]


DAYS = ["2020-03-01", "2020-02-01", "2020-01-01", "2020-01-01", "2020-03-01", "2020-01-01", "2020-02-01"]


@pytest.mark.parametrize(
    "times",
    [
        pd.to_datetime(DAYS).date,
        pd.to_datetime(DAYS).astype("M8[s]"),
        pd.to_datetime(DAYS).astype("M8[ns]"),
        pd.to_datetime(DAYS).tz_localize("UTC").tz_convert("Asia/Tokyo"),
        DAYS,
        [f"{day}T00:00:00" for day in DAYS],
        [f"{day} 00:00:00.000000000" for day in DAYS],
        [f"{day}T02:00:00+02:00" for day in DAYS],
        pd.Categorical(DAYS),
        pd.Categorical(pd.to_datetime(DAYS)),
    ],
    ids=["date", "s", "ns", "zone", "text", "text time", "text ns", "text zone", "text category", "category"],
)
def test_all_time_formats_agree(times):
    c, plain = Cohort.from_events(events(time=times)), Cohort.from_events(EVENTS)
    assert c.visit_times.dtype.kind == "M"
    np.testing.assert_array_equal(c.visit_times.astype("M8[us]"), plain.visit_times.astype("M8[us]"))
    np.testing.assert_array_equal(c.visits.toarray(), plain.visits.toarray())


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint32, np.float32, np.float64])
def test_times_may_be_numbers(dtype):
    c = Cohort.from_events(events(time=np.array([9, 5, 1, 1, 9, 1, 5], dtype)))
    assert c.visit_times.tolist() == [1, 5, 9]
    assert c.visit_times.dtype == (np.float64 if np.issubdtype(dtype, np.floating) else np.int64)


def test_dates_in_the_distant_past_and_future():
    c = Cohort.from_events(events(time=["0900-01-01", "3000-01-01", *["2020-01-01"] * 5]))
    assert str(c.visit_times.max()).startswith("3000-01-01")


def test_no_events_at_all():
    for empty in (EVENTS.iloc[:0], EVENTS.iloc[:0].astype(object), pl.from_pandas(EVENTS.iloc[:0])):
        c = Cohort.from_events(empty, STATIC)
        assert c.shape == (3, 0)
        assert c.summary().empty_histories == 3
        assert "no rows" in sentence_of(Cohort.from_events, empty)
        assert "no rows" in sentence_of(Cohort.from_events, empty, STATIC.iloc[:0])


def test_a_cohort_without_events_can_be_saved(tmp_path):
    c = Cohort.from_events(EVENTS.iloc[:0], STATIC)
    c.save(tmp_path / "c")
    assert_same(Cohort.load(tmp_path / "c"), c)


def test_a_static_table_of_ids_only_defines_the_patients():
    c = Cohort.from_events(EVENTS, STATIC[["patient"]])
    assert len(c) == 3
    assert c.static is None


def test_columns_above_one_are_named_in_one_warning():
    facts = STATIC.assign(age=[30, 40, 50], income=[1, 2, 3], fine=[0, 1, 1])
    with pytest.warns(UserWarning, match="exceed 1") as caught:
        c = Cohort.from_events(EVENTS, facts)
    assert len(caught) == 1
    assert "age, income;" in str(caught[0].message)
    assert "bands" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert c.static[:, c.static_names == "age"].ravel().tolist() == [50, 40, 30]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Cohort.from_events(EVENTS, STATIC)


def gap(name, row=4, value=None):
    column = EVENTS[name].astype(object)
    column[row] = value
    return column


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (
            EVENTS.drop(columns="time"),
            "events has no column 'time'; its columns are: patient, feature, value",
        ),
        (events(patient=gap("patient")), "column 'patient' of events has no value in row 4"),
        (events(time=gap("time", value=pd.NaT)), "column 'time' of events has no value in row 4"),
        (events(feature=gap("feature", row=0)), "column 'feature' of events has no value in row 0"),
        (events(value=gap("value", value=nan)), "column 'value' of events has no value in row 4"),
        (pl.from_pandas(EVENTS).with_columns(value=pl.lit(float("nan"))), "no value in row 0"),
        (events(value=gap("value", value=-1.0).astype(float)), "'value' of events is negative in row 4"),
        (events(value=gap("value", value=inf).astype(float)), "'value' of events is infinite in row 4"),
        (events(value=["1"] * 7), "'value' of events must hold numbers, not"),
        (events(patient=[SECRET, 1, 2, 3, 4, 5, 6]), "'patient' of events mixes types of values"),
        (events(patient=np.arange(7.0)), "'patient' of events must hold integers or text, not double"),
        (events(feature=EVENTS["time"]), "'feature' of events must hold integers or text, not timestamp"),
        (events(time=["01/02/2020"] * 7), "not ISO 8601; convert it with pandas.to_datetime"),
        (events(time=["2020-13-01"] * 7), "not ISO 8601"),
        (events(time=[True] * 7), "must hold dates, times or numbers, not bool"),
        (events(time=pd.to_timedelta(range(7), unit="D")), "must hold dates, times or numbers, not duration"),
        (events(time=[*range(6), inf]), "visit_times is missing or infinite for the patient at position 0"),
        (pd.concat([EVENTS, EVENTS[["time"]]], axis=1), "more than one column 'time'"),
        (3, "events is not a table"),
        ([SECRET], "events is not a table"),
        (pl.from_pandas(EVENTS).lazy(), "events is not a table"),
    ],
)
def test_events_that_are_refused(frame, words):
    assert words in sentence_of(Cohort.from_events, frame, value="value")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (STATIC.drop(columns="patient"), "static has no column 'patient'; its columns are: sex"),
        (STATIC.iloc[[0, 1, 2, 1]], "column 'patient' of static repeats a patient in row 3"),
        (STATIC.iloc[[0]], "2 patients with events have no row in static"),
        (STATIC.iloc[:0], "2 patients with events have no row in static"),
        (STATIC.assign(patient=[1, 2, 3]), "text in one table and integers in the other"),
        (STATIC.assign(sex=["m", None, "f"]), "'sex' of static has no value in row 1"),
        (STATIC.assign(sex=pd.Categorical(["m", None, "f"])), "for example with 'unknown'"),
        (STATIC.assign(risk=[0.1, nan, 0.2]), "'risk' of static has no value in row 1"),
        (STATIC.assign(risk=[0.1, -0.5, 0.2]), "'risk' of static is negative in row 1"),
        (STATIC.assign(risk=[0.1, inf, 0.2]), "'risk' of static is infinite in row 1"),
        (STATIC.assign(birth=pd.to_datetime(DAYS[:3])), "'birth' of static contains dates or times"),
        (STATIC.assign(junk=[[1], [2], [3]]), "'junk' of static must hold numbers"),
        (STATIC.assign(junk=[SECRET, 1, 2]), "'junk' of static mixes types"),
        (STATIC.assign(**{"sex=f": [0, 0, 0]}), "static_names contains 'sex=f' more than once"),
    ],
)
def test_static_tables_that_are_refused(facts, words):
    assert words in sentence_of(Cohort.from_events, EVENTS, facts)


def test_free_text_columns_are_not_treated_as_categories():
    n = 1001
    frame = pd.DataFrame({"patient": range(n), "time": 1, "feature": "x"})
    facts = pd.DataFrame({"patient": range(n), "note": [f"note {i}" for i in range(n)]})
    assert "1,001 different values" in sentence_of(Cohort.from_events, frame, facts)


@quick
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(-3, 3), st.sampled_from("uvwx")), min_size=1, max_size=40
    )
)
def test_events_agree_with_pandas_groupby(rows):
    frame = pd.DataFrame(rows, columns=["patient", "time", "feature"])
    counted = frame.groupby(["patient", "time", "feature"]).size().unstack(fill_value=0)
    c = Cohort.from_events(frame)
    np.testing.assert_array_equal(c.visits.toarray(), counted.to_numpy())
    assert c.feature_names.tolist() == counted.columns.tolist()
    assert c.visit_times.tolist() == counted.index.get_level_values("time").tolist()
    assert np.repeat(c.patient_ids, c.visit_counts).tolist() == counted.index.get_level_values(0).tolist()


def test_a_million_rows():
    rng = np.random.default_rng(0)
    n = 1_000_000
    frame = pd.DataFrame(
        {
            "patient": rng.integers(0, 5000, n),
            "time": rng.integers(0, 1000, n).astype("M8[D]"),
            "feature": pd.Categorical.from_codes(rng.integers(0, 300, n), [f"c{j:03}" for j in range(300)]),
        }
    )
    start = time.perf_counter()
    c = Cohort.from_events(pa.table(frame))
    assert time.perf_counter() - start < 15  # about 0.7 s on an idle core
    assert c.visits.sum() == n
    assert c.n_visits == len(frame[["patient", "time"]].drop_duplicates())
    np.testing.assert_array_equal(
        np.bincount(frame["patient"]), np.add.reduceat(c.visits.sum(axis=1), c.offsets[:-1])
    )
    np.testing.assert_array_equal(frame["feature"].value_counts().sort_index(), c.visits.sum(axis=0))


def test_origin_is_kept_with_the_cohort(tmp_path):
    origin = {"attrition": [{"step": "read", "patients": 3}], "settings": {"visit": "day"}}
    c = Cohort([[1.0], [2.0]], [0, 1, 2], origin=origin)
    c.save(tmp_path / "c", extra_files={"attrition.csv": b"step,patients\n"})
    assert Cohort.load(tmp_path / "c").origin == origin == c[1].origin
    assert (tmp_path / "c" / "attrition.csv").read_bytes() == b"step,patients\n"
    Cohort([[1.0]], [0, 1]).save(tmp_path / "d")
    assert Cohort.load(tmp_path / "d").origin is None
