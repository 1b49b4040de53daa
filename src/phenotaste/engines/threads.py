"""The patient step on the cores of this machine."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import ThreadpoolController

from phenotaste.core.kernels import driver
from phenotaste.core.kernels.patient import PreparedModel, StepInputs, prepare_model
from phenotaste.core.kernels.scratch import ThreadScratch, new_thread_scratch
from phenotaste.core.kernels.sums import SumsAccumulator
from phenotaste.core.projection import ProjectOptions, project
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.engines.base import REBUILD_ITERATIONS, REBUILD_TOL, Engine, EngineSession, Snapshot
from phenotaste.engines.partition import (
    CHUNK_VISITS,
    Block,
    block_edges,
    blocks_of,
    chunk_edges,
    draw_uniform,
)
from phenotaste.runs.resources import available_cores

NO_LOSS = np.empty((0, 2))  # in a fit the losses follow from the sums

T = TypeVar("T")
BlockTask = Callable[[Block, int, int, ThreadScratch], None]


class ThreadEngine(Engine):
    """The threads of this machine, with U in memory: the default engine.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.engines import ThreadEngine
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> TASTE(rank=4, max_iter=5, engine=ThreadEngine()).fit(cohort).n_iter_
    5
    """

    def open(
        self,
        shard: Shard,
        weights: Weights,
        rank: int,
        n_features: int,
        *,
        exact: bool = False,
        dtype: str = "float64",
        n_jobs: int | None = None,
    ) -> "ThreadSession":
        U = np.zeros((int(shard.offsets[-1]), rank), dtype)
        return ThreadSession(shard, weights, U, n_features, exact=exact, n_jobs=n_jobs)

    def __repr__(self) -> str:
        return "ThreadEngine()"


class ThreadSession(EngineSession):
    """Patients in blocks, blocks on threads, sums added in a fixed order: no bit depends on the number of threads.

    The kernels release the interpreter lock, so plain threads are enough.

    Parameters
    ----------
    U : the initial courses, visits × R; updated in place.
    U_prev : the courses one step earlier, if there was a step.
    edges : boundaries of the blocks; by default they are chosen from the data.
    """

    chunk_visits = CHUNK_VISITS  # changes no bit: patients are added one after the other

    def __init__(
        self,
        shard: Shard,
        weights: Weights,
        U: Array,
        n_features: int,
        *,
        exact: bool = False,
        n_jobs: int | None = None,
        U_prev: Array | None = None,
        edges: Array | None = None,
    ) -> None:
        self.shard, self.weights, self.n_features, self.exact = shard, weights, n_features, exact
        self.n_jobs = n_jobs or available_cores()
        self.U, self.U_prev = U, U_prev
        self.rank, self.n_patients = U.shape[1], len(shard.offsets) - 1
        n_static = shard.static.shape[1]
        if edges is None:
            edges = block_edges(shard, n_features + n_static, self.rank)
        self.blocks = blocks_of(edges, shard.offsets, self.chunk_visits)
        self._beta = np.zeros(self.n_patients)
        self._U_returned = False  # a caller may hold the current U
        self._accumulator: SumsAccumulator | None = None
        self._idle_scratch: list[ThreadScratch] = []
        # Its threads end with this object. Handing a small block to a thread takes longer than the block.
        self._pool = ThreadPoolExecutor(self.n_jobs) if self.n_jobs > 1 else None

    def init_U(self, model: Model) -> None:
        prepared = prepare_model(model, self.weights.lam)
        self._keep_returned_U()
        self._map(
            lambda block, first, last, scratch: driver.init_U(
                self.shard,
                self.weights.scale,
                first,
                last,
                prepared.V,
                self.U,
                scratch.single.B,
                scratch.patient.U,
            )
        )

    def init_U_uniform(self, rng: np.random.Generator) -> None:
        self._keep_returned_U()
        offsets = self.shard.offsets
        for first, last in pairwise(chunk_edges(offsets, 0, self.n_patients, self.chunk_visits).tolist()):
            draw_uniform(self.shard, first, last, rng, self.U[offsets[first] : offsets[last]])
            self._evict(first, last)

    def step(self, model: Model, beta: float = 0.0) -> Sums:
        prepared = prepare_model(model, self.weights.lam)
        return self._accumulate(prepared, beta).sums(prepared.H_inv_T)

    def step_block(self, model: Model, beta: float) -> Array:
        """The step of a session with a single block: its unreduced sums, to be added to those of other sessions."""
        (buffer,) = self._accumulate(prepare_model(model, self.weights.lam), beta).buffer
        return buffer

    def step_clipped(self, model: Model, clip: Callable[[Sums], Sums]) -> Sums:
        """A plain step in which each patient's own sums pass through `clip` before they are added up."""
        prepared = prepare_model(model, self.weights.lam)
        U, U_new = self.U, np.zeros_like(self.U)
        n_static = self.shard.static.shape[1]
        total = Sums.zeros(self.n_features, n_static, self.rank)
        accumulator = SumsAccumulator(1, self.n_features, n_static, self.rank)
        scratch = self._new_scratch()
        inputs = self._step_inputs(prepared, U, U_new, 0.0)
        with one_blas_thread():
            for k in range(self.n_patients):
                driver.step(inputs, np.array([k]), scratch, accumulator.reset(0), NO_LOSS)
                total.add(clip(accumulator.as_sums(accumulator.buffer[0], prepared.H_inv_T)))
        self.U, self.U_prev = U_new, U
        return total

    def undo(self) -> None:
        assert self.U_prev is not None
        self.U, self.U_prev = self.U_prev, self.U

    def score(self, model: Model, W: Array | None = None) -> Scored:
        """Scores, losses and cross-product gaps at the current U; with W, at those scores."""
        solve = W is None
        if W is None:
            W = self._allocate((self.n_patients, self.rank))
        scored = Scored.allocate(self.U, np.require(W, np.float64, ["C", "A", "W"]), self._allocate)
        prepared = prepare_model(model, self.weights.lam)
        self._map(
            lambda block, first, last, scratch: driver.score(
                self.shard,
                self.weights,
                prepared,
                scored,
                np.arange(first, last),
                solve,
                scratch.patient,
                scratch.single,
            )
        )
        self._U_returned = True
        return scored

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        self._project(model, tol, max_iter)
        return self.score(model)

    def set_mu(self, mu: Array) -> None:
        """Other weights of the uniqueness term from here on."""
        self.weights = self.weights._replace(mu=mu)

    def set_U(self, U: Array) -> None:
        """Other courses from here on; there is then no step to undo."""
        self.U, self.U_prev, self._U_returned = U, None, False

    def enable_snapshots(self, owner: str) -> None:
        """Nothing to prepare: the arrays are the snapshot."""

    def snapshot(self) -> Snapshot:
        """The arrays, not copied: later steps overwrite them, except those that `score` returned."""
        arrays = {"U": self.U}
        if self.U_prev is not None and not self._U_returned:
            arrays["U_prev"] = self.U_prev
        return Snapshot({}, arrays)

    def restore(self, snapshot: Snapshot) -> bool:
        if "U" not in snapshot.arrays:
            return False
        self.U, self.U_prev = snapshot.arrays["U"], snapshot.arrays.get("U_prev")
        self._U_returned = False
        return True

    def rebuild(self, model: Model) -> None:
        self._project(model, REBUILD_TOL, REBUILD_ITERATIONS)
        self.U_prev = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _accumulate(self, prepared: PreparedModel, beta: float) -> SumsAccumulator:
        """The patient step, with the sums of every block left in the accumulator."""
        if self.U_prev is None:
            self.U_prev = self._new_U()
        if self._accumulator is None:
            n_static = self.shard.static.shape[1]
            self._accumulator = SumsAccumulator(len(self.blocks), self.n_features, n_static, self.rank)
        U, U_prev, accumulator = self.U, self.U_prev, self._accumulator
        inputs = self._step_inputs(prepared, U, U_prev, beta)

        def step(block: Block, first: int, last: int, scratch: ThreadScratch) -> None:
            first_chunk = first == block.first
            sums = accumulator.reset(block.number) if first_chunk else accumulator.blocks[block.number]
            driver.step(inputs, np.arange(first, last), scratch, sums, NO_LOSS)

        self._map(step)
        self.U, self.U_prev = U_prev, U
        return accumulator

    def _step_inputs(self, prepared: PreparedModel, U: Array, U_prev: Array, beta: float) -> StepInputs:
        self._beta.fill(beta)
        return StepInputs(self.shard, self.weights, prepared, U, U_prev, self._beta, self.exact)

    def _project(
        self,
        model: Model,
        tol: float,
        max_iter: int,
        selected: Callable[[int, int], bool] = lambda first, last: True,
    ) -> None:
        """U under a fixed model, of the selected chunks of patients."""
        self._keep_returned_U()
        prepared = prepare_model(model, self.weights.lam)
        options = ProjectOptions(self.exact, tol, max_iter)

        def work(block: Block, first: int, last: int, scratch: ThreadScratch) -> None:
            if selected(first, last):
                project(self.shard, self.weights, prepared, self.U, first, last, options, scratch)

        self._map(work)

    def _keep_returned_U(self) -> None:
        """Continue with a new U where a caller may still hold the current one."""
        if self._U_returned:
            self.U, self._U_returned = self._new_U(), False

    def _new_U(self) -> Array:
        return np.zeros_like(self.U)

    def _allocate(self, shape: int | tuple[int, ...]) -> Array:
        """An array for what `score` finds of every patient."""
        return np.empty(shape)

    def _prefetch(self, first: int, last: int) -> None:
        """Called before patients first..last are processed: here they are in memory already."""

    def _evict(self, first: int, last: int) -> None:
        """Called after patients first..last were processed: here they may stay in memory."""

    def _new_scratch(self) -> ThreadScratch:
        return new_thread_scratch(int(np.diff(self.shard.offsets).max(initial=1)), self.rank)

    def _map(self, task: BlockTask) -> None:
        """Run a task over the chunks of every block."""

        def run(block: Block) -> None:
            # Allocating scratch takes longer than a small block does, so it is reused.
            try:
                scratch = self._idle_scratch.pop()
            except IndexError:
                scratch = self._new_scratch()
            chunks = list(block.chunks())
            self._prefetch(*chunks[0])
            for chunk, following in zip(chunks, [*chunks[1:], None], strict=True):
                if following is not None:
                    self._prefetch(*following)
                task(block, *chunk, scratch)
                self._evict(*chunk)
            self._idle_scratch.append(scratch)

        # One BLAS thread each: the blocks share the cores, and the bits stay the same.
        with one_blas_thread():
            self._on_threads(run, self.blocks)

    def _on_threads(self, task: Callable[..., T], *arguments: Iterable[Any]) -> list[T]:
        """What a task returns for each of the arguments."""
        return list(map(task, *arguments) if self._pool is None else self._pool.map(task, *arguments))


@cache
def blas_libraries() -> ThreadpoolController:
    """The BLAS libraries of this process, looked up once: the search takes longer than a small step."""
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[object]:
    return blas_libraries().limit(limits=1, user_api="blas")
