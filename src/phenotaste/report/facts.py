"""What is known of each patient beside the visits: static features with exclusive levels told, ages capped."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate
from phenotaste.report import names
from phenotaste.report.definitions import merge, named

Matrix = NDArray[np.float64]


class Facts(NamedTuple):
    names: list[str]
    values: Matrix  # (K, P)
    families: list[list[int]]  # yes-or-no columns of which a patient has one at most; the others stand alone
    binary: list[bool]


def facts_of(cohort: Cohort, months: Any, gate: Gate) -> Facts:
    """The cohort's static features, number of visits, and months of follow-up where visits are dated."""
    found = named(cohort.static_names, cohort.n_static)
    values = np.zeros((len(cohort), 0)) if cohort.static is None else cohort.static
    if not gate.trusted:
        found, values = with_ages_capped(found, values)
    more = {"visits": cohort.visit_counts.astype(np.float64)}
    if months is not None:
        more["months of follow-up"] = follow_up(cohort, months)
    values = np.column_stack([values, *more.values()])
    binary = [bool(np.isin(column, (0.0, 1.0)).all()) for column in values.T]
    binary[len(found) :] = [False] * len(more)
    return Facts([*found, *more], values, families(found, values, binary), binary)


def follow_up(cohort: Cohort, months: NDArray[np.float32]) -> Matrix:
    """Months from each patient's first to last visit."""
    found = np.zeros(len(cohort))
    seen = cohort.visit_counts > 0
    found[seen] = months[cohort.offsets[1:][seen] - 1]
    return found


def with_ages_capped(given: list[str], values: Matrix) -> tuple[list[str], Matrix]:
    """Levels that tell ages from 90 on apart become one, and numbers that are ages end at 90."""
    found, sources = merge(given, names.old_ages(given))
    values = np.column_stack([values[:, rows].sum(axis=1) for rows in sources]) if sources else values
    for column, name in enumerate(found):
        if names.is_age(name):
            values[:, column] = np.minimum(values[:, column], names.OLDEST)
    return found, values


def families(given: list[str], values: Matrix, binary: list[bool]) -> list[list[int]]:
    """Levels of one thing: named "column=level", or neighbours of which every patient has exactly one.

    They must be known, because what is hidden of one level would follow from the others.
    """
    by_prefix: dict[str, list[int]] = {}
    for column, name in enumerate(given):
        if binary[column] and "=" in name:
            by_prefix.setdefault(name.split("=")[0], []).append(column)
    found = [columns for columns in by_prefix.values() if values[:, columns].sum(axis=1).max(initial=0) <= 1]
    taken = {column for columns in found for column in columns}
    first = 0
    while first < len(given):
        run = exactly_one(values, first, [b and j not in taken for j, b in enumerate(binary[: len(given)])])
        if run:
            found.append(run)
        first += max(len(run), 1)
    taken = {column for columns in found for column in columns}
    return found + [[column] for column in range(len(given)) if binary[column] and column not in taken]


def exactly_one(values: Matrix, first: int, usable: list[bool]) -> list[int]:
    """The shortest run of columns from `first` on of which every patient has exactly one; empty if there is none."""
    total = np.zeros(len(values))
    for column in range(first, len(usable)):
        if not usable[column]:
            return []
        total += values[:, column]
        if total.max(initial=0) > 1:
            return []
        if total.min(initial=1) == 1:
            return list(range(first, column + 1))
    return []
