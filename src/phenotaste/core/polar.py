"""The polar factor of M = U Hᵀ through small square matrices: Q = M C^(-1/2) with C = MᵀM = H (UᵀU) Hᵀ."""

from typing import NamedTuple

import numpy as np
from numba import njit

from .eigen import eigh_in_place
from .records import Array

# Singular values of M below this are capped, not cut: Q shrinks smoothly to zero along a direction the
# patient does not have, so the objective keeps falling. A threshold that moved with C would not do that.
SMALLEST = 1e-6
# Below this share of the largest singular value, one taken from C is rounding noise, since C holds its square.
# It matters only where the scale of U and H is free (`normalize=False`); unit columns stay near SMALLEST.
NOISE = 1e-7


class Eigen(NamedTuple):
    """Room for one eigendecomposition of up to R × R."""

    square: Array  # R²; the matrix, overwritten
    vectors: Array  # R²
    rows: Array  # R²
    values: Array  # R
    scratch: Array  # 3 × R


def new_eigen(R: int) -> Eigen:
    return Eigen(np.empty(R * R), np.empty(R * R), np.empty(R * R), np.empty(R), np.empty((3, R)))


@njit(cache=True, nogil=True)
def inverse_root(C: Array, eigen: Eigen, out: Array) -> None:
    """C^(-1/2), with the singular values of M capped from below; C is overwritten."""
    R = C.shape[0]
    Z = eigen.vectors.reshape(R, R)
    if not eigh_in_place(C, eigen.values, Z, eigen.scratch):
        eigen.values[:] = np.nan  # the loop will see that the objective is no number
    least = max(SMALLEST, NOISE * np.sqrt(max(np.max(eigen.values), 0.0)))
    for i in range(R):  # Σ z zᵀ / √λ as a product of rows, each of which carries λ^(-1/4)
        weight = 1.0 / np.sqrt(max(np.sqrt(max(eigen.values[i], 0.0)), least))
        for r in range(R):
            Z[i, r] *= weight
    np.dot(Z.T, Z, out)


@njit(cache=True, nogil=True)
def long_polar(U: Array, H: Array, eigen: Eigen, Q: Array) -> None:
    """Q = M C^(-1/2) for at least as many visits as phenotypes."""
    M = np.dot(U, H.T)
    root = np.empty(H.shape)
    inverse_root(np.dot(M.T, M), eigen, root)
    np.dot(M, root, Q)


@njit(cache=True, nogil=True)
def short_polar(U: Array, H: Array, eigen: Eigen, Q: Array) -> None:
    """Q itself for fewer visits than phenotypes, from M Mᵀ: the null space of C, mere noise there, never appears."""
    visits, R = U.shape
    M = eigen.rows[: visits * R].reshape(visits, R)
    MM = eigen.square[: visits * visits].reshape(visits, visits)
    Z = eigen.vectors[: visits * visits].reshape(visits, visits)
    np.dot(U, H.T, M)
    np.dot(M, M.T, MM)
    if not eigh_in_place(MM, eigen.values[:visits], Z, eigen.scratch):
        Z[:] = np.nan
    np.dot(Z, M, Q)  # row i is the i-th singular value times its right singular vector
    least = max(SMALLEST, NOISE * np.sqrt(max(np.max(eigen.values[:visits]), 0.0)))
    for i in range(visits):
        size = 0.0
        for r in range(R):
            size += Q[i, r] * Q[i, r]
        weight = 1.0 / max(np.sqrt(size), least)
        for r in range(R):
            M[i, r] = weight * Q[i, r]
    np.dot(Z.T, M, Q)


@njit(cache=True, nogil=True)
def nuclear_norm(M: Array, eigen: Eigen) -> float:
    """‖M‖_*: singular values as lengths of M along its singular directions, which keeps the small ones' digits."""
    visits, R = M.shape
    n = min(visits, R)
    square = eigen.square[: n * n].reshape(n, n)
    Z = eigen.vectors[: n * n].reshape(n, n)
    if visits < R:
        np.dot(M, M.T, square)
    else:
        np.dot(M.T, M, square)
    if not eigh_in_place(square, eigen.values[:n], Z, eigen.scratch):
        return np.nan
    total = 0.0
    along = np.dot(Z, M) if visits < R else np.dot(Z, M.T)
    for i in range(n):
        size = 0.0
        for j in range(along.shape[1]):
            size += along[i, j] * along[i, j]
        total += np.sqrt(size)
    return total
