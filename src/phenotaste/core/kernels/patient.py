"""The patient step for one patient, compiled: R × R algebra, no dense residual, nothing allocated.

The formulas are those of `reference`, which is written to be read; symbols are in `records`. A patient's numbers
depend on nobody else's, to the bit.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from phenotaste.core.kernels.coordinate_descent import descend_courses
from phenotaste.core.kernels.inverse_sqrt import inverse_root_within
from phenotaste.core.kernels.matmul import multiply, multiply_transposed
from phenotaste.core.kernels.nnls import Solve, descend, pivot
from phenotaste.core.kernels.polar import SMALLEST, explicit_polar
from phenotaste.core.kernels.scratch import Alone, Desk
from phenotaste.core.kernels.simd import (
    LANES,
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
from phenotaste.core.kernels.sums import square_sum
from phenotaste.core.kernels.tridiagonal import turn
from phenotaste.core.records import KERNEL, Array, Model, Shard

GUESSES = 4  # sweeps that guess which scores are positive, before they are solved exactly
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
    upper: Array  # upper triangular, with the same HᵀH as H
    lower: Array  # that transposed
    lift: Array  # R × R: H^(-T), so that QᵀU = H^(-T) (QH)ᵀU
    plain: Array  # R × R: H as it is


def define(model: Model, lam: float) -> Definitions:
    H, V, F = (np.ascontiguousarray(factor, dtype=np.float64) for factor in model)
    finite = bool(np.isfinite(H).all())
    sizes = np.linalg.svd(H, compute_uv=False) if finite else np.zeros(1)
    upper: Array = np.asarray(np.linalg.qr(H, mode="r")) if finite else np.zeros_like(H)
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
        upper=padded(upper),
        lower=padded(upper.T),
        lift=np.ascontiguousarray(lift),
        plain=H,
    )


def padded(M: Array) -> Array:
    room = matrix(*M.shape)
    room[: M.shape[0], : M.shape[1]] = M
    return room


@njit(**KERNEL)
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


@njit(**KERNEL)
def fetch(courses: Array, U: Array) -> None:
    """The stored courses of a patient, padded and in float64."""
    visits, R = courses.shape
    for i in range(visits):
        for j in range(0, U.shape[1], LANES):
            store(U, (i, j), load_some(courses, (i, j), R - j))


@njit(inline="always")
def fill(M: Array, rows: int, value: float) -> None:
    """A number everywhere in the first rows. (Slices cost a second of compilation each, for their error messages.)"""
    for i in range(rows):
        for j in range(M.shape[1]):
            M[i, j] = value


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


@njit(inline="always")
def right_hand_side(U: Array, B: Array, visits: int, a: Array, F: Array, lam: float, out: Array) -> None:
    """colsum(U∘B) + λFᵀa."""
    for j in range(0, U.shape[1], LANES):
        b = splat(0.0)
        for i in range(visits):
            b = fma(load(U, (i, j)), load(B, (i, j)), b)
        for p in range(a.size):
            b = fma(splat(lam * a[p]), load(F, (p, j)), b)
        store(out, j, b)


@njit(inline="always")
def solve_scores(U: Array, visits: int, a: Array, model: Definitions, desk: Desk, alone: Alone) -> None:
    """w: NNLS with Gram G∘VᵀV + λFᵀF and right-hand side colsum(U∘B) + λFᵀa; leaves G = UᵀU."""
    multiply_transposed(U, U, desk.passive.size, visits, desk.G)
    right_hand_side(U, alone.B, visits, a, model.F, model.lam, alone.b)
    scores_from(
        desk.G, alone.b, model.VV, model.FF, desk.gram, alone.slopes, desk.w, desk.passive, desk.solve
    )


@njit(**KERNEL)
def scores_from(
    G: Array,
    b: Array,
    VV: Array,
    FF: Array,
    gram: Array,
    slopes: Array,
    scores: Array,
    passive: Array,
    solve: Solve,
) -> None:
    R = passive.size
    for j in range(0, G.shape[1], LANES):
        store(slopes, j, splat(0.0) - load(b, j))
        store(scores, j, splat(0.0))
        for r in range(R):
            store(gram, (r, j), fma(load(G, (r, j)), load(VV, (r, j)), load(FF, (r, j))))
    w = scores[:R]
    descend(gram, slopes, w, GUESSES)
    for r in range(R):
        passive[r] = w[r] > 0.0
    pivot(gram, b[:R], w, passive, solve)


@njit(inline="always")
def aim(U: Array, visits: int, mu: float, model: Definitions, desk: Desk, alone: Alone) -> None:
    """Where the uniqueness term pulls U: μ Q H. Q itself only where its C is too near to a singular one."""
    R = model.plain.shape[0]
    desk.explicit[0] = False
    if mu == 0.0:
        fill(desk.pull, visits, 0.0)
        return
    if visits < R:
        found = model.sound and aim_short(U, visits, R, model, desk, alone)
    else:
        found = model.sound and aim_long(U, visits, R, model, desk, alone)
    if found:
        f = splat(mu)
        for i in range(visits):
            for j in range(0, U.shape[1], LANES):
                store(desk.pull, (i, j), f * load(desk.pull, (i, j)))
        return
    desk.explicit[0] = True
    explicit_polar(U, visits, mu, model.plain, desk.eigen, desk.Q, desk.pull)


@njit(inline="always")
def clear_rows(square: Array, n: int) -> None:
    """Zeros in the rows after the first n, up to whole vectors."""
    for i in range(n, whole(n)):
        for j in range(0, whole(n), LANES):
            store(square, (i, j), splat(0.0))


@njit(inline="always")
def aim_long(U: Array, visits: int, R: int, model: Definitions, desk: Desk, alone: Alone) -> bool:
    """Q H = U T with T = Hᵀ C^(-1/2) H and C = H (UᵀU) Hᵀ; False if C is too near to a singular matrix."""
    multiply(model.H, desk.G, R, R, alone.work)
    multiply(alone.work, model.HT, R, R, desk.square)
    clear_rows(desk.square, R)
    if not inverse_root_within(desk.square, R, SMALLEST**2, alone.root, alone.rooted):
        return False
    for r in range(R):
        for j in range(0, U.shape[1], LANES):
            store(alone.turned, (r, j), load(model.H, (r, j)))
    turn(alone.turned, R, alone.root.reduction, False)
    multiply(alone.rooted, alone.turned, R, R, alone.work)
    multiply_transposed(alone.turned, alone.work, R, R, alone.target)
    multiply(U, alone.target, visits, R, desk.pull)
    return True


@njit(**KERNEL)
def short_square(
    U: Array, visits: int, R: int, HH: Array, across: Array, right: Array, square: Array
) -> None:
    """M Mᵀ with M = U Hᵀ, and U HᵀH on the way there."""
    for i in range(visits, whole(visits)):
        for j in range(0, U.shape[1], LANES):
            store(U, (i, j), splat(0.0))
    for i in range(0, visits, LANES):
        for j in range(0, U.shape[1], LANES):
            transpose(U, (i, j), across, (j, i))
    multiply(U, HH, visits, R, right)
    multiply(right, across, visits, R, square)


@njit(inline="always")
def aim_short(U: Array, visits: int, R: int, model: Definitions, desk: Desk, alone: Alone) -> bool:
    """Q H = (M Mᵀ)^(-1/2) M H with M = U Hᵀ, for fewer visits than phenotypes: M Mᵀ is smaller than C then."""
    short_square(U, visits, R, model.HH, desk.across, desk.right, desk.square)
    clear_rows(desk.square, visits)
    if not inverse_root_within(desk.square, visits, SMALLEST**2, alone.root, alone.rooted):
        return False
    turn(desk.right, visits, alone.root.reduction, False)
    multiply(alone.rooted, desk.right, visits, visits, desk.pull)
    turn(desk.pull, visits, alone.root.reduction, True)
    return True


@njit(inline="always")
def solve_courses(
    old: Array, B: Array, visits: int, mu: float, exact: bool, model: Definitions, desk: Desk
) -> None:
    """U: NNLS rows with Gram (w wᵀ)∘VᵀV + μI and right-hand sides B∘w + μ Q H."""
    U, w, right = desk.U, desk.w, desk.right
    for i in range(visits):
        for j in range(0, U.shape[1], LANES):
            store(right, (i, j), fma(load(B, (i, j)), load(w, j), load(desk.pull, (i, j))))
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
def finish(
    old: Array, B: Array, visits: int, mu: float, exact: bool, model: Definitions, other: Array, desk: Desk
) -> None:
    """The new courses, from the scores and the pull that are on the desk."""
    solve_courses(old, B, visits, mu, exact, model, desk)
    for i in range(visits):
        for r in range(other.shape[1]):
            other[i, r] = desk.U[i, r]
    if other.itemsize < desk.U.itemsize:  # what was stored, also when it is stored in float32
        fetch(other, desk.U)


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
    alone: Alone,
) -> float:
    """One patient step: w, then Q, then U; `other` holds the courses before these and gets the new ones.

    With `reach` the step sets out from max(0, U + reach·(U − before)). Returns ‖X_k‖², and leaves U, old, B, w
    and what Q pulls to on the desk, so that the addends can be taken from there.
    """
    visits = len(courses)
    norm = read_visits(shard, k, model.V, alone.B)
    reach_ahead(courses, other, reach, alone.old)
    solve_scores(alone.old, visits, shard.static[k], model, desk, alone)
    if norm == 0.0:  # no history: scores from the static features alone
        fill(other, visits, 0.0)
        fill(desk.U, visits, 0.0)
        return norm
    aim(alone.old, visits, mu, model, desk, alone)
    finish(alone.old, alone.B, visits, mu, exact, model, other, desk)
    return norm
