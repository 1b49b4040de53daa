"""The patient step for one patient, compiled: R × R algebra, no dense residual, nothing allocated.

The formulas are those of `reference`, which is written to be read; symbols are in `records`. A patient's numbers
depend on nobody else's, to the bit.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from .courses import Sweep, descend_courses, new_sweep
from .nnls import Solve, descend, new_solve, pivot
from .polar import SMALLEST, Eigen, long_polar, new_eigen, nuclear_norm, short_polar
from .products import add_transposed, multiply, multiply_transposed
from .records import VECTOR, Array, Model, Shard, Sums
from .root import Root, inverse_root_within, new_root
from .simd import (
    LANES,
    column,
    fma,
    load,
    load_some,
    matrix,
    positive,
    splat,
    store,
    transpose,
    whole,
)
from .tridiagonal import turn

GUESSES = 4  # sweeps that guess which scores are positive, before they are solved exactly
FLAT = 1e-6  # a cosine that vanishes at every visit (r = 2·visits) is replaced by a constant
CANCELLED = 1e-3  # below this share of ‖X‖² the expanded loss has lost digits: take the residual itself
SOUND = 1e-5  # H may be inverted where its smallest singular value is at least this share of the largest


class Definitions(NamedTuple):
    """A model with the products that every patient needs; all but the last two padded to whole vectors."""

    H: Array
    HT: Array  # Hᵀ
    HH: Array  # HᵀH
    V: Array
    F: Array
    VV: Array  # VᵀV
    FF: Array  # λ FᵀF
    lam: float
    sound: bool  # whether H has a useful inverse
    lift: Array  # R × R: H^(-T), so that QᵀU = H^(-T) (QH)ᵀU
    plain: Array  # R × R: H as it is


class Desk(NamedTuple):
    """Scratch space for one patient, allocated once for many; padded to whole vectors."""

    U: Array  # visits × R
    old: Array
    B: Array  # X V
    pull: Array  # μ Q H
    right: Array  # right-hand sides of the courses
    Q: Array  # μ Q, where `explicit` says so
    explicit: Array  # one flag: Q itself was needed
    G: Array  # UᵀU, R × R
    gram: Array
    work: Array
    turned: Array
    target: Array  # T = Hᵀ C^(-1/2) H, so that Q H = U T
    square: Array  # what is taken the root of
    rooted: Array  # its inverse root in the basis in which it is tridiagonal
    across: Array  # U with a row for each phenotype, for short histories
    w: Array  # R
    b: Array
    slopes: Array
    passive: Array
    solve: Solve
    sweep: Sweep
    root: Root
    eigen: Eigen


class Tally(NamedTuple):
    """`Sums` in the making: padded to whole vectors, and with part of QU still to be lifted."""

    UU: Array
    XU: Array
    WW: Array
    AW: Array
    QU: Array  # Σ μ QᵀU of patients whose Q is explicit
    pulls: Array  # Σ μ (QH)ᵀU of all others
    scalars: Array


def define(model: Model, lam: float) -> Definitions:
    H, V, F = (np.ascontiguousarray(factor, dtype=np.float64) for factor in model)
    sizes = np.linalg.svd(H, compute_uv=False) if np.isfinite(H).all() else np.zeros(1)
    sound = bool(sizes[-1] > SOUND * sizes[0])
    lift = np.linalg.inv(H.T) if sound else np.zeros_like(H)
    return Definitions(
        H=padded(H),
        HT=padded(H.T),
        HH=padded(H.T @ H),
        V=padded(V),
        F=padded(F),
        VV=padded(V.T @ V),
        FF=padded(lam * (F.T @ F)),
        lam=float(lam),
        sound=sound,
        lift=np.ascontiguousarray(lift),
        plain=H,
    )


def padded(M: Array) -> Array:
    room = matrix(*M.shape)
    room[: M.shape[0], : M.shape[1]] = M
    return room


def new_desk(visits: int, R: int) -> Desk:
    return Desk(
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        np.zeros(1, np.bool_),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        column(R),
        column(R),
        column(R),
        np.empty(R, np.bool_),
        new_solve(R),
        new_sweep(R),
        new_root(R),
        new_eigen(R),
    )


def new_tally(n_features: int, n_static: int, R: int) -> Tally:
    return Tally(
        matrix(R, R),
        matrix(n_features, R),
        matrix(R, R),
        matrix(n_static, R),
        matrix(R, R),
        matrix(R, R),
        np.zeros(4),
    )


def hand_over(tally: Tally, lift: Array, sums: Sums) -> None:
    """Add what was tallied to the sums."""
    R = len(lift)
    sums.UU[:] += tally.UU[:R, :R]
    sums.XU[:] += tally.XU[: len(sums.XU), :R]
    sums.WW[:] += tally.WW[:R, :R]
    sums.AW[:] += tally.AW[: len(sums.AW), :R]
    sums.QU[:] += tally.QU[:R, :R] + lift @ tally.pulls[:R, :R]
    sums.scalars[:] += tally.scalars


@njit(cache=True, nogil=True, fastmath=VECTOR)
def square_sum(data: Array, first: int, last: int) -> float:
    total = 0.0
    for n in range(first, last):
        value = np.float64(data[n])
        total += value * value
    return total


@njit(cache=True, nogil=True)
def read_visits(shard: Shard, k: int, V: Array, B: Array) -> float:
    """B = X_k V from the non-zeros alone; returns ‖X_k‖²."""
    start, end = shard.offsets[k], shard.offsets[k + 1]
    for i in range(start, end):
        first, last = shard.indptr[i], shard.indptr[i + 1]
        for j in range(0, B.shape[1], 2 * LANES):
            j2 = min(j + LANES, B.shape[1] - LANES)
            x = splat(0.0)
            y = x
            for n in range(first, last):
                value, feature = splat(np.float64(shard.data[n])), shard.indices[n]
                x, y = fma(value, load(V, (feature, j)), x), fma(value, load(V, (feature, j2)), y)
            store(B, (i - start, j), x)
            store(B, (i - start, j2), y)
    return square_sum(shard.data, shard.indptr[start], shard.indptr[end])


@njit(inline="always")
def start_courses(B: Array, U: Array, visits: int, R: int) -> None:
    """A start that needs no chance: the phenotype's share of each visit, plus cosines to keep full rank."""
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


@njit(inline="always")
def begin(shard: Shard, k: int, model: Definitions, courses: Array, desk: Desk) -> None:
    """The starting courses of a patient, from the visits and the model."""
    visits, R = courses.shape
    if read_visits(shard, k, model.V, desk.B) == 0.0:
        courses[:] = 0.0
    else:
        start_courses(desk.B, desk.U, visits, R)
        courses[:] = desk.U[:visits, :R]


@njit(cache=True, nogil=True)
def fetch(courses: Array, U: Array) -> None:
    """The stored courses of a patient, padded and in float64."""
    visits, R = courses.shape
    for i in range(visits):
        for j in range(0, U.shape[1], LANES):
            store(U, (i, j), load_some(courses, (i, j), R - j))


@njit(inline="always")
def reach_ahead(courses: Array, before: Array, reach: float, old: Array) -> None:
    """max(0, U + reach·(U − before)), from where the step sets out."""
    visits, R = courses.shape
    f = splat(reach)
    for i in range(visits):
        for j in range(0, old.shape[1], LANES):
            now = load_some(courses, (i, j), R - j)
            ahead = now
            if reach > 0.0:
                ahead = positive(fma(f, now - load_some(before, (i, j), R - j), now))
            store(old, (i, j), ahead)


@njit(cache=True, nogil=True)
def solve_scores(U: Array, visits: int, a: Array, model: Definitions, desk: Desk) -> None:
    """w: NNLS with Gram G∘VᵀV + λFᵀF and right-hand side colsum(U∘B) + λFᵀa; leaves G = UᵀU."""
    R = desk.passive.size
    multiply_transposed(U, U, R, visits, desk.G)
    for j in range(0, U.shape[1], LANES):
        b = splat(0.0)
        for i in range(visits):
            b = fma(load(U, (i, j)), load(desk.B, (i, j)), b)
        for p in range(a.size):
            b = fma(splat(model.lam * a[p]), load(model.F, (p, j)), b)
        store(desk.b, j, b)
        store(desk.slopes, j, splat(0.0) - b)
        store(desk.w, j, splat(0.0))
        for r in range(R):
            entry = fma(load(desk.G, (r, j)), load(model.VV, (r, j)), load(model.FF, (r, j)))
            store(desk.gram, (r, j), entry)
    w = desk.w[:R]
    descend(desk.gram, desk.slopes, w, GUESSES)
    for r in range(R):
        desk.passive[r] = w[r] > 0.0
    pivot(desk.gram, desk.b[:R], w, desk.passive, desk.solve)


@njit(inline="always")
def aim(U: Array, visits: int, mu: float, model: Definitions, desk: Desk) -> None:
    """Where the uniqueness term pulls U: μ Q H. Q itself only where its C is too near to a singular one."""
    R = model.plain.shape[0]
    desk.explicit[0] = False
    if mu == 0.0:
        desk.pull[:visits] = 0.0
        return
    if visits < R:
        found = model.sound and aim_short(U, visits, R, model, desk)
    else:
        found = model.sound and aim_long(U, visits, R, model, desk)
    if found:
        f = splat(mu)
        for i in range(visits):
            for j in range(0, U.shape[1], LANES):
                store(desk.pull, (i, j), f * load(desk.pull, (i, j)))
        return
    desk.explicit[0] = True
    old = np.ascontiguousarray(U[:visits, :R])
    Q = np.empty((visits, R))
    if visits < R:
        short_polar(old, model.plain, desk.eigen, Q)
    else:
        long_polar(old, model.plain, desk.eigen, Q)
    Q *= mu
    desk.Q[:visits, :R] = Q
    desk.pull[:visits, :R] = Q @ model.plain


@njit(inline="always")
def clear_rows(square: Array, n: int) -> None:
    """Zeros in the rows after the first n, up to whole vectors."""
    for i in range(n, whole(n)):
        for j in range(0, whole(n), LANES):
            store(square, (i, j), splat(0.0))


@njit(inline="always")
def aim_long(U: Array, visits: int, R: int, model: Definitions, desk: Desk) -> bool:
    """Q H = U T with T = Hᵀ C^(-1/2) H and C = H (UᵀU) Hᵀ; False if C is too near to a singular matrix."""
    multiply(model.H, desk.G, R, R, desk.work)
    multiply(desk.work, model.HT, R, R, desk.square)
    clear_rows(desk.square, R)
    if not inverse_root_within(desk.square, R, SMALLEST**2, desk.root, desk.rooted):
        return False
    for r in range(R):
        for j in range(0, U.shape[1], LANES):
            store(desk.turned, (r, j), load(model.H, (r, j)))
    turn(desk.turned, R, desk.root.reduction, False)
    multiply(desk.rooted, desk.turned, R, R, desk.work)
    multiply_transposed(desk.turned, desk.work, R, R, desk.target)
    multiply(U, desk.target, visits, R, desk.pull)
    return True


@njit(inline="always")
def aim_short(U: Array, visits: int, R: int, model: Definitions, desk: Desk) -> bool:
    """Q H = (M Mᵀ)^(-1/2) M H with M = U Hᵀ, for fewer visits than phenotypes: M Mᵀ is smaller than C then."""
    for i in range(visits, whole(visits)):
        for j in range(0, U.shape[1], LANES):
            store(U, (i, j), splat(0.0))
    for i in range(0, visits, LANES):
        for j in range(0, U.shape[1], LANES):
            transpose(U, (i, j), desk.across, (j, i))
    multiply(U, model.HH, visits, R, desk.right)
    multiply(desk.right, desk.across, visits, R, desk.square)
    clear_rows(desk.square, visits)
    if not inverse_root_within(desk.square, visits, SMALLEST**2, desk.root, desk.rooted):
        return False
    turn(desk.right, visits, desk.root.reduction, False)
    multiply(desk.rooted, desk.right, visits, visits, desk.pull)
    turn(desk.pull, visits, desk.root.reduction, True)
    return True


@njit(inline="always")
def solve_courses(old: Array, visits: int, mu: float, exact: bool, model: Definitions, desk: Desk) -> None:
    """U: NNLS rows with Gram (w wᵀ)∘VᵀV + μI and right-hand sides B∘w + μ Q H."""
    U, w, right = desk.U, desk.w, desk.right
    for i in range(visits):
        for j in range(0, U.shape[1], LANES):
            store(right, (i, j), fma(load(desk.B, (i, j)), load(w, j), load(desk.pull, (i, j))))
    if not exact:
        descend_courses(old, right, visits, w, model.VV, mu, desk.sweep, U)
        return
    R = desk.passive.size
    for r in range(R):
        for s in range(R):
            desk.gram[r, s] = w[r] * w[s] * model.VV[r, s]
        desk.gram[r, r] += mu
    for i in range(visits):
        for r in range(R):
            desk.passive[r] = old[i, r] > 0.0
        pivot(desk.gram, right[i, :R], U[i, :R], desk.passive, desk.solve)


@njit(inline="always")
def advance(
    shard: Shard,
    k: int,
    mu: float,
    model: Definitions,
    courses: Array,
    other: Array,
    reach: float,
    exact: bool,
    desk: Desk,
) -> float:
    """One patient step: w, then Q, then U; `other` holds the courses before these and gets the new ones.

    With `reach` the step sets out from max(0, U + reach·(U − before)). Returns ‖X_k‖², and leaves U, old, B, w
    and what Q pulls to on the desk, so that the addends can be taken from there.
    """
    visits, R = courses.shape
    norm = read_visits(shard, k, model.V, desk.B)
    reach_ahead(courses, other, reach, desk.old)
    solve_scores(desk.old, visits, shard.static[k], model, desk)
    if norm == 0.0:  # no history: scores from the static features alone
        other[:] = 0.0
        desk.U[:visits] = 0.0
        return norm
    aim(desk.old, visits, mu, model, desk)
    solve_courses(desk.old, visits, mu, exact, model, desk)
    for i in range(visits):
        for r in range(R):
            other[i, r] = desk.U[i, r]
    if other.itemsize < desk.U.itemsize:  # what was stored, also when it is stored in float32
        fetch(other, desk.U)
    return norm


@njit(inline="always")
def add(shard: Shard, k: int, mu: float, norm: float, desk: Desk, tally: Tally) -> None:
    """Add this patient to the sums, from what `advance` left on the desk."""
    first = shard.offsets[k]
    visits = shard.offsets[k + 1] - first
    R, w, U, G = desk.passive.size, desk.w, desk.U, desk.G
    multiply_transposed(U, U, R, visits, G)
    if mu > 0.0 and norm > 0.0:
        if desk.explicit[0]:
            add_transposed(desk.Q, U, R, visits, tally.QU)
        else:
            add_transposed(desk.pull, U, R, visits, tally.pulls)
    size = 0.0
    for r in range(R):
        size += G[r, r]
        f = splat(w[r])
        for j in range(0, U.shape[1], LANES):
            ww = f * load(w, j)
            store(tally.WW, (r, j), load(tally.WW, (r, j)) + ww)
            store(tally.UU, (r, j), fma(ww, load(G, (r, j)), load(tally.UU, (r, j))))
    add_visits(shard, first, visits, U, w, tally.XU)
    a = shard.static[k]
    for j in range(0, U.shape[1], LANES):
        x = load(w, j)
        for p in range(a.size):
            store(tally.AW, (p, j), fma(splat(a[p]), x, load(tally.AW, (p, j))))
    tally.scalars[0] += norm
    tally.scalars[1] += square_sum(a, 0, a.size)
    tally.scalars[2] += mu
    tally.scalars[3] += mu * size


@njit(inline="always")
def add_visits(shard: Shard, first: int, visits: int, U: Array, w: Array, XU: Array) -> None:
    """XU += Xᵀ U diag(w), from the non-zeros alone."""
    for i in range(visits):
        start, end = shard.indptr[first + i], shard.indptr[first + i + 1]
        for j in range(0, U.shape[1] - LANES, 2 * LANES):
            x, y = load(U, (i, j)) * load(w, j), load(U, (i, j + LANES)) * load(w, j + LANES)
            for n in range(start, end):
                row, f = shard.indices[n], splat(np.float64(shard.data[n]))
                store(XU, (row, j), fma(f, x, load(XU, (row, j))))
                store(XU, (row, j + LANES), fma(f, y, load(XU, (row, j + LANES))))
        if U.shape[1] % (2 * LANES):
            j = U.shape[1] - LANES
            x = load(U, (i, j)) * load(w, j)
            for n in range(start, end):
                row, f = shard.indices[n], splat(np.float64(shard.data[n]))
                store(XU, (row, j), fma(f, x, load(XU, (row, j))))


@njit(inline="always")
def loss_after(shard: Shard, k: int, mu: float, norm: float, model: Definitions, desk: Desk) -> float:
    """A patient's whole loss after `advance`: the new U with the w and Q it was solved for."""
    visits = shard.offsets[k + 1] - shard.offsets[k]
    U, R = desk.U, desk.passive.size
    multiply_transposed(U, U, R, visits, desk.G)
    loss = expanded_loss(norm, visits, model.VV, desk)
    for r in range(R):
        loss += mu * (desk.G[r, r] + model.HH[r, r])
        for i in range(visits):
            loss -= 2.0 * U[i, r] * desk.pull[i, r]
    return 0.5 * loss + static_loss(shard.static[k], model, desk.w)


@njit(cache=True, nogil=True)
def expanded_loss(norm: float, visits: int, VV: Array, desk: Desk) -> float:
    """‖X − U diag(w) Vᵀ‖² as ‖X‖² − 2 wᵀ colsum(U∘B) + wᵀ((UᵀU)∘VᵀV)w."""
    w, R = desk.w, desk.passive.size
    loss = norm
    for i in range(visits):
        for r in range(R):
            loss -= 2.0 * w[r] * desk.U[i, r] * desk.B[i, r]
    for r in range(R):
        for s in range(R):
            loss += w[r] * w[s] * desk.G[r, s] * VV[r, s]
    return loss


@njit(cache=True, nogil=True)
def static_loss(a: Array, model: Definitions, w: Array) -> float:
    """λ/2 ‖a − F w‖²."""
    loss = 0.0
    for p in range(a.size):
        value = a[p]
        for r in range(w.size):
            value -= model.F[p, r] * w[r]
        loss += value * value
    return 0.5 * model.lam * loss


@njit(inline="always")
def residual(shard: Shard, k: int, n_features: int, V: Array, U: Array, w: Array) -> float:
    """‖X_k − U diag(w) Vᵀ‖², entry by entry."""
    first, last = shard.offsets[k], shard.offsets[k + 1]
    row = np.empty(n_features)
    loss = 0.0
    for i in range(first, last):
        for j in range(n_features):
            value = 0.0
            for r in range(w.size):
                value += U[i - first, r] * w[r] * V[j, r]
            row[j] = -value
        for n in range(shard.indptr[i], shard.indptr[i + 1]):
            row[shard.indices[n]] += shard.data[n]
        for j in range(n_features):
            loss += row[j] * row[j]
    return loss


@njit(inline="always")
def losses(shard: Shard, k: int, mu: float, norm: float, model: Definitions, desk: Desk, loss: Array) -> None:
    """The three parts of a patient's loss, with the best Q, for the U, B, G and w that are on the desk."""
    visits = shard.offsets[k + 1] - shard.offsets[k]
    R = desk.passive.size
    fit = expanded_loss(norm, visits, model.VV, desk)
    if fit < CANCELLED * norm:
        fit = residual(shard, k, model.V.shape[0], model.V, desk.U, desk.w)
    loss[0] = 0.5 * fit
    loss[1] = static_loss(shard.static[k], model, desk.w)
    loss[2] = 0.0
    if mu > 0.0:
        M = np.dot(np.ascontiguousarray(desk.U[:visits, :R]), model.plain.T)
        nuclear = nuclear_norm(M, desk.eigen)
        loss[2] = 0.5 * mu * (np.trace(desk.G) + np.sum(model.plain * model.plain) - 2.0 * nuclear)
