"""NNLS for the scores of eight patients at once, one per SIMD lane: `patient.solve_scores`, batched.

A few sweeps of coordinate descent predict the positive scores; those are solved for exactly, and wrong ones are
exchanged, as in `nnls.bpp`. A lane that still has wrong ones after `MAX_EXCHANGES` is solved by `nnls.bpp` itself.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.nnls import DEPENDENT_RTOL, ROUNDING_RTOL, TINY, NNLSScratch, bpp
from phenotaste.core.kernels.simd import (
    LANES,
    aligned_matrix,
    fma,
    fnma,
    load,
    round_up,
    splat,
    store,
    where_greater,
)
from phenotaste.core.records import Array

BATCH_WARM_START_SWEEPS = 3  # of coordinate descent, in every lane
MAX_EXCHANGES = 6  # block exchanges before a lane is solved separately


class BatchedNNLSScratch(NamedTuple):
    """Scratch for eight problems in up to R unknowns."""

    gram: Array  # R × R
    b: Array
    x: Array
    passive: Array  # 1 in the passive set, otherwise 0
    L: Array  # R × R, lower triangular
    row: Array  # the row of L D in progress
    inverse: Array
    wrong: Array  # number of coordinates in the wrong set
    lane_gram: Array  # the Gram matrix of one lane, R × R


def new_batched_nnls_scratch(R: int) -> BatchedNNLSScratch:
    side = round_up(R)
    square = side * side
    return BatchedNNLSScratch(
        aligned_matrix(square, LANES),
        aligned_matrix(side, LANES),
        aligned_matrix(side, LANES),
        aligned_matrix(side, LANES),
        aligned_matrix(square, LANES),
        aligned_matrix(side, LANES),
        aligned_matrix(side, LANES),
        aligned_matrix(1, LANES),
        aligned_matrix(R, R),
    )


@part
def solve_lanes(
    G: Array,
    VV: Array,
    FF: Array,
    n: int,
    width: int,
    scratch: BatchedNNLSScratch,
    passive: Array,
    lane_scratch: NNLSScratch,
) -> None:
    """NNLS with Gram matrices G∘VV + FF and right-hand sides `scratch.b` into `scratch.x`.

    `passive` and `lane_scratch` serve lanes that are solved separately.
    """
    gram, zero, one = scratch.gram, splat(0.0), splat(1.0)
    for i in range(n):
        for j in range(i + 1):
            entry = fma(load(G, (i * width + j, 0)), splat(VV[i, j]), splat(FF[i, j]))
            store(gram, (i * width + j, 0), entry)
            store(gram, (j * width + i, 0), entry)
    cd_warm_start(n, width, scratch)
    for i in range(n):
        store(scratch.passive, (i, 0), where_greater(load(scratch.x, (i, 0)), zero, one, zero))
    for _ in range(MAX_EXCHANGES):
        ldl_solve(n, width, scratch)
        noise = rounding_level(n, width, scratch)
        exchange(n, width, noise, scratch)
        any_wrong = False
        for s in range(LANES):
            any_wrong = any_wrong or scratch.wrong[0, s] > 0.0
        if not any_wrong:
            break
    noise = rounding_level(n, width, scratch)
    for i in range(n):  # as in `bpp`: residues of cancellation are set to zero
        x = load(scratch.x, (i, 0))
        part = x * x * load(gram, (i * width + i, 0))
        store(scratch.x, (i, 0), where_greater(part, noise, where_greater(x, zero, x, zero), zero))
    for s in range(LANES):
        if scratch.wrong[0, s] > 0.0:
            solve_lane(s, n, width, scratch, passive, lane_scratch)


@part(allocates=True)
def solve_lane(s, n, width, scratch, passive, lane_scratch):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """One lane's problem by `bpp`, from its last passive set."""
    b, x = np.empty(n), np.empty(n)
    for i in range(n):
        b[i], passive[i] = scratch.b[i, s], scratch.passive[i, s] > 0.0
        for j in range(n):
            scratch.lane_gram[i, j] = scratch.gram[i * width + j, s]
    bpp(scratch.lane_gram, b, x, passive, lane_scratch)
    for i in range(n):
        scratch.x[i, s] = x[i]


@part(inline=True)
def cd_warm_start(n: int, width: int, scratch: BatchedNNLSScratch) -> None:
    """Coordinate descent from zero."""
    gram, zero = scratch.gram, splat(0.0)
    for i in range(n):
        diagonal = load(gram, (i * width + i, 0))
        store(scratch.inverse, (i, 0), where_greater(diagonal, splat(TINY), splat(1.0) / diagonal, zero))
        store(scratch.x, (i, 0), zero)
    for sweep in range(BATCH_WARM_START_SWEEPS):
        for i in range(n):
            down, rest = load(scratch.b, (i, 0)), zero
            for j in range(i + 1, n if sweep else i + 1):
                down = fnma(load(gram, (i * width + j, 0)), load(scratch.x, (j, 0)), down)
            for j in range(i):  # the coordinate just updated comes last, to shorten the dependency chain
                rest = fnma(load(gram, (i * width + j, 0)), load(scratch.x, (j, 0)), rest)
            new = (down + rest) * load(scratch.inverse, (i, 0))
            store(scratch.x, (i, 0), where_greater(new, zero, new, zero))


@part(inline=True)
def rounding_level(n: int, width: int, scratch: BatchedNNLSScratch):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Below this, x_r² G_rr is rounding noise."""
    top = splat(0.0)
    for i in range(n):
        x = load(scratch.x, (i, 0))
        part = x * x * load(scratch.gram, (i * width + i, 0))
        top = where_greater(part, top, part, top)
    return splat(ROUNDING_RTOL * ROUNDING_RTOL) * top


@part(inline=True)
def ldl_solve(n: int, width: int, scratch: BatchedNNLSScratch) -> None:
    """x = G⁻¹b on the passive set by G = L D Lᵀ, zero elsewhere and for dependent columns."""
    gram, L, row, zero = scratch.gram, scratch.L, scratch.row, splat(0.0)
    for r in range(n):
        in_set = load(scratch.passive, (r, 0))
        diagonal = load(gram, (r * width + r, 0))
        rest, known = diagonal, in_set * load(scratch.b, (r, 0))
        for i in range(r):
            entry = in_set * load(scratch.passive, (i, 0)) * load(gram, (r * width + i, 0))
            for j in range(i):
                entry = fnma(load(L, (i * width + j, 0)), load(row, (j, 0)), entry)
            store(row, (i, 0), entry)
            factor = entry * load(scratch.inverse, (i, 0))
            store(L, (r * width + i, 0), factor)
            rest = fnma(factor, entry, rest)
            known = fnma(factor, load(scratch.x, (i, 0)), known)
        least = splat(DEPENDENT_RTOL) * diagonal
        least = where_greater(least, splat(TINY), least, splat(TINY))
        store(scratch.inverse, (r, 0), where_greater(rest, least, in_set / rest, zero))
        store(scratch.x, (r, 0), known)
    for r in range(n - 1, -1, -1):
        x = load(scratch.x, (r, 0)) * load(scratch.inverse, (r, 0))
        for i in range(r + 1, n):
            x = fnma(load(L, (i * width + r, 0)), load(scratch.x, (i, 0)), x)
        store(scratch.x, (r, 0), x)


@part(inline=True)
def exchange(n, width, noise, scratch):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Count and exchange coordinates in the wrong set: negative ones, and zeros with a negative gradient."""
    gram, zero, one = scratch.gram, splat(0.0), splat(1.0)
    wrong = zero
    for i in range(n):
        x, b = load(scratch.x, (i, 0)), load(scratch.b, (i, 0))
        value, size = zero - b, where_greater(b, zero, b, zero - b)
        for j in range(n):
            term = load(gram, (i * width + j, 0)) * load(scratch.x, (j, 0))
            value, size = value + term, size + where_greater(term, zero, term, zero - term)
        diagonal = load(gram, (i * width + i, 0))
        rises = where_greater(zero - value, splat(ROUNDING_RTOL) * size, one, zero)
        rises = where_greater(diagonal, splat(TINY), rises, zero)
        negative = where_greater(x * x * diagonal, noise, where_greater(zero, x, one, zero), zero)
        passive = load(scratch.passive, (i, 0))
        out = where_greater(passive, zero, negative, rises)
        wrong = wrong + out
        store(scratch.passive, (i, 0), where_greater(out, zero, one - passive, passive))
    store(scratch.wrong, (0, 0), wrong)
