"""What workers do. Every task is a pure function of files and arguments: done twice, anywhere, it ends the same.

A task reads one block of patients and their courses, and writes courses under a name that is their checksum. Nothing
stays on a worker between tasks, so one that is lost costs no more than what it was at.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.kernels.driver import cross_product_gaps
from phenotaste.core.records import Array, Model, Scored, Shard, Weights
from phenotaste.engines.dask.files import Damaged, Folder
from phenotaste.engines.threads import Block, Threads, one_blas_thread, piece_edges


class Job(NamedTuple):
    """What all tasks of a fit have in common."""

    folder: Folder
    run: str  # keeps the courses of fits that share a folder apart
    rank: int
    exact: bool
    dtype: str
    lam: float


class Stepped(NamedTuple):
    """Some neighbouring blocks after a step: where their courses are now, and their sums."""

    courses: tuple[str, ...]
    tally: Array


class Measured(NamedTuple):
    """One block at the end of a fit."""

    courses: str
    W: Array
    loss: Array  # patients × 3
    plain: Array  # the same where static features weigh one
    gaps: Array  # ‖U_kᵀU_k − HᵀH‖² of each patient


class OneBlock(Threads):
    """The patients of one file are one block, whatever would be cut from them elsewhere."""

    def _blocks(self, model: Model) -> list[Block]:
        last = len(self.shard.offsets) - 1
        return [Block(0, 0, last, piece_edges(self.shard.offsets, 0, last, self.piece_visits))]

    def tally(self, model: Model, reach: float) -> Array:
        self.step(model, reach)
        assert self._accumulator is not None
        return self._accumulator.buffer[0]


def write_block(
    folder: Folder, number: int, shard: Shard, mu: Array, first: int, last: int, *, reuse: bool
) -> str:
    """Patients first..last as a file of their own."""
    offsets = shard.offsets[first : last + 1]
    indptr = shard.indptr[offsets[0] : offsets[-1] + 1]
    return folder.write(
        f"blocks/{number:05d}",
        {
            "data": shard.data[indptr[0] : indptr[-1]],
            "indices": shard.indices[indptr[0] : indptr[-1]],
            "indptr": indptr - indptr[0],
            "offsets": offsets - offsets[0],
            "static": shard.static[first:last],
            "mu": mu[first:last],
        },
        reuse=reuse,
    )


def same(model: Model) -> Model:
    """The model as a task of its own: it goes over the network once for each worker, and can be had again."""
    return model


def begin(number: int, block: str, *, job: Job, model: Model) -> str:
    """The courses that a block starts with; returns their name."""
    with alone_with_blas():
        engine = engine_of(job, block)
        engine.start(writable(model))
        return keep(job, number, engine.courses)


def step(
    number: int, block: str, courses: str, previous: str | None, *, job: Job, model: Model, reach: float
) -> Stepped:
    with alone_with_blas():
        engine = engine_of(job, block, read_courses(job, courses))
        if previous is not None and reach > 0:  # a plain step does not ask where the courses were before
            engine.previous = read_courses(job, previous)
        tally = engine.tally(writable(model), reach)
        return Stepped((keep(job, number, engine.courses),), tally)


def add(left: Stepped, right: Stepped) -> Stepped:
    """A node of the tree in which `tree_reduce` adds blocks."""
    return Stepped(left.courses + right.courses, left.tally + right.tally)


def measure(block: str, courses: str, *, job: Job, model: Model) -> Measured:
    """The closing look at a block."""
    with alone_with_blas():
        engine, model = engine_of(job, block, read_courses(job, courses)), writable(model)
        return measured(engine, courses, model, engine.score(model))


def project(number: int, block: str, *, job: Job, model: Model, tol: float, max_iter: int) -> Measured:
    """A block under a fixed model, from the beginning."""
    with alone_with_blas():
        engine, model = engine_of(job, block), writable(model)
        scored = engine.project(model, tol, max_iter)
        return measured(engine, keep(job, number, engine.courses), model, scored)


def is_whole(name: str, *, job: Job) -> bool:
    """Whether a file is there and what was written."""
    try:
        job.folder.read(name)
    except Damaged:
        return False
    return True


def probe(folder: Folder, token: str) -> dict[str, Any]:
    """What a worker is: only workers that are alike repeat a fit to the bit. `token` is a file it should see."""
    import llvmlite.binding
    import numba

    try:
        folder.read(token)
        sees = True
    except (Damaged, OSError):
        sees = False
    return {
        "sees": sees,
        "code": code(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "processor": str(llvmlite.binding.get_host_cpu_name()),
    }


def code() -> str:
    """A fingerprint of the code that finds the numbers."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted([*here.glob("*.py"), *(here.parent / "core").glob("*.py")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def measured(engine: OneBlock, courses: str, model: Model, scored: Scored) -> Measured:
    """All that is asked about patients at the end, while they are here: also what RMSE and CPI need."""
    gaps = np.empty(len(engine.shard.offsets) - 1)
    cross_product_gaps(engine.shard.offsets, scored.U, model.H.T @ model.H, gaps)
    engine.weights = Weights(1.0, engine.weights.mu)
    return Measured(courses, scored.W, scored.loss, engine.score(model, scored.W).loss, gaps)


def writable(model: Model) -> Model:
    """What came over the network may not be written to, and may lie askew: other compiled code, other last digits."""
    return Model(*(np.array(factor) for factor in model))


def engine_of(job: Job, block: str, courses: Array | None = None) -> OneBlock:
    arrays = job.folder.read(block)
    mu = arrays.pop("mu")
    for array in arrays.values():
        array.flags.writeable = False  # as the cohort's own: another type would be compiled anew
    return OneBlock(
        Shard(**arrays),
        Weights(job.lam, mu),
        job.rank,
        exact=job.exact,
        dtype=job.dtype,
        n_jobs=1,
        courses=courses,
    )


def read_courses(job: Job, name: str) -> Array:
    return job.folder.read(name)["courses"]


def keep(job: Job, number: int, courses: Array) -> str:
    return job.folder.write(f"courses/{job.run}/{number:05d}", {"courses": courses})


_guard, _inside, _limit = threading.Lock(), 0, ExitStack()


@contextmanager
def alone_with_blas() -> Iterator[None]:
    """One BLAS thread while any task of this process runs: each on its own would undo the limit of the others."""
    global _inside
    with _guard:
        if _inside == 0:
            _limit.enter_context(one_blas_thread())
        _inside += 1
    try:
        yield
    finally:
        with _guard:
            _inside -= 1
            if _inside == 0:
                _limit.close()
