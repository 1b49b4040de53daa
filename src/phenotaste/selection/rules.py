"""Rules that choose a cell of the grid, each a function from the rows of the table to the label of one.

The paper's rule reads the complete grid. The others read one row per rank, that of the weights with the lowest
dissimilarity among those with unique phenotypes, because weights that give up uniqueness can be stable too.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MIN_CPI = 0.9  # below it cross-product invariance, and with it uniqueness, does not hold
MIN_REPRODUCIBILITY = 0.8  # of every phenotype, as a fraction of the other starts


def stability(rows: "pd.DataFrame") -> Any:
    """The paper's: the lowest mean dissimilarity between starts, over the complete grid."""
    return rows["dissimilarity"].idxmin()


def one_standard_error(ranks: "pd.DataFrame") -> Any:
    """The largest rank whose dissimilarity is within one standard error of the most stable rank's."""
    lowest = ranks.sort_values("dissimilarity", kind="stable").iloc[0]
    error = 0.0 if np.isnan(lowest["dissimilarity_se"]) else lowest["dissimilarity_se"]
    return last_rank(ranks[ranks["dissimilarity"] <= lowest["dissimilarity"] + error])


def reproducibility(ranks: "pd.DataFrame") -> Any:
    """The largest rank whose phenotypes are all reproduced by at least 80 % of the other starts."""
    needed = min(
        MIN_REPRODUCIBILITY, ranks["reproducibility"].max()
    )  # where no rank has it, the closest ones
    return last_rank(ranks[ranks["reproducibility"] >= needed])


def rmse_elbow(ranks: "pd.DataFrame") -> Any:
    """The rank where the RMSE is furthest below the straight line from the smallest rank to the largest."""
    x, y = ranks["rank"].to_numpy(float), ranks["best_rmse"].to_numpy(float)
    if len(ranks) < 3 or not y[0] > y[-1]:
        return ranks.index[0]
    line = y[0] + (y[-1] - y[0]) * (x - x[0]) / (x[-1] - x[0])
    return ranks.index[int(np.argmax(line - y))]


def cpi_floor(ranks: "pd.DataFrame") -> Any:
    """The largest rank whose phenotypes are still close to unique (mean CPI of at least 0.9)."""
    unique = ranks[ranks["cpi"] >= MIN_CPI]
    return last_rank(unique) if len(unique) else ranks["cpi"].idxmax()


class Rule(NamedTuple):
    choose: Callable[["pd.DataFrame"], Any]
    by_rank: bool = True  # whether it reads one row per rank, or all
    holdout: bool = False  # whether it needs hold-out fits


RULES: dict[str, Rule] = {
    "reproducibility": Rule(reproducibility),
    "stability": Rule(stability, by_rank=False),
    "one-standard-error": Rule(one_standard_error),
    "rmse-elbow": Rule(rmse_elbow),
    "cpi-floor": Rule(cpi_floor),
}
"""The rules of `select` by name; "reproducibility" is the default."""

DEFAULT = "reproducibility"


def checked_rule(name: Any) -> str:
    if name not in RULES:
        raise InputError(f"rule={name!r} does not exist: choose one of {', '.join(RULES)}.")
    return str(name)


def choose(name: str, table: "pd.DataFrame") -> Any:
    """Return the label of the row that the rule chooses; among ties the first: the smallest rank and weights."""
    rule = RULES[name]
    return rule.choose(by_rank(name, table) if rule.by_rank else table[table["dissimilarity"].notna()])


def by_rank(name: str, table: "pd.DataFrame") -> "pd.DataFrame":
    """Return one row per rank, in increasing order: the most stable weights, for most rules of the unique ones."""
    rows = table[table["dissimilarity"].notna()]
    if RULES[name].by_rank:
        unique = rows["cpi"] >= MIN_CPI
        rows = rows[unique | ~unique.groupby(rows["rank"]).transform("any")]
    return rows.loc[rows.groupby("rank", sort=True)["dissimilarity"].idxmin()]


def last_rank(rows: "pd.DataFrame") -> Any:
    return rows["rank"].idxmax()
