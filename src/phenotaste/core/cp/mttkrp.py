"""Sparse least squares for T ≈ Σ_r w_r∘a_r∘b_r: products with the non-zeros, Gram matrices for everything else."""

import numpy as np

from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.kernels.jit import FASTMATH, kernel
from phenotaste.core.records import Array


def mttkrp(counts: Counts, factors: Factors, mode: int) -> Array:
    """The unfolded tensor times the Khatri–Rao product of the other two factors: as large as the factor of `mode`."""
    out = np.zeros(factors[mode].shape)
    add_products(counts.values, counts.a, counts.b, counts.starts, *factors, mode, out)
    return out


@kernel(autovectorize=True, allocates=True, fastmath=FASTMATH)
def add_products(
    values: Array, a: Array, b: Array, starts: Array, W: Array, A: Array, B: Array, mode: int, out: Array
) -> None:
    """Every run of non-zeros with the same patient and the same A is multiplied once."""
    R = A.shape[1]
    run = np.empty(R)
    for k in range(len(starts) - 1):
        e, end = starts[k], starts[k + 1]
        while e < end:
            i = a[e]
            if mode == 2:
                for r in range(R):
                    run[r] = W[k, r] * A[i, r]
                while e < end and a[e] == i:
                    for r in range(R):
                        out[b[e], r] += values[e] * run[r]
                    e += 1
                continue
            run[:] = 0.0
            while e < end and a[e] == i:
                for r in range(R):
                    run[r] += values[e] * B[b[e], r]
                e += 1
            if mode == 0:
                for r in range(R):
                    out[k, r] += run[r] * A[i, r]
            else:
                for r in range(R):
                    out[i, r] += run[r] * W[k, r]


def other_grams(factors: Factors, mode: int) -> Array:
    """The Gram matrix of that Khatri–Rao product: the product of the other factors' Gram matrices."""
    first, second = (F.T @ F for n, F in enumerate(factors) if n != mode)
    return first * second


def squared_error(size: float, product: Array, gram: Array, F: Array) -> float:
    """‖T − Σ_r w_r∘a_r∘b_r‖², with `size` = ‖T‖², the MTTKRP of one mode, its Gram matrix, and its factor F."""
    return max(float(size - 2.0 * np.sum(product * F) + np.sum(gram * (F.T @ F))), 0.0)
