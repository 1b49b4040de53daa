"""From finished splits to tables: figures of each split, means with intervals, differences, curves."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from phenotaste.core.records import Array
from phenotaste.prediction.calibration import GRID
from phenotaste.prediction.measures import NAMES
from phenotaste.prediction.methods import TASTE_NAME
from phenotaste.prediction.nested_split import Found
from phenotaste.prediction.results import Task
from phenotaste.prediction.splits import TEST, TRAIN

if TYPE_CHECKING:
    import pandas as pd

Finished = Mapping[Task, Found]
LEVEL = 0.95
CHOSEN = ("rank", "lam", "mu", "C", "validation_auc")
RISKS = ("risk_low", "risk_high")  # between which most predicted risks lie
CALIBRATED = ("calibration_intercept", "calibration_slope", "calibration_slope_intercept")


def splits_table(finished: Finished) -> "pd.DataFrame":
    """A row for each method and split: what was chosen, and the test figures with intervals by resampled patients."""
    import pandas as pd

    rows = []
    for task, (figures, arrays) in finished.items():
        row: dict[str, Any] = {"method": task.method, "split": task.split}
        row |= {name: figures[name] for name in CHOSEN}
        for name, values in zip(NAMES, arrays["resampled"].T, strict=True):
            row |= {name: figures[name]} | interval(name, values)
        rows.append(row | {name: figures[name] for name in (*CALIBRATED, *RISKS)})
    return pd.DataFrame(rows).astype(dict.fromkeys((*CHOSEN, *CALIBRATED), float))


def interval(name: str, values: Array) -> dict[str, float]:
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(known) else (np.nan, np.nan)
    return {f"{name}_low": float(low), f"{name}_high": float(high)}


def over_splits(values: Sequence[float], name: str) -> dict[str, float]:
    """Interval of the mean over repeated splits (Nadeau and Bengio 2003).

    Splits share patients, so their spread alone would promise too much; the share of test patients makes up for it.
    """
    n = len(values)
    if n < 2:
        return {f"{name}_splits_low": np.nan, f"{name}_splits_high": np.nan}
    width = stats.t.ppf((1 + LEVEL) / 2, n - 1) * np.sqrt((1 / n + TEST / TRAIN) * np.var(values, ddof=1))
    low, high = np.mean(values) - width, np.mean(values) + width
    if name in NAMES:  # none of these can be outside
        low, high = max(low, 0.0), min(high, 1.0)
    return {f"{name}_splits_low": float(low), f"{name}_splits_high": float(high)}


def bounds(row: "pd.Series", name: str = "auc") -> tuple[float, float, str]:
    """The interval to show where there is room for one: over splits, or by resampled patients of a single split."""
    low, high = row[f"{name}_splits_low"], row[f"{name}_splits_high"]
    if low == low:
        return float(low), float(high), "95 % interval over splits"
    return float(row[f"{name}_low"]), float(row[f"{name}_high"]), "95 % interval by resampled patients"


def by_method(finished: Finished) -> dict[str, list[Found]]:
    found: dict[str, list[Found]] = {}
    for task in sorted(finished, key=lambda task: task.split):
        found.setdefault(task.method, []).append(finished[task])
    order = dict.fromkeys(task.method for task in finished)
    return {method: found[method] for method in order}


def resampled_mean(splits: Sequence[Found]) -> Array:
    """Resamples × measures: the mean over the splits, each resample with the same patients in all of them."""
    return np.mean([found.arrays["resampled"] for found in splits], axis=0)


def summary_table(finished: Finished) -> "pd.DataFrame":
    """A row for each method: means over the splits, with intervals by resampled patients and over splits."""
    import pandas as pd

    rows = []
    for method, splits in by_method(finished).items():
        row: dict[str, Any] = {"method": method, "splits": len(splits)}
        means = resampled_mean(splits)
        for column, name in enumerate(NAMES):
            values = [found.figures[name] for found in splits]
            row |= {name: float(np.mean(values))} | interval(name, means[:, column])
            row |= {f"{name}_sd": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan}
            row |= over_splits(values, name)
        for name in CALIBRATED:
            known = [found.figures[name] for found in splits if found.figures[name] is not None]
            # Not the mean: where the lasso leaves hardly any spread of risks, a slope can be anything.
            row[name] = float(np.median(known)) if known else np.nan
        rows.append(row)
    return pd.DataFrame(rows)


def comparison_table(finished: Finished) -> "pd.DataFrame":
    """TASTE's AUC less that of each other method, split by split and resample by resample."""
    import pandas as pd

    methods = by_method(finished)
    columns = ["method", "difference", "difference_low", "difference_high", "difference_splits_low"]
    columns += ["difference_splits_high", "better_in", "splits"]
    rows = []
    for method, splits in methods.items():
        if method == TASTE_NAME or len(splits) != len(methods.get(TASTE_NAME, ())):
            continue
        pairs = list(zip(methods[TASTE_NAME], splits, strict=True))
        gaps = [ours.figures["auc"] - theirs.figures["auc"] for ours, theirs in pairs]
        draws = resampled_mean(methods[TASTE_NAME])[:, 0] - resampled_mean(splits)[:, 0]
        row: dict[str, Any] = {"method": method, "difference": float(np.mean(gaps))}
        row |= interval("difference", draws) | over_splits(gaps, "difference")
        rows.append(row | {"better_in": int(np.sum(np.array(gaps) > 0)), "splits": len(gaps)})
    return pd.DataFrame(rows, columns=columns)


def tuning_table(finished: Finished) -> "pd.DataFrame":
    """Every setting tried on every split, with its validation AUC."""
    import pandas as pd

    rows = [
        {"method": task.method, "split": task.split, **tried}
        for task, found in finished.items()
        for tried in found.figures["tried"]
    ]
    return pd.DataFrame(rows).astype(dict.fromkeys(CHOSEN, float))


def roc_table(finished: Finished) -> "pd.DataFrame":
    """Mean ROC curve of each method and its spread over the splits; nothing of a method without curves."""
    import pandas as pd

    parts = []
    for method, splits in by_method(finished).items():
        curves = [found.arrays["roc"] for found in splits if "roc" in found.arrays]
        if curves:
            sd = np.std(curves, axis=0, ddof=1) if len(curves) > 1 else np.full(len(GRID), np.nan)
            columns = {"method": method, "controls": GRID, "cases": np.mean(curves, axis=0), "cases_sd": sd}
            parts.append(pd.DataFrame(columns).round(3))
    return (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=["method", "controls", "cases"])
    )


def calibration_table(finished: Finished) -> "pd.DataFrame":
    """Predicted beside observed risk, for each method, split and group of risk."""
    import pandas as pd

    rows = [
        {"method": task.method, "split": task.split, "group": number + 1, **group}
        for task, found in finished.items()
        for number, group in enumerate(found.figures["groups"])
    ]
    return pd.DataFrame(rows, columns=["method", "split", "group", "patients", "predicted", "observed"])
