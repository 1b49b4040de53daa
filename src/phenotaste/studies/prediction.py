"""The paper's Q3: prediction of heart failure from phenotype scores, by number of phenotypes, with baselines."""

from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import simulate
from phenotaste.cohort import Cohort
from phenotaste.prediction.evaluation_tables import over_splits
from phenotaste.prediction.methods import TASTE_NAME, TuningSettings
from phenotaste.prediction.nested_split import SplitSettings, Task, run_split
from phenotaste.prediction.split_cohorts import draw_split
from phenotaste.studies import prediction_page
from phenotaste.studies.methods import synpuf_heart_failure
from phenotaste.studies.results import summarise
from phenotaste.studies.study import Cell, CellContext, Options, Row

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAME = "prediction"
TITLE = "Predicting heart failure"
QUESTION = (
    "Definitions are fitted to three quarters of the patients, all patients are projected onto them, and a lasso "
    "logistic regression predicts heart failure from the scores: how well does that work for test patients, as a "
    "function of the number of phenotypes, and compared with other methods?"
)
TIMED = False
ACCEPTS = frozenset({"size", "splits", "synpuf"})

PHENOTYPES_ALONE, STATIC_TOO, SYNPUF = "phenotypes alone", "static features too", "DE-SynPUF"
STATIC_RISK = {PHENOTYPES_ALONE: 0.0, STATIC_TOO: prediction_page.STATIC_RISK}
METHODS = (TASTE_NAME, "copa", "copa-static", "cntf", "gru", "raw", "raw-static")  # the paper's
RANKED = (TASTE_NAME, "copa", "copa-static", "cntf")
NEED_TORCH = ("cntf", "gru")
MEASURED = ("auc", "auprc", "brier", "calibration_slope", "validation_auc")

# laptop: half an hour on two cores; paper: its number of patients, numbers of phenotypes and grids (supplement).
SIZES: dict[str, dict[str, Any]] = {
    "quick": {"patients": 300, "ranks": (4,), "lams": "0.01", "mus": "1.0", "epochs": 1, "iterations": 2},
    "laptop": {"patients": 2000, "ranks": (5, 10, 20), "lams": "0.001 0.01 0.1", "mus": "1.0", "epochs": 10,
               "iterations": 10},
    "paper": {"patients": 35_113, "ranks": (5, 10, 20, 40, 60, 80, 100), "lams": "0.01 0.1 1.0",
              "mus": "0.01 0.1 1.0", "epochs": 50, "iterations": 100},
}  # fmt: skip


def cells(options: Options) -> list[Cell]:
    name = "quick" if options.quick else options.size or "laptop"
    size = SIZES[name]
    splits = options.splits or (2 if options.quick else 5)
    cohorts = [*STATIC_RISK, *([SYNPUF] if options.synpuf else [])]
    available = [method for method in METHODS if method not in NEED_TORCH or find_spec("torch")]
    return [
        {
            "cohort": cohort,
            "patients": None if cohort == SYNPUF else size["patients"],
            "method": method,
            "rank": rank,
            "split": split,
            "lams": size["lams"] if method == TASTE_NAME else None,
            "mus": size["mus"] if method == TASTE_NAME else None,
            "epochs": size["epochs"] if method in NEED_TORCH else None,
            "iterations": size["iterations"] if method == "cntf" else None,
            "seed": options.seed,
        }
        for cohort in cohorts
        for split in range(splits)
        for method in available
        for rank in (size["ranks"] if method in RANKED else (None,))
    ]


def cost(cell: Cell) -> float:
    fits = len(numbers(cell["lams"])) * len(numbers(cell["mus"])) if cell["lams"] else 1
    weight = {TASTE_NAME: 0.05 * (cell["rank"] or 0) ** 1.6, "cntf": 12.0, "gru": 12.0}
    return fits * weight.get(cell["method"], 1.0) + 0.5


def run(cell: Cell, context: CellContext) -> Row:
    cohort = load_cohort(cell["cohort"], cell["patients"], cell["seed"], context.options.synpuf)
    case = np.asarray(cohort.labels) == 1
    split = draw_split(case, cell["split"], cell["seed"], cohort.persons)
    settings = SplitSettings(
        tuning_settings(cell), random_state=cell["seed"], resamples=0, threads=context.threads
    )
    result = run_split(cohort, case, Task(cell["method"], cell["split"]), settings)
    kept = {name: result.figures[name] for name in (*MEASURED, "calibration_intercept", "lam", "mu", "C")}
    shape = {"features": cohort.n_features, "static": cohort.n_static, "visits": cohort.n_visits}
    counts = {"n_patients": len(cohort), "n_cases": int(case.sum()), "n_test": len(split.test)}
    return kept | counts | shape | {"n_test_cases": int(case[split.test].sum())}


def tuning_settings(cell: Cell) -> TuningSettings:
    own = {"max_epochs": cell["epochs"], "patience": 5} if cell["epochs"] else {}
    if cell["iterations"]:
        own["max_iter"] = cell["iterations"]
    weights: dict[str, Any] = {name: numbers(cell[name]) for name in ("lams", "mus") if cell[name]}
    extra = {cell["method"]: own} if own else {}
    return TuningSettings(ranks=(cell["rank"] or 1,), extra=extra, **weights)


def numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


@lru_cache(maxsize=2)
def load_cohort(name: str, patients: int | None, seed: int, synpuf: str | None) -> Cohort:
    if patients is None:
        return synpuf_heart_failure(str(synpuf))
    return simulate.heart_failure(patients, seed, static_risk=STATIC_RISK[name])[0]


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    """Return the means and the interval of the AUC over splits, by cohort, method and number of phenotypes."""
    import pandas as pd

    keys = ["cohort", "method", "rank"]
    summary = summarise(results, keys, MEASURED)
    groups = results.groupby(keys, sort=False, dropna=False)["auc"]
    bounds = pd.DataFrame([over_splits(values.tolist(), "auc") for _, values in groups])
    return summary.join(bounds)


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    return prediction_page.figure(results, table)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    return prediction_page.text(results, table)
