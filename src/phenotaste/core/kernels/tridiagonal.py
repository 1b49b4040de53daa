"""Householder's reduction of a symmetric matrix, C = P T Pᵀ with T tridiagonal, and products with P.

P is a product of reflections I − τ v vᵀ and is never formed. Matrices are zero-padded (`simd`).
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.simd import (
    LANES,
    aligned_matrix,
    aligned_vector,
    fma,
    keep_after,
    lane_sum,
    load,
    round_up,
    set_lane,
    splat,
    store,
)
from phenotaste.core.records import Array

NEGLIGIBLE_NORM = 1e-150  # a column with a smaller norm counts as reduced


class Reduction(NamedTuple):
    """The result of one reduction of up to R × R, and its scratch."""

    vectors: Array  # R × R; row k is the v of reflection k, zero up to k; row round_up(n) − 1 is zero
    tau: Array
    diagonal: Array  # of T
    off_diagonal: Array
    updates: Array  # 2 × R: the p of the last two reflections


def new_reduction(R: int) -> Reduction:
    side = round_up(R)
    return Reduction(
        aligned_matrix(side, side),
        aligned_vector(side),
        aligned_vector(side),
        aligned_vector(side),
        aligned_matrix(2, side),
    )


@part
def to_tridiagonal(A: Array, n: int, to: Reduction) -> None:
    """Reduce the first n rows and columns of A, which is overwritten and whose padding must be zero.

    Reflection k changes row i by −v_i p − p_i v. Rows are updated while A is read for the next product A v, four at a
    time, so that A is read once per reflection.
    """
    side, V = round_up(n), to.vectors
    last, p, q = side - 1, 0, 1  # row numbers of V and of `updates`: views would be reference-counted
    for j in range(0, side, LANES):
        store(V, (last, j), splat(0.0))
        store(to.updates, (p, j), splat(0.0))
    to.tau[last] = 0.0
    for k in range(n - 1):
        left, right = splat(-V[last, k]), splat(-to.updates[p, k])
        for j in range(k // LANES * LANES, side, LANES):
            by, along = load(to.updates, (p, j)), load(V, (last, j))
            store(A, (k, j), fma(left, by, fma(right, along, load(A, (k, j)))))
        to.diagonal[k] = A[k, k]
        make_reflection(A, k, n, to)
        update_rows(A, side, k, last, p, q, to)
        last, p, q = k, q, p
    to.diagonal[n - 1] = A[n - 1, n - 1] - 2.0 * V[last, n - 1] * to.updates[p, n - 1]


@part(inline=True)
def make_reflection(A: Array, k: int, n: int, to: Reduction) -> None:
    """v and τ that reflect row k of A, right of the diagonal, onto its norm at k + 1 and zeros."""
    side, V = round_up(n), to.vectors
    first = (k + 1) // LANES * LANES
    square = splat(0.0)
    for j in range(first, side, LANES):
        x = keep_after(load(A, (k, j)), k - j)
        square = fma(x, x, square)
    for j in range(0, first, LANES):
        store(V, (k, j), splat(0.0))
    norm, head = np.sqrt(lane_sum(square)), A[k, k + 1]
    if k == n - 2 or norm < NEGLIGIBLE_NORM:
        to.off_diagonal[k], to.tau[k] = head, 0.0
        for j in range(first, side, LANES):
            store(V, (k, j), splat(0.0))
        return
    alpha = -norm if head > 0.0 else norm
    to.off_diagonal[k], to.tau[k] = alpha, 1.0 / (norm * (norm + abs(head)))
    for j in range(first, side, LANES):
        store(V, (k, j), set_lane(keep_after(load(A, (k, j)), k - j), k + 1 - j, head - alpha))


@part(inline=True)
def update_rows(A: Array, side: int, k: int, last: int, p: int, q: int, to: Reduction) -> None:
    """Apply the last reflection to the rows after k, and leave the p of this one, τ A v − ½ τ² (vᵀAv) v, in row q.

    Its entries up to k are not needed: they only affect columns of A that are already reduced.
    """
    V, updates, tau = to.vectors, to.updates, to.tau[k]
    first = (k + 1) // LANES * LANES
    for j in range(first, side, LANES):
        store(updates, (q, j), splat(0.0))
    for i in range((k + 1) // 4 * 4, side, 4):
        l0, l1 = splat(-V[last, i]), splat(-V[last, i + 1])
        l2, l3 = splat(-V[last, i + 2]), splat(-V[last, i + 3])
        r0, r1 = splat(-updates[p, i]), splat(-updates[p, i + 1])
        r2, r3 = splat(-updates[p, i + 2]), splat(-updates[p, i + 3])
        g0, g1, g2, g3 = splat(V[k, i]), splat(V[k, i + 1]), splat(V[k, i + 2]), splat(V[k, i + 3])
        for j in range(first, side, LANES):
            by, along, product = load(updates, (p, j)), load(V, (last, j)), load(updates, (q, j))
            x0 = fma(l0, by, fma(r0, along, load(A, (i, j))))
            x1 = fma(l1, by, fma(r1, along, load(A, (i + 1, j))))
            x2 = fma(l2, by, fma(r2, along, load(A, (i + 2, j))))
            x3 = fma(l3, by, fma(r3, along, load(A, (i + 3, j))))
            store(A, (i, j), x0)
            store(A, (i + 1, j), x1)
            store(A, (i + 2, j), x2)
            store(A, (i + 3, j), x3)
            store(updates, (q, j), product + (fma(g0, x0, g1 * x1) + fma(g2, x2, g3 * x3)))
    along = splat(0.0)
    for j in range(first, side, LANES):
        along = fma(load(updates, (q, j)), load(V, (k, j)), along)
    f, half = splat(tau), splat(-0.5 * tau * tau * lane_sum(along))
    for j in range(first, side, LANES):
        store(updates, (q, j), fma(half, load(V, (k, j)), f * load(updates, (q, j))))


@part
def change_basis(X: Array, n: int, by: Reduction, to_original: bool) -> None:
    """X ← Pᵀ X, or P X with `to_original`, for the first n rows of X; sixteen columns at a time."""
    for j in range(0, X.shape[1], 2 * LANES):
        change_basis_columns(X, n, by.vectors, by.tau, to_original, j, min(j + LANES, X.shape[1] - LANES))


@part(inline=True)
def reflection_index(step: int, count: int, to_original: bool, none: int) -> int:
    """The reflection applied at this step; `none` after the last."""
    if step >= count:
        return none
    return count - 1 - step if to_original else step


@part
def change_basis_columns(X: Array, n: int, V: Array, tau: Array, to_original: bool, j: int, j2: int) -> None:
    """Two vectors of every row, two reflections at a time.

    x ← x − v₀y₀ᵀ − v₁y₁ᵀ with y₀ = β₀ xᵀv₀ and y₁ = β₁ (xᵀv₁ − (v₀ᵀv₁) y₀). The sums xᵀv of a pair are taken while the
    previous pair is applied.
    """
    side = round_up(n)
    none = side - 1
    zero = splat(0.0)
    y0, y1, z0, z1 = zero, zero, zero, zero
    k0, k1 = none, none
    for step in range(0, n, 2):  # n − 2 reflections, and one more pass for the update of the last pair
        m0, m1 = (
            reflection_index(step, n - 2, to_original, none),
            reflection_index(step + 1, n - 2, to_original, none),
        )
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
        f, g, h = splat(tau[m0]), splat(tau[m1]), splat(-lane_sum(both))
        y0, y1 = f * s0, f * s1
        z0, z1 = g * fma(h, y0, t0), g * fma(h, y1, t1)
        k0, k1 = m0, m1
