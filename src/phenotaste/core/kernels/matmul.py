"""Products of small padded matrices, in tiles of four rows by two vectors or eight by one that stay in registers.

For the sizes used here that reaches the processor's peak, without the overhead of a BLAS call.
"""

from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.simd import LANES, broadcast_element, fma, load, splat, store
from phenotaste.core.records import Array

TILE_ROWS = 4


@part
def multiply(A: Array, B: Array, rows: int, depth: int, out: Array) -> None:
    """out = A B for the first rows of A and the first `depth` of its columns; up to seven more rows are written."""
    multiply_tiles(A, False, B, rows, depth, out, 0.0)


@part
def multiply_transposed(A: Array, B: Array, rows: int, depth: int, out: Array) -> None:
    """out = AᵀB for the first columns of A and the first `depth` of its rows."""
    multiply_tiles(A, True, B, rows, depth, out, 0.0)


@part
def add_transposed(A: Array, B: Array, rows: int, depth: int, factor: float, out: Array) -> None:
    """out += factor · AᵀB."""
    multiply_tiles(A, True, B, rows, depth, out, factor)


@part(inline=True)
def multiply_tiles(
    A: Array, transposed: bool, B: Array, rows: int, depth: int, out: Array, factor: float
) -> None:
    """All tiles of A B, or of AᵀB if `transposed`; with a factor other than zero they are multiplied and added."""
    width = out.shape[1]
    for j in range(0, width - LANES, 2 * LANES):
        for i in range(0, rows, TILE_ROWS):
            wide_tile(A, transposed, B, i, j, depth, out, factor)
    if width % (2 * LANES):
        for i in range(0, rows, 2 * TILE_ROWS):
            narrow_tile(A, transposed, B, i, width - LANES, depth, out, factor)


@part(inline=True)
def wide_tile(
    A: Array, transposed: bool, B: Array, i: int, j: int, depth: int, out: Array, factor: float
) -> None:
    """Rows i..i+3 and columns j..j+15 of the result."""
    row, inner = (1, A.shape[1]) if transposed else (A.shape[1], 1)  # strides of A
    at = i * row
    s0 = splat(0.0)
    s1, s2, s3, t0, t1, t2, t3 = s0, s0, s0, s0, s0, s0, s0
    for k in range(depth):
        b, c = load(B, (k, j)), load(B, (k, j + LANES))
        x = broadcast_element(A, at)
        s0, t0 = fma(x, b, s0), fma(x, c, t0)
        x = broadcast_element(A, at + row)
        s1, t1 = fma(x, b, s1), fma(x, c, t1)
        x = broadcast_element(A, at + 2 * row)
        s2, t2 = fma(x, b, s2), fma(x, c, t2)
        x = broadcast_element(A, at + 3 * row)
        s3, t3 = fma(x, b, s3), fma(x, c, t3)
        at += inner
    store_rows(out, i, j, s0, s1, s2, s3, factor)
    store_rows(out, i, j + LANES, t0, t1, t2, t3, factor)


@part(inline=True)
def narrow_tile(
    A: Array, transposed: bool, B: Array, i: int, j: int, depth: int, out: Array, factor: float
) -> None:
    """Rows i..i+7 and columns j..j+7 of the result."""
    row, inner = (1, A.shape[1]) if transposed else (A.shape[1], 1)
    at = i * row
    s0 = splat(0.0)
    s1, s2, s3, t0, t1, t2, t3 = s0, s0, s0, s0, s0, s0, s0
    for k in range(depth):
        b = load(B, (k, j))
        s0 = fma(broadcast_element(A, at), b, s0)
        s1 = fma(broadcast_element(A, at + row), b, s1)
        s2 = fma(broadcast_element(A, at + 2 * row), b, s2)
        s3 = fma(broadcast_element(A, at + 3 * row), b, s3)
        t0 = fma(broadcast_element(A, at + 4 * row), b, t0)
        t1 = fma(broadcast_element(A, at + 5 * row), b, t1)
        t2 = fma(broadcast_element(A, at + 6 * row), b, t2)
        t3 = fma(broadcast_element(A, at + 7 * row), b, t3)
        at += inner
    store_rows(out, i, j, s0, s1, s2, s3, factor)
    store_rows(out, i + TILE_ROWS, j, t0, t1, t2, t3, factor)


@part(inline=True)
def store_rows(out, i, j, s0, s1, s2, s3, factor):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Write one vector in each of four rows, or add it multiplied by a factor other than zero."""
    if factor != 0.0:
        f = splat(factor)
        s0, s1 = fma(f, s0, load(out, (i, j))), fma(f, s1, load(out, (i + 1, j)))
        s2, s3 = fma(f, s2, load(out, (i + 2, j))), fma(f, s3, load(out, (i + 3, j)))
    store(out, (i, j), s0)
    store(out, (i + 1, j), s1)
    store(out, (i + 2, j), s2)
    store(out, (i + 3, j), s3)
