"""PARAFAC2 with exact cross-products in plain numpy, written to be read: the oracle for `parafac2`."""

import numpy as np

from phenotaste.core.parafac2.kernels import FREE, NONNEGATIVE, Shared, Slices
from phenotaste.core.records import Array
from phenotaste.core.reference import nnls_from_gram, polar_factor


def find_slice(X: Array, w: Array, shared: Shared, P: Array | None = None) -> Array:
    """Q maximises ⟨Q, X V diag(w) Hᵀ⟩ over ‖Q‖₂ ≤ 1, within the columns of P where there is one."""
    B = X @ shared.V if P is None else P.T @ (X @ shared.V)
    size = np.linalg.norm(w) * np.linalg.norm(X)
    Z = polar_factor(B * (w / size if size > 0 else 0.0), shared.H)
    return Z if P is None else P @ Z


def complete(Q: Array, P: Array | None = None) -> Array:
    """Q with the directions it lacks filled in by what fixed cosines have outside of it, within the columns of P."""
    visits, R = Q.shape
    E = np.cos(np.pi * np.arange(R) * (np.arange(visits)[:, None] + 0.5) / visits)
    E = E * np.sqrt(np.where(np.arange(R) == 0, 1.0, 2.0) / visits)
    if P is not None:
        E = P @ (P.T @ E)
    values, Z = np.linalg.eigh(Q.T @ Q)
    lacking = Z[:, values < 0.5]
    outside = (np.eye(visits) - Q @ Q.T) @ E @ (lacking @ lacking.T)
    return polar_factor(Q + polar_factor(outside, np.eye(R)), np.eye(R))


def solve_scores(
    X: Array, a: Array, Q: Array, shared: Shared, how: int, inner: int, w: Array, dual: Array
) -> tuple[Array, Array]:
    """w, and its dual after ADMM steps; patients without history are scored by their static features alone."""
    b = np.sum((Q @ shared.H) * (X @ shared.V), axis=0) + shared.lam * shared.F.T @ a
    if not X.any():
        return nnls_from_gram(shared.static_gram, b), dual
    if how == NONNEGATIVE:
        return nnls_from_gram(shared.gram, b), dual
    if how == FREE:
        return shared.inverse @ b, dual
    for _ in range(inner):
        free = shared.inverse @ (b + shared.rho * (w + dual))
        w = np.maximum(0.0, free - dual)
        dual = dual + w - free
    return w, dual


def step(
    X: Array,
    a: Array,
    shared: Shared,
    how: int,
    inner: int,
    w: Array,
    dual: Array,
    P: Array | None = None,
) -> tuple[Array, Array, Array, Slices]:
    """Q, w, its dual, and what this patient adds to the sums (XU with the H of this step)."""
    Q = find_slice(X, w, shared, P) if X.any() else np.zeros((len(X), len(w)))
    w, dual = solve_scores(X, a, Q, shared, how, inner, w, dual)
    outer = np.outer(w, w)
    addends = Slices(
        QX=Q.T @ (X @ shared.V) * w,
        XU=X.T @ (Q @ shared.H * w),
        WW=outer if X.any() else np.zeros_like(outer),
        WW_all=outer,
        AW=np.outer(a, w),
    )
    return Q, w, dual, addends


def loss(X: Array, a: Array, Q: Array, w: Array, shared: Shared) -> float:
    """What one patient adds to the objective, every product written out."""
    static = 0.5 * shared.lam * np.sum((a - shared.F @ w) ** 2)
    if not X.any():
        return float(static)
    course = np.sum(X * (Q @ shared.H * w @ shared.V.T))
    return float(0.5 * (np.sum(X**2) - 2 * course + np.sum((shared.H * w @ shared.V.T) ** 2)) + static)
