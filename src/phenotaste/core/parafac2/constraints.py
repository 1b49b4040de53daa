"""Constraints of COPA: penalised factors by AO-ADMM, and M-spline bases of smooth courses.

    minimise  ½ tr(X G Xᵀ) − ⟨B, X⟩ + r(X)      from Gram matrix G and right-hand sides B, one per row

alternates least squares and proximal steps (Huang, Sidiropoulos & Liavas 2016). The dual is kept between calls, so that
the next outer iteration is warm-started. M-splines (Ramsay 1988) are evaluated at a patient's visits.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy.interpolate import BSpline

from phenotaste.core.records import Array

RANK_RTOL = 1e-10  # singular values of a basis below this share of the largest are outside its span


def step_size(gram: Array) -> float:
    """ρ: the mean eigenvalue, which balances both terms of a step."""
    return float(np.trace(gram)) / len(gram)


def improve(
    gram: Array, right: Array, X: Array, dual: Array, proximal: Callable[[Array, float], Array], steps: int
) -> tuple[Array, Array]:
    """X (feasible) and its scaled dual after `steps` steps; unchanged where G is zero."""
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
    """The proximal operator of l1·‖X‖₁ + l0·‖X‖₀ (with X ≥ 0 if `positive`): shrink by l1/ρ, then keep entries above
    √(2 l0/ρ), for which ½ρx² > l0."""

    def proximal(X: Array, rho: float) -> Array:
        size = X if positive else np.abs(X)
        shrunk = np.maximum(size - l1 / rho, 0.0)
        kept = np.where(shrunk > np.sqrt(2 * l0 / rho), shrunk, 0.0)
        return kept if positive else np.sign(X) * kept

    return proximal


def m_splines(times: Array, n_splines: int, degree: int) -> Array:
    """Visits × n_splines: M-splines with knots at quantiles of the times, so that gaps between visits matter.

    M-splines integrate to one: they are B-splines divided by the length of their support over their order. For a
    single visit, or equal times, the basis is the constant.
    """
    first, last = times.min(), times.max()
    if not last > first:
        return np.ones((len(times), 1))
    unit = (times - first) / (last - first)
    order = degree + 1
    inner = np.quantile(unit, np.linspace(0, 1, n_splines - order + 2)[1:-1])
    knots = np.concatenate([np.zeros(order), inner, np.ones(order)])
    support = knots[order:] - knots[:-order]
    alive = support > 0  # coinciding quantiles may leave a spline without support
    values = BSpline.design_matrix(unit, knots, degree).toarray()
    return values[:, alive] * (order / support[alive])


def orthonormal(basis: Array) -> Array:
    """Orthonormal columns with the span of the basis."""
    left, singular, _ = np.linalg.svd(basis, full_matrices=False)
    return left[:, singular > RANK_RTOL * singular.max(initial=0.0)]


def smooth_bases(times: Array, offsets: Array, n_splines: int, degree: int) -> Array:
    """Visits × n_splines: patient k's rows are an orthonormal basis of its spline space, padded with zero columns."""
    bases = np.zeros((int(offsets[-1]), n_splines))
    for first, last in pairwise(offsets.tolist()):
        if last > first:
            basis = orthonormal(m_splines(times[first:last], n_splines, degree))
            bases[first:last, : basis.shape[1]] = basis
    return bases
