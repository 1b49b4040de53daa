"""The cohort's patients by the phenotype that leads in them, with the sizes that may be shown."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from phenotaste.disclosure import Gate, rounded
from phenotaste.report.patients import NOBODY, Integers, Matrix, Patients, leading
from phenotaste.report.record import Leading

PREVALENT = (
    0.1  # the part of what the model explains of a patient from which on a phenotype counts as present
)


@dataclass(frozen=True)
class Groups:
    """Group r are the patients that phenotype r leads in; the last group has none."""

    group: Integers  # of each patient
    sizes: Integers
    shown: list[int | None]  # the sizes, as they may be shown
    prevalence: list[float | None]
    numbers: list[int]  # of the phenotypes

    @property
    def n_patients(self) -> int:
        return len(self.group)

    @property
    def open(self) -> NDArray[np.bool_]:
        """Groups of known size: of the others nothing may be compared."""
        return np.array([size is not None for size in self.shown])

    @property
    def nobody(self) -> int | None:
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


def groups_of(patients: Patients, numbers: list[int], gate: Gate) -> Groups:
    shares = patients.shares()
    R = shares.shape[1]
    lead = leading(shares)
    group = np.where(lead == NOBODY, R, lead)
    sizes = np.bincount(group, minlength=R + 1)
    shown = gate.parts("overview", "numbers of patients a phenotype leads in", sizes)
    present = np.count_nonzero(shares >= PREVALENT, axis=0)
    return Groups(group, sizes, shown, prevalences(present, sizes, shown, numbers, gate), numbers)


def prevalences(
    present: Integers, sizes: Integers, shown: list[int | None], numbers: list[int], gate: Gate
) -> list[float | None]:
    """Shares of patients that have the phenotype, unless a small count is a difference of what is shown."""
    K, nobody = int(sizes.sum()), shown[-1]
    found: list[float | None] = []
    taken: list[int] = []
    for r, count in enumerate(int(n) for n in present):
        differences = [K - count]
        if shown[r] is not None:
            differences.append(count - int(sizes[r]))  # those in whom another one leads
        if nobody is not None:
            differences.append(K - nobody - count)
            if len(present) == 2:  # everybody has one or the other: how many have both follows
                differences += [count + other - (K - nobody) for other in taken]
        safe = gate.count(f"phenotype {numbers[r]}", "prevalence", count, *differences)
        found.append(None if safe is None else rounded(safe / max(K, 1)))
        taken += [] if safe is None else [safe]
    return found
