"""The patient step on the cores of this machine."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from phenotaste.core.kernels import driver
from phenotaste.core.kernels.patient import StepInputs, prepare_model
from phenotaste.core.kernels.scratch import ThreadScratch, new_thread_scratch
from phenotaste.core.kernels.sums import SumsAccumulator
from phenotaste.core.loop import Mark
from phenotaste.core.projection import ProjectOptions, project
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.runs.resources import available_cores

SUMS_BYTES = 64 * 2**20  # all blocks' sums together stay below this
MOST_BLOCKS = 64
BLOCK_VISITS = 8192  # fewer would not be worth a block's own desk and sums
MOST_BLOCK_VISITS = (
    2**22
)  # a block is what a machine takes at a time: more patients make more blocks, not larger ones
PIECE_VISITS = (
    2**16
)  # a block is worked through in pieces, so that what is behind the work need not stay in memory

REBUILD_TOL, REBUILD_PASSES = (
    1e-6,
    60,
)  # lost courses: measured, the objective is back after about fifty passes
NO_LOSS = np.empty((0, 2))  # in a fit the losses follow from the sums


class Block(NamedTuple):
    """Patients first..last, for one thread at a time, in pieces."""

    number: int
    first: int
    last: int
    edges: Array  # of its pieces, as patients

    def pieces(self) -> Iterator[tuple[int, int]]:
        return pairwise(self.edges.tolist())


class Threads:
    """Patients in blocks, blocks on threads, sums added in a fixed order: the result does not depend on the threads.

    The kernels release the interpreter lock, so plain threads are enough.
    """

    piece_visits = PIECE_VISITS  # changes no bit: patients are added one after the other

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
        self._handed_out = False  # somebody may look at the courses as they are
        self._reach = np.zeros(len(shard.offsets) - 1)
        self._cut: list[Block] | None = None
        self._accumulator: SumsAccumulator | None = None
        self._places: list[ThreadScratch] = []  # those nobody works at
        self._pool = ThreadPoolExecutor(self.n_jobs)  # its threads end with this object

    def start(self, model: Model) -> None:
        prepared = prepare_model(model, self.weights.lam)
        self._leave_what_was_handed_out()
        self._map(
            lambda block, first, last, scratch: driver.init_U(
                self.shard, first, last, prepared.V, self.courses, scratch.single.B, scratch.patient.U
            ),
            model,
        )

    def start_uniform(self, rng: np.random.Generator) -> None:
        """The paper's start: every entry of U uniform; patients without history stay at zero."""
        self._leave_what_was_handed_out()
        offsets, indptr = self.shard.offsets, self.shard.indptr
        for first, last in pairwise(piece_edges(offsets, 0, len(offsets) - 1, self.piece_visits).tolist()):
            here = self.courses[offsets[first] : offsets[last]]
            rng.random(out=here, dtype=here.dtype)
            nothing = np.diff(indptr[offsets[first : last + 1]]) == 0
            here[np.repeat(nothing, np.diff(offsets[first : last + 1]))] = 0.0
            self._behind(first, last)

    def step(self, model: Model, reach: float = 0.0) -> Sums:
        """The patient step over all patients, from courses extrapolated by `reach` times their last move."""
        prepared = prepare_model(model, self.weights.lam)
        if self.previous is None:
            self.previous = self._room_for_courses()
        if self._accumulator is None:
            self._accumulator = SumsAccumulator(
                len(self._blocks(model)), len(model.V), len(model.F), self.rank
            )
        courses, other, accumulator = self.courses, self.previous, self._accumulator
        self._reach.fill(reach)
        inputs = StepInputs(self.shard, self.weights, prepared, courses, other, self._reach, self.exact)

        def work(block: Block, first: int, last: int, scratch: ThreadScratch) -> None:
            fresh = first == block.first
            sums = accumulator.reset(block.number) if fresh else accumulator.blocks[block.number]
            driver.step(inputs, np.arange(first, last), scratch, sums, NO_LOSS)

        self._map(work, model)
        self.courses, self.previous = other, courses
        return accumulator.sums(prepared.H_inv_T)

    def undo(self) -> None:
        """Back to the courses before the last step."""
        assert self.previous is not None
        self.courses, self.previous = self.previous, self.courses

    def score(self, model: Model, W: Array | None = None) -> Scored:
        """Scores and losses at the courses as they are; with W given, the losses at those scores."""
        K = len(self.shard.offsets) - 1
        solve = W is None
        scores = self._empty(K, self.rank) if W is None else np.require(W, np.float64, ["C", "A", "W"])
        scored = Scored(self.courses, scores, self._empty(K, 3))
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
            ),
            model,
        )
        self._handed_out = True
        return scored

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        """Courses and scores under a fixed model, each patient iterated on its own until it settles."""
        self._project(model, tol, max_iter, lambda first, last: True)
        return self.score(model)

    def _project(self, model: Model, tol: float, max_iter: int, wanted: Callable[[int, int], bool]) -> None:
        """Courses under a fixed model, of the pieces that are wanted."""
        self._leave_what_was_handed_out()
        prepared = prepare_model(model, self.weights.lam)
        options = ProjectOptions(self.exact, tol, max_iter)

        def work(block: Block, first: int, last: int, scratch: ThreadScratch) -> None:
            if wanted(first, last):
                project(self.shard, self.weights, prepared, self.courses, first, last, options, scratch)

        self._map(work, model)

    def mark(self) -> Mark:
        """The arrays themselves, not copied: later steps write over them, but not over what `score` handed out."""
        arrays = {"courses": self.courses}
        if self.previous is not None and not self._handed_out:
            arrays["previous"] = self.previous
        return Mark({}, arrays)

    def restore(self, mark: Mark) -> bool:
        if "courses" not in mark.arrays:
            return False
        self.courses, self._handed_out = mark.arrays["courses"], False
        self.previous = mark.arrays.get("previous")
        return True

    def rebuild(self, model: Model) -> None:
        """All courses, as a projection finds them."""
        self._project(model, REBUILD_TOL, REBUILD_PASSES, lambda first, last: True)
        self.previous = None

    def release(self, mark: Mark) -> None:
        """Nothing to do: arrays go when nobody has them."""

    def _leave_what_was_handed_out(self) -> None:
        """A start has courses of its own where somebody may still look at those of the last one."""
        if self._handed_out:
            self.courses, self._handed_out = self._room_for_courses(), False

    def _room_for_courses(self) -> Array:
        return np.zeros_like(self.courses)

    def _empty(self, *shape: int) -> Array:
        """Room for what `score` finds of every patient."""
        return np.empty(shape)

    def _ahead(self, first: int, last: int) -> None:
        """Called when patients first..last come next: here they are in memory already."""

    def _behind(self, first: int, last: int) -> None:
        """Called when patients first..last have been worked through: here they may stay in memory."""

    def _blocks(self, model: Model) -> list[Block]:
        if self._cut is None:
            edges = block_edges(self.shard, len(model.V) + len(model.F), self.rank)
            self._cut = [
                Block(n, *ends, piece_edges(self.shard.offsets, *ends, self.piece_visits))
                for n, ends in enumerate(pairwise(edges.tolist()))
            ]
        return self._cut

    def _map(self, work: Callable[[Block, int, int, ThreadScratch], None], model: Model) -> None:
        def at_a_place(block: Block) -> None:
            """A scratch takes longer to set up than a small block takes to work through, so they are kept."""
            try:
                scratch = self._places.pop()
            except IndexError:
                scratch = new_thread_scratch(int(np.diff(self.shard.offsets).max(initial=1)), self.rank)
            pieces = list(block.pieces())
            self._ahead(*pieces[0])
            for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
                if following is not None:
                    self._ahead(*following)
                work(block, *piece, scratch)
                self._behind(*piece)
            self._places.append(scratch)

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
    blocks = number_of_blocks(int(shard.offsets[-1]), n_columns, rank)
    work = np.cumsum(np.diff(shard.offsets) + 4 * rank)
    cuts = np.searchsorted(work, work[-1] * np.arange(1, blocks) / blocks)
    return np.unique(np.concatenate([[0], cuts, [len(work)]]))


def number_of_blocks(visits: int, n_columns: int, rank: int) -> int:
    room = SUMS_BYTES // (8 * rank * (n_columns + 3 * rank))
    return max(4, min(visits // BLOCK_VISITS, room, MOST_BLOCKS), -(-visits // MOST_BLOCK_VISITS))


def piece_edges(offsets: Array, first: int, last: int, most: int) -> Array:
    """Patients first..last cut where another `most` visits are full; only the data decides where."""
    full = (offsets[first : last + 1] - offsets[first]) // most
    return np.concatenate([[first], first + 1 + np.flatnonzero(np.diff(full[:-1])), [last]])


class InMemory:
    """`TASTE(engine=InMemory(checkpoint=...))`: this machine's threads, and a fit that can be gone on with.

    Parameters
    ----------
    checkpoint : `phenotaste.engines.checkpoint.Checkpoint`, which says where and how often.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.engines.checkpoint import Checkpoint
    >>> from phenotaste.engines.threads import InMemory
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> TASTE(rank=4, max_iter=5, engine=InMemory(Checkpoint("kept", minutes=30))).fit(cohort).n_iter_
    5
    """

    def __init__(self, checkpoint: Any = None) -> None:
        self.checkpoint = checkpoint

    def open(
        self,
        cohort: Any,
        aligned: Any,
        weights: Weights,
        rank: int,
        *,
        exact: bool,
        dtype: str,
        n_jobs: int | None,
    ) -> Threads:
        return Threads(aligned.shard, weights, rank, exact=exact, dtype=dtype, n_jobs=n_jobs)
