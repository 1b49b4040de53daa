"""Odds ratios of the phenotypes: TASTE fitted to all patients with the settings that validation chose.

This model is for description only: its performance is estimated by the splits.
"""

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from phenotaste import metrics
from phenotaste.baselines.lasso import fit_lasso
from phenotaste.cohort import Cohort
from phenotaste.cohort.persons import rows_of
from phenotaste.core.records import Array
from phenotaste.disclosure import Gate
from phenotaste.prediction.evaluation_tables import LEVEL, Finished, tuning_table
from phenotaste.prediction.methods import (
    TASTE_NAME,
    Candidate,
    factorisation,
    feature_names,
    score_features,
    score_scale,
)
from phenotaste.prediction.nested_split import SplitSettings, split_seed
from phenotaste.selection.matching import MIN_COSINE
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd

STREAM = 4  # part of every seed: never renumber
ALL_PATIENTS = 10_000  # in place of the number of a split, in the seed
MAX_RESAMPLES = 200  # of the regression, each of which is a fit
TOP_CODES, TOP_STATIC = 3, 2  # in a definition
MIN_WEIGHT = 0.1  # relative to the largest, as in the paper's tables


class Coefficients(NamedTuple):
    model: TASTE
    C: float
    table: "pd.DataFrame"


def fit_coefficients(
    cohort: Cohort, case: Array, finished: Finished, settings: SplitSettings, gate: Gate
) -> Coefficients:
    """Fit all patients and regress on their scores; compare with bootstrap samples and with the splits."""
    candidate, C = best_candidate(finished)
    seed = split_seed(settings.random_state, ALL_PATIENTS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = factorisation(TASTE_NAME, candidate, settings.tuning, seed, settings.threads).fit(cohort)
    courses = settings.tuning.courses
    X = score_features(model, cohort, courses, settings.tuning.size)
    X = X / score_scale(X)
    names = feature_names(model.V_.shape[1], courses)
    coef = fit_lasso(X, case, [C], None).coef[: len(names)]  # without that of the size of the record
    resamples = min(settings.resamples, MAX_RESAMPLES)
    resampled = bootstrap_coefs(X, case, C, resamples, settings.random_state, cohort.persons)
    resampled = resampled[:, : len(names)]
    table = odds_table(names, coef, resampled)
    table = table.join(split_columns(model.V_, names, finished))
    table["definition"] = [definition(model, r, gate) for r, _ in names]
    order = np.argsort(-np.abs(coef), kind="stable")
    return Coefficients(model, C, table.iloc[order].reset_index(drop=True))


def best_candidate(finished: Finished) -> tuple[Candidate, float]:
    """Return the settings with the highest mean validation AUC, and the median of the C chosen with them."""
    tried = tuning_table(finished)
    tried = tried[tried["method"] == TASTE_NAME]
    means = tried.groupby(["rank", "lam", "mu"], sort=False)["validation_auc"].mean()
    rank, lam, mu = means.index.to_frame().iloc[int(means.argmax())]
    strengths = tried[(tried["rank"] == rank) & (tried["lam"] == lam) & (tried["mu"] == mu)]["C"]
    return Candidate(int(rank), float(lam), float(mu)), float(np.sort(strengths)[(len(strengths) - 1) // 2])


def bootstrap_coefs(
    X: Array, case: Array, C: float, resamples: int, random_state: int, persons: Array
) -> Array:
    """Repeat the regression on patients drawn with replacement; the definitions are kept."""
    rng = np.random.default_rng([random_state, STREAM])
    coefs = []
    n_persons = int(persons.max()) + 1
    for _ in range(resamples):
        rows = rows_of(persons, rng.integers(n_persons, size=n_persons))
        if 0 < case[rows].sum() < len(rows):
            coefs.append(fit_lasso(X[rows], case[rows], [C], None).coef)
    return np.array(coefs).reshape(len(coefs), X.shape[1])


def odds_table(names: list[tuple[int, str]], coef: Array, resampled: Array) -> "pd.DataFrame":
    """Return the odds ratio per standard deviation of each score or feature, and how often the lasso keeps it."""
    import pandas as pd

    low = high = kept = np.full(len(coef), np.nan)
    if len(resampled):
        low, high = np.exp(np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0))
        kept = (resampled != 0).mean(axis=0)
    columns = {"odds_ratio": np.exp(coef), "odds_ratio_low": low, "odds_ratio_high": high, "kept": kept}
    numbers, features = [r + 1 for r, _ in names], [name for _, name in names]
    return pd.DataFrame({"phenotype": numbers, "feature": features, **columns})


def split_columns(V: Array, names: list[tuple[int, str]], finished: Finished) -> "pd.DataFrame":
    """Return the number of splits that reproduce each phenotype, and its lowest and highest odds ratio in them."""
    import pandas as pd

    ratios: dict[tuple[int, str], list[float]] = {name: [] for name in names}
    courses = len(names) > V.shape[1]
    for task, result in finished.items():
        if task.method == TASTE_NAME:
            cosines = metrics.cosines(V, result.arrays["V"])
            coefs = dict(
                zip(feature_names(cosines.shape[1], courses), result.arrays["coef"].tolist(), strict=True)
            )
            partner = dict(zip(*map(np.ndarray.tolist, linear_sum_assignment(-cosines)), strict=True))
            for r, name in names:
                if r in partner and cosines[r, partner[r]] >= MIN_COSINE:
                    ratios[r, name].append(float(np.exp(coefs[partner[r], name])))
    rows: list[dict[str, Any]] = [
        {
            "reproduced_in_splits": len(values),
            "splits_minimum": min(values, default=np.nan),
            "splits_maximum": max(values, default=np.nan),
        }
        for values in ratios.values()
    ]
    return pd.DataFrame(rows)


def definition(model: TASTE, r: int, gate: Gate) -> str:
    """Return the features with the largest weights that enough patients have to be named, as a report names them."""
    kinds = (
        ("temporal", model.V_, model.feature_names_in_, model.feature_patients_, TOP_CODES),
        ("static", model.F_, model.static_names_in_, model.static_patients_, TOP_STATIC),
    )
    gate = gate.keyed(model.rounding_key_)
    shown: list[str] = []
    for kind, factor, names, having, top in kinds:
        if factor is None or having is None:
            continue
        column = factor[:, r]
        heavy = [j for j in np.argsort(-column, kind="stable") if column[j] > MIN_WEIGHT * column.max()]
        labels = [(str(j) if names is None else str(names[j]), int(having[j])) for j in heavy]
        shown += [name for name, n in labels if gate.count(f"{kind} {name}", n)][:top]
    return "; ".join(
        "".join(letter if letter.isprintable() else "\ufffd" for letter in name) for name in shown
    )
