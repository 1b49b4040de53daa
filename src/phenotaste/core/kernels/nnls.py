"""Non-negative least squares from a Gram matrix: minimise ½ xᵀGx − bᵀx over x ≥ 0.

`bpp` is block principal pivoting (Kim & Park 2011), exact; `cd_sweeps` is coordinate descent with an updated gradient.
Both work in place.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.jit import FASTMATH, kernel, part
from phenotaste.core.kernels.simd import (
    LANES,
    aligned_matrix,
    aligned_vector,
    fma,
    lane_sum,
    load,
    round_up,
    splat,
    store,
)
from phenotaste.core.records import Array

FULL_EXCHANGES = 3  # block exchanges without improvement before single exchanges take over
DEPENDENT_RTOL = 1e-13  # a pivot this small, relative to its diagonal, marks a linearly dependent column
TINY = 1e-150  # coordinates with a smaller diagonal are ignored: dividing by it could overflow
ROUNDING_RTOL = 1e-12  # of the terms of a sum, or of the largest coordinate: below this it is rounding


@part(fastmath=FASTMATH)
def solve_passive(G: Array, b: Array, passive: Array, x: Array, L: Array, kept: Array) -> None:
    """Solve G x = b on the passive set by Cholesky; the rest, and dependent columns, get x = 0.

    A dependent column may be left out because b lies in the range of G: the others fit just as well.
    """
    m = 0
    for r in range(b.size):
        x[r] = 0.0
        if not passive[r]:
            continue
        rest = G[r, r]
        for i in range(m):
            value = G[r, kept[i]]
            for j in range(i):
                value -= L[m, j] * L[i, j]
            L[m, i] = value / L[i, i]
            rest -= L[m, i] * L[m, i]
        if rest > max(DEPENDENT_RTOL * G[r, r], TINY):
            L[m, m] = np.sqrt(rest)
            kept[m] = r
            m += 1
    for i in range(m):
        value = b[kept[i]]
        for j in range(i):
            value -= L[i, j] * x[kept[j]]
        x[kept[i]] = value / L[i, i]
    for i in range(m - 1, -1, -1):
        value = x[kept[i]]
        for j in range(i + 1, m):
            value -= L[j, i] * x[kept[j]]
        x[kept[i]] = value / L[i, i]


class NNLSScratch(NamedTuple):
    """Scratch for one exact solution in up to R unknowns."""

    rows: Array  # R × (R + 1): the equations of the passive set, reduced to upper triangular form
    solution: Array  # R: back-substituted so far
    inverse: Array  # R: 1 / pivot, or zero for a dependent column
    kept: Array  # R: indices of the passive set


def new_nnls_scratch(R: int) -> NNLSScratch:
    return NNLSScratch(
        aligned_matrix(R, R + 1), aligned_vector(R + 1), aligned_vector(R), np.zeros(R, np.int64)
    )


@part
def solve_passive_simd(G: Array, b: Array, passive: Array, x: Array, scratch: NNLSScratch) -> None:
    """The same as `solve_passive`, by elimination on padded rows: about five times as fast."""
    A, kept, inverse, solution = scratch.rows, scratch.kept, scratch.inverse, scratch.solution
    m = 0
    for r in range(b.size):
        x[r] = 0.0
        if passive[r]:
            kept[m] = r
            m += 1
    width = round_up(m + 1)
    for i in range(m):
        r = kept[i]
        for j in range(i // LANES * LANES, i):
            A[i, j] = 0.0  # multiplied by zeros only, so it must not be NaN
        for j in range(i, m):
            A[i, j] = G[r, kept[j]]
        A[i, m] = b[r]
        for j in range(m + 1, width):
            A[i, j] = 0.0
    for k in range(m):
        pivot = A[k, k]
        inverse[k] = 1.0 / pivot if pivot > max(DEPENDENT_RTOL * G[kept[k], kept[k]], TINY) else 0.0
        if inverse[k] != 0.0:
            eliminate_row(A, k, m, width, inverse[k])
    for j in range(0, width, LANES):
        store(solution, j, splat(0.0))
    for k in range(m - 1, -1, -1):
        known = splat(0.0)
        for j in range((k + 1) // LANES * LANES, width, LANES):
            known = fma(load(A, (k, j)), load(solution, j), known)
        solution[k] = (A[k, m] - lane_sum(known)) * inverse[k]
        x[kept[k]] = solution[k]


@part(inline=True)
def eliminate_row(A: Array, k: int, m: int, width: int, inverse: float) -> None:
    """Eliminate with row k from the rows below it, right of their diagonals, two rows at a time."""
    i = k + 1
    while i + 1 < m:
        f, g = splat(-A[k, i] * inverse), splat(-A[k, i + 1] * inverse)
        for j in range(i // LANES * LANES, width, LANES):
            row = load(A, (k, j))
            store(A, (i, j), fma(f, row, load(A, (i, j))))
            store(A, (i + 1, j), fma(g, row, load(A, (i + 1, j))))
        i += 2
    if i < m:
        f = splat(-A[k, i] * inverse)
        for j in range(i // LANES * LANES, width, LANES):
            store(A, (i, j), fma(f, load(A, (k, j)), load(A, (i, j))))


@part(fastmath=FASTMATH)
def coordinate_gradient(G: Array, b: Array, x: Array, r: int) -> float:
    """Gradient of coordinate r, zero if it is rounding noise."""
    value = -b[r]
    size = abs(b[r])
    for s in range(b.size):
        term = G[r, s] * x[s]
        value += term
        size += abs(term)
    return value if abs(value) > ROUNDING_RTOL * size else 0.0


@part(inline=True)
def can_enter(G: Array, b: Array, x: Array, r: int) -> bool:
    """Whether the objective falls as x_r rises from zero."""
    return G[r, r] > TINY and coordinate_gradient(G, b, x, r) < 0.0


@part
def rounding_level(G: Array, x: Array) -> float:
    """Below this, x_r² G_rr is rounding noise: coordinates are compared by their contribution."""
    top = 0.0
    for r in range(x.size):
        top = max(top, x[r] * x[r] * G[r, r])
    return ROUNDING_RTOL * ROUNDING_RTOL * top


@part
def bpp(G: Array, b: Array, x: Array, passive: Array, scratch: NNLSScratch) -> None:
    """Block principal pivoting from the given passive set, which is overwritten."""
    R = b.size
    min_wrong = R + 1
    patience = FULL_EXCHANGES
    for _ in range(5 * R + 20):
        solve_passive_simd(G, b, passive, x, scratch)
        noise = rounding_level(G, x)
        wrong = 0
        last = -1
        for r in range(R):
            if (x[r] < 0.0 and x[r] * x[r] * G[r, r] > noise) if passive[r] else can_enter(G, b, x, r):
                wrong += 1
                last = r
        if wrong == 0:
            break
        if wrong < min_wrong:
            min_wrong = wrong
            patience = FULL_EXCHANGES
        else:
            patience -= 1
        if patience < 0:  # the blocks may be cycling: Murty's rule exchanges only the last wrong one
            passive[last] = not passive[last]
            continue
        for r in range(R):
            if passive[r]:
                passive[r] = x[r] >= 0.0 or x[r] * x[r] * G[r, r] <= noise
            else:
                passive[r] = can_enter(G, b, x, r)
    else:
        lawson_hanson_fallback(G, b, x, passive, scratch.kept)
    noise = rounding_level(G, x)
    for r in range(R):  # residues of cancellation are set to zero: rescaling would amplify them
        if not (x[r] > 0.0 and x[r] * x[r] * G[r, r] > noise):
            x[r] = 0.0


@part(allocates=True)
def lawson_hanson_fallback(G: Array, b: Array, x: Array, passive: Array, kept: Array) -> None:
    """`lawson_hanson` with its own scratch, allocated here because it is hardly ever needed."""
    lawson_hanson(G, b, x, passive, np.empty((b.size, b.size)), kept)


@part(allocates=True)
def lawson_hanson(G: Array, b: Array, x: Array, passive: Array, L: Array, kept: Array) -> None:
    """Lawson & Hanson's active-set method: slower than pivoting, but monotone, so it terminates."""
    R = b.size
    trial = np.empty(R)
    passive[:] = False
    x[:] = 0.0
    for _ in range(3 * R):
        steepest = 0.0
        enter = -1
        for r in range(R):
            if not passive[r] and G[r, r] > TINY:
                gain = -coordinate_gradient(G, b, x, r) / np.sqrt(G[r, r])
                if gain > steepest:
                    steepest = gain
                    enter = r
        if enter < 0:
            return
        passive[enter] = True
        for _ in range(R):  # every pass except the last removes a coordinate
            solve_passive(G, b, passive, trial, L, kept)
            step = 1.0
            for r in range(R):
                if passive[r] and trial[r] <= 0.0 and x[r] > trial[r]:
                    step = min(step, x[r] / (x[r] - trial[r]))
            for r in range(R):
                x[r] += step * (trial[r] - x[r])
                if passive[r] and trial[r] <= 0.0 and x[r] * x[r] * G[r, r] <= rounding_level(G, x):
                    passive[r] = False
                    x[r] = 0.0
            if step == 1.0:
                break


@part
def cd_sweeps(G: Array, gradient: Array, x: Array, sweeps: int) -> float:
    """Coordinate descent; x and its gradient G x − b are updated in place. Returns twice the last sweep's decrease.

    G and the gradient are zero-padded, x is not.
    """
    gain = 0.0
    for _ in range(sweeps):
        gain = 0.0
        for r in range(x.size):
            if G[r, r] <= TINY:
                continue
            move = max(-x[r], -gradient[r] * (1.0 / G[r, r]))  # a division independent of the gradient
            if move != 0.0:
                x[r] += move
                gain += move * move * G[r, r]
                f = splat(move)
                for j in range(0, gradient.size, LANES):
                    store(gradient, j, fma(f, load(G, (r, j)), load(gradient, j)))
    return gain


def solve_rows_bpp(G: Array, B: Array, X: Array) -> None:
    """Solve every row of X exactly: minimise over X ≥ 0 with Gram G and right-hand sides B."""
    bpp_rows(G, B, X, np.empty(len(G), np.bool_), new_nnls_scratch(len(G)))


@kernel
def bpp_rows(G: Array, B: Array, X: Array, passive: Array, scratch: NNLSScratch) -> None:
    n, R = X.shape
    for i in range(n):
        for r in range(R):
            passive[r] = X[i, r] > 0.0
        bpp(G, B[i], X[i], passive, scratch)


def solve_rows_cd(G: Array, B: Array, X: Array, sweeps: int, tol: float) -> None:
    """Improve every row of X by coordinate descent, until a sweep gains less than tol² of the row's size."""
    padded = aligned_matrix(*G.shape)
    padded[: len(G), : len(G)] = G
    cd_each_row(padded, B, X, sweeps, tol, aligned_vector(len(G)))


@kernel
def cd_each_row(G: Array, B: Array, X: Array, sweeps: int, tol: float, gradient: Array) -> None:
    n, R = X.shape
    for i in range(n):
        for r in range(R):
            value = -B[i, r]
            for s in range(R):
                value += G[r, s] * X[i, s]
            gradient[r] = value
        for _ in range(sweeps):
            gain = cd_sweeps(G, gradient, X[i], 1)
            size = 0.0
            for r in range(R):
                size += G[r, r] * X[i, r] * X[i, r]
            if gain <= tol * tol * size:
                break
