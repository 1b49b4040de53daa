"""Products of small padded matrices, four rows by two vectors or eight by one at a time: the sums stay in registers.

For the sizes met here that is as fast as the processor multiplies, and there is no call to pay for as with BLAS.
"""

from numba import njit

from phenotaste.core.kernels.simd import LANES, fma, load, splat, spread_from, store
from phenotaste.core.records import KERNEL, Array

TALL = 4  # rows of a tile


@njit(**KERNEL)
def multiply(A: Array, B: Array, rows: int, depth: int, out: Array) -> None:
    """out = A B for the first rows of A and the first `depth` of its columns; up to seven more rows are written."""
    tiles(A, A.shape[1], 1, B, rows, depth, out, False)


@njit(**KERNEL)
def multiply_transposed(A: Array, B: Array, rows: int, depth: int, out: Array) -> None:
    """out = AᵀB for the first columns of A and the first `depth` of its rows."""
    tiles(A, 1, A.shape[1], B, rows, depth, out, False)


@njit(**KERNEL)
def add_transposed(A: Array, B: Array, rows: int, depth: int, out: Array) -> None:
    """out += AᵀB."""
    tiles(A, 1, A.shape[1], B, rows, depth, out, True)


@njit(inline="always")
def tiles(A: Array, down: int, along: int, B: Array, rows: int, depth: int, out: Array, more: bool) -> None:
    """All tiles of the result; number i·down + k·along of A is what row i takes of row k of B."""
    width = out.shape[1]
    for j in range(0, width - LANES, 2 * LANES):
        for i in range(0, rows, TALL):
            wide_tile(A, i * down, down, along, B, j, depth, out, i, more)
    if width % (2 * LANES):
        for i in range(0, rows, 2 * TALL):
            narrow_tile(A, i * down, down, along, B, width - LANES, depth, out, i, more)


@njit(inline="always")
def wide_tile(
    A: Array, at: int, down: int, along: int, B: Array, j: int, depth: int, out: Array, i: int, more: bool
) -> None:
    """Rows i..i+3 and columns j..j+15 of the result."""
    s0 = splat(0.0)
    s1, s2, s3, t0, t1, t2, t3 = s0, s0, s0, s0, s0, s0, s0
    for k in range(depth):
        b, c = load(B, (k, j)), load(B, (k, j + LANES))
        x = spread_from(A, at)
        s0, t0 = fma(x, b, s0), fma(x, c, t0)
        x = spread_from(A, at + down)
        s1, t1 = fma(x, b, s1), fma(x, c, t1)
        x = spread_from(A, at + 2 * down)
        s2, t2 = fma(x, b, s2), fma(x, c, t2)
        x = spread_from(A, at + 3 * down)
        s3, t3 = fma(x, b, s3), fma(x, c, t3)
        at += along
    put(out, i, j, s0, s1, s2, s3, more)
    put(out, i, j + LANES, t0, t1, t2, t3, more)


@njit(inline="always")
def narrow_tile(
    A: Array, at: int, down: int, along: int, B: Array, j: int, depth: int, out: Array, i: int, more: bool
) -> None:
    """Rows i..i+7 and columns j..j+7 of the result."""
    s0 = splat(0.0)
    s1, s2, s3, t0, t1, t2, t3 = s0, s0, s0, s0, s0, s0, s0
    for k in range(depth):
        b = load(B, (k, j))
        s0, s1 = fma(spread_from(A, at), b, s0), fma(spread_from(A, at + down), b, s1)
        s2, s3 = fma(spread_from(A, at + 2 * down), b, s2), fma(spread_from(A, at + 3 * down), b, s3)
        t0, t1 = fma(spread_from(A, at + 4 * down), b, t0), fma(spread_from(A, at + 5 * down), b, t1)
        t2, t3 = fma(spread_from(A, at + 6 * down), b, t2), fma(spread_from(A, at + 7 * down), b, t3)
        at += along
    put(out, i, j, s0, s1, s2, s3, more)
    put(out, i + TALL, j, t0, t1, t2, t3, more)


@njit(inline="always")
def put(out, i, j, s0, s1, s2, s3, more):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Write, or add, one vector in each of four rows."""
    if more:
        s0, s1 = s0 + load(out, (i, j)), s1 + load(out, (i + 1, j))
        s2, s3 = s2 + load(out, (i + 2, j)), s3 + load(out, (i + 3, j))
    store(out, (i, j), s0)
    store(out, (i + 1, j), s1)
    store(out, (i + 2, j), s2)
    store(out, (i + 3, j), s3)
