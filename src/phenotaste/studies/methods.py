"""The three methods that the paper compares, as estimators, what is measured of a fit, and the cohorts."""

import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phenotaste import metrics, simulate
from phenotaste.baselines import CohenPlus, CopaPlus
from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.runs.resources import load_average, timed
from phenotaste.studies.study import Cell, Row
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    from phenotaste.build.settings import Settings

NOT_SMOOTH = "TASTE without smoothing"
AS_IN_PAPER = "TASTE as in the paper"  # objective="paper"
PUBLISHED = "CohenPlus as published"
LABELS = {
    "TASTE": "TASTE",
    NOT_SMOOTH: "TASTE, not smooth",
    AS_IN_PAPER: "TASTE, as in the paper",
    "CohenPlus": "Cohen+",
    PUBLISHED: "Cohen+, as published",
    "CopaPlus": "COPA+",
}


def estimator(cell: Cell, threads: int | None, **settings: Any) -> Any:
    """Return the estimator with the `method`, `rank`, `lam`, `mu`, `weights` and `seed` of the cell.

    TASTE with absolute weights has the paper's objective.
    """
    method, rank, lam = cell["method"], cell["rank"], cell["lam"]
    settings |= {"n_jobs": threads, "random_state": cell["seed"]}
    if method == NOT_SMOOTH:
        settings["smooth"] = 0.0
    if method in ("TASTE", NOT_SMOOTH, AS_IN_PAPER):
        objective: Any = "relative" if cell["weights"] == "relative" else "paper"
        return TASTE(rank, objective=objective, lam=lam, mu=cell["mu"], **settings)
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
        estimator(cell, threads, tol=0.0, max_iter=1, **settings | {"n_init": 1}).fit(small)
        _compiled.add(key)


def timed_fit(model: Any, cohort: Cohort) -> tuple[Any, Row]:
    """Fit, and return the model and the time taken."""
    load = load_average()
    with warnings.catch_warnings(), timed() as taken:
        warnings.simplefilter("ignore")  # what is unusual about scores, in one of many fits
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


class Shape(NamedTuple):
    """A row of the paper's table of data sets."""

    patients: int
    features: int
    visits: int  # per patient, on average
    static: int


SHAPES = {"Sutter": Shape(59_480, 1164, 29, 22), "CMS": Shape(151_349, 284, 50, 30)}
SYNPUF = "DE-SynPUF"
PHENOTYPES = 10  # planted in simulated cohorts

HEART_FAILURE = "CCS:108"  # congestive heart failure, non-hypertensive
HEART_FAILURE_FLAG = "sp_chf"  # CMS's own flag, derived from the same claims
WINDOW_MONTHS, GAP_MONTHS, CONTROLS_PER_CASE = 12, 1, 9


@lru_cache(maxsize=1)  # cells of one cohort follow each other
def shaped(name: str, patients: int, seed: int) -> Cohort:
    """Simulate a cohort in the shape of one of the paper's data sets."""
    shape = SHAPES[name]
    return simulate.ehr(
        patients,
        n_features=shape.features,
        n_static=shape.static,
        mean_visits=shape.visits,
        rank=PHENOTYPES,
        random_state=seed,
    )[0]


def repeated(name: str, patients: int, drawn: int, seed: int) -> Cohort:
    """Simulate at most `drawn` patients and repeat them: the patient step takes the same time for repeated ones."""
    distinct = shaped(name, min(patients, drawn), seed)
    return distinct if patients <= drawn else distinct[np.arange(patients) % drawn]


@lru_cache(maxsize=1)
def synpuf(folder: str, patients: int, seed: int) -> Cohort:
    """Draw this number of patients of DE-SynPUF at random, or return all if there are fewer."""
    cohort = synpuf_claims(folder)
    if len(cohort) <= patients:
        return cohort
    drawn = np.random.default_rng(seed).choice(len(cohort), patients, replace=False)
    return cohort[np.sort(drawn)]


@lru_cache(maxsize=1)
def synpuf_claims(folder: str) -> Cohort:
    """Build the paper's cohort: diagnoses as CCS categories, a visit per day, at least five visits."""
    from phenotaste.build.settings import source_defaults

    return build_synpuf(folder, replace(source_defaults("synpuf"), min_visits=5, min_patients=5))


def synpuf_heart_failure(folder: str) -> Cohort:
    """Build a cohort of incident heart failure, to be predicted from the year before.

    Cases have their first CCS 108; controls have the same sex and age and were seen at the time. Neither CCS 108 nor
    SP_CHF is among the features. The other chronic-condition flags are those of the year before the window ends.
    """
    from phenotaste.build.settings import Index, Match, source_defaults

    settings = replace(
        source_defaults("synpuf"),
        min_visits=2,
        min_patients=5,
        index=Index((HEART_FAILURE,), window=f"{WINDOW_MONTHS}mo", gap=f"{GAP_MONTHS}mo"),
        match=Match(CONTROLS_PER_CASE, same=("sex",)),
    )
    return without_heart_failure(build_synpuf(folder, settings))


def build_synpuf(folder: str, settings: "Settings") -> Cohort:
    from phenotaste import build
    from phenotaste.sources import synpuf as source
    from phenotaste.sources.workspace import Workspace, translate_errors

    with translate_errors(folder), Workspace() as workspace:
        return build.cohort(workspace, source.read(workspace, Path(folder)), settings).cohort


def without_heart_failure(cohort: Cohort) -> Cohort:
    """Remove the outcome's code, which should not occur as windows end before it, and its flag."""
    names, static_names = cohort.feature_names, cohort.static_names
    if names is None or static_names is None or cohort.static is None:
        raise InputError("The DE-SynPUF cohort has no names or no static features: check the folder.")
    category = HEART_FAILURE.split(":")[1]
    features = np.array([category not in numbers_in(str(name)) for name in names])
    static = np.array([not str(name).startswith(HEART_FAILURE_FLAG) for name in static_names])
    return Cohort(
        cohort.visits[:, features],
        cohort.offsets,
        cohort.static[:, static],
        patient_ids=cohort.patient_ids,
        visit_times=cohort.visit_times,
        last_times=cohort.last_times,
        groups=cohort.groups,
        feature_names=names[features],
        static_names=static_names[static],
        labels=cohort.labels,
    )


def numbers_in(name: str) -> set[str]:
    """Return the numbers in a feature's name: CCS categories are named "… [108.]"."""
    return set("".join(letter if letter.isdigit() else " " for letter in name).split())
