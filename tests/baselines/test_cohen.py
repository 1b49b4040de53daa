"""Cohen+: flexible coupling, as published and on the core, against each other, TASTE and matcouply."""

import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linear_sum_assignment, nnls

from helpers.cohorts import cohort, cohorts
from phenotaste import TASTE, Cohort, InputError, metrics, simulate
from phenotaste.baselines import CohenPlus
from phenotaste.baselines._cohen_published import hals, khatri_rao


def congruence(m, W, V):
    """Mean over matched phenotypes of the product of cosines in both factors."""
    C = metrics.cosines(m.V_, V) * metrics.cosines(m.W_, W)
    rows, columns = linear_sum_assignment(-C)
    return C[rows, columns].mean()


@pytest.fixture(scope="module")
def small():
    return simulate.recovery(noise=0.05, noise_scale="data", n_patients=25, n_visits=20)


@given(st.integers(0, 50), st.integers(1, 4))
def test_hals_is_nnls(seed, rank):
    rng = np.random.default_rng(seed)
    M, Y = rng.random((10, rank)), rng.standard_normal((10, 5))
    found = hals(M.T @ M, Y.T @ M, np.zeros((5, rank)))
    best = np.array([nnls(M, y)[0] for y in Y.T])
    cost = [np.sum((Y - M @ X.T) ** 2) for X in (found, best)]
    assert found.min() >= 0
    assert cost[0] == pytest.approx(cost[1], rel=1e-4)


def test_khatri_rao_products():
    rng = np.random.default_rng(0)
    V, U = rng.random((4, 3)), rng.random((5, 3))
    expected = np.column_stack([np.kron(V[:, r], U[:, r]) for r in range(3)])
    np.testing.assert_allclose(khatri_rao(V, U), expected)


@pytest.mark.parametrize("algorithm", ["core", "published"])
def test_the_objective_is_that_of_the_paper(small, algorithm):
    c, _ = small
    settings = {"lam": 0.5, "mu": 0.2, "max_iter": 5, "random_state": 0}
    ours, paper = (
        CohenPlus(4, algorithm=algorithm, **settings).fit(c),
        TASTE(4, objective="paper", **settings).fit(c),
    )
    np.testing.assert_array_equal(ours.mu_k_, paper.mu_k_)
    vars(paper).update({name: getattr(ours, name) for name in ("H_", "V_", "F_", "U_", "W_")})
    assert metrics.objective(paper, c) == pytest.approx(ours.loss_curve_[-1], rel=1e-8)


def test_as_published_it_ends_at_a_comparable_objective(small):
    c, truth = small
    core = CohenPlus(4, random_state=0, max_iter=300).fit(c)
    published = CohenPlus(4, random_state=0, algorithm="published", max_iter=60).fit(c)
    assert published.loss_curve_[-1] == pytest.approx(core.loss_curve_[-1], rel=0.05)
    assert congruence(published, core.W_, core.V_) > 0.95
    assert metrics.matched_similarity(published.V_, truth.V) > 0.97
    assert metrics.objective(published, c) == pytest.approx(published.loss_curve_[-1], rel=1e-8)


@given(cohorts, st.integers(1, 4))
def test_as_published_the_objective_never_rises(c, rank):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = CohenPlus(rank, algorithm="published", max_iter=5, tol=0, random_state=0, mu=0.5).fit(c)
    size = 0.5 * np.sum(c.visits.data**2) + 0.05 * (0 if c.static is None else np.sum(c.static**2))
    assert np.all(np.diff(m.loss_curve_) <= 1e-7 * size + 1e-9)
    for factor in (m.U_, m.V_, m.W_) if m.F_ is None else (m.U_, m.V_, m.W_, m.F_):
        assert factor.min(initial=0.0) >= 0
        assert np.isfinite(factor).all()


@pytest.mark.parametrize("algorithm", ["core", "published"])
def test_growing_coupling_becomes_exact(small, algorithm):
    c, truth = small
    n = 150 if algorithm == "core" else 80
    m = CohenPlus(4, mu=0.2, growth=1.1, algorithm=algorithm, max_iter=n, random_state=0, tol=0).fit(c)
    fixed = CohenPlus(4, mu=0.01, random_state=0, max_iter=n).fit(c)
    assert m.mu_eff_ > 10
    assert m.cpi_ > 0.9999
    assert m.cpi_ > fixed.cpi_
    assert metrics.matched_similarity(m.V_, truth.V) > 0.97
    np.testing.assert_array_equal(m.mu_k_, m.mu_eff_)
    np.testing.assert_array_equal(m.project(c[:2]).weights.mu, m.mu_k_[:2])
    assert metrics.objective(m, c) == pytest.approx(m.loss_curve_[-1], rel=1e-8)


def test_a_grown_weight_is_saved(small, tmp_path):
    c, _ = small
    m = CohenPlus(3, mu=0.2, growth=1.05, max_iter=10, random_state=0).fit(c)
    m.save(tmp_path / "model")
    loaded = CohenPlus.load(tmp_path / "model")
    assert loaded.mu_eff_ == m.mu_eff_
    np.testing.assert_array_equal(loaded.transform(c), m.transform(c))


def test_the_factors_of_matcouply():
    """Without A both fit non-negative PARAFAC2: on data that follow it, the same phenotypes (one start may miss)."""
    from matcouply.decomposition import parafac2_aoadmm

    c, _ = simulate.recovery(n_patients=20, n_visits=15, n_features=15, rank=3)
    c = Cohort(c.visits, c.offsets)
    matrices = np.split(c.visits.toarray(), c.offsets[1:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, (W, _, V) = parafac2_aoadmm(matrices, 3, n_iter_max=400, non_negative=True, random_state=0)
    for settings in (
        {"n_init": 4},
        {"mu": 0.2, "growth": 1.05},
        {"mu": 0.2, "growth": 1.05, "algorithm": "published", "max_iter": 100},
    ):
        m = CohenPlus(3, random_state=0, **({"max_iter": 500, "tol": 1e-8} | settings)).fit(c)
        assert congruence(m, W, V) >= 0.95, settings


def test_as_published_one_patient_at_a_time_is_dense():
    rng = np.random.default_rng(0)
    visits, features = 6_000, 4_000  # 192 MB if it were dense
    X = sparse.random_array((visits, features), density=1e-3, format="csr", random_state=rng)
    c = Cohort(X, np.arange(0, visits + 1, 20))
    tracemalloc.start()
    CohenPlus(2, algorithm="published", max_iter=1, random_state=0, init="random").fit(c)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6


@pytest.mark.parametrize("settings", [{"growth": 0.5}, {"algorithm": "als"}, {"mu": -1}, {"weights": "x"}])
def test_bad_settings_are_refused_by_name(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        CohenPlus(**settings).fit(cohort(0))
