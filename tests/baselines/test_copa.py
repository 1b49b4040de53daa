"""COPA and its variants: proximal steps, persistent dual variables, smooth courses, static features."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.cohorts import cohort
from phenotaste import Cohort, InputError, metrics, simulate
from phenotaste.baselines import Copa, CopaPlus, CopaStatic, Spartan
from phenotaste.baselines.copa import ADMMUpdates, numeric_times
from phenotaste.core.parafac2 import constraints
from phenotaste.core.reference import nnls_from_gram


def problem(seed, rows=6, rank=4):
    """A Gram matrix with correlated columns, and right-hand sides with active constraints."""
    rng = np.random.default_rng(seed)
    M = rng.random((12, rank)) + 0.5
    return M.T @ M, rng.standard_normal((rows, 12)) @ M


@given(st.floats(-3, 3), st.floats(0, 2), st.floats(0, 2), st.floats(0.1, 5), st.booleans())
def test_the_proximal_operator_minimises(x, l1, l0, rho, positive):
    """Against a fine grid of values; the threshold of l0 depends on rho."""
    minimiser = constraints.sparse(l1, l0, positive)(np.array([[x]]), rho)[0, 0]
    grid = np.concatenate([[0.0, minimiser], np.linspace(0 if positive else -4, 4, 8001)])

    def cost(v):
        return 0.5 * rho * (v - x) ** 2 + l1 * np.abs(v) + l0 * (v != 0)

    assert cost(minimiser) <= cost(grid).min() + 1e-9
    assert not positive or minimiser >= 0


def test_the_hard_threshold_is_that_of_the_paper():
    proximal = constraints.sparse(0.0, 2.0, positive=True)
    values = np.array([[1.9, 2.1, -5.0, 40.0]])
    np.testing.assert_array_equal(proximal(values, 1.0), [[0.0, 2.1, 0.0, 40.0]])
    np.testing.assert_array_equal(proximal(values, 0.25), [[0.0, 0.0, 0.0, 40.0]])


@pytest.mark.parametrize("seed", range(3))
def test_dual_variables_persist_between_iterations(seed):
    """One ADMM step per iteration converges to the NNLS solution only if the dual variables are kept."""
    gram, right = problem(seed)
    exact = np.array([nnls_from_gram(gram, row) for row in right])
    assert (exact == 0).any()
    persistent = ADMMUpdates(0.0, 0.0, nonnegative_h=True, steps=1)
    restarted = np.zeros_like(exact)
    X = {name: np.zeros_like(exact) for name in ("H", "V", "F")}
    for _ in range(3000):
        X = {name: getattr(persistent, name)(gram, right, X[name]) for name in X}
        restarted = ADMMUpdates(0.0, 0.0, nonnegative_h=True, steps=1).V(gram, right, restarted)
    for solution in X.values():
        np.testing.assert_allclose(solution, exact, atol=1e-6)
    assert np.abs(restarted - exact).max() > 1e-3


def test_dual_variables_are_rescaled_with_the_columns():
    gram, right = problem(0)
    updates = ADMMUpdates(0.0, 0.0, nonnegative_h=True, steps=5)
    updates.V(gram, right, np.zeros_like(right))
    before = updates.duals["V"].copy()
    assert before.any()
    updates.rescale(np.ones(4), scale := np.array([0.5, 2.0, 3.0, 1.0]), np.ones(4))
    np.testing.assert_array_equal(updates.duals["V"], before * scale)


def test_without_further_constraints_it_reaches_the_loss_of_spartan():
    c, _ = simulate.recovery(noise=0.05, noise_scale="data", n_patients=25, n_visits=30)
    spartan = Spartan(4, max_iter=500, tol=1e-7, random_state=0).fit(c)
    for settings in ({}, {"admm_steps": 1, "max_iter": 1500}):
        copa = Copa(4, **({"max_iter": 500, "tol": 1e-7, "random_state": 0} | settings)).fit(c)
        assert copa.loss_curve_[-1] == pytest.approx(spartan.loss_curve_[-1], rel=1e-2)
        assert min(copa.H_.min(), copa.V_.min(), copa.W_.min()) >= 0
        assert copa.cpi_ == pytest.approx(1.0, abs=1e-9)


def test_sparsity_grows_with_its_weight():
    c, _ = simulate.recovery(noise=0.05, noise_scale="data", n_patients=25, n_visits=30)
    for name, weights in (("l1", (0.0, 0.3, 1.0)), ("l0", (0.0, 0.3, 3.0))):
        zeros = [np.mean(Copa(4, random_state=0, **{name: w}).fit(c).V_ == 0) for w in weights]
        assert zeros[0] < zeros[1] < zeros[2] < 1, name


@pytest.mark.parametrize("gaps", [False, True])
def test_smooth_courses_lie_in_the_spline_space(gaps):
    c = cohort(3, n_patients=15, visits=(0, 25), n_static=0)
    rng = np.random.default_rng(0)
    times = np.concatenate([np.sort(rng.integers(0, 900, n)) for n in np.diff(c.offsets)]) if gaps else None
    c = Cohort(c.visits, c.offsets, visit_times=times)
    settings = {"max_iter": 10, "random_state": 0}
    smooth = Copa(3, smooth=True, n_splines=5, degree=2, **settings).fit(c)
    rough = Copa(3, **settings).fit(c)
    assert np.abs(smooth.U_).max() > 0.1
    far = []
    for k in range(len(c)):
        rows = slice(c.offsets[k], c.offsets[k + 1])
        if c.offsets[k + 1] - c.offsets[k] > 6:
            space = constraints.m_splines(numeric_times(c)[rows], 5, 2)
            projected = [space @ np.linalg.lstsq(space, m.U_[rows], rcond=None)[0] for m in (smooth, rough)]
            np.testing.assert_allclose(projected[0], smooth.U_[rows], atol=1e-8)
            new = smooth.project(c[k]).U
            np.testing.assert_allclose(space @ np.linalg.lstsq(space, new, rcond=None)[0], new, atol=1e-8)
            far.append(np.abs(projected[1] - rough.U_[rows]).max())
    assert len(far) > 5
    assert min(far) > 1e-3


def test_splines_depend_on_gaps_but_not_on_units_of_time():
    even, gapped = np.arange(12.0), np.array([0, 1, 2, 3, 4, 5, 300, 301, 302, 303, 304, 700.0])
    spaces = [
        constraints.orthonormal(constraints.m_splines(t, 6, 3)) for t in (even, gapped, 86400 * gapped + 5)
    ]
    between = [np.linalg.norm(spaces[0] @ spaces[0].T - P @ P.T, 2) for P in spaces[1:]]
    assert between[0] > 0.1
    np.testing.assert_allclose(spaces[1] @ spaces[1].T, spaces[2] @ spaces[2].T, atol=1e-8)


def test_dates_are_converted_to_times():
    c = cohort(1, n_patients=3, visits=(4, 8))
    days = np.concatenate([np.arange(n) ** 2 for n in np.diff(c.offsets)])
    dated = Cohort(c.visits, c.offsets, visit_times=np.datetime64("2020-01-01") + days)
    counted = Cohort(c.visits, c.offsets, visit_times=days)
    fits = [
        Copa(2, smooth=True, n_splines=4, max_iter=5, random_state=0).fit(data) for data in (dated, counted)
    ]
    np.testing.assert_allclose(fits[0].U_, fits[1].U_, atol=1e-8)


def test_m_splines_integrate_to_one():
    times = np.linspace(0, 1, 20_001)
    values = constraints.m_splines(times, 7, 3)
    assert values.shape == (20_001, 7)
    assert values.min() >= 0
    np.testing.assert_allclose(np.trapezoid(values, times, axis=0), 1.0, atol=1e-3)


@pytest.mark.parametrize("times", [[3.0], [2.0, 2.0], [0, 1.0], [0, 0, 0, 1.0], [0, 1, 1, 1, 1, 1, 1, 9.0]])
def test_every_history_has_a_basis(times):
    times = np.array(times)
    basis = constraints.smooth_bases(times, np.array([0, 0, len(times)]), 7, 3)
    assert basis.shape == (len(times), 7)
    gram = basis.T @ basis
    np.testing.assert_allclose(gram, np.diag(np.diagonal(gram).round()), atol=1e-10)
    constant = np.ones(len(times))
    np.testing.assert_allclose(basis @ (basis.T @ constant), constant, atol=1e-8)  # constants are in its span


def test_truncated_courses_of_the_coupled_model():
    c, truth = simulate.recovery(noise=0.05, noise_scale="data", n_patients=40, n_visits=30)
    plus = CopaPlus(4, lam=1.0, random_state=0, max_iter=500).fit(c)
    assert plus.U_.min() == 0.0
    assert plus.F_.min() >= 0
    assert metrics.matched_similarity(plus.F_, truth.F) > 0.97
    assert plus.cpi_ < 1 - 1e-6  # truncation breaks the cross-products
    assert plus.lam_eff_ == 1.0
    U = plus.project(c).U
    assert U.min() == 0.0
    relative = CopaPlus(4, lam=0.1, weights="relative", random_state=0, max_iter=3).fit(c)
    assert relative.lam_eff_ == pytest.approx(0.1 * np.sum(c.visits.data**2) / np.sum(c.static**2))


def test_static_features_determine_the_scores_of_empty_histories():
    c, _ = simulate.recovery(n_patients=20, n_visits=10)
    m = CopaPlus(4, lam=1.0, random_state=0, max_iter=100).fit(c)
    empty_histories = Cohort(c.visits[:0], [0] * 4, c.static[:3])
    projected = m.project(empty_histories)
    np.testing.assert_allclose(
        projected.W, [nnls_from_gram(m.F_.T @ m.F_, m.F_.T @ a) for a in c.static[:3]], atol=1e-8
    )
    model = CopaPlus(2, random_state=0, max_iter=5).fit(cohort(0, n_patients=20, visits=(0, 2)))
    assert model.n_empty_ > 0
    assert model.W_[model.empty_history_].max() > 0


def test_copa_static_is_copa_on_extended_rows():
    c = cohort(5, n_patients=15, visits=(1, 9))
    rows = np.hstack([c.visits.toarray(), np.repeat(c.static, np.diff(c.offsets), axis=0)])
    settings = {"max_iter": 10, "random_state": 0}
    one, other = CopaStatic(3, **settings).fit(c), Copa(3, **settings).fit(Cohort(rows, c.offsets))
    np.testing.assert_array_equal(np.vstack([one.V_, one.F_]), other.V_)
    np.testing.assert_array_equal(one.W_, other.W_)
    np.testing.assert_allclose(one.loss_curve_, other.loss_curve_, rtol=1e-12)
    assert metrics.objective(one, c) == pytest.approx(metrics.objective(other, Cohort(rows, c.offsets)))
    np.testing.assert_array_equal(one.transform(c[:4]), other.transform(Cohort(rows, c.offsets)[:4]))
    assert metrics.objective(one, c[:4]) == pytest.approx(one.project(c[:4]).loss)
    assert set(one.phenotypes(min_weight=0).kind) == {"temporal", "static"}


@pytest.mark.parametrize(
    "settings", [{"l1": -1}, {"l0": float("nan")}, {"degree": 7}, {"n_splines": 0}, {"admm_steps": 0}]
)
def test_bad_settings_are_refused_by_name(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        Copa(2, smooth=True, **settings).fit(cohort(0))
