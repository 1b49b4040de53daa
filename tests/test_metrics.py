"""The figures reported, against their definitions written out."""

import numpy as np
import pytest

from helpers.cohorts import cohort, dense
from phenotaste import TASTE, Cohort, InputError, metrics


@pytest.fixture(scope="module")
def fitted():
    c = cohort(3, n_patients=25, visits=(0, 9))
    return TASTE(3, lam=0.4, random_state=0, max_iter=15).fit(c), c


def residuals(m, c):
    X2 = sum(
        np.sum((X - (m.U_[c.offsets[k] : c.offsets[k + 1]] * m.W_[k]) @ m.V_.T) ** 2)
        for k, (X, _) in enumerate(dense(c))
    )
    return X2, np.sum((c.static - m.W_ @ m.F_.T) ** 2)


def test_rmse(fitted):
    m, c = fitted
    X2, A2 = residuals(m, c)
    entries = c.visits.shape[0] * c.shape[1] + c.static.size
    assert metrics.rmse(m, c) == pytest.approx(np.sqrt((X2 + 0.2 * A2) / entries), rel=1e-9)
    assert metrics.rmse(m, c, static_weight="one") == pytest.approx(np.sqrt((X2 + A2) / entries), rel=1e-9)
    assert m.rmse_ == metrics.rmse(m, c)
    with pytest.raises(InputError, match="static_weight"):
        metrics.rmse(m, c, static_weight="two")


def test_objective(fitted):
    m, c = fitted
    X2, A2 = residuals(m, c)
    unique = 0.0
    for k in range(len(c)):
        U = m.U_[c.offsets[k] : c.offsets[k + 1]]
        nuclear = np.linalg.svd(U @ m.H_.T, compute_uv=False).sum() if len(U) else 0
        unique += 0.5 * m.mu_k_[k] * (np.sum(U**2) + np.sum(m.H_**2) - 2 * nuclear)
    assert metrics.objective(m, c) == pytest.approx(0.5 * X2 + 0.5 * m.lam_eff_ * A2 + unique, rel=1e-8)


def test_objective_of_other_patients_is_that_of_their_projection(fitted):
    m, _ = fitted
    other = cohort(9, n_patients=10)
    assert metrics.objective(m, other) == pytest.approx(m.project(other).loss, rel=1e-9)


def test_other_patients_with_as_many_visits_are_not_mistaken_for_the_fitted_ones(fitted):
    m, c = fitted
    others = Cohort(2 * c.visits, c.offsets, c.static, patient_ids=np.arange(len(c)) + 1000)
    assert metrics.objective(m, others) == pytest.approx(m.project(others).loss, rel=1e-9)


@pytest.mark.parametrize("short", ["include", "exclude"])
def test_cpi(fitted, short):
    m, c = fitted
    HH = m.H_.T @ m.H_
    gaps = []
    for k, (X, _) in enumerate(dense(c)):
        U = m.U_[c.offsets[k] : c.offsets[k + 1]]
        if X.any() and (short == "include" or len(U) >= 3):
            gaps.append(np.sum((U.T @ U - HH) ** 2))
    assert 0 < len(gaps) < len(c)
    assert metrics.cpi(m, short=short) == pytest.approx(1 - np.sum(gaps) / (len(gaps) * np.sum(HH**2)))


def test_similarities():
    rng = np.random.default_rng(0)
    X = rng.random((9, 3))
    assert metrics.similarity(X, X[:, [2, 0, 1]]) == pytest.approx(1)
    assert metrics.matched_similarity(X, 5 * X[:, [2, 0, 1]]) == pytest.approx(1)
    twice = X[:, [0, 0, 1]]
    assert metrics.similarity(twice, X) == pytest.approx(1)  # the duplicate inflates the paper's measure
    assert metrics.matched_similarity(twice, X) < 0.99
    assert metrics.dissimilarity(X, X[:, [1, 2, 0]]) == pytest.approx(0)
    eye = np.eye(6)
    assert metrics.dissimilarity(eye[:, :3], eye[:, 3:]) == pytest.approx(1)
    assert metrics.similarity(np.zeros((9, 3)), X) == 0
    assert metrics.similarity(eye[:, :2], eye[:, :4]) == pytest.approx(1)
    assert metrics.similarity(eye[:, :4], eye[:, :2]) == pytest.approx(0.5)
    assert metrics.matched_similarity(X, X[:, :2]) == pytest.approx(2 / 3)
    assert metrics.matched_similarity(X[:, :2], X) == pytest.approx(2 / 3)
    assert metrics.dissimilarity(eye[:, [0, 0, 1]], eye[:, [0, 1, 2]]) == pytest.approx(1 / 6)
    assert metrics.dissimilarity(eye[:, [0, 1, 2]], eye[:, [0, 0, 1]]) == pytest.approx(1 / 6)
    assert metrics.cosines(eye[:, :2], [[3, -1], [4, 1], [0, 0], [0, 0], [0, 0], [0, 0]]) == pytest.approx(
        np.array([[0.6, -(0.5**0.5)], [0.8, 0.5**0.5]])
    )
    with pytest.raises(InputError, match="compared"):
        metrics.similarity(X, X[:5])
    with pytest.raises(InputError, match="ranks"):
        metrics.dissimilarity(X, X[:, :2])
