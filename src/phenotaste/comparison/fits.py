"""One fit of a comparison, a function of cohort, task and settings, and the folder of finished fits."""

import warnings
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.comparison.measures import aucs, held_out_error
from phenotaste.comparison.methods import make
from phenotaste.comparison.tasks import GROUP, HALF, SPLIT, START, FitSettings, Task
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate, rounding_key
from phenotaste.errors import InputError
from phenotaste.prediction.split_cohorts import draw_split, split_cohort, with_columns
from phenotaste.runs.folder import RunFolder
from phenotaste.runs.resources import peak_memory, reset_peak_memory, timed
from phenotaste.selection.fits import halves
from phenotaste.storage.encoding import json_value, pack, unpack

WARM_UP_PATIENTS = 30
TOP = 10  # one in so many patients has the highest scores
FIGURES = ("rmse_", "cpi_", "cpi_present_", "n_iter_", "outcome_")


class Result(NamedTuple):
    """What is kept of a fit: definitions and figures, nothing about fewer than 11 patients."""

    V: Array | None
    F: Array | None
    figures: dict[str, Any]


class ComparisonFolder(RunFolder[Task, Result]):
    """A comparison on disk."""

    kind, results_name = "comparison", "fits"

    def file_name(self, task: Task) -> str:
        return f"{task.name}.safetensors"

    def encode(self, task: Task, result: Result) -> bytes:
        arrays = {"V": result.V, "F": result.F}
        known = {name: np.asarray(array, np.float64) for name, array in arrays.items() if array is not None}
        return pack(json_value(result.figures), known)

    def decode(self, task: Task, content: bytes) -> Result:
        unpacked = unpack(content)
        return Result(unpacked.arrays.get("V"), unpacked.arrays.get("F"), unpacked.record)


class Patients(NamedTuple):
    """The cohort of a comparison, with what its tasks need beside it."""

    cohort: Cohort
    case: Array | None = None  # which patients have the second label
    groups: Array | None = None  # the position of each patient's group in `Plan.groups`, -1 for none


def run_task(patients: Patients, task: Task, settings: FitSettings, threads: int | None = None) -> Result:
    """Fit and measure; of the result only times and memory differ from run to run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one of many fits
        run = {START: run_start, HALF: run_half, GROUP: run_group, SPLIT: run_split}[task.kind]
        return run(patients, task, settings, threads)


def run_start(patients: Patients, task: Task, settings: FitSettings, threads: int | None) -> Result:
    """A fit of all patients, of which time and memory are measured."""
    cohort = patients.cohort
    warm_up(task, cohort, settings, threads)
    before = reset_peak_memory()
    model, figures = timed_fit(task, cohort, settings, threads)
    peak = peak_memory()
    figures["memory"] = None if before is None or peak is None else max(peak - before, 0)
    figures |= {name.rstrip("_"): getattr(model, name, None) for name in FIGURES}
    figures["error"] = held_out_error(model, cohort)
    if task.number == 0 and patients.case is not None:
        figures["outcome_top"] = outcome_of_top(model, patients, settings.trusted)
    return result_of(model, figures)


def run_half(patients: Patients, task: Task, settings: FitSettings, threads: int | None) -> Result:
    """A fit of one half of the patients, and its error in the other half."""
    order = settings.half_order(task.number, int(patients.cohort.persons.max()) + 1)
    fitted, others = halves(patients.cohort, order, task.number)
    model, figures = timed_fit(task, fitted, settings, threads)
    figures["held_out_error"] = held_out_error(model, others)
    return result_of(model, figures)


def run_group(patients: Patients, task: Task, settings: FitSettings, threads: int | None) -> Result:
    assert patients.groups is not None
    members = patients.cohort[np.flatnonzero(patients.groups == task.number)]
    return result_of(*timed_fit(task, members, settings, threads))


def run_split(patients: Patients, task: Task, settings: FitSettings, threads: int | None) -> Result:
    """A fit of training patients, and what its scores predict of test patients."""
    cohort, case = patients.cohort, patients.case
    assert case is not None
    split = draw_split(case, task.number, settings.random_state, cohort.persons)
    cohorts = split_cohort(cohort, case, split)
    model = make(task.method, task.rank, settings.seed(task), settings.methods(threads))
    if hasattr(model, "predict_proba"):
        model.fit(cohorts.train, validation=cohorts.validation)
    else:
        model.fit(cohorts.train)
    found = aucs(model, cohorts.train, cohorts.validation, cohorts.test, settings.seed(task))
    return Result(None, None, {"auc": found.scores, "auc_static": found.static, "auc_size": found.size})


compiled: set[tuple[str, int | None]] = set()


def warm_up(task: Task, cohort: Cohort, settings: FitSettings, threads: int | None) -> None:
    """Fit a few patients before the first timed fit of a method and rank: its kernels are compiled or loaded."""
    if (task.method, task.rank) in compiled:
        return
    with suppress(InputError, ValueError):  # of a method that needs more patients
        timed_fit(task, cohort[: min(len(cohort), WARM_UP_PATIENTS)], settings, threads)
    compiled.add((task.method, task.rank))


def timed_fit(
    task: Task, cohort: Cohort, settings: FitSettings, threads: int | None
) -> tuple[Any, dict[str, Any]]:
    model = make(task.method, task.rank, settings.seed(task), settings.methods(threads))
    with timed() as figures:
        model.fit(cohort)
    return model, figures


def result_of(model: Any, figures: dict[str, Any]) -> Result:
    return Result(model.V_, model.F_, figures)


def outcome_of_top(model: Any, patients: Patients, trusted: bool) -> list[float | None]:
    """The share of cases among the tenth of the patients with the highest score of each phenotype.

    From rounded counts; None where too few are cases or too few are not.
    """
    assert patients.case is not None
    W = np.asarray(model.transform(patients.cohort), np.float64)
    n_top = max(1, len(W) // TOP)
    found = []
    for r in range(W.shape[1]):
        top = np.argsort(-W[:, r], kind="stable")[:n_top]
        gate = Gate(trusted=trusted, key=rounding_key(top, patients.case)).for_rows(
            patients.cohort.rows_per_patient
        )
        cases = gate.count("cases", int(patients.case[top].sum()))
        found.append(gate.share(cases, gate.count("patients", n_top)))
    return found


def without_columns(cohort: Cohort, prefix: str) -> Cohort:
    """The cohort without the static columns of one fact, which would tell its groups apart."""
    if cohort.static is None or cohort.static_names is None:
        return cohort
    kept = np.flatnonzero([not str(name).startswith(f"{prefix}=") for name in cohort.static_names])
    labels = cohort.labels
    narrower = with_columns(cohort, np.arange(cohort.n_features), kept)
    return narrower if labels is None else narrower.with_labels(labels)
