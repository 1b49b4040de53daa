"""The vector kernels against numpy, with scratch that holds arbitrary values from a previous patient."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.cohorts import cohort, dense
from helpers.fits import after_iterations
from helpers.kernels import compiled
from phenotaste import TASTE, Cohort
from phenotaste.core import reference
from phenotaste.core.kernels import (
    batched_inverse_sqrt,
    batched_nnls,
    coordinate_descent,
    inverse_sqrt,
    matmul,
    nnls,
    tridiagonal,
)
from phenotaste.core.kernels.batched_inverse_sqrt import new_batched_inv_sqrt_scratch
from phenotaste.core.kernels.batched_nnls import new_batched_nnls_scratch
from phenotaste.core.kernels.coordinate_descent import CD_SWEEPS, new_cd_scratch
from phenotaste.core.kernels.inverse_sqrt import (
    CONDITION_LIMITS,
    POLES,
    new_inv_sqrt_scratch,
    zolotarev_poles,
)
from phenotaste.core.kernels.nnls import TINY, new_nnls_scratch, solve_rows_bpp
from phenotaste.core.kernels.patient import padded
from phenotaste.core.kernels.polar import SIGMA_FLOOR
from phenotaste.core.kernels.scratch import BATCH_MAX_RANK
from phenotaste.core.kernels.simd import LANES, aligned_matrix, aligned_vector, round_up
from phenotaste.core.kernels.tridiagonal import new_reduction

congruent = compiled(batched_inverse_sqrt.congruent)
inverse_sqrt_lanes = compiled(batched_inverse_sqrt.inverse_sqrt_lanes)
solve_lane = compiled(batched_nnls.solve_lane)
solve_lanes = compiled(batched_nnls.solve_lanes)
cd_rows = compiled(coordinate_descent.cd_rows)
inverse_sqrt_rational = compiled(inverse_sqrt.inverse_sqrt_rational)
add_transposed = compiled(matmul.add_transposed)
multiply = compiled(matmul.multiply)
multiply_transposed = compiled(matmul.multiply_transposed)
solve_passive = compiled(nnls.solve_passive)
solve_passive_simd = compiled(nnls.solve_passive_simd)
change_basis = compiled(tridiagonal.change_basis)
to_tridiagonal = compiled(tridiagonal.to_tridiagonal)

SIZES = [1, 2, 3, 7, 8, 9, 10, 15, 16, 17, 23, 24, 25, 40, 41]


def symmetric(n, spread, seed=0):
    """A positive definite matrix with eigenvalues from 10 down to 10/spread, and its inverse square root."""
    Z, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    values = 10 * np.geomspace(1, 1 / spread, n)
    C = (Z * values) @ Z.T
    return (C + C.T) / 2, (Z / np.sqrt(values)) @ Z.T


def rotated(X, n, reduction, to_original):
    M = padded(X)
    change_basis(M, n, reduction, to_original)
    return M[:n, : X.shape[1]]


@pytest.mark.parametrize("n", SIZES)
def test_reduction_is_exact_after_reductions_of_other_sizes(n):
    reduction, rng = new_reduction(48), np.random.default_rng(n)
    for size in (48, 5, n):
        C, _ = symmetric(size, 1e3, seed=size)
        A = aligned_matrix(48, 48)
        A[:] = rng.random(A.shape)  # beyond the padding its content is arbitrary
        side = aligned_matrix(size, size).shape[0]
        A[:side, :side] = padded(C)
        to_tridiagonal(A, size, reduction)
    d, e = reduction.diagonal[:n], reduction.off_diagonal[: n - 1]
    T = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    P = rotated(np.eye(n), n, reduction, True)
    np.testing.assert_allclose(P @ P.T, np.eye(n), rtol=0, atol=1e-14 * n)
    np.testing.assert_allclose(P @ T @ P.T, C, rtol=0, atol=1e-14 * n * 10)
    X = rng.standard_normal((n, 13))
    np.testing.assert_allclose(rotated(X, n, reduction, False), P.T @ X, rtol=0, atol=1e-13 * n)
    np.testing.assert_allclose(rotated(X, n, reduction, True), P @ X, rtol=0, atol=1e-13 * n)


@pytest.mark.parametrize(("count", "spread"), list(zip(POLES, CONDITION_LIMITS, strict=True)))
def test_poles_are_exact_to_rounding_on_their_interval(count, spread):
    shifts, weights = zolotarev_poles(count, spread)
    assert np.all(shifts > 0)
    assert np.all(weights > 0)
    x = np.geomspace(1 / spread, 1, 5000)
    np.testing.assert_allclose((weights / (x[:, None] + shifts)).sum(1), x**-0.5, rtol=3e-12)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("spread", [1.0, 1e2, 1e4, 1e7, 1e9])
def test_inverse_sqrt_of_every_size_and_condition(n, spread):
    C, want = symmetric(n, spread)
    scratch, out = new_inv_sqrt_scratch(n), aligned_matrix(n, n)
    assert inverse_sqrt_rational(padded(C), n, SIGMA_FLOOR**2, scratch, out)
    half = rotated(out[:n, :n], n, scratch.reduction, True)
    root = rotated(half.T.copy(), n, scratch.reduction, True)
    np.testing.assert_allclose(root, want, rtol=0, atol=(1e-15 * n * spread + 5e-12) * np.abs(want).max())


@pytest.mark.parametrize("n", [2, 5, 10, 40])
def test_no_inverse_sqrt_beyond_the_range_of_the_poles(n):
    def attempt(C, floor=SIGMA_FLOOR**2):
        return inverse_sqrt_rational(padded(C), n, floor, new_inv_sqrt_scratch(n), aligned_matrix(n, n))

    C, _ = symmetric(n, 1e3)
    assert attempt(C)
    assert not attempt(C, floor=0.1)
    assert not attempt(symmetric(n, 1e13)[0])
    assert not attempt(1e-13 * C)
    assert not attempt(np.ones((n, n)))
    assert not attempt(np.zeros((n, n)))
    assert not attempt(-C)
    assert not attempt(1e200 * C)
    for bad in (np.nan, np.inf):
        D = C.copy()
        D[0, 1] = D[1, 0] = bad
        assert not attempt(D)


@given(
    seed=st.integers(0, 2**32 - 1),
    R=st.integers(1, 21),
    visits=st.integers(1, 40),
    scores=st.sampled_from([0.0, 0.5, 1.0]),
    mu=st.sampled_from([0.0, 0.7]),
)
def test_coordinate_descent_matches_plain_sweeps(seed, R, visits, scores, mu):
    rng = np.random.default_rng(seed)
    V, w = rng.random((30, R)), rng.random(R) * (rng.random(R) < scores)
    old, right = rng.random((visits, R)), rng.standard_normal((visits, R)) * np.where(w > 0, 1.0, mu > 0)
    G = np.outer(w, w) * (V.T @ V) + mu * np.eye(R)
    want = old.copy()
    for _ in range(CD_SWEEPS):
        for r in range(R):
            if G[r, r] > TINY:
                want[:, r] = np.maximum(0.0, want[:, r] + (right[:, r] - want @ G[:, r]) / G[r, r])
    U, score, scratch = aligned_matrix(visits, R), aligned_vector(R), new_cd_scratch(R)
    score[:R] = w
    for part in (scratch.U, scratch.rhs, scratch.neg_gram, scratch.inv_diagonal):
        part[:] = 7.0  # left by another patient
    cd_rows(padded(old), padded(right), visits, score, padded(V.T @ V), mu, scratch, U)
    np.testing.assert_allclose(U[:visits, :R], want, rtol=1e-9, atol=1e-9 * max(1, np.abs(want).max()))
    assert not U[:visits, R:].any()


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 11, 40])
@pytest.mark.parametrize("R", [1, 8, 10, 16, 20, 24, 40])
def test_products(rows, R):
    rng = np.random.default_rng(0)
    A, B, C = rng.random((rows, R)), rng.random((R, R)), rng.random((rows, R))
    out = aligned_matrix(rows + 8, R)
    multiply(padded(A), padded(B), rows, R, out)
    np.testing.assert_allclose(out[:rows, :R], A @ B, rtol=1e-13)
    out = aligned_matrix(R, R)
    multiply_transposed(padded(A), padded(C), R, rows, out)
    np.testing.assert_allclose(out[:R, :R], A.T @ C, rtol=1e-13)
    add_transposed(padded(A), padded(C), R, rows, 1.0, out)
    np.testing.assert_allclose(out[:R, :R], 2 * A.T @ C, rtol=1e-13)
    assert not out[:R, R:].any()


@given(
    seed=st.integers(0, 2**32 - 1),
    R=st.integers(1, 20),
    share=st.sampled_from([0.3, 1.0]),
    twins=st.booleans(),
)
def test_simd_elimination_matches_cholesky(seed, R, share, twins):
    rng = np.random.default_rng(seed)
    design = rng.random((R + 3, R))
    if twins:
        design[:, R // 2] = design[:, 0]
    G, b = design.T @ design, design.T @ rng.random(R + 3)
    passive = rng.random(R) < share
    plain, found, scratch = np.empty(R), np.empty(R), new_nnls_scratch(R)
    scratch.rows[:] = np.nan  # left by another patient
    solve_passive(G, b, passive, plain, np.empty((R, R)), np.empty(R, np.int64))
    solve_passive_simd(G, b, passive, found, scratch)
    assert np.array_equal(found == 0, plain == 0)
    np.testing.assert_allclose(design @ found, design @ plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rank", [8, 10, 17, 24])
def test_patient_step_matches_the_reference_for_more_than_a_vector_of_phenotypes(rank):
    """Short and long histories mixed, so that patients find scratch used by others of another kind."""
    c = cohort(rank, n_patients=14, n_features=40, n_static=30, visits=(0, 40))
    engine, model = after_iterations(c, rank, False)
    before = engine.U.copy()
    sums = engine.step(model)
    expected = [np.zeros_like(part) for part in sums]
    for k, (X, a) in enumerate(dense(c)):
        rows = slice(c.offsets[k], c.offsets[k + 1])
        terms = reference.terms_of(engine.weights, k)
        U, _, addends = reference.patient_step(X, a, before[rows], model, terms)
        np.testing.assert_allclose(engine.U[rows], U, rtol=1e-8, atol=1e-8)
        expected = [total + part for total, part in zip(expected, addends, strict=True)]
    for got, want in zip(sums, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8 * max(np.abs(want).max(initial=0), 1e-12))


@pytest.mark.parametrize("rank", [10, 17])
def test_scores_of_a_patient_do_not_depend_on_other_patients(rank):
    c = cohort(3, n_patients=12, n_features=30, visits=(1, 40))
    model = TASTE(rank, max_iter=5, n_jobs=1, n_init=1, random_state=0).fit(c)
    together = model.transform(c)
    for k in range(len(c)):
        assert np.array_equal(model.transform(c[k : k + 1])[0], together[k])


def test_sums_with_singular_H():
    """H of rank one has no inverse, so that Q itself has to be summed."""
    c = Cohort(np.abs(np.random.default_rng(0).standard_normal((6, 6))), [0, 2, 4, 6])
    engine, model = after_iterations(c, 3, False)
    model = model._replace(H=np.tile(model.H[:, :1], 3))
    before = engine.U.copy()
    sums = engine.step(model)
    want = sum(
        reference.patient_step(X, a, before[2 * k : 2 * k + 2], model, reference.terms_of(engine.weights, k))[
            2
        ].QU
        for k, (X, a) in enumerate(dense(c))
    )
    np.testing.assert_allclose(sums.QU, want, rtol=0, atol=1e-8 * np.abs(want).max())


def in_lanes(squares, out):
    """Pack square matrices into lanes, with arbitrary values elsewhere."""
    n = len(squares[0])
    out[:] = 7.0
    for s, square in enumerate(squares):
        for i in range(n):
            out[i * round_up(n) : i * round_up(n) + n, s] = square[i]


def from_lanes(lanes, n, s):
    """One lane, symmetrised from its lower triangle."""
    low = np.tril(lanes[:, s].reshape(-1, round_up(n))[:n, :n])
    return low + np.tril(low, -1).T


def lane_roots(squares, n):
    scratch = new_batched_inv_sqrt_scratch(n)
    for part in scratch[1:-1]:
        part[:] = 7.0
    in_lanes(squares, scratch.C)
    inverse_sqrt_lanes(n, round_up(n), SIGMA_FLOOR**2, scratch)
    return scratch.valid.copy(), [from_lanes(scratch.inv_sqrt, n, s) for s in range(LANES)]


@pytest.mark.parametrize("n", [n for n in SIZES if n <= BATCH_MAX_RANK])
def test_batched_inverse_sqrts_are_independent(n):
    spreads = [1e9, 1.0, 1e7, 1e2, 1e4]  # the first needs the most poles
    pairs = [symmetric(n, spread, seed) for seed, spread in enumerate(spreads)]
    zero, negative, bad = np.zeros((n, n)), -pairs[0][0], np.full((n, n), np.nan)
    squares = [C for C, _ in pairs] + [zero, negative, bad]
    found, roots = lane_roots(squares, n)
    assert found.tolist() == [True] * 5 + [False] * 3
    for spread, root, (_, want) in zip(spreads, roots, pairs, strict=False):
        np.testing.assert_allclose(root, want, rtol=0, atol=(1e-14 * n * spread + 5e-12) * np.abs(want).max())
    for s in range(5):
        _, alone = lane_roots([squares[s]] + [bad] * 7, n)
        assert np.array_equal(alone[0], roots[s])


@pytest.mark.parametrize("n", [n for n in SIZES if n <= BATCH_MAX_RANK])
@pytest.mark.parametrize("upper", [True, False])
def test_batched_congruence(n, upper):
    rng = np.random.default_rng(n)
    S = (np.triu if upper else np.tril)(rng.standard_normal((n, n)))
    squares = [symmetric(n, 10.0, seed)[0] for seed in range(LANES)]
    scratch = new_batched_inv_sqrt_scratch(n)
    in_lanes(squares, scratch.C)
    congruent(padded(S), scratch.C, n, round_up(n), upper, scratch.work, scratch.inv_sqrt)
    for s, C in enumerate(squares):
        np.testing.assert_allclose(from_lanes(scratch.inv_sqrt, n, s), S @ C @ S.T, rtol=0, atol=1e-12 * n)


def lane_scores(grams, rights, n):
    scratch = new_batched_nnls_scratch(n)
    for part in scratch:
        part[:] = 7.0
    G = aligned_matrix(round_up(n) ** 2, LANES)
    in_lanes(grams, G)
    scratch.b[:n] = np.transpose(rights)
    ones, zeros = padded(np.ones((n, n))), padded(np.zeros((n, n)))
    solve_lanes(G, ones, zeros, n, round_up(n), scratch, np.empty(n, np.bool_), new_nnls_scratch(n))
    return scratch.x[:n].T.copy()


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, BATCH_MAX_RANK), twins=st.booleans())
def test_batched_scores_are_exact_and_independent(seed, n, twins):
    rng = np.random.default_rng(seed)
    grams, rights = [], []
    for _ in range(LANES):
        design = rng.random((n + 3, n)) * (rng.random(n) < 0.9)
        if twins:
            design[:, n // 2] = design[:, 0]
        grams.append(design.T @ design)
        rights.append(design.T @ rng.standard_normal(n + 3))
    found = lane_scores(grams, rights, n)
    for s, (G, b) in enumerate(zip(grams, rights, strict=True)):
        want = np.zeros((1, n))
        solve_rows_bpp(G, b[None], want)
        x, best = found[s], want[0]
        assert np.all(x >= 0)
        assert 0.5 * x @ G @ x - b @ x == pytest.approx(0.5 * best @ G @ best - b @ best, rel=1e-9, abs=1e-12)
    other = [np.full((n, n), np.nan)] * 7
    assert np.array_equal(lane_scores(grams[3:4] + other, rights[3:4] + [np.ones(n)] * 7, n)[0], found[3])


def test_a_lane_that_needs_many_exchanges_is_solved_separately():
    rng = np.random.default_rng(0)
    n, design = 10, rng.random((13, 10))
    G, b, want = design.T @ design, design.T @ rng.standard_normal(13), np.zeros((1, 10))
    solve_rows_bpp(G, b[None], want)
    scratch = new_batched_nnls_scratch(n)
    in_lanes([G] * LANES, scratch.gram)
    scratch.b[:n] = b[:, None]
    solve_lane(5, n, round_up(n), scratch, np.empty(n, np.bool_), new_nnls_scratch(n))
    np.testing.assert_allclose(scratch.x[:n, 5], want[0], rtol=1e-9, atol=1e-12)
    assert not scratch.x[:, :5].any()
    assert not scratch.x[:, 6:].any()
