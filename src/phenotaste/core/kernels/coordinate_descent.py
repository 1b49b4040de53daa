"""U of one patient by coordinate descent: rows u ≥ 0 that minimise ½ uᵀGu − bᵀu, with the same G for all visits.

G = (w wᵀ)∘VᵀV + μI: a phenotype without a score is decoupled, so only those with one take part in the sweeps. Sixteen
visits are transposed and updated at a time, four phenotypes together: b − G u of all four is computed in one pass, and
corrected for the updates of the earlier ones of the four.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.nnls import TINY
from phenotaste.core.kernels.simd import (
    LANES,
    aligned_matrix,
    aligned_vector,
    fma,
    load,
    positive_part,
    splat,
    store,
    transpose,
)
from phenotaste.core.records import Array

CD_SWEEPS = 2  # per patient step
TILE = 2 * LANES  # visits at a time


class CDScratch(NamedTuple):
    """Scratch for the descent."""

    neg_gram: Array  # −G of the phenotypes with a score, R × R
    inv_diagonal: Array  # 1/G_rr
    scored: Array  # indices of these phenotypes
    U: Array  # R × TILE, transposed
    rhs: Array  # R × TILE


def new_cd_scratch(R: int) -> CDScratch:
    return CDScratch(
        aligned_matrix(R, R),
        aligned_vector(R),
        np.zeros(R, np.int64),
        aligned_matrix(R, TILE),
        aligned_matrix(R, TILE),
    )


@part
def cd_rows(
    U_start: Array, rhs: Array, visits: int, w: Array, VV: Array, mu: float, scratch: CDScratch, U: Array
) -> None:
    """U from `U_start` by `CD_SWEEPS` sweeps; `rhs` holds b, which is μ Q H for a phenotype without a score."""
    m = gather_scored(w, VV, mu, scratch)
    R = scratch.scored.size
    for start in range(0, visits, TILE):
        for i in range(0, min(TILE, visits - start), LANES):
            for j in range(0, U.shape[1], LANES):
                transpose(U_start, (start + i, j), scratch.U, (j, i))
                transpose(rhs, (start + i, j), scratch.rhs, (j, i))
        if mu > TINY:
            for r in range(R):
                if w[r] == 0.0:
                    for i in range(0, TILE, LANES):
                        store(scratch.U, (r, i), positive_part(load(scratch.rhs, (r, i)) / splat(mu)))
        for _ in range(CD_SWEEPS):
            cd_sweep(m, scratch)
        for i in range(0, min(TILE, visits - start), LANES):
            for j in range(0, U.shape[1], LANES):
                transpose(scratch.U, (j, i), U, (start + i, j))


@part(inline=True)
def gather_scored(w: Array, VV: Array, mu: float, scratch: CDScratch) -> int:
    """−G and 1/G_rr of the phenotypes that have a score; returns their number."""
    m, R = 0, w.size
    for r in range(scratch.scored.size):
        if w[r] != 0.0:
            scratch.scored[m] = r
            m += 1
    for a in range(m):
        r = scratch.scored[a]
        for b in range(m):
            s = scratch.scored[b]
            scratch.neg_gram[a, b] = -w[r] * w[s] * VV[r, s]
        for b in range(m, min(m + 3, R)):
            scratch.neg_gram[a, b] = 0.0
        scratch.neg_gram[a, a] -= mu
        scratch.inv_diagonal[a] = -1.0 / scratch.neg_gram[a, a] if -scratch.neg_gram[a, a] > TINY else 0.0
    return m


@part(inline=True)
def cd_sweep(m: int, scratch: CDScratch) -> None:
    """One sweep over the phenotypes with a score, for one tile of visits."""
    G, X, rhs, scored, step = scratch.neg_gram, scratch.U, scratch.rhs, scratch.scored, scratch.inv_diagonal
    for r in range(0, m, 4):
        k0 = scored[r]
        k1, k2, k3 = scored[min(r + 1, m - 1)], scored[min(r + 2, m - 1)], scored[min(r + 3, m - 1)]
        a0, b0 = load(rhs, (k0, 0)), load(rhs, (k0, LANES))
        a1, b1 = load(rhs, (k1, 0)), load(rhs, (k1, LANES))
        a2, b2 = load(rhs, (k2, 0)), load(rhs, (k2, LANES))
        a3, b3 = load(rhs, (k3, 0)), load(rhs, (k3, LANES))
        for s in range(m):
            x, y = load(X, (scored[s], 0)), load(X, (scored[s], LANES))
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
        p0, q0 = positive_part(fma(f, a0, x)), positive_part(fma(f, b0, y))
        store(X, (k0, 0), p0)
        store(X, (k0, LANES), q0)
        if r + 1 == m:
            break
        p0, q0 = p0 - x, q0 - y
        f, g = splat(step[r + 1]), splat(G[r, r + 1])
        x, y = load(X, (k1, 0)), load(X, (k1, LANES))
        p1, q1 = positive_part(fma(f, fma(g, p0, a1), x)), positive_part(fma(f, fma(g, q0, b1), y))
        store(X, (k1, 0), p1)
        store(X, (k1, LANES), q1)
        if r + 2 == m:
            break
        p1, q1 = p1 - x, q1 - y
        f, g, h = splat(step[r + 2]), splat(G[r, r + 2]), splat(G[r + 1, r + 2])
        x, y = load(X, (k2, 0)), load(X, (k2, LANES))
        p2, q2 = fma(h, p1, fma(g, p0, a2)), fma(h, q1, fma(g, q0, b2))
        p2, q2 = positive_part(fma(f, p2, x)), positive_part(fma(f, q2, y))
        store(X, (k2, 0), p2)
        store(X, (k2, LANES), q2)
        if r + 3 == m:
            break
        p2, q2 = p2 - x, q2 - y
        f, g, h = splat(step[r + 3]), splat(G[r, r + 3]), splat(G[r + 1, r + 3])
        k = splat(G[r + 2, r + 3])
        x, y = load(X, (k3, 0)), load(X, (k3, LANES))
        p3, q3 = fma(k, p2, fma(h, p1, fma(g, p0, a3))), fma(k, q2, fma(h, q1, fma(g, q0, b3)))
        store(X, (k3, 0), positive_part(fma(f, p3, x)))
        store(X, (k3, LANES), positive_part(fma(f, q3, y)))
