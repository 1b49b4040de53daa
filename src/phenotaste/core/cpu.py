"""The patient step, compiled: one visit to memory for each patient, R × R algebra, no dense residual.

The formulas are those of `reference`, which is written to be read; symbols are in `records`. Every function
here treats one patient on its own, so a patient's numbers do not depend on who else is in the batch.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from .nnls import descend, pivot
from .polar import inverse_root, nuclear_norm, short_polar
from .records import Array, Model, Shard, Sums, Weights

SWEEPS = 2  # coordinate-descent sweeps over a visit's row of U in one patient step
FIRST_REACH, REACH_GROWTH, LONGEST_REACH = 0.5, 1.05, 0.99  # extrapolation: see `loop.fit`
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
    slopes: Array
    G: Array  # UᵀU, R × R
    gram: Array
    Q: Array  # visits × R, for short histories only
    pull: Array  # Q H, for short histories only
    polar: Array  # C^(-1/2)
    polar_H: Array  # C^(-1/2) H
    target: Array  # T = Hᵀ C^(-1/2) H, so that Q H = U T
    work: Array
    w: Array  # R
    b: Array
    passive: Array
    L: Array
    kept: Array


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
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((min(visits, R), R)),
        np.empty((min(visits, R), R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty(R),
        np.empty(R),
        np.empty(R, np.bool_),
        np.empty((R, R)),
        np.empty(R, np.int64),
    )


@njit(cache=True, nogil=True)
def patient_norms(shard: Shard) -> Array:
    """‖X_k‖² of every patient, each added up on its own."""
    norms = np.zeros(shard.offsets.size - 1)
    for k in range(norms.size):
        for n in range(shard.indptr[shard.offsets[k]], shard.indptr[shard.offsets[k + 1]]):
            norms[k] += np.float64(shard.data[n]) ** 2
    return norms


@njit(cache=True, nogil=True)
def longest_history(shard: Shard, first: int, last: int) -> int:
    visits = 1
    for k in range(first, last):
        visits = max(visits, shard.offsets[k + 1] - shard.offsets[k])
    return visits


@njit(cache=True, nogil=True)
def read_visits(shard: Shard, k: int, V: Array, B: Array) -> float:
    """B = X_k V from the non-zeros alone; returns ‖X_k‖²."""
    start = shard.offsets[k]
    norm = 0.0
    B[:] = 0.0
    for i in range(B.shape[0]):
        for n in range(shard.indptr[start + i], shard.indptr[start + i + 1]):
            value = np.float64(shard.data[n])
            norm += value * value
            j = shard.indices[n]
            for r in range(V.shape[1]):
                B[i, r] += value * V[j, r]
    return norm


@njit(cache=True, nogil=True)
def start_courses(B: Array, U: Array) -> None:
    """A start that needs no chance: the phenotype's share of each visit, plus cosines to keep full rank."""
    visits, R = U.shape
    for r in range(R):
        norm_b, norm_e = 0.0, 0.0
        for i in range(visits):
            norm_b += max(B[i, r], 0.0) ** 2
            norm_e += (1.0 + np.cos(np.pi * r * (i + 0.5) / visits)) ** 2
        norm_b, norm_e = np.sqrt(norm_b), np.sqrt(norm_e)
        norm = 0.0
        for i in range(visits):
            share = max(B[i, r], 0.0) / norm_b if norm_b > 0.0 else 0.0
            wave = (1.0 + np.cos(np.pi * r * (i + 0.5) / visits)) / norm_e if norm_e > FLAT else visits**-0.5
            U[i, r] = 0.9 * share + 0.1 * wave
            norm += U[i, r] ** 2
        norm = np.sqrt(norm)
        for i in range(visits):
            U[i, r] /= norm


@njit(cache=True, nogil=True)
def solve_scores(U: Array, B: Array, a: Array, model: Definitions, desk: Desk) -> None:
    """w: NNLS with Gram G∘VᵀV + λFᵀF and right-hand side colsum(U∘B) + λFᵀa; leaves G = UᵀU."""
    R = desk.w.size
    np.dot(U.T, U, desk.G)
    desk.b[:] = 0.0
    for i in range(U.shape[0]):
        for r in range(R):
            desk.b[r] += U[i, r] * B[i, r]
    for p in range(a.size):
        for r in range(R):
            desk.b[r] += model.lam * a[p] * model.F[p, r]
    for r in range(R):
        desk.passive[r] = desk.b[r] > 0.0
        for s in range(R):
            desk.gram[r, s] = desk.G[r, s] * model.VV[r, s] + model.FF[r, s]
    pivot(desk.gram, desk.b, desk.w, desk.passive, desk.L, desk.kept)


@njit(cache=True, nogil=True)
def is_short(U: Array) -> bool:
    """Fewer visits than phenotypes: Q is then smaller than C^(-1/2), and better had as it is."""
    return U.shape[0] < U.shape[1]


@njit(cache=True, nogil=True)
def aim(U: Array, mu: float, model: Definitions, desk: Desk) -> None:
    """Where the uniqueness term pulls U: Q H of a short history, else T = Hᵀ C^(-1/2) H so that Q H = U T."""
    if is_short(U):
        Q = desk.Q[: U.shape[0]]
        if mu > 0.0:
            short_polar(U, model.H, Q)
        else:
            Q[:] = 0.0
        np.dot(Q, model.H, desk.pull[: U.shape[0]])
    elif mu > 0.0:
        np.dot(model.H, desk.G, desk.work)
        np.dot(desk.work, model.H.T, desk.target)
        inverse_root(desk.target, desk.polar)
        np.dot(desk.polar, model.H, desk.polar_H)
        np.dot(model.H.T, desk.polar_H, desk.target)
    else:
        desk.polar_H[:] = 0.0
        desk.target[:] = 0.0


@njit(cache=True, nogil=True)
def cross_products(old: Array, U: Array, desk: Desk) -> None:
    """G = UᵀU, and QᵀU into `gram`, with the Q that `aim` found for the old U."""
    np.dot(U.T, U, desk.G)
    if is_short(U):
        np.dot(desk.Q[: U.shape[0]].T, U, desk.gram)
    else:
        np.dot(old.T, U, desk.work)
        np.dot(desk.polar_H, desk.work, desk.gram)  # QᵀU = C^(-1/2) H (U_oldᵀ U_new)


@njit(cache=True, nogil=True)
def solve_courses(
    U: Array, old: Array, B: Array, mu: float, exact: bool, model: Definitions, desk: Desk
) -> None:
    """U: NNLS rows with Gram (w wᵀ)∘VᵀV + μI and right-hand sides B∘w + μ Q H."""
    visits, R = U.shape
    slopes = desk.slopes[:visits]
    short = is_short(U)
    for r in range(R):
        for s in range(R):
            desk.gram[r, s] = desk.w[r] * desk.w[s] * model.VV[r, s]
            desk.work[r, s] = desk.gram[r, s]
            if not short:
                desk.work[r, s] -= mu * desk.target[r, s]
        desk.gram[r, r] += mu
        desk.work[r, r] += mu
    np.dot(
        old, desk.work, slopes
    )  # with −μT in it this is U D − μ Q H, the gradient but for B∘w, in one product
    if short:
        slopes -= mu * desk.pull[:visits]
    for i in range(visits):
        for r in range(R):
            slopes[i, r] -= B[i, r] * desk.w[r]
    if not exact:
        for i in range(visits):
            descend(desk.gram, slopes[i], U[i], SWEEPS)
        return
    for i in range(visits):
        for r in range(R):
            desk.b[r] = -slopes[i, r]
            desk.passive[r] = old[i, r] > 0.0
            for s in range(R):
                desk.b[r] += desk.gram[r, s] * old[i, s]
        pivot(desk.gram, desk.b, U[i], desk.passive, desk.L, desk.kept)


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
            old[i, r] = courses[i, r]
            if reach > 0.0:
                old[i, r] = max(0.0, old[i, r] + reach * (old[i, r] - previous[i, r]))
            previous[i, r] = courses[i, r]
    solve_scores(old, B, shard.static[k], model, desk)
    if norm == 0.0:  # no history: scores from the static features alone
        U[:] = 0.0
    else:
        U[:] = old
        aim(old, mu, model, desk)
        solve_courses(U, old, B, mu, exact, model, desk)
    courses[:] = U
    U[:] = courses  # what was stored, also when it is stored in float32
    return norm


@njit(cache=True, nogil=True)
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
        for n in range(shard.indptr[first + i], shard.indptr[first + i + 1]):
            value = np.float64(shard.data[n])
            j = shard.indices[n]
            for r in range(R):
                sums.XU[j, r] += value * U[i, r] * w[r]
    size = 0.0
    for p in range(a.size):
        size += a[p] * a[p]
        for r in range(R):
            sums.AW[p, r] += a[p] * w[r]
    sums.scalars[0] += norm
    sums.scalars[1] += size
    sums.scalars[2] += mu


@njit(cache=True, nogil=True)
def step(
    shard: Shard,
    first: int,
    last: int,
    weights: Weights,
    model: Definitions,
    courses: Array,
    previous: Array,
    reach: float,
    exact: bool,
    sums: Sums,
) -> None:
    """The patient step for patients first..last, `courses` updated in place, addends into `sums`."""
    desk = new_desk(longest_history(shard, first, last), model.V.shape[1])
    for k in range(first, last):
        mu, begin, end = weights.mu[k], shard.offsets[k], shard.offsets[k + 1]
        norm = advance(shard, k, mu, model, courses[begin:end], previous[begin:end], reach, exact, desk)
        add(shard, k, mu, norm, desk, sums)


@njit(cache=True, nogil=True)
def start(shard: Shard, first: int, last: int, model: Definitions, courses: Array) -> None:
    """The starting courses of patients first..last, from their visits and the model."""
    desk = new_desk(longest_history(shard, first, last), model.V.shape[1])
    for k in range(first, last):
        begin_patient(shard, k, model, courses, desk)


@njit(cache=True, nogil=True)
def begin_patient(shard: Shard, k: int, model: Definitions, courses: Array, desk: Desk) -> None:
    first, last = shard.offsets[k], shard.offsets[k + 1]
    U, B = desk.U[: last - first], desk.B[: last - first]
    if read_visits(shard, k, model.V, B) == 0.0:
        U[:] = 0.0
    else:
        start_courses(B, U)
    courses[first:last] = U


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
def loss_of_visits(
    shard: Shard, k: int, norm: float, model: Definitions, U: Array, B: Array, desk: Desk
) -> float:
    """‖X‖² − 2 wᵀ colsum(U∘B) + wᵀ((UᵀU)∘VᵀV)w, or the residual itself where that cancels."""
    w = desk.w
    total = norm
    for i in range(U.shape[0]):
        for r in range(w.size):
            total -= 2.0 * w[r] * U[i, r] * B[i, r]
    for r in range(w.size):
        for s in range(w.size):
            total += w[r] * w[s] * desk.G[r, s] * model.VV[r, s]
    if total < CANCELLED * norm:
        total = residual(shard, k, model.V, U, w)
    return total


@njit(cache=True, nogil=True)
def patient_loss(
    shard: Shard, k: int, mu: float, norm: float, model: Definitions, desk: Desk, loss: Array
) -> None:
    """The three parts of a patient's loss, with the best Q, for the U, B, G and w that are on the desk."""
    visits = shard.offsets[k + 1] - shard.offsets[k]
    U, B, a = desk.U[:visits], desk.B[:visits], shard.static[k]
    loss[0] = 0.5 * loss_of_visits(shard, k, norm, model, U, B, desk)
    loss[1] = 0.0
    for p in range(a.size):
        value = a[p]
        for r in range(desk.w.size):
            value -= model.F[p, r] * desk.w[r]
        loss[1] += 0.5 * model.lam * value * value
    loss[2] = 0.0
    if mu > 0.0:
        np.dot(model.H, desk.G, desk.work)
        np.dot(desk.work, model.H.T, desk.target)
        nuclear = nuclear_norm(desk.target, U, model.H)
        loss[2] = 0.5 * mu * (np.trace(desk.G) + np.sum(model.H * model.H) - 2.0 * nuclear)


@njit(cache=True, nogil=True)
def score(
    shard: Shard,
    first: int,
    last: int,
    weights: Weights,
    model: Definitions,
    courses: Array,
    W: Array,
    solve: bool,
    loss: Array,
) -> None:
    """Losses of patients first..last with their courses fixed, at the best scores (`solve`) or at those in W."""
    desk = new_desk(longest_history(shard, first, last), model.V.shape[1])
    for k in range(first, last):
        start, stop = shard.offsets[k], shard.offsets[k + 1]
        U, B = desk.U[: stop - start], desk.B[: stop - start]
        norm = read_visits(shard, k, model.V, B)
        U[:] = courses[start:stop]
        if solve:
            solve_scores(U, B, shard.static[k], model, desk)
            W[k] = desk.w
        else:
            np.dot(U.T, U, desk.G)
            desk.w[:] = W[k]
        patient_loss(shard, k, weights.mu[k], norm, model, desk, loss[k])


@njit(cache=True, nogil=True)
def cross_product_gaps(offsets: Array, courses: Array, HH: Array, gaps: Array) -> None:
    """‖U_kᵀU_k − HᵀH‖² for every patient."""
    R = HH.shape[0]
    G = np.empty((R, R))
    for k in range(gaps.size):
        G[:] = -HH
        for i in range(offsets[k], offsets[k + 1]):
            for r in range(R):
                for s in range(R):
                    G[r, s] += np.float64(courses[i, r]) * np.float64(courses[i, s])
        gaps[k] = np.sum(G * G)


@njit(cache=True, nogil=True)
def project(
    shard: Shard,
    first: int,
    last: int,
    weights: Weights,
    model: Definitions,
    courses: Array,
    exact: bool,
    tol: float,
    max_iter: int,
) -> None:
    """Courses of patients first..last under a fixed model: start, then patient steps until each settles."""
    longest, R = longest_history(shard, first, last), model.V.shape[1]
    desk = new_desk(longest, R)
    previous = np.empty((longest, R), courses.dtype)
    for k in range(first, last):
        begin, end = shard.offsets[k], shard.offsets[k + 1]
        begin_patient(shard, k, model, courses, desk)
        settle(
            shard,
            k,
            weights.mu[k],
            model,
            courses[begin:end],
            previous[: end - begin],
            exact,
            tol,
            max_iter,
            desk,
        )


@njit(cache=True, nogil=True)
def settle(
    shard: Shard,
    k: int,
    mu: float,
    model: Definitions,
    U: Array,
    previous: Array,
    exact: bool,
    tol: float,
    max_iter: int,
    desk: Desk,
) -> None:
    """Patient steps for one patient until its loss stops falling, reaching ahead as `loop.fit` does."""
    before = np.inf
    reach = 0.0
    longer = FIRST_REACH
    for _ in range(max_iter):
        norm = advance(shard, k, mu, model, U, previous, reach, exact, desk)
        if norm == 0.0:
            return
        loss = loss_after(shard, k, mu, norm, model, desk)
        if loss > before and reach > 0.0:  # reached too far: go back and take a plain step
            U[:] = previous
            longer, reach = longer / 2, 0.0
            continue
        if before - loss < tol * max(loss, 1e-12 * norm):
            return
        reach = longer
        longer = min(longer * REACH_GROWTH, LONGEST_REACH)
        before = loss


@njit(cache=True, nogil=True)
def loss_after(shard: Shard, k: int, mu: float, norm: float, model: Definitions, desk: Desk) -> float:
    """A patient's whole loss from what `advance` left on the desk: the new U with the w and Q it was solved for."""
    visits = shard.offsets[k + 1] - shard.offsets[k]
    U, a, w = desk.U[:visits], shard.static[k], desk.w
    cross_products(desk.old[:visits], U, desk)
    total = norm
    for r in range(w.size):
        total += mu * desk.G[r, r]
        for i in range(visits):
            total -= 2.0 * w[r] * U[i, r] * desk.B[i, r]
        for s in range(w.size):
            total += w[r] * w[s] * desk.G[r, s] * model.VV[r, s]
            total += mu * (model.H[r, s] - 2.0 * desk.gram[r, s]) * model.H[r, s]
    for p in range(a.size):
        value = a[p]
        for r in range(w.size):
            value -= model.F[p, r] * w[r]
        total += model.lam * value * value
    return 0.5 * total
