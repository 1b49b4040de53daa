"""One fit of a selection, a deterministic function of cohort, task and settings, and the folder of finished fits."""

import time
import warnings
from typing import Any, NamedTuple

import numpy as np

from phenotaste import metrics
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import align, columns_of_fitted
from phenotaste.cohort.persons import rows_of
from phenotaste.errors import InputError
from phenotaste.runs.folder import RunFolder
from phenotaste.selection.grid import BOOTSTRAP, HALF, START, FitSettings, Grid, Task
from phenotaste.storage.encoding import json_value, pack, unpack
from phenotaste.taste import TASTE


class Result(NamedTuple):
    """What is kept of one fit: definitions and figures, nothing about a single patient."""

    V: np.ndarray
    F: np.ndarray | None
    H: np.ndarray
    figures: dict[str, Any]


class SelectionFolder(RunFolder[Task, Result]):
    """A selection on disk."""

    kind, results_name = "selection", "fits"

    def file_name(self, task: Task) -> str:
        return f"{task.name}.safetensors"

    def encode(self, task: Task, result: Result) -> bytes:
        arrays = {"V": result.V, "H": result.H} | ({} if result.F is None else {"F": result.F})
        return pack(result.figures, {name: np.asarray(array, np.float64) for name, array in arrays.items()})

    def decode(self, task: Task, content: bytes) -> Result:
        unpacked = unpack(content)
        arrays = unpacked.arrays
        return Result(arrays["V"], arrays.get("F"), arrays["H"], unpacked.record)

    def check_settings(self, recorded: dict[str, Any], current: dict[str, Any]) -> None:
        """The grid may be extended; everything else has to be the same."""
        grids = []
        for settings in (recorded, current):
            try:
                grids.append(Grid(**{name: as_tuple(value) for name, value in settings["grid"].items()}))
            except (KeyError, TypeError, AttributeError):
                raise InputError(
                    f"{self.path} contains files that are not from a selection: choose another folder."
                ) from None
        super().check_settings(recorded | {"grid": None}, current | {"grid": None})
        if not grids[1].contains(grids[0]):
            raise InputError(
                f"{self.path} holds a grid that this one does not contain: a grid can be extended, not reduced; keep "
                "its ranks, weights and starts, or choose another folder."
            )


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def estimator(task: Task, settings: FitSettings, threads: int | None = None) -> TASTE:
    """Return the TASTE of a task: fitting it again gives the same bits."""
    shared: dict[str, Any] = vars(settings) | {
        "random_state": settings.seed(task),
        "init": settings.init,
        # With one start, another optimum would pass for an effect of other patients.
        "n_init": 1 if task.kind == START else None,
    }
    return TASTE(task.rank, lam=task.lam, mu=task.mu, smooth=task.smooth, n_jobs=threads, **shared)


def run_task(cohort: Cohort, task: Task, settings: FitSettings, threads: int | None = None) -> Result:
    """Fit, and return definitions and figures; of these only the times differ from run to run."""
    wall, processor = time.perf_counter(), time.process_time()
    fitted, held_out = task_patients(cohort, task, settings)
    model = fit(fitted, task, settings, threads)
    figures = fit_figures(model)
    if held_out is not None:
        figures["held_out_error"] = reconstruction_error(model, held_out)
        figures["fitted_error"] = reconstruction_error(model, fitted)
    figures["seconds"] = time.perf_counter() - wall
    figures["processor_seconds"] = time.process_time() - processor
    return Result(model.V_, model.F_, model.H_, figures)


def fit(cohort: Cohort, task: Task, settings: FitSettings, threads: int | None = None) -> TASTE:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # issued once, before the first fit
        return estimator(task, settings, threads).fit(cohort)


def task_patients(cohort: Cohort, task: Task, settings: FitSettings) -> tuple[Cohort, Cohort | None]:
    """Return the patients to fit, and those held out."""
    if task.kind not in (BOOTSTRAP, HALF):
        return cohort, None
    persons = cohort.persons  # all rows of a patient are drawn together
    K = int(persons.max()) + 1
    if task.kind == BOOTSTRAP:
        return cohort[np.sort(rows_of(persons, settings.rng(task).integers(K, size=K)))], None
    return halves(cohort, settings.rng(task).permutation(K), task.number)


def halves(cohort: Cohort, order: np.ndarray, number: int) -> tuple[Cohort, Cohort]:
    """Cut the patients, in this order, into two halves; an even number has the first half first, an odd one last."""
    persons, K = cohort.persons, len(order)
    parts = order[: K // 2], order[K // 2 :]
    first, second = (cohort[np.sort(rows_of(persons, part))] for part in parts)
    return (first, second) if number % 2 == 0 else (second, first)


def fit_figures(model: TASTE) -> dict[str, Any]:
    figures: dict[str, Any] = json_value(
        {
            "rmse": model.rmse_,
            "cpi": model.cpi_,
            "cpi_present": model.cpi_present_,
            "objective": model.loss_curve_[-1],
            "iterations": model.n_iter_,
            "outcome": model.outcome_,
        }
    )
    return figures


def reconstruction_error(model: TASTE, cohort: Cohort) -> float | None:
    """Return the mean over patients of ‖X − USVᵀ‖² / ‖X‖², which has the same meaning for two sets of patients."""
    patients, weights = metrics.losses(model, cohort)
    sizes = align(cohort, columns_of_fitted(model)).sizes
    counted = weights.influence > 0
    shares = 2 * patients.visit_error[counted] / (weights.scale[counted] * sizes[counted]) ** 2
    return float(np.mean(shares)) if counted.any() else None
