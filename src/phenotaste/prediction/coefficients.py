"""Which phenotypes drive the risk: TASTE on all patients with the settings that validation chose, and odds ratios.

This describes; how well it predicts is known from the splits alone, in which no test patient had a say.
"""

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from phenotaste import metrics
from phenotaste.baselines.lasso import fit_lasso
from phenotaste.cohort import Cohort
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate
from phenotaste.prediction.evaluation_tables import LEVEL, Finished, tuning_table
from phenotaste.prediction.methods import TASTE_NAME, Candidate, Grids, factorisation, scale_of
from phenotaste.prediction.nested_split import seed_of
from phenotaste.selection.matching import FOUND
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd

STREAM = 4  # part of every seed: never renumber
ALL = 10_000  # the number that stands for all patients where a split has its own
TOP_CODES, TOP_FACTS = 3, 2
LEAST_WEIGHT = 0.1  # of the weightiest, as in the paper's tables


class Drivers(NamedTuple):
    model: TASTE
    C: float
    table: "pd.DataFrame"


def drivers(
    cohort: Cohort,
    case: Array,
    finished: Finished,
    grids: Grids,
    gate: Gate,
    *,
    random_state: int,
    resamples: int,
    threads: int | None,
) -> Drivers:
    """Fit all patients, regress, resample them, and look for the same phenotypes in the splits."""
    candidate, C = favourite(finished)
    seed = seed_of(random_state, ALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = factorisation(TASTE_NAME, candidate, grids, seed, threads).fit(cohort)
    W = model.project(cohort).W
    X = W / scale_of(W)
    coef = fit_lasso(X, case, [C], None).coef
    table = odds_table(coef, resampled_coefs(X, case, C, resamples, random_state))
    table = table.join(in_splits(model.V_, finished))
    table["definition"] = [definition(model, r, gate) for r in range(len(coef))]
    order = np.argsort(-np.abs(coef), kind="stable")
    return Drivers(model, C, table.iloc[order].reset_index(drop=True))


def favourite(finished: Finished) -> tuple[Candidate, float]:
    """The settings with the highest mean validation AUC, and the middle one of the strengths chosen with them."""
    tried = tuning_table(finished)
    tried = tried[tried["method"] == TASTE_NAME]
    means = tried.groupby(["rank", "lam", "mu"], sort=False)["validation_auc"].mean()
    rank, lam, mu = means.index.to_frame().iloc[int(means.argmax())]
    strengths = tried[(tried["rank"] == rank) & (tried["lam"] == lam) & (tried["mu"] == mu)]["C"]
    return Candidate(int(rank), float(lam), float(mu)), float(np.sort(strengths)[(len(strengths) - 1) // 2])


def resampled_coefs(X: Array, case: Array, C: float, resamples: int, random_state: int) -> Array:
    """The regression again on patients drawn with replacement, the definitions as they are."""
    rng = np.random.default_rng([random_state, STREAM])
    found = []
    for _ in range(resamples):
        rows = rng.integers(len(case), size=len(case))
        if 0 < case[rows].sum() < len(rows):
            found.append(fit_lasso(X[rows], case[rows], [C], None).coef)
    return np.array(found).reshape(len(found), X.shape[1])


def odds_table(coef: Array, resampled: Array) -> "pd.DataFrame":
    """Odds ratio for one standard deviation more of a score, and how often the lasso kept it."""
    import pandas as pd

    low = high = kept = np.full(len(coef), np.nan)
    if len(resampled):
        low, high = np.exp(np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0))
        kept = (resampled != 0).mean(axis=0)
    columns = {"odds_ratio": np.exp(coef), "odds_ratio_low": low, "odds_ratio_high": high, "kept": kept}
    return pd.DataFrame({"phenotype": np.arange(1, len(coef) + 1), **columns})


def in_splits(V: Array, finished: Finished) -> "pd.DataFrame":
    """In how many splits each phenotype was found again, and its lowest and highest odds ratio there."""
    import pandas as pd

    ratios: list[list[float]] = [[] for _ in range(V.shape[1])]
    for task, found in finished.items():
        if task.method == TASTE_NAME:
            cosines = metrics.cosines(V, found.arrays["V"])
            for mine, theirs in zip(*linear_sum_assignment(-cosines), strict=True):
                if cosines[mine, theirs] >= FOUND:
                    ratios[mine].append(float(np.exp(found.arrays["coef"][theirs])))
    rows: list[dict[str, Any]] = [
        {
            "found_in_splits": len(values),
            "splits_lowest": min(values, default=np.nan),
            "splits_highest": max(values, default=np.nan),
        }
        for values in ratios
    ]
    return pd.DataFrame(rows)


def definition(model: TASTE, r: int, gate: Gate) -> str:
    """Its weightiest codes and facts, of those that enough patients have to be named."""
    kinds = (
        (model.V_, model.feature_names_in_, model.feature_patients_, TOP_CODES),
        (model.F_, model.static_names_in_, model.static_patients_, TOP_FACTS),
    )
    shown: list[str] = []
    for factor, names, having, top in kinds:
        if factor is None or having is None:
            continue
        column = factor[:, r]
        heavy = (column > LEAST_WEIGHT * column.max()) & (having >= gate.min_group_size)
        order = [j for j in np.argsort(-column, kind="stable") if heavy[j]][:top]
        shown += [str(j) if names is None else str(names[j]) for j in order]
    return "; ".join(
        "".join(letter if letter.isprintable() else "\ufffd" for letter in name) for name in shown
    )
