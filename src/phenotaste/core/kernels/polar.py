"""The polar factor of M = U Hᵀ through small square matrices: Q = M C^(-1/2) with C = MᵀM = H (UᵀU) Hᵀ."""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.eigen import eigh_in_place
from phenotaste.core.kernels.jit import FASTMATH, part
from phenotaste.core.records import Array

# Singular values of M are bounded below by this instead of being cut off: Q shrinks smoothly to zero along a direction
# that the patient lacks, so the objective keeps falling. A threshold relative to C would not guarantee that.
SIGMA_FLOOR = 1e-6
# Below this share of the largest, a singular value computed from C is rounding noise, since C holds its square.
# It matters only where the scale of U and H is free (`normalize=False`); with unit columns SIGMA_FLOOR dominates.
SIGMA_RTOL = 1e-7


class EighScratch(NamedTuple):
    """Scratch for one eigendecomposition of up to R × R."""

    square: Array  # R²; the matrix, overwritten
    vectors: Array  # R²
    M: Array  # R²
    values: Array  # R
    work: Array  # 3 × R


def new_eigh_scratch(R: int) -> EighScratch:
    return EighScratch(np.empty(R * R), np.empty(R * R), np.empty(R * R), np.empty(R), np.empty((3, R)))


# Products written out: numpy's take longer to compile than the rest of this file.


@part(fastmath=FASTMATH)
def matmul(A: Array, B: Array, out: Array) -> None:
    """out = A B."""
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            out[i, j] = 0.0
        for k in range(B.shape[0]):
            factor = A[i, k]
            for j in range(B.shape[1]):
                out[i, j] += factor * B[k, j]


@part(fastmath=FASTMATH)
def matmul_nt(A: Array, B: Array, out: Array) -> None:
    """out = A Bᵀ."""
    for i in range(A.shape[0]):
        for j in range(B.shape[0]):
            value = 0.0
            for k in range(A.shape[1]):
                value += A[i, k] * B[j, k]
            out[i, j] = value


@part(fastmath=FASTMATH)
def matmul_tn(A: Array, B: Array, out: Array) -> None:
    """out = AᵀB."""
    for i in range(A.shape[1]):
        for j in range(B.shape[1]):
            out[i, j] = 0.0
    for k in range(A.shape[0]):
        for i in range(A.shape[1]):
            factor = A[k, i]
            for j in range(B.shape[1]):
                out[i, j] += factor * B[k, j]


@part
def sigma_floor(values: Array) -> float:
    """The lower bound of the singular values of M, from the eigenvalues of C."""
    top = 0.0
    for i in range(values.size):
        top = max(top, values[i])
    return max(SIGMA_FLOOR, SIGMA_RTOL * np.sqrt(top))


@part
def inverse_sqrt_eigh(C: Array, scratch: EighScratch, out: Array) -> None:
    """C^(-1/2), with the singular values of M bounded below; C is overwritten."""
    R = C.shape[0]
    Z = scratch.vectors.reshape(R, R)
    converged = eigh_in_place(C, scratch.values, Z, scratch.work)
    floor = sigma_floor(scratch.values)
    for i in range(R):  # Σ z zᵀ / √λ as a product of rows scaled by λ^(-1/4)
        weight = 1.0 / np.sqrt(max(np.sqrt(max(scratch.values[i], 0.0)), floor))
        for r in range(R):  # without convergence the objective becomes NaN, which the fit reports
            Z[i, r] *= weight if converged else np.nan
    matmul_tn(Z, Z, out)


@part(allocates=True)
def polar_tall(U: Array, H: Array, scratch: EighScratch, Q: Array) -> None:
    """Q = M C^(-1/2) for at floor as many visits as phenotypes."""
    M, C, root = np.empty(U.shape), np.empty(H.shape), np.empty(H.shape)
    matmul_nt(U, H, M)
    matmul_tn(M, M, C)
    inverse_sqrt_eigh(C, scratch, root)
    matmul(M, root, Q)


@part
def polar_wide(U: Array, H: Array, scratch: EighScratch, Q: Array) -> None:
    """Q for fewer visits than phenotypes, from M Mᵀ, which has no null space of mere rounding noise as C does."""
    visits, R = U.shape
    M = scratch.M[: visits * R].reshape(visits, R)
    MM = scratch.square[: visits * visits].reshape(visits, visits)
    Z = scratch.vectors[: visits * visits].reshape(visits, visits)
    matmul_nt(U, H, M)
    matmul_nt(M, M, MM)
    converged = eigh_in_place(MM, scratch.values[:visits], Z, scratch.work)
    matmul(Z, M, Q)  # row i is the i-th singular value times its right singular vector
    floor = sigma_floor(scratch.values[:visits])
    for i in range(visits):
        size = 0.0
        for r in range(R):
            size += Q[i, r] * Q[i, r]
        weight = 1.0 / max(np.sqrt(size), floor) if converged else np.nan
        for r in range(R):
            M[i, r] = weight * Q[i, r]
    matmul_tn(Z, M, Q)


@part(allocates=True)
def polar_eigh(
    U: Array, visits: int, mu: float, H: Array, scratch: EighScratch, mu_Q: Array, mu_QH: Array
) -> None:
    """μ Q and μ Q H of a patient whose C is nearly singular; U and both results are padded."""
    R = H.shape[0]
    U_k, Q, QH = np.empty((visits, R)), np.empty((visits, R)), np.empty((visits, R))
    for i in range(visits):
        for r in range(R):
            U_k[i, r] = U[i, r]
    if visits < R:
        polar_wide(U_k, H, scratch, Q)
    else:
        polar_tall(U_k, H, scratch, Q)
    matmul(Q, H, QH)
    for i in range(visits):
        for r in range(R):
            mu_Q[i, r], mu_QH[i, r] = mu * Q[i, r], mu * QH[i, r]


@part(allocates=True)
def nuclear_norm(M: Array, scratch: EighScratch) -> float:
    """‖M‖_*, with singular values as norms of M along its singular vectors, so that small ones stay accurate."""
    visits, R = M.shape
    n = min(visits, R)
    square = scratch.square[: n * n].reshape(n, n)
    Z = scratch.vectors[: n * n].reshape(n, n)
    along = np.empty((n, max(visits, R)))
    if visits < R:
        matmul_nt(M, M, square)
    else:
        matmul_tn(M, M, square)
    if not eigh_in_place(square, scratch.values[:n], Z, scratch.work):
        return np.nan
    if visits < R:
        matmul(Z, M, along)
    else:
        matmul_nt(Z, M, along)
    total = 0.0
    for i in range(n):
        size = 0.0
        for j in range(along.shape[1]):
            size += along[i, j] * along[i, j]
        total += np.sqrt(size)
    return total
