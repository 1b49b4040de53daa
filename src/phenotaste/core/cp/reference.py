"""CP-APR and the projection of patients in plain NumPy on dense tensors, which the compiled versions must match."""

import numpy as np

from phenotaste.core.cp.apr import MIN_MEAN, AprOptions
from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.records import Array

OTHERS = ("kab,ar,br->kr", "kab,kr,br->ar", "kab,kr,ar->br")


def dense(counts: Counts) -> Array:
    """The tensor as an array, patients × A × B."""
    X = np.zeros(counts.shape)
    X[counts.patients, counts.a, counts.b] = counts.values
    return X


def means(factors: Factors) -> Array:
    """Σ_r w_r ∘ a_r ∘ b_r."""
    return np.einsum("kr,ar,br->kab", *factors)


def divergence(X: Array, factors: Factors) -> float:
    """Σ x log(x/m) − x + m."""
    M = means(factors)
    some = X > 0
    return float(np.sum(X[some] * (np.log(X[some] / np.maximum(M[some], MIN_MEAN)) - 1.0)) + M.sum())


def multipliers(X: Array, factors: Factors, mode: int, epsilon: float) -> Array:
    """Σ x/m · (product of the other two factors)."""
    others = [factor for n, factor in enumerate(factors) if n != mode]
    return np.einsum(OTHERS[mode], X / np.maximum(means(factors), epsilon), *others)


def cp_apr(X: Array, start: Factors, options: AprOptions) -> tuple[Factors, list[float]]:
    """The factors, A and B with columns that sum to one, and the divergence after each iteration."""
    factors = [factor / column_sums(factor) for factor in start]
    weights = np.prod([factor.sum(axis=0) for factor in start], axis=0)
    last: dict[int, Array] = {}
    losses: list[float] = []
    for _ in range(options.max_iter):
        converged = True
        for mode in range(3):
            factor = factors[mode]
            if mode in last:
                zeros = (last[mode] > options.kappa_above) & (factor < options.kappa_tol)
                factor = factor + options.kappa * zeros
            factors[mode] = factor * weights
            for _ in range(options.max_inner):
                last[mode] = multipliers(X, Factors(*factors), mode, options.epsilon)
                if np.max(np.abs(np.minimum(factors[mode], 1.0 - last[mode])), initial=0.0) < options.tol:
                    break
                converged = False
                factors[mode] = factors[mode] * last[mode]
            weights = factors[mode].sum(axis=0)
            factors[mode] = factors[mode] / column_sums(factors[mode])
        result = Factors(factors[0] * weights, factors[1], factors[2])
        losses.append(divergence(X, result))
        if converged:
            break
    return result, losses


def column_sums(factor: Array) -> Array:
    """What columns are divided by, so that they sum to one; columns of zeros remain."""
    sums = factor.sum(axis=0)
    return np.where(sums > 0, sums, 1.0)


def project(x: Array, A: Array, B: Array, tol: float, max_iter: int) -> Array:
    """The maximum-likelihood scores of one patient with the slice x (A × B), by expectation–maximisation."""
    total, mass = x.sum(), A.sum(axis=0) * B.sum(axis=0)
    w = np.divide(total, mass, out=np.zeros_like(mass), where=mass > 0)
    for _ in range(max_iter if total > 0 else 0):
        share = np.einsum("ab,ar,br->r", x / np.maximum(np.einsum("r,ar,br->ab", w, A, B), MIN_MEAN), A, B)
        now = np.divide(w * share, mass, out=np.zeros_like(mass), where=mass > 0)
        change = np.sum(np.abs(now - w) * mass)
        w = now
        if change <= tol * total:
            break
    return w
