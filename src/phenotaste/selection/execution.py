"""Running the fits of a selection: in this process if they are few and small, otherwise in worker processes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import cohort_digest
from phenotaste.errors import InputError
from phenotaste.plan import fit_bytes
from phenotaste.runs.resources import available_cores, free_memory
from phenotaste.runs.workers import run_workers
from phenotaste.selection.fits import SelectionFolder, estimator, run_task
from phenotaste.selection.grid import FitSettings, Task
from phenotaste.storage.locks import temporary_folder

STARTUP_SECONDS = 4.0  # of worker processes: less work than this is done in this process
SECONDS_PER_VISIT = 3e-6  # of a fit, for each unit of a task's cost; a rough estimate
MEMORY_FRACTION = 0.8  # of the free memory, for all workers together
TEMPORARY_PREFIX = "phenotaste-select-"


class CohortSource(NamedTuple):
    """The patients of a run, and the folder that they were loaded from, if any."""

    cohort: Cohort
    path: Path | None

    def check_output(self, out: str | os.PathLike[str] | None, kind: str) -> None:
        """Refuse results within the cohort's folder: results may be shared, cohorts may not."""
        if (
            out is not None
            and self.path is not None
            and Path(out).resolve().is_relative_to(self.path.resolve())
        ):
            raise InputError(f"{out} is within the cohort's folder: choose another folder for the {kind}.")


def load_source(c: Any) -> CohortSource:
    if isinstance(c, Cohort):
        return CohortSource(c, None)
    if isinstance(c, str | os.PathLike):
        return CohortSource(Cohort.load(c), Path(c))
    raise InputError(f"Give a Cohort or the folder of one, not {type(c).__name__}.")


def run_tasks(
    source: CohortSource,
    tasks: list[Task],
    folder: SelectionFolder,
    settings: FitSettings,
    jobs: int | None,
    on_done: Callable[[Task], None],
) -> None:
    """Run these tasks; the result of each is on disk as soon as it is done."""
    if not tasks:
        return
    jobs, threads = plan_jobs(source.cohort, tasks, settings, jobs)
    if jobs == 1:
        for task in tasks:
            folder.save(task, run_task(source.cohort, task, settings, threads))
            on_done(task)
        return
    with saved_cohort(source) as path:
        setup = {
            "cohort": str(path),
            "digest": cohort_digest(source.cohort),
            "folder": str(folder.path.resolve()),
            "settings": asdict(settings),
            "threads": threads,
        }
        run_workers(__name__, setup, tasks, jobs=jobs, threads=threads, on_done=on_done)


def plan_jobs(cohort: Cohort, tasks: list[Task], settings: FitSettings, jobs: int | None) -> tuple[int, int]:
    """Return the number of processes and of threads of each, within the cores and the memory available."""
    cores = available_cores()
    if jobs is None:
        seconds = SECONDS_PER_VISIT * cohort.n_visits * sum(task.cost for task in tasks)
        jobs = 1 if seconds < STARTUP_SECONDS else cores
        largest = max(tasks, key=lambda task: task.rank)
        fits_in_memory = MEMORY_FRACTION * free_memory() / fit_bytes(estimator(largest, settings), cohort)
        jobs = min(jobs, max(1, int(min(fits_in_memory, cores))))
    jobs = min(jobs, len(tasks))
    return jobs, max(1, cores // jobs)


@contextmanager
def saved_cohort(source: CohortSource) -> Iterator[Path]:
    """Yield a folder that workers can map the cohort from; a cohort in memory is saved temporarily."""
    if source.path is not None:
        yield source.path.resolve()
        return
    with temporary_folder(TEMPORARY_PREFIX) as folder:
        source.cohort.save(folder / "cohort")
        yield folder / "cohort"


def prepare_worker(setup: dict[str, Any]) -> Callable[[Any], None]:
    """Return the function that runs a task in a worker process; all workers map the same pages of the cohort."""
    cohort = Cohort.load(setup["cohort"], mmap=True)
    if cohort_digest(cohort) != setup["digest"]:
        raise InputError(f"{setup['cohort']} was changed during the selection: start it again.")
    settings, folder = FitSettings(**setup["settings"]), SelectionFolder(Path(setup["folder"]))

    def run(fields: list[Any]) -> None:
        task = Task(*fields)
        folder.save(task, run_task(cohort, task, settings, setup["threads"]))

    return run
