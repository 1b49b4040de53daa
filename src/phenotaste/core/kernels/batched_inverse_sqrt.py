"""C^(-1/2) of eight small matrices at once, one per SIMD lane: `tridiagonal` and `inverse_sqrt`, batched.

For 10 × 10 matrices bound of a reduction is latency of dependent operations; with one patient per lane, eight share it.
Lanes are independent, to the bit. A packed matrix has one vector per entry, `width` to a row; of symmetric ones only
the lower triangle is used.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.inverse_sqrt import EIG_MIN, POLES, SHIFTS, WEIGHTS
from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.simd import (
    LANES,
    aligned_matrix,
    fma,
    fnma,
    load,
    minimum,
    round_up,
    splat,
    sqrt,
    store,
    transpose,
    where_greater,
)
from phenotaste.core.kernels.tridiagonal import NEGLIGIBLE_NORM
from phenotaste.core.records import Array


class BatchedInvSqrtScratch(NamedTuple):
    """Scratch for eight inverse square roots of up to R × R."""

    C: Array  # the matrices, overwritten
    inv_sqrt: Array
    work: Array
    vectors: Array  # row k: the v of reflection k
    tau: Array
    diagonal: Array
    off_diagonal: Array
    updates: Array
    eig_max: Array  # upper bounds of the eigenvalues
    min_pivots: Array  # one row per number of poles: positive where it suffices
    shifts: Array
    weights: Array
    ratios: Array  # of two poles, interleaved
    diagonals: Array
    valid: Array  # one flag per lane: the result exists


def new_batched_inv_sqrt_scratch(R: int) -> BatchedInvSqrtScratch:
    side = round_up(R)
    square, row = side * side, side
    return BatchedInvSqrtScratch(
        aligned_matrix(square, LANES),
        aligned_matrix(square, LANES),
        aligned_matrix(square, LANES),
        aligned_matrix(square, LANES),
        aligned_matrix(row, LANES),
        aligned_matrix(row, LANES),
        aligned_matrix(row, LANES),
        aligned_matrix(row, LANES),
        aligned_matrix(1, LANES),
        aligned_matrix(len(POLES), LANES),
        aligned_matrix(max(POLES), LANES),
        aligned_matrix(max(POLES), LANES),
        aligned_matrix(2 * row, LANES),
        aligned_matrix(2 * row, LANES),
        np.zeros(LANES, np.bool_),
    )


@part(inline=True)
def pack_lanes(flat: Array, first: int, last: int, out: Array) -> None:
    """Columns first..last of eight rows, in multiples of 8, into lanes."""
    for j in range(first, last, LANES):
        transpose(flat, (0, j), out, (j, 0))


@part(inline=True)
def unpack_lanes(lanes: Array, first: int, last: int, flat: Array) -> None:
    """The inverse of `pack_lanes`."""
    for j in range(first, last, LANES):
        transpose(lanes, (j, 0), flat, (0, j))


@part(inline=True)
def mirror(A: Array, n: int, width: int) -> None:
    """The upper triangle from the lower one."""
    for i in range(n):
        for j in range(i):
            store(A, (j * width + i, 0), load(A, (i * width + j, 0)))


@part
def congruent(S: Array, X: Array, n: int, width: int, upper: bool, work: Array, out: Array) -> None:
    """out = S X Sᵀ for packed symmetric X and one zero-padded triangular S for all lanes."""
    for i in range(n):
        for j in range(0, n, 4):
            first, last = (j, n) if upper else (0, min(j + 4, n))
            s0 = splat(0.0)
            s1, s2, s3 = s0, s0, s0
            for k in range(first, last):
                x = load(X, (i * width + k if k <= i else k * width + i, 0))
                s0, s1 = fma(x, splat(S[j, k]), s0), fma(x, splat(S[j + 1, k]), s1)
                s2, s3 = fma(x, splat(S[j + 2, k]), s2), fma(x, splat(S[j + 3, k]), s3)
            store(work, (i * width + j, 0), s0)
            store(work, (i * width + j + 1, 0), s1)
            store(work, (i * width + j + 2, 0), s2)
            store(work, (i * width + j + 3, 0), s3)
    for i in range(0, n, 4):
        first, last = (i, n) if upper else (0, min(i + 4, n))
        for j in range(min(i + 4, n)):
            s0 = splat(0.0)
            s1, s2, s3 = s0, s0, s0
            for k in range(first, last):
                x = load(work, (k * width + j, 0))
                s0, s1 = fma(x, splat(S[i, k]), s0), fma(x, splat(S[i + 1, k]), s1)
                s2, s3 = fma(x, splat(S[i + 2, k]), s2), fma(x, splat(S[i + 3, k]), s3)
            store(out, (i * width + j, 0), s0)
            store(out, ((i + 1) * width + j, 0), s1)
            store(out, ((i + 2) * width + j, 0), s2)
            store(out, ((i + 3) * width + j, 0), s3)


@part
def inverse_sqrt_lanes(n: int, width: int, floor: float, scratch: BatchedInvSqrtScratch) -> None:
    """scratch.inv_sqrt = C^(-1/2) in every lane flagged in `scratch.valid`; for the conditions see `inverse_sqrt`."""
    tridiagonalise(n, width, scratch)
    gershgorin_bound(n, scratch)
    count = choose_poles(n, floor, scratch)
    for i in range(n):
        for j in range(i + 1):
            store(scratch.inv_sqrt, (i * width + j, 0), splat(0.0))
    for p in range(0, count, 2):
        two_resolvents(n, p, scratch)
        add_resolvents(n, width, scratch)
    apply_reflections(n, width, scratch)


@part(inline=True)
def symmetric_product(
    A: Array, n: int, width: int, first: int, v: Array, at: int, updates: Array, rows: int
) -> None:
    """updates_i = Σ_j A_ij v_j over j ≥ `first`, for rows i ≥ `rows`; v starts at row `at` of its array."""
    for i in range(rows, n):
        x, y = splat(0.0), splat(0.0)
        for j in range(first, i + 1):
            x = fma(load(A, (i * width + j, 0)), load(v, (at + j, 0)), x)
        for j in range(max(first, i + 1), n):
            y = fma(load(A, (j * width + i, 0)), load(v, (at + j, 0)), y)
        store(updates, (i, 0), x + y)


@part(inline=True)
def tridiagonalise(n: int, width: int, scratch: BatchedInvSqrtScratch) -> None:
    """Householder's reduction: diagonal, off-diagonal and reflections as in `tridiagonal`."""
    A, V, updates = scratch.C, scratch.vectors, scratch.updates
    zero = splat(0.0)
    for k in range(n - 2):
        square = zero
        for i in range(k + 1, n):
            x = load(A, (i * width + k, 0))
            store(V, (k * width + i, 0), x)
            square = fma(x, x, square)
        norm, head = sqrt(square), load(A, ((k + 1) * width + k, 0))
        alpha = where_greater(head, zero, zero - norm, norm)
        negligible = splat(NEGLIGIBLE_NORM)
        size = where_greater(head, zero, head, zero - head)
        tau = where_greater(negligible, norm, zero, splat(1.0) / (norm * (norm + size)))
        store(scratch.diagonal, (k, 0), load(A, (k * width + k, 0)))
        store(scratch.off_diagonal, (k, 0), where_greater(negligible, norm, head, alpha))
        store(scratch.tau, (k, 0), tau)
        store(V, (k * width + k + 1, 0), head - alpha)
        reflect(n, width, k, k + 1, A, V, tau, updates)
    for k in range(max(n - 2, 0), n):
        store(scratch.diagonal, (k, 0), load(A, (k * width + k, 0)))
    if n > 1:
        store(scratch.off_diagonal, (n - 2, 0), load(A, ((n - 1) * width + n - 2, 0)))


@part(inline=True)
def reflect(n, width, k, rows, A, V, tau, updates):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """A ← (I − τ v vᵀ) A (I − τ v vᵀ) for the v of reflection k, where rows of A before `rows` are not needed."""
    at = k * width
    symmetric_product(A, n, width, k + 1, V, at, updates, rows)
    along = splat(0.0)
    for i in range(k + 1, n):
        along = fma(load(updates, (i, 0)), load(V, (at + i, 0)), along)
    half = splat(-0.5) * tau * tau * along
    for i in range(rows, n):
        move = tau * load(updates, (i, 0))
        if i > k:
            move = fma(half, load(V, (at + i, 0)), move)
        store(updates, (i, 0), move)
    for i in range(k + 1, n):
        left, right = load(V, (at + i, 0)), load(updates, (i, 0))
        for j in range(rows, k + 1):
            entry = load(A, (i * width + j, 0))
            store(A, (i * width + j, 0), fnma(left, load(updates, (j, 0)), entry))
        for j in range(k + 1, i + 1):
            entry = fnma(left, load(updates, (j, 0)), load(A, (i * width + j, 0)))
            store(A, (i * width + j, 0), fnma(right, load(V, (at + j, 0)), entry))


@part(inline=True)
def apply_reflections(n: int, width: int, scratch: BatchedInvSqrtScratch) -> None:
    """P f(T) Pᵀ, the last reflection first."""
    for k in range(n - 3, -1, -1):
        reflect(n, width, k, 0, scratch.inv_sqrt, scratch.vectors, load(scratch.tau, (k, 0)), scratch.updates)


@part(inline=True)
def gershgorin_bound(n: int, scratch: BatchedInvSqrtScratch) -> None:
    """An upper bound of the eigenvalues (Gershgorin)."""
    zero = splat(0.0)
    top, left = load(scratch.diagonal, (0, 0)), zero
    for i in range(n):
        right = zero
        if i < n - 1:
            e = load(scratch.off_diagonal, (i, 0))
            right = where_greater(e, zero, e, zero - e)
        bound = load(scratch.diagonal, (i, 0)) + left + right
        top = where_greater(bound, top, bound, top)
        left = right
    store(scratch.eig_max, (0, 0), top)


@part(inline=True)
def choose_poles(n: int, floor: float, scratch: BatchedInvSqrtScratch) -> int:
    """Shifts and weights for every lane, from the first table whose interval contains its eigenvalues.

    Returns the largest number of poles in any lane; the other lanes get zero weights, which change no bit.
    """
    d, e, top = scratch.diagonal, scratch.off_diagonal, load(scratch.eig_max, (0, 0))
    e0, e1, e2, e3 = (
        top * splat(EIG_MIN[0]),
        top * splat(EIG_MIN[1]),
        top * splat(EIG_MIN[2]),
        top * splat(EIG_MIN[3]),
    )
    last = load(d, (n - 1, 0))
    p0, p1, p2, p3 = last - e0, last - e1, last - e2, last - e3
    l0, l1, l2, l3 = p0, p1, p2, p3
    for i in range(n - 2, -1, -1):
        x, y = load(d, (i, 0)), load(e, (i, 0))
        y = y * y
        p0, p1, p2, p3 = x - e0 - y / p0, x - e1 - y / p1, x - e2 - y / p2, x - e3 - y / p3
        l0, l1, l2, l3 = minimum(l0, p0), minimum(l1, p1), minimum(l2, p2), minimum(l3, p3)
    store(scratch.min_pivots, (0, 0), l0)
    store(scratch.min_pivots, (1, 0), l1)
    store(scratch.min_pivots, (2, 0), l2)
    store(scratch.min_pivots, (3, 0), l3)
    count = 0
    for s in range(LANES):
        table, limit = -1, scratch.eig_max[0, s]
        for t in range(len(POLES)):
            if scratch.min_pivots[t, s] > 0.0 and limit * EIG_MIN[t] >= floor:
                table = t
                break
        scratch.valid[s] = table >= 0
        if table >= 0:
            count = max(count, POLES[table])
        scale = np.sqrt(limit) if table >= 0 else 0.0
        for p in range(max(POLES)):
            scratch.shifts[p, s] = limit * SHIFTS[table, p] if table >= 0 else 0.0
            scratch.weights[p, s] = scale * WEIGHTS[table, p] if table >= 0 else 0.0
    return count


@part(inline=True)
def two_resolvents(n: int, p: int, scratch: BatchedInvSqrtScratch) -> None:
    """Diagonals and ratios of w (T + s)⁻¹ for poles p and p + 1, as in `inverse_sqrt.resolvents`."""
    d, e, ratios, diagonals = scratch.diagonal, scratch.off_diagonal, scratch.ratios, scratch.diagonals
    one, zero = splat(1.0), splat(0.0)
    s1, s2 = load(scratch.shifts, (p, 0)), load(scratch.shifts, (p + 1, 0))
    w1, w2 = load(scratch.weights, (p, 0)), load(scratch.weights, (p + 1, 0))
    x = load(d, (n - 1, 0))
    i1, i2 = one / (x + s1), one / (x + s2)
    for i in range(n - 2, -1, -1):
        x, y = load(d, (i, 0)), load(e, (i, 0))
        r1, r2 = (zero - y) * i1, (zero - y) * i2
        store(ratios, (2 * i + 2, 0), r1)
        store(ratios, (2 * i + 3, 0), r2)
        store(diagonals, (2 * i + 2, 0), i1)
        store(diagonals, (2 * i + 3, 0), i2)
        i1, i2 = one / fma(y, r1, x + s1), one / fma(y, r2, x + s2)
    g1, g2 = w1 * i1, w2 * i2
    store(diagonals, (0, 0), g1)
    store(diagonals, (1, 0), g2)
    for i in range(1, n):
        r1, r2 = load(ratios, (2 * i, 0)), load(ratios, (2 * i + 1, 0))
        g1 = fma(r1 * r1, g1, w1 * load(diagonals, (2 * i, 0)))
        g2 = fma(r2 * r2, g2, w2 * load(diagonals, (2 * i + 1, 0)))
        store(diagonals, (2 * i, 0), g1)
        store(diagonals, (2 * i + 1, 0), g2)


@part(inline=True)
def add_resolvents(n: int, width: int, scratch: BatchedInvSqrtScratch) -> None:
    """Add both resolvents to `scratch.inv_sqrt`."""
    F, ratios, diagonals = scratch.inv_sqrt, scratch.ratios, scratch.diagonals
    for j in range(n):
        c1, c2 = load(diagonals, (2 * j, 0)), load(diagonals, (2 * j + 1, 0))
        store(F, (j * width + j, 0), load(F, (j * width + j, 0)) + (c1 + c2))
        for i in range(j + 1, n):
            c1, c2 = c1 * load(ratios, (2 * i, 0)), c2 * load(ratios, (2 * i + 1, 0))
            store(F, (i * width + j, 0), load(F, (i * width + j, 0)) + (c1 + c2))
