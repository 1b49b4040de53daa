"""One method on one split, from records to test figures, and the folder of finished splits."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate, rounding_key
from phenotaste.prediction import methods
from phenotaste.prediction.measures import (
    RISK_DECIMALS,
    bootstrap_measures,
    calibration,
    risk_groups,
    roc_curve,
)
from phenotaste.prediction.methods import Candidate, Fitted, TuningSettings
from phenotaste.prediction.split_cohorts import SplitCohorts, draw_split, split_cohort
from phenotaste.runs.folder import RunFolder
from phenotaste.storage.encoding import json_value, pack, unpack

STREAM = 3  # part of every seed: never renumber


class Task(NamedTuple):
    """One method on one split."""

    method: str
    split: int


class SplitResult(NamedTuple):
    """What is kept of a task; nothing in it is about a single patient unless `keep_risk` is set."""

    figures: dict[str, Any]
    arrays: dict[str, Array]


class SplitSettings(NamedTuple):
    """What all tasks of an evaluation have in common."""

    tuning: TuningSettings
    random_state: int = 0
    resamples: int = 1000  # of the patients, for intervals
    threads: int | None = None
    trusted: bool = False  # no disclosure control
    keep_risk: bool = False  # of every test patient


class EvaluationFolder(RunFolder[Task, SplitResult]):
    """An evaluation on disk."""

    kind, results_name = "prediction", "splits"

    def file_name(self, task: Task) -> str:
        return f"{task.method}-{task.split}.safetensors"

    def encode(self, task: Task, result: SplitResult) -> bytes:
        arrays = {name: np.asarray(array, np.float64) for name, array in result.arrays.items()}
        return pack(json_value(result.figures), arrays)

    def decode(self, task: Task, content: bytes) -> SplitResult:
        unpacked = unpack(content)
        return SplitResult(unpacked.record, unpacked.arrays)


def tune(
    cohorts: SplitCohorts,
    method: str,
    tuning: TuningSettings,
    seed: int,
    threads: int | None = None,
    on_fit: Callable[[Candidate], object] = lambda candidate: None,
) -> tuple[Candidate, Fitted, list[dict[str, Any]]]:
    """Fit every candidate and return the one with the highest validation AUC; test patients are not used."""
    best: tuple[Candidate, Fitted] | None = None
    tried: list[dict[str, Any]] = []
    for candidate in methods.candidates(method, tuning):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of single fits; a method that cannot be fitted raises
            fitted = methods.fit(method, candidate, cohorts, tuning, seed, threads)
        tried.append({**candidate._asdict(), "C": fitted.C, "validation_auc": fitted.validation_auc})
        if best is None or fitted.validation_auc > best[1].validation_auc:
            best = candidate, fitted
        on_fit(candidate)
    assert best is not None
    return *best, tried


def run_split(
    cohort: Cohort,
    case: Array,
    task: Task,
    settings: SplitSettings,
    on_fit: Callable[[Candidate], object] = lambda candidate: None,
) -> SplitResult:
    """Train and tune, then evaluate on the test patients once."""
    persons = cohort.persons
    split = draw_split(case, task.split, settings.random_state, persons)
    cohorts = split_cohort(cohort, case, split)
    seed = split_seed(settings.random_state, task.split)
    candidate, fitted, tried = tune(cohorts, task.method, settings.tuning, seed, settings.threads, on_fit)
    risk, test_case = fitted.risk(cohorts.test), case[split.test]
    measures = bootstrap_measures(
        risk,
        test_case,
        persons[split.test],
        int(persons.max()) + 1,
        settings.resamples,
        settings.random_state,
    )
    gate = gate_of(case, settings).keyed(rounding_key(split.test, risk, test_case))
    gate = gate.for_rows(cohort.rows_per_patient)
    figures: dict[str, Any] = {
        **candidate._asdict(),
        "C": fitted.C,
        "validation_auc": fitted.validation_auc,
        **measures.values,
        **{f"calibration_{name}": value for name, value in calibration(risk, test_case)._asdict().items()},
        **risk_range(risk, gate),
        "tried": tried,
        "groups": risk_groups(risk, test_case, gate),
    }
    arrays = {"resampled": measures.resampled}
    curve = roc_curve(risk, test_case, gate)
    if curve is not None:
        arrays["roc"] = curve
    if fitted.scores is not None:
        arrays |= definitions(fitted.scores, cohorts, cohort.n_features)
    if settings.keep_risk:
        arrays["risk"] = risk
    return SplitResult(figures, arrays)


def gate_of(case: Array, settings: SplitSettings) -> Gate:
    """The gate of an evaluation; splits have keys of their own."""
    return Gate(trusted=settings.trusted, key=rounding_key(case, np.array(settings.random_state)[None]))


def risk_range(risk: Array, gate: Gate) -> dict[str, float]:
    """Limits between which calibration curves are drawn: at least 11 test patients are beyond each; NaN if too few."""
    limits = gate.limits(risk) or (np.nan, np.nan)
    return {
        name: float(value if gate.trusted else round(value, RISK_DECIMALS))
        for name, value in zip(("risk_low", "risk_high"), limits, strict=True)
    }


def definitions(model: methods.ScoreModel, cohorts: SplitCohorts, n_features: int) -> dict[str, Array]:
    """Return V with a row for every feature of the cohort, and the coefficient per standard deviation of a score."""
    V = np.zeros((n_features, model.factors.V_.shape[1]))
    V[cohorts.features] = model.factors.V_
    return {"V": V, "coef": model.coef}


def split_seed(random_state: int, number: int) -> int:
    """Return the seed of all fits on a split: methods and candidates have the same starting points."""
    return int(np.random.SeedSequence([random_state, STREAM, number]).generate_state(1)[0])
