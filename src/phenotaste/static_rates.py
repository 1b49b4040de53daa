"""How often patients who have a phenotype have each static fact, against the whole cohort, as far as it may be shown.

The figures are saved with models that hold no patients, so that they pass disclosure control at the fit.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.disclosure import OLDEST, Gate, Limits, is_age
from phenotaste.patients import Matrix, SharesByBlock, leading, present

Mask = NDArray[np.bool_]
PATIENTS_PER_BLOCK = 2**14  # bounds the memory for products


class StaticRates(NamedTuple):
    """Rates of static facts (0 or 1), or means of other columns; NaN where they are withheld."""

    cohort: Matrix  # P
    having: Matrix  # P × R: among the patients who have each phenotype
    numeric: Mask  # P: columns of other values than 0 and 1


class Column(NamedTuple):
    """A static column; numbers are winsorised, and ages from 90 up are one."""

    name: str
    limits: Limits | None  # of numbers
    numeric: bool

    def values(self, column: Matrix) -> Matrix:
        if not self.numeric:
            return np.asarray(column != 0, np.float64)
        column = np.minimum(column, OLDEST) if is_age(self.name) else column
        return column if self.limits is None else self.limits.clip(column)


def static_rates(
    static: Matrix, names: Sequence[str], shares: Matrix | SharesByBlock, gate: Gate | None = None
) -> StaticRates:
    """The rates of the columns of `static` (K × P), from the patients' shares (K × R)."""
    gate = Gate() if gate is None else gate
    K, P = static.shape
    R = shares.shape[1]
    columns = [read_column(str(name), column, gate) for name, column in zip(names, static.T, strict=True)]

    def figures(rows: slice) -> Matrix:
        """Of some patients: the values of each column, and ones to count the patients."""
        values = [column.values(static[rows, j]) for j, column in enumerate(columns)]
        return np.column_stack([*values, np.ones(len(static[rows]))])

    all_, having, leads = sums_by_phenotype(figures, P + 1, shares)
    cohort = [cohort_rate(gate, column, all_[j], K) for j, column in enumerate(columns)]
    told = [others_are_enough(gate, f"phenotype {r + 1}", int(having[r, P]), int(leads[r])) for r in range(R)]
    by_phenotype = [
        [
            group_rate(gate, column, f"phenotype {r + 1}", having[r, [j, P]], all_[[j, P]])
            if told[r]
            else None
            for r in range(R)
        ]
        for j, column in enumerate(columns)
    ]
    numeric = np.array([column.numeric for column in columns], bool)
    return StaticRates(
        np.array(cohort, np.float64), np.array(by_phenotype, np.float64).reshape(P, R), numeric
    )


def read_column(name: str, column: Matrix, gate: Gate) -> Column:
    if is_fact(name, column, gate):
        return Column(name, None, False)
    capped = np.minimum(column, OLDEST) if is_age(name) else column
    return Column(name, None if gate.trusted else gate.limits(capped), True)


def cohort_rate(gate: Gate, column: Column, total: float, size: int) -> float | None:
    """The rate of a column in all patients, or its mean."""
    n, what = gate.count("patients", size), fact_name(column.name)
    if column.numeric:
        return gate.mean(what, total / max(size, 1), column.limits, n)
    return gate.share(gate.count(what, round(total)), n)


def others_are_enough(gate: Gate, group: str, having: int, leads: int) -> bool:
    """Whether enough patients have a phenotype without its leading: a report shows the facts of both groups."""
    return gate.rounded(group, having) - gate.rounded(group, leads) >= gate.min_difference


def group_rate(gate: Gate, column: Column, group: str, sums: Matrix, everyone: Matrix) -> float | None:
    """The rate or mean among the patients who have a phenotype; arguments are sums of the column and of patients.

    It is shown beside that of all patients, so that all four counts of the table must be large enough.
    """
    size, n = gate.count(group, round(sums[1])), gate.rounded("patients", round(everyone[1]))
    if not size:
        return None
    what = fact_name(column.name, group)
    if column.numeric:
        if n - size < gate.min_difference:  # others are too few
            return None
        return gate.mean(what, sums[0] / sums[1], column.limits, size)
    part, total = gate.count(what, round(sums[0])), gate.count(fact_name(column.name), round(everyone[0]))
    if gate.trusted:
        return gate.share(part, size)
    return None if gate.four_cells(part, size, total, n) is None else gate.share(part, size)


def fact_name(name: str, group: str = "") -> str:
    """The name under which the patients of a group who have a static fact are counted, here and in reports."""
    return f"{group}/static {name}" if group else f"static {name}"


def is_fact(name: str, column: Matrix, gate: Gate) -> bool:
    """Whether a column is of 0 and 1, apart from too few other values to be shown, which count as 1."""
    others = int(np.count_nonzero((column != 0) & (column != 1)))
    return gate.rounded(f"{fact_name(name)}/other values", others) < max(gate.min_shown, 1)


def sums_by_phenotype(
    figures: Callable[[slice], Matrix], width: int, shares: Matrix | SharesByBlock
) -> tuple[Matrix, Matrix, Matrix]:
    """Sums over all patients (width) and over those who have each phenotype (R × width); numbers each leads in."""
    K, R = shares.shape
    everyone, having, leads = np.zeros(width), np.zeros((R, width)), np.zeros(R)
    for first in range(0, K, PATIENTS_PER_BLOCK):
        block = slice(first, min(first + PATIENTS_PER_BLOCK, K))
        values, own = figures(block), shares[block]
        having += present(own).T.astype(np.float64) @ values
        leads += np.sum(leading(own)[:, None] == np.arange(R), axis=0)
        everyone += values.sum(axis=0)
    return everyone, having, leads
