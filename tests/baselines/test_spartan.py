"""PARAFAC2 with exact cross-products: kernels against the reference, Spartan against tensorly."""

import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from helpers.cohorts import cohort, cohorts, dense
from phenotaste import Cohort, InputError, metrics, simulate
from phenotaste.baselines import Spartan
from phenotaste.cohort.align import align, columns_of
from phenotaste.core.parafac2 import constraints, kernels, loop, reference
from phenotaste.core.records import Model
from phenotaste.engines.parafac2 import Parafac2Threads


def model_for(c, rank, seed, with_static=True):
    """A model in the scale of the data; for some seeds two columns are equal."""
    rng = np.random.default_rng(seed)
    H, V = rng.random((rank, rank)), rng.random((c.shape[1], rank))
    if seed % 3 == 0 and rank > 1:
        H[:, 1], V[:, 1] = H[:, 0], V[:, 0]
    F = rng.random((0 if c.static is None or not with_static else c.static.shape[1], rank))
    return Model(H, V, F)


@given(
    cohorts,
    st.integers(1, 5),
    st.sampled_from([kernels.NONNEGATIVE, kernels.UNCONSTRAINED, kernels.ADMM]),
    st.booleans(),
    st.integers(0, 100),
)
def test_step_matches_the_reference(c, rank, solver, smooth, seed):
    rng = np.random.default_rng(seed)
    model, lam = model_for(c, rank, seed), 0.3
    rho = 0.7 if solver == kernels.ADMM else 0.0
    shared = kernels.model_products(*model, lam, rho)
    shard = align(c, columns_of(c)).shard
    times = np.arange(c.n_visits, dtype=float)
    bases = constraints.smooth_bases(times, c.offsets, 4, 2) if smooth else None
    engine = Parafac2Threads(
        shard, c.shape[1], rank, score_solver=kernels.ScoreSolver(solver, 3), bases=bases
    )
    engine.reset(W := rng.random((len(c), rank)))
    if solver == kernels.ADMM:
        engine.duals[:] = rng.random((len(c), rank))
    D = engine.duals.copy()
    slices = engine.step(shared)
    size = np.sum(c.visits.data**2) + np.sum(shard.static**2) + 1e-300
    expected_sums = kernels.zero_sums(c.shape[1], len(model.F), rank)
    for k, (X, a) in enumerate(dense(c)):
        P = None if bases is None else bases[c.offsets[k] : c.offsets[k + 1]]
        Q_engine = engine.Q[c.offsets[k] : c.offsets[k + 1]]
        # C = MᵀM holds squares, whose rounding is relative to SIGMA_FLOOR² in the smallest direction.
        assert np.linalg.norm(Q_engine, 2) < 1 + 1e-3 if Q_engine.size else True
        Q, w, dual, addends = reference.step(X, a, shared, kernels.ScoreSolver(solver, 3), W[k], D[k], P)
        # Equal columns do not determine Q and w: compare the losses.
        if solver == kernels.NONNEGATIVE or not X.any():
            loss, best = (reference.loss(X, a, q, s, shared) for q, s in ((Q_engine, engine.W[k]), (Q, w)))
            assert loss == pytest.approx(best, rel=1e-6, abs=1e-7 * size)
        else:
            np.testing.assert_allclose(engine.W[k], w, rtol=1e-4, atol=1e-4 * np.abs(w).max(initial=1e-9))
            atol = 1e-4 * max(np.abs(dual).max(), np.abs(w).max())
            np.testing.assert_allclose(engine.duals[k], dual, rtol=1e-4, atol=atol)
        for total, addend in zip(expected_sums, addends, strict=True):
            total += addend
    if solver != kernels.NONNEGATIVE:
        for name in ("QX", "WW"):
            expected = getattr(expected_sums, name)
            scale = np.abs(expected).max(initial=1e-12)
            np.testing.assert_allclose(getattr(slices, name), expected, atol=1e-4 * scale, err_msg=name)
    np.testing.assert_allclose(slices.WW_all, engine.W.T @ engine.W, rtol=1e-10)
    np.testing.assert_allclose(slices.AW, shard.static.T @ engine.W, rtol=1e-10)


@given(cohorts, st.integers(1, 4), st.integers(0, 100), st.booleans())
def test_undetermined_columns_of_Q_are_completed(c, rank, seed, smooth):
    rng = np.random.default_rng(seed)
    shard = align(c, columns_of(c)).shard
    bases = constraints.smooth_bases(np.arange(c.n_visits, dtype=float), c.offsets, 6, 2) if smooth else None
    engine = Parafac2Threads(shard, c.shape[1], rank, bases=bases)
    engine.reset(rng.random((len(c), rank)) * (rng.random((len(c), rank)) < 0.5))
    shared = kernels.model_products(*model_for(c, rank, 1), 0.3)
    engine.step(shared)
    before = engine.Q.copy()
    engine.complete()
    for k, (X, _) in enumerate(dense(c)):
        rows = slice(c.offsets[k], c.offsets[k + 1])
        old, new = before[rows], engine.Q[rows]
        if len(X) < rank or not X.any():
            np.testing.assert_array_equal(new, old)
            continue
        missing = np.eye(rank) - old.T @ old
        complete = np.trace(missing) < 1e-6
        is_projector = np.abs(missing @ missing - missing).max() < 1e-6
        P = None if bases is None else bases[rows]
        if is_projector and not complete:
            np.testing.assert_allclose(new, reference.complete_Q(old, P), atol=1e-5)
            np.testing.assert_allclose(
                new @ (old.T @ old), old, atol=1e-5
            )  # determined columns are unchanged
        if not smooth:
            np.testing.assert_allclose(new.T @ new, np.eye(rank), atol=1e-5)
        else:
            np.testing.assert_allclose(P @ (P.T @ new), new, atol=1e-7)


@given(cohorts, st.integers(1, 4))
def test_course_sums_match_dense_products(c, rank):
    engine = Parafac2Threads(align(c, columns_of(c)).shard, c.shape[1], rank)
    rng = np.random.default_rng(0)
    engine.W, engine.Q = rng.random(engine.W.shape), rng.standard_normal(engine.Q.shape)
    H = rng.standard_normal((rank, rank))
    X = c.visits.toarray()
    U = engine.Q @ H * np.repeat(engine.W, np.diff(c.offsets), axis=0)
    np.testing.assert_allclose(
        engine.course_sum(H), X.T @ U, rtol=1e-10, atol=1e-9 * np.abs(X).max(initial=1)
    )


@given(cohorts, st.integers(1, 5), st.booleans(), st.sampled_from(["nmf", "random"]))
def test_the_objective_never_rises(c, rank, nonnegative, init):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = Spartan(rank, nonnegative=nonnegative, init=init, max_iter=25, tol=0, random_state=0).fit(c)
    assert np.all(np.diff(m.loss_curve_) <= 1e-7 * 0.5 * np.sum(c.visits.data**2))
    assert m.loss_curve_[-1] == pytest.approx(metrics.objective(m, c), rel=1e-8)
    assert m.F_ is None  # static features are not used
    if nonnegative:
        assert min(m.V_.min(), m.W_.min()) >= 0


def test_cross_products_are_exact_where_they_can_be():
    c = cohort(3, n_patients=30, visits=(5, 15), density=0.1, n_static=0)
    m = Spartan(4, max_iter=10, random_state=0).fit(c)
    assert (m.W_ == 0).any()  # an SVD leaves the courses of such phenotypes undetermined
    for k in np.flatnonzero(~m.empty_history_):
        U = m.U_[c.offsets[k] : c.offsets[k + 1]]
        np.testing.assert_allclose(U.T @ U, m.H_.T @ m.H_, atol=1e-8)
    assert m.cpi_ == pytest.approx(1.0, abs=1e-12)


def test_bits_do_not_depend_on_n_jobs():
    c = cohort(1, n_patients=60, visits=(0, 12))
    first, *others = (Spartan(3, max_iter=8, n_jobs=n, random_state=0).fit(c) for n in (1, 2, 3))
    for other in others:
        for name in ("V_", "H_", "W_", "U_", "loss_curve_"):
            np.testing.assert_array_equal(getattr(first, name), getattr(other, name))
    assert not np.array_equal(Spartan(3, max_iter=8, random_state=1).fit(c).V_, first.V_)


def test_short_histories_count_as_padded_with_empty_visits():
    rank = 5
    c = cohort(7, n_patients=20, visits=(1, 9), n_static=0)
    X, counts = c.visits.toarray(), np.diff(c.offsets)
    blocks = [
        np.vstack([X[a:b], np.zeros((rank, 7))]) for a, b in zip(c.offsets[:-1], c.offsets[1:], strict=True)
    ]
    longer = Cohort(np.vstack(blocks), np.concatenate([[0], np.cumsum(counts + rank)]))
    short, padded = (Spartan(rank, max_iter=15, tol=0, random_state=0).fit(data) for data in (c, longer))
    assert short.n_short_ > 5
    assert padded.n_short_ == 0
    np.testing.assert_allclose(short.loss_curve_[:-1], padded.loss_curve_[:-1], rtol=1e-6)
    np.testing.assert_allclose(short.V_, padded.V_, atol=1e-4)


def test_reaches_the_loss_of_tensorly_from_the_same_start():
    """Without constraints both are alternating least squares, and end at the same error."""
    from tensorly.decomposition import parafac2
    from tensorly.decomposition._parafac2 import initialize_decomposition

    c, _ = simulate.recovery(noise=0.05, noise_scale="data", n_patients=30, n_visits=40)
    X = c.visits.toarray()
    slices = np.split(X, c.offsets[1:-1])
    start = initialize_decomposition(slices, 4, "random", random_state=0)
    W, H, V = (factor.copy() for factor in start[1])
    weights, (A, B, C), projections = parafac2(slices, 4, n_iter_max=500, init=start, tol=1e-12)
    tensorly_loss = sum(
        np.sum((x - Q @ (B * weights * a) @ C.T) ** 2) for x, Q, a in zip(slices, projections, A, strict=True)
    )
    engine = Parafac2Threads(
        align(Cohort(c.visits, c.offsets, allow_negative=True), columns_of(c)._replace(n_static=0)).shard,
        30,
        4,
        score_solver=kernels.ScoreSolver(kernels.UNCONSTRAINED, 1),
    )
    engine.reset(W)
    updates = loop.AlternatingLeastSquares(nonnegative=False)
    result = loop.fit(
        engine, Model(H, V, np.zeros((0, 4))), updates, (np.sum(X**2), 0.0), lam=0.0, max_iter=1000, tol=1e-10
    )
    U = engine.Q @ result.model.H * np.repeat(engine.W, np.diff(c.offsets), axis=0)
    loss = np.sum((X - U @ result.model.V.T) ** 2)
    assert loss == pytest.approx(tensorly_loss, rel=1e-4)


def test_extrapolation_saves_iterations_and_keeps_the_minimum(monkeypatch):
    c, _ = simulate.recovery(noise=0.05, noise_scale="data", n_patients=20, n_visits=30)
    settings = {"max_iter": 2000, "tol": 1e-8, "random_state": 0, "init": "random"}
    fast = Spartan(4, **settings).fit(c)
    monkeypatch.setattr(loop, "PLAIN_ITERATIONS", 10**9)
    plain = Spartan(4, **settings).fit(c)
    assert fast.loss_curve_[-1] <= plain.loss_curve_[-1] * (1 + 1e-5)
    assert fast.n_iter_ < 0.6 * plain.n_iter_
    np.testing.assert_array_equal(fast.loss_curve_[:10], plain.loss_curve_[:10])


def test_noiseless_recovery():
    c, truth = simulate.recovery(n_patients=40, n_visits=40)
    m = Spartan(4, max_iter=1000, tol=1e-8, random_state=0).fit(c)
    assert metrics.matched_similarity(m.V_, truth.V) > 0.99
    assert metrics.matched_similarity(m.W_, truth.W) > 0.99


@pytest.mark.parametrize("nonnegative", [True, False])
def test_projection_of_the_training_cohort_matches_the_fit(nonnegative):
    c, _ = simulate.recovery(noise=0.05, noise_scale="data", n_patients=20, n_visits=30)
    m = Spartan(4, nonnegative=nonnegative, max_iter=500, tol=1e-9, random_state=0).fit(c)
    projected = m.project(c)
    assert projected.loss == pytest.approx(m.loss_curve_[-1], rel=1e-3)
    np.testing.assert_allclose(projected.W, m.W_, atol=0.02 * np.abs(m.W_).max())


def test_the_fit_does_not_depend_on_the_units_of_the_data():
    c = cohort(2, n_patients=20, visits=(2, 9))
    m = Spartan(3, max_iter=10, tol=0, random_state=0).fit(c)
    for scale in (1e-12, 1e12):
        other = Spartan(3, max_iter=10, tol=0, random_state=0).fit(Cohort(scale * c.visits, c.offsets))
        np.testing.assert_allclose(other.loss_curve_ / scale**2, m.loss_curve_, rtol=1e-5)


def test_fits_never_densify_the_visits():
    rng = np.random.default_rng(0)
    visits, features = 20_000, 4_000  # 640 MB if it were dense
    X = sparse.random_array((visits, features), density=5e-4, format="csr", random_state=rng)
    c = Cohort(X, np.arange(0, visits + 1, 20))
    Spartan(3, max_iter=1, random_state=0, init="random").fit(cohort(0))  # compile before measuring
    tracemalloc.start()
    m = Spartan(3, max_iter=2, random_state=0, init="random").fit(c)
    m.transform(c[:100])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6


def test_a_model_of_another_method_is_refused(tmp_path):
    from phenotaste import TASTE

    c = cohort(1)
    Spartan(2, max_iter=2, random_state=0).fit(c).save(tmp_path / "model")
    with pytest.raises(InputError, match="model of Spartan, not of TASTE"):
        TASTE.load(tmp_path / "model")


def test_a_signed_model_may_be_saved(tmp_path):
    c, _ = simulate.recovery(noise=0.3, n_patients=10, n_visits=10)
    m = Spartan(4, nonnegative=False, max_iter=20, random_state=0, init="random").fit(c)
    assert m.V_.min() < 0
    m.save(tmp_path / "model")
    np.testing.assert_array_equal(Spartan.load(tmp_path / "model").transform(c), m.transform(c))


@pytest.mark.parametrize("settings", [{"rank": 0}, {"init": "svd"}, {"tol": -1}, {"max_iter": 1.5}])
def test_bad_settings_are_refused_by_name(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        Spartan(**settings).fit(cohort(0))
