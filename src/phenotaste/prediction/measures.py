"""Measures of predicted risks: AUC, average precision, Brier score, their bootstrap, ROC curves and calibration.

Bootstrap samples are drawn from the complete cohort and are the same for every split and method, so that means over
splits and differences between methods can be resampled without keeping any prediction.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit

from phenotaste.core.records import Array
from phenotaste.disclosure import Gate

NAMES = ("auc", "auprc", "brier")
STREAM = 2  # part of every seed: never renumber
MAX_ENTRIES = 2_000_000  # of the array of counts, to limit memory
MAX_GROUPS = 10
MAX_NEWTON_STEPS, NEWTON_TOL = 100, 1e-10
MIN_RISK = 1e-9
RISK_DECIMALS = 2  # of a mean risk, unless disclosure control is off
ROC_GRID = np.linspace(0.0, 1.0, 51)  # false positive rates of the ROC curves that are kept


class Measures(NamedTuple):
    values: dict[str, float]
    resampled: Array  # resamples × NAMES; NaN where a sample has only one class


def measure(risk: Array, case: Array, counts: Array | None = None) -> Array:
    """Return AUC, average precision and Brier score, a row for each row of `counts`, the patients' multiplicities."""
    counts = np.ones((1, len(case))) if counts is None else np.asarray(counts, np.float64)
    order = np.argsort(risk, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(risk[order]) > 0])  # of each distinct risk
    sums = [np.add.reduceat(counts[:, order] * side[order], first, axis=1) for side in (case, ~case)]
    cases, controls = sums
    n_cases, n_controls = cases.sum(axis=1), controls.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        below = np.cumsum(controls, axis=1) - 0.5 * controls  # ties count half
        auc = (cases * below).sum(axis=1) / (n_cases * n_controls)
        cases_above, controls_above = (np.cumsum(part[:, ::-1], axis=1)[:, ::-1] for part in sums)
        positives = cases_above + controls_above
        precision = np.divide(cases_above, positives, out=np.zeros_like(positives), where=positives > 0)
        auprc = (cases * precision).sum(axis=1) / n_cases
        # Not a matrix product, whose bits depend on the number of rows.
        brier = (counts * (risk - case) ** 2).sum(axis=1) / counts.sum(axis=1)
    measures = np.column_stack([auc, auprc, brier])
    measures[(n_cases == 0) | (n_controls == 0)] = np.nan
    return measures


def bootstrap_measures(
    risk: Array, case: Array, test: Array, n_patients: int, resamples: int, random_state: int
) -> Measures:
    """Return the measures of the test rows and those of bootstrap samples of the patients.

    `test` are the numbers of the patients of the rows, below `n_patients`; rows of one patient are drawn together.
    """
    values = dict(zip(NAMES, measure(risk, case)[0].tolist(), strict=True))
    batch = max(1, MAX_ENTRIES // max(len(test), 1))
    rng = np.random.default_rng([random_state, STREAM])
    resampled = [np.empty((0, len(NAMES)))]
    for first in range(0, resamples, batch):
        size = min(batch, resamples - first)
        counts = np.empty((size, len(test)))
        for draw in range(size):
            counts[draw] = np.bincount(rng.integers(n_patients, size=n_patients), minlength=n_patients)[test]
        resampled.append(measure(risk, case, counts))
    return Measures(values, np.concatenate(resampled))


class Calibration(NamedTuple):
    intercept: float  # mean underestimate of the log odds; 0 is perfect
    slope: float  # 1 is perfect; below 1 the risks are too extreme
    slope_intercept: float  # the calibration curve is expit(slope_intercept + slope · logit(risk))


def calibration(risk: Array, case: Array) -> Calibration:
    """Return the intercept for a slope of 1, and the slope with its own intercept (Cox 1958); NaN if undefined."""
    x = logit(np.clip(risk, MIN_RISK, 1 - MIN_RISK))
    ones = np.ones((len(x), 1))
    intercept = logistic(ones, case, offset=x)[0]
    slope_intercept, slope = np.nan, np.nan
    if np.ptp(x) >= NEWTON_TOL:  # equal risks have no slope
        slope_intercept, slope = logistic(np.column_stack([ones, x]), case)
    return Calibration(float(intercept), float(slope), float(slope_intercept))


def logistic(X: Array, case: Array, offset: Array | float = 0.0) -> Array:
    """Return unpenalised logistic regression coefficients by Newton's method; NaN if they are not finite."""
    beta = np.zeros(X.shape[1])
    for _ in range(MAX_NEWTON_STEPS):
        p = expit(X @ beta + offset)
        curvature = X.T @ (X * (p * (1 - p))[:, None])
        try:
            step = np.linalg.solve(curvature, X.T @ (case - p))
        except np.linalg.LinAlgError:
            break
        size = float(np.abs(step).max())
        if not np.isfinite(size):
            break
        beta = beta + step * min(
            1.0, 5.0 / max(size, NEWTON_TOL)
        )  # a damped step, since Newton may overshoot
        if size < NEWTON_TOL:
            return beta
    return np.full(X.shape[1], np.nan)


def risk_groups(risk: Array, case: Array, gate: Gate) -> list[dict[str, Any]]:
    """Return the mean predicted risk and the observed fraction of cases in groups of increasing risk.

    Every group has enough cases and enough controls to be shown, and its counts are rounded; the list is empty if there
    are too few patients for one group. Patients of equal risk share a group.
    """
    order = np.argsort(risk, kind="stable")
    risk, case = risk[order], case[order]
    target_size, minimum = len(risk) / MAX_GROUPS, max(gate.min_shown, 1)
    groups: list[dict[str, Any]] = []
    first = 0
    while first < len(risk):
        last = group_end(risk, case, first, target_size, minimum)
        rest = case[last:]
        if rest.sum() < minimum or (~rest).sum() < minimum:  # too few for another group
            last = len(risk)
        part = case[first:last]
        if part.sum() < minimum or (~part).sum() < minimum:
            gate.note("calibration", "groups of risk")
            return []
        cases, controls = (gate.rounded("risk group", int(n)) for n in (part.sum(), (~part).sum()))
        predicted = float(risk[first:last].mean())
        groups.append(
            {
                "patients": cases + controls,
                "predicted": predicted if gate.trusted else round(predicted, RISK_DECIMALS),
                "observed": cases / (cases + controls),
            }
        )
        first = last
    return groups


def group_end(risk: Array, case: Array, first: int, target_size: float, minimum: int) -> int:
    """Return the first end of a large enough group from `first` on that does not separate patients of equal risk."""
    cases = np.cumsum(case[first:])
    patients = np.arange(1, len(cases) + 1)
    enough = (patients >= target_size) & (cases >= minimum) & (patients - cases >= minimum)
    between = np.r_[np.diff(risk[first:]) > 0, True]
    ends = np.flatnonzero(enough & between)
    return first + int(ends[0]) + 1 if len(ends) else len(risk)


def roc_curve(risk: Array, case: Array, gate: Gate) -> Array | None:
    """Return the true positive rate at each false positive rate of `ROC_GRID`.

    Every step of the curve has at least the minimum number of patients to be shown, and counts of cases and controls
    up to a step are rounded; None with too few cases or controls.
    """
    n_cases, n_controls = (gate.count("ROC", int(n)) for n in (case.sum(), (~case).sum()))
    if not n_cases or not n_controls:
        gate.note("ROC curve", "all of it")
        return None
    order = np.argsort(-risk, kind="stable")
    risk, case = risk[order], case[order]
    ends = [0]
    for end in np.flatnonzero(np.r_[np.diff(risk) < 0, True]) + 1:
        if end - ends[-1] >= gate.min_group_size:
            ends.append(int(end))
    if ends[-1] < len(case):
        ends[max(len(ends) - 1, 1) :] = [len(case)]  # the remainder is too small for a step of its own
    false_positive, true_positive = (
        np.minimum([gate.rounded("ROC", int(n)) for n in np.r_[0, np.cumsum(members)][ends]], total) / total
        for members, total in ((~case, n_controls), (case, n_cases))
    )
    false_positive, true_positive = map(np.maximum.accumulate, (false_positive, true_positive))
    return np.interp(ROC_GRID, false_positive, true_positive)
