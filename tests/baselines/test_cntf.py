"""CNTF: its kernels against the reference, its network, recovery, prediction, errors and saved models."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.decomposition import NMF
from sklearn.metrics import roc_auc_score

from helpers.cohorts import cohort, dense
from helpers.kernels import compiled
from helpers.labelled import order_effect, presence_effect
from phenotaste import Cohort, InputError, metrics
from phenotaste.baselines import CNTF
from phenotaste.cohort.align import read_only
from phenotaste.core import poisson
from phenotaste.core.records import Model
from phenotaste.core.reference import poisson_divergence, poisson_shares, poisson_step
from phenotaste.storage import tensors

torch = pytest.importorskip("torch", reason="the recurrent baselines need the extra 'gpu'")
torch.set_num_threads(1)

SMALL = {"hidden_size": 8, "max_iter": 8, "pretrain": 3, "max_epochs": 6, "random_state": 0}
POISSON = SMALL | {"beta": 0.0, "predictor": "lasso", "C": 1.0}


def counts(seed, n_visits=12, J=6, R=3, zero_feature=True):
    """Sparse counts with empty visits, and definitions in which one feature has weight zero."""
    rng = np.random.default_rng(seed)
    X = rng.poisson(0.7, (n_visits, J)).astype(float)
    X[::5] = 0
    V = rng.random((J, R)) * (rng.random((J, R)) < 0.8)
    V[0] = rng.random(R) + 0.1
    if zero_feature:
        V[-1] = 0
    S = rng.random((n_visits, R))
    S[1] = 0
    return X, V / V.sum(axis=0), S, rng


def csr(X):
    """The arrays of X, with the types that the kernels get in a fit, so that they are compiled once."""
    matrix = sparse.csr_array(X)
    indices, indptr = read_only(matrix.indices, np.int32), read_only(matrix.indptr, np.int64)
    return poisson.CsrCounts(matrix.data, indices, indptr)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 20.0]), st.integers(0, 12))
@settings(max_examples=40)
def test_patient_step_matches_the_reference(seed, beta, n_first):
    X, V, S, rng = counts(seed)
    rows = rng.permutation(len(X))
    expected, gradient = rng.random(S.shape), beta * rng.standard_normal(S.shape)
    has_expected = np.arange(len(X)) >= n_first
    reference = poisson_step(X[rows], V, S[rows], expected, gradient, has_expected, beta)
    shares = poisson_shares(X, V, S).sum(axis=0)
    T = np.ones_like(V)
    regularisation = poisson.Regularisation(expected, gradient, n_first, beta)
    poisson.patient_step(csr(X), rows, V, S, regularisation, T)
    np.testing.assert_allclose(S[rows], reference, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(T, 1 + shares, rtol=1e-10)
    assert S.min() >= 0


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_divergence_matches_the_reference(seed):
    X, V, S, _ = counts(seed)
    divergences = np.empty(len(X))
    poisson.divergences(csr(X), V, S, divergences)
    np.testing.assert_allclose(divergences, poisson_divergence(X, V, S), rtol=1e-10, atol=1e-10)


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_projection_maximises_the_likelihood(seed):
    """The gradient is zero where s > 0 and non-negative elsewhere."""
    X, V, S, _ = counts(seed, zero_feature=False)
    poisson.project_rows(csr(X), V, S, 1e-12, 100_000)
    mean = S @ V.T
    gradient = V.sum(axis=0) - np.divide(X, mean, out=np.zeros_like(X), where=mean > 0) @ V
    nonempty = X.sum(axis=1) > 0
    assert np.abs(gradient * S)[nonempty].max() < 1e-6
    assert gradient[nonempty].min() > -1e-3
    assert np.all(S[~nonempty] == 0)


@given(st.floats(0.01, 100), st.floats(-100, 100), st.floats(0, 100))
@example(0.125, 5e-324, 5e-324)
def test_positive_root(A, B, c):
    s = compiled(poisson.positive_root)(A, B, c)
    assert s >= 0
    assert A * s * s + B * s == pytest.approx(c, rel=1e-6, abs=1e-6 * (1 + B * B / A))


def test_plain_poisson_factorisation_never_rises():
    for seed in range(3):
        curve = CNTF(3, **POISSON | {"max_iter": 40, "tol": 0}).fit(cohort(seed, 30)).loss_curve_
        assert np.all(np.diff(curve) <= 1e-9 * curve[0])
        assert curve[-1] < curve[0]


def test_features_with_weight_zero_at_the_start_are_learnt(monkeypatch):
    """EM steps keep zeros, so every feature needs a positive starting weight."""
    c, _ = drifting(n_patients=30)
    start = Model(np.eye(3), np.vstack([np.ones((6, 3)), np.zeros((6, 3))]), np.zeros((0, 3)))
    monkeypatch.setattr("phenotaste.baselines.cntf.init_model", lambda *_: start)
    assert CNTF(3, **POISSON).fit(c).V_[6:].sum(axis=1).min() > 0


def test_rows_of_previous_visits():
    from phenotaste.baselines._cntf_networks import previous_rows
    from phenotaste.baselines._recurrent import packed_rows

    offsets = np.array([0, 4, 5, 5, 8])
    rows, owners, per_step = packed_rows(offsets, np.array([0, 3, 1]))
    np.testing.assert_array_equal(rows, [0, 5, 4, 1, 6, 2, 7, 3])
    np.testing.assert_array_equal(owners, [0, 1, 2, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(rows[previous_rows(per_step)], rows[3:] - 1)


def test_gradient_of_the_prediction_errors():
    """Against finite differences: d Σ(s − expected)² / ds, with s as the network's input only."""
    from phenotaste.baselines._cntf_networks import NextVisitLSTM, Regulariser

    torch.manual_seed(0)
    network = NextVisitLSTM(2, 5, 1)
    per_step = np.array([3, 2, 1])
    visits = np.random.default_rng(0).random((6, 2))

    def expected(inputs):
        with torch.no_grad():
            return network(torch.tensor(inputs, dtype=torch.float32), per_step).double().numpy()

    before = expected(visits)
    differences = np.zeros_like(visits)
    for at in np.ndindex(*visits.shape):
        moved = np.zeros_like(visits)
        moved[at] = 0.02
        up, down = (np.square(visits[3:] - expected(visits + step)).sum() for step in (moved, -moved))
        differences[at] = (up - down) / 0.04
    predicted, gradient = Regulariser(network, 1e-3, torch.device("cpu")).train_step(visits, per_step)
    np.testing.assert_allclose(predicted[3:], before, rtol=1e-5)
    np.testing.assert_allclose(gradient, differences, rtol=0.01, atol=1e-4)
    assert np.all(gradient[-1] == 0)
    assert not np.array_equal(expected(visits), before)


def drifting(seed=0, n_patients=120):
    """Poisson visits whose three phenotypes alternate smoothly over time."""
    rng = np.random.default_rng(seed)
    V = np.repeat(np.eye(3), 4, axis=0) * rng.uniform(0.5, 1, (12, 3))
    visits, lengths = [], rng.integers(2, 14, n_patients)
    for n in lengths:
        turn = np.arange(n)[:, None] / 4 + rng.uniform(0, 3) - np.arange(3)
        visits.append(rng.poisson(2 * np.exp(2 * np.cos(2 * np.pi * turn / 3) - 1) @ V.T * 0.6))
    return Cohort(np.vstack(visits).astype(float), np.concatenate([[0], np.cumsum(lengths)])), V


def test_recovers_definitions_and_makes_visits_predictable():
    c, V = drifting()
    fits = {
        beta: CNTF(3, beta=beta, hidden_size=16, learning_rate=0.01, max_iter=60, random_state=0).fit(c)
        for beta in (0.0, 1.0)
    }
    for model in fits.values():
        assert metrics.matched_similarity(model.V_, V) > 0.95
    plain, regularised = fits.values()
    assert regularised.loss_curve_[-1] < 0.9 * regularised.loss_curve_[10]
    # Under the same network the regularised courses have smaller prediction errors, at the cost of a worse fit.
    plain.network_, plain.beta = regularised.network_, 1.0
    assert regularised.own_objective(c) < 0.9 * plain.own_objective(c)
    assert regularised.rmse_ > plain.rmse_


def test_plain_poisson_factorisation_reaches_the_loss_of_scikit_learn():
    """The same objective as NMF with the Kullback–Leibler divergence, by another algorithm from another start."""
    c, _ = drifting()
    loss = CNTF(3, **POISSON | {"max_iter": 300, "tol": 0}).fit(c).loss_curve_[-1]
    nmf = NMF(
        3, solver="mu", beta_loss="kullback-leibler", init="nndsvda", max_iter=300, tol=0, random_state=0
    )
    nmf.fit(c.visits)
    assert loss == pytest.approx(nmf.reconstruction_err_**2 / 2, rel=1e-3)


def test_only_the_lstm_detects_an_order_effect():
    c = order_effect()
    settings = {"max_iter": 20, "hidden_size": 16, "learning_rate": 0.01, "random_state": 0}
    aucs = {}
    for predictor in ("lstm", "lasso"):
        model = CNTF(4, beta=0.1, predictor=predictor, **settings).fit(c[:400])
        aucs[predictor] = roc_auc_score(c.labels[400:], model.predict_proba(c[400:])[:, 1])
    assert aucs["lstm"] > 0.9
    assert abs(aucs["lasso"] - 0.5) < 0.1


@pytest.mark.parametrize("predictor", ["lstm", "lasso"])
def test_predicts_from_the_total_of_a_phenotype(predictor):
    rng = np.random.default_rng(0)
    labels = (np.arange(300) % 2).astype(float)
    rates = np.repeat(np.where(labels[:, None] > 0, [1.5, 0.5], [0.5, 1.5]), 4, axis=0)
    X = rng.poisson(np.repeat(rates, 3, axis=1)).astype(float)
    c = Cohort(X, np.arange(0, 1201, 4), labels=labels)
    settings = SMALL | {"max_epochs": 20, "learning_rate": 0.02}
    model = CNTF(2, predictor=predictor, **settings).fit(c[:200], validation=c[200:250])
    assert roc_auc_score(c.labels[250:], model.predict_proba(c[250:])[:, 1]) > 0.9
    auc = roc_auc_score(c.labels[200:250], model.predict_proba(c[200:250])[:, 1])
    assert model.validation_auc_ == pytest.approx(auc)


def test_scores_and_courses_are_the_factorisation():
    c = cohort(2, 25)
    model = CNTF(3, **SMALL).fit(c)
    totals = np.array([model.U_[a:b].sum(axis=0) for a, b in zip(c.offsets, c.offsets[1:], strict=False)])
    np.testing.assert_allclose(totals[model.W_ > 0], 1.0)
    np.testing.assert_allclose(model.V_.sum(axis=0), 1.0)
    assert min(model.V_.min(), model.W_.min(), model.U_.min()) >= 0
    plain = CNTF(3, **POISSON).fit(c)  # without a regulariser every event belongs to some phenotype
    np.testing.assert_allclose(plain.W_.sum(axis=1), [X.sum() for X, _ in dense(c)], atol=1e-9)
    for fitted in (model, plain):
        assert metrics.objective(fitted, c) == pytest.approx(fitted.loss_curve_[-1], rel=1e-8)


def test_phenotypes_do_not_depend_on_the_units_of_the_data():
    c = cohort(1, 25)
    thousand = Cohort(1000 * c.visits, c.offsets, c.static)
    a, b = (CNTF(3, **SMALL).fit(data) for data in (c, thousand))
    np.testing.assert_allclose(b.V_, a.V_, atol=1e-4)
    np.testing.assert_allclose(b.W_, 1000 * a.W_, rtol=1e-3, atol=1e-2)


def test_static_features_are_ignored():
    c = presence_effect(n_patients=40)
    bare = Cohort(c.visits, c.offsets, labels=c.labels, feature_names=c.feature_names)
    models = [CNTF(3, **SMALL).fit(data) for data in (c, bare)]
    np.testing.assert_array_equal(models[0].W_, models[1].W_)
    np.testing.assert_array_equal(*(model.predict_proba(c) for model in models))
    assert models[0].F_ is None


def test_scores_do_not_depend_on_the_other_patients():
    c = cohort(3, 20)
    model = CNTF(3, **SMALL).fit(c)
    together = model.transform(c)
    for k in range(len(c)):
        np.testing.assert_array_equal(model.transform(c[k]), together[[k]])


def test_labels_are_optional_but_missing_ones_are_refused():
    c = presence_effect(n_patients=40)
    bare = Cohort(c.visits, c.offsets)
    model = CNTF(3, **SMALL).fit(c)
    assert list(model.classes_) == [0, 1]
    with pytest.raises(InputError, match="fitted without labels"):
        model.fit(bare).predict_proba(bare)
    missing = c.labels.copy()
    missing[0] = np.nan
    with pytest.raises(InputError, match="1 of 40 labels are missing"):
        CNTF(3, **SMALL).fit(c, missing)
    assert CNTF(3, **SMALL, predictor=None).fit(c, missing).predictor_ is None


def test_refusals():
    with pytest.raises(InputError, match="negative"):
        CNTF(2, **SMALL).fit(Cohort([[1.0, -0.1], [0.0, 2.0]], [0, 1, 2], allow_negative=True))
    for setting in ({"beta": -1}, {"predictor": "oracle"}, {"dropout": 1}, {"hidden_size": 0}, {"C": 0}):
        with pytest.raises(InputError, match=next(iter(setting))):
            CNTF(2, **SMALL | setting).fit(cohort(0))


@pytest.mark.parametrize("settings", [SMALL, POISSON, SMALL | {"predictor": None}])
def test_saved_and_loaded_it_predicts_the_same(tmp_path, settings):
    c = presence_effect(n_patients=40)
    model = CNTF(3, **settings).fit(c)
    model.save(tmp_path / "model")
    loaded = CNTF.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(c), model.transform(c))
    assert loaded.project(c).loss == model.project(c).loss
    if model.predictor_ is not None:
        np.testing.assert_array_equal(loaded.predict_proba(c), model.predict_proba(c))
        np.testing.assert_array_equal(loaded.predict(c), model.predict(c))


@pytest.mark.parametrize("name", ["network.decoder.bias", "predictor.classifier.logistic.weight"])
def test_saved_networks_of_a_wrong_shape_are_refused(tmp_path, name):
    CNTF(3, **SMALL).fit(presence_effect(n_patients=40)).save(tmp_path / "model")
    files, meta = tensors.read(tmp_path / "model", "taste-model", mmap=False)
    files["networks"][name] = files["networks"][name][..., :-1]
    tensors.write(tmp_path / "model", "taste-model", files, meta)
    with pytest.raises(InputError, match="not a complete CNTF"):
        CNTF.load(tmp_path / "model")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_and_cpu_agree():
    c = presence_effect(n_patients=60)
    on_cpu, on_gpu = (CNTF(3, **SMALL, device=device).fit(c) for device in ("cpu", "cuda"))
    assert metrics.matched_similarity(on_cpu.V_, on_gpu.V_) > 0.99
    np.testing.assert_allclose(on_cpu.W_, on_gpu.W_, atol=0.05)
    assert on_gpu.predict_proba(c).shape == (60, 2)


def test_torch_is_not_imported_without_a_network():
    code = (
        "import sys; from phenotaste import Cohort, baselines; baselines.CNTF();"
        "c = Cohort([[1.0, 0], [2.0, 1], [0, 1]], [0, 1, 2, 3], labels=[0, 1, 1]);"
        "baselines.CNTF(1, beta=0, predictor='lasso').fit(c).predict_proba(c);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
