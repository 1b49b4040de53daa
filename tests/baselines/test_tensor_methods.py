"""The methods on patients × A × B tensors: their counts, their contract, and what they recover."""

import json
import warnings
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone

from phenotaste import Cohort, InputError, baselines, metrics, simulate
from phenotaste.core.cp.counts import count_pairs

METHODS = {
    "Limestone": lambda **more: baselines.Limestone(
        **{"rank": 3, "n_init": 2, "max_iter": 5, "random_state": 0} | more
    ),
    "Marble": lambda **more: baselines.Marble(
        **{"rank": 3, "n_init": 2, "max_iter": 5, "random_state": 0} | more
    ),
}
NAMES = ("Dx_a", "Lab_a", "Rx_a", "Dx_b", "Rx_b", "Dx_c", "Rx_c", "Rx_d", "Dx_d")
method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def two_kinds(seed=0, n_patients=25, visits=(0, 8), density=0.35):
    """Patients with diagnoses, medications and a feature of neither kind; some without history, some without pairs."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(visits[0], visits[1] + 1, n_patients)
    counts[3:5] = 0, 4
    X = rng.integers(1, 4, (counts.sum(), len(NAMES))) * (rng.random((counts.sum(), len(NAMES))) < density)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X[offsets[4] : offsets[5], 2:] = 0  # one diagnosis and no medication
    X[:, -1] = 0  # a diagnosis of no patient
    return Cohort(X.astype(float), offsets, feature_names=NAMES)


# --- counts --------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), products=st.integers(1, 60), density=st.sampled_from([0.0, 0.1, 0.5, 1.0])
)
def test_counts_are_the_visits_with_both_features(seed, products, density):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, rng.integers(0, 8))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    X = (rng.random((offsets[-1], 9)) < density) * rng.integers(0, 4, (offsets[-1], 9))
    a, b = np.array([0, 2, 5]), np.array([1, 3, 7, 8])
    full = np.arange(len(X) + 1) * 9
    stored = sparse.csr_array((X.ravel().astype(float), np.tile(np.arange(9), len(X)), full), X.shape)
    counts = count_pairs(stored, offsets, a, b, products)  # zeros are stored too
    expected = np.zeros((len(lengths), 3, 4))
    for k, (first, last) in enumerate(pairwise(offsets)):
        present = X[first:last] > 0
        expected[k] = (present[:, a, None] & present[:, None, b]).sum(axis=0)
    k, i, j = np.nonzero(expected)  # by patient, then a, then b
    np.testing.assert_array_equal(counts.patients, k)
    np.testing.assert_array_equal(counts.a, i)
    np.testing.assert_array_equal(counts.b, j)
    np.testing.assert_array_equal(counts.values, expected[k, i, j])
    assert counts.shape == expected.shape
    assert [counts[n].dtype for n in range(4)] == [np.float64, np.int32, np.int32, np.int64]


def test_counts_of_one_patient_as_pandas_counts_them():
    cohort, _ = simulate.heart_failure(n_patients=5, random_state=1)
    names = np.asarray(cohort.feature_names)
    table = cohort[2].visits.tocoo()
    entries = pd.DataFrame({"visit": table.coords[0], "feature": names[table.coords[1]]})
    kind = entries.feature.str.slice(0, 3)
    pairs = entries[kind == "Dx_"].merge(entries[kind == "Rx_"], on="visit")
    expected = pairs.groupby(["feature_x", "feature_y"]).visit.nunique()
    a, b = (np.flatnonzero([name.startswith(prefix) for name in names]) for prefix in ("Dx_", "Rx_"))
    counts = count_pairs(cohort.visits, cohort.offsets, a, b)
    own = slice(counts.starts[2], counts.starts[3])
    keys = zip(names[a[counts.a[own]]], names[b[counts.b[own]]], strict=True)
    assert dict(zip(keys, counts.values[own], strict=True)) == expected.to_dict()


# --- the contract --------------------------------------------------------------------------------------------


@method
def test_shapes_norms_and_zeros(name):
    c = two_kinds()
    model = METHODS[name]().fit(c)
    assert (model.A_.shape, model.B_.shape, model.V_.shape, model.W_.shape) == (
        (4, 3),
        (4, 3),
        (9, 3),
        (25, 3),
    )
    assert model.F_ is None
    np.testing.assert_allclose(np.linalg.norm(model.V_, axis=0), 1.0)
    for columns, factor in (([0, 3, 5, 8], model.A_), ([2, 4, 6, 7], model.B_)):
        np.testing.assert_allclose(np.linalg.norm(model.V_[columns], axis=0), np.sqrt(0.5))
        half = factor / np.linalg.norm(factor, axis=0) / np.sqrt(2)
        np.testing.assert_allclose(model.V_[columns], half)
    assert not model.V_[1].any()  # of neither mode
    for array in (model.A_, model.B_, model.W_):
        assert np.isfinite(array).all()
        assert array.min() >= 0
    assert not model.W_[3].any()  # no history
    assert not model.W_[4].any()  # no pair
    assert len(model.loss_curve_) == model.n_iter_


@method
def test_scores_are_expected_counts(name):
    c = two_kinds()
    model = METHODS[name](threshold=0.0).fit(c)
    np.testing.assert_allclose(model.A_.sum(axis=0), 1.0)
    np.testing.assert_allclose(model.B_.sum(axis=0), 1.0)
    a, b = [0, 3, 5, 8], [2, 4, 6, 7]
    pairs = count_pairs(c.visits, c.offsets, np.array(a), np.array(b))
    totals = np.bincount(pairs.patients, pairs.values, len(c))
    if name == "Limestone":
        np.testing.assert_allclose(model.W_.sum(axis=1), totals, rtol=1e-4)
    else:  # the rest is the bias
        assert (model.W_.sum(axis=1) <= totals * (1 + 1e-6)).all()


@method
def test_scores_of_the_fit_are_those_of_transform_and_depend_on_no_other_patient(name):
    c = two_kinds(1)
    model = METHODS[name]().fit(c)
    W = model.transform(c)
    np.testing.assert_array_equal(W, model.W_)
    order = np.random.default_rng(0).permutation(len(c))
    np.testing.assert_array_equal(model.transform(c[order]), W[order])
    for k in (0, 3, 4):
        np.testing.assert_array_equal(model.transform(c[k]), W[[k]])


@method
def test_same_seed_same_bits_for_any_number_of_threads(name):
    c = two_kinds(2)
    first, second, threaded = (METHODS[name](n_jobs=n).fit(c) for n in (1, 1, 3))
    for attribute in ("V_", "A_", "B_", "W_", "loss_curve_"):
        np.testing.assert_array_equal(getattr(first, attribute), getattr(second, attribute))
        np.testing.assert_array_equal(getattr(first, attribute), getattr(threaded, attribute))
    assert not np.array_equal(first.V_, METHODS[name](random_state=1).fit(c).V_)


@method
def test_the_start_with_the_lowest_loss_is_kept(name):
    c = two_kinds(3)
    losses = [METHODS[name](n_init=n, max_iter=2).fit(c).loss_curve_[-1] for n in (1, 2, 4, 8)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


@method
@pytest.mark.parametrize("include_patients", [False, True])
def test_saved_and_loaded_it_scores_the_same(name, include_patients, tmp_path):
    c = two_kinds()
    modes = (["Dx_a", "Dx_b"], "Rx_")
    model = METHODS[name](modes=modes).fit(c)
    model.save(tmp_path / "model", include_patients=include_patients)
    assert json.loads((tmp_path / "model" / "manifest.json").read_text())
    loaded = type(model).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(c), model.transform(c))
    for attribute in model._arrays:
        np.testing.assert_array_equal(getattr(loaded, attribute), getattr(model, attribute))
    assert hasattr(loaded, "W_") == include_patients
    assert loaded.modes == (("Dx_a", "Dx_b"), "Rx_")
    again = METHODS[name](modes=loaded.modes).fit(c)
    np.testing.assert_array_equal(again.V_, model.V_)
    other = next(other for other in METHODS if other != name)
    with pytest.raises(InputError, match=name):
        type(METHODS[other]()).load(tmp_path / "model")


@method
def test_default_modes_survive_saving(name, tmp_path):
    model = METHODS[name]().fit(two_kinds())
    model.save(tmp_path / "model")
    assert type(model).load(tmp_path / "model").get_params() == model.get_params()


@method
def test_columns_of_new_patients_are_matched_by_name(name):
    c = two_kinds()
    model = METHODS[name]().fit(c)
    order = np.random.default_rng(1).permutation(len(NAMES))
    dense = c.visits.toarray()
    shuffled = Cohort(
        np.column_stack([dense[:, order], np.ones(len(dense))]),
        c.offsets,
        feature_names=[*np.array(NAMES)[order], "Dx_new"],
    )
    np.testing.assert_array_equal(model.transform(shuffled), model.transform(c))


@method
def test_features_of_neither_mode_and_values_do_not_matter(name):
    c = two_kinds()
    model = METHODS[name]().fit(c)
    X = c.visits.toarray()
    present = np.where(X > 0, 7.0, 0.0)
    present[:, 1] = 1.0
    other = METHODS[name]().fit(Cohort(present, c.offsets, feature_names=NAMES))
    keep = np.flatnonzero(np.diff(c.offsets) > 0)  # with an added feature, no visit is without features
    np.testing.assert_array_equal(other.V_, model.V_)
    np.testing.assert_array_equal(other.W_[keep], model.W_[keep])


@method
@pytest.mark.parametrize(
    "c",
    [
        Cohort(np.zeros((12, 9)), np.arange(13), feature_names=NAMES),  # visits without codes
        Cohort(np.zeros((0, 9)), np.zeros(13, int), feature_names=NAMES),  # no visits
        Cohort(np.eye(9), np.arange(10), feature_names=NAMES),  # no visit with two codes
        Cohort(np.ones((1, 2)), [0, 1], feature_names=["Dx_", "Rx_"]),  # one non-zero
        Cohort(np.ones((3, 9)), [0, 3], feature_names=NAMES),  # one patient, all features
        two_kinds(visits=(0, 1)),
    ],
)
def test_degenerate_cohorts(name, c, tmp_path):
    model = METHODS[name](rank=6).fit(c)
    for array in (model.V_, model.A_, model.B_, model.W_, model.loss_curve_, model.transform(c)):
        assert np.isfinite(array).all()
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(type(model).load(tmp_path / "model").transform(c), model.W_)


@method
@pytest.mark.parametrize(
    ("modes", "message"),
    [
        (("Dx_", "Px_"), "no feature name begins with 'Px_'"),
        (("Dx_", []), "its list is empty"),
        (("Dx_", "Dx_a"), "share features"),
        (("Dx_", ["Rx_a", "Dx_a"]), "share features"),
        (("Dx_", ["Rx_a", "Rx_zz"]), "no feature 'Rx_zz'"),
        (("Dx_",), "modes must be two"),
        (("Dx_", ""), "modes must be two"),
        (("Dx_", [1, 2]), "modes must be two"),
        ("Dx_", "modes must be two"),
    ],
)
def test_refuses_modes_that_give_no_tensor(name, modes, message):
    model = METHODS[name](modes=modes)
    with pytest.raises(InputError, match=message):
        model.fit(two_kinds())
    with pytest.raises(InputError, match=message):
        model.validate(two_kinds())


@method
def test_refuses_invalid_input(name):
    c = two_kinds()
    with pytest.raises(InputError, match="no feature names"):
        METHODS[name]().fit(Cohort(c.visits, c.offsets))
    for setting, value in (
        ("rank", 0),
        ("max_iter", 0),
        ("n_init", 0),
        ("tol", -1.0),
        ("kkt_tol", -1.0),
        ("threshold", 1.0),
        ("threshold", -0.1),
        ("n_jobs", 0),
    ):
        with pytest.raises(InputError, match=setting):
            METHODS[name]().set_params(**{setting: value}).fit(c)
    with pytest.raises(InputError, match="Cohort"):
        METHODS[name]().fit(np.eye(3))


@method
def test_scikit_learn_conventions(name):
    model = METHODS[name](modes=("Dx_", "Lab_"))
    assert clone(model).get_params() == model.get_params()
    frame = METHODS[name]().set_output(transform="pandas").fit_transform(two_kinds())
    assert list(frame.columns) == ["phenotype_1", "phenotype_2", "phenotype_3"]
    assert len(frame) == 25


# --- what they find ------------------------------------------------------------------------------------------


@method
def test_planted_phenotypes_of_heart_failure_are_recovered(name):
    cohort, truth = simulate.heart_failure(n_patients=500, random_state=0)
    model = METHODS[name](rank=5, n_init=3, max_iter=30).fit(cohort)
    names = np.asarray(cohort.feature_names)
    for prefix, factor in (("Dx_", model.A_), ("Rx_", model.B_)):
        true = truth.V[[feature.startswith(prefix) for feature in names]]
        found = factor / np.linalg.norm(factor, axis=0)
        assert metrics.matched_similarity(true / np.linalg.norm(true, axis=0), found) > 0.98
    top = model.phenotypes(top=1).feature
    assert top.str.slice(0, 3).isin(["Dx_", "Rx_"]).all()


@method
def test_no_entry_is_below_the_threshold_and_the_rest_sums_to_one(name):
    model = METHODS[name](threshold=0.15).fit(two_kinds())
    for factor in (model.A_, model.B_):
        assert factor[factor > 0].min() >= 0.15
        assert (factor == 0).any()
        np.testing.assert_allclose(factor.sum(axis=0), 1.0)


def test_the_bias_takes_what_all_patients_share():
    rng = np.random.default_rng(0)
    c, _ = simulate.heart_failure(n_patients=300, random_state=1)
    names = np.asarray(c.feature_names)
    X = c.visits.toarray()
    common = [next(n for n, name in enumerate(names) if name.startswith(prefix)) for prefix in ("Dx_", "Rx_")]
    X[:, common] = rng.random((len(X), 2)) < 0.6  # at visits of all patients alike
    model = METHODS["Marble"](rank=5, max_iter=30).fit(Cohort(X, c.offsets, feature_names=names))
    assert model.bias_A_.argmax() == 0
    assert model.bias_B_.argmax() == 0
    assert model.bias_A_.min() > 0
    assert model.bias_A_.sum() == pytest.approx(1.0)
