"""The polar factor of M = U Hᵀ through small square matrices: Q = M C^(-1/2) with C = MᵀM = H (UᵀU) Hᵀ."""

import numpy as np
from numba import njit

from .records import Array

# Singular values of M below this are capped, not cut: Q shrinks smoothly to zero along a direction the
# patient does not have, so the objective keeps falling. A threshold that moved with C would not do that.
SMALLEST = 1e-6


@njit(cache=True, nogil=True)
def inverse_root(C: Array, out: Array) -> None:
    """C^(-1/2), with the singular values of M capped from below."""
    values, Z = np.linalg.eigh(C)
    for r in range(C.shape[0]):
        root = max(np.sqrt(max(values[r], 0.0)), SMALLEST)
        for s in range(C.shape[0]):
            out[s, r] = Z[s, r] / root
    out[:] = np.dot(out, Z.T)


@njit(cache=True, nogil=True)
def short_polar(U: Array, H: Array, Q: Array) -> None:
    """Q itself for fewer visits than phenotypes, from M Mᵀ: the null space of C, mere noise there, never appears."""
    M = np.dot(U, H.T)
    _, Z = np.linalg.eigh(np.dot(M, M.T))
    right = np.dot(Z.T, M)  # row i is the i-th singular value times its right singular vector
    for i in range(M.shape[0]):
        right[i] /= max(np.linalg.norm(right[i]), SMALLEST)
    np.dot(Z, right, Q)


@njit(cache=True, nogil=True)
def nuclear_norm(C: Array, U: Array, H: Array) -> float:
    """‖U Hᵀ‖_*, from the eigenvalues of C where they can carry it and from U Hᵀ itself where not."""
    values = np.linalg.eigvalsh(C)
    if values[0] > 1e-8 * values[-1]:
        return float(np.sum(np.sqrt(values)))
    _, singular, _ = np.linalg.svd(np.dot(U, H.T), full_matrices=False)
    return float(np.sum(singular))
