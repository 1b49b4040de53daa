"""Whether predicted risks are risks: calibration intercept and slope, and curves in groups large enough to be shown."""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit

from phenotaste.core.records import Array
from phenotaste.disclosure import Gate

MOST_GROUPS = 10
STEPS, CLOSE = 100, 1e-10
SMALLEST_RISK = 1e-9
GRID = np.linspace(0.0, 1.0, 51)  # shares of controls at which ROC curves are kept


class Calibration(NamedTuple):
    intercept: float  # log odds that the risks are too low by; 0 is perfect
    slope: float  # 1 is perfect, below 1 risks are too extreme
    slope_intercept: (
        float  # what goes with the slope: the curve is expit(slope_intercept + slope · logit(risk))
    )


def calibration(risk: Array, case: Array) -> Calibration:
    """Intercept with the slope held at 1, and slope with an intercept of its own (Cox 1958); NaN where none is."""
    x = logit(np.clip(risk, SMALLEST_RISK, 1 - SMALLEST_RISK))
    ones = np.ones((len(x), 1))
    intercept = logistic(ones, case, offset=x)[0]
    beside, slope = (
        (np.nan, np.nan) if np.ptp(x) < CLOSE else logistic(np.column_stack([ones, x]), case)
    )  # one risk for all has no slope
    return Calibration(float(intercept), float(slope), float(beside))


def logistic(X: Array, case: Array, offset: Array | float = 0.0) -> Array:
    """Plain logistic regression by Newton's method; NaN where it has no finite answer."""
    beta = np.zeros(X.shape[1])
    for _ in range(STEPS):
        p = expit(X @ beta + offset)
        curvature = X.T @ (X * (p * (1 - p))[:, None])
        try:
            step = np.linalg.solve(curvature, X.T @ (case - p))
        except np.linalg.LinAlgError:
            break
        size = float(np.abs(step).max())
        if not np.isfinite(size):
            break
        beta = beta + step * min(1.0, 5.0 / max(size, CLOSE))  # far from the answer Newton may leap too far
        if size < CLOSE:
            return beta
    return np.full(X.shape[1], np.nan)


def risk_groups(risk: Array, case: Array, gate: Gate) -> list[dict[str, Any]]:
    """Mean predicted risk beside the observed share of cases, in groups of rising risk.

    Every group holds enough cases and enough controls to be shown, so that no small count follows from a share; there
    is none where the patients do not suffice for one. Patients of equal risk stay together.
    """
    order = np.argsort(risk, kind="stable")
    risk, case = risk[order], case[order]
    wanted, fewest = len(risk) / MOST_GROUPS, gate.min_group_size
    groups: list[dict[str, Any]] = []
    first = 0
    while first < len(risk):
        last = group_end(risk, case, first, wanted, fewest)
        rest = case[last:]
        if rest.sum() < fewest or (~rest).sum() < fewest:  # what is left could not be a group
            last = len(risk)
        part = case[first:last]
        if part.sum() < fewest or (~part).sum() < fewest:
            gate.note("calibration", "groups of risk")
            return []
        groups.append(
            {
                "patients": last - first,
                "predicted": float(risk[first:last].mean()),
                "observed": float(part.mean()),
            }
        )
        first = last
    return groups


def group_end(risk: Array, case: Array, first: int, wanted: float, fewest: int) -> int:
    """Where a group that begins at `first` may end: large enough, and not between patients of equal risk."""
    cases = np.cumsum(case[first:])
    patients = np.arange(1, len(cases) + 1)
    enough = (patients >= wanted) & (cases >= fewest) & (patients - cases >= fewest)
    between = np.r_[np.diff(risk[first:]) > 0, True]
    ends = np.flatnonzero(enough & between)
    return first + int(ends[0]) + 1 if len(ends) else len(risk)


def roc_curve(risk: Array, case: Array, gate: Gate) -> Array | None:
    """Share of cases found at each share of controls of `GRID`, every step of at least so many patients.

    None where cases or controls are too few for a curve.
    """
    n_cases, n_controls = int(case.sum()), int((~case).sum())
    if min(n_cases, n_controls) < gate.min_group_size:
        gate.note("ROC curve", "all of it")
        return None
    order = np.argsort(-risk, kind="stable")
    risk, case = risk[order], case[order]
    ends = [0]
    for end in np.flatnonzero(np.r_[np.diff(risk) < 0, True]) + 1:
        if end - ends[-1] >= gate.min_group_size:
            ends.append(int(end))
    if ends[-1] < len(case):
        ends[max(len(ends) - 1, 1) :] = [len(case)]  # what is left is too small for a step of its own
    found = np.r_[0, np.cumsum(case)][ends] / n_cases
    false = np.r_[0, np.cumsum(~case)][ends] / n_controls
    return np.interp(GRID, false, found)
