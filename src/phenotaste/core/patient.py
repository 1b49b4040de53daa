"""The patient step for one patient, compiled: R × R algebra, no dense residual, nothing allocated.

The formulas are those of `reference`, which is written to be read; symbols are in `records`. A patient's numbers
depend on nobody else's, to the bit.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from .nnls import descend, descend_columns, pivot
from .polar import Eigen, inverse_root, new_eigen, nuclear_norm, short_polar
from .records import Array, Model, Shard, Sums

SWEEPS = 2  # coordinate-descent sweeps over the courses in one patient step
GUESSES = 6  # sweeps that guess which scores are positive, before they are solved exactly
FLAT = 1e-6  # a cosine that vanishes at every visit (r = 2·visits) is replaced by a constant
CANCELLED = 1e-3  # below this share of ‖X‖² the expanded loss has lost digits: take the residual itself


class Definitions(NamedTuple):
    """A model with the products that every patient needs."""

    H: Array
    V: Array
    F: Array
    VV: Array  # VᵀV
    FF: Array  # λ FᵀF
    lam: float


class Desk(NamedTuple):
    """Scratch space for one patient, allocated once for many."""

    U: Array  # visits × R
    old: Array
    B: Array  # X V
    pull: Array  # Q H
    columns: Array  # R·visits: the courses with a row for each phenotype, as the descent wants them
    right: Array  # R·visits
    rest: Array  # visits
    Q: Array  # visits × R, for short histories only
    G: Array  # UᵀU, R × R
    gram: Array
    polar: Array  # C^(-1/2)
    polar_H: Array  # C^(-1/2) H
    target: Array  # T = Hᵀ C^(-1/2) H, so that Q H = U T
    work: Array
    L: Array
    w: Array  # R
    b: Array
    slopes: Array
    passive: Array
    kept: Array
    eigen: Eigen


def define(model: Model, lam: float) -> Definitions:
    H, V, F = (np.ascontiguousarray(factor, dtype=np.float64) for factor in model)
    return Definitions(H, V, F, V.T @ V, lam * (F.T @ F), float(lam))


@njit(cache=True, nogil=True)
def new_desk(visits: int, R: int) -> Desk:
    return Desk(
        np.empty((visits, R)),
        np.empty((visits, R)),
        np.empty((visits, R)),
        np.empty((visits, R)),
        np.empty(R * visits),
        np.empty(R * visits),
        np.empty(visits),
        np.empty((min(visits, R), R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty(R),
        np.empty(R),
        np.empty(R),
        np.empty(R, np.bool_),
        np.empty(R, np.int64),
        new_eigen(R),
    )


@njit(cache=True, nogil=True, fastmath={"contract"})
def read_visits(shard: Shard, k: int, V: Array, B: Array) -> float:
    """B = X_k V from the non-zeros alone; returns ‖X_k‖²."""
    start = shard.offsets[k]
    norm = 0.0
    for i in range(B.shape[0]):
        row = B[i]
        for r in range(row.size):
            row[r] = 0.0
        for n in range(shard.indptr[start + i], shard.indptr[start + i + 1]):
            value = np.float64(shard.data[n])
            norm += value * value
            definition = V[shard.indices[n]]
            for r in range(row.size):
                row[r] += value * definition[r]
    return norm


@njit(cache=True, nogil=True)
def start_courses(B: Array, U: Array) -> None:
    """A start that needs no chance: the phenotype's share of each visit, plus cosines to keep full rank."""
    visits, R = U.shape
    for r in range(R):
        norm_b, norm_e = 0.0, 0.0
        for i in range(visits):
            U[i, r] = 1.0 + np.cos(np.pi * r * (i + 0.5) / visits)
            norm_b += max(B[i, r], 0.0) ** 2
            norm_e += U[i, r] ** 2
        norm_b, norm_e = np.sqrt(norm_b), np.sqrt(norm_e)
        norm = 0.0
        for i in range(visits):
            share = max(B[i, r], 0.0) / norm_b if norm_b > 0.0 else 0.0
            wave = U[i, r] / norm_e if norm_e > FLAT else visits**-0.5
            U[i, r] = 0.9 * share + 0.1 * wave
            norm += U[i, r] ** 2
        norm = np.sqrt(norm)
        for i in range(visits):
            U[i, r] /= norm


@njit(cache=True, nogil=True)
def begin(shard: Shard, k: int, model: Definitions, courses: Array, desk: Desk) -> None:
    """The starting courses of a patient, from the visits and the model."""
    U, B = desk.U[: len(courses)], desk.B[: len(courses)]
    if read_visits(shard, k, model.V, B) == 0.0:
        U[:] = 0.0
    else:
        start_courses(B, U)
    courses[:] = U


@njit(cache=True, nogil=True, fastmath={"contract"})
def solve_scores(U: Array, B: Array, a: Array, model: Definitions, desk: Desk) -> None:
    """w: NNLS with Gram G∘VᵀV + λFᵀF and right-hand side colsum(U∘B) + λFᵀa; leaves G = UᵀU."""
    R = desk.w.size
    np.dot(U.T, U, desk.G)
    desk.b[:] = 0.0
    for i in range(U.shape[0]):
        u, product = U[i], B[i]
        for r in range(R):
            desk.b[r] += u[r] * product[r]
    for p in range(a.size):
        if a[p] != 0.0:
            for r in range(R):
                desk.b[r] += model.lam * a[p] * model.F[p, r]
    for r in range(R):
        desk.w[r] = 0.0
        desk.slopes[r] = -desk.b[r]
        for s in range(R):
            desk.gram[r, s] = desk.G[r, s] * model.VV[r, s] + model.FF[r, s]
    descend(desk.gram, desk.slopes, desk.w, GUESSES)
    for r in range(R):
        desk.passive[r] = desk.w[r] > 0.0
    pivot(desk.gram, desk.b, desk.w, desk.passive, desk.L, desk.kept)


@njit(cache=True, nogil=True)
def is_short(U: Array) -> bool:
    """Fewer visits than phenotypes: Q is then smaller than C^(-1/2), and better had as it is."""
    return U.shape[0] < U.shape[1]


@njit(cache=True, nogil=True)
def aim(U: Array, mu: float, model: Definitions, desk: Desk) -> None:
    """Where the uniqueness term pulls U: Q H, which is U T with T = Hᵀ C^(-1/2) H for all but short histories."""
    pull = desk.pull[: U.shape[0]]
    if is_short(U):
        Q = desk.Q[: U.shape[0]]
        if mu > 0.0:
            short_polar(U, model.H, desk.eigen, Q)
        else:
            Q[:] = 0.0
        np.dot(Q, model.H, pull)
    elif mu > 0.0:
        np.dot(model.H, desk.G, desk.work)
        np.dot(desk.work, model.H.T, desk.target)
        inverse_root(desk.target, desk.eigen, desk.polar)
        np.dot(desk.polar, model.H, desk.polar_H)
        np.dot(model.H.T, desk.polar_H, desk.target)
        np.dot(U, desk.target, pull)
    else:
        desk.polar_H[:] = 0.0
        pull[:] = 0.0


@njit(cache=True, nogil=True)
def cross_products(old: Array, U: Array, desk: Desk) -> None:
    """G = UᵀU, and QᵀU into `gram`, with the Q that `aim` found for the old U."""
    np.dot(U.T, U, desk.G)
    if is_short(U):
        np.dot(desk.Q[: U.shape[0]].T, U, desk.gram)
    else:
        np.dot(old.T, U, desk.work)
        np.dot(desk.polar_H, desk.work, desk.gram)  # QᵀU = C^(-1/2) H (U_oldᵀ U_new)


@njit(cache=True, nogil=True, fastmath={"contract"})
def solve_courses(
    U: Array, old: Array, B: Array, mu: float, exact: bool, model: Definitions, desk: Desk
) -> None:
    """U: NNLS rows with Gram (w wᵀ)∘VᵀV + μI and right-hand sides B∘w + μ Q H."""
    visits, R = U.shape
    columns = desk.columns[: R * visits].reshape(R, visits)
    right = desk.right[: R * visits].reshape(R, visits)
    for r in range(R):
        for s in range(R):
            desk.gram[r, s] = desk.w[r] * desk.w[s] * model.VV[r, s]
        desk.gram[r, r] += mu
    for i in range(visits):
        for r in range(R):
            right[r, i] = B[i, r] * desk.w[r] + mu * desk.pull[i, r]
            columns[r, i] = old[i, r]
    if exact:
        for i in range(visits):
            for r in range(R):
                desk.b[r] = right[r, i]
                desk.passive[r] = old[i, r] > 0.0
            pivot(desk.gram, desk.b, U[i], desk.passive, desk.L, desk.kept)
        return
    descend_columns(desk.gram, right, columns, desk.rest[:visits], SWEEPS)
    for i in range(visits):
        for r in range(R):
            U[i, r] = columns[r, i]


@njit(cache=True, nogil=True)
def advance(
    shard: Shard,
    k: int,
    mu: float,
    model: Definitions,
    courses: Array,
    previous: Array,
    reach: float,
    exact: bool,
    desk: Desk,
) -> float:
    """One patient step: w, then Q, then U; `courses` gets the new U and `previous` the one before.

    With `reach` the step sets out from max(0, U + reach·(U − previous)). Returns ‖X_k‖², and leaves U, old, B, w
    and what Q needs on the desk, so that the addends can be taken from there.
    """
    visits, R = courses.shape
    U, old, B = desk.U[:visits], desk.old[:visits], desk.B[:visits]
    norm = read_visits(shard, k, model.V, B)
    for i in range(visits):
        for r in range(R):
            now = np.float64(courses[i, r])
            old[i, r] = now
            if reach > 0.0:
                old[i, r] = max(0.0, now + reach * (now - previous[i, r]))
            previous[i, r] = courses[i, r]
    solve_scores(old, B, shard.static[k], model, desk)
    if norm == 0.0:  # no history: scores from the static features alone
        U[:] = 0.0
    else:
        aim(old, mu, model, desk)
        solve_courses(U, old, B, mu, exact, model, desk)
    courses[:] = U
    U[:] = courses  # what was stored, also when it is stored in float32
    return norm


@njit(cache=True, nogil=True, fastmath={"contract"})
def add(shard: Shard, k: int, mu: float, norm: float, desk: Desk, sums: Sums) -> None:
    """Add this patient to the sums, from what `advance` left on the desk."""
    first = shard.offsets[k]
    visits = shard.offsets[k + 1] - first
    R = desk.w.size
    w, U, a = desk.w, desk.U[:visits], shard.static[k]
    cross_products(desk.old[:visits], U, desk)
    for r in range(R):
        sums.scalars[3] += mu * desk.G[r, r]
        for s in range(R):
            ww = w[r] * w[s]
            sums.WW[r, s] += ww
            sums.UU[r, s] += ww * desk.G[r, s]
            if mu > 0.0:  # else there is no Q, and `gram` holds nothing
                sums.QU[r, s] += mu * desk.gram[r, s]
    for i in range(visits):
        for r in range(R):
            desk.b[r] = U[i, r] * w[r]
        for n in range(shard.indptr[first + i], shard.indptr[first + i + 1]):
            value = np.float64(shard.data[n])
            row = sums.XU[shard.indices[n]]
            for r in range(R):
                row[r] += value * desk.b[r]
    size = 0.0
    for p in range(a.size):
        size += a[p] * a[p]
        if a[p] != 0.0:
            for r in range(R):
                sums.AW[p, r] += a[p] * w[r]
    sums.scalars[0] += norm
    sums.scalars[1] += size
    sums.scalars[2] += mu


@njit(cache=True, nogil=True)
def loss_after(shard: Shard, k: int, mu: float, norm: float, model: Definitions, desk: Desk) -> float:
    """A patient's whole loss after `advance`: the new U with the w and Q it was solved for."""
    visits = shard.offsets[k + 1] - shard.offsets[k]
    U, B, w = desk.U[:visits], desk.B[:visits], desk.w
    cross_products(desk.old[:visits], U, desk)
    total = expanded_loss(norm, U, B, model.VV, desk)
    for r in range(w.size):
        total += mu * desk.G[r, r]
        for s in range(w.size):
            total += mu * (model.H[r, s] - 2.0 * desk.gram[r, s]) * model.H[r, s]
    return 0.5 * total + static_loss(shard.static[k], model, w)


@njit(cache=True, nogil=True)
def expanded_loss(norm: float, U: Array, B: Array, VV: Array, desk: Desk) -> float:
    """‖X − U diag(w) Vᵀ‖² as ‖X‖² − 2 wᵀ colsum(U∘B) + wᵀ((UᵀU)∘VᵀV)w."""
    w = desk.w
    total = norm
    for i in range(U.shape[0]):
        for r in range(w.size):
            total -= 2.0 * w[r] * U[i, r] * B[i, r]
    for r in range(w.size):
        for s in range(w.size):
            total += w[r] * w[s] * desk.G[r, s] * VV[r, s]
    return total


@njit(cache=True, nogil=True)
def static_loss(a: Array, model: Definitions, w: Array) -> float:
    """λ/2 ‖a − F w‖²."""
    total = 0.0
    for p in range(a.size):
        value = a[p]
        for r in range(w.size):
            value -= model.F[p, r] * w[r]
        total += value * value
    return 0.5 * model.lam * total


@njit(cache=True, nogil=True)
def residual(shard: Shard, k: int, V: Array, U: Array, w: Array) -> float:
    """‖X_k − U diag(w) Vᵀ‖², entry by entry."""
    first = shard.offsets[k]
    row = np.empty(V.shape[0])
    total = 0.0
    for i in range(U.shape[0]):
        for j in range(V.shape[0]):
            value = 0.0
            for r in range(w.size):
                value += U[i, r] * w[r] * V[j, r]
            row[j] = -value
        for n in range(shard.indptr[first + i], shard.indptr[first + i + 1]):
            row[shard.indices[n]] += shard.data[n]
        for j in range(V.shape[0]):
            total += row[j] * row[j]
    return total


@njit(cache=True, nogil=True)
def losses(shard: Shard, k: int, mu: float, norm: float, model: Definitions, desk: Desk, loss: Array) -> None:
    """The three parts of a patient's loss, with the best Q, for the U, B, G and w that are on the desk."""
    visits = shard.offsets[k + 1] - shard.offsets[k]
    U, B = desk.U[:visits], desk.B[:visits]
    fit = expanded_loss(norm, U, B, model.VV, desk)
    if fit < CANCELLED * norm:
        fit = residual(shard, k, model.V, U, desk.w)
    loss[0] = 0.5 * fit
    loss[1] = static_loss(shard.static[k], model, desk.w)
    loss[2] = 0.0
    if mu > 0.0:
        M = desk.pull[:visits]
        np.dot(U, model.H.T, M)
        nuclear = nuclear_norm(M, desk.eigen)
        loss[2] = 0.5 * mu * (np.trace(desk.G) + np.sum(model.H * model.H) - 2.0 * nuclear)
