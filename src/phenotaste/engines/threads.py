"""The patient step on the cores of this machine."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from phenotaste.core import cpu
from phenotaste.core.patient import Desk, define, hand_over, new_desk, new_tally
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights

T = TypeVar("T")

SUMS_BYTES = 64 * 2**20  # all blocks' sums together stay below this
MOST_BLOCKS = 64
BLOCK_VISITS = 8192  # fewer would not be worth a block's own desk and sums


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
        self._edges: Array | None = None
        self._desks: list[Desk] = []  # those nobody works at
        self._pool = ThreadPoolExecutor(self.n_jobs)  # its threads end with this object

    def start(self, model: Model) -> None:
        definitions = define(model, self.weights.lam)
        self._map(
            lambda first, last, desk: cpu.start(self.shard, first, last, definitions, self.courses, desk),
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
        courses, other = self.courses, self.previous

        def work(first: int, last: int, desk: Desk) -> Sums:
            sums = Sums.zeros(len(model.V), len(model.F), self.rank)
            tally = new_tally(len(model.V), len(model.F), self.rank)
            cpu.step(
                self.shard,
                first,
                last,
                self.weights,
                definitions,
                courses,
                other,
                reach,
                self.exact,
                desk,
                tally,
            )
            hand_over(tally, definitions.lift, sums)
            return sums

        total, *rest = self._map(work, model)
        self.courses, self.previous = other, courses
        for part in rest:
            total.add(part)
        return total

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
            lambda first, last, desk: cpu.score(
                self.shard,
                first,
                last,
                self.weights,
                definitions,
                self.courses,
                scores,
                solve,
                loss,
                desk,
            ),
            model,
        )
        return Scored(self.courses, scores, loss)

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        """Courses and scores under a fixed model, each patient iterated on its own until it settles."""
        definitions = define(model, self.weights.lam)
        self._map(
            lambda first, last, desk: cpu.project(
                self.shard,
                first,
                last,
                self.weights,
                definitions,
                self.courses,
                self.exact,
                tol,
                max_iter,
                desk,
            ),
            model,
        )
        return self.score(model)

    def _map(self, work: Callable[[int, int, Desk], T], model: Model) -> list[T]:
        if self._edges is None:
            self._edges = block_edges(self.shard, len(model.V) + len(model.F), self.rank)
        starts, ends = self._edges[:-1].tolist(), self._edges[1:].tolist()

        def at_a_desk(first: int, last: int) -> T:
            """A desk takes longer to set up than a small block takes to work through, so they are kept."""
            try:
                desk = self._desks.pop()
            except IndexError:
                desk = new_desk(int(np.diff(self.shard.offsets).max(initial=1)), self.rank)
            found = work(first, last, desk)
            self._desks.append(desk)
            return found

        # One BLAS thread each: ours do the sharing, and the bits stay the same.
        with one_blas_thread():
            return list(self._pool.map(at_a_desk, starts, ends))


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
