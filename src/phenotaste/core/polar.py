"""The polar factor of M = U Hᵀ through R × R algebra: Q = M C^(-1/2) with C = MᵀM = H (UᵀU) Hᵀ."""

import numpy as np
from numba import njit

from .records import Array

# Singular values of M below this are capped, not cut: Q shrinks smoothly to zero along a direction the
# patient does not have, so the objective keeps falling. A threshold that moved with C would not do that.
SMALLEST = 1e-7


@njit(cache=True, nogil=True)
def inverse_root(C: Array, out: Array) -> None:
    """C^(-1/2) = Z diag(1 / max(√λ, SMALLEST)) Zᵀ."""
    R = C.shape[0]
    values, Z = np.linalg.eigh(C)
    scaled = np.empty((R, R))
    for r in range(R):
        root = max(np.sqrt(max(values[r], 0.0)), SMALLEST)
        for s in range(R):
            scaled[s, r] = Z[s, r] / root
    np.dot(scaled, Z.T, out)


@njit(cache=True, nogil=True)
def nuclear_norm(C: Array, U: Array, H: Array) -> float:
    """‖U Hᵀ‖_*, from the eigenvalues of C where they can carry it and from U Hᵀ itself where not."""
    values = np.linalg.eigvalsh(C)
    if values[0] > 1e-8 * values[-1]:
        return float(np.sum(np.sqrt(values)))
    _, singular, _ = np.linalg.svd(np.dot(U, H.T), full_matrices=False)
    return float(np.sum(singular))
