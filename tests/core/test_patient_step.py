"""The compiled patient step and model step against the reference, and the descent that both promise."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.cohorts import cohort, cohorts, dense
from helpers.fits import after_iterations, start_fit
from helpers.kernels import compiled
from phenotaste import Cohort
from phenotaste.cohort.align import align, columns_of
from phenotaste.core import reference
from phenotaste.core.kernels import unit_columns as kernels
from phenotaste.core.kernels.patient import padded
from phenotaste.core.kernels.polar import SIGMA_FLOOR
from phenotaste.core.model_step import model_step, objective, unit_columns
from phenotaste.core.records import Model, Sums, Weights
from phenotaste.engines.threads import ThreadSession
from phenotaste.runs.resources import available_cores

roughness = compiled(kernels.roughness)
unit_columns_step = compiled(kernels.unit_columns_step)


@given(c=cohorts, rank=st.integers(1, 6))
def test_start_matches_the_reference(c, rank):
    engine, model = start_fit(c, rank)
    for k, (X, _) in enumerate(dense(c)):
        rows = slice(c.offsets[k], c.offsets[k + 1])
        expected = reference.init_U(X, model.V) if X.any() else np.zeros((len(X), rank))
        np.testing.assert_allclose(engine.U[rows], expected, rtol=1e-9, atol=1e-12)


SETTINGS = {
    "unit": {"weights": "unit"},
    "unit, no terms on U": {"weights": "unit", "mu": 0.0, "smooth": 0.0},
    "unit, smooth": {"weights": "unit", "smooth": 2.0, "balance": 1.0},
    "relative": {"weights": "relative"},
    "paper": {"weights": "absolute", "exact": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rank", [1, 3, 6, 19])
def test_patient_step_matches_the_reference(seed, rank, settings):
    if rank == 19 and settings.get("mu") == 0:
        rank = 7  # beyond that nothing but rounding determines some courses
    few = (
        {"visits": (0, 3), "density": 0.1} if seed > 3 else {"visits": (0, 14)}
    )  # few: empty visits and no others
    # More features than phenotypes, so that every patient has one best score.
    c = cohort(seed, n_patients=10, n_features=30, n_static=20, negative=seed % 2 == 1, **few)
    engine, model = after_iterations(c, rank, **settings)
    before = engine.U.copy()
    sums = engine.step(model)
    expected = Sums.zeros(c.shape[1], len(model.F), rank)
    for k, (X, a) in enumerate(dense(c)):
        rows = slice(c.offsets[k], c.offsets[k + 1])
        terms = reference.terms_of(engine.weights, k)
        U, _, addends = reference.patient_step(X, a, before[rows], model, terms, engine.exact)
        np.testing.assert_allclose(engine.U[rows], U, rtol=1e-8, atol=1e-8)
        expected.add(addends)
    for got, want in zip(sums, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8 * max(np.abs(want).max(initial=0), 1e-12))


@pytest.mark.parametrize("visits", [1, 2, 7, 16, 25, 40])
@pytest.mark.parametrize(
    ("rank", "scored"), [(15, 15), (16, 16), (19, 17), (22, 18), (19, 19), (24, 24), (40, 33)]
)
def test_columns_match_the_reference_in_blocks_of_any_size(rank, scored, visits):
    """From 16 scored phenotypes on in blocks of four, of which the last may be shorter."""
    rng = np.random.default_rng(rank * visits)
    X, V, H = (
        rng.random((visits, 60)),
        unit_columns(rng.random((60, rank))),
        unit_columns(rng.random((rank, rank))),
    )
    U, Q = unit_columns(rng.random((visits, rank))), rng.standard_normal((visits, rank))
    w = np.where(rng.permutation(rank) < scored, 0.5 + rng.random(rank), 0.0)
    terms = reference.Terms(lam=0.0, mu=0.7, tau=0.3, unit=True)
    expected = reference.solve_unit_U(X, U, w, Q, Model(H, V, np.zeros((0, rank))), terms)
    rhs, scratch, found = (
        padded((X @ V) * w + terms.mu * Q @ H),
        kernels.new_column_scratch(visits, rank),
        padded(U),
    )
    unit_columns_step(padded(U), rhs, visits, w, padded(V.T @ V), terms.tau, scratch, found)
    np.testing.assert_allclose(found[:visits, :rank], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_model_step_matches_the_reference(seed, normalize, exact):
    engine, model = after_iterations(cohort(seed, n_patients=20, visits=(3, 12)), 3, exact)
    sums = engine.step(model)
    got, loss = model_step(sums, model, engine.weights.lam, normalize=normalize, exact=exact)
    want = reference.model_step(sums, model, normalize)
    np.testing.assert_allclose(got.H, want.H, rtol=1e-9, atol=1e-12)
    plain = reference.model_step(sums, model, normalize=False)._replace(H=want.H)
    assert loss == pytest.approx(objective(sums, plain, engine.weights.lam), rel=1e-7)
    np.testing.assert_allclose(got.V, want.V, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got.F, want.F, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("seed", range(6))
def test_scores_and_losses_match_the_reference(seed, settings):
    c = cohort(seed, visits=(0, 12))
    engine, model = after_iterations(c, 4, **settings)
    scored = engine.score(model)
    for k, (X, a) in enumerate(dense(c)):
        U = scored.U[c.offsets[k] : c.offsets[k + 1]]
        if not X.any():
            assert not scored.W[k].any()
            assert not scored.loss[k].any()
            continue
        terms = reference.terms_of(engine.weights, k)
        w = reference.solve_scores(X * terms.scale, a, U, model, terms.lam)
        want = reference.patient_loss(X, a, U, w, model, terms)
        np.testing.assert_allclose(scored.loss[k], want, rtol=1e-8, atol=1e-8 * (1 + np.sum(X**2)))
        got = reference.patient_loss(X, a, U, scored.W[k], model, terms)
        assert got.sum() <= want.sum() + 1e-9 * (1 + np.sum(X**2))


def test_present_gap_counts_pairs_that_the_patient_has():
    c = cohort(2, visits=(1, 12))
    engine, model = after_iterations(c, 4)
    scored = engine.score(model)
    HH = model.H.T @ model.H
    for k in range(len(c)):
        U = scored.U[c.offsets[k] : c.offsets[k + 1]]
        pairs = np.outer(scored.W[k] > 0, scored.W[k] > 0) & ~np.eye(4, dtype=bool) & (len(U) >= 4)
        assert scored.present_gap[k] == pytest.approx(np.sum((U.T @ U - HH)[pairs] ** 2), rel=1e-9)
        assert scored.present_size[k] == pytest.approx(np.sum(HH[pairs] ** 2), rel=1e-9)
    assert scored.present_size.any()


def test_loss_keeps_its_digits_when_the_fit_is_nearly_perfect():
    rng = np.random.default_rng(0)
    U, V, w = rng.random((30, 3)), rng.random((8, 3)), rng.random(3)
    for noise in (1e-4, 1e-5, 1e-6, 1e-7):
        X = (U * w) @ V.T + noise * rng.random((30, 8))
        c = Cohort(X, [0, 30])
        aligned = align(c, columns_of(c))
        engine = ThreadSession(aligned.shard, Weights.absolute(0.0, np.zeros(1)), U, c.shape[1])
        model = Model(np.eye(3), V, np.zeros((0, 3)))
        scored = engine.score(model)
        want = 0.5 * np.sum((X - (U * scored.W[0]) @ V.T) ** 2)
        assert scored.loss[0, 0] == pytest.approx(want, rel=1e-8, abs=0)


def assert_descent(engine, model, *, normalize, exact, rank):
    before = np.inf
    for _ in range(12):
        sums = engine.step(model)
        model, loss = model_step(sums, model, engine.weights.lam, normalize=normalize, exact=exact)
        size = sums.scalars[0] + engine.weights.lam * sums.scalars[1]
        assert np.isfinite(loss)
        assert loss <= before + 1e-9 * size + rank * SIGMA_FLOOR / 4 * sums.scalars[2]
        for factor in (engine.U, model.V, model.F):
            assert np.all(factor >= 0)
        before = loss
    assert engine.score(model).loss.sum() <= before + 1e-9 * size


@given(
    c=cohorts,
    rank=st.integers(1, 6),
    kind=st.sampled_from(["nmf", "nmf_visits", "random"]),
    mu=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    smooth=st.sampled_from([0.0, 0.3, 30.0]),
    balance=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_plain_iterations_never_raise_the_objective(c, rank, kind, mu, smooth, balance):
    """Without extrapolation every single step goes down: short histories, dead columns, empty visits and all.

    Where a direction of a patient dies, the cap on singular values may cost that patient μ·SIGMA_FLOOR/4; a fit undoes
    such a step.
    """
    engine, model = start_fit(c, rank, kind=kind, mu=mu, smooth=smooth, balance=balance)
    assert_descent(engine, model, normalize=True, exact=False, rank=rank)
    has_history = np.repeat(engine.weights.influence > 0, np.diff(c.offsets))
    sizes = np.add.reduceat(engine.U[has_history] ** 2, starts(c, has_history)) if has_history.any() else 1.0
    np.testing.assert_allclose(sizes, 1.0, rtol=1e-12)


def starts(c, rows):
    """The positions of the patients' first visits among the selected rows."""
    patients = np.repeat(np.arange(len(c)), np.diff(c.offsets))[rows]
    return np.flatnonzero(np.diff(patients, prepend=-1))


@given(
    c=cohorts,
    rank=st.integers(1, 6),
    weights=st.sampled_from(["relative", "absolute"]),
    exact=st.booleans(),
    normalize=st.booleans(),
    kind=st.sampled_from(["nmf", "random", "uniform"]),
    mu=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
)
def test_plain_iterations_with_free_scales_never_raise_the_objective(
    c, rank, weights, exact, normalize, kind, mu
):
    """Absolute weights are tried on counts only: a μ that outweighs ‖X‖² a million times leaves no digits for X."""
    assume(weights == "relative" or c.visits.nnz == 0 or abs(c.visits).max() >= 1)
    engine, model = start_fit(c, rank, weights=weights, exact=exact, kind=kind, normalize=normalize, mu=mu)
    assert_descent(engine, model, normalize=normalize, exact=exact, rank=rank)


def test_no_step_goes_below_zero_where_the_scale_is_free():
    """Few codes of size 1 000 under the paper's settings: U and H grow, and the small directions of C are noise."""
    c = cohort(0, n_patients=5, n_features=4, n_static=0, visits=(5, 12), density=0.05, scale=1000.0)
    for seed in range(20):
        engine, model = start_fit(
            c, 4, weights="absolute", exact=True, kind="uniform", normalize=False, seed=seed
        )
        before = np.inf
        for _ in range(12):
            sums = engine.step(model)
            model, loss = model_step(sums, model, engine.weights.lam, normalize=False, exact=True)
            assert -1e-9 * sums.scalars[0] <= loss <= before + 1e-9 * sums.scalars[0]
            before = loss


def test_sums_do_not_depend_on_the_number_of_threads():
    c = cohort(3, n_patients=200, visits=(1, 30))
    engines = [start_fit(c, 4, n_jobs=n) for n in (1, 2, 3)]
    sums = [engine.step(model) for engine, model in engines]
    for other in sums[1:]:
        for one, two in zip(sums[0], other, strict=True):
            assert np.array_equal(one, two)


@pytest.mark.parametrize("weights", ["unit", "relative"])
def test_an_extrapolated_step_sets_out_from_there_and_can_be_undone(weights):
    c = cohort(2, visits=(0, 12), n_static=8)
    engine, model = after_iterations(c, 3, weights=weights)
    before = engine.U.copy()
    engine.step(model)
    now = engine.U.copy()
    ahead = np.maximum(0.0, now + 4.0 * (now - before))
    assert np.any(now + 4.0 * (now - before) < 0)
    engine.step(model, 4.0)
    for k, (X, a) in enumerate(dense(c)):
        rows = slice(c.offsets[k], c.offsets[k + 1])
        start = unit_columns(ahead[rows]) if weights == "unit" else ahead[rows]
        terms = reference.terms_of(engine.weights, k)
        U, _, _ = reference.patient_step(X, a, start, model, terms)
        np.testing.assert_allclose(engine.U[rows], U, rtol=1e-8, atol=1e-8)
    engine.undo()
    assert np.array_equal(engine.U, now)


def test_sums_are_those_of_the_courses_as_they_are_stored():
    """In float32 too: the objective must be that of the courses handed out, not of what they were before rounding."""
    c = cohort(2, n_patients=30, visits=(0, 12))
    engine, model = after_iterations(c, 3, exact=False, dtype="float32")
    sums = engine.step(model)
    stored = engine.U.astype(np.float64)
    sizes = [np.sum(stored[c.offsets[k] : c.offsets[k + 1]] ** 2) for k in range(len(c))]
    assert engine.U.dtype == np.float32
    assert sums.scalars[3] == pytest.approx(engine.weights.mu @ sizes, rel=1e-12)


def test_the_papers_start_leaves_patients_without_history_at_zero():
    c = cohort(3, n_patients=40, visits=(0, 4), density=0.2)
    engine, _ = start_fit(c, 3, weights="absolute", kind="uniform")
    seen = [bool(X.any()) for X, _ in dense(c)]
    assert 0 < sum(seen) < len(seen)
    for k, some in enumerate(seen):
        U = engine.U[c.offsets[k] : c.offsets[k + 1]]
        assert np.all((U > 0) & (U < 1)) if some else not U.any()


def test_threads_follow_what_joblib_allows(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert available_cores() == 1
    for nothing in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert available_cores() >= 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    everything = available_cores()
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    assert available_cores() == everything


def test_columns_without_data_stay_or_become_zero_and_the_others_have_unit_norm():
    engine, model = start_fit(cohort(1), 3)
    sums = engine.step(model)
    sums.QU[:, 1] = 0  # no patient contributes to this column of H
    sums.XU[:, 2] = 0  # no feature has this phenotype, although patients have scores
    new, _ = model_step(sums, model, engine.weights.lam, normalize=True, exact=False)
    assert np.array_equal(new.H[:, 1], model.H[:, 1])
    np.testing.assert_allclose(np.linalg.norm(new.H, axis=0), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(new.V, axis=0), [1.0, 1.0, 0.0], rtol=1e-12)
    sums.UU[2] = sums.UU[:, 2] = 0  # no scores either: nothing determines this column of V
    new, _ = model_step(sums, model, engine.weights.lam, normalize=True, exact=False)
    np.testing.assert_allclose(new.V[:, 2], model.V[:, 2], rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(new.V, axis=0), 1.0, rtol=1e-12)


def test_courses_without_visits_are_not_read():
    """The row before the first one is another patient's, or no row at all."""
    rows = np.full((8, 8), np.nan)
    rows[4:] = 1.0
    assert [roughness(rows[4:], visits) for visits in (0, 1, 2, 3)] == [0.0, 0.0, 0.0, 0.0]
