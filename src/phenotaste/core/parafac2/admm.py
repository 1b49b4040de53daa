"""AO-ADMM: a factor under a constraint or penalty r, by least squares and proximal steps in turn.

    minimise  ½ tr(X G Xᵀ) − ⟨B, X⟩ + r(X)      from Gram matrix G and right-hand sides B, one a row

Huang, Sidiropoulos & Liavas 2016. The dual outlives the call: the next outer iteration goes on from it.
"""

from collections.abc import Callable

import numpy as np

from phenotaste.core.records import Array


def step_size(gram: Array) -> float:
    """ρ: the mean eigenvalue, so that both halves of a step matter alike."""
    return float(np.trace(gram)) / len(gram)


def improve(
    gram: Array, right: Array, X: Array, dual: Array, proximal: Callable[[Array, float], Array], steps: int
) -> tuple[Array, Array]:
    """X (feasible) and its scaled dual after some steps; where G is zero nothing speaks for a change."""
    rho = step_size(gram)
    if rho <= 0.0:
        return X, dual
    solve = np.linalg.inv(gram + rho * np.eye(len(gram)))
    for _ in range(steps):
        free = (right + rho * (X + dual)) @ solve
        X = proximal(free - dual, rho)
        dual = dual + X - free
    return X, dual


def nonnegative(X: Array, rho: float) -> Array:
    return np.maximum(X, 0.0)


def unconstrained(X: Array, rho: float) -> Array:
    return X


def sparse(l1: float, l0: float, positive: bool) -> Callable[[Array, float], Array]:
    """The proximal operator of l1·‖X‖₁ + l0·‖X‖₀ (with X ≥ 0 if `positive`): shrink by l1/ρ, then keep what exceeds
    √(2 l0/ρ), since an entry x pays for itself when ½ρx² > l0."""

    def proximal(X: Array, rho: float) -> Array:
        size = X if positive else np.abs(X)
        shrunk = np.maximum(size - l1 / rho, 0.0)
        kept = np.where(shrunk > np.sqrt(2 * l0 / rho), shrunk, 0.0)
        return kept if positive else np.sign(X) * kept

    return proximal
