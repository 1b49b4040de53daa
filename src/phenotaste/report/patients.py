"""Patients under a model: how much of each record a phenotype explains, which phenotype leads, and group sizes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate, rounded
from phenotaste.metrics import is_fitted_on
from phenotaste.report.schema import Leading

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]

NO_PHENOTYPE = -1
MIN_PREVALENT_SHARE = 0.1  # a phenotype is present in a patient from this share of what the model explains
VISITS_PER_BLOCK = 2**18  # bounds the memory for squared courses


class Patients(NamedTuple):
    """Scores W and courses U; those of patient k are U[offsets[k]:offsets[k + 1]]. Patient-level: never shown as is."""

    W: Matrix
    U: Matrix
    offsets: Integers

    @property
    def visits(self) -> Integers:
        return np.diff(self.offsets)

    def strengths(self) -> Matrix:
        """w_kr‖u_kr‖, how much of the record of patient k phenotype r explains. It grows with the number of visits."""
        norms = np.zeros_like(self.W, dtype=np.float64)
        for block in self._blocks(np.flatnonzero(self.visits)):
            first, last = self.offsets[block[0]], self.offsets[block[-1] + 1]
            squares = np.square(self.U[first:last], dtype=np.float64)
            norms[block] = np.sqrt(np.add.reduceat(squares, self.offsets[block] - first, axis=0))
        return self.W * norms

    def shares(self) -> Matrix:
        """Strengths that sum to one for each patient; zeros where no phenotype explains anything."""
        strength = self.strengths()
        total = strength.sum(axis=1, keepdims=True)
        return np.divide(strength, total, out=np.zeros_like(strength), where=total > 0)

    def intensities(self) -> Matrix:
        """Strengths per √visit, which makes long and short histories comparable."""
        return self.strengths() / np.sqrt(np.maximum(self.visits, 1))[:, None]

    def leading(self) -> Integers:
        """The phenotype with the largest share in each patient, or NO_PHENOTYPE."""
        return leading(self.shares())

    def leading_counts(self) -> list[int]:
        """The number of patients each phenotype leads in, and last the number without a phenotype."""
        R = self.W.shape[1]
        lead = self.leading()
        return np.bincount(np.where(lead == NO_PHENOTYPE, R, lead), minlength=R + 1).tolist()

    def _blocks(self, with_visits: Integers) -> Iterator[Integers]:
        """Patients with visits, in blocks of about VISITS_PER_BLOCK visits."""
        if len(with_visits):
            block = self.offsets[with_visits] // VISITS_PER_BLOCK
            yield from np.split(with_visits, np.flatnonzero(np.diff(block)) + 1)


def leading(shares: Matrix) -> Integers:
    return np.where(shares.any(axis=1), shares.argmax(axis=1), NO_PHENOTYPE)


def patients_of(model: Any, cohort: Cohort | None = None) -> Patients | None:
    """Return the patients of the cohort, or those of the fit; None for a model that was saved without them."""
    if cohort is not None and not is_fitted_on(model, cohort):
        projected = model.project(cohort)
        return Patients(projected.W, projected.U, projected.offsets)
    if getattr(model, "U_", None) is None:
        return None
    return Patients(model.W_, model.U_, model.offsets_)


@dataclass(frozen=True)
class Groups:
    """Patients by leading phenotype: phenotype r leads in group r; the last group has no phenotype."""

    group: Integers  # of each patient
    sizes: Integers
    shown: list[int | None]  # the sizes, None where they must not be shown
    prevalence: list[float | None]
    numbers: list[int]  # of the phenotypes

    @property
    def n_patients(self) -> int:
        return len(self.group)

    @property
    def disclosed(self) -> NDArray[np.bool_]:
        """Groups whose size is shown; the others may not be compared with anything."""
        return np.array([size is not None for size in self.shown])

    @property
    def without_phenotype(self) -> int | None:
        return self.shown[-1]

    def leading(self, phenotype: int) -> Leading:
        count = self.shown[phenotype]
        return Leading(count, None if count is None else rounded(count / max(self.n_patients, 1)))

    def members(self, phenotype: int) -> Integers:
        return np.flatnonzero(self.group == phenotype)

    def sums(self, values: Matrix | NDArray[np.bool_]) -> Matrix:
        """The sum of each column over the patients of each group."""
        K = self.n_patients
        indicator = sparse.csr_array((np.ones(K), (self.group, np.arange(K))), shape=(len(self.sizes), K))
        return np.asarray(indicator @ values, dtype=np.float64)


def group_patients(patients: Patients, numbers: list[int], gate: Gate) -> Groups:
    shares = patients.shares()
    R = shares.shape[1]
    lead = leading(shares)
    group = np.where(lead == NO_PHENOTYPE, R, lead)
    sizes = np.bincount(group, minlength=R + 1)
    shown = gate.parts("overview", "numbers of patients a phenotype leads in", sizes)
    present = np.count_nonzero(shares >= MIN_PREVALENT_SHARE, axis=0)
    return Groups(group, sizes, shown, prevalences(present, sizes, shown, numbers, gate), numbers)


def prevalences(
    present: Integers, sizes: Integers, shown: list[int | None], numbers: list[int], gate: Gate
) -> list[float | None]:
    """The share of patients that have each phenotype, unless it and other shown counts differ by a small count."""
    K, without = int(sizes.sum()), shown[-1]
    result: list[float | None] = []
    disclosed: list[int] = []
    for r, count in enumerate(int(n) for n in present):
        differences = [K - count]
        if shown[r] is not None:
            differences.append(count - int(sizes[r]))  # patients that have it, but in whom another one leads
        if without is not None:
            differences.append(K - without - count)
            if len(present) == 2:  # every other patient has one or both: the number with both follows
                differences += [count + other - (K - without) for other in disclosed]
        safe = gate.count(f"phenotype {numbers[r]}", "prevalence", count, *differences)
        result.append(None if safe is None else rounded(safe / max(K, 1)))
        disclosed += [] if safe is None else [safe]
    return result
