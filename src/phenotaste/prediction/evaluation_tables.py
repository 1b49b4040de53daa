"""Tables of an evaluation from its finished splits: figures, means with intervals, differences, curves."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from phenotaste.core.records import Array
from phenotaste.prediction.measures import NAMES, ROC_GRID
from phenotaste.prediction.methods import SCORE, TASTE_NAME
from phenotaste.prediction.nested_split import SplitResult, Task
from phenotaste.prediction.split_cohorts import TEST, TRAIN

if TYPE_CHECKING:
    import pandas as pd

Finished = Mapping[Task, SplitResult]
LEVEL = 0.95
CHOSEN = ("rank", "lam", "mu", "C", "validation_auc")
RISKS = ("risk_low", "risk_high")  # beyond which at least 11 predicted risks lie; NaN with fewer than 22
CALIBRATED = ("calibration_intercept", "calibration_slope", "calibration_slope_intercept")


def splits_table(finished: Finished) -> "pd.DataFrame":
    """Return the choice and the test figures with bootstrap intervals, a row for each method and split."""
    import pandas as pd

    rows = []
    for task, (figures, arrays) in finished.items():
        row: dict[str, Any] = {"method": task.method, "split": task.split}
        row |= {name: figures[name] for name in CHOSEN}
        for name, values in zip(NAMES, arrays["resampled"].T, strict=True):
            row |= {name: figures[name]} | interval(name, values)
        rows.append(row | {name: figures[name] for name in (*CALIBRATED, *RISKS)})
    return pd.DataFrame(rows).astype(dict.fromkeys((*CHOSEN, *CALIBRATED, *RISKS), float))


def interval(name: str, values: Array) -> dict[str, float]:
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(known) else (np.nan, np.nan)
    return {f"{name}_low": float(low), f"{name}_high": float(high)}


def over_splits(values: Sequence[float], name: str, ratio: float = TEST / TRAIN) -> dict[str, float]:
    """Return the interval of the mean over repeated splits (Nadeau and Bengio 2003).

    Splits share patients, so that their variance alone is too small; the ratio of test to training patients corrects
    it.
    """
    n = len(values)
    if n < 2:
        return {f"{name}_splits_low": np.nan, f"{name}_splits_high": np.nan}
    width = stats.t.ppf((1 + LEVEL) / 2, n - 1) * np.sqrt((1 / n + ratio) * np.var(values, ddof=1))
    low, high = np.mean(values) - width, np.mean(values) + width
    if name in NAMES:  # bounded measures
        low, high = max(low, 0.0), min(high, 1.0)
    return {f"{name}_splits_low": float(low), f"{name}_splits_high": float(high)}


def column_label(row: "pd.Series") -> str:
    """Return the number of a phenotype, with the feature of its course if it is not about the score."""
    number = str(row["phenotype"])
    return number if row["feature"] == SCORE else f"{number}, {row['feature'].replace('_', ' ')}"


def bounds(row: "pd.Series", name: str = "auc") -> tuple[float, float, str]:
    """Return the interval to show and its name: over splits, or by bootstrap if there is a single split."""
    low, high = row[f"{name}_splits_low"], row[f"{name}_splits_high"]
    if low == low:
        return float(low), float(high), "95 % interval over splits"
    return float(row[f"{name}_low"]), float(row[f"{name}_high"]), "95 % bootstrap interval"


def by_method(finished: Finished) -> dict[str, list[SplitResult]]:
    results: dict[str, list[SplitResult]] = {}
    for task in sorted(finished, key=lambda task: task.split):
        results.setdefault(task.method, []).append(finished[task])
    order = dict.fromkeys(task.method for task in finished)
    return {method: results[method] for method in order}


def resampled_mean(splits: Sequence[SplitResult]) -> Array:
    """Return resamples × measures, the mean over the splits; a resample has the same patients in all of them."""
    return np.mean([result.arrays["resampled"] for result in splits], axis=0)


def summary_table(finished: Finished) -> "pd.DataFrame":
    """Return means over the splits with bootstrap intervals and intervals over splits, a row for each method."""
    import pandas as pd

    rows = []
    for method, splits in by_method(finished).items():
        row: dict[str, Any] = {"method": method, "splits": len(splits)}
        means = resampled_mean(splits)
        for column, name in enumerate(NAMES):
            values = [result.figures[name] for result in splits]
            row |= {name: float(np.mean(values))} | interval(name, means[:, column])
            row |= {f"{name}_sd": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan}
            row |= over_splits(values, name)
        for name in CALIBRATED:
            known = [result.figures[name] for result in splits if result.figures[name] is not None]
            # The median, since the slope is unstable where the lasso leaves nearly equal risks.
            row[name] = float(np.median(known)) if known else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


def comparison_table(finished: Finished) -> "pd.DataFrame":
    """Return the difference between TASTE's AUC and that of each other method, paired by split and by resample."""
    import pandas as pd

    methods = by_method(finished)
    columns = ["method", "difference", "difference_low", "difference_high", "difference_splits_low"]
    columns += ["difference_splits_high", "better_in", "splits"]
    rows = []
    for method, splits in methods.items():
        if method == TASTE_NAME or len(splits) != len(methods.get(TASTE_NAME, ())):
            continue
        pairs = list(zip(methods[TASTE_NAME], splits, strict=True))
        gaps = [taste.figures["auc"] - other.figures["auc"] for taste, other in pairs]
        draws = resampled_mean(methods[TASTE_NAME])[:, 0] - resampled_mean(splits)[:, 0]
        row: dict[str, Any] = {"method": method, "difference": float(np.mean(gaps))}
        row |= interval("difference", draws) | over_splits(gaps, "difference")
        rows.append(row | {"better_in": int(np.sum(np.array(gaps) > 0)), "splits": len(gaps)})
    return pd.DataFrame(rows, columns=columns)


def tuning_table(finished: Finished) -> "pd.DataFrame":
    """Return every candidate of every split with its validation AUC."""
    import pandas as pd

    rows = [
        {"method": task.method, "split": task.split, **tried}
        for task, result in finished.items()
        for tried in result.figures["tried"]
    ]
    return pd.DataFrame(rows).astype(dict.fromkeys(CHOSEN, float))


def roc_table(finished: Finished) -> "pd.DataFrame":
    """Return the mean ROC curve of each method that has curves, and its standard deviation over the splits."""
    import pandas as pd

    parts = []
    for method, splits in by_method(finished).items():
        curves = [result.arrays["roc"] for result in splits if "roc" in result.arrays]
        if curves:
            sd = np.std(curves, axis=0, ddof=1) if len(curves) > 1 else np.full(len(ROC_GRID), np.nan)
            columns = {
                "method": method,
                "controls": ROC_GRID,
                "cases": np.mean(curves, axis=0),
                "cases_sd": sd,
            }
            parts.append(pd.DataFrame(columns).round(3))
    return (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=["method", "controls", "cases"])
    )


def calibration_table(finished: Finished) -> "pd.DataFrame":
    """Return predicted and observed risk for each method, split and risk group."""
    import pandas as pd

    rows = [
        {"method": task.method, "split": task.split, "group": number + 1, **group}
        for task, result in finished.items()
        for number, group in enumerate(result.figures["groups"])
    ]
    return pd.DataFrame(rows, columns=["method", "split", "group", "patients", "predicted", "observed"])
