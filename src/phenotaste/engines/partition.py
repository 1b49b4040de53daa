"""How patients are partitioned: blocks, whose sums are added in a fixed order, and chunks of visits within a block."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from phenotaste.core.records import Array, Shard

SUMS_BYTES = 64 * 2**20  # upper limit for the sums of all blocks together
MAX_BLOCKS = 64
MIN_BLOCK_VISITS = 8192  # smaller blocks would not pay for their own scratch and sums
MAX_BLOCK_VISITS = 2**22  # a block is one task on a cluster: more patients make more blocks, not larger ones
CHUNK_VISITS = 2**16  # a block is processed in chunks, so that finished ones can be evicted from memory


class Block(NamedTuple):
    """Patients first..last, processed by one thread at a time, in chunks."""

    number: int
    first: int
    last: int
    edges: Array  # patients at which chunks begin and end

    def chunks(self) -> Iterator[tuple[int, int]]:
        return pairwise(self.edges.tolist())


def block_edges(shard: Shard, n_columns: int, rank: int) -> Array:
    """Boundaries of blocks of about equal work; they depend on the patients with a history only."""
    counted = has_history(shard)
    visits = np.diff(shard.offsets) * counted
    blocks = number_of_blocks(int(visits.sum()), n_columns, rank)
    work = np.cumsum(visits + 4 * rank * counted)
    if not work.size:
        return np.zeros(2, np.int64)
    cuts = np.searchsorted(work, work[-1] * np.arange(1, blocks) / blocks)
    return np.unique(np.concatenate([[0], cuts, [len(work)]]))


def number_of_blocks(visits: int, n_columns: int, rank: int) -> int:
    affordable = SUMS_BYTES // (8 * rank * (n_columns + 3 * rank))
    return max(4, min(visits // MIN_BLOCK_VISITS, affordable, MAX_BLOCKS), -(-visits // MAX_BLOCK_VISITS))


def chunk_edges(offsets: Array, first: int, last: int, max_visits: int) -> Array:
    """Boundaries of chunks of about `max_visits` visits among patients first..last; they depend on the data only."""
    filled = (offsets[first : last + 1] - offsets[first]) // max_visits
    return np.concatenate([[first], first + 1 + np.flatnonzero(np.diff(filled[:-1])), [last]])


def blocks_of(edges: Array, offsets: Array, max_visits: int) -> list[Block]:
    return [
        Block(number, first, last, chunk_edges(offsets, first, last, max_visits))
        for number, (first, last) in enumerate(pairwise(edges.tolist()))
    ]


def has_history(shard: Shard, first: int = 0, last: int | None = None) -> Array:
    """Which of the patients first..last have at least one entry."""
    last = len(shard.offsets) - 1 if last is None else last
    return np.diff(shard.indptr[shard.offsets[first : last + 1]]) > 0


def draw_uniform(shard: Shard, first: int, last: int, rng: np.random.Generator, out: Array) -> None:
    """The paper's initial U of patients first..last: uniform, and zero for those without a history."""
    rng.random(out=out, dtype=out.dtype)
    out[np.repeat(~has_history(shard, first, last), np.diff(shard.offsets[first : last + 1]))] = 0.0
