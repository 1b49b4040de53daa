"""The three methods that the paper compares, made from a cell's words, and what is measured of a fit."""

from typing import Any

from phenotaste import metrics
from phenotaste.baselines import CohenPlus, CopaPlus
from phenotaste.cohort import Cohort
from phenotaste.runs.resources import load_average, timed
from phenotaste.studies.study import Cell, Row
from phenotaste.taste import TASTE

LETTER = "TASTE to the letter"  # absolute weights, no anchored scale, block pivoting, uniform start
PUBLISHED = "CohenPlus as published"
LABELS = {
    "TASTE": "TASTE",
    LETTER: "TASTE, as the paper has it",
    "CohenPlus": "Cohen+",
    PUBLISHED: "Cohen+, as published",
    "CopaPlus": "COPA+",
}


def estimator(cell: Cell, threads: int | None, **settings: Any) -> Any:
    """`method`, `rank`, `lam`, `mu`, `weights` and `seed` of the cell say which."""
    method, rank, lam = cell["method"], cell["rank"], cell["lam"]
    settings |= {"n_jobs": threads, "random_state": cell["seed"]}
    if method == "TASTE":
        return TASTE(rank, lam=lam, mu=cell["mu"], weights=cell["weights"], **settings)
    if method == LETTER:
        return TASTE(
            rank,
            lam=lam,
            mu=cell["mu"],
            weights="absolute",
            normalize=False,
            solver="bpp",
            init="uniform",
            **settings,
        )
    if method == "CopaPlus":
        return CopaPlus(rank, lam=lam, weights=cell["weights"], **settings)
    algorithm: Any = "published" if method == PUBLISHED else "core"
    return CohenPlus(rank, lam=lam, mu=cell["mu"], weights=cell["weights"], algorithm=algorithm, **settings)


_warm: set[tuple[Any, ...]] = set()


def warm(cell: Cell, cohort: Cohort, threads: int | None, **settings: Any) -> None:
    """One short fit before the first that is timed: kernels are compiled or loaded for each method and rank."""
    key = (cell["method"], cell["rank"], *settings.values())
    if key not in _warm:
        few = cohort[: min(len(cohort), 8)]
        estimator(cell, threads, tol=0.0, max_iter=1, **settings).fit(few)
        _warm.add(key)


def fitted(model: Any, cohort: Cohort) -> tuple[Any, Row]:
    """The fit, and what it took."""
    busy = load_average()
    with timed() as taken:
        model.fit(cohort)
    return model, {**taken, "load": busy}


def quality(model: Any, cohort: Cohort) -> Row:
    """Both readings of the RMSE, CPI, and how the fit ended."""
    return {
        "rmse": metrics.rmse(model, cohort),
        "rmse_one": metrics.rmse(model, cohort, static_weight="one"),
        "cpi": metrics.cpi(model),
        "iterations": model.n_iter_,
        "outcome": str(model.outcome_),
    }


def ordered(names: Any) -> list[str]:
    """Methods in the order in which they are always shown."""
    there = set(names)
    return [name for name in LABELS if name in there]
