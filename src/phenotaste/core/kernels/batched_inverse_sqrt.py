"""C^(-1/2) of eight small matrices at once, one in every lane: `tridiagonal` and `root` turned on their side.

For matrices of 10 × 10 most of a reduction is waiting for the number before; with a patient in every lane eight wait
together. A lane depends on no other, to the bit. A matrix of lanes has a vector for each entry, `width` to a row; of
symmetric ones only the lower triangle counts.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from phenotaste.core.kernels.inverse_sqrt import LEAST, POLES, SHIFTS, WEIGHTS
from phenotaste.core.kernels.simd import (
    LANES,
    fma,
    fnma,
    load,
    matrix,
    smaller,
    splat,
    square_root,
    store,
    transpose,
    where_above,
    whole,
)
from phenotaste.core.kernels.tridiagonal import NOTHING
from phenotaste.core.records import KERNEL, Array


class Lanes(NamedTuple):
    """Room for eight inverse roots of up to R × R."""

    C: Array  # what is taken the root of, overwritten
    root: Array
    work: Array
    vectors: Array  # row k: the v of reflection k
    strength: Array  # β
    diagonal: Array
    off: Array
    moves: Array
    top: Array  # bounds of the eigenvalues from above
    checks: Array  # a row for each number of poles: positive where so many will do
    shifts: Array
    weights: Array
    ratios: Array  # of two poles, one after the other
    diagonals: Array
    found: Array  # one flag a lane: there is a root


def new_lanes(R: int) -> Lanes:
    side = whole(R)
    square, row = side * side, side
    return Lanes(
        matrix(square, LANES),
        matrix(square, LANES),
        matrix(square, LANES),
        matrix(square, LANES),
        matrix(row, LANES),
        matrix(row, LANES),
        matrix(row, LANES),
        matrix(row, LANES),
        matrix(1, LANES),
        matrix(len(POLES), LANES),
        matrix(max(POLES), LANES),
        matrix(max(POLES), LANES),
        matrix(2 * row, LANES),
        matrix(2 * row, LANES),
        np.zeros(LANES, np.bool_),
    )


@njit(inline="always")
def into_lanes(flat: Array, first: int, last: int, out: Array) -> None:
    """Numbers first..last of eight rows, by whole vectors, into lanes."""
    for j in range(first, last, LANES):
        transpose(flat, (0, j), out, (j, 0))


@njit(inline="always")
def out_of_lanes(lanes: Array, first: int, last: int, flat: Array) -> None:
    """The same back again."""
    for j in range(first, last, LANES):
        transpose(lanes, (j, 0), flat, (0, j))


@njit(inline="always")
def mirror(A: Array, n: int, width: int) -> None:
    """The upper triangle from the lower one."""
    for i in range(n):
        for j in range(i):
            store(A, (j * width + i, 0), load(A, (i * width + j, 0)))


@njit(**KERNEL)
def congruent(S: Array, X: Array, n: int, width: int, upper: bool, work: Array, out: Array) -> None:
    """out = S X Sᵀ for symmetric X in lanes and one triangular S, padded with zeros, for all of them."""
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


@njit(**KERNEL)
def inverse_roots(n: int, width: int, floor: float, room: Lanes) -> None:
    """room.root = C^(-1/2) in every lane in which room.found says so; where it would say no, see `root`."""
    reduce(n, width, room)
    bound(n, room)
    count = choose_poles(n, floor, room)
    for i in range(n):
        for j in range(i + 1):
            store(room.root, (i * width + j, 0), splat(0.0))
    for p in range(0, count, 2):
        two_inverses(n, p, room)
        add_two(n, width, room)
    turn_back(n, width, room)


@njit(inline="always")
def product(A: Array, n: int, width: int, first: int, v: Array, at: int, moves: Array, rows: int) -> None:
    """moves_i = Σ_j A_ij v_j over j from `first` on, for rows from `rows` on; v begins at row `at` of its array."""
    for i in range(rows, n):
        x, y = splat(0.0), splat(0.0)
        for j in range(first, i + 1):
            x = fma(load(A, (i * width + j, 0)), load(v, (at + j, 0)), x)
        for j in range(max(first, i + 1), n):
            y = fma(load(A, (j * width + i, 0)), load(v, (at + j, 0)), y)
        store(moves, (i, 0), x + y)


@njit(inline="always")
def reduce(n: int, width: int, room: Lanes) -> None:
    """Householder's reduction: diagonal, off-diagonal and reflections as in `tridiagonal`."""
    A, V, moves = room.C, room.vectors, room.moves
    zero = splat(0.0)
    for k in range(n - 2):
        square = zero
        for i in range(k + 1, n):
            x = load(A, (i * width + k, 0))
            store(V, (k * width + i, 0), x)
            square = fma(x, x, square)
        norm, head = square_root(square), load(A, ((k + 1) * width + k, 0))
        turned = where_above(head, zero, zero - norm, norm)
        done = splat(NOTHING)
        size = where_above(head, zero, head, zero - head)
        beta = where_above(done, norm, zero, splat(1.0) / (norm * (norm + size)))
        store(room.diagonal, (k, 0), load(A, (k * width + k, 0)))
        store(room.off, (k, 0), where_above(done, norm, head, turned))
        store(room.strength, (k, 0), beta)
        store(V, (k * width + k + 1, 0), head - turned)
        reflect(n, width, k, k + 1, A, V, beta, moves)
    for k in range(max(n - 2, 0), n):
        store(room.diagonal, (k, 0), load(A, (k * width + k, 0)))
    if n > 1:
        store(room.off, (n - 2, 0), load(A, ((n - 1) * width + n - 2, 0)))


@njit(inline="always")
def reflect(n, width, k, rows, A, V, beta, moves):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """A ← (I − β v vᵀ) A (I − β v vᵀ) for the v of reflection k, where rows of A before `rows` are of no account."""
    at = k * width
    product(A, n, width, k + 1, V, at, moves, rows)
    along = splat(0.0)
    for i in range(k + 1, n):
        along = fma(load(moves, (i, 0)), load(V, (at + i, 0)), along)
    half = splat(-0.5) * beta * beta * along
    for i in range(rows, n):
        move = beta * load(moves, (i, 0))
        if i > k:
            move = fma(half, load(V, (at + i, 0)), move)
        store(moves, (i, 0), move)
    for i in range(k + 1, n):
        left, right = load(V, (at + i, 0)), load(moves, (i, 0))
        for j in range(rows, k + 1):
            entry = load(A, (i * width + j, 0))
            store(A, (i * width + j, 0), fnma(left, load(moves, (j, 0)), entry))
        for j in range(k + 1, i + 1):
            entry = fnma(left, load(moves, (j, 0)), load(A, (i * width + j, 0)))
            store(A, (i * width + j, 0), fnma(right, load(V, (at + j, 0)), entry))


@njit(inline="always")
def turn_back(n: int, width: int, room: Lanes) -> None:
    """P f(T) Pᵀ, the last reflection first."""
    for k in range(n - 3, -1, -1):
        reflect(n, width, k, 0, room.root, room.vectors, load(room.strength, (k, 0)), room.moves)


@njit(inline="always")
def bound(n: int, room: Lanes) -> None:
    """No eigenvalue is above this (Gershgorin)."""
    zero = splat(0.0)
    top, before = load(room.diagonal, (0, 0)), zero
    for i in range(n):
        beside = zero
        if i < n - 1:
            e = load(room.off, (i, 0))
            beside = where_above(e, zero, e, zero - e)
        most = load(room.diagonal, (i, 0)) + before + beside
        top = where_above(most, top, most, top)
        before = beside
    store(room.top, (0, 0), top)


@njit(inline="always")
def choose_poles(n: int, floor: float, room: Lanes) -> int:
    """Shifts and weights for every lane, from the first table whose interval holds its eigenvalues (see `root`).

    Returns the most poles that a lane needs; the others' are made up with poles of no weight, which change no bit.
    """
    d, e, top = room.diagonal, room.off, load(room.top, (0, 0))
    e0, e1, e2, e3 = (
        top * splat(LEAST[0]),
        top * splat(LEAST[1]),
        top * splat(LEAST[2]),
        top * splat(LEAST[3]),
    )
    last = load(d, (n - 1, 0))
    p0, p1, p2, p3 = last - e0, last - e1, last - e2, last - e3
    l0, l1, l2, l3 = p0, p1, p2, p3
    for i in range(n - 2, -1, -1):
        x, y = load(d, (i, 0)), load(e, (i, 0))
        y = y * y
        p0, p1, p2, p3 = x - e0 - y / p0, x - e1 - y / p1, x - e2 - y / p2, x - e3 - y / p3
        l0, l1, l2, l3 = smaller(l0, p0), smaller(l1, p1), smaller(l2, p2), smaller(l3, p3)
    store(room.checks, (0, 0), l0)
    store(room.checks, (1, 0), l1)
    store(room.checks, (2, 0), l2)
    store(room.checks, (3, 0), l3)
    count = 0
    for s in range(LANES):
        table, limit = -1, room.top[0, s]
        for t in range(len(POLES)):
            if room.checks[t, s] > 0.0 and limit * LEAST[t] >= floor:
                table = t
                break
        room.found[s] = table >= 0
        if table >= 0:
            count = max(count, POLES[table])
        scale = np.sqrt(limit) if table >= 0 else 0.0
        for p in range(max(POLES)):
            room.shifts[p, s] = limit * SHIFTS[table, p] if table >= 0 else 0.0
            room.weights[p, s] = scale * WEIGHTS[table, p] if table >= 0 else 0.0
    return count


@njit(inline="always")
def two_inverses(n: int, p: int, room: Lanes) -> None:
    """Diagonals and ratios of w (T + s)⁻¹ for poles p and p + 1, as in `root.inverses`."""
    d, e, ratios, diagonals = room.diagonal, room.off, room.ratios, room.diagonals
    one, zero = splat(1.0), splat(0.0)
    s1, s2 = load(room.shifts, (p, 0)), load(room.shifts, (p + 1, 0))
    w1, w2 = load(room.weights, (p, 0)), load(room.weights, (p + 1, 0))
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


@njit(inline="always")
def add_two(n: int, width: int, room: Lanes) -> None:
    """Add both inverses to the root."""
    F, ratios, diagonals = room.root, room.ratios, room.diagonals
    for j in range(n):
        c1, c2 = load(diagonals, (2 * j, 0)), load(diagonals, (2 * j + 1, 0))
        store(F, (j * width + j, 0), load(F, (j * width + j, 0)) + (c1 + c2))
        for i in range(j + 1, n):
            c1, c2 = c1 * load(ratios, (2 * i, 0)), c2 * load(ratios, (2 * i + 1, 0))
            store(F, (i * width + j, 0), load(F, (i * width + j, 0)) + (c1 + c2))
