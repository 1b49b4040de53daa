"""`select`: fit the grid, choose a cell, look for evidence, hand out the record."""

import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.selection import rules
from phenotaste.selection.consensus import consensus as consensus_of
from phenotaste.selection.consensus import consensus_model
from phenotaste.selection.evidence import evidence
from phenotaste.selection.execution import Progress, Reporter, Source, private_folder, run_tasks
from phenotaste.selection.files import Result, locked
from phenotaste.selection.fits import estimator, fit
from phenotaste.selection.folder import Folder
from phenotaste.selection.grid import (
    BOOTSTRAP,
    HALF,
    START,
    Cell,
    Fitting,
    Grid,
    Task,
    checked_count,
    checked_grid,
    checked_seed,
)
from phenotaste.selection.selection import Selection
from phenotaste.selection.table import table_of, write_table

if TYPE_CHECKING:
    import pandas as pd


def select(
    c: Cohort | str | os.PathLike[str],
    ranks: Iterable[int] | int,
    lams: Iterable[float] | float = (0.1,),
    mus: Iterable[float] | float = (1.0,),
    n_init: int = 10,
    rule: str = rules.DEFAULT,
    *,
    bootstraps: int = 0,
    holdout: int = 0,
    consensus: bool = False,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    jobs: int | None = None,
    random_state: int = 0,
    init: Literal["nmf", "random", "uniform", "mixed"] = "mixed",
    weights: Literal["relative", "absolute"] = "relative",
    normalize: bool = True,
    solver: Literal["cd", "bpp"] = "cd",
    max_iter: int = 200,
    tol: float = 1e-4,
    dtype: Literal["float64", "float32"] = "float64",
    callback: Callable[[Progress], object] | None = None,
) -> Selection:
    """Fit every cell of ranks × lams × mus from several starts, and choose a model.

    Parameters
    ----------
    c : a cohort, or the folder of a saved one, which worker processes then share without a copy.
    ranks, lams, mus : the grid; a number or several.
    n_init : starts of each cell, at least two.
    rule : the name of the rule that chooses the cell, of `selection.RULES`; within it the start with the lowest RMSE
        is taken. "stability" is the paper's.
    bootstraps : resamples of the patients on which the chosen cell is fitted again, as evidence for each phenotype.
    holdout : times the patients are split into halves, each fitted and tried on the other, for every cell.
    consensus : also average the phenotypes over the starts of the chosen cell.
    out : folder for every finished fit, tables, figures and the best model; nothing in it is about a single patient.
    resume : go on with what `out` holds; the end is the same, bit for bit, as without a break. The grid may grow.
    jobs : processes; by default as many as there are cores, or fewer where the work is small or memory short.
    random_state : a whole number. Seeds of the fits follow from it, from the rank and from the number of the start.
    init, weights, normalize, solver, max_iter, tol, dtype : as in `TASTE`; "mixed" starts every second fit at random
        and the others from NMF. `tol` is looser than TASTE's.
    callback : called after each fit with a record (done, total, task, share, seconds_left).

    Examples
    --------
    >>> from phenotaste import selection, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> found = selection.select(cohort, ranks=[2, 3, 4], n_init=3)
    >>> found.table[["rank", "lam", "mu", "starts"]].to_numpy().tolist()
    [[2.0, 0.1, 1.0, 3.0], [3.0, 0.1, 1.0, 3.0], [4.0, 0.1, 1.0, 3.0]]
    >>> found.best.V_.shape == (30, found.rank)
    True
    """
    grid = checked_grid(ranks, lams, mus, n_init)
    rule = rules.checked_rule(rule)
    bootstraps, holdout = checked_count(bootstraps, "bootstraps"), checked_count(holdout, "holdout")
    fitting = Fitting(init, weights, normalize, solver, max_iter, tol, dtype, checked_seed(random_state))
    source = source_of(c)
    check_fits(source.cohort, grid, fitting)
    if jobs is not None:
        checked_count(jobs, "jobs", least=1)
    if (
        out is not None
        and source.path is not None
        and Path(out).resolve().is_relative_to(source.path.resolve())
    ):
        # Results are for sharing, cohorts are not.
        raise InputError(f"{out} lies within the cohort's folder: choose another place for the selection.")
    with ExitStack() as stack:
        folder = Folder(stack.enter_context(private_folder()) if out is None else Path(out))
        if out is not None:
            stack.enter_context(locked(folder.path, "selection"))
        folder.begin(source.cohort, grid, fitting, resume)
        search = Search(source, grid, fitting, folder, rule, bootstraps, holdout, jobs, callback)
        found = search.run(consensus)
        if out is not None:
            found.save(folder)
        return found


class Search:
    """One run of `select` on its way."""

    def __init__(
        self,
        source: Source,
        grid: Grid,
        fitting: Fitting,
        folder: Folder,
        rule: str,
        bootstraps: int,
        holdout: int,
        jobs: int | None,
        callback: Callable[[Progress], object] | None,
    ) -> None:
        self.source, self.grid, self.fitting, self.folder = source, grid, fitting, folder
        self.rule, self.bootstraps, self.holdout = rule, bootstraps, holdout
        self.jobs, self.callback = jobs, callback

    def run(self, consensus: bool) -> Selection:
        table = self.fit_grid()
        chosen = rules.choose(self.rule, table)
        row = table.loc[chosen]
        cell = Cell(int(row["rank"]), float(row["lam"]), float(row["mu"]))
        start = Task(START, *cell, int(row["best_start"]))
        starts = self.results(self.grid.starts(cell))
        best_start, others = starts[start], [result for task, result in starts.items() if task != start]
        resampled = [Task(BOOTSTRAP, *cell, number) for number in range(self.bootstraps)]
        self.fit(resampled)
        best = fit(self.source.cohort, start, self.fitting)
        averaged = (
            consensus_model(best, consensus_of(best_start, others), self.source.cohort) if consensus else None
        )
        return Selection(
            table=table.assign(chosen=table.index == chosen),
            best=best,
            rule=self.rule,
            start=start.number,
            evidence=evidence(best_start, others, self.results(resampled).values()),
            consensus=averaged,
            definitions=[result.V for result in starts.values()],
        )

    def fit_grid(self) -> "pd.DataFrame":
        """All fits that the choice looks at; what is finished when it is interrupted is left as a table."""
        tasks = [task for cell in self.grid.cells for task in [*self.grid.starts(cell), *self.halves(cell)]]
        try:
            self.fit(tasks, later=self.bootstraps)
        except KeyboardInterrupt:
            write_table(self.folder, table_of(self.folder, self.grid, self.holdout))
            raise
        table = table_of(self.folder, self.grid, self.holdout)
        write_table(self.folder, table)
        if table["dissimilarity"].isna().all():
            raise InputError(
                "No start gave definitions that can be compared: look for extreme values in the data."
            )
        return table

    def halves(self, cell: Cell) -> list[Task]:
        return [Task(HALF, *cell, number) for number in range(2 * self.holdout)]

    def fit(self, tasks: list[Task], later: int = 0) -> None:
        missing = self.folder.unfinished(tasks)
        report = Reporter(missing, len(tasks) - len(missing), later, self.callback)
        run_tasks(self.source, missing, self.folder, self.fitting, self.jobs, report)

    def results(self, tasks: list[Task]) -> dict[Task, Result]:
        found = {task: self.folder.result(task) for task in tasks}
        return {task: result for task, result in found.items() if result is not None}


def source_of(c: Any) -> Source:
    if isinstance(c, Cohort):
        return Source(c, None)
    if isinstance(c, str | os.PathLike):
        return Source(Cohort.load(c), Path(c))
    raise InputError(f"select works on a Cohort or the folder of one, not on {type(c).__name__}.")


def check_fits(cohort: Cohort, grid: Grid, fitting: Fitting) -> None:
    """Refuse before the long work what a fit would refuse, and say once what every fit would say."""
    largest = Task(START, grid.ranks[-1], grid.lams[0], grid.mus[0], 0)
    estimator(largest, fitting)._read(cohort)
    if 0.0 in grid.mus:
        warnings.warn(
            "mu=0 drops the uniqueness term: the phenotypes found are one choice of many.", stacklevel=3
        )
