"""How good predicted risks are: AUC, average precision, Brier score, and the same for resampled patients.

Resamples are drawn over the whole cohort and are the same for every split and method, so that means over splits and
differences between methods can be resampled too without keeping a single prediction.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.records import Array

NAMES = ("auc", "auprc", "brier")
STREAM = 2  # part of every seed: never renumber
ENTRIES_AT_ONCE = 2_000_000  # of resample counts, so that memory stays small


class Measured(NamedTuple):
    values: dict[str, float]
    resampled: Array  # resamples × NAMES; NaN where a resample drew one class only


def measure(risk: Array, case: Array, counts: Array | None = None) -> Array:
    """AUC, average precision and Brier score; a row for each row of `counts`, how often each patient is there."""
    counts = np.ones((1, len(case))) if counts is None else np.asarray(counts, np.float64)
    order = np.argsort(risk, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(risk[order]) > 0])  # where a new value of the risk begins
    sums = [np.add.reduceat(counts[:, order] * side[order], first, axis=1) for side in (case, ~case)]
    cases, controls = sums
    n_cases, n_controls = cases.sum(axis=1), controls.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        below = np.cumsum(controls, axis=1) - 0.5 * controls  # of equal risk counts half
        auc = (cases * below).sum(axis=1) / (n_cases * n_controls)
        cases_down, controls_down = (np.cumsum(part[:, ::-1], axis=1)[:, ::-1] for part in sums)
        seen = cases_down + controls_down
        precision = np.divide(cases_down, seen, out=np.zeros_like(seen), where=seen > 0)
        auprc = (cases * precision).sum(axis=1) / n_cases
        # Not a matrix product: its bits depend on how many rows there are.
        brier = (counts * (risk - case) ** 2).sum(axis=1) / counts.sum(axis=1)
    found = np.column_stack([auc, auprc, brier])
    found[(n_cases == 0) | (n_controls == 0)] = np.nan
    return found


def measured(
    risk: Array, case: Array, test: Array, n_patients: int, resamples: int, random_state: int
) -> Measured:
    """The measures of test patients, at these positions of the cohort, and those of resampled ones."""
    values = dict(zip(NAMES, measure(risk, case)[0].tolist(), strict=True))
    at_once = max(1, ENTRIES_AT_ONCE // max(len(test), 1))
    rng = np.random.default_rng([random_state, STREAM])
    found = [np.empty((0, len(NAMES)))]
    for first in range(0, resamples, at_once):
        many = min(at_once, resamples - first)
        counts = np.empty((many, len(test)))
        for draw in range(many):
            counts[draw] = np.bincount(rng.integers(n_patients, size=n_patients), minlength=n_patients)[test]
        found.append(measure(risk, case, counts))
    return Measured(values, np.concatenate(found))
