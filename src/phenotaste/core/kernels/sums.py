"""Accumulation of the sums: zero-padded partial sums of each block of patients, and their total."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from phenotaste.core.kernels.jit import FASTMATH, part
from phenotaste.core.kernels.matmul import add_transposed, multiply_transposed
from phenotaste.core.kernels.scratch import PatientScratch
from phenotaste.core.kernels.simd import LANES, aligned_matrix, fma, load, splat, store
from phenotaste.core.kernels.unit_columns import roughness
from phenotaste.core.records import N_SCALARS, Array, Shard, Sums, Weights

T = TypeVar("T")


class BlockSums(NamedTuple):
    """`Sums` of a block of patients; part of QU has yet to be multiplied by H^(-T)."""

    UU: Array
    XU: Array
    WW: Array
    AW: Array
    QU: Array  # Σ μ QᵀU of patients with explicit Q
    QHU: Array  # Σ μ (QH)ᵀU of all others
    scalars: Array


def tree_reduce(parts: Sequence[T], add: Callable[[T, T], T]) -> T:
    """Add 0+1, 2+3, …, then pairs of those: blocks are always added in this order, so all engines agree to the bit.

    The tree can be evaluated in parallel; a part without a partner moves up unchanged.
    """
    while len(parts) > 1:
        pairs = [add(parts[n], parts[n + 1]) for n in range(0, len(parts) - 1, 2)]
        parts = [*pairs, *parts[2 * len(pairs) :]]
    return parts[0]


class SumsAccumulator:
    """The sums of all blocks in one array, reused in every step; each block owns one slice of `buffer`."""

    def __init__(self, blocks: int, n_features: int, n_static: int, R: int) -> None:
        square = len(aligned_matrix(R, 1))
        heights = (square, n_features, square, n_static, square, square, 1)
        rows = sum(heights)
        self.rank = R
        self.buffer = aligned_matrix(blocks * rows, R)[: blocks * rows].reshape(blocks, rows, -1)
        self.edges = np.cumsum(heights)[:-1].tolist()
        self.blocks = [self._parts(block) for block in self.buffer]

    def reset(self, block: int) -> BlockSums:
        self.buffer[block] = 0.0
        return self.blocks[block]

    def sums(self, H_inv_T: Array) -> Sums:
        """The sums over all blocks; `buffer` is overwritten."""
        return self.as_sums(tree_reduce(list(self.buffer), add_in_place), H_inv_T)

    def as_sums(self, total: Array, H_inv_T: Array) -> Sums:
        """Sums from the total of the blocks' buffers."""
        R = self.rank
        sums = self._parts(total)
        XU, AW = (np.ascontiguousarray(part[:, :R]) for part in (sums.XU, sums.AW))
        UU, WW, QU, QHU = (
            np.ascontiguousarray(part[:R, :R]) for part in (sums.UU, sums.WW, sums.QU, sums.QHU)
        )
        return Sums(UU, XU, WW, AW, QU + H_inv_T @ QHU, sums.scalars[:N_SCALARS].copy())

    def _parts(self, block: Array) -> BlockSums:
        UU, XU, WW, AW, QU, QHU, scalars = np.split(block, self.edges)
        return BlockSums(UU, XU, WW, AW, QU, QHU, scalars[0])


def add_in_place(total: Array, part: Array) -> Array:
    total += part
    return total


@part(fastmath=FASTMATH)
def square_sum(data: Array, first: int, last: int, scale: float = 1.0) -> float:
    total = 0.0
    for n in range(first, last):
        value = scale * np.float64(data[n])
        total += value * value
    return total


@part(inline=True)
def add_patient(
    shard: Shard, k: int, weights: Weights, norm: float, scratch: PatientScratch, sums: BlockSums
) -> None:
    """Add a patient with a history to the sums, from the `scratch` that the patient step leaves."""
    if norm == 0.0:
        return
    first = shard.offsets[k]
    visits = shard.offsets[k + 1] - first
    R, w, U, G = scratch.passive.size, scratch.w, scratch.U, scratch.G
    mu, influence = weights.mu[k], weights.influence[k]
    multiply_transposed(U, U, R, visits, G)
    if mu > 0.0:
        if scratch.has_Q[0]:
            add_transposed(scratch.mu_Q, U, R, visits, influence, sums.QU)
        else:
            add_transposed(scratch.mu_QH, U, R, visits, influence, sums.QHU)
    size = 0.0
    for r in range(R):
        size += G[r, r]
        f = splat(influence * w[r])
        for j in range(0, U.shape[1], LANES):
            ww = f * load(w, j)
            store(sums.WW, (r, j), load(sums.WW, (r, j)) + ww)
            store(sums.UU, (r, j), fma(ww, load(G, (r, j)), load(sums.UU, (r, j))))
    add_visits(shard, first, visits, weights.scale[k], influence, U, w, sums.XU)
    a = shard.static[k]
    for j in range(0, U.shape[1], LANES):
        x = splat(influence) * load(w, j)
        for p in range(a.size):
            store(sums.AW, (p, j), fma(splat(a[p]), x, load(sums.AW, (p, j))))
    sums.scalars[0] += influence * norm
    sums.scalars[1] += influence * square_sum(a, 0, a.size)
    sums.scalars[2] += influence * mu
    sums.scalars[3] += influence * mu * size
    if weights.tau > 0.0:
        sums.scalars[4] += influence * weights.tau * roughness(U, visits)


@part(inline=True)
def add_visits(
    shard: Shard, first: int, visits: int, scale: float, influence: float, U: Array, w: Array, XU: Array
) -> None:
    """XU += Xᵀ U diag(w), from the non-zeros alone."""
    p = splat(influence)
    for i in range(visits):
        start, end = shard.indptr[first + i], shard.indptr[first + i + 1]
        for j in range(0, U.shape[1] - LANES, 2 * LANES):
            x, y = load(U, (i, j)) * load(w, j) * p, load(U, (i, j + LANES)) * load(w, j + LANES) * p
            for n in range(start, end):
                row, f = shard.indices[n], splat(scale * np.float64(shard.data[n]))
                store(XU, (row, j), fma(f, x, load(XU, (row, j))))
                store(XU, (row, j + LANES), fma(f, y, load(XU, (row, j + LANES))))
        if U.shape[1] % (2 * LANES):
            j = U.shape[1] - LANES
            x = load(U, (i, j)) * load(w, j) * p
            for n in range(start, end):
                row, f = shard.indices[n], splat(scale * np.float64(shard.data[n]))
                store(XU, (row, j), fma(f, x, load(XU, (row, j))))
