"""SUSTain: minimise ‖T − Σ_r λ_r w_r∘a_r∘b_r‖² over λ > 0 and integers from 0 to a bound in W, A and B.

Given everything else, the error is a constant plus Σ_i (t_i − λ_r f_i)² times a factor, where f is a column and t its
real-valued least-squares solution. Rounding and clipping t/λ_r is therefore the optimal column, and λ_r = ⟨t, f⟩/⟨f, f⟩
the optimal scale: neither increases the error.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from phenotaste.core.cp import nonnegative
from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.cp.descent import descend
from phenotaste.core.cp.mttkrp import mttkrp, other_grams, squared_error
from phenotaste.core.kernels.jit import kernel
from phenotaste.core.kernels.nnls import solve_rows_bpp
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array

REAL_ITERATIONS = 20  # of the real-valued factorisation that is rounded to start with
LEVELS = 10  # integers that the largest entry of a column is tried at
CLIPPED = 2.0 ** (np.arange(1, 8) / 2.0)  # and multiples of the bound, at which it is clipped
TIE = 1e-9  # an integer is only replaced by one that is nearer by this, so that rounding errors cannot alternate


class IntegerFactors(NamedTuple):
    factors: Factors  # integers, as floating-point numbers
    scales: Array  # R: λ


def fit(
    counts: Counts, start: Factors, bound: int, max_iter: int, tol: float
) -> tuple[IntegerFactors, list[float], Outcome]:
    """Iterate from the rounded result of a real-valued factorisation from `start`."""
    size = float(np.sum(counts.values**2))
    real, _, _ = nonnegative.fit(counts, start, REAL_ITERATIONS, 0.0)
    return descend(rounded(real, bound), partial(step, counts, size, bound), max_iter, tol)


def rounded(real: Factors, bound: int) -> IntegerFactors:
    """Every column of real factors as integers times a scale; a column of zeros becomes one of ones in A and B."""
    scales = np.ones(real.A.shape[1])
    columns = []
    for mode, F in enumerate(real):
        Q = np.zeros_like(F)
        for r in range(F.shape[1]):
            Q[:, r], scale = best_integers(F[:, r], 0.0, bound)
            scales[r] *= scale if scale > 0 else 1.0
        columns.append(np.where(Q.any(axis=0), Q, 1.0) if mode else Q)
    return IntegerFactors(Factors(*columns), scales)


def step(counts: Counts, size: float, bound: int, model: IntegerFactors) -> tuple[IntegerFactors, float]:
    """Update every column of W, A and B once, each with its scale, and return the error; size is ‖T‖²."""
    factors, scales = model.factors, model.scales.copy()
    for mode in range(3):
        product, gram = mttkrp(counts, factors, mode), other_grams(factors, mode)
        F = factors[mode].copy()
        for r in range(len(scales)):
            update_column(product, gram, F, scales, r, bound)
        factors = Factors(*(F if n == mode else other for n, other in enumerate(factors)))
    return IntegerFactors(factors, scales), squared_error(size, product, gram, F * scales)


def update_column(product: Array, gram: Array, F: Array, scales: Array, r: int, bound: int) -> None:
    """The best integers and scale of column r, in place; a phenotype without counterpart in other modes is kept."""
    if not gram[r, r] > 0:
        return
    target = (product[:, r] - F @ (scales * gram[:, r])) / gram[r, r] + scales[r] * F[:, r]
    F[:, r], scale = best_integers(target, scales[r], bound)
    if scale > 0:
        scales[r] = scale


def best_integers(target: Array, scale: float, bound: int) -> tuple[Array, float]:
    """Integers f and λ with a small ‖t − λ f‖², never larger than with the best f for `scale`.

    Other scales are tried too: rounding has many local minima, in particular where few entries are large and dividing
    by the largest rounds all others to zero. λ is 0 if the best f is.
    """
    peak = float(target.max(initial=0.0))
    if not peak > 0:
        return np.zeros_like(target), 0.0
    best, best_gain, best_scale = np.zeros_like(target), 0.0, 0.0
    for candidate in (scale, *(peak / peak_levels(bound))):
        if not candidate > 0:
            continue
        f = np.clip(np.floor(target / candidate + 0.5), 0.0, bound)
        inner, norm = float(target @ f), float(f @ f)
        if norm > 0 and inner * inner / norm > best_gain:  # the error is ‖t‖² minus this
            best, best_gain, best_scale = f, inner * inner / norm, inner / norm
    return best, best_scale


def peak_levels(bound: int) -> Array:
    """Values of t/λ at the largest t."""
    return np.concatenate([np.linspace(1.0, bound, min(bound, LEVELS)), bound * CLIPPED])


def project(counts: Counts, model: IntegerFactors, bound: int) -> Array:
    """Integer scores of patients under A, B and λ, each from its own rounded solution to a coordinate-wise minimum."""
    factors, scales = model
    gram = other_grams(factors, 0) * np.outer(scales, scales)
    W = np.zeros((len(counts.starts) - 1, len(scales)))
    product = mttkrp(counts, factors._replace(W=W), 0) * scales
    solve_rows_bpp(gram, product, W)
    round_rows(gram, product, W, float(bound))
    return W


@kernel
def round_rows(gram: Array, product: Array, W: Array, bound: float) -> None:
    """Round each row of W, then replace its entries by the best integers, one after another, until none changes.

    Every change lowers wᵀGw − 2⟨m, w⟩ and there are finitely many integers, so this ends.
    """
    R = len(gram)
    for k in range(len(W)):
        w = W[k]
        for r in range(R):
            w[r] = min(np.floor(w[r] + 0.5), bound)
        changed = True
        while changed:
            changed = False
            for r in range(R):
                if not gram[r, r] > 0.0:
                    w[r] = 0.0
                    continue
                target = product[k, r] + gram[r, r] * w[r]
                for s in range(R):
                    target -= gram[r, s] * w[s]
                target /= gram[r, r]
                best = min(max(np.floor(target + 0.5), 0.0), bound)
                if abs(target - best) + TIE < abs(target - w[r]):
                    w[r] = best
                    changed = True
