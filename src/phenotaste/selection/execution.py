"""Doing the fits: in this process where they are few and small, else by a crew; the patients' temporary copy."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import cohort_digest
from phenotaste.plan import fit_bytes
from phenotaste.runs.resources import available_cores, free_memory
from phenotaste.runs.workers import run_crew
from phenotaste.selection.fits import estimator, run_task
from phenotaste.selection.folder import Folder
from phenotaste.selection.grid import Fitting, Task
from phenotaste.selection.worker import first_order

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

SECONDS_OF_A_CREW = 4.0  # what starting processes takes: less work than this is done here
SECONDS_A_VISIT = 3e-6  # of a whole fit, for each unit of a task's cost; rough
MEMORY_SHARE = 0.8  # of what is free, for all workers together
PREFIX = "phenotaste-select-"


class Progress(NamedTuple):
    """What a callback is told after each fit."""

    done: int
    total: int
    task: Task
    share: float  # of the whole work, by cost
    seconds_left: float


class Source(NamedTuple):
    """The patients: loaded, and the folder they are in if there is one."""

    cohort: Cohort
    path: Path | None


def run_tasks(
    source: Source,
    tasks: list[Task],
    folder: Folder,
    fitting: Fitting,
    jobs: int | None,
    told: Callable[[Task], None],
) -> None:
    """Finish these tasks; each is on disk the moment it is done."""
    if not tasks:
        return
    processes, threads = share_out(source.cohort, tasks, fitting, jobs)
    if processes == 1:
        for task in tasks:
            folder.keep(task, run_task(source.cohort, task, fitting, threads))
            told(task)
        return
    with on_disk(source) as path:
        order = first_order(path, cohort_digest(source.cohort), folder.path.resolve(), fitting, threads)
        run_crew(tasks, order, jobs=processes, threads=threads, done=told)


def share_out(cohort: Cohort, tasks: list[Task], fitting: Fitting, jobs: int | None) -> tuple[int, int]:
    """Processes, and threads for each: together never more than the cores, and no more than memory has room for."""
    cores = available_cores()
    if jobs is None:
        seconds = SECONDS_A_VISIT * cohort.n_visits * sum(task.cost for task in tasks)
        jobs = 1 if seconds < SECONDS_OF_A_CREW else cores
        largest = max(tasks, key=lambda task: task.rank)
        room = MEMORY_SHARE * free_memory() / fit_bytes(estimator(largest, fitting), cohort)
        jobs = min(jobs, max(1, int(room)))
    processes = min(jobs, len(tasks))
    return processes, max(1, cores // processes)


class Reporter:
    """Counts what is done, and tells how long the rest will take at the pace so far."""

    def __init__(
        self, tasks: list[Task], finished: int, later: int, callback: Callable[[Progress], object] | None
    ) -> None:
        """`finished` were done by an earlier run; `later` are to come, of a rank that is not known yet."""
        self.callback = callback
        self.total, self.done = finished + len(tasks) + later, finished
        costs = [task.cost for task in tasks]
        self.whole, self.paid = sum(costs) * (1 + later / max(len(costs), 1)), 0.0
        self.began = time.monotonic()

    def __call__(self, task: Task) -> None:
        self.done += 1
        self.paid += task.cost
        if self.callback is not None:
            left = (time.monotonic() - self.began) * (self.whole - self.paid) / self.paid
            self.callback(Progress(self.done, self.total, task, self.paid / self.whole, left))


@contextmanager
def on_disk(source: Source) -> Iterator[Path]:
    """The cohort as a folder that workers can map; one in memory is saved for as long as they need it."""
    if source.path is not None:
        yield source.path.resolve()
        return
    with private_folder() as folder:
        source.cohort.save(folder / "cohort")
        yield folder / "cohort"


@contextmanager
def private_folder() -> Iterator[Path]:
    """A temporary folder only its owner can look into, removed in the end; those of killed runs are removed too."""
    sweep_abandoned()
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))  # made with mode 0700
    handle = None if fcntl is None else os.open(folder, os.O_RDONLY)
    try:
        if handle is not None:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def sweep_abandoned() -> None:
    """A killed run cannot clean up after itself. Its lock went with it, and by that it is known."""
    if fcntl is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
                continue
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
