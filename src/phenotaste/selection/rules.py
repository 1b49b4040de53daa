"""Rules that choose a cell of the grid, each a function from the rows of the table to the label of one.

The paper's rule reads the complete grid. The others read one row per rank, that of the weights that replicate best in
halves of the patients, or agree best over starts, among those with unique phenotypes, because weights that give up
uniqueness can be stable too.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phenotaste.errors import InputError
from phenotaste.selection.matching import MIN_COSINE

if TYPE_CHECKING:
    import pandas as pd

MIN_CPI = 0.9  # below it cross-product invariance, and with it uniqueness, does not hold
MIN_REPRODUCIBILITY = 0.8  # of every phenotype, as a fraction of the other starts
LOWEST = {
    "rank": 2,
    "lam": 0.0,
    "mu": 0.0,
    "smooth": 0.0,
}  # the end of each axis, beyond which a grid cannot or need not go


def replication(ranks: "pd.DataFrame") -> Any:
    """The largest rank whose phenotypes are all replicated in halves of the patients, both of their definitions."""
    # The fits of two halves have starts of their own: what depends on the start is not replicated either.
    lowest = ranks[["split_half_cosine_min", "split_half_cosine_static_min"]].min(axis=1)
    return last_rank(ranks[lowest >= min(MIN_COSINE, lowest.max())])  # where no rank has it, the closest ones


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
    halves: bool = False  # whether it needs fits of halves of the patients


RULES: dict[str, Rule] = {
    "replication": Rule(replication, halves=True),
    "reproducibility": Rule(reproducibility),
    "stability": Rule(stability, by_rank=False),
    "one-standard-error": Rule(one_standard_error),
    "rmse-elbow": Rule(rmse_elbow),
    "cpi-floor": Rule(cpi_floor),
}
"""The rules of `select` by name; "replication" is the default, and "reproducibility" without halves."""

DEFAULT, WITHOUT_HALVES = "replication", "reproducibility"


def checked_rule(name: Any, halves: int) -> str:
    """Return the name of the rule, by default the best one for these fits."""
    if name is None:
        return DEFAULT if halves else WITHOUT_HALVES
    if name not in RULES:
        raise InputError(f"rule={name!r} does not exist: choose one of {', '.join(RULES)}.")
    if RULES[name].halves and not halves:
        raise InputError(
            f"rule={name!r} compares halves of the patients: give halves=1 or more, or another rule."
        )
    return str(name)


def choose(name: str, table: "pd.DataFrame") -> Any:
    """Return the label of the row that the rule chooses; among ties the first: the smallest rank and weights."""
    rule = RULES[name]
    return rule.choose(by_rank(name, table) if rule.by_rank else table[table["dissimilarity"].notna()])


def by_rank(name: str, table: "pd.DataFrame") -> "pd.DataFrame":
    """Return one row per rank, in increasing order: the best weights, for most rules of the unique ones."""
    rows = table[table["dissimilarity"].notna()]
    if RULES[name].by_rank:
        unique = rows["cpi"] >= MIN_CPI
        rows = rows[unique | ~unique.groupby(rows["rank"]).transform("any")]
    disagreement = 1 - mean_cosine(rows) if RULES[name].halves else rows["dissimilarity"]
    return rows.loc[disagreement.groupby(rows["rank"], sort=True).idxmin()]


def mean_cosine(rows: "pd.DataFrame") -> "pd.Series[float]":
    """Return the mean cosine of temporal and, where there are any, static definitions in halves of the patients."""
    return rows[["split_half_cosine", "split_half_cosine_static"]].mean(axis=1)


def last_rank(rows: "pd.DataFrame") -> Any:
    return rows["rank"].idxmax()


def edges(table: "pd.DataFrame", chosen: Any) -> dict[str, str]:
    """Return the axes along which the chosen cell is the "smallest" or "largest" of several values."""
    found = {}
    for name, lowest in LOWEST.items():
        value, values = table.loc[chosen, name], table[name]
        if values.nunique() > 1 and value == values.max():
            found[name] = "largest"
        elif values.nunique() > 1 and value == values.min() > lowest:
            found[name] = "smallest"
    return found


def edge_warning(table: "pd.DataFrame", chosen: Any) -> str | None:
    """Return the sentence about a choice at the edge of the grid, beyond which a better one may lie."""
    found = edges(table, chosen)
    if not found:
        return None
    places = " and ".join(f"{name}={table.loc[chosen, name]:g} is the {end}" for name, end in found.items())
    return f"The choice is at the edge of the grid ({places}): extend the grid and resume."
