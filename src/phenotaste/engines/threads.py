"""The patient step on the cores of this machine."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from phenotaste.core import cpu
from phenotaste.core.desk import Place, new_place
from phenotaste.core.patient import define
from phenotaste.core.projection import project
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.core.tally import Tallies

SUMS_BYTES = 64 * 2**20  # all blocks' sums together stay below this
MOST_BLOCKS = 64
BLOCK_VISITS = 8192  # fewer would not be worth a block's own desk and sums


NO_LOSS = np.empty((0, 2))  # in a fit the losses follow from the sums


class Block(NamedTuple):
    """Patients first..last, for one thread at a time."""

    number: int
    first: int
    last: int
    who: Array


def available_cores() -> int:
    """The cores this process may use, fewer where OMP_NUM_THREADS says so (as joblib's workers are told)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdigit() and int(limit) > 0 else cores


class Threads:
    """Patients in blocks, blocks on threads, sums added in block order: the result does not depend on the threads.

    The kernels release the interpreter lock, so plain threads are enough.
    """

    def __init__(
        self,
        shard: Shard,
        weights: Weights,
        rank: int,
        *,
        exact: bool = False,
        dtype: str = "float64",
        n_jobs: int | None = None,
        courses: Array | None = None,
    ) -> None:
        self.shard, self.weights, self.rank, self.exact = shard, weights, rank, exact
        self.n_jobs = n_jobs or available_cores()
        self.courses = np.zeros((int(shard.offsets[-1]), rank), dtype) if courses is None else courses
        self.previous: Array | None = None  # the courses one step ago, once there has been a step
        self._reach = np.zeros(len(shard.offsets) - 1)
        self._cut: list[Block] | None = None
        self._tallies: Tallies | None = None
        self._places: list[Place] = []  # those nobody works at
        self._pool = ThreadPoolExecutor(self.n_jobs)  # its threads end with this object

    def start(self, model: Model) -> None:
        definitions = define(model, self.weights.lam)
        self._map(
            lambda block, place: cpu.start(
                self.shard,
                block.first,
                block.last,
                definitions.V,
                self.courses,
                place.alone.B,
                place.desk.U,
            ),
            model,
        )

    def start_uniform(self, rng: np.random.Generator) -> None:
        """The paper's start: every entry of U uniform; patients without history stay at zero."""
        rng.random(out=self.courses, dtype=self.courses.dtype)
        nothing = np.diff(self.shard.indptr[self.shard.offsets]) == 0
        self.courses[np.repeat(nothing, np.diff(self.shard.offsets))] = 0.0

    def step(self, model: Model, reach: float = 0.0) -> Sums:
        """The patient step over all patients, from courses extrapolated by `reach` times their last move."""
        definitions = define(model, self.weights.lam)
        if self.previous is None:
            self.previous = np.zeros_like(self.courses)
        if self._tallies is None:
            self._tallies = Tallies(len(self._blocks(model)), len(model.V), len(model.F), self.rank)
        courses, other, tallies = self.courses, self.previous, self._tallies
        self._reach.fill(reach)

        def work(block: Block, place: Place) -> None:
            cpu.step(
                self.shard,
                block.who,
                self.weights,
                definitions,
                courses,
                other,
                self._reach,
                self.exact,
                place,
                tallies.emptied(block.number),
                NO_LOSS,
            )

        self._map(work, model)
        self.courses, self.previous = other, courses
        return tallies.sums(definitions.lift)

    def undo(self) -> None:
        """Back to the courses before the last step."""
        assert self.previous is not None
        self.courses, self.previous = self.previous, self.courses

    def score(self, model: Model, W: Array | None = None) -> Scored:
        """Scores and losses at the courses as they are; with W given, the losses at those scores."""
        K = len(self.shard.offsets) - 1
        solve, scores = W is None, np.empty((K, self.rank)) if W is None else np.array(W, np.float64)
        loss = np.empty((K, 3))
        definitions = define(model, self.weights.lam)
        self._map(
            lambda block, place: cpu.score(
                self.shard,
                block.first,
                block.last,
                self.weights,
                definitions,
                self.courses,
                scores,
                solve,
                loss,
                place.desk,
                place.alone,
            ),
            model,
        )
        return Scored(self.courses, scores, loss)

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        """Courses and scores under a fixed model, each patient iterated on its own until it settles."""
        definitions = define(model, self.weights.lam)
        self._map(
            lambda block, place: project(
                self.shard,
                block.first,
                block.last,
                self.weights,
                definitions,
                self.courses,
                self.exact,
                tol,
                max_iter,
                place,
            ),
            model,
        )
        return self.score(model)

    def _blocks(self, model: Model) -> list[Block]:
        if self._cut is None:
            edges = block_edges(self.shard, len(model.V) + len(model.F), self.rank)
            self._cut = [Block(n, *ends, np.arange(*ends)) for n, ends in enumerate(pairwise(edges.tolist()))]
        return self._cut

    def _map(self, work: Callable[[Block, Place], None], model: Model) -> None:
        def at_a_place(block: Block) -> None:
            """A place takes longer to set up than a small block takes to work through, so they are kept."""
            try:
                place = self._places.pop()
            except IndexError:
                place = new_place(int(np.diff(self.shard.offsets).max(initial=1)), self.rank)
            work(block, place)
            self._places.append(place)

        # One BLAS thread each: ours do the sharing, and the bits stay the same.
        with one_blas_thread():
            list(self._pool.map(at_a_place, self._blocks(model)))


@cache
def blas_libraries() -> ThreadpoolController:
    """The BLAS libraries of this process, looked up once: looking takes longer than a small step."""
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[object]:
    return blas_libraries().limit(limits=1, user_api="blas")


def block_edges(shard: Shard, n_columns: int, rank: int) -> Array:
    """Patients cut into blocks of about equal work; only the data decides where, and how many."""
    room = SUMS_BYTES // (8 * rank * (n_columns + 3 * rank))
    blocks = max(4, min(int(shard.offsets[-1]) // BLOCK_VISITS, room, MOST_BLOCKS))
    work = np.cumsum(np.diff(shard.offsets) + 4 * rank)
    cuts = np.searchsorted(work, work[-1] * np.arange(1, blocks) / blocks)
    return np.unique(np.concatenate([[0], cuts, [len(work)]]))
