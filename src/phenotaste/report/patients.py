"""Patients under a model: how much of each one a phenotype explains, and which one leads."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.metrics import is_fitted_on

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]

NOBODY = -1
VISITS_AT_A_TIME = 2**18  # so that squares of courses take little memory beside the courses


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
        norms = np.zeros_like(self.W, dtype=np.float64)
        seen = np.flatnonzero(self.visits)
        for block in self._blocks(seen):
            first, last = self.offsets[block[0]], self.offsets[block[-1] + 1]
            squares = np.square(self.U[first:last], dtype=np.float64)
            norms[block] = np.sqrt(np.add.reduceat(squares, self.offsets[block] - first, axis=0))
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
        return leading(self.shares())

    def leading_counts(self) -> list[int]:
        """For each phenotype, how many patients it leads in; the last count is of patients without one."""
        R = self.W.shape[1]
        found = np.bincount(np.where(self.leading() == NOBODY, R, self.leading()), minlength=R + 1)
        return [int(count) for count in found]

    def _blocks(self, seen: Integers) -> Iterator[Integers]:
        """Patients with visits, in runs of about so many visits."""
        if len(seen):
            part = self.offsets[seen] // VISITS_AT_A_TIME
            yield from np.split(seen, np.flatnonzero(np.diff(part)) + 1)


def leading(shares: Matrix) -> Integers:
    return np.where(shares.any(axis=1), shares.argmax(axis=1), NOBODY)


def patients_of(model: Any, cohort: Cohort | None = None) -> Patients | None:
    """The cohort's patients, else those the model was fitted on; None when the model was saved without them."""
    if cohort is not None and not is_fitted_on(model, cohort):
        projected = model.project(cohort)
        return Patients(projected.W, projected.U, projected.offsets)
    if getattr(model, "U_", None) is None:
        return None
    return Patients(model.W_, model.U_, model.offsets_)
