"""U of one patient with unit columns, one phenotype at a time.

Everything else fixed, the objective is linear in a column u_r of unit norm, except for the smoothness term τ/2 uᵀLu.
Since ρI − L is positive semidefinite, that is at most a constant − τ u_currentᵀ(ρI − L)u, with equality at the current
course. The unit vector u ≥ 0 that minimises such a bound −cᵀu is c without its negative entries, scaled, where

    c = w_r (X V − Σ_{s≠r} u_s w_s (VᵀV)_s)_r + μ (Q H)_r + τ (ρI − L) u_r

so no update can raise the objective. L is the Laplacian of the chain of visits, uᵀLu = Σ (u_{i+1} − u_i)², and ρ its
largest possible eigenvalue.

Courses are transposed, so that loads run along the visits, and their norms are divided out last: until then a course is
its column times a factor, which is applied to the Gram matrix instead. An update writes to a spare place, and the place
of the column it replaces is the next spare one.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.simd import (
    LANES,
    aligned_matrix,
    aligned_vector,
    fma,
    lane_sum,
    load,
    positive_part,
    round_up,
    splat,
    store,
    transpose_strided,
)
from phenotaste.core.records import Array

COLUMN_SWEEPS = 2  # per patient step
BLOCK = 4  # columns
MIN_BLOCKED = 16  # columns, from which they are updated in blocks


class ColumnScratch(NamedTuple):
    """Scratch for the sweeps; columns are as long as the patient needs, and each follows eight zeros."""

    U: Array  # transposed and flattened, with a spare place
    rhs: Array  # likewise; in the end the result
    stay: Array  # τ (ρI − L): the diagonal
    beside: Array  # and the entries beside it
    neg_gram: Array  # −(w wᵀ)∘VᵀV of the phenotypes with a score
    scaled_gram: Array  # its rows times the factors of their columns
    order: Array  # phenotypes, those with a score first
    place: Array  # where the column of each begins, in this order, and the spare place
    factor: Array  # of each column, in this order


def new_column_scratch(visits: int, R: int) -> ColumnScratch:
    columns, stride = round_up(R), round_up(visits) + LANES
    return ColumnScratch(
        U=aligned_vector((columns + 1) * stride + LANES),
        rhs=aligned_vector((columns + 1 + BLOCK) * stride),
        stay=aligned_vector(stride),
        beside=aligned_vector(stride),
        neg_gram=aligned_matrix(R, R),
        scaled_gram=aligned_matrix(R, R),
        order=np.zeros(R, np.int64),
        place=np.zeros(R + 1, np.int64),
        factor=np.zeros(R),
    )


@part
def unit_columns_step(
    U_start: Array,
    rhs: Array,
    visits: int,
    w: Array,
    VV: Array,
    tau: float,
    scratch: ColumnScratch,
    U: Array,
) -> None:
    """U from `U_start` by `COLUMN_SWEEPS` sweeps; `rhs` holds (X V)∘w + μ Q H.

    Phenotypes without a score depend on no other, and are updated in the first sweep only. Rows of `U_start` and `rhs`
    after the last visit are set to zero.
    """
    n, R, width = round_up(visits), scratch.order.size, U.shape[1]
    stride = n + LANES
    for r in range(width + 2):
        store(scratch.U, r * stride, splat(0.0))
    to_columns(U_start, visits, stride, scratch.U)
    to_columns(rhs, visits, stride, scratch.rhs)
    smoothness(visits, tau, scratch.stay, scratch.beside)
    scratch.place[R] = width * stride + LANES
    m = gather_scored(w, VV, stride, scratch)
    for sweep in range(COLUMN_SWEEPS):
        for a in range(m if sweep else R):
            first, count, home = 0, m, scratch.order[a] * stride + LANES
            if a >= m:  # no other column counts for a phenotype without a score
                first, count = a, 1
            elif m >= MIN_BLOCKED:
                first = a - a % BLOCK
                count = min(BLOCK, m - first)
                home = (width + 1 + a - first) * stride
                if a == first:
                    add_outside(first, count, home, m, n, scratch)
            update_column(a, first, count, home, m, n, scratch)
    for a in range(R):
        f, place, home = splat(scratch.factor[a]), scratch.place[a], scratch.order[a] * stride + LANES
        for i in range(0, n, LANES):
            store(scratch.rhs, home + i, f * load(scratch.U, place + i))
    for i in range(0, visits, LANES):
        for j in range(0, width, LANES):
            transpose_strided(scratch.rhs, j * stride + LANES + i, stride, U, i * width + j, width)


@part(inline=True)
def to_columns(M: Array, visits: int, stride: int, out: Array) -> None:
    """The columns of M, with zeros after the last visit."""
    width = M.shape[1]
    for i in range(visits, round_up(visits)):
        for j in range(0, width, LANES):
            store(M, (i, j), splat(0.0))
    for i in range(0, visits, LANES):
        for j in range(0, width, LANES):
            transpose_strided(M, i * width + j, width, out, j * stride + LANES + i, stride)


@part(inline=True)
def smoothness(visits: int, tau: float, stay: Array, beside: Array) -> None:
    """τ (ρI − L), which has more on the diagonal at the ends of the chain, and is zero after it and for one visit."""
    for i in range(0, visits, LANES):
        store(stay, i, splat(2.0 * tau if visits > 2 else 0.0))
        store(beside, i, splat(tau))
    for i in range(visits if visits > 1 else 0, round_up(visits)):
        stay[i], beside[i] = 0.0, 0.0
    if visits > 1:
        stay[0] += tau
        stay[visits - 1] += tau


@part(inline=True)
def gather_scored(w: Array, VV: Array, stride: int, scratch: ColumnScratch) -> int:
    """The order of the phenotypes, and −(w wᵀ)∘VᵀV of those that have a score; returns their number."""
    order, R = scratch.order, scratch.order.size
    m, last = 0, R
    for r in range(R):
        if w[r] != 0.0:
            order[m] = r
            m += 1
        else:
            last -= 1
            order[last] = r
    for a in range(R):
        scratch.place[a] = order[a] * stride + LANES
        scratch.factor[a] = 1.0
    for a in range(m):
        r = order[a]
        for b in range(m):
            s = order[b]
            entry = -w[r] * w[s] * VV[r, s]
            scratch.neg_gram[a, b], scratch.scaled_gram[a, b] = entry, entry
    return m


@part(inline=True)
def add_outside(first: int, count: int, block: int, m: int, n: int, scratch: ColumnScratch) -> None:
    """rhs[block] = the right-hand sides of some columns, with what all other columns contribute.

    Each of these is read once for the whole block, instead of once for every column of it.
    """
    G, U, rhs, place, order = scratch.scaled_gram, scratch.U, scratch.rhs, scratch.place, scratch.order
    stride, end = n + LANES, first + count - 1
    h0, h1 = order[first] * stride + LANES, order[min(first + 1, end)] * stride + LANES
    h2, h3 = order[min(first + 2, end)] * stride + LANES, order[end] * stride + LANES
    for i in range(0, n, 2 * LANES):
        j = min(i + LANES, n - LANES)
        x0, x1, x2, x3 = load(rhs, h0 + i), load(rhs, h1 + i), load(rhs, h2 + i), load(rhs, h3 + i)
        y0, y1, y2, y3 = load(rhs, h0 + j), load(rhs, h1 + j), load(rhs, h2 + j), load(rhs, h3 + j)
        for b in range(m - count):
            s = b if b < first else b + count
            u, v = load(U, place[s] + i), load(U, place[s] + j)
            g0, g1 = splat(G[s, first]), splat(G[s, first + 1])
            g2, g3 = splat(G[s, first + 2]), splat(G[s, first + 3])
            x0, x1, x2, x3 = fma(g0, u, x0), fma(g1, u, x1), fma(g2, u, x2), fma(g3, u, x3)
            y0, y1, y2, y3 = fma(g0, v, y0), fma(g1, v, y1), fma(g2, v, y2), fma(g3, v, y3)
        store(rhs, block + i, x0)
        store(rhs, block + stride + i, x1)
        store(rhs, block + 2 * stride + i, x2)
        store(rhs, block + 3 * stride + i, x3)
        store(rhs, block + j, y0)
        store(rhs, block + stride + j, y1)
        store(rhs, block + 2 * stride + j, y2)
        store(rhs, block + 3 * stride + j, y3)


@part(inline=True)
def update_column(a: int, first: int, count: int, home: int, m: int, n: int, scratch: ColumnScratch) -> None:
    """c without its negative entries as the a-th column, with its factor, if c is positive anywhere.

    `rhs[home]` holds what `count` columns from `first` on, the a-th among them, do not contribute.
    """
    G, U, rhs, stay, beside = scratch.scaled_gram, scratch.U, scratch.rhs, scratch.stay, scratch.beside
    here, there, last = scratch.place[a], scratch.place[scratch.order.size], n - LANES
    t = a - first
    own, squares = splat(scratch.factor[a]), splat(0.0)
    for i in range(0, n, 4 * LANES):
        j, k = min(i + LANES, last), min(i + 2 * LANES, last)
        e = min(i + 3 * LANES, last)
        x0 = fma(own, smoothed(U, here + i, i, stay, beside), load(rhs, home + i))
        x1 = fma(own, smoothed(U, here + j, j, stay, beside), load(rhs, home + j))
        x2 = fma(own, smoothed(U, here + k, k, stay, beside), load(rhs, home + k))
        x3 = fma(own, smoothed(U, here + e, e, stay, beside), load(rhs, home + e))
        for b in range(t + 1, t + count):  # the column just updated comes last: its factor takes longest
            s = first + (b if b < count else b - count)
            g, at = splat(G[s, a]), scratch.place[s]
            x0, x1 = fma(g, load(U, at + i), x0), fma(g, load(U, at + j), x1)
            x2, x3 = fma(g, load(U, at + k), x2), fma(g, load(U, at + e), x3)
        x0, x1, x2, x3 = positive_part(x0), positive_part(x1), positive_part(x2), positive_part(x3)
        store(U, there + i, x0)
        store(U, there + j, x1)
        store(U, there + k, x2)
        store(U, there + e, x3)
        squares = fma(x0, x0, squares)
        if j > i:
            squares = fma(x1, x1, squares)
        if k > j:
            squares = fma(x2, x2, squares)
        if e > k:
            squares = fma(x3, x3, squares)
    square = lane_sum(squares)
    if square > 0.0:
        factor = 1.0 / np.sqrt(square)
        scratch.factor[a], scratch.place[a] = factor, there
        scratch.place[scratch.order.size] = here
        if a < m:
            f = splat(factor)
            for b in range(0, m, LANES):
                store(G, (a, b), f * load(scratch.neg_gram, (a, b)))


@part(inline=True)
def smoothed(U, at, i, stay, beside):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """τ (ρI − L) u for eight visits from the i-th on."""
    return fma(load(stay, i), load(U, at), load(beside, i) * (load(U, at - 1) + load(U, at + 1)))


@part
def roughness(U: Array, visits: int) -> float:
    """tr(UᵀLU) = Σ ‖u_{i+1} − u_i‖² over consecutive visits."""
    total = splat(0.0)
    for j in range(0, U.shape[1], LANES):
        even, odd = splat(0.0), splat(0.0)
        u = load(U, (0, j))
        for i in range(1, visits - 1, 2):
            v = load(U, (i, j)) - u
            u = load(U, (i + 1, j))
            x = u - load(U, (i, j))
            even, odd = fma(v, v, even), fma(x, x, odd)
        if visits > 0 and visits % 2 == 0:
            v = load(U, (visits - 1, j)) - u
            even = fma(v, v, even)
        total = total + (even + odd)
    return lane_sum(total)
