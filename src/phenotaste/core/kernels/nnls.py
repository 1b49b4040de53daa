"""Non-negative least squares from a Gram matrix: minimise ½ xᵀGx − bᵀx over x ≥ 0.

`pivot` is block principal pivoting (Kim & Park 2011), exact; `descend` is coordinate descent on the kept
gradient. Both work in place.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from phenotaste.core.kernels.simd import LANES, column, fma, load, matrix, splat, store, total, whole
from phenotaste.core.records import ALLOCATING, KERNEL, VECTOR, Array

FULL_EXCHANGES = 3  # how many block exchanges may fail to help before single ones take over
DEPENDENT = 1e-13  # a pivot this small, relative to its diagonal, marks a linearly dependent column
TINY = 1e-150  # a coordinate with a smaller diagonal has nothing to say, and dividing by it could overflow
ROUNDING = (
    1e-12  # the share of the terms a number was summed from, or of the largest beside it, that is rounding
)


@njit(cache=True, nogil=True, fastmath=VECTOR)
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
        if rest > max(DEPENDENT * G[r, r], TINY):
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


class Solve(NamedTuple):
    """Room for one exact solution in up to R unknowns."""

    rows: Array  # R × (R + 1): the equations of the passive set, in upper triangular form once eliminated
    found: Array  # R: what is solved already
    inverse: Array  # R: 1 / pivot, or zero for a dependent column
    kept: Array  # R: which unknowns are in the passive set


def new_solve(R: int) -> Solve:
    return Solve(matrix(R, R + 1), column(R + 1), column(R), np.zeros(R, np.int64))


@njit(**KERNEL)
def solve_chosen(G: Array, b: Array, passive: Array, x: Array, room: Solve) -> None:
    """What `solve_passive` does, by elimination on whole rows: some five times as fast."""
    A, kept, inverse, found = room.rows, room.kept, room.inverse, room.found
    m = 0
    for r in range(b.size):
        x[r] = 0.0
        if passive[r]:
            kept[m] = r
            m += 1
    width = whole(m + 1)
    for i in range(m):
        r = kept[i]
        for j in range(i // LANES * LANES, i):
            A[i, j] = 0.0  # met by zeros only, so it must be a number
        for j in range(i, m):
            A[i, j] = G[r, kept[j]]
        A[i, m] = b[r]
        for j in range(m + 1, width):
            A[i, j] = 0.0
    for k in range(m):
        pivot = A[k, k]
        inverse[k] = 1.0 / pivot if pivot > max(DEPENDENT * G[kept[k], kept[k]], TINY) else 0.0
        if inverse[k] != 0.0:
            eliminate(A, k, m, width, inverse[k])
    for j in range(0, width, LANES):
        store(found, j, splat(0.0))
    for k in range(m - 1, -1, -1):
        known = splat(0.0)
        for j in range((k + 1) // LANES * LANES, width, LANES):
            known = fma(load(A, (k, j)), load(found, j), known)
        found[k] = (A[k, m] - total(known)) * inverse[k]
        x[kept[k]] = found[k]


@njit(inline="always")
def eliminate(A: Array, k: int, m: int, width: int, inverse: float) -> None:
    """Take row k off the rows below it, right of their diagonals, two at a time."""
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


@njit(cache=True, nogil=True, fastmath=VECTOR)
def slope(G: Array, b: Array, x: Array, r: int) -> float:
    """Gradient of coordinate r, with what is rounding noise set to zero."""
    value = -b[r]
    size = abs(b[r])
    for s in range(b.size):
        term = G[r, s] * x[s]
        value += term
        size += abs(term)
    return value if abs(value) > ROUNDING * size else 0.0


@njit(inline="always")
def wants_in(G: Array, b: Array, x: Array, r: int) -> bool:
    return G[r, r] > TINY and slope(G, b, x, r) < 0.0


@njit(**KERNEL)
def noise_level(G: Array, x: Array) -> float:
    """Below this, x_r² G_rr is rounding noise: coordinates are compared by what they contribute."""
    top = 0.0
    for r in range(x.size):
        top = max(top, x[r] * x[r] * G[r, r])
    return ROUNDING * ROUNDING * top


@njit(**KERNEL)
def pivot(G: Array, b: Array, x: Array, passive: Array, room: Solve) -> None:
    """Block principal pivoting, from the passive set given, which is overwritten."""
    R = b.size
    fewest = R + 1
    patience = FULL_EXCHANGES
    for _ in range(5 * R + 20):
        solve_chosen(G, b, passive, x, room)
        noise = noise_level(G, x)
        wrong = 0
        last = -1
        for r in range(R):
            if (x[r] < 0.0 and x[r] * x[r] * G[r, r] > noise) if passive[r] else wants_in(G, b, x, r):
                wrong += 1
                last = r
        if wrong == 0:
            break
        if wrong < fewest:
            fewest = wrong
            patience = FULL_EXCHANGES
        else:
            patience -= 1
        if patience < 0:  # the blocks may be cycling: Murty's rule moves the last wrong one only
            passive[last] = not passive[last]
            continue
        for r in range(R):
            if passive[r]:
                passive[r] = x[r] >= 0.0 or x[r] * x[r] * G[r, r] <= noise
            else:
                passive[r] = wants_in(G, b, x, r)
    else:
        walk_at_last(G, b, x, passive, room.kept)
    noise = noise_level(G, x)
    for r in range(R):  # what is left of a cancellation is no score: left in, it would be blown up later
        if not (x[r] > 0.0 and x[r] * x[r] * G[r, r] > noise):
            x[r] = 0.0


@njit(**ALLOCATING)
def walk_at_last(G: Array, b: Array, x: Array, passive: Array, kept: Array) -> None:
    """`walk`, with the room it needs: it is so rare that none is kept."""
    walk(G, b, x, passive, np.empty((b.size, b.size)), kept)


@njit(cache=True, nogil=True)
def walk(G: Array, b: Array, x: Array, passive: Array, L: Array, kept: Array) -> None:
    """Lawson & Hanson's active-set method: slower than pivoting, but each step goes down, so it ends."""
    R = b.size
    trial = np.empty(R)
    passive[:] = False
    x[:] = 0.0
    for _ in range(3 * R):
        steepest = 0.0
        enter = -1
        for r in range(R):
            if not passive[r] and G[r, r] > TINY:
                gain = -slope(G, b, x, r) / np.sqrt(G[r, r])
                if gain > steepest:
                    steepest = gain
                    enter = r
        if enter < 0:
            return
        passive[enter] = True
        for _ in range(R):  # each round but the last takes a coordinate out again
            solve_passive(G, b, passive, trial, L, kept)
            step = 1.0
            for r in range(R):
                if passive[r] and trial[r] <= 0.0 and x[r] > trial[r]:
                    step = min(step, x[r] / (x[r] - trial[r]))
            for r in range(R):
                x[r] += step * (trial[r] - x[r])
                if passive[r] and trial[r] <= 0.0 and x[r] * x[r] * G[r, r] <= noise_level(G, x):
                    passive[r] = False
                    x[r] = 0.0
            if step == 1.0:
                break


@njit(**KERNEL)
def descend(G: Array, gradient: Array, x: Array, sweeps: int) -> float:
    """Coordinate descent, x and its gradient G x − b updated in place; the last sweep's decrease (twice).

    G and the gradient are padded to whole vectors, x is not.
    """
    gain = 0.0
    for _ in range(sweeps):
        gain = 0.0
        for r in range(x.size):
            if G[r, r] <= TINY:
                continue
            move = max(-x[r], -gradient[r] * (1.0 / G[r, r]))  # the division need not wait for the gradient
            if move != 0.0:
                x[r] += move
                gain += move * move * G[r, r]
                f = splat(move)
                for j in range(0, gradient.size, LANES):
                    store(gradient, j, fma(f, load(G, (r, j)), load(gradient, j)))
    return gain


def rows_by_pivoting(G: Array, B: Array, X: Array) -> None:
    """Solve every row of X exactly: minimise over X ≥ 0 with Gram G and right-hand sides B."""
    pivot_rows(G, B, X, np.empty(len(G), np.bool_), new_solve(len(G)))


@njit(cache=True, nogil=True)
def pivot_rows(G: Array, B: Array, X: Array, passive: Array, room: Solve) -> None:
    n, R = X.shape
    for i in range(n):
        for r in range(R):
            passive[r] = X[i, r] > 0.0
        pivot(G, B[i], X[i], passive, room)


def rows_by_descent(G: Array, B: Array, X: Array, sweeps: int, tol: float) -> None:
    """Improve every row of X by coordinate descent, until a sweep gains less than tol² of the row's size."""
    padded = matrix(*G.shape)
    padded[: len(G), : len(G)] = G
    descend_rows(padded, B, X, sweeps, tol, column(len(G)))


@njit(cache=True, nogil=True)
def descend_rows(G: Array, B: Array, X: Array, sweeps: int, tol: float, gradient: Array) -> None:
    n, R = X.shape
    for i in range(n):
        for r in range(R):
            value = -B[i, r]
            for s in range(R):
                value += G[r, s] * X[i, s]
            gradient[r] = value
        for _ in range(sweeps):
            gain = descend(G, gradient, X[i], 1)
            size = 0.0
            for r in range(R):
                size += G[r, r] * X[i, r] * X[i, r]
            if gain <= tol * tol * size:
                break
