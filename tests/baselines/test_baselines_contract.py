"""The contract of all factorisations and classifiers; a new method adds one line."""

import inspect
import re
import sys
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score

from helpers.cohorts import cohort
from helpers.labelled import presence_effect, shuffled_columns, with_negatives
from phenotaste import TASTE, Cohort, InputError, baselines, metrics
from phenotaste.storage import tensors

torch = pytest.importorskip("torch", reason="the recurrent baselines need the extra 'gpu'")
torch.set_num_threads(1)

RECURRENT = {"hidden_size": 6, "batch_size": 8, "max_epochs": 4}
FACTORISATIONS = {
    "TASTE": lambda **more: TASTE(3, max_iter=8, random_state=0, **more),
    "Spartan": lambda **more: baselines.Spartan(3, max_iter=8, random_state=0, **more),
    "Copa": lambda **more: baselines.Copa(3, max_iter=8, random_state=0, **more),
    "CopaPlus": lambda **more: baselines.CopaPlus(3, max_iter=8, random_state=0, **more),
    "CopaStatic": lambda **more: baselines.CopaStatic(3, max_iter=8, random_state=0, **more),
    "CohenPlus": lambda **more: baselines.CohenPlus(3, max_iter=8, random_state=0, **more),
    "CohenPlus as published": lambda **more: baselines.CohenPlus(
        3, algorithm="published", max_iter=4, random_state=0, **more
    ),
    "CohenPlus growing": lambda **more: baselines.CohenPlus(
        3, mu=0.2, growth=1.05, max_iter=8, random_state=0, **more
    ),
    "Copa smooth": lambda **more: baselines.Copa(3, smooth=True, l1=0.01, max_iter=8, random_state=0, **more),
    "CNTF": lambda **more: baselines.CNTF(3, max_iter=8, random_state=0, **RECURRENT, **more),
}
# Methods without courses; their scores are non-negative unless signed.
POOLED = {
    "PatientNMF": lambda **more: baselines.PatientNMF(3, n_init=2, random_state=0, **more),
    "PatientNMF of counts": lambda **more: baselines.PatientNMF(
        3, loss="kullback-leibler", n_init=2, random_state=0, **more
    ),
    "VisitNMF": lambda **more: baselines.VisitNMF(3, n_init=2, random_state=0, **more),
    "VisitNMF of counts": lambda **more: baselines.VisitNMF(
        3, loss="kullback-leibler", n_init=2, random_state=0, **more
    ),
    "PatientLDA": lambda **more: baselines.PatientLDA(3, random_state=0, **more),
    "PatientSVD": lambda **more: baselines.PatientSVD(3, **more),
}
SIGNED = ("PatientSVD",)
CLASSIFIERS = {
    "RawLogistic": lambda: baselines.RawLogistic(random_state=0),
    "RawLogistic without static": lambda: baselines.RawLogistic(static=False, random_state=0),
    "RawGradientBoosting": lambda: baselines.RawGradientBoosting(random_state=0, max_iter=8),
    "RawGradientBoosting without static": lambda: baselines.RawGradientBoosting(
        static=False, min_samples_leaf=2, random_state=0, max_iter=8
    ),
    "GRUClassifier": lambda: baselines.GRUClassifier(embedding_size=5, random_state=0, **RECURRENT),
    "CNTF with an LSTM": lambda: baselines.CNTF(3, max_iter=8, random_state=0, **RECURRENT),
    "CNTF with a lasso": lambda: baselines.CNTF(
        3, predictor="lasso", max_iter=8, random_state=0, **RECURRENT
    ),
}
# These need names of two kinds of features; their contract is in test_tensor_methods.py and test_tensor_methods_ls.py.
TENSORS = ("Granite", "Limestone", "Marble", "NonnegativeCP", "SUSTain")
EXTERNAL = ("SWoTTeD",)  # its contract is in test_swotted.py
# Factors that must not be negative; PARAFAC2 with exact cross-products has courses of either sign.
NON_NEGATIVE = dict.fromkeys(FACTORISATIONS, ("V_", "W_", "U_"))
NON_NEGATIVE |= dict.fromkeys(("Spartan", "Copa", "Copa smooth", "CopaStatic"), ("V_", "W_"))
PATIENTS = ("W_", "U_", "offsets_", "patient_ids_")
FITTED = (
    *("V_", "F_", "H_", *PATIENTS, "feature_names_in_", "static_names_in_", "lam_eff_", "mu_k_"),
    *("loss_curve_", "n_iter_", "converged_", "outcome_", "rmse_", "cpi_", "empty_history_"),
    *("n_patients_", "n_visits_", "n_short_", "n_empty_", "n_features_in_"),
)

factorisation = pytest.mark.parametrize("name", FACTORISATIONS)
pooled = pytest.mark.parametrize("name", POOLED)
classifier = pytest.mark.parametrize("name", CLASSIFIERS)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def test_every_public_baseline_is_tested():
    tested = {name.split()[0] for name in [*FACTORISATIONS, *POOLED, *TENSORS, *EXTERNAL, *CLASSIFIERS]}
    assert tested - {"TASTE"} == set(baselines.__all__)


# --- all estimators -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        *FACTORISATIONS.values(),
        *POOLED.values(),
        *(getattr(baselines, name) for name in (*TENSORS, *EXTERNAL)),
        *CLASSIFIERS.values(),
    ],
)
def test_scikit_learn_conventions(make):
    model = make()
    again = clone(model)
    assert again is not model
    assert again.get_params() == model.get_params()
    assert set(model.get_params()) == set(inspect.signature(type(model).__init__).parameters) - {"self"}
    with pytest.raises(NotFittedError):
        model.predict_proba(cohort()) if hasattr(model, "predict_proba") else model.transform(cohort())
    with pytest.raises(InputError, match="Cohort"):
        model.fit(np.ones((3, 2)), [0, 1, 0])
    docs = sys.modules[type(model).__module__].__doc__ + type(model).__doc__
    assert re.search(r"(et al|Bro|& [A-Z]).*(19|20)\d\d", docs, re.DOTALL), "names its paper"


# --- factorisations ----------------------------------------------------------------------------------------


@factorisation
@pytest.mark.parametrize("n_static", [0, 4])
def test_shapes_and_signs(name, n_static):
    c = cohort(1, 14, n_static=n_static)  # with empty histories and visits, and fewer visits than phenotypes
    model = FACTORISATIONS[name]().fit(c)
    assert model.V_.shape == (7, 3)
    assert model.H_.shape == (3, 3)
    assert model.W_.shape == (14, 3)
    assert model.U_.shape == (c.n_visits, 3)
    assert model.F_ is None or model.F_.shape == (n_static, 3)
    for attribute in FITTED:
        assert hasattr(model, attribute), attribute
    for attribute in ("V_", "H_", "W_", "U_", "loss_curve_"):
        assert np.isfinite(getattr(model, attribute)).all(), attribute
    for attribute in NON_NEGATIVE[name]:
        assert getattr(model, attribute).min() >= 0, attribute
    assert (model.n_empty_, model.n_patients_) == (int(np.sum(model.empty_history_)), 14)
    assert model.n_empty_ > 0
    assert len(model.loss_curve_) == model.n_iter_


@factorisation
def test_metrics_and_tables(name):
    c = cohort(1, 14, n_static=0)  # CopaStatic's own loss counts static features once per visit
    model = FACTORISATIONS[name]().fit(c)
    assert metrics.objective(model, c) == pytest.approx(model.loss_curve_[-1], rel=1e-8)
    assert metrics.rmse(model, c) == pytest.approx(model.rmse_)
    assert metrics.cpi(model) == pytest.approx(model.cpi_)
    assert metrics.rmse(model, c[:3]) >= 0
    assert set(model.phenotypes().phenotype) <= {1, 2, 3}


@factorisation
def test_same_seed_same_bits(name):
    c = cohort(2, 14)
    first, second = (FACTORISATIONS[name]().fit(c) for _ in range(2))
    for attribute in ("V_", "W_", "U_", "loss_curve_"):
        np.testing.assert_array_equal(getattr(first, attribute), getattr(second, attribute))


@factorisation
def test_projection_does_not_depend_on_the_other_patients(name):
    c = cohort(3, 14)
    model = FACTORISATIONS[name]().fit(c)
    projected = model.project(c)
    assert projected.W.shape == (14, 3)
    assert projected.U.shape == (c.n_visits, 3)
    assert projected.W.min() >= 0
    np.testing.assert_array_equal(model.transform(c), projected.W)
    order = np.random.default_rng(0).permutation(14)
    np.testing.assert_array_equal(model.transform(c[order]), projected.W[order])
    np.testing.assert_array_equal(model.transform(c[4]), projected.W[[4]])
    assert projected.patient_loss.shape == (14,)
    assert projected.loss == pytest.approx(projected.patient_loss.sum())


@factorisation
def test_factorisation_matches_columns_by_name(name):
    c = presence_effect(n_patients=25)
    c = Cohort(c.visits, c.offsets, c.static, feature_names=c.feature_names, static_names=c.static_names)
    model = FACTORISATIONS[name]().fit(c)
    np.testing.assert_allclose(model.transform(shuffled_columns(c)), model.transform(c), atol=1e-6)
    projected = model.project(shuffled_columns(c))
    assert (projected.unknown_features, projected.absent_features) == (1, 0)


@factorisation
@pytest.mark.parametrize("include_patients", [False, True])
def test_saved_and_loaded_it_scores_the_same(name, include_patients, tmp_path):
    c = cohort(1, 14)
    model = FACTORISATIONS[name]().fit(c)
    model.save(tmp_path / "model", include_patients=include_patients)
    loaded = type(model).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(c), model.transform(c))
    for attribute in PATIENTS:
        assert hasattr(loaded, attribute) == include_patients
    others = [other for other in FACTORISATIONS if other != name]
    with pytest.raises(InputError, match=name.split()[0]):
        type(FACTORISATIONS[others[0]]()).load(tmp_path / "model")


@factorisation
def test_factorisation_of_degenerate_cohorts(name):
    for c in (
        cohort(0, 12, visits=(0, 1)),  # at most one visit
        Cohort(np.zeros((12, 2)), np.arange(13)),  # visits without codes, and fewer features than phenotypes
        Cohort(np.zeros((0, 2)), np.zeros(13, int), np.eye(12)[:, :3]),  # no visits at all
        Cohort(np.ones((3, 1)), [0, 3]),  # one patient, one feature
    ):
        model = FACTORISATIONS[name]().fit(c)
        for array in (model.V_, model.W_, model.U_, model.H_, model.loss_curve_, model.transform(c)):
            assert np.isfinite(array).all()


@factorisation
def test_factorisation_refuses_invalid_input(name):
    c = cohort(1, 14)
    for setting, value in (("rank", 0), ("max_iter", 0), ("tol", -1.0), ("init", "none")):
        with pytest.raises(InputError, match=setting):
            FACTORISATIONS[name]().set_params(**{setting: value}).fit(c)
    with pytest.raises(InputError, match="no temporal features"):
        FACTORISATIONS[name]().fit(Cohort(np.zeros((0, 0)), [0, 0]))
    model = FACTORISATIONS[name]().fit(c)
    with pytest.raises(InputError, match="temporal features"):
        model.transform(cohort(0, n_features=5))
    with pytest.raises(InputError, match="Cohort"):
        model.transform(np.eye(3))


@factorisation
def test_pandas_output_is_indexed_by_patient(name):
    c = cohort(1, 14)
    frame = FACTORISATIONS[name]().set_output(transform="pandas").fit(c).transform(c)
    assert list(frame.index) == list(c.patient_ids)
    assert list(frame.columns) == ["phenotype_1", "phenotype_2", "phenotype_3"]


@pytest.mark.parametrize("name", [name for name in FACTORISATIONS if name != "CNTF"])
def test_bits_do_not_depend_on_n_jobs(name):
    c = cohort(2, 60)
    one, three = (FACTORISATIONS[name](n_jobs=n).fit(c) for n in (1, 3))
    for attribute in ("V_", "W_", "U_", "loss_curve_"):
        np.testing.assert_array_equal(getattr(one, attribute), getattr(three, attribute))


# --- methods without courses ---------------------------------------------------------------------------------


@pooled
def test_pooled_shapes_and_signs(name):
    c = cohort(1, 14)  # with empty histories and visits
    model = POOLED[name]().fit(c)
    assert (model.V_.shape, model.W_.shape, model.F_) == ((7, 3), (14, 3), None)
    for array in (model.V_, model.W_, model.loss_curve_):
        assert np.isfinite(array).all()
    np.testing.assert_allclose(np.linalg.norm(model.V_, axis=0), 1.0)
    scores = model.transform(c)
    assert scores.shape == (14, 3)
    assert min(model.V_.min(), scores.min(), model.W_.min()) >= 0 or name in SIGNED
    empty = np.array([c.visits[a:b].sum() == 0 for a, b in zip(c.offsets[:-1], c.offsets[1:], strict=True)])
    assert empty.any()
    np.testing.assert_array_equal(model.empty_history_, empty)
    assert not scores[empty].any()
    assert scores[~empty].any(axis=1).all()
    assert (model.n_empty_, model.n_patients_, model.n_visits_) == (empty.sum(), 14, c.n_visits)
    assert 1 <= model.n_iter_ <= model.get_params().get("max_iter", 1)
    assert model.converged_ == (model.outcome_ == "converged")
    assert set(model.phenotypes().phenotype) <= {1, 2, 3}


@pooled
def test_pooled_same_seed_same_bits(name):
    c = cohort(2, 14)
    first, second = (POOLED[name]().fit(c) for _ in range(2))
    for attribute in ("V_", "W_", "loss_curve_"):
        np.testing.assert_array_equal(getattr(first, attribute), getattr(second, attribute))


@pooled
def test_pooled_scores_do_not_depend_on_the_other_patients(name):
    c = cohort(3, 14)
    model = POOLED[name]().fit(c)
    scores = model.transform(c)
    order = np.random.default_rng(0).permutation(14)
    np.testing.assert_array_equal(model.transform(c[order]), scores[order])
    for k in range(14):
        np.testing.assert_array_equal(model.transform(c[k]), scores[[k]])


@pooled
@pytest.mark.parametrize("include_patients", [False, True])
def test_pooled_saved_and_loaded_it_scores_the_same(name, include_patients, tmp_path):
    c = cohort(1, 14)
    model = POOLED[name]().fit(c)
    model.save(tmp_path / "model", include_patients=include_patients)
    loaded = type(model).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(c), model.transform(c))
    assert loaded.get_params() == model.get_params()
    for attribute in ("W_", "patient_ids_", "empty_history_"):
        assert hasattr(loaded, attribute) == include_patients
    for other in (TASTE, baselines.VisitNMF if name.startswith("Patient") else baselines.PatientNMF):
        with pytest.raises(InputError):
            other.load(tmp_path / "model")
    files, meta = tensors.read(tmp_path / "model", "pooled-model", mmap=False)
    files["model"]["V_"] = files["model"]["V_"][:, :2]
    tensors.write(tmp_path / "model", "pooled-model", files, meta)
    with pytest.raises(InputError, match="not a complete"):
        type(model).load(tmp_path / "model")


@pooled
def test_pooled_matches_columns_by_name(name):
    c = presence_effect(n_patients=25)
    model = POOLED[name]().fit(c)
    np.testing.assert_allclose(model.transform(shuffled_columns(c)), model.transform(c), atol=1e-6)


@pooled
def test_pooled_of_degenerate_cohorts(name):
    for c in (
        cohort(0, 12, visits=(0, 1)),  # at most one visit
        Cohort(np.zeros((12, 2)), np.arange(13)),  # visits without codes, and fewer features than phenotypes
        Cohort(np.zeros((0, 2)), np.zeros(13, int), np.eye(12)[:, :3]),  # no visits at all
        Cohort(np.ones((3, 1)), [0, 3]),  # one patient, one feature
    ):
        model = POOLED[name]().fit(c)
        for array in (model.V_, model.W_, model.loss_curve_, model.transform(c)):
            assert np.isfinite(array).all()


@pooled
def test_pooled_refuses_invalid_input(name):
    c = cohort(1, 14)
    for setting, value in (("rank", 0), ("max_iter", 0), ("tol", -1.0), ("n_init", 0), ("loss", "none")):
        model = POOLED[name]()
        if setting in model.get_params():
            with pytest.raises(InputError, match=setting):
                model.set_params(**{setting: value}).fit(c)
    with pytest.raises(InputError, match="no temporal features"):
        POOLED[name]().fit(Cohort(np.zeros((0, 0)), [0, 0]))
    model = POOLED[name]().fit(c)
    with pytest.raises(InputError, match="temporal features"):
        model.transform(cohort(0, n_features=5))
    with pytest.raises(InputError, match="Cohort"):
        model.transform(np.eye(3))
    negative = with_negatives(c)
    if name in SIGNED:
        assert np.isfinite(POOLED[name]().fit(negative).transform(negative)).all()
        return
    for use in (POOLED[name]().fit, POOLED[name]().validate, model.transform):
        with pytest.raises(InputError, match="negative"):
            use(negative)
    assert POOLED[name]().fit(Cohort(c.visits, c.offsets, allow_negative=True)).n_patients_ == 14


@pooled
def test_pooled_pandas_output_is_indexed_by_patient(name):
    c = cohort(1, 14)
    frame = POOLED[name]().set_output(transform="pandas").fit(c).transform(c)
    assert list(frame.index) == list(c.patient_ids)
    assert list(frame.columns) == ["phenotype_1", "phenotype_2", "phenotype_3"]


# --- classifiers -------------------------------------------------------------------------------------------


@classifier
def test_probabilities(name):
    c = presence_effect(n_patients=60)
    assert (np.diff(c.offsets) == 0).any()
    model = CLASSIFIERS[name]().fit(c)
    probabilities = model.predict_proba(c)
    assert probabilities.shape == (60, 2)
    assert probabilities.min() >= 0
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(model.classes_, [0, 1])
    np.testing.assert_array_equal(model.predict(c), model.classes_[probabilities.argmax(axis=1)])
    assert model.score(c, c.labels) == np.mean(model.predict(c) == c.labels)
    np.testing.assert_allclose(model.predict_proba(c[7]), probabilities[[7]], atol=1e-6)


@classifier
def test_labels_may_be_given_as_y(name):
    c = presence_effect(n_patients=60)
    own = CLASSIFIERS[name]().fit(c).predict_proba(c)
    given = CLASSIFIERS[name]().fit(Cohort(c.visits, c.offsets, c.static), c.labels).predict_proba(c)
    np.testing.assert_array_equal(given, own)
    swapped = CLASSIFIERS[name]().fit(c, np.where(c.labels > 0, "ill", "well"))
    assert list(swapped.classes_) == ["ill", "well"]


@classifier
def test_missing_labels_are_refused(name):
    c = presence_effect(n_patients=60)
    labels = c.labels.copy()
    labels[[3, 5]] = np.nan
    for broken in (c, Cohort(c.visits, c.offsets, c.static, labels=labels)):
        with pytest.raises(InputError, match="2 of 60 labels are missing"):
            CLASSIFIERS[name]().fit(broken, labels if broken is c else None)
    with pytest.raises(InputError, match="two are needed"):
        CLASSIFIERS[name]().fit(c, np.zeros(60))


@classifier
def test_same_seed_same_probabilities(name):
    c = presence_effect(n_patients=60)
    first, second = (CLASSIFIERS[name]().fit(c).predict_proba(c) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@classifier
def test_degenerate_cohorts(name):
    labels = np.arange(12) % 2
    for c in (
        cohort(0, 12, n_static=0),  # no static features
        cohort(0, 12, visits=(0, 1)),  # at most one visit
        Cohort(np.zeros((12, 2)), np.arange(13)),  # visits without codes
        Cohort(np.zeros((0, 2)), np.zeros(13, int)),  # no visits at all
    ):
        assert np.isfinite(CLASSIFIERS[name]().fit(c, labels).predict_proba(c)).all()


@classifier
def test_classifier_matches_columns_by_name(name):
    c = presence_effect(n_patients=60)
    model = CLASSIFIERS[name]().fit(c)
    np.testing.assert_allclose(model.predict_proba(shuffled_columns(c)), model.predict_proba(c), atol=1e-5)
    with pytest.raises(InputError, match="temporal features"):
        model.predict_proba(cohort(0, n_features=5))


@classifier
def test_saved_and_loaded_it_predicts_the_same(name, tmp_path):
    c = presence_effect(n_patients=60)
    model = CLASSIFIERS[name]().fit(c)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(c), model.predict_proba(c))
    np.testing.assert_array_equal(loaded.classes_, model.classes_)
    saved = {name: value for name, value in model.get_params().items() if name not in ("device", "callback")}
    assert {name: loaded.get_params()[name] for name in saved} == saved
    c[:3].save(tmp_path / "cohort")
    with pytest.raises(InputError):
        type(model).load(tmp_path / "cohort")


@classifier
def test_cross_validation(name):
    c = presence_effect(n_patients=60)
    scores = cross_val_score(CLASSIFIERS[name](), c, c.labels, cv=2, scoring="roc_auc", error_score="raise")
    assert np.all((scores >= 0) & (scores <= 1))


@classifier
def test_settings_are_chosen_by_the_validation_cohort(name):
    c = presence_effect()
    model = CLASSIFIERS[name]().fit(c[:200], validation=c[200:260])
    auc = roc_auc_score(c.labels[200:260], model.predict_proba(c[200:260])[:, 1])
    reported = getattr(model, "validation_auc_", None)
    reported = max(model.validation_curve_) if reported is None else reported
    assert reported == pytest.approx(auc, abs=1e-9)
    with pytest.raises(InputError, match="one class"):
        CLASSIFIERS[name]().fit(c[:200], validation=c[200:260][c.labels[200:260] == 0])
