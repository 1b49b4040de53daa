"""One fit of a selection: a pure function of cohort, settings and task, whoever runs it, wherever, on any threads."""

import time
import warnings
from typing import Any

import numpy as np

from phenotaste import metrics
from phenotaste.cohort import Cohort
from phenotaste.selection.files import Result
from phenotaste.selection.grid import BOOTSTRAP, HALF, Fitting, Task
from phenotaste.taste import TASTE


def estimator(task: Task, fitting: Fitting, threads: int | None = None) -> TASTE:
    """The plain TASTE of a task: fitting it again gives the same bits."""
    shared: dict[str, Any] = vars(fitting) | {
        "random_state": fitting.seed(task),
        "init": fitting.init_of(task),
    }
    return TASTE(task.rank, lam=task.lam, mu=task.mu, n_jobs=threads, **shared)


def run_task(cohort: Cohort, task: Task, fitting: Fitting, threads: int | None = None) -> Result:
    """Fit, and keep definitions and figures; times are beside the figures and differ from run to run."""
    wall, processor = time.perf_counter(), time.process_time()
    fitted_on, unseen = patients_of(cohort, task, fitting)
    model = fit(fitted_on, task, fitting, threads)
    figures = figures_of(model)
    if unseen is not None:
        figures |= unseen_figures(model, fitted_on, unseen)
    figures["seconds"] = time.perf_counter() - wall
    figures["processor_seconds"] = time.process_time() - processor
    return Result(model.V_, model.F_, model.H_, figures)


def fit(cohort: Cohort, task: Task, fitting: Fitting, threads: int | None = None) -> TASTE:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said once, before the first fit
        return estimator(task, fitting, threads).fit(cohort)


def patients_of(cohort: Cohort, task: Task, fitting: Fitting) -> tuple[Cohort, Cohort | None]:
    """The patients to fit, and those to be told afterwards."""
    K = len(cohort)
    if task.kind == BOOTSTRAP:
        return cohort[np.sort(fitting.rng(task).integers(K, size=K))], None
    if task.kind != HALF:
        return cohort, None
    order = fitting.rng(task).permutation(K)
    halves = order[: K // 2], order[K // 2 :]
    mine, other = halves if task.number % 2 == 0 else halves[::-1]
    return cohort[np.sort(mine)], cohort[np.sort(other)]


def figures_of(model: TASTE) -> dict[str, Any]:
    figures = {
        "rmse": model.rmse_,
        "cpi": model.cpi_,
        "objective": float(model.loss_curve_[-1]),
        "iterations": model.n_iter_,
        "outcome": model.outcome_,
    }
    # JSON has no not-a-number.
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in figures.items()
    }


def unseen_figures(model: TASTE, seen: Cohort, unseen: Cohort) -> dict[str, Any]:
    """How well the definitions rebuild the visits of patients they were not fitted on, beside those they were."""
    return {"unseen_error": visits_error(model, unseen), "seen_error": visits_error(model, seen)}


def visits_error(model: TASTE, cohort: Cohort) -> float | None:
    """‖X − USVᵀ‖² as a share of ‖X‖²: unlike the RMSE it means the same for the two halves."""
    size = float(np.sum(np.asarray(cohort.visits.data, np.float64) ** 2))
    return 2 * float(metrics.losses(model, cohort).loss[:, 0].sum()) / size if size > 0 else None
