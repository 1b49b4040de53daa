"""`select`: fit the grid, choose a cell, collect evidence for its phenotypes."""

import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import cohort_digest
from phenotaste.errors import InputError
from phenotaste.runs.folder import RunSettings
from phenotaste.runs.progress import Progress, Reporter
from phenotaste.selection import matching, rules
from phenotaste.selection.execution import TEMPORARY_PREFIX, CohortSource, load_source, run_tasks
from phenotaste.selection.fits import SelectionFolder, estimator, fit
from phenotaste.selection.grid import (
    BOOTSTRAP,
    START,
    Cell,
    FitSettings,
    Grid,
    Task,
    checked_grid,
    half_tasks,
)
from phenotaste.selection.selection import Selection
from phenotaste.selection.table import grid_table, write_table
from phenotaste.storage.locks import temporary_folder
from phenotaste.validation import check_integer, check_seed

if TYPE_CHECKING:
    import pandas as pd


def select(
    c: Cohort | str | os.PathLike[str],
    ranks: Iterable[int] | int,
    lams: Iterable[float] | float = (0.01,),
    mus: Iterable[float] | float = (1.0,),
    n_init: int = 10,
    rule: str | None = None,
    *,
    smooths: Iterable[float] | float | None = None,
    bootstraps: int = 0,
    halves: int = 2,
    consensus: bool = False,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    jobs: int | None = None,
    random_state: int = 0,
    objective: Literal["relative", "paper"] = "relative",
    balance: float = 0.5,
    init: Literal["short_fits", "nmf", "nmf_visits", "random"] = "short_fits",
    max_iter: int = 200,
    tol: float = 1e-5,
    dtype: Literal["float64", "float32"] = "float64",
    callback: Callable[[Progress[Task]], object] | None = None,
) -> Selection:
    """Fit every cell of ranks × lams × mus × smooths from several starts, and choose a model.

    Parameters
    ----------
    c : a cohort, or the folder of a saved one, which worker processes map without a copy.
    ranks, lams, mus, smooths : the grid; one value or several along each axis.
    n_init : starts of each cell, at least two.
    rule : the name of the rule that chooses the cell, one of `selection.RULES`; by default "replication", or
        "reproducibility" with halves=0. The model is the start of that cell with the lowest objective. "stability" is
        the paper's.
    bootstraps : bootstrap samples of the patients to which the chosen cell is fitted, as evidence for each phenotype.
    halves : how often the patients are split into two random halves, which are fitted separately for every cell: do
        their phenotypes match, and which of the chosen model do they have? Each split costs about as much as five
        starts; 0 omits them.
    consensus : also average the phenotypes over the starts of the chosen cell.
    out : folder for every finished fit, tables, figures and the best model; nothing in it is about a single patient.
    resume : resume the selection in `out`; the result has the same bits as without an interruption. The grid may be
        extended.
    jobs : processes; by default the number of cores, or fewer if the fits are small or memory is short.
    random_state : an integer. The seeds of the fits follow from it, the rank and the number of the start.
    objective, balance, init, max_iter, tol, dtype : as in `TASTE`.
    callback : called after each fit with a record (done, total, task, fraction, seconds_left).

    Examples
    --------
    >>> from phenotaste import selection, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> result = selection.select(cohort, ranks=[2, 3], n_init=2, halves=1)
    >>> result.table[["rank", "lam", "mu", "starts"]].to_numpy().tolist()
    [[2.0, 0.01, 1.0, 2.0], [3.0, 0.01, 1.0, 2.0]]
    >>> result.best.V_.shape == (30, result.rank)
    True
    """
    grid = checked_grid(ranks, lams, mus, n_init, smooths, objective)
    bootstraps, halves = check_integer("bootstraps", bootstraps), check_integer("halves", halves)
    settings = FitSettings(init, objective, balance, max_iter, tol, dtype, check_seed(random_state))
    source = load_source(c)
    check_fits(source.cohort, grid, settings)
    halves = halves if source.cohort.persons.max() else 0  # one patient has no halves
    rule = rules.checked_rule(rule, halves)
    if jobs is not None:
        check_integer("jobs", jobs, min=1)
    source.check_output(out, "selection")
    with ExitStack() as stack:
        path = stack.enter_context(temporary_folder(TEMPORARY_PREFIX)) if out is None else Path(out)
        folder = SelectionFolder(path)
        if out is not None:
            stack.enter_context(folder.locked())
        identity = {"cohort": cohort_digest(source.cohort)}
        run = RunSettings(__version__, identity, {**asdict(settings), "grid": asdict(grid)})
        folder.open(run, resume=resume)
        search = Search(source, grid, settings, folder, rule, bootstraps, halves, jobs, callback)
        result = search.run(consensus)
        if result.warning is not None:
            warnings.warn(result.warning, stacklevel=2)
        if out is not None:
            result.save(folder)
        return result


@dataclass
class Search:
    """The steps of one call of `select`."""

    source: CohortSource
    grid: Grid
    settings: FitSettings
    folder: SelectionFolder
    rule: str
    bootstraps: int
    halves: int
    jobs: int | None
    callback: Callable[[Progress[Task]], object] | None

    def run(self, consensus: bool) -> Selection:
        table = self.fit_grid()
        chosen = rules.choose(self.rule, table)
        row = table.loc[chosen]
        cell = Cell(int(row["rank"]), float(row["lam"]), float(row["mu"]), float(row["smooth"]))
        start = Task(START, *cell, int(row["best_start"]))
        starts = self.folder.load_all(self.grid.starts(cell))
        best_start, others = starts[start], [result for task, result in starts.items() if task != start]
        resampled = [Task(BOOTSTRAP, *cell, number) for number in range(self.bootstraps)]
        self.fit(resampled)
        halves = self.folder.load_all(half_tasks(cell, self.halves))
        best = fit(self.source.cohort, start, self.settings)
        average = (
            matching.consensus_model(best, matching.average(best_start, others), self.source.cohort)
            if consensus
            else None
        )
        return Selection(
            table=table.assign(chosen=table.index == chosen),
            best=best,
            rule=self.rule,
            start=start.number,
            evidence=matching.evidence(
                best_start, others, self.folder.load_all(resampled).values(), halves.values()
            ),
            consensus=average,
            definitions=[result.V for result in starts.values()],
        )

    def fit_grid(self) -> "pd.DataFrame":
        """Run all fits that the choice depends on; if interrupted, write the table of those that are finished."""
        try:
            self.fit(list(self.grid.tasks(self.halves)), later=self.bootstraps)
        except KeyboardInterrupt:
            write_table(self.folder, grid_table(self.folder, self.grid, self.halves))
            raise
        table = grid_table(self.folder, self.grid, self.halves)
        write_table(self.folder, table)
        if table["dissimilarity"].isna().all():
            raise InputError(
                "No start gave definitions that can be compared: check the data for extreme values."
            )
        return table

    def fit(self, tasks: list[Task], later: int = 0) -> None:
        pending = self.folder.pending(tasks)
        reporter = Reporter(
            pending,
            lambda task: task.cost,
            self.callback,
            finished=len(tasks) - len(pending),
            later=later,
        )
        run_tasks(self.source, pending, self.folder, self.settings, self.jobs, reporter.done)


def check_fits(cohort: Cohort, grid: Grid, settings: FitSettings) -> None:
    """Refuse at once what a fit would refuse, and warn once instead of in every fit."""
    largest = Task(START, grid.ranks[-1], grid.lams[0], grid.mus[0], grid.smooths[0], 0)
    estimator(largest, settings).validate(cohort)
    if 0.0 in grid.mus:
        warnings.warn("mu=0 drops the uniqueness term: the phenotypes are not unique.", stacklevel=3)
