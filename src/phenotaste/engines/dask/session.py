"""The patients of a fit on a Dask cluster: blocks and courses in files, pure tasks over them, sums added as a tree."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from phenotaste.core.kernels.patient import prepare_model
from phenotaste.core.kernels.sums import SumsAccumulator
from phenotaste.core.loop import Mark
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.engines.cuda import Figures
from phenotaste.engines.dask import tasks
from phenotaste.engines.dask.files import Damaged
from phenotaste.engines.dask.runner import Crew
from phenotaste.engines.dask.tasks import Job
from phenotaste.engines.threads import REBUILD_PASSES, REBUILD_TOL
from phenotaste.errors import InputError
from phenotaste.storage import mapped

LARGE = 2**30  # bytes of courses that are not kept in memory when the fit is over
OURS = 8  # letters of a run's name that all processes of one fit share


class Look(NamedTuple):
    """What a closing look found beside scores and losses."""

    courses: Callable[[], Array | None]  # a weak reference: whose look it was, if anybody still has them
    loss: Array  # with static features weighing one
    gaps: Array


class Cluster:
    """An engine (see `core.loop.Engine`) whose courses are files, one for each block and iteration."""

    def __init__(
        self,
        client: Any,
        job: Job,
        shard: Shard,
        weights: Weights,
        edges: Array,
        *,
        patience: float,
        at_end: Callable[["Cluster"], None],
    ) -> None:
        self.job, self.shard, self.weights, self._at_end = job, shard, weights, at_end
        self.crew = Crew(client, job, patience, self._mend)
        self.ends = list(pairwise(edges.tolist()))
        self.blocks: list[str] = []
        self.courses: list[str] = []
        self.previous: list[str] | None = None
        self._looks: dict[int, Look] = {}  # closing looks, by the courses that were handed out
        self._lost: list[int] = []
        self._pinned: Counter[str] = Counter()  # files that marks may come back to
        self._runs = {job.run}

    def lay_out(self) -> None:
        """Write the patients' data; blocks that are there already are not written again."""
        # Folders are made here only: a worker that was given up, and wakes when all is over, must not bring them back.
        try:
            for part in ("blocks", f"courses/{self.job.run}"):
                self.job.folder.make(part)
            for number in self._numbers():
                self.blocks.append(self._write_block(number, reuse=True))
        except BaseException as error:
            self.remove()
            if not isinstance(error, OSError):
                raise
            raise InputError(
                f"The cohort could not be written to {self.job.folder.url}: {error.strerror or error}; free some of "
                "the disk, or work elsewhere."
            ) from error

    def start(self, model: Model) -> None:
        """Courses from the data and the model by the fixed rule."""
        self._set_out(self.crew.each(tasks.begin, self._numbers(), self.blocks, model=model))

    def start_uniform(self, rng: np.random.Generator) -> None:
        """The paper's start, drawn here in the cohort's order, as every engine draws it."""
        offsets, indptr = self.shard.offsets, self.shard.indptr
        names = []
        for number, (first, last) in enumerate(self.ends):
            courses = np.empty((int(offsets[last] - offsets[first]), self.job.rank), self.job.dtype)
            rng.random(out=courses, dtype=courses.dtype)
            nothing = np.diff(indptr[offsets[first : last + 1]]) == 0
            courses[np.repeat(nothing, np.diff(offsets[first : last + 1]))] = 0.0
            names.append(tasks.keep(self.job, number, courses))
        self._set_out(names)

    def step(self, model: Model, reach: float = 0.0) -> Sums:
        """The patient step, from courses extrapolated by `reach` times their last move."""
        previous: Sequence[str | None] = self.previous or [None] * len(self.blocks)
        arguments = self._numbers(), self.blocks, self.courses, previous
        found = self.crew.tree(tasks.step, tasks.add, *arguments, model=model, reach=reach)
        self.courses, self.previous, old = list(found.courses), self.courses, self.previous
        self._drop(old or ())
        accumulator = SumsAccumulator(1, len(model.V), len(model.F), self.job.rank)
        # A copy, since what comes over the network may lie askew in memory: that, too, changes last digits.
        return accumulator.as_sums(np.array(found.tally), prepare_model(model, self.weights.lam).H_inv_T)

    def undo(self) -> None:
        """Back to the courses before the last step: they are still there."""
        assert self.previous is not None
        self.courses, self.previous = self.previous, self.courses

    def score(self, model: Model) -> Scored:
        """Scores and losses at the courses as they are."""
        return self._scored(self.crew.each(tasks.measure, self.blocks, self.courses, model=model))

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        """Courses and scores under a fixed model, each patient iterated on its own until it settles."""
        numbers, limits = self._numbers(), {"tol": tol, "max_iter": max_iter}
        found = self.crew.each(tasks.project, numbers, self.blocks, model=model, **limits)
        self._set_out([part.courses for part in found])
        return self._scored(found)

    def mark(self) -> Mark:
        """The names of the files."""
        token = {"courses": list(self.courses), "previous": self.previous and list(self.previous)}
        self._pinned.update(named_in(token))
        self.job.folder.settle(named_in(token))
        return Mark(token, {})

    def restore(self, mark: Mark) -> bool:
        """Go back there; blocks whose files are not what they were are told by False, and found by `rebuild`."""
        courses, previous = list(mark.token["courses"]), mark.token["previous"]
        if len(courses) != len(self.blocks):
            raise InputError("The checkpoint is of other blocks of patients: begin anew, without --resume.")
        named = named_in(mark.token)
        whole = dict(zip(named, self.crew.each(tasks.is_whole, named), strict=True))
        self._pinned.update(named)
        self._runs.update(name.split("/")[1] for name in named)
        self._lost = [number for number, name in enumerate(courses) if not whole[name]]
        self.courses, self.previous = courses, previous and list(previous)
        return all(whole.values())

    def rebuild(self, model: Model) -> None:
        """Courses that `restore` did not find, by projection; those before them are not asked for after this."""
        lost, limits = self._lost, {"tol": REBUILD_TOL, "max_iter": REBUILD_PASSES}
        blocks = [self.blocks[number] for number in lost]
        for number, part in zip(
            lost, self.crew.each(tasks.project, lost, blocks, model=model, **limits), strict=True
        ):
            self.courses[number] = part.courses
        self._lost, self.previous = [], None

    def release(self, mark: Mark) -> None:
        """Nobody will come back to this mark."""
        named = named_in(mark.token)
        self._pinned.subtract(named)
        self._drop(named)

    def measure(self, model: Model, patients: Scored, counted: Array) -> Figures | None:
        """What `metrics.rmse` and `metrics.cpi` look at, to the bit, from the closing look at these patients."""
        look = self._looks.get(id(patients.U))
        if look is None or look.courses() is not patients.U:
            return None
        visits, static, _ = look.loss.sum(axis=0)
        return Figures(float(visits), float(static), float(look.gaps[counted].sum()))

    def reserve(self, n_starts: int) -> None:
        """Refuse at once what the disk could not hold later: courses before and after a step, and a checkpoint's."""
        visits = int(self.shard.offsets[-1])
        needed = (5 if n_starts > 1 else 4) * visits * self.job.rank * np.dtype(self.job.dtype).itemsize
        free = self.job.folder.free()
        if free is not None and needed > free:
            raise InputError(
                f"{self.job.folder.url} has {mapped.format_bytes(free)} left and the courses need "
                f"{mapped.format_bytes(needed)}: free some of the disk, or work elsewhere."
            )

    def sweep(self) -> None:
        """Remove what earlier processes of this very fit left, unless a checkpoint has it."""
        pinned = {name for name, count in self._pinned.items() if count > 0}
        needed = {*self.courses, *(self.previous or ()), *pinned}
        for name in self.job.folder.names("courses"):
            run = name.split("/")[1]
            if name not in needed and run != self.job.run and run[:OURS] == self.job.run[:OURS]:
                self.job.folder.remove([name])
                self.job.folder.tidy(f"courses/{run}")

    def close(self) -> None:
        """The work is over; whoever opened this decides what becomes of the files."""
        self._at_end(self)

    def remove(self) -> None:
        """Patients' data go from the work folder, and whatever of it is empty then."""
        self.job.folder.remove(self.blocks)
        for run in self._runs:
            self.job.folder.remove_folder(f"courses/{run}")
        self.job.folder.tidy("courses", "blocks", "")

    # --- files -------------------------------------------------------------------------------------------

    def _mend(self, error: Damaged, last: bool) -> None:
        """Blocks are written again from the cohort; courses are nobody's to write again."""
        if error.name not in self.blocks or last:
            raise InputError(
                f"{self.job.folder.url}/{error.name} {error.what}: look after the disk, and go on from the last "
                "checkpoint or begin anew."
            ) from error
        for number, whole in enumerate(self.crew.once(tasks.is_whole, self.blocks)):
            if not whole:
                self._write_block(number, reuse=False)

    def _write_block(self, number: int, *, reuse: bool) -> str:
        ends = self.ends[number]
        return tasks.write_block(self.job.folder, number, self.shard, self.weights.mu, *ends, reuse=reuse)

    def _numbers(self) -> list[int]:
        return list(range(len(self.ends)))

    def _set_out(self, courses: list[str]) -> None:
        """Begin with these courses; nothing before them counts."""
        old = [*self.courses, *(self.previous or ())]
        self.courses, self.previous = courses, None
        self._drop(old)

    def _drop(self, names: Iterable[str]) -> None:
        """Away with files to which nothing points any more."""
        needed = {*self.courses, *(self.previous or ())}
        self.job.folder.remove([name for name in names if name not in needed and self._pinned[name] <= 0])

    def _scored(self, parts: list[tasks.Measured]) -> Scored:
        offsets = self.shard.offsets
        U = self._room((int(offsets[-1]), self.job.rank), self.job.dtype)
        for (first, last), part in zip(self.ends, parts, strict=True):
            U[offsets[first] : offsets[last]] = self._read(part.courses)
        W, loss, plain, gaps = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("W", "loss", "plain", "gaps")
        )
        self._looks = {key: look for key, look in self._looks.items() if look.courses() is not None}
        self._looks[id(U)] = Look(ref(U), plain, gaps)
        return Scored(U, W, loss)

    def _room(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Courses of all patients at once; where these are many, in a file that goes with the array."""
        if np.prod(shape) * np.dtype(dtype).itemsize < LARGE:
            return np.empty(shape, dtype)
        folder = self.job.folder.url if self.job.folder.local else tempfile.gettempdir()
        return mapped.create_mapped(shape, dtype, Path(folder))

    def _read(self, name: str) -> Array:
        try:
            return tasks.read_courses(self.job, name)
        except Damaged as error:
            self._mend(error, last=True)
            raise


def named_in(token: dict[str, Any]) -> list[str]:
    return [*token["courses"], *(token["previous"] or ())]
