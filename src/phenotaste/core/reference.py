"""The method in plain numpy, one patient at a time, written to be read: every other version is tested against it.

    minimise  Σ p_k [ ½‖X_k/s_k − U_k diag(w_k) Vᵀ‖² + λ/2 ‖a_k − F w_k‖²
                      + μ_k/2 (‖U_k‖² − 2⟨Q_kᵀU_k, H⟩ + ‖H‖²) + τ/2 tr(U_kᵀ L_k U_k) ]
    over U, w, V, F ≥ 0 and ‖Q_k‖₂ ≤ 1, with unit columns of V, of H and of every U_k

For patients with at least R visits the third term is μ_k/2 ‖U_k − Q_k H‖² with QᵀQ = I; written like this it
holds for shorter histories too (it is the squared Bures–Wasserstein distance of U_kᵀU_k and HᵀH). L_k is the Laplacian
of the chain of visits. The paper has p = s = 1, τ = 0 and columns of any norm.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from phenotaste.core.constraints import NO_CONSTRAINTS, Cone, Constraints, Near, Within
from phenotaste.core.init import FLAT
from phenotaste.core.kernels.coordinate_descent import CD_SWEEPS
from phenotaste.core.kernels.polar import SIGMA_FLOOR, SIGMA_RTOL
from phenotaste.core.kernels.unit_columns import COLUMN_SWEEPS
from phenotaste.core.model_step import drop_noise, unit_columns
from phenotaste.core.poisson import MIN_MEAN
from phenotaste.core.records import Array, Model, Sums, Weights

DYKSTRA_ITERATIONS = 2000  # far more than small columns need


class Terms(NamedTuple):
    """The weights of one patient's terms: see `records.Weights`."""

    lam: float
    mu: float
    tau: float = 0.0
    unit: bool = False
    scale: float = 1.0
    influence: float = 1.0


def terms_of(weights: Weights, k: int) -> Terms:
    """The weights of patient k."""
    mu, scale, influence = weights.mu[k], weights.scale[k], weights.influence[k]
    return Terms(weights.lam, mu, weights.tau, weights.unit, scale, influence)


def init_U(X: Array, V: Array) -> Array:
    """U: the phenotype's share of each visit, plus a tenth of cosines that keep the columns independent."""
    visits, R = X.shape[0], V.shape[1]
    B = np.maximum(X @ V, 0.0)
    cosines = 1 + np.cos(np.pi * np.arange(R) * (np.arange(visits)[:, None] + 0.5) / visits)
    cosines[:, np.linalg.norm(cosines, axis=0) < FLAT] = 1.0
    U = 0.9 * unit_columns(B) + 0.1 * unit_columns(cosines)
    return unit_columns(U)


def nnls_from_gram(G: Array, b: Array) -> Array:
    """Minimise ½ xᵀGx − bᵀx over x ≥ 0, by Lawson & Hanson on a square root of G."""
    values, Z = np.linalg.eigh(G)
    values = np.maximum(values, 0.0)
    keep = values > 1e-14 * values.max(initial=0.0)
    if not keep.any():
        return np.zeros_like(b)
    root = np.sqrt(values[keep])[:, None] * Z[:, keep].T
    return nnls(root, (Z[:, keep].T @ b) / np.sqrt(values[keep]))[0]


def solve_scores(X: Array, a: Array, U: Array, model: Model, lam: float) -> Array:
    """w minimises ½‖X − U diag(w) Vᵀ‖² + λ/2 ‖a − F w‖² over w ≥ 0."""
    outer = np.einsum("ir,jr->ijr", U, model.V).reshape(-1, U.shape[1])  # column r is u_r v_rᵀ, unrolled
    design = np.vstack([outer, np.sqrt(lam) * model.F])
    target = np.concatenate([X.ravel(), np.sqrt(lam) * a])
    return nnls(design, target)[0] if len(design) else np.zeros(U.shape[1])


def polar_factor(U: Array, H: Array) -> Array:
    """Q maximises ⟨Q, U Hᵀ⟩ over ‖Q‖₂ ≤ 1; directions with tiny singular values shrink to zero smoothly."""
    left, singular, right = np.linalg.svd(U @ H.T, full_matrices=False)
    floor = max(SIGMA_FLOOR, SIGMA_RTOL * singular.max(initial=0.0))
    return (left * (singular / np.maximum(singular, floor))) @ right


def solve_U(X: Array, U: Array, w: Array, Q: Array, model: Model, mu: float, exact: bool) -> Array:
    """U minimises ½‖X − U diag(w) Vᵀ‖² + μ/2 ‖U − Q H‖² over U ≥ 0, row by row."""
    design = np.vstack([model.V * w, np.sqrt(mu) * np.eye(w.size)])
    targets = np.hstack([X, np.sqrt(mu) * Q @ model.H])
    if exact:
        return np.array([nnls(design, row)[0] for row in targets]).reshape(U.shape)
    gram, right = design.T @ design, targets @ design
    U = U.copy()
    for _ in range(CD_SWEEPS):
        for r in range(w.size):
            if gram[r, r] > 0:
                U[:, r] = np.maximum(0.0, U[:, r] + (right[:, r] - U @ gram[:, r]) / gram[r, r])
    return U


def laplacian(visits: int) -> Array:
    """L of the chain of visits: uᵀLu = Σ (u_{i+1} − u_i)²."""
    differences = np.diff(np.eye(visits), axis=0)
    return differences.T @ differences


def solve_unit_U(X: Array, U: Array, w: Array, Q: Array, model: Model, terms: Terms) -> Array:
    """U with unit columns: each in turn minimises a bound that is linear in it; see `kernels.unit_columns`.

    Phenotypes without a score depend on no other, and are updated once.
    """
    L = laplacian(len(U))
    rho = 2 * np.diagonal(L).max(initial=0.0)
    VV, QH, U = model.V.T @ model.V, Q @ model.H, U.copy()
    for sweep in range(COLUMN_SWEEPS):
        for r in range(w.size) if sweep == 0 else np.flatnonzero(w):
            others = U * w @ VV[:, r] - U[:, r] * w[r] * VV[r, r]
            c = w[r] * (X @ model.V[:, r] - others) + terms.mu * QH[:, r]
            c = np.maximum(c + terms.tau * (rho * U[:, r] - L @ U[:, r]), 0.0)
            if c.any():
                U[:, r] = c / np.linalg.norm(c)
    return U


def patient_step(
    X: Array, a: Array, U: Array, model: Model, terms: Terms, exact: bool = False
) -> tuple[Array, Array, Sums]:
    """One patient step: w, then Q, then U; returns the new U, w, and this patient's addends to the sums."""
    R = U.shape[1]
    if not X.any():
        return np.zeros_like(U), np.zeros(R), Sums.zeros(X.shape[1], a.size, R)
    X = X * terms.scale
    w = solve_scores(X, a, U, model, terms.lam)
    Q = polar_factor(U, model.H)
    unit = terms.unit
    U = solve_unit_U(X, U, w, Q, model, terms) if unit else solve_U(X, U, w, Q, model, terms.mu, exact)
    rough = terms.tau * np.trace(U.T @ laplacian(len(U)) @ U)
    addends = Sums(
        UU=np.outer(w, w) * (U.T @ U),
        XU=X.T @ (U * w),
        WW=np.outer(w, w),
        AW=np.outer(a, w),
        QU=terms.mu * Q.T @ U,
        scalars=np.array([np.sum(X**2), np.sum(a**2), terms.mu, terms.mu * np.sum(U**2), rough]),
    )
    return U, w, Sums(*(terms.influence * part for part in addends))


def model_step(
    sums: Sums, model: Model, normalize: bool = True, constraints: Constraints = NO_CONSTRAINTS
) -> Model:
    """H, V and F, each minimised exactly; with `normalize`, H and V keep unit columns."""
    mean = sums.QU / sums.scalars[2] if sums.scalars[2] > 0 else model.H
    H = np.where(np.linalg.norm(sums.QU, axis=0) > 0, unit_columns(sums.QU), model.H) if normalize else mean
    V = solve_factor(sums.UU, sums.XU, model.V, sums.scalars[0], constraints.fixed, dict(constraints.V))
    F = solve_factor(sums.WW, sums.AW, model.F, sums.scalars[1], constraints.fixed, dict(constraints.F))
    if normalize:
        norms = np.linalg.norm(V, axis=0)
        norms[norms == 0] = 1.0
        norms[list(constraints.fixed)] = 1.0
        V, F = V / norms, F / norms  # W takes the norms over at the next patient step
    return Model(H, V, F)


def solve_factor(
    gram: Array, right: Array, factor: Array, size: float, fixed: tuple[int, ...], cones: dict[int, Cone]
) -> Array:
    """V or F: free columns given the others, row by row; then those in a cone, one by one."""
    free = [r for r in range(len(gram)) if r not in fixed and r not in cones]
    held = [r for r in range(len(gram)) if r not in free]
    new = factor.copy()
    for j, b in enumerate(right):
        new[j, free] = nnls_from_gram(gram[np.ix_(free, free)], (b - factor[j, held] @ gram[held])[free])
    new = drop_noise(new, factor, gram, size)
    for r, cone in cones.items():
        others = [s for s in range(len(gram)) if s != r]
        if gram[r, r] > 0:
            found = nearest_in(cone, (right[:, r] - new[:, others] @ gram[others, r]) / gram[r, r])
            new[:, r] = found if found.any() else factor[:, r]
    return new


def nearest_in(cone: Cone, y: Array) -> Array:
    """The point of a cone nearest to y: of a circular one without negative values by Dykstra's projections in turn."""
    if isinstance(cone, Within):
        return np.array(
            [max(value, 0.0) if inside else 0.0 for value, inside in zip(y, cone.rows, strict=True)]
        )
    x, p, q = y, np.zeros_like(y), np.zeros_like(y)
    for _ in range(DYKSTRA_ITERATIONS):
        z = np.maximum(x + p, 0.0)
        p = x + p - z
        x = project_circular(cone, z + q)
        q = z + q - x
    return np.maximum(x, 0.0)


def project_circular(cone: Near, y: Array) -> Array:
    """Onto {v: ⟨a, v⟩ ≥ c‖v‖} with a unit vector a: along a and across it."""
    a = cone.axis / np.linalg.norm(cone.axis)
    c, s = cone.cosine, np.sqrt(1 - cone.cosine**2)
    along = a @ y
    across = np.linalg.norm(y - along * a)
    if s * along >= c * across:
        return y
    size = c * along + s * across  # along the edge of the cone
    if size <= 0:
        return np.zeros_like(y)
    return size * (c * a + s * (y - along * a) / across)


def patient_loss(X: Array, a: Array, U: Array, w: Array, model: Model, terms: Terms) -> Array:
    """The four terms of the objective for one patient, with the best Q."""
    visits = 0.5 * np.sum((X * terms.scale - (U * w) @ model.V.T) ** 2)
    static = 0.5 * terms.lam * np.sum((a - model.F @ w) ** 2)
    nuclear = np.linalg.svd(U @ model.H.T, compute_uv=False).sum() if U.size else 0.0
    unique = 0.5 * terms.mu * (np.sum(U**2) - 2 * nuclear + np.sum(model.H**2))
    rough = 0.5 * terms.tau * np.trace(U.T @ laplacian(len(U)) @ U)
    return terms.influence * np.array([visits, static, unique, rough])


def poisson_shares(X: Array, V: Array, S: Array) -> Array:
    """Visits × features × phenotypes: the part of each count that each phenotype explains; see `poisson`."""
    parts = S[:, None, :] * V[None, :, :]
    mean = parts.sum(axis=2, keepdims=True)
    return X[:, :, None] * np.divide(parts, mean, out=np.zeros_like(parts), where=mean > 0)


def poisson_step(
    X: Array, V: Array, S: Array, expected: Array, gradient: Array, has_expected: Array, beta: float
) -> Array:
    """Minimise −c log s + s + gradient·s + β(s − expected)² + β(s − S)², entry by entry."""
    c = poisson_shares(X, V, S).sum(axis=1)
    if beta == 0:
        return c
    A = 2 * beta * (1.0 + has_expected[:, None]) * np.ones_like(c)
    B = 1 + gradient - 2 * beta * S - 2 * beta * expected * has_expected[:, None]
    return (-B + np.sqrt(B**2 + 4 * A * c)) / (2 * A)


def poisson_divergence(X: Array, V: Array, S: Array) -> Array:
    """Σ_j x log(x/m) − x + m of each visit."""
    mean = np.maximum(S @ V.T, MIN_MEAN)
    logs = np.where(X > 0, X * np.log(np.where(X > 0, X, 1.0) / mean), 0.0)
    return (logs - X).sum(axis=1) + S.sum(axis=1)
