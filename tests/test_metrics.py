"""The figures reported, against their definitions written out."""

import numpy as np
import pytest

from helpers.cohorts import cohort, dense
from phenotaste import TASTE, Cohort, InputError, metrics


@pytest.fixture(scope="module")
def fitted():
    c = cohort(3, n_patients=25, visits=(0, 9))
    return TASTE(3, lam=0.4, n_init=1, init="random", random_state=0, max_iter=15).fit(c), c


def courses_of(m, k):
    return m.U_[m.offsets_[k] : m.offsets_[k + 1]]


def residuals(m, c):
    """Of the visits, divided by the patient's size, and of the static features, for each patient."""
    X2 = [
        np.sum((X / m.scale_[k] - courses_of(m, k) * m.W_[k] @ m.V_.T) ** 2)
        for k, (X, _) in enumerate(dense(c))
    ]
    return np.array(X2), np.sum((c.static - m.W_ @ m.F_.T) ** 2, axis=1)


def test_rmse(fitted):
    m, c = fitted
    scaled, static = residuals(m, c)
    X2, A2 = scaled @ m.scale_**2, static[~m.empty_history_].sum()  # in the units of the data
    entries = c.visits.shape[0] * c.shape[1] + np.sum(~m.empty_history_) * c.n_static
    assert m.empty_history_.any()
    assert metrics.rmse(m, c) == pytest.approx(np.sqrt((X2 + 0.2 * A2) / entries), rel=1e-9)
    assert metrics.rmse(m, c, static_weight="one") == pytest.approx(np.sqrt((X2 + A2) / entries), rel=1e-9)
    assert m.rmse_ == metrics.rmse(m, c)
    with pytest.raises(InputError, match="static_weight"):
        metrics.rmse(m, c, static_weight="two")


def test_objective(fitted):
    m, c = fitted
    X2, A2 = residuals(m, c)
    total = 0.0
    for k in np.flatnonzero(~m.empty_history_):
        U = courses_of(m, k)
        nuclear = np.linalg.svd(U @ m.H_.T, compute_uv=False).sum()
        unique = m.mu_k_[k] * (np.sum(U**2) + np.sum(m.H_**2) - 2 * nuclear)
        smooth = m.smooth / 3 * np.sum(np.diff(U, axis=0) ** 2)
        total += 0.5 * m.influence_[k] * (X2[k] + m.lam_eff_ * A2[k] + unique + smooth)
    assert metrics.objective(m, c) == pytest.approx(total, rel=1e-8)


@pytest.mark.parametrize("settings", [{"balance": 1.0}, {"objective": "paper"}])
def test_the_objective_of_the_fit_is_that_of_its_cohort(settings):
    c = cohort(3, n_patients=25, visits=(0, 9))
    m = TASTE(3, n_init=1, init="random", random_state=0, max_iter=15, **settings).fit(c)
    assert metrics.objective(m, c) == pytest.approx(m.loss_curve_[-1], rel=1e-9)


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
        if X.any() and len(U) >= (2 if short == "include" else 3):
            gaps.append(np.sum((U.T @ U - HH) ** 2))
    assert 0 < len(gaps) < len(c)
    assert metrics.cpi(m, short=short) == pytest.approx(1 - np.sum(gaps) / (len(gaps) * np.sum(HH**2)))


def test_cpi_of_present_phenotypes(fitted):
    """Off the diagonal, of phenotypes with a score, in histories of at least as many visits as phenotypes."""
    m, c = fitted
    HH = m.H_.T @ m.H_
    gap = size = 0.0
    for k, (X, _) in enumerate(dense(c)):
        U = courses_of(m, k)
        if X.any() and len(U) >= 3:
            pairs = np.outer(m.W_[k] > 0, m.W_[k] > 0) & ~np.eye(3, dtype=bool)
            gap, size = gap + np.sum((U.T @ U - HH)[pairs] ** 2), size + np.sum(HH[pairs] ** 2)
    assert size > 0
    assert metrics.present_cpi(m, c) == m.cpi_present_ == pytest.approx(1 - gap / size)


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
