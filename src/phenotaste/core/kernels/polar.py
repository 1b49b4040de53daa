"""The polar factor of M = U Hᵀ through small square matrices: Q = M C^(-1/2) with C = MᵀM = H (UᵀU) Hᵀ."""

from typing import NamedTuple

import numpy as np
from numba import njit

from phenotaste.core.kernels.eigen import eigh_in_place
from phenotaste.core.records import ALLOCATING, VECTOR, Array

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


# Products written out: numpy's would take longer to compile than all the rest of this file.


@njit(cache=True, nogil=True, fastmath=VECTOR)
def times(A: Array, B: Array, out: Array) -> None:
    """out = A B."""
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            out[i, j] = 0.0
        for k in range(B.shape[0]):
            factor = A[i, k]
            for j in range(B.shape[1]):
                out[i, j] += factor * B[k, j]


@njit(cache=True, nogil=True, fastmath=VECTOR)
def times_transposed(A: Array, B: Array, out: Array) -> None:
    """out = A Bᵀ."""
    for i in range(A.shape[0]):
        for j in range(B.shape[0]):
            value = 0.0
            for k in range(A.shape[1]):
                value += A[i, k] * B[j, k]
            out[i, j] = value


@njit(cache=True, nogil=True, fastmath=VECTOR)
def transposed_times(A: Array, B: Array, out: Array) -> None:
    """out = AᵀB."""
    for i in range(A.shape[1]):
        for j in range(B.shape[1]):
            out[i, j] = 0.0
    for k in range(A.shape[0]):
        for i in range(A.shape[1]):
            factor = A[k, i]
            for j in range(B.shape[1]):
                out[i, j] += factor * B[k, j]


@njit(cache=True, nogil=True)
def least_length(values: Array) -> float:
    """What singular values are capped at, from the eigenvalues of C."""
    top = 0.0
    for i in range(values.size):
        top = max(top, values[i])
    return max(SMALLEST, NOISE * np.sqrt(top))


@njit(cache=True, nogil=True)
def inverse_root(C: Array, eigen: Eigen, out: Array) -> None:
    """C^(-1/2), with the singular values of M capped from below; C is overwritten."""
    R = C.shape[0]
    Z = eigen.vectors.reshape(R, R)
    settled = eigh_in_place(C, eigen.values, Z, eigen.scratch)
    least = least_length(eigen.values)
    for i in range(R):  # Σ z zᵀ / √λ as a product of rows, each of which carries λ^(-1/4)
        weight = 1.0 / np.sqrt(max(np.sqrt(max(eigen.values[i], 0.0)), least))
        for r in range(R):  # where it did not settle, the loop will see that the objective is no number
            Z[i, r] *= weight if settled else np.nan
    transposed_times(Z, Z, out)


@njit(cache=True, nogil=True)
def long_polar(U: Array, H: Array, eigen: Eigen, Q: Array) -> None:
    """Q = M C^(-1/2) for at least as many visits as phenotypes."""
    M, C, root = np.empty(U.shape), np.empty(H.shape), np.empty(H.shape)
    times_transposed(U, H, M)
    transposed_times(M, M, C)
    inverse_root(C, eigen, root)
    times(M, root, Q)


@njit(cache=True, nogil=True)
def short_polar(U: Array, H: Array, eigen: Eigen, Q: Array) -> None:
    """Q itself for fewer visits than phenotypes, from M Mᵀ: the null space of C, mere noise there, never appears."""
    visits, R = U.shape
    M = eigen.rows[: visits * R].reshape(visits, R)
    MM = eigen.square[: visits * visits].reshape(visits, visits)
    Z = eigen.vectors[: visits * visits].reshape(visits, visits)
    times_transposed(U, H, M)
    times_transposed(M, M, MM)
    settled = eigh_in_place(MM, eigen.values[:visits], Z, eigen.scratch)
    times(Z, M, Q)  # row i is the i-th singular value times its right singular vector
    least = least_length(eigen.values[:visits])
    for i in range(visits):
        size = 0.0
        for r in range(R):
            size += Q[i, r] * Q[i, r]
        weight = 1.0 / max(np.sqrt(size), least) if settled else np.nan
        for r in range(R):
            M[i, r] = weight * Q[i, r]
    transposed_times(Z, M, Q)


@njit(**ALLOCATING)
def explicit_polar(
    U: Array, visits: int, mu: float, H: Array, eigen: Eigen, scaled: Array, pull: Array
) -> None:
    """μ Q and μ Q H of a patient whose C is too near to a singular matrix; U and both outcomes are padded."""
    R = H.shape[0]
    old, Q, QH = np.empty((visits, R)), np.empty((visits, R)), np.empty((visits, R))
    for i in range(visits):
        for r in range(R):
            old[i, r] = U[i, r]
    if visits < R:
        short_polar(old, H, eigen, Q)
    else:
        long_polar(old, H, eigen, Q)
    times(Q, H, QH)
    for i in range(visits):
        for r in range(R):
            scaled[i, r], pull[i, r] = mu * Q[i, r], mu * QH[i, r]


@njit(cache=True, nogil=True)
def nuclear_norm(M: Array, eigen: Eigen) -> float:
    """‖M‖_*: singular values as lengths of M along its singular directions, which keeps the small ones' digits."""
    visits, R = M.shape
    n = min(visits, R)
    square = eigen.square[: n * n].reshape(n, n)
    Z = eigen.vectors[: n * n].reshape(n, n)
    along = np.empty((n, max(visits, R)))
    if visits < R:
        times_transposed(M, M, square)
    else:
        transposed_times(M, M, square)
    if not eigh_in_place(square, eigen.values[:n], Z, eigen.scratch):
        return np.nan
    if visits < R:
        times(Z, M, along)
    else:
        times_transposed(Z, M, along)
    total = 0.0
    for i in range(n):
        size = 0.0
        for j in range(along.shape[1]):
            size += along[i, j] * along[i, j]
        total += np.sqrt(size)
    return total
