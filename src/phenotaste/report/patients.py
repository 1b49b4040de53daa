"""Patients under a model, and the averages over many of them that figures and pages show."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.metrics import is_fitted_on
from phenotaste.report.counts import FEWEST
from phenotaste.taste import TASTE

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]

NOBODY = -1


class Patients(NamedTuple):
    """Scores W, courses U (patient k's are U[offsets[k]:offsets[k + 1]]). Patient-level: never shown as it is."""

    W: Matrix
    U: Matrix
    offsets: Integers

    @property
    def visits(self) -> Integers:
        return np.diff(self.offsets)

    def strengths(self) -> Matrix:
        """w_kr‖u_kr‖: how much of patient k's record phenotype r explains. It grows with the number of visits."""
        norms = np.zeros_like(self.W)
        seen = self.visits > 0
        if seen.any():
            squares = np.add.reduceat(np.square(self.U, dtype=np.float64), self.offsets[:-1][seen], axis=0)
            norms[seen] = np.sqrt(squares)
        return self.W * norms

    def shares(self) -> Matrix:
        """Strengths as parts of one; a patient whom no phenotype explains keeps zeros."""
        strength = self.strengths()
        total = strength.sum(axis=1, keepdims=True)
        return np.divide(strength, total, out=np.zeros_like(strength), where=total > 0)

    def intensities(self) -> Matrix:
        """Strengths per √visit, so that long and short histories compare."""
        return self.strengths() / np.sqrt(np.maximum(self.visits, 1))[:, None]

    def leading(self) -> Integers:
        """Each patient's phenotype with the largest share, or NOBODY where there is none."""
        share = self.shares()
        return np.where(share.any(axis=1), share.argmax(axis=1), NOBODY)

    def leading_counts(self) -> list[int]:
        """For each phenotype, how many patients it leads in; the last count is of patients without one."""
        R = self.W.shape[1]
        found = np.bincount(np.where(self.leading() == NOBODY, R, self.leading()), minlength=R + 1)
        return [int(count) for count in found]


def patients_of(model: TASTE, cohort: Cohort | None = None) -> Patients | None:
    """The cohort's patients, else those the model was fitted on; None when the model was saved without them."""
    if cohort is not None and not is_fitted_on(model, cohort):
        projected = model.project(cohort)
        return Patients(projected.W, projected.U, projected.offsets)
    if getattr(model, "U_", None) is None:
        return None
    return Patients(model.W_, model.U_, model.offsets_)


def timing(patients: Patients, phenotype: int) -> Matrix:
    """Where the middle of a phenotype's activity lies, from 0 (first visit) to 1 (last); NaN if there is none."""
    visits = patients.visits
    owner = np.repeat(np.arange(len(visits)), visits)
    place = (np.arange(len(owner)) - patients.offsets[owner]) / np.maximum(visits - 1, 1)[owner]
    course = patients.U[:, phenotype]
    total = np.bincount(owner, course, len(visits))
    moment = np.bincount(owner, course * place, len(visits))
    return np.divide(moment, total, out=np.full(len(visits), np.nan), where=total > 0)


def mean_course(patients: Patients, phenotype: int, chosen: NDArray[Any], n_points: int) -> Matrix | None:
    """Mean activity w·u of a phenotype from first to last visit over the chosen patients; None if under 11.

    Histories differ in length, so each is read off at the same `n_points` places between first and last visit.
    `chosen` are patients' positions.
    """
    chosen = chosen[patients.visits[chosen] > 0]
    if len(chosen) < FEWEST:
        return None
    course, weight = patients.U[:, phenotype], patients.W[chosen, phenotype]
    first, last = patients.offsets[chosen], patients.offsets[chosen + 1] - 1
    mean = np.empty(n_points)
    for i, part in enumerate(np.linspace(0.0, 1.0, n_points)):
        place = first + part * (last - first)
        before = np.floor(place).astype(np.int64)
        after = np.minimum(before + 1, last)
        between = course[before] + (place - before) * (course[after] - course[before])
        mean[i] = np.mean(weight * between)
    return mean
