"""Rules that name the best cell of a table, each a function from rows to one of them.

The paper's looks at the whole grid. The others look at one row for each rank: that of the weights with the lowest
dissimilarity among those that keep the phenotypes unique, because weights that let uniqueness go look stable too.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

CPI_FLOOR = 0.9  # below it cross-product invariance, and with it uniqueness, does not hold
FOUND_SHARE = 0.8  # of the other starts, in which every phenotype must be found again


def stability(rows: "pd.DataFrame") -> Any:
    """The paper's: the lowest mean dissimilarity between starts, over the whole grid."""
    return rows["dissimilarity"].idxmin()


def one_standard_error(ranks: "pd.DataFrame") -> Any:
    """The largest rank whose dissimilarity is within one standard error of the most stable rank's."""
    lowest = ranks.sort_values("dissimilarity", kind="stable").iloc[0]
    error = 0.0 if np.isnan(lowest["dissimilarity_se"]) else lowest["dissimilarity_se"]
    return last_rank(ranks[ranks["dissimilarity"] <= lowest["dissimilarity"] + error])


def found_again(ranks: "pd.DataFrame") -> Any:
    """The largest rank all of whose phenotypes are found again in nearly all other starts."""
    need = min(FOUND_SHARE, ranks["found_again"].max())  # where none is, those that come nearest
    return last_rank(ranks[ranks["found_again"] >= need])


def rmse_elbow(ranks: "pd.DataFrame") -> Any:
    """The rank where the RMSE is furthest below the straight line from the smallest rank to the largest."""
    x, y = ranks["rank"].to_numpy(float), ranks["best_rmse"].to_numpy(float)
    if len(ranks) < 3 or not y[0] > y[-1]:
        return ranks.index[0]
    line = y[0] + (y[-1] - y[0]) * (x - x[0]) / (x[-1] - x[0])
    return ranks.index[int(np.argmax(line - y))]


def cpi_floor(ranks: "pd.DataFrame") -> Any:
    """The largest rank whose phenotypes are still as good as unique (mean CPI of at least 0.9)."""
    above = ranks[ranks["cpi"] >= CPI_FLOOR]
    return last_rank(above) if len(above) else ranks["cpi"].idxmax()


class Rule(NamedTuple):
    choose: Callable[["pd.DataFrame"], Any]
    by_rank: bool = True  # whether it is given one row for each rank, or all
    holdout: bool = False  # whether it looks at hold-out fits


RULES: dict[str, Rule] = {
    "found-again": Rule(found_again),
    "stability": Rule(stability, by_rank=False),
    "one-standard-error": Rule(one_standard_error),
    "rmse-elbow": Rule(rmse_elbow),
    "cpi-floor": Rule(cpi_floor),
}
"""The rules that `select` knows, by name; "found-again" is the one it takes unless told otherwise."""

DEFAULT = "found-again"


def checked_rule(name: Any) -> str:
    if name not in RULES:
        raise InputError(f"rule={name!r} is not known: choose one of {', '.join(RULES)}.")
    return str(name)


def choose(name: str, table: "pd.DataFrame") -> Any:
    """The label of the row that the rule names; of equal ones the first, so the smallest rank and weights."""
    rule = RULES[name]
    return rule.choose(by_rank(name, table) if rule.by_rank else table[table["dissimilarity"].notna()])


def by_rank(name: str, table: "pd.DataFrame") -> "pd.DataFrame":
    """One row for each rank, in rising order: its most stable weights, of the unique ones but for the paper's rule."""
    rows = table[table["dissimilarity"].notna()]
    if RULES[name].by_rank:
        unique = rows["cpi"] >= CPI_FLOOR
        rows = rows[unique | ~unique.groupby(rows["rank"]).transform("any")]
    return rows.loc[rows.groupby("rank", sort=True)["dissimilarity"].idxmin()]


def last_rank(rows: "pd.DataFrame") -> Any:
    return rows["rank"].idxmax()
