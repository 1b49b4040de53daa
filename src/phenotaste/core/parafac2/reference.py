"""PARAFAC2 with exact cross-products in plain numpy, written to be read: `kernels` is tested against it."""

import numpy as np

from phenotaste.core.parafac2.kernels import (
    NONNEGATIVE,
    UNCONSTRAINED,
    ModelProducts,
    Parafac2Sums,
    ScoreSolver,
)
from phenotaste.core.records import Array
from phenotaste.core.reference import nnls_from_gram, polar_factor


def solve_Q(X: Array, w: Array, model: ModelProducts, P: Array | None = None) -> Array:
    """Q maximises ⟨Q, X V diag(w) Hᵀ⟩ over ‖Q‖₂ ≤ 1, within the span of P if given."""
    B = X @ model.V if P is None else P.T @ (X @ model.V)
    size = np.linalg.norm(w) * np.linalg.norm(X)
    Z = polar_factor(B * (w / size if size > 0 else 0.0), model.H)
    return Z if P is None else P @ Z


def complete_Q(Q: Array, P: Array | None = None) -> Array:
    """Q completed to full column rank by fixed cosines projected onto its complement, within the span of P."""
    visits, R = Q.shape
    E = np.cos(np.pi * np.arange(R) * (np.arange(visits)[:, None] + 0.5) / visits)
    E = E * np.sqrt(np.where(np.arange(R) == 0, 1.0, 2.0) / visits)
    if P is not None:
        E = P @ (P.T @ E)
    values, Z = np.linalg.eigh(Q.T @ Q)
    missing = Z[:, values < 0.5]
    outside = (np.eye(visits) - Q @ Q.T) @ E @ (missing @ missing.T)
    return polar_factor(Q + polar_factor(outside, np.eye(R)), np.eye(R))


def solve_scores(
    X: Array,
    a: Array,
    Q: Array,
    model: ModelProducts,
    solver: ScoreSolver,
    w: Array,
    dual: Array,
) -> tuple[Array, Array]:
    """w, and its dual after ADMM steps; patients without history have scores from their static features alone."""
    b = np.sum((Q @ model.H) * (X @ model.V), axis=0) + model.lam * model.F.T @ a
    if not X.any():
        return nnls_from_gram(model.static_gram, b), dual
    if solver.method == NONNEGATIVE:
        return nnls_from_gram(model.gram, b), dual
    if solver.method == UNCONSTRAINED:
        return model.inverse @ b, dual
    for _ in range(solver.admm_steps):
        free = model.inverse @ (b + model.rho * (w + dual))
        w = np.maximum(0.0, free - dual)
        dual = dual + w - free
    return w, dual


def step(
    X: Array,
    a: Array,
    model: ModelProducts,
    solver: ScoreSolver,
    w: Array,
    dual: Array,
    P: Array | None = None,
) -> tuple[Array, Array, Array, Parafac2Sums]:
    """Q, w, its dual, and this patient's addends to the sums (XU with the H of this step)."""
    Q = solve_Q(X, w, model, P) if X.any() else np.zeros((len(X), len(w)))
    w, dual = solve_scores(X, a, Q, model, solver, w, dual)
    outer = np.outer(w, w)
    addends = Parafac2Sums(
        QX=Q.T @ (X @ model.V) * w,
        XU=X.T @ (Q @ model.H * w),
        WW=outer if X.any() else np.zeros_like(outer),
        WW_all=outer,
        AW=np.outer(a, w),
    )
    return Q, w, dual, addends


def loss(X: Array, a: Array, Q: Array, w: Array, model: ModelProducts) -> float:
    """One patient's term of the objective, every product written out."""
    static = 0.5 * model.lam * np.sum((a - model.F @ w) ** 2)
    if not X.any():
        return float(static)
    course = np.sum(X * (Q @ model.H * w @ model.V.T))
    return float(0.5 * (np.sum(X**2) - 2 * course + np.sum((model.H * w @ model.V.T) ** 2)) + static)
