"""The patients of a page by leading phenotype: groups, and their sizes as far as they may be shown."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate
from phenotaste.metrics import is_fitted_on
from phenotaste.patients import NO_PHENOTYPE, Integers, Matrix, Patients, leading, present
from phenotaste.report.schema import Leading


def patients_of(model: Any, cohort: Cohort | None = None) -> Patients | None:
    """Return the patients of the cohort, or those of the fit; None for a model that was saved without them."""
    if cohort is not None and not is_fitted_on(model, cohort):
        return Patients.of(model.project(cohort))
    if getattr(model, "U_", None) is None:
        return None
    return Patients.of_fit(model)


@dataclass(frozen=True)
class Groups:
    """Patients by leading phenotype: phenotype r leads in group r; the last group has no phenotype."""

    group: Integers  # of each patient
    sizes: Integers
    n_shown: int  # the rounded number of patients
    shown: list[int | None]  # the rounded sizes, None where they are withheld
    prevalence: list[float | None]
    numbers: list[int]  # of the phenotypes

    @property
    def n_patients(self) -> int:
        return len(self.group)

    @property
    def without_phenotype(self) -> int | None:
        return self.shown[-1]

    def name(self, phenotype: int) -> str:
        """The name under which patients are counted who have a phenotype, or whom it leads in.

        One name for both: where they are the same patients, two draws would tell more than one.
        """
        return group_name(self.numbers[phenotype])

    def leading(self, phenotype: int, gate: Gate) -> Leading:
        """The number and share of patients; None if the others are few, which the size of the cohort would give."""
        share = gate.share(self.shown[phenotype], self.n_shown)
        return Leading(None if share is None else self.shown[phenotype], share)

    def members(self, phenotype: int) -> Integers:
        return np.flatnonzero(self.group == phenotype)

    def sums(self, values: Matrix | NDArray[np.bool_]) -> Matrix:
        """The sum of each column over the patients of each group."""
        K = self.n_patients
        indicator = sparse.csr_array((np.ones(K), (self.group, np.arange(K))), shape=(len(self.sizes), K))
        return np.asarray(indicator @ values, dtype=np.float64)


def group_name(number: object) -> str:
    return f"phenotype {number}"


def group_patients(patients: Patients, numbers: list[int], gate: Gate) -> Groups:
    shares = patients.shares()
    R = shares.shape[1]
    lead = leading(shares)
    group = np.where(lead == NO_PHENOTYPE, R, lead)
    sizes = np.bincount(group, minlength=R + 1)
    shown = [
        gate.count(group_name(number), int(n)) for number, n in zip([*numbers, "none"], sizes, strict=True)
    ]
    if None in shown[:R]:
        gate.note("overview", "numbers of patients a phenotype leads in")
    K = gate.rounded("patients", len(group))
    having = np.count_nonzero(present(shares), axis=0)
    prevalence = [
        gate.share(gate.count(group_name(number), int(n)), K)
        for number, n in zip(numbers, having, strict=True)
    ]
    for number, share in zip(numbers, prevalence, strict=True):
        if share is None:
            gate.note(f"phenotype {number}", "prevalence")
    return Groups(group, sizes, K, shown, prevalence, numbers)
