"""The three methods that the paper compares, as estimators, and what is measured of a fit."""

from typing import Any

from phenotaste import metrics
from phenotaste.baselines import CohenPlus, CopaPlus
from phenotaste.cohort import Cohort
from phenotaste.runs.resources import load_average, timed
from phenotaste.studies.study import Cell, Row
from phenotaste.taste import TASTE

AS_IN_PAPER = "TASTE as in the paper"  # absolute weights, no normalisation, block pivoting, uniform start
PUBLISHED = "CohenPlus as published"
LABELS = {
    "TASTE": "TASTE",
    AS_IN_PAPER: "TASTE, as in the paper",
    "CohenPlus": "Cohen+",
    PUBLISHED: "Cohen+, as published",
    "CopaPlus": "COPA+",
}


def estimator(cell: Cell, threads: int | None, **settings: Any) -> Any:
    """Return the estimator with the `method`, `rank`, `lam`, `mu`, `weights` and `seed` of the cell."""
    method, rank, lam = cell["method"], cell["rank"], cell["lam"]
    settings |= {"n_jobs": threads, "random_state": cell["seed"]}
    if method == "TASTE":
        return TASTE(rank, lam=lam, mu=cell["mu"], weights=cell["weights"], **settings)
    if method == AS_IN_PAPER:
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


_compiled: set[tuple[Any, ...]] = set()


def warm_up(cell: Cell, cohort: Cohort, threads: int | None, **settings: Any) -> None:
    """Fit once before the first timed fit, so that the kernels of each method and rank are compiled or loaded."""
    key = (cell["method"], cell["rank"], *settings.values())
    if key not in _compiled:
        small = cohort[: min(len(cohort), 8)]
        estimator(cell, threads, tol=0.0, max_iter=1, **settings).fit(small)
        _compiled.add(key)


def timed_fit(model: Any, cohort: Cohort) -> tuple[Any, Row]:
    """Fit, and return the model and the time taken."""
    load = load_average()
    with timed() as taken:
        model.fit(cohort)
    return model, {**taken, "load": load}


def quality(model: Any, cohort: Cohort) -> Row:
    """Return the RMSE with both weights of static entries, the CPI, and how the fit ended."""
    return {
        "rmse": metrics.rmse(model, cohort),
        "rmse_one": metrics.rmse(model, cohort, static_weight="one"),
        "cpi": metrics.cpi(model),
        "iterations": model.n_iter_,
        "outcome": str(model.outcome_),
    }


def sort_methods(names: Any) -> list[str]:
    """Return the methods in the order in which they are shown."""
    present = set(names)
    return [name for name in LABELS if name in present]
