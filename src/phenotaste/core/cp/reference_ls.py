"""Least squares, SUSTain and Granite on dense tensors, written to be read: the kernels are tested against it."""

import numpy as np
from scipy.optimize import brentq, nnls

from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.cp.granite import Penalty
from phenotaste.core.cp.sustain import TIE, peak_levels
from phenotaste.core.records import Array


def dense(counts: Counts) -> Array:
    """The tensor with its zeros."""
    T = np.zeros(counts.shape)
    for k in range(counts.shape[0]):
        for e in range(counts.starts[k], counts.starts[k + 1]):
            T[k, counts.a[e], counts.b[e]] += counts.values[e]
    return T


def model_tensor(factors: Factors) -> Array:
    return np.einsum("kr,ir,jr->kij", *factors)


def unfolded(T: Array, factors: Factors, mode: int) -> tuple[Array, Array]:
    """T as a matrix with a row for each element of `mode`, and the matrix K with T ≈ F Kᵀ."""
    first, second = (F for n, F in enumerate(factors) if n != mode)
    K = np.einsum("ir,jr->ijr", first, second).reshape(-1, first.shape[1])
    return np.moveaxis(T, mode, 0).reshape(T.shape[mode], -1), K


# --- non-negative least squares -----------------------------------------------------------------------------------


def nonnegative_factor(T: Array, factors: Factors, mode: int) -> Array:
    """The best factor of `mode`, row by row."""
    X, K = unfolded(T, factors, mode)
    return np.array([nnls(K, x)[0] for x in X]).reshape(len(X), K.shape[1])


def squared_error(T: Array, factors: Factors) -> float:
    return float(np.sum((T - model_tensor(factors)) ** 2))


# --- SUSTain ------------------------------------------------------------------------------------------------------


def best_integers(target: Array, scale: float, bound: int) -> tuple[Array, float]:
    """For each candidate of the scale the nearest integers by trying all, then the scale by least squares."""
    best, best_error, best_scale = np.zeros_like(target), np.sum(target**2), 0.0
    integers = np.arange(bound + 1.0)
    for candidate in (scale, *(target.max() / peak_levels(bound))):
        if candidate <= 0:
            continue
        f = np.array([integers[np.argmin((t - candidate * integers) ** 2)] for t in target])
        if not f.any():
            continue
        fitted = target @ f / (f @ f)
        error = np.sum((target - fitted * f) ** 2)
        if error < best_error:
            best, best_error, best_scale = f, error, fitted
    return best, best_scale


def sustain_column(
    T: Array, factors: Factors, scales: Array, mode: int, r: int, bound: int
) -> tuple[Array, float]:
    """The integers of column r of `mode` and its scale, from the residual of the other phenotypes."""
    X, K = unfolded(T, factors, mode)
    others = [s for s in range(len(scales)) if s != r]
    residual = X - (factors[mode][:, others] * scales[others]) @ K[:, others].T
    return best_integers(residual @ K[:, r] / (K[:, r] @ K[:, r]), scales[r], bound)


def sustain_row(T_k: Array, A: Array, B: Array, scales: Array, start: Array, bound: int) -> Array:
    """Integer scores of one patient: every score in turn is replaced by the best of all integers, until none is."""
    w = np.minimum(np.floor(start + 0.5), bound)
    parts = np.einsum("r,ir,jr->rij", scales, A, B)
    changed = True
    while changed:
        changed = False
        for r in range(len(w)):
            size = np.sum(parts[r] ** 2)
            if size == 0:
                w[r] = 0
                continue
            residual = T_k - np.einsum("r,rij->ij", np.where(np.arange(len(w)) == r, 0.0, w), parts)
            target = np.sum(residual * parts[r]) / size
            best = min(range(bound + 1), key=lambda q: abs(target - q))
            if abs(target - best) + TIE < abs(target - w[r]):
                w[r], changed = best, True
    return w


# --- Granite ------------------------------------------------------------------------------------------------------


def granite_objective(T: Array, factors: Factors, penalty: Penalty) -> float:
    m = model_tensor(factors)
    seen = T > 0
    divergence = np.sum(T[seen] * np.log(T[seen] / m[seen])) - T.sum() + m.sum()
    return float(divergence + penalty.weight * sum(angular(F, penalty.limit) for F in factors[1:]))


def angular(F: Array, limit: float) -> float:
    total = 0.0
    for r in range(F.shape[1]):
        for s in range(r):
            cosine = F[:, r] @ F[:, s] / (np.linalg.norm(F[:, r]) * np.linalg.norm(F[:, s]))
            total += 0.5 * max(0.0, cosine - limit) ** 2
    return total


def log_mean_gradient(T: Array, factors: Factors, mode: int) -> Array:
    """The gradient of Σ x log m with respect to the factor of `mode`."""
    m = model_tensor(factors)
    ratio = np.divide(T, m, out=np.zeros_like(T), where=T > 0)
    X, K = unfolded(ratio, factors, mode)
    return X @ K


def em_patients(T: Array, factors: Factors) -> Array:
    """W after one step of expectation–maximisation."""
    return factors.W * log_mean_gradient(T, factors, 0)


def onto_simplex(y: Array, metric: Array) -> Array:
    """The multiplier τ with Σ max(0, y − τ metric) = 1, by root finding."""

    def excess(tau: float) -> float:
        return float(np.sum(np.maximum(y - tau * metric, 0.0)) - 1.0)

    low, high = np.min((y - 2.0) / metric), np.max(y / metric)
    return np.maximum(y - brentq(excess, low, high, xtol=1e-14) * metric, 0.0)
