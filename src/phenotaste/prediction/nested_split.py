"""One method on one split, from raw records to test figures: a pure function, whoever runs it."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate
from phenotaste.prediction import methods
from phenotaste.prediction.calibration import calibration, risk_groups, roc_curve
from phenotaste.prediction.measures import measured
from phenotaste.prediction.methods import Candidate, Fitted, Grids
from phenotaste.prediction.split_cohorts import Parts, parts_of
from phenotaste.prediction.splits import Split

MIDDLE = (0.025, 0.975)  # of the predicted risks: where their calibration can be told
STREAM = 3  # part of every seed: never renumber


class Found(NamedTuple):
    """What is kept: figures, and arrays of which none is about a single patient unless `risk` was asked for."""

    figures: dict[str, Any]
    arrays: dict[str, Array]


def tune(
    parts: Parts,
    method: str,
    grids: Grids,
    seed: int,
    threads: int | None = None,
    told: Callable[[Candidate], object] = lambda candidate: None,
) -> tuple[Candidate, Fitted, list[dict[str, Any]]]:
    """Every candidate fitted, and the one with the best validation AUC; the test part is not looked at."""
    best: tuple[Candidate, Fitted] | None = None
    tried: list[dict[str, Any]] = []
    for candidate in methods.candidates(method, grids):
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of single fits; a method that cannot be fitted says so as an error
            fitted = methods.fit(method, candidate, parts, grids, seed, threads)
        tried.append({**candidate._asdict(), "C": fitted.C, "validation_auc": fitted.validation_auc})
        if best is None or fitted.validation_auc > best[1].validation_auc:
            best = candidate, fitted
        told(candidate)
    assert best is not None
    return *best, tried


def run_cell(
    cohort: Cohort,
    case: Array,
    split: Split,
    method: str,
    grids: Grids,
    *,
    number: int = 0,
    random_state: int = 0,
    resamples: int = 1000,
    threads: int | None = None,
    gate: Gate | None = None,
    keep_risk: bool = False,
    told: Callable[[Candidate], object] = lambda candidate: None,
) -> Found:
    """Learn, tune, and only then look at the test patients, once."""
    gate = Gate() if gate is None else gate
    parts = parts_of(cohort, case, split)
    candidate, fitted, tried = tune(parts, method, grids, seed_of(random_state, number), threads, told)
    risk, truth = fitted.risk(parts.test), case[split.test]
    found = measured(risk, truth, split.test, len(cohort), resamples, random_state)
    curve = roc_curve(risk, truth, gate)
    figures: dict[str, Any] = {
        **candidate._asdict(),
        "C": fitted.C,
        "validation_auc": fitted.validation_auc,
        **found.values,
        **{f"calibration_{name}": value for name, value in calibration(risk, truth)._asdict().items()},
        **dict(zip(("risk_low", "risk_high"), map(float, np.quantile(risk, MIDDLE)), strict=True)),
        "tried": tried,
        "groups": risk_groups(risk, truth, gate),
    }
    arrays = {"resampled": found.resampled}
    if curve is not None:
        arrays["roc"] = curve
    if fitted.scores is not None:
        arrays |= definitions(fitted.scores, parts, cohort.n_features)
    if keep_risk:
        arrays["risk"] = risk
    return Found(figures, arrays)


def definitions(model: methods.ScoreModel, parts: Parts, n_features: int) -> dict[str, Array]:
    """V with a row for every feature of the cohort, and the regression's weight for each standard deviation."""
    V = np.zeros((n_features, model.factors.V_.shape[1]))
    V[parts.features] = model.factors.V_
    return {"V": V, "coef": model.lasso.coef}


def seed_of(random_state: int, number: int) -> int:
    """The seed of all fits on a split: methods and settings set out from the same place."""
    return int(np.random.SeedSequence([random_state, STREAM, number]).generate_state(1)[0])
