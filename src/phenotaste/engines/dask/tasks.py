"""The tasks of the workers: pure functions of files and arguments, so that they can be repeated anywhere.

A task reads the data and U of one block of patients, and writes a new U under a name that contains its checksum.
Nothing stays on a worker between tasks, so a lost worker costs no more than its current task.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.records import Array, Model, Shard, Weights
from phenotaste.engines.dask.files import DamagedFile, WorkFolder
from phenotaste.engines.threads import ThreadSession, one_blas_thread

PATIENT_WEIGHTS = ("mu", "scale", "influence")  # fields of `Weights` with an entry for every patient


class Job(NamedTuple):
    """What all tasks of a fit have in common."""

    folder: WorkFolder
    run: str  # separates the U of fits that share a folder
    rank: int
    n_features: int
    exact: bool
    dtype: str
    lam: float
    tau: float
    unit: bool


class SteppedBlocks(NamedTuple):
    """Consecutive blocks after a step: the files of their U, and their unreduced sums."""

    U: tuple[str, ...]
    sums: Array


class ScoredBlock(NamedTuple):
    """`Scored` of one block, with U in a file."""

    U: str
    rest: tuple[Array, ...]  # the other fields, in their order


def write_block(
    folder: WorkFolder, number: int, shard: Shard, weights: Weights, first: int, last: int, *, reuse: bool
) -> str:
    """Write the data and the weights of patients first..last."""
    offsets = shard.offsets[first : last + 1]
    indptr = shard.indptr[offsets[0] : offsets[-1] + 1]
    own = weights.of_patients(first, last)
    return folder.write(
        f"blocks/{number:05d}",
        {
            "data": shard.data[indptr[0] : indptr[-1]],
            "indices": shard.indices[indptr[0] : indptr[-1]],
            "indptr": indptr - indptr[0],
            "offsets": offsets - offsets[0],
            "static": shard.static[first:last],
            **{name: getattr(own, name) for name in PATIENT_WEIGHTS},
        },
        reuse=reuse,
    )


def identity(model: Model) -> Model:
    """The model as a task of its own: it is sent once to each worker, and can be recomputed."""
    return model


def init_U(number: int, block: str, *, job: Job, model: Model) -> str:
    """The initial U of a block; returns its file."""
    with single_blas_thread():
        session = open_block(job, block)
        session.init_U(owned_copy(model))
        return write_U(job, number, session.U)


def step(
    number: int, block: str, U: str, U_prev: str | None, *, job: Job, model: Model, beta: float
) -> SteppedBlocks:
    with single_blas_thread():
        previous = read_U(job, U_prev) if U_prev is not None and beta > 0 else None  # a plain step needs none
        session = open_block(job, block, read_U(job, U), previous)
        sums = session.step_block(owned_copy(model), beta)
        return SteppedBlocks((write_U(job, number, session.U),), sums)


def add(left: SteppedBlocks, right: SteppedBlocks) -> SteppedBlocks:
    """A node of the tree in which `tree_reduce` adds blocks."""
    return SteppedBlocks(left.U + right.U, left.sums + right.sums)


def score(block: str, U: str, *, job: Job, model: Model) -> ScoredBlock:
    with single_blas_thread():
        return ScoredBlock(U, open_block(job, block, read_U(job, U)).score(owned_copy(model))[1:])


def project(number: int, block: str, *, job: Job, model: Model, tol: float, max_iter: int) -> ScoredBlock:
    """A block under a fixed model, from its initial U."""
    with single_blas_thread():
        scored = open_block(job, block).project(owned_copy(model), tol, max_iter)
        return ScoredBlock(write_U(job, number, scored.U), scored[1:])


def is_intact(name: str, *, job: Job) -> bool:
    """Whether a file exists and matches its checksum."""
    try:
        job.folder.read(name)
    except DamagedFile:
        return False
    return True


def probe(folder: WorkFolder, token: str) -> dict[str, Any]:
    """Versions and processor of a worker: only equal workers give the same bits. `token` is a file it should see."""
    import llvmlite.binding
    import numba

    try:
        folder.read(token)
        sees = True
    except (DamagedFile, OSError):
        sees = False
    return {
        "sees": sees,
        "code": code_digest(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "processor": str(llvmlite.binding.get_host_cpu_name()),
    }


def code_digest() -> str:
    """A digest of the numerical code."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for file in sorted([*(package / "engines").rglob("*.py"), *(package / "core").rglob("*.py")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def owned_copy(model: Model) -> Model:
    """What comes over the network is read-only and may be unaligned: other compiled code, other last digits."""
    return Model(*(np.array(factor) for factor in model))


def open_block(job: Job, block: str, U: Array | None = None, U_prev: Array | None = None) -> ThreadSession:
    arrays = job.folder.read(block)
    weights = Weights(job.lam, job.tau, job.unit, *(arrays.pop(name) for name in PATIENT_WEIGHTS))
    for array in arrays.values():
        array.flags.writeable = False  # as the cohort's own: numba compiles another type anew
    shard = Shard(**arrays)
    if U is None:
        U = np.zeros((int(shard.offsets[-1]), job.rank), job.dtype)
    return ThreadSession(
        shard,
        weights,
        U,
        job.n_features,
        exact=job.exact,
        n_jobs=1,
        U_prev=U_prev,
        edges=np.array([0, len(shard.offsets) - 1]),
    )


def read_U(job: Job, name: str) -> Array:
    return job.folder.read(name)["U"]


def write_U(job: Job, number: int, U: Array) -> str:
    return job.folder.write(f"courses/{job.run}/{number:05d}", {"U": U})


_lock, _running, _limit = threading.Lock(), 0, ExitStack()


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """One BLAS thread while any task of this process runs: a limit for each task would be undone by the others."""
    global _running
    with _lock:
        if _running == 0:
            _limit.enter_context(one_blas_thread())
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                _limit.close()
