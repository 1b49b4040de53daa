"""Methods without courses, each against its definition: NMF of patients and visits, LDA, SVD."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize, nnls
from scipy.special import psi

from helpers.cohorts import cohort, cohorts, dense
from phenotaste import Cohort, baselines, metrics, simulate
from phenotaste.baselines._pooled import Visits
from phenotaste.baselines.lda import expected_counts
from phenotaste.baselines.nmf import row_scores

SLOW = settings(deadline=None, max_examples=15)


@SLOW
@given(cohorts)
def test_sums_are_those_of_the_visits(c):
    sums = Visits(c.visits, c.offsets).sums().toarray()
    np.testing.assert_allclose(sums, [X.sum(axis=0) for X, _ in dense(c)], rtol=1e-6, atol=1e-12)


@SLOW
@given(st.integers(0, 10_000), st.sampled_from([1, 3, 5]))
def test_frobenius_scores_are_the_minimum(seed, rank):
    rng = np.random.default_rng(seed)
    c, V = cohort(seed), rng.random((7, rank)) * (rng.random((7, rank)) < 0.7)
    X = Visits(c.visits, c.offsets).sums()
    W = row_scores(X, V, "frobenius")
    for x, w in zip(X.toarray(), W, strict=True):
        assert np.linalg.norm(x - V @ w) == pytest.approx(nnls(V, x)[1], abs=1e-8)
        assert w.min() >= 0


@pytest.mark.parametrize("seed", range(3))
def test_divergence_scores_are_the_minimum(seed):
    rng = np.random.default_rng(seed)
    c, V = cohort(seed, n_patients=6), rng.random((7, 3))
    V /= np.linalg.norm(V, axis=0)
    X = Visits(c.visits, c.offsets).sums()

    def loss(w, x):
        mean = np.maximum(V @ w, 1e-12)
        return np.sum(mean - x * np.log(mean))

    for x, w in zip(X.toarray(), row_scores(X, V, "kullback-leibler"), strict=True):
        best = minimize(loss, np.full(3, x.sum() / 3 + 0.1), (x,), bounds=[(0, None)] * 3, tol=1e-12)
        assert loss(w, x) <= best.fun + 1e-6 * max(1.0, abs(best.fun))
        assert w.min() >= 0


@pytest.mark.parametrize("loss", ["frobenius", "kullback-leibler"])
def test_visits_scores_add_up_and_order_does_not_matter(loss):
    c = cohort(4, 20)
    model = baselines.VisitNMF(2, loss=loss, n_init=1, random_state=0).fit(c)
    rows = row_scores(c.visits, model.V_, loss)
    expected = [rows[a:b].sum(axis=0) for a, b in zip(c.offsets[:-1], c.offsets[1:], strict=True)]
    np.testing.assert_allclose(model.transform(c), expected, atol=1e-12)
    # What occurs in the same visit matters: pooled, the same patients have other scores.
    pooled = Cohort(Visits(c.visits, c.offsets).sums(), np.arange(21))
    assert not np.allclose(model.transform(pooled), model.transform(c), rtol=0.01)


@pytest.mark.parametrize("method", ["PatientNMF", "VisitNMF", "PatientLDA"])
def test_planted_phenotypes_are_found(method):
    c, truth = simulate.ehr(200, n_features=30, rank=3, random_state=2)
    model = getattr(baselines, method)(3, random_state=0).fit(c)
    assert metrics.matched_similarity(truth.V, model.V_) > 0.9
    assert model.converged_


@pytest.mark.parametrize("method", ["PatientNMF", "VisitNMF", "PatientLDA"])
def test_the_start_with_the_lowest_loss_is_kept(method):
    c = cohort(5, 30, density=0.6)
    one, four = (getattr(baselines, method)(3, n_init=n, random_state=0).fit(c) for n in (1, 4))
    assert four.loss_curve_[-1] <= one.loss_curve_[-1]


def test_few_iterations_are_reported():
    model = baselines.PatientNMF(3, max_iter=2, random_state=0).fit(cohort(1, 30))
    assert (model.outcome_, model.n_iter_) == ("max_iter", 2)


def lda_reference(x, topics, prior, iterations=2000):
    """Blei et al., the variational posterior of one patient: expected counts given the topics."""
    words = np.exp(psi(topics) - psi(topics.sum(axis=1, keepdims=True)))
    gamma = np.full(len(topics), prior + x.sum() / len(topics))
    for _ in range(iterations):
        share = np.exp(psi(gamma) - psi(gamma.sum()))[:, None] * words
        gamma = prior + (share / share.sum(axis=0)) @ x
    return gamma - prior


def test_lda_scores_are_the_expected_counts():
    c = cohort(6, 25, density=0.5)
    model = baselines.PatientLDA(3, random_state=0).fit(c)
    X = Visits(c.visits, c.offsets).sums().toarray()
    scores = model.transform(c)
    np.testing.assert_allclose(scores.sum(axis=1), X.sum(axis=1), rtol=1e-9)
    for x, w in zip(X, scores, strict=True):
        np.testing.assert_allclose(
            w, lda_reference(x, model.topic_counts_, 1 / 3), atol=0.02 * max(1, x.sum())
        )
    np.testing.assert_allclose(
        model.V_, (model.topic_counts_ / np.linalg.norm(model.topic_counts_, axis=1)[:, None]).T
    )
    assert not expected_counts(Visits(c.visits, c.offsets).sums()[:0], model.topic_counts_).size
    for rank in range(2, 9):  # 1/R is rounded
        assert not expected_counts(sparse.csr_array((1, 4)), np.ones((rank, 4))).any()


@pytest.mark.parametrize("rank", [2, 3, 9])
def test_svd_is_the_best_approximation_with_fixed_signs(rank):
    c = cohort(7, 20, negative=True)  # the last of 7 features never occurs: rank 6
    model = baselines.PatientSVD(rank).fit(c)
    X = np.array([visits.sum(axis=0) for visits, _ in dense(c)])
    values = np.linalg.svd(X, compute_uv=False)
    kept = min(rank, 6)
    np.testing.assert_allclose(
        np.linalg.norm(X - model.W_ @ model.V_.T), np.linalg.norm(values[kept:]), atol=1e-8
    )
    assert model.loss_curve_[-1] == pytest.approx(np.linalg.norm(values[kept:]), abs=1e-6)
    np.testing.assert_allclose(np.linalg.norm(model.W_, axis=0)[:kept], values[:kept])
    assert not model.V_[:, kept:].any()
    largest = model.V_[np.abs(model.V_).argmax(axis=0), np.arange(rank)]
    assert np.all(largest[:kept] > 0)
    np.testing.assert_allclose(model.transform(c), X @ model.V_, atol=1e-10)


def test_svd_of_visits_that_cancel():
    c = Cohort(np.array([[1.0, 2.0], [-1.0, -2.0]] * 3), [0, 2, 4, 6], allow_negative=True)
    assert not baselines.PatientSVD(1).fit(c).transform(c).any()


def test_tables_of_signed_definitions_hold_negative_weights():
    c = cohort(7, 20, density=0.6)
    table = baselines.PatientSVD(2).fit(c).phenotypes(top=3, scale="column")
    second = table[table.phenotype == 2].weight
    assert second.min() < -0.1
    assert second.iloc[0] == 1.0
    assert np.all(np.diff(second.abs()) <= 0)


def test_large_static_features_do_not_matter():
    c = cohort(1, 14)
    large = Cohort(c.visits, c.offsets, c.static * 1e60)
    np.testing.assert_array_equal(baselines.PatientSVD(2).fit(large).V_, baselines.PatientSVD(2).fit(c).V_)
