"""The patients of a fit on a Dask cluster: blocks and courses in files, pure tasks over them, sums added as a tree."""

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from phenotaste.core.loop import Mark
from phenotaste.core.patient import define
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.core.tally import Tallies, add_in_pairs
from phenotaste.engines import dask_tasks as tasks
from phenotaste.engines.dask_files import Damaged
from phenotaste.engines.dask_tasks import Job
from phenotaste.errors import InputError

T = TypeVar("T")

RETRIES = 2  # of a task that failed, by Dask itself
ATTEMPTS = 4  # at a step whose tasks lost their workers again and again, or found a block damaged
LOOK = 5.0  # seconds between two looks at whether anybody is still working
REBUILDING = 1e-8, 1000  # tolerance and most passes of courses that are found again by projection


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
        keep: bool,
        at_end: Callable[[], None],
    ) -> None:
        self.client, self.job, self.shard, self.weights = client, job, shard, weights
        self.ends = list(pairwise(edges.tolist()))
        self.patience, self._keep, self._at_end = patience, keep, at_end
        # Made here only: a worker that was given up and wakes when all is over must not bring them back.
        for part in ("blocks", f"courses/{job.run}"):
            job.folder.make(part)
        self.blocks = [self._write_block(number, reuse=True) for number in range(len(self.ends))]
        self.courses: list[str] = []
        self.previous: list[str] | None = None
        self.gaps = float("nan")  # Σ‖U_kᵀU_k − HᵀH‖² at the last closing look
        self._lost: list[int] = []
        self._pinned: Counter[str] = Counter()  # files that marks may come back to
        self._runs = {job.run}

    def start(self, model: Model) -> None:
        """Courses from the data and the model by the fixed rule."""
        self._set_out(self._each(tasks.begin, self._numbers(), self.blocks, model=model))

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
        found = self._until_done(lambda: self._tree(model, reach, previous))
        self.courses, self.previous, old = list(found.courses), self.courses, self.previous
        self._drop(old or ())
        tallies = Tallies(1, len(model.V), len(model.F), self.job.rank)
        # A copy, since what comes over the network may lie askew in memory: that, too, changes last digits.
        return tallies.as_sums(np.array(found.tally), define(model, self.weights.lam).lift)

    def undo(self) -> None:
        """Back to the courses before the last step: they are still there."""
        assert self.previous is not None
        self.courses, self.previous = self.previous, self.courses

    def score(self, model: Model) -> Scored:
        """Scores and losses at the courses as they are."""
        return self._scored(self._each(tasks.measure, self.blocks, self.courses, model=model))

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        """Courses and scores under a fixed model, each patient iterated on its own until it settles."""
        numbers, limits = self._numbers(), {"tol": tol, "max_iter": max_iter}
        found = self._each(tasks.project, numbers, self.blocks, model=model, **limits)
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
        whole = dict(zip(named, self._each(tasks.is_whole, named), strict=True))
        self._pinned.update(named)
        self._runs.update(name.split("/")[1] for name in named)
        self._lost = [number for number, name in enumerate(courses) if not whole[name]]
        self.courses, self.previous = courses, previous and list(previous)
        return all(whole.values())

    def rebuild(self, model: Model) -> None:
        """Courses that `restore` did not find, by projection; those before them are not asked for after this."""
        lost, (tol, max_iter) = self._lost, REBUILDING
        limits = {"tol": tol, "max_iter": max_iter}
        blocks = [self.blocks[number] for number in lost]
        for number, part in zip(
            lost, self._each(tasks.project, lost, blocks, model=model, **limits), strict=True
        ):
            self.courses[number] = part.courses
        self._lost, self.previous = [], None

    def release(self, mark: Mark) -> None:
        """Nobody will come back to this mark."""
        named = named_in(mark.token)
        self._pinned.subtract(named)
        self._drop(named)

    def close(self) -> None:
        """The end: patients' data go from the work folder, unless they are to be kept or a mark needs them."""
        if not self._keep and max(self._pinned.values(), default=0) <= 0:
            self.job.folder.remove(self.blocks)
            for run in self._runs:
                self.job.folder.remove_folder(f"courses/{run}")
            self.job.folder.tidy("courses", "blocks", "")
        self._at_end()

    # --- tasks -------------------------------------------------------------------------------------------

    def _tree(self, model: Model, reach: float, previous: Sequence[str | None]) -> Any:
        """One step as tasks: a leaf for each block, and the tree that adds them, all of it on the cluster."""
        token = secrets.token_hex(16)
        leaves = self._submit(
            tasks.step,
            token,
            self._numbers(),
            self.blocks,
            self.courses,
            previous,
            model=self._shared(model, token),
            reach=reach,
        )
        nodes = iter(range(len(leaves)))

        def add(left: Any, right: Any) -> Any:
            key = f"phenotaste-add-{token}-{next(nodes)}"
            return self.client.submit(tasks.add, left, right, key=key, retries=RETRIES)

        return self._result(add_in_pairs(leaves, add))

    def _each(
        self, task: Callable[..., T], *arguments: Sequence[Any], model: Any = None, **same: Any
    ) -> list[T]:
        """A task for each block, and what they return."""

        def attempt() -> list[T]:
            token = secrets.token_hex(16)
            if model is not None:
                same["model"] = self._shared(model, token)
            return [self._result(future) for future in self._submit(task, token, *arguments, **same)]

        return self._until_done(attempt)

    def _submit(
        self, task: Callable[..., T], token: str, *arguments: Sequence[Any], **same: Any
    ) -> list[Any]:
        keys = [f"phenotaste-{task.__name__}-{token}-{n}" for n in range(len(arguments[0]))]
        return list(
            self.client.map(task, *arguments, job=self.job, **same, key=keys, retries=RETRIES, pure=False)
        )

    def _shared(self, model: Model, token: str) -> Any:
        return self.client.submit(tasks.same, model, key=f"phenotaste-model-{token}", retries=RETRIES)

    def _until_done(self, attempt: Callable[[], T]) -> T:
        """Tasks are pure, so what went wrong on the cluster is simply done again, a few times."""
        from distributed import KilledWorker

        for left in reversed(range(ATTEMPTS)):
            try:
                return attempt()
            except KilledWorker as error:
                if not left:
                    raise InputError(
                        "Worker processes kept ending under the same piece of work, most often for want of memory: "
                        "give each worker more memory or fewer threads, and go on from the checkpoint."
                    ) from error
            except Damaged as error:
                self._mend(error, last=not left)
            except OSError as error:
                if self.client.status != "running":
                    raise self._scheduler_lost() from error
                raise InputError(
                    f"The work folder {self.job.folder.url} cannot be used: {error.strerror or error}; look after "
                    "the disk, and go on from the checkpoint."
                ) from error
        raise AssertionError

    def _mend(self, error: Damaged, last: bool) -> None:
        """Blocks are written again from the cohort; courses are nobody's to write again."""
        if error.name not in self.blocks or last:
            raise InputError(
                f"{self.job.folder.url}/{error.name} {error.what}: look after the disk, and go on from the last "
                "checkpoint or begin anew."
            ) from error
        token = secrets.token_hex(16)
        for number, whole in enumerate(self._submit(tasks.is_whole, token, self.blocks)):
            if not self._result(whole):
                self._write_block(number, reuse=False)

    def _result(self, future: Any) -> Any:
        """What a task returned, however long it takes; but not from a cluster without workers or scheduler."""
        from concurrent.futures import CancelledError

        idle = 0.0
        while True:
            try:
                return future.result(timeout=LOOK)
            except CancelledError as error:
                raise self._scheduler_lost() from error
            except TimeoutError:
                if future.done():
                    return future.result()
            if self.client.status != "running":
                raise self._scheduler_lost()
            idle = 0.0 if self.client.scheduler_info()["workers"] else idle + LOOK
            if idle > self.patience:
                raise InputError(
                    f"The cluster has had no worker for {idle:.0f} seconds: start workers, and go on from the "
                    "checkpoint."
                )

    def _scheduler_lost(self) -> InputError:
        return InputError(
            "The connection to the Dask scheduler was lost: start the cluster again, and go on from the last "
            "checkpoint (--resume)."
        )

    # --- files -------------------------------------------------------------------------------------------

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
        U = np.empty((int(offsets[-1]), self.job.rank), self.job.dtype)
        for (first, last), part in zip(self.ends, parts, strict=True):
            U[offsets[first] : offsets[last]] = self._read(part.courses)
        self.gaps = sum(part.gaps for part in parts)
        return Scored(
            U, np.concatenate([part.W for part in parts]), np.concatenate([part.loss for part in parts])
        )

    def _read(self, name: str) -> Array:
        try:
            return tasks.read_courses(self.job, name)
        except Damaged as error:
            self._mend(error, last=True)
            raise


def named_in(token: dict[str, Any]) -> list[str]:
    return [*token["courses"], *(token["previous"] or ())]
