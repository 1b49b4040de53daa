"""The scores of eight patients at once, one in every lane: what `patient.solve_scores` does, by `nnls` on its side.

A few sweeps of coordinate descent guess which scores are positive; those are solved for by elimination, and all that
turn out wrong are exchanged, as in `nnls.pivot`. Whose set is still wrong after some rounds is left to `pivot`.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from phenotaste.core.kernels.nnls import DEPENDENT, ROUNDING, TINY, Solve, pivot
from phenotaste.core.kernels.simd import LANES, fma, fnma, load, matrix, splat, store, where_above, whole
from phenotaste.core.records import ALLOCATING, KERNEL, Array

GUESSES = 3  # sweeps
ROUNDS = 6  # exchanges, before a lane goes on alone


class LaneScores(NamedTuple):
    """Room for eight problems in up to R unknowns."""

    gram: Array  # R × R
    b: Array
    x: Array
    passive: Array  # 1 where a score may be positive, otherwise 0
    L: Array  # R × R, lower
    row: Array
    inverse: Array
    wrong: Array  # how many are on the wrong side
    alone: Array  # the Gram matrix of one lane, R × R


def new_lane_scores(R: int) -> LaneScores:
    side = whole(R)
    square = side * side
    return LaneScores(
        matrix(square, LANES),
        matrix(side, LANES),
        matrix(side, LANES),
        matrix(side, LANES),
        matrix(square, LANES),
        matrix(side, LANES),
        matrix(side, LANES),
        matrix(1, LANES),
        matrix(R, R),
    )


@njit(**KERNEL)
def score_lanes(
    G: Array, VV: Array, FF: Array, n: int, width: int, room: LaneScores, passive: Array, solve: Solve
) -> None:
    """room.x: NNLS with Gram matrices G∘VV + FF and right-hand sides room.b; `passive` and `solve` are scratch."""
    gram, zero, one = room.gram, splat(0.0), splat(1.0)
    for i in range(n):
        for j in range(i + 1):
            entry = fma(load(G, (i * width + j, 0)), splat(VV[i, j]), splat(FF[i, j]))
            store(gram, (i * width + j, 0), entry)
            store(gram, (j * width + i, 0), entry)
    guess(n, width, room)
    for i in range(n):
        store(room.passive, (i, 0), where_above(load(room.x, (i, 0)), zero, one, zero))
    for _ in range(ROUNDS):
        eliminate(n, width, room)
        noise = noise_level(n, width, room)
        exchange(n, width, noise, room)
        some = False
        for s in range(LANES):
            some = some or room.wrong[0, s] > 0.0
        if not some:
            break
    noise = noise_level(n, width, room)
    for i in range(n):  # as in `pivot`: what is left of a cancellation is no score
        x = load(room.x, (i, 0))
        part = x * x * load(gram, (i * width + i, 0))
        store(room.x, (i, 0), where_above(part, noise, where_above(x, zero, x, zero), zero))
    for s in range(LANES):
        if room.wrong[0, s] > 0.0:
            on_its_own(s, n, width, room, passive, solve)


@njit(**ALLOCATING)
def on_its_own(s, n, width, room, passive, solve):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """One lane's problem by pivoting, from where the exchanges left it."""
    b, x = np.empty(n), np.empty(n)
    for i in range(n):
        b[i], passive[i] = room.b[i, s], room.passive[i, s] > 0.0
        for j in range(n):
            room.alone[i, j] = room.gram[i * width + j, s]
    pivot(room.alone, b, x, passive, solve)
    for i in range(n):
        room.x[i, s] = x[i]


@njit(inline="always")
def guess(n: int, width: int, room: LaneScores) -> None:
    """Coordinate descent from zero."""
    gram, zero = room.gram, splat(0.0)
    for i in range(n):
        diagonal = load(gram, (i * width + i, 0))
        store(room.inverse, (i, 0), where_above(diagonal, splat(TINY), splat(1.0) / diagonal, zero))
        store(room.x, (i, 0), zero)
    for turn in range(GUESSES):
        for i in range(n):
            down, rest = load(room.b, (i, 0)), zero
            for j in range(i + 1, n if turn else i + 1):
                down = fnma(load(gram, (i * width + j, 0)), load(room.x, (j, 0)), down)
            for j in range(i):  # the one just moved comes last: all others need not wait for it
                rest = fnma(load(gram, (i * width + j, 0)), load(room.x, (j, 0)), rest)
            new = (down + rest) * load(room.inverse, (i, 0))
            store(room.x, (i, 0), where_above(new, zero, new, zero))


@njit(inline="always")
def noise_level(n: int, width: int, room: LaneScores):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Below this, x_r² G_rr is rounding noise."""
    top = splat(0.0)
    for i in range(n):
        x = load(room.x, (i, 0))
        part = x * x * load(room.gram, (i * width + i, 0))
        top = where_above(part, top, part, top)
    return splat(ROUNDING * ROUNDING) * top


@njit(inline="always")
def eliminate(n: int, width: int, room: LaneScores) -> None:
    """x = G⁻¹b on the passive set by G = L D Lᵀ, zero elsewhere and for dependent columns."""
    gram, L, row, zero = room.gram, room.L, room.row, splat(0.0)
    for r in range(n):
        mine = load(room.passive, (r, 0))
        diagonal = load(gram, (r * width + r, 0))
        rest, known = diagonal, mine * load(room.b, (r, 0))
        for i in range(r):
            entry = mine * load(room.passive, (i, 0)) * load(gram, (r * width + i, 0))
            for j in range(i):
                entry = fnma(load(L, (i * width + j, 0)), load(row, (j, 0)), entry)
            store(row, (i, 0), entry)
            factor = entry * load(room.inverse, (i, 0))
            store(L, (r * width + i, 0), factor)
            rest = fnma(factor, entry, rest)
            known = fnma(factor, load(room.x, (i, 0)), known)
        least = splat(DEPENDENT) * diagonal
        least = where_above(least, splat(TINY), least, splat(TINY))
        store(room.inverse, (r, 0), where_above(rest, least, mine / rest, zero))
        store(room.x, (r, 0), known)
    for r in range(n - 1, -1, -1):
        x = load(room.x, (r, 0)) * load(room.inverse, (r, 0))
        for i in range(r + 1, n):
            x = fnma(load(L, (i * width + r, 0)), load(room.x, (i, 0)), x)
        store(room.x, (r, 0), x)


@njit(inline="always")
def exchange(n, width, noise, room):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Count who is on the wrong side, and let them change sides: negative scores, and zeros that want to rise."""
    gram, zero, one = room.gram, splat(0.0), splat(1.0)
    wrong = zero
    for i in range(n):
        x, b = load(room.x, (i, 0)), load(room.b, (i, 0))
        value, size = zero - b, where_above(b, zero, b, zero - b)
        for j in range(n):
            term = load(gram, (i * width + j, 0)) * load(room.x, (j, 0))
            value, size = value + term, size + where_above(term, zero, term, zero - term)
        diagonal = load(gram, (i * width + i, 0))
        rises = where_above(zero - value, splat(ROUNDING) * size, one, zero)
        rises = where_above(diagonal, splat(TINY), rises, zero)
        negative = where_above(x * x * diagonal, noise, where_above(zero, x, one, zero), zero)
        passive = load(room.passive, (i, 0))
        out = where_above(passive, zero, negative, rises)
        wrong = wrong + out
        store(room.passive, (i, 0), where_above(out, zero, one - passive, passive))
    store(room.wrong, (0, 0), wrong)
