"""The small eigensolver against LAPACK, also on NaN and infinity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.kernels import compiled
from phenotaste.core.kernels import eigen as kernels

eigh_in_place = compiled(kernels.eigh_in_place)


def eigen(A):
    """Whether it converged, the eigenvalues in ascending order, and their vectors as rows."""
    n = len(A)
    values, vectors = np.empty(n), np.empty((n, n))
    settled = eigh_in_place(np.array(A, dtype=float), values, vectors, np.empty((3, n)))
    order = np.argsort(values)
    return settled, values[order], vectors[order]


def check(A):
    settled, values, vectors = eigen(A)
    assert settled
    size = np.abs(A).max()
    np.testing.assert_allclose(values, np.linalg.eigvalsh(A), rtol=0, atol=1e-13 * len(A) * size)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(A)), rtol=0, atol=1e-13 * len(A))
    rebuilt = (vectors.T * (values / (size or 1))) @ vectors * size
    np.testing.assert_allclose(rebuilt, A, rtol=0, atol=1e-13 * len(A) * size)


def turned(values, seed):
    """A symmetric matrix with these eigenvalues."""
    n = len(values)
    Z, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    A = (Z * values) @ Z.T
    return (A + A.T) / 2


SIZES = [1, 2, 3, 4, 5, 10, 40]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e-30, 1e30, 1e200])
def test_random_matrices_of_every_scale(n, scale):
    for seed in range(5):
        A = np.random.default_rng(seed).standard_normal((n, n))
        check(scale * (A + A.T))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "spectrum",
    [
        lambda n: np.full(n, 3.0),
        lambda n: np.where(np.arange(n) < (n + 1) // 2, 1.0, -2.0),
        lambda n: np.where(np.arange(n) < 2, 1.0, 0.0),
        lambda n: np.zeros(n),
        lambda n: 10.0 ** -np.arange(n),
        lambda n: 1.0 + 1e-14 * np.arange(n),
    ],
    ids=["equal", "repeated", "rank two", "zero", "graded", "nearly equal"],
)
def test_difficult_spectra(n, spectrum):
    values = spectrum(n)
    check(turned(values, n))
    check(np.diag(values))
    check(np.diag(values[::-1]))


@pytest.mark.parametrize("n", SIZES)
def test_structures_of_real_data(n):
    rng = np.random.default_rng(n)
    M = rng.random((max(n - 1, 1), n))  # fewer visits than phenotypes
    check(M.T @ M)
    if n <= 10:
        check(np.ones((n, n)))
    neighbours = np.diag(np.ones(n)) + np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1)
    check(neighbours)
    blocks = np.zeros((n, n))  # block diagonal
    blocks[: n // 2, : n // 2] = 1.0
    blocks[n // 2 :, n // 2 :] = np.eye(n - n // 2) + 1.0
    check(blocks)
    dead = M.T @ M  # a phenotype that this patient does not have
    dead[n // 2], dead[:, n // 2] = 0.0, 0.0
    check(dead)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    spread=st.integers(0, 20),
    zeros=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_any_symmetric_matrix(seed, n, spread, zeros):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n)) * 10.0 ** -rng.integers(0, spread + 1, (n, n))
    A *= rng.random((n, n)) >= zeros
    check(A + A.T)


def test_result_does_not_depend_on_the_contents_of_scratch():
    A = turned(np.arange(6.0), 0)
    clean = eigen(A)
    values, vectors = np.full(6, np.nan), np.full((6, 6), np.nan)
    assert eigh_in_place(A.copy(), values, vectors, np.full((3, 6), np.nan))
    assert np.array_equal(np.sort(values), clean[1])
    assert np.array_equal(vectors[np.argsort(values)], clean[2])


@pytest.mark.parametrize("n", [1, 2, 3, 10])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_reported(n, bad):
    """NaN or infinity on the diagonal, and in the row that it contaminates."""
    for row in range(n):
        A = turned(np.arange(1.0, n + 1), n)
        A[row], A[:, row] = bad, bad
        settled, values, _ = eigen(A)
        assert not settled or np.isnan(values).any()
    settled, values, _ = eigen(np.full((n, n), bad))
    assert not settled or np.isnan(values).any()


@pytest.mark.parametrize("n", [20, 40, 60, 100])
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_large_matrices_of_low_rank_converge(n, rank):
    """Many similar visits: nearly all eigenvalues are rounding noise, which must not prevent convergence."""
    rng = np.random.default_rng(0)
    check(np.ones((n, n)))
    for _ in range(20):
        M = rng.random((rank, n))
        check(M.T @ M)
        M = rng.integers(0, 3, (rank, n)).astype(float)
        check(M.T @ M)
        M = np.repeat(rng.random((rank, 1)), n, axis=1)
        check(M.T @ M)


def test_entries_whose_squares_underflow_count_as_zero():
    for size in 10.0 ** -np.arange(150, 170):
        check(np.eye(4) + size * (1 - np.eye(4)))
