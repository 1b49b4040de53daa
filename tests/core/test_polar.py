"""Polar factors and their nuclear norm against the singular value decomposition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.kernels import compiled
from phenotaste.core.kernels import polar
from phenotaste.core.kernels.polar import SIGMA_FLOOR, new_eigh_scratch
from phenotaste.core.reference import polar_factor

inverse_sqrt_eigh = compiled(polar.inverse_sqrt_eigh)
nuclear_norm = compiled(polar.nuclear_norm)
polar_wide = compiled(polar.polar_wide)


def by_root(U, H):
    """Q = M C^(-1/2), for at least as many visits as phenotypes."""
    R = len(H)
    root = np.empty((R, R))
    inverse_sqrt_eigh(H @ (U.T @ U) @ H.T, new_eigh_scratch(R), root)
    return U @ H.T @ root


def by_rows(U, H):
    """Q, for fewer visits than phenotypes."""
    Q = np.empty(U.shape)
    polar_wide(np.ascontiguousarray(U), H, new_eigh_scratch(len(H)), Q)
    return Q


def unit(M):
    return M / np.linalg.norm(M, axis=0)


@pytest.mark.parametrize("R", [1, 2, 3, 10, 40])
def test_long_histories(R):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        U, H = unit(rng.random((R + 5, R))), unit(rng.standard_normal((R, R)))
        Q = by_root(U, H)
        left, singular, right = np.linalg.svd(U @ H.T, full_matrices=False)
        error = 1e-14 * (singular[0] / singular[-1]) ** 2 + 1e-12  # C squares the condition number
        np.testing.assert_allclose(Q, left @ right, rtol=0, atol=error)
        np.testing.assert_allclose(Q.T @ Q, np.eye(R), rtol=0, atol=2 * error)


@pytest.mark.parametrize(("visits", "R"), [(1, 2), (1, 40), (2, 3), (4, 5), (9, 10), (20, 40)])
def test_short_histories(visits, R):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        U, H = unit(rng.random((visits, R))), unit(rng.standard_normal((R, R)))
        Q = by_rows(U, H)
        left, singular, right = np.linalg.svd(U @ H.T, full_matrices=False)
        error = 1e-14 * (singular[0] / singular[-1]) ** 2 + 1e-12
        np.testing.assert_allclose(Q, left @ right, rtol=0, atol=error)
        np.testing.assert_allclose(Q @ Q.T, np.eye(visits), rtol=0, atol=2 * error)


@pytest.mark.parametrize("polar", [by_root, by_rows])
def test_Q_shrinks_smoothly_along_small_singular_values(polar):
    """Along a singular value σ of U Hᵀ, Q has length σ / max(σ, SIGMA_FLOOR), whatever the others are."""
    visits, R = (7, 4) if polar is by_root else (3, 4)
    rng = np.random.default_rng(0)
    left, _ = np.linalg.qr(rng.standard_normal((visits, min(visits, R))))
    right, _ = np.linalg.qr(rng.standard_normal((R, min(visits, R))))
    for share in (0.0, 0.01, 0.3, 0.9, 1.1, 10.0):
        singular = SIGMA_FLOOR * np.array([5000.0, 100.0, 5000.0, share])[-min(visits, R) :]
        Q = polar((left * singular) @ right.T, np.eye(R))
        np.testing.assert_allclose(left[:, -1] @ Q @ right[:, -1], min(share, 1.0), rtol=0, atol=1e-5)
        assert np.linalg.norm(Q, 2) <= 1 + 1e-9


@given(
    seed=st.integers(0, 2**32 - 1),
    R=st.integers(1, 8),
    visits=st.integers(1, 12),
    kind=st.sampled_from(["random", "sparse", "repeated", "dead", "zero"]),
)
def test_Q_is_the_best_contraction(seed, R, visits, kind):
    """⟨Q, U Hᵀ⟩ reaches the nuclear norm up to SIGMA_FLOOR, and ‖Q‖₂ ≤ 1: the conditions for descent."""
    rng = np.random.default_rng(seed)
    U, H = rng.random((visits, R)), unit(rng.standard_normal((R, R)))
    if kind == "sparse":
        U *= rng.random(U.shape) < 0.3
    if kind == "repeated":
        U[:] = U[0]
    if kind == "dead":
        U[:, R // 2] = 0
    if kind == "zero":
        U[:] = 0
    Q = by_rows(U, H) if visits < R else by_root(U, H)
    M = U @ H.T
    singular = np.linalg.svd(M, compute_uv=False)
    assert np.linalg.norm(Q, 2) <= 1 + 1e-3
    assert np.sum(Q * M) >= singular.sum() - R * SIGMA_FLOOR - 1e-6 * singular[0]
    assert nuclear_norm(M, new_eigh_scratch(len(H))) == pytest.approx(singular.sum(), rel=1e-12, abs=1e-14)
    assert np.sum(Q * M) == pytest.approx(np.sum(polar_factor(U, H) * M), rel=1e-6, abs=2 * R * SIGMA_FLOOR)


@pytest.mark.parametrize("polar", [by_root, by_rows])
def test_nan_propagates(polar):
    U = np.random.default_rng(0).random((7 if polar is by_root else 3, 4))
    U[1, 2] = np.nan
    assert np.isnan(polar(U, np.eye(4))).any()


def test_infinity_gives_nan():
    root, C = np.empty((3, 3)), np.eye(3)
    C[2, 2] = np.inf
    inverse_sqrt_eigh(C, new_eigh_scratch(3), root)
    assert np.isnan(root).all()
