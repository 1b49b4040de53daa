"""Running a study: its cells in this process or in worker processes, then its tables, figure and page."""

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from phenotaste import __version__
from phenotaste.errors import InputError
from phenotaste.runs.folder import RunSettings
from phenotaste.runs.progress import Progress, Reporter
from phenotaste.runs.resources import affinity_cores, available_cores, processor_name, timed
from phenotaste.runs.workers import run_workers
from phenotaste.studies.results import CellResult, StudyFolder, write_all, write_results
from phenotaste.studies.study import Cell, CellContext, Options, Row, Study, check_options, load
from phenotaste.validation import check_integer

if TYPE_CHECKING:
    import pandas as pd

PACKAGES = ("phenotaste", "numpy", "scipy", "numba", "scikit-learn")


class StudyResult(NamedTuple):
    """A finished study."""

    name: str
    folder: Path
    results: "pd.DataFrame"  # at least a row for each cell
    summary: "pd.DataFrame"  # a row for each setting
    files: list[str]


class Jobs(NamedTuple):
    """How the cells are run."""

    processes: int | None = None
    threads: int | None = None  # of each process


def run(
    name: str,
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    resume: bool = False,
    jobs: int | None = None,
    threads: int | None = None,
    callback: Callable[[Progress[Cell]], object] | None = None,
) -> StudyResult:
    """Run or resume a study of the paper, and write its tables, figure and page.

    Parameters
    ----------
    name : one of `studies.NAMES`.
    out : folder for all files; every finished cell is written to it at once.
    options : options of the study; `Options(quick=True)` is a tiny version.
    resume : resume the study in `out`.
    jobs : processes, for studies that measure no times; the number of cores by default.
    threads : threads of a fit; by default all cores, or one if there are several processes.
    callback : called with a record (done, total, task, fraction, seconds_left).

    Examples
    --------
    >>> from phenotaste import studies
    >>> result = studies.run("scale", "study", studies.Options(quick=True))
    >>> result.files
    ['results.csv', 'summary.csv', 'scale.md', 'scale.png', 'scale.pdf']
    >>> sorted(result.summary["method"].unique())
    ['CohenPlus as published', 'CopaPlus', 'TASTE']
    """
    return run_study(
        load(name), Path(out), options or Options(), Jobs(jobs, threads), resume=resume, callback=callback
    )


def run_study(
    study: Study,
    out: Path,
    options: Options,
    jobs: Jobs = Jobs(),  # noqa: B008 (immutable)
    *,
    resume: bool = False,
    callback: Callable[[Progress[Cell]], object] | None = None,
) -> StudyResult:
    """Run the cells that are not finished, then write all files; if interrupted, write the finished results."""
    check_options(study, options)
    processes, threads = plan_jobs(study, jobs)
    cells = study.cells(options)
    folder = StudyFolder(out)
    with folder.locked():
        folder.open(RunSettings(__version__, {"study": study.NAME}, asdict(options)), resume=resume)
        pending = folder.pending(cells)
        reporter = Reporter(pending, study.cost, callback, finished=len(cells) - len(pending))
        try:
            if min(processes, len(pending)) > 1:
                setup = worker_setup(study.NAME, folder, options, threads)
                run_workers(
                    __name__, setup, pending, jobs=processes, threads=threads or 1, on_done=reporter.done
                )
            else:
                run_pending(study, pending, folder, CellContext(options, threads), reporter)
        except KeyboardInterrupt:
            with suppress(OSError):
                write_results(folder, cells)
            raise
        return StudyResult(study.NAME, folder.path, *write_all(study, folder, cells))


def plan_jobs(study: Study, jobs: Jobs) -> tuple[int, int | None]:
    """Return the number of processes and of threads of each; times are measured in a single process."""
    processes, threads = jobs
    for name, value in (("jobs", processes), ("threads", threads)):
        if value is not None:
            check_integer(name, value, min=1)
    if study.TIMED:
        if processes is not None and processes > 1:
            raise InputError(
                f"The study {study.NAME} measures times, so its cells run one after another: leave out jobs."
            )
        return 1, threads
    if getattr(study, "PARALLEL_CELLS", False):
        return 1, processes or threads
    cores = available_cores()
    processes = processes or cores
    return processes, threads or max(1, cores // processes)


def run_pending(
    study: Study, pending: list[Cell], folder: StudyFolder, context: CellContext, reporter: Reporter[Cell]
) -> None:
    """Run cells in this process."""
    for cell in pending:

        def on_progress(fraction: float, cell: Cell = cell) -> None:
            reporter.update(cell, fraction)

        run_cell(study, cell, replace(context, on_progress=on_progress), folder)
        reporter.done(cell)


def run_cell(study: Study, cell: Cell, context: CellContext, folder: StudyFolder) -> None:
    """Run a cell and save its rows, with the time they took and the environment."""
    work_folder = folder.work_folder(cell)
    if hasattr(study, "FILES"):
        work_folder.mkdir(parents=True, exist_ok=True)
    with timed() as taken:
        rows = study.run(cell, replace(context, folder=work_folder))
    facts = {f"cell_{name}": value for name, value in taken.items()} | environment(context.threads)
    folder.save(cell, CellResult(rows if isinstance(rows, list) else [rows], facts))


def environment(threads: int | None) -> Row:
    """Return the cores, processor and versions that times depend on, but nothing that identifies the computer."""
    return {
        "cores": affinity_cores(),
        "threads": available_cores() if threads is None else threads,
        "processor": processor_name(),
        "versions": versions(),
    }


def versions() -> str:
    installed = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            installed.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(installed)


def worker_setup(name: str, folder: StudyFolder, options: Options, threads: int | None) -> dict[str, Any]:
    path = str(folder.path.resolve())
    return {"study": name, "folder": path, "options": asdict(options), "threads": threads}


def prepare_worker(setup: dict[str, Any]) -> Callable[[Cell], None]:
    """Return the function that runs a cell in a worker process."""
    study, folder = load(setup["study"]), StudyFolder(Path(setup["folder"]))
    context = CellContext(Options(**setup["options"]), setup["threads"])
    return lambda cell: run_cell(study, cell, context, folder)
