"""Doing a study: its cells one after the other or by several processes, each on disk at once, then tables and page."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phenotaste.errors import InputError
from phenotaste.runs.resources import available_cores
from phenotaste.runs.workers import run_crew
from phenotaste.selection.files import locked
from phenotaste.selection.grid import checked_count
from phenotaste.studies import writing
from phenotaste.studies.results import Folder
from phenotaste.studies.study import Cell, Options, Study, Work, check_options, load
from phenotaste.studies.worker import first_order, run_cell

if TYPE_CHECKING:
    import pandas as pd


class Progress(NamedTuple):
    """What a callback is told after each cell, and on the way through a long one."""

    done: int
    total: int
    share: float  # of the whole work, by cost
    seconds_left: float


class Finished(NamedTuple):
    """A study that is done: a row for each cell, a row for each setting, and the folder with everything."""

    name: str
    folder: Path
    results: "pd.DataFrame"
    summary: "pd.DataFrame"
    files: list[str]


def run(
    name: str,
    out: str | os.PathLike[str],
    options: Options | None = None,
    *,
    resume: bool = False,
    jobs: int | None = None,
    threads: int | None = None,
    callback: Callable[[Progress], object] | None = None,
) -> Finished:
    """Run a study of the paper, or go on with one, and write its tables, figure and page.

    Parameters
    ----------
    name : one of `studies.NAMES`.
    out : folder for all of it; every finished cell is a file in it at once.
    options : what to change of the study; `Options(quick=True)` is a tiny version.
    resume : go on with what `out` holds.
    jobs : processes, of studies that take no times; as many as cores by default.
    threads : of a fit; by default all cores, or one where several processes work.
    callback : called with a record (done, total, share, seconds_left).

    Examples
    --------
    >>> from phenotaste import studies
    >>> found = studies.run("recovery", "study", studies.Options(quick=True, starts=1), jobs=1)
    >>> found.files
    ['results.csv', 'summary.csv', 'recovery.md', 'recovery.png', 'recovery.pdf']
    >>> found.summary["method"].unique().tolist()
    ['TASTE', 'TASTE to the letter', 'CohenPlus', 'CopaPlus']
    """
    return carry_out(load(name), Path(out), options or Options(), resume, jobs, threads, callback)


def carry_out(
    study: Study,
    out: Path,
    options: Options,
    resume: bool = False,
    jobs: int | None = None,
    threads: int | None = None,
    callback: Callable[[Progress], object] | None = None,
) -> Finished:
    """Do what is not done yet, then write everything; what is finished when it is interrupted is left as a table."""
    check_options(study, options)
    jobs, threads = share_out(study, jobs, threads)
    cells = study.cells(options)
    folder = Folder(out)
    with locked(folder.path, "study"):
        folder.begin(study.NAME, options, resume)
        todo = folder.unfinished(cells)
        try:
            work_off(study, todo, folder, options, jobs, threads, Reporter(study, cells, todo, callback))
        except KeyboardInterrupt:
            with suppress(OSError):
                writing.write_results(folder, cells)
            raise
        return Finished(study.NAME, folder.path, *writing.write_all(study, folder, cells))


def share_out(study: Study, jobs: int | None, threads: int | None) -> tuple[int, int | None]:
    """Processes, and threads for each; times are taken by one process alone."""
    for what, value in (("jobs", jobs), ("threads", threads)):
        if value is not None:
            checked_count(value, what, 1)
    if study.TIMED:
        if jobs is not None and jobs > 1:
            raise InputError(
                f"The study {study.NAME} takes times, so that its cells run one by one: leave out jobs."
            )
        return 1, threads
    if getattr(study, "WIDE", False):
        return 1, jobs or threads
    cores = available_cores()
    jobs = cores if jobs is None else jobs
    return jobs, threads or max(1, cores // jobs)


def work_off(
    study: Study,
    todo: list[Cell],
    folder: Folder,
    options: Options,
    jobs: int,
    threads: int | None,
    told: "Reporter",
) -> None:
    jobs = min(jobs, len(todo))
    if jobs > 1:
        order = first_order(study.NAME, folder.path.resolve(), options, threads)
        run_crew(
            todo,
            order,
            jobs=jobs,
            threads=threads or 1,
            done=told.finished,
            entry="phenotaste.studies.worker",
        )
        return
    for cell in todo:
        work = Work(options, threads, folder.workplace(cell), told.within(cell))
        run_cell(study, cell, work, folder)
        told.finished(cell)


class Reporter:
    """Counts what is done, and tells how long the rest will take at the pace so far."""

    def __init__(
        self,
        study: Study,
        cells: list[Cell],
        todo: list[Cell],
        callback: Callable[[Progress], object] | None,
    ) -> None:
        self.cost, self.callback = study.cost, callback
        self.total, self.done = len(cells), len(cells) - len(todo)
        self.whole, self.paid = sum(map(study.cost, todo)), 0.0
        self.began = time.monotonic()

    def finished(self, cell: Cell) -> None:
        self.done += 1
        self.paid += self.cost(cell)
        self.tell(self.paid)

    def within(self, cell: Cell) -> Callable[[float], None]:
        return lambda share: self.tell(self.paid + share * self.cost(cell))

    def tell(self, paid: float) -> None:
        if self.callback is not None and paid > 0:
            left = (time.monotonic() - self.began) * max(self.whole - paid, 0.0) / paid
            self.callback(Progress(self.done, self.total, min(paid / self.whole, 1.0), left))
