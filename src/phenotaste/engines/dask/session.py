"""The patients of a fit on a Dask cluster: data and U in files, pure tasks over them, sums reduced as a tree."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.kernels.patient import prepare_model
from phenotaste.core.kernels.sums import SumsAccumulator
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.engines.base import REBUILD_ITERATIONS, REBUILD_TOL, EngineSession, Snapshot
from phenotaste.engines.dask import tasks
from phenotaste.engines.dask.files import DamagedFile
from phenotaste.engines.dask.runner import TaskRunner
from phenotaste.engines.dask.tasks import Job
from phenotaste.engines.partition import draw_uniform
from phenotaste.errors import InputError
from phenotaste.storage import mapped

MAPPED_BYTES = 2**30  # a larger U is returned as a memory-mapped file
OWNER_LETTERS = 8  # prefix of a run's name that all processes of one fit share


class Paths(NamedTuple):
    """The files that a snapshot names, one for each block."""

    U: list[str]
    U_prev: list[str] | None

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Paths":
        U, U_prev = snapshot.token.get("U"), snapshot.token.get("U_prev")
        if not isinstance(U, list) or not isinstance(U_prev, list | None):
            raise InputError("The checkpoint does not name its files: start again, without --resume.")
        return cls([str(name) for name in U], None if U_prev is None else [str(name) for name in U_prev])

    def names(self) -> list[str]:
        return [*self.U, *(self.U_prev or ())]


class ClusterOptions(NamedTuple):
    patience: float  # seconds for which the cluster may have no worker
    durable: bool  # the work folder outlives this process
    keep: bool  # leave the files in the work folder when the fit is over


class DaskSession(EngineSession):
    """U lies in files, one for each block of patients and iteration; nothing is kept on the workers."""

    def __init__(
        self,
        client: Any,
        job: Job,
        shard: Shard,
        weights: Weights,
        edges: Array,
        options: ClusterOptions,
        disconnect: Callable[[], None],
    ) -> None:
        self.shard, self.weights, self.options = shard, weights, options
        self._client, self._disconnect = client, disconnect
        self._set_job(job)
        self.ranges = list(pairwise(edges.tolist()))  # patients of each block
        self.blocks: list[str] = []  # files of the data
        self.U: list[str] = []
        self.U_prev: list[str] | None = None
        self._damaged: list[int] = []  # blocks whose U could not be restored
        self._pinned: Counter[str] = Counter()  # files that snapshots need
        self._runs = {self.job.run}
        self._closed = False

    def write_blocks(self) -> None:
        """Write the patients' data; blocks that exist already are not written again."""
        # Folders are created here only: a worker that was given up and finishes late must not bring them back.
        try:
            for part in ("blocks", f"courses/{self.job.run}"):
                self.job.folder.make(part)
            for number in self._numbers():  # recorded one by one, so that all are removed if the disk is full
                self.blocks.append(self._write_block(number, reuse=True))
        except BaseException as error:
            self._remove_files()
            if not isinstance(error, OSError):
                raise
            raise InputError(
                f"The cohort could not be written to {self.job.folder.url}: {error.strerror or error}; free disk "
                "space, or use another work folder."
            ) from error

    def init_U(self, model: Model) -> None:
        self._replace_U(self.runner.map(tasks.init_U, self._numbers(), self.blocks, model=model))

    def init_U_uniform(self, rng: np.random.Generator) -> None:
        offsets, names = self.shard.offsets, []
        for number, (first, last) in enumerate(self.ranges):
            U = np.empty((int(offsets[last] - offsets[first]), self.job.rank), self.job.dtype)
            draw_uniform(self.shard, first, last, rng, U)
            names.append(tasks.write_U(self.job, number, U))
        self._replace_U(names)

    def step(self, model: Model, beta: float = 0.0) -> Sums:
        previous: Sequence[str | None] = self.U_prev or [None] * len(self.blocks)
        arguments = self._numbers(), self.blocks, self.U, previous
        stepped = self.runner.reduce(tasks.step, tasks.add, *arguments, model=model, beta=beta)
        self.U, self.U_prev, unused = list(stepped.U), self.U, self.U_prev
        self._remove_unused(unused or ())
        accumulator = SumsAccumulator(1, len(model.V), len(model.F), self.job.rank)
        # A copy, since what comes over the network may be unaligned: that, too, changes last digits.
        return accumulator.as_sums(np.array(stepped.sums), prepare_model(model, self.weights.lam).H_inv_T)

    def undo(self) -> None:
        """The files before the last step still exist."""
        assert self.U_prev is not None
        self.U, self.U_prev = self.U_prev, self.U

    def score(self, model: Model) -> Scored:
        return self._scored(self.runner.map(tasks.score, self.blocks, self.U, model=model))

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        limits = {"tol": tol, "max_iter": max_iter}
        parts = self.runner.map(tasks.project, self._numbers(), self.blocks, model=model, **limits)
        self._replace_U([part.U for part in parts])
        return self._scored(parts)

    def enable_snapshots(self, owner: str) -> None:
        """Files are named after the owner, so that a later process recognises them."""
        if not self.options.durable:
            raise InputError(
                "A fit with checkpoints keeps its courses: name a folder for them with work=FOLDER."
            )
        run = owner[:OWNER_LETTERS] + self.job.run[OWNER_LETTERS:]
        self.job.folder.make(f"courses/{run}")
        self.job.folder.remove_empty(f"courses/{self.job.run}")
        self._set_job(self.job._replace(run=run))
        self._runs = {run}

    def snapshot(self) -> Snapshot:
        """The names of the files."""
        paths = Paths(list(self.U), None if self.U_prev is None else list(self.U_prev))
        self._pinned.update(paths.names())
        self.job.folder.fsync(paths.names())
        return Snapshot(dict(paths._asdict()), {})

    def restore(self, snapshot: Snapshot) -> bool:
        paths = Paths.of(snapshot)
        if len(paths.U) != len(self.blocks):
            raise InputError("The checkpoint has other blocks of patients: start again, without --resume.")
        names = paths.names()
        intact = dict(zip(names, self.runner.map(tasks.is_intact, names), strict=True))
        self._pinned.update(names)
        self._runs.update(name.split("/")[1] for name in names)
        self._damaged = [number for number, name in enumerate(paths.U) if not intact[name]]
        self.U, self.U_prev = paths.U, paths.U_prev
        return all(intact.values())

    def rebuild(self, model: Model) -> None:
        damaged, limits = self._damaged, {"tol": REBUILD_TOL, "max_iter": REBUILD_ITERATIONS}
        blocks = [self.blocks[number] for number in damaged]
        parts = self.runner.map(tasks.project, damaged, blocks, model=model, **limits)
        for number, part in zip(damaged, parts, strict=True):
            self.U[number] = part.U
        self._damaged, self.U_prev = [], None

    def discard(self, snapshot: Snapshot) -> None:
        names = Paths.of(snapshot).names()
        self._pinned.subtract(names)
        self._remove_unused(names)
        if self._closed:
            self._remove_if_unpinned()

    def check_disk(self, n_init: int) -> None:
        """U before and after a step, and those of a checkpoint."""
        visits = int(self.shard.offsets[-1])
        needed = (5 if n_init > 1 else 4) * visits * self.job.rank * np.dtype(self.job.dtype).itemsize
        free = self.job.folder.free()
        if free is not None and needed > free:
            raise InputError(
                f"{self.job.folder.url} has {mapped.format_bytes(free)} left and the courses need "
                f"{mapped.format_bytes(needed)}: free disk space, or use another work folder."
            )

    def remove_stale_files(self) -> None:
        """Remove files of earlier processes of this fit that no snapshot needs."""
        pinned = {name for name, count in self._pinned.items() if count > 0}
        needed = {*self.U, *(self.U_prev or ()), *pinned}
        for name in self.job.folder.names("courses"):
            run = name.split("/")[1]
            same_fit = run[:OWNER_LETTERS] == self.job.run[:OWNER_LETTERS]
            if name not in needed and run != self.job.run and same_fit:
                self.job.folder.remove([name])
                self.job.folder.remove_empty(f"courses/{run}")

    def close(self) -> None:
        """Disconnect; files stay only if they were asked for, or a snapshot needs them."""
        if not self._closed:
            self._closed = True
            self._remove_if_unpinned()
            self._disconnect()

    def _remove_if_unpinned(self) -> None:
        if not self.options.keep and not any(count > 0 for count in self._pinned.values()):
            self._remove_files()

    def _remove_files(self) -> None:
        self.job.folder.remove(self.blocks)
        for run in self._runs:
            self.job.folder.remove_folder(f"courses/{run}")
        self.job.folder.remove_empty("courses", "blocks", "")

    def repair(self, error: DamagedFile, last_attempt: bool) -> None:
        """Write damaged blocks again from the cohort; a damaged U cannot be repaired."""
        if error.name not in self.blocks or last_attempt:
            raise InputError(
                f"{self.job.folder.url}/{error.name} {error.problem}: check the disk, and resume from the last "
                "checkpoint or start again."
            ) from error
        for number, intact in enumerate(self.runner.map_once(tasks.is_intact, self.blocks)):
            if not intact:
                self._write_block(number, reuse=False)

    def _set_job(self, job: Job) -> None:
        self.job = job
        self.runner = TaskRunner(self._client, job, self.options.patience, self.repair)

    def _write_block(self, number: int, *, reuse: bool) -> str:
        patients = self.ranges[number]
        return tasks.write_block(self.job.folder, number, self.shard, self.weights, *patients, reuse=reuse)

    def _numbers(self) -> list[int]:
        return list(range(len(self.ranges)))

    def _replace_U(self, U: list[str]) -> None:
        """Continue from this U; there is then no step to undo."""
        unused = [*self.U, *(self.U_prev or ())]
        self.U, self.U_prev = U, None
        self._remove_unused(unused)

    def _remove_unused(self, names: Iterable[str]) -> None:
        """Remove those of the files that nothing refers to."""
        needed = {*self.U, *(self.U_prev or ())}
        self.job.folder.remove([name for name in names if name not in needed and self._pinned[name] <= 0])

    def _scored(self, parts: list[tasks.ScoredBlock]) -> Scored:
        offsets = self.shard.offsets
        U = self._allocate_U((int(offsets[-1]), self.job.rank))
        for (first, last), part in zip(self.ranges, parts, strict=True):
            U[offsets[first] : offsets[last]] = self._read_U(part.U)
        columns = zip(*(part.rest for part in parts), strict=True)
        return Scored(U, *(np.concatenate(column) for column in columns))

    def _allocate_U(self, shape: tuple[int, int]) -> Array:
        """U of all patients; where it is large, in a file that is removed with the array."""
        if np.prod(shape) * np.dtype(self.job.dtype).itemsize < MAPPED_BYTES:
            return np.empty(shape, self.job.dtype)
        folder = self.job.folder.url if self.job.folder.local else tempfile.gettempdir()
        return mapped.create_mapped(shape, self.job.dtype, Path(folder))

    def _read_U(self, name: str) -> Array:
        try:
            return tasks.read_U(self.job, name)
        except DamagedFile as error:
            self.repair(error, last_attempt=True)
            raise
