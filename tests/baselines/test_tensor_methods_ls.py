"""NonnegativeCP, SUSTain and Granite as estimators."""

import inspect
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from phenotaste import Cohort, InputError, baselines, metrics, simulate

METHODS = {
    "NonnegativeCP": lambda **more: baselines.NonnegativeCP(3, **{"n_init": 1, "random_state": 0, **more}),
    "SUSTain": lambda **more: baselines.SUSTain(3, **{"n_init": 1, "random_state": 0, **more}),
    "Granite": lambda **more: baselines.Granite(3, **{"n_init": 1, "random_state": 0, **more}),
}
method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def patients():
    """Simulated patients, of whom some have no visits and some no pair of a diagnosis and a medication."""
    cohort, _ = simulate.heart_failure(n_patients=70)
    X, offsets = cohort.visits.toarray(), cohort.offsets
    X[offsets[1] : offsets[2], np.char.startswith(cohort.feature_names.astype(str), "Rx_")] = 0
    keep = np.ones(len(X), bool)
    keep[offsets[3] : offsets[4]] = False
    counts = np.diff(offsets)
    counts[3] = 0
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Cohort(sparse.csr_array(X[keep]), offsets, feature_names=cohort.feature_names)


@pytest.fixture(scope="module")
def fitted(patients):
    return {name: make().fit(patients) for name, make in METHODS.items()}


@method
def test_settings_are_parameters(name):
    model = METHODS[name]()
    assert clone(model).get_params() == model.get_params()
    assert set(model.get_params()) == set(inspect.signature(type(model).__init__).parameters) - {"self"}


@method
def test_fitted_attributes(name, fitted, patients):
    model = fitted[name]
    n_a, n_b = (np.char.startswith(patients.feature_names.astype(str), mode).sum() for mode in ("Dx_", "Rx_"))
    assert (model.A_.shape, model.B_.shape, model.W_.shape) == ((n_a, 3), (n_b, 3), (70, 3))
    assert model.F_ is None
    for array in (model.A_, model.B_, model.W_, model.V_):
        assert np.isfinite(array).all()
        assert array.min() >= 0
    assert not model.W_[[1, 3]].any()
    assert model.empty_history_.nonzero()[0].tolist() == [3]
    losses = model.loss_curve_
    assert len(losses) == model.n_iter_
    assert (np.diff(losses) <= 1e-9 * losses[0]).all()
    assert set(model.phenotypes().phenotype) <= {1, 2, 3}


@method
def test_same_seed_same_bits(name, fitted, patients):
    again = METHODS[name]().fit(patients)
    for attribute in ("A_", "B_", "W_", "loss_curve_"):
        np.testing.assert_array_equal(getattr(again, attribute), getattr(fitted[name], attribute))
    assert not np.array_equal(METHODS[name](random_state=1).fit(patients).A_, again.A_)


@method
def test_scores_do_not_depend_on_the_other_patients(name, fitted, patients):
    W = fitted[name].transform(patients)
    assert not W[[1, 3]].any()
    order = np.random.default_rng(0).permutation(70)
    np.testing.assert_array_equal(fitted[name].transform(patients[order]), W[order])
    for k in (0, 3, 4):
        np.testing.assert_array_equal(fitted[name].transform(patients[k]), W[[k]])


@method
def test_scores_of_the_fit_are_those_of_new_patients(name, fitted, patients):
    np.testing.assert_array_equal(fitted[name].transform(patients), fitted[name].W_)


@method
def test_saved_and_loaded_it_scores_the_same(name, fitted, patients, tmp_path):
    model = fitted[name]
    model.save(tmp_path / "model", include_patients=True)
    loaded = type(model).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(patients), model.transform(patients))
    for attribute in ("A_", "B_", "V_", "W_", *model._arrays):
        np.testing.assert_array_equal(getattr(loaded, attribute), getattr(model, attribute))
    assert loaded.get_params() == model.get_params()
    other = baselines.SUSTain if name != "SUSTain" else baselines.Granite
    with pytest.raises(InputError, match=name):
        other.load(tmp_path / "model")


@method
def test_degenerate_cohorts(name):
    names = np.array(["Dx_a", "Rx_b"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more phenotypes than features
        for c in (
            Cohort(np.zeros((4, 2)), np.arange(5), feature_names=names),  # visits without codes
            Cohort(np.zeros((0, 2)), np.zeros(4, int), feature_names=names),  # no visits
            Cohort(np.ones((1, 2)), [0, 1], feature_names=names),  # one patient, one pair
            Cohort(np.eye(2), [0, 2], feature_names=names),  # codes without a pair
        ):
            model = METHODS[name]().fit(c)
            for array in (model.A_, model.B_, model.V_, model.W_, model.transform(c)):
                assert np.isfinite(array).all()


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("SUSTain", "max_score", 0),
        ("SUSTain", "max_score", 2.5),
        ("Granite", "diversity", -1.0),
        ("Granite", "max_cosine", 1.5),
        ("NonnegativeCP", "tol", -1.0),
        ("NonnegativeCP", "rank", 0),
    ],
)
def test_invalid_settings_are_refused(name, setting, value, patients):
    with pytest.raises(InputError, match=setting):
        METHODS[name]().set_params(**{setting: value}).fit(patients)


@method
def test_phenotypes_of_simulated_patients_are_found(name):
    cohort, truth = simulate.heart_failure(n_patients=300)
    model = METHODS[name]().set_params(rank=truth.V.shape[1], n_init=8).fit(cohort)
    assert metrics.matched_similarity(truth.V, model.V_) > 0.9


@pytest.mark.parametrize("max_score", [1, 5])
def test_sustain_has_integers_within_bounds(max_score, patients):
    model = METHODS["SUSTain"](max_score=max_score).fit(patients)
    for array in (model.A_, model.B_, model.W_, model.transform(patients)):
        assert np.isin(array, np.arange(max_score + 1)).all()
        assert array.max() == max_score
    assert (model.scales_ > 0).all()


def test_a_model_with_other_than_integers_is_refused(fitted, patients, tmp_path):
    model = clone(fitted["SUSTain"]).fit(patients)
    model.A_ = model.A_ + 0.5
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match="not a complete"):
        baselines.SUSTain.load(tmp_path / "model")


def mean_cosine(model):
    unit = [F / np.linalg.norm(F, axis=0) for F in (model.A_, model.B_)]
    return np.mean([(u.T @ u)[np.triu_indices(u.shape[1], 1)].mean() for u in unit])


def test_granite_is_more_distinct_with_the_penalty():
    cohort, _ = simulate.heart_failure(n_patients=200)
    apart, alone = (
        METHODS["Granite"](diversity=d, max_cosine=0.1).set_params(rank=8).fit(cohort) for d in (1.0, 0.0)
    )
    assert mean_cosine(alone) > 0.15
    assert mean_cosine(apart) < 0.75 * mean_cosine(alone)
