"""The courses of one patient by coordinate descent: rows u ≥ 0 that minimise ½ uᵀGu − bᵀu, with one G for all visits.

G = (w wᵀ)∘VᵀV + μI: a phenotype without a score stands alone, so only those with one go through the sweeps. Sixteen
visits are turned on their side and swept at a time, four phenotypes together: the sums b − G u of all four are taken
in one pass, and what the first ones of the four moved is taken off the others' before they move.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from phenotaste.core.kernels.nnls import TINY
from phenotaste.core.kernels.simd import LANES, column, fma, load, matrix, positive, splat, store, transpose
from phenotaste.core.records import KERNEL, Array

SWEEPS = 2  # in one patient step
TILE = 2 * LANES  # visits at a time


class Sweep(NamedTuple):
    """Room for the descent."""

    minus: Array  # −G of the phenotypes with a score, R × R
    step: Array  # 1/G_rr
    chosen: Array  # which phenotypes these are
    now: Array  # R × TILE
    right: Array  # R × TILE


def new_sweep(R: int) -> Sweep:
    return Sweep(matrix(R, R), column(R), np.zeros(R, np.int64), matrix(R, TILE), matrix(R, TILE))


@njit(**KERNEL)
def descend_courses(
    old: Array, right: Array, visits: int, w: Array, VV: Array, mu: float, room: Sweep, U: Array
) -> None:
    """U from the old courses by `SWEEPS` sweeps; `right` holds b, which for a phenotype without a score is μ(QH)."""
    m = choose(w, VV, mu, room)
    R = room.chosen.size
    for start in range(0, visits, TILE):
        for i in range(0, min(TILE, visits - start), LANES):
            for j in range(0, U.shape[1], LANES):
                transpose(old, (start + i, j), room.now, (j, i))
                transpose(right, (start + i, j), room.right, (j, i))
        if mu > TINY:
            for r in range(R):
                if w[r] == 0.0:
                    for i in range(0, TILE, LANES):
                        store(room.now, (r, i), positive(load(room.right, (r, i)) / splat(mu)))
        for _ in range(SWEEPS):
            sweep(m, room)
        for i in range(0, min(TILE, visits - start), LANES):
            for j in range(0, U.shape[1], LANES):
                transpose(room.now, (j, i), U, (start + i, j))


@njit(inline="always")
def choose(w: Array, VV: Array, mu: float, room: Sweep) -> int:
    """−G and 1/G_rr of the phenotypes that have a score; returns how many there are."""
    m, R = 0, w.size
    for r in range(room.chosen.size):
        if w[r] != 0.0:
            room.chosen[m] = r
            m += 1
    for a in range(m):
        r = room.chosen[a]
        for b in range(m):
            s = room.chosen[b]
            room.minus[a, b] = -w[r] * w[s] * VV[r, s]
        for b in range(m, min(m + 3, R)):
            room.minus[a, b] = 0.0
        room.minus[a, a] -= mu
        room.step[a] = -1.0 / room.minus[a, a] if -room.minus[a, a] > TINY else 0.0
    return m


@njit(inline="always")
def sweep(m: int, room: Sweep) -> None:
    """One sweep over all phenotypes chosen, for one tile of visits."""
    G, X, right, chosen, step = room.minus, room.now, room.right, room.chosen, room.step
    for r in range(0, m, 4):
        k0 = chosen[r]
        k1, k2, k3 = chosen[min(r + 1, m - 1)], chosen[min(r + 2, m - 1)], chosen[min(r + 3, m - 1)]
        a0, b0 = load(right, (k0, 0)), load(right, (k0, LANES))
        a1, b1 = load(right, (k1, 0)), load(right, (k1, LANES))
        a2, b2 = load(right, (k2, 0)), load(right, (k2, LANES))
        a3, b3 = load(right, (k3, 0)), load(right, (k3, LANES))
        for s in range(m):
            x, y = load(X, (chosen[s], 0)), load(X, (chosen[s], LANES))
            g = splat(G[s, r])
            a0, b0 = fma(g, x, a0), fma(g, y, b0)
            g = splat(G[s, r + 1])
            a1, b1 = fma(g, x, a1), fma(g, y, b1)
            g = splat(G[s, r + 2])
            a2, b2 = fma(g, x, a2), fma(g, y, b2)
            g = splat(G[s, r + 3])
            a3, b3 = fma(g, x, a3), fma(g, y, b3)
        f = splat(step[r])
        x, y = load(X, (k0, 0)), load(X, (k0, LANES))
        p0, q0 = positive(fma(f, a0, x)), positive(fma(f, b0, y))
        store(X, (k0, 0), p0)
        store(X, (k0, LANES), q0)
        if r + 1 == m:
            break
        p0, q0 = p0 - x, q0 - y
        f, g = splat(step[r + 1]), splat(G[r, r + 1])
        x, y = load(X, (k1, 0)), load(X, (k1, LANES))
        p1, q1 = positive(fma(f, fma(g, p0, a1), x)), positive(fma(f, fma(g, q0, b1), y))
        store(X, (k1, 0), p1)
        store(X, (k1, LANES), q1)
        if r + 2 == m:
            break
        p1, q1 = p1 - x, q1 - y
        f, g, h = splat(step[r + 2]), splat(G[r, r + 2]), splat(G[r + 1, r + 2])
        x, y = load(X, (k2, 0)), load(X, (k2, LANES))
        p2, q2 = fma(h, p1, fma(g, p0, a2)), fma(h, q1, fma(g, q0, b2))
        p2, q2 = positive(fma(f, p2, x)), positive(fma(f, q2, y))
        store(X, (k2, 0), p2)
        store(X, (k2, LANES), q2)
        if r + 3 == m:
            break
        p2, q2 = p2 - x, q2 - y
        f, g, h = splat(step[r + 3]), splat(G[r, r + 3]), splat(G[r + 1, r + 3])
        k = splat(G[r + 2, r + 3])
        x, y = load(X, (k3, 0)), load(X, (k3, LANES))
        p3, q3 = fma(k, p2, fma(h, p1, fma(g, p0, a3))), fma(k, q2, fma(h, q1, fma(g, q0, b3)))
        store(X, (k3, 0), positive(fma(f, p3, x)))
        store(X, (k3, LANES), positive(fma(f, q3, y)))
