"""CP-APR, the same with a bias, and projection in plain NumPy on dense tensors, which the fast versions must match."""

import numpy as np

from phenotaste.core.cp.apr import MIN_MEAN, AprOptions
from phenotaste.core.cp.bias import GROWN, MIN_BIAS, NO_LOSS
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


def cp_apr_bias(
    X: Array, start: Factors, threshold: float, options: AprOptions
) -> tuple[Factors, list[float]]:
    """CP-APR with a bias in the last column and a threshold that grows; as `bias.fit`, without its stop rule."""
    factors = [factor / column_sums(factor) for factor in start]
    weights = np.prod([factor.sum(axis=0) for factor in start], axis=0)
    losses: list[float] = []
    grown = 0.0
    for _ in range(options.max_iter):
        for mode in range(3):
            F = factors[mode] = factors[mode] * weights
            for columns in (slice(None, -1), slice(-1, None)):
                for _ in range(options.max_inner):
                    share = multipliers(X, Factors(*factors), mode, options.epsilon)[:, columns]
                    gap = np.abs(np.minimum(F[:, columns], 1.0 - share))
                    if columns == slice(None, -1):
                        gap = gap[F[:, columns] > 0]  # zeros remain zero
                    if gap.max(initial=0.0) < options.tol:
                        break
                    F[:, columns] *= share
                if columns == slice(None, -1) and mode > 0:
                    F[:, columns] = without_small(F[:, columns], grown * threshold) * F[:, columns].sum(
                        axis=0
                    )
            F[:, -1] = np.maximum(F[:, -1], MIN_BIAS * F[:, -1].mean())
            weights = F.sum(axis=0)
            factors[mode] = F / column_sums(F)
        W, A, B = factors[0] * weights, factors[1], factors[2]
        losses.append(divergence(X, Factors(W, A, B)))
        if len(losses) > 1:
            still = 1.0 - min(1.0, abs(losses[-2] - losses[-1]) / max(losses[-2], NO_LOSS * X.sum()))
            grown = max(grown, 0.5 * grown + 0.5 * still)
            grown = 1.0 if grown > GROWN else grown
    for F in (A, B):
        F[:, :-1] = without_small(F[:, :-1], threshold)
    return Factors(W, A, B), losses


def without_small(factor: Array, threshold: float) -> Array:
    """Columns that sum to one, without entries below the threshold; the largest entry of a column remains."""
    factor = factor / column_sums(factor)
    factor = factor * ((factor >= threshold) | (factor == factor.max(axis=0)))
    return factor / column_sums(factor)


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
