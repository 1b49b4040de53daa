"""Householder's reduction of a symmetric matrix, C = P T Pᵀ with T tridiagonal, and products with P.

P is a product of reflections I − β v vᵀ and is never formed. Matrices are padded with zeros to whole vectors (`simd`).
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from phenotaste.core.kernels.simd import (
    LANES,
    after,
    column,
    fma,
    load,
    matrix,
    replaced,
    splat,
    store,
    total,
    whole,
)
from phenotaste.core.records import KERNEL, Array

NOTHING = 1e-150  # a column this short is reduced already


class Reduction(NamedTuple):
    """Room for one reduction of up to R × R, and its outcome."""

    vectors: Array  # R × R; row k is the v of reflection k, zero up to k; row whole(n) − 1 is zero
    strength: Array  # β
    diagonal: Array  # of T
    off: Array  # beside it
    moves: Array  # 2 × R


def new_reduction(R: int) -> Reduction:
    side = whole(R)
    return Reduction(matrix(side, side), column(side), column(side), column(side), matrix(2, side))


@njit(**KERNEL)
def to_tridiagonal(A: Array, n: int, to: Reduction) -> None:
    """Reduce the first n rows and columns of A, which is overwritten and must be zero from there to whole vectors.

    Reflection k changes row i by −v_i p − p_i v. The rows are changed while A is read for the next product A v, four
    at a time, so that A goes through the registers once a reflection.
    """
    side, V = whole(n), to.vectors
    last, p, q = side - 1, 0, 1  # rows of V and of the moves, by number: a view would be a counted reference
    for j in range(0, side, LANES):
        store(V, (last, j), splat(0.0))
        store(to.moves, (p, j), splat(0.0))
    to.strength[last] = 0.0
    for k in range(n - 1):
        left, right = splat(-V[last, k]), splat(-to.moves[p, k])
        for j in range(k // LANES * LANES, side, LANES):
            by, along = load(to.moves, (p, j)), load(V, (last, j))
            store(A, (k, j), fma(left, by, fma(right, along, load(A, (k, j)))))
        to.diagonal[k] = A[k, k]
        new_reflection(A, k, n, to)
        advance(A, side, k, V, last, to.strength[k], to.moves, p, q)
        last, p, q = k, q, p
    to.diagonal[n - 1] = A[n - 1, n - 1] - 2.0 * V[last, n - 1] * to.moves[p, n - 1]


@njit(inline="always")
def new_reflection(A: Array, k: int, n: int, to: Reduction) -> None:
    """v and β that turn row k of A, right of the diagonal, into its length at k + 1 and zeros."""
    side, V = whole(n), to.vectors
    first = (k + 1) // LANES * LANES
    square = splat(0.0)
    for j in range(first, side, LANES):
        x = after(load(A, (k, j)), k - j)
        square = fma(x, x, square)
    for j in range(0, first, LANES):
        store(V, (k, j), splat(0.0))
    norm, head = np.sqrt(total(square)), A[k, k + 1]
    if k == n - 2 or norm < NOTHING:
        to.off[k], to.strength[k] = head, 0.0
        for j in range(first, side, LANES):
            store(V, (k, j), splat(0.0))
        return
    turned = -norm if head > 0.0 else norm
    to.off[k], to.strength[k] = turned, 1.0 / (norm * (norm + abs(head)))
    for j in range(first, side, LANES):
        store(V, (k, j), replaced(after(load(A, (k, j)), k - j), k + 1 - j, head - turned))


@njit(inline="always")
def advance(
    A: Array, side: int, k: int, V: Array, last: int, beta: float, moves: Array, p: int, q: int
) -> None:
    """Change the rows after k by the last reflection, and leave the p of this one, β A v − ½ β² (vᵀAv) v, in row q.

    Its entries up to k are of no account: they only ever meet columns of A that are done with.
    """
    first = (k + 1) // LANES * LANES
    for j in range(first, side, LANES):
        store(moves, (q, j), splat(0.0))
    for i in range((k + 1) // 4 * 4, side, 4):
        l0, l1 = splat(-V[last, i]), splat(-V[last, i + 1])
        l2, l3 = splat(-V[last, i + 2]), splat(-V[last, i + 3])
        r0, r1 = splat(-moves[p, i]), splat(-moves[p, i + 1])
        r2, r3 = splat(-moves[p, i + 2]), splat(-moves[p, i + 3])
        g0, g1, g2, g3 = splat(V[k, i]), splat(V[k, i + 1]), splat(V[k, i + 2]), splat(V[k, i + 3])
        for j in range(first, side, LANES):
            by, along, found = load(moves, (p, j)), load(V, (last, j)), load(moves, (q, j))
            x0 = fma(l0, by, fma(r0, along, load(A, (i, j))))
            x1 = fma(l1, by, fma(r1, along, load(A, (i + 1, j))))
            x2 = fma(l2, by, fma(r2, along, load(A, (i + 2, j))))
            x3 = fma(l3, by, fma(r3, along, load(A, (i + 3, j))))
            store(A, (i, j), x0)
            store(A, (i + 1, j), x1)
            store(A, (i + 2, j), x2)
            store(A, (i + 3, j), x3)
            store(moves, (q, j), found + (fma(g0, x0, g1 * x1) + fma(g2, x2, g3 * x3)))
    along = splat(0.0)
    for j in range(first, side, LANES):
        along = fma(load(moves, (q, j)), load(V, (k, j)), along)
    f, half = splat(beta), splat(-0.5 * beta * beta * total(along))
    for j in range(first, side, LANES):
        store(moves, (q, j), fma(half, load(V, (k, j)), f * load(moves, (q, j))))


@njit(**KERNEL)
def turn(X: Array, n: int, by: Reduction, back: bool) -> None:
    """X ← Pᵀ X, or P X with `back`, for the first n rows of X; sixteen columns at a time."""
    for j in range(0, X.shape[1], 2 * LANES):
        turn_columns(X, n, by.vectors, by.strength, back, j, min(j + LANES, X.shape[1] - LANES))


@njit(inline="always")
def reflection_at(step: int, count: int, back: bool, none: int) -> int:
    """Which reflection comes at this step; `none` when all are done."""
    if step >= count:
        return none
    return count - 1 - step if back else step


@njit(**KERNEL)
def turn_columns(X: Array, n: int, V: Array, strength: Array, back: bool, j: int, j2: int) -> None:
    """Two vectors of every row, two reflections at a time.

    x ← x − v₀y₀ᵀ − v₁y₁ᵀ with y₀ = β₀ xᵀv₀ and y₁ = β₁ (xᵀv₁ − (v₀ᵀv₁) y₀). The sums xᵀv of a pair are taken while the
    changes of the pair before are made.
    """
    side = whole(n)
    none = side - 1
    zero = splat(0.0)
    y0, y1, z0, z1 = zero, zero, zero, zero
    k0, k1 = none, none
    for step in range(0, n, 2):  # n − 2 reflections, and once more for what the last pair changes
        m0, m1 = reflection_at(step, n - 2, back, none), reflection_at(step + 1, n - 2, back, none)
        low = min(min(k0, k1), min(m0, m1)) + 1
        both, s0, s1, t0, t1 = zero, zero, zero, zero, zero
        for i in range(low // LANES * LANES, side, LANES):
            both = fma(load(V, (m0, i)), load(V, (m1, i)), both)
        for i in range(low, n):
            c, d = splat(-V[k0, i]), splat(-V[k1, i])
            x = fma(c, y0, fma(d, z0, load(X, (i, j))))
            x2 = fma(c, y1, fma(d, z1, load(X, (i, j2))))
            store(X, (i, j), x)
            store(X, (i, j2), x2)
            c, d = splat(V[m0, i]), splat(V[m1, i])
            s0, s1, t0, t1 = fma(c, x, s0), fma(c, x2, s1), fma(d, x, t0), fma(d, x2, t1)
        f, g, h = splat(strength[m0]), splat(strength[m1]), splat(-total(both))
        y0, y1 = f * s0, f * s1
        z0, z1 = g * fma(h, y0, t0), g * fma(h, y1, t1)
        k0, k1 = m0, m1
