"""Patients under a model: the size of each phenotype, its share, and who has it. The one source of these figures."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]

NO_PHENOTYPE = -1
MIN_PRESENT_SHARE = 0.1  # a patient has a phenotype from this share on, and the leading one in any case
VISITS_PER_BLOCK = 2**18  # bounds the memory for sizes at visits


class PooledProjection(NamedTuple):
    """Patients under a fitted model without courses.

    `sizes` are the scores in a scale that all phenotypes share, in which each is a part of the patient's record.
    """

    W: Matrix
    sizes: Matrix
    offsets: Integers  # of the visits of each patient
    unknown_features: int  # temporal features that the model lacks, ignored
    absent_features: int  # temporal features that the cohort lacks, taken as zero


class Patients(NamedTuple):
    """Scores W and courses U; those of patient k are U[offsets[k]:offsets[k + 1]]. Patient-level: never shown as is.

    A method without courses has no U, and its W are the sizes of the phenotypes in the data's own units.
    """

    W: Matrix
    U: Matrix | None
    offsets: Integers
    scale: Matrix  # of each patient: what one unit of w is in the data's own units

    @classmethod
    def of(cls, projection: Any) -> "Patients":
        """The patients that `project` returned."""
        if isinstance(projection, PooledProjection):
            return cls(projection.sizes, None, projection.offsets, np.ones(len(projection.sizes)))
        return cls(projection.W, projection.U, projection.offsets, projection.scale)

    @classmethod
    def of_fit(cls, model: Any) -> "Patients":
        """The patients that a model was fitted on and keeps."""
        return cls(model.W_, model.U_, model.offsets_, model.scale_)

    @property
    def visits(self) -> Integers:
        return np.diff(self.offsets)

    def rows(self, chosen: Integers) -> Integers:
        """The visits of the patients at the chosen positions, as rows of U."""
        counts = self.visits[chosen]
        starts = np.cumsum(counts) - counts
        return np.repeat(self.offsets[chosen] - starts, counts) + np.arange(counts.sum())

    def sizes_at_visits(self, chosen: Integers, phenotype: int | slice = slice(None)) -> Matrix:
        """w·u at each visit of the chosen patients: how a course is read. u alone means nothing where w is 0."""
        assert self.U is not None
        owner = np.repeat(chosen, self.visits[chosen])
        return np.multiply(self.U[self.rows(chosen), phenotype], self.W[owner, phenotype], dtype=np.float64)

    def sizes(self) -> Matrix:
        """w_kr‖u_kr‖, the size of the course of phenotype r; zero without visits. Where courses have size 1 it is w."""
        if self.U is None:
            return self.W
        norms = np.zeros_like(self.W, dtype=np.float64)
        for block in self.blocks():
            first, last = self.offsets[block[0]], self.offsets[block[-1] + 1]
            squares = np.square(self.U[first:last], dtype=np.float64)
            norms[block] = np.sqrt(np.add.reduceat(squares, self.offsets[block] - first, axis=0))
        return self.W * norms

    def amounts(self) -> Matrix:
        """The sizes in the data's own units; zero without visits."""
        return self.sizes() * self.scale[:, None]

    def shares(self) -> Matrix:
        """The share of each phenotype in the squares of the patient's sizes; zeros where all of them are zero."""
        return shares(self.sizes())

    def leading(self) -> Integers:
        """The phenotype with the largest share in each patient, or NO_PHENOTYPE."""
        return leading(self.shares())

    def leading_counts(self) -> list[int]:
        """The number of patients each phenotype leads in, and last the number without a phenotype."""
        R = self.W.shape[1]
        lead = self.leading()
        return np.bincount(np.where(lead == NO_PHENOTYPE, R, lead), minlength=R + 1).tolist()

    def blocks(self) -> Iterator[Integers]:
        """Positions of the patients with visits, in blocks of about VISITS_PER_BLOCK visits."""
        with_visits = np.flatnonzero(self.visits)
        if len(with_visits):
            block = self.offsets[with_visits] // VISITS_PER_BLOCK
            yield from np.split(with_visits, np.flatnonzero(np.diff(block)) + 1)


class SharesByBlock:
    """The shares of the patients of a fit, computed for those asked for: all at once may exceed a memory limit.

    Patients who are not `known` have none. With `unit` courses a score is its own size.
    """

    def __init__(self, patients: Patients, known: NDArray[np.bool_], unit: bool) -> None:
        self.patients, self.known, self.unit = patients, known, unit
        self.shape = patients.W.shape

    def __getitem__(self, block: slice) -> Matrix:
        W, known, offsets = self.patients.W[block], self.known[block, None], self.patients.offsets
        if self.unit:
            return shares(W * known)
        assert self.patients.U is not None
        first, last, _ = block.indices(len(self.known))
        visits = slice(offsets[first], offsets[last])
        own = Patients(
            W, self.patients.U[visits], offsets[first : last + 1] - offsets[first], self.patients.scale[block]
        )
        return shares(own.sizes() * known)


MEDIAN_PATIENTS = 2**14  # whose scores the median is of: more would not change it, and need memory
LARGEST_SCORE = 50  # times the median of the positive ones
FEW_VISITS = 3


def score_warnings(
    W: Matrix, F: Matrix | None, visits: Integers, known: NDArray[np.bool_] | None = None
) -> list[str]:
    """What users should know of the scores of a fit, in a sentence each, for the `known` patients, by default all.

    The sentences hold no figure of a patient: they are saved with models that hold no patients.
    """
    found = []
    known = np.ones(len(W), bool) if known is None else known
    largest = W.max(axis=0, initial=0.0, where=known[:, None])
    patients = np.flatnonzero(known)
    some = W[patients[:: max(1, len(patients) // MEDIAN_PATIENTS)]]
    positive = some[some > 0]
    if len(positive) and largest.max() > LARGEST_SCORE * np.median(positive):
        found.append(
            f"The largest score is more than {LARGEST_SCORE} times the median of the positive ones: look for records "
            "with extreme values, and cap them or leave them out."
        )
    dead = [] if F is None else np.flatnonzero((largest > 0) & ~F.any(axis=0)).tolist()
    if dead:
        which = ("Phenotype " if len(dead) == 1 else "Phenotypes ") + ", ".join(str(r + 1) for r in dead)
        found.append(
            f"The static definition of {which[0].lower()}{which[1:]} is zero (a column of F), although patients have "
            "scores: compare with fits of other starts or of fewer phenotypes."
        )
    if 2 * np.count_nonzero(known & (visits < FEW_VISITS)) > len(patients):
        found.append(
            f"Most histories have fewer than {FEW_VISITS} visits: scores rest on one or two visits, and courses say "
            "little."
        )
    return found


def shares(sizes: Matrix) -> Matrix:
    """Squares that sum to one for each patient: parts of what the model explains of the visits; zeros for no sizes."""
    largest = np.abs(sizes).max(axis=1, keepdims=True, initial=0.0)
    squares = np.divide(sizes, largest, out=np.zeros_like(sizes), where=largest > 0) ** 2
    total = squares.sum(axis=1, keepdims=True)
    return np.divide(squares, total, out=squares, where=total > 0)


def leading(shares: Matrix) -> Integers:
    return np.where(shares.any(axis=1), shares.argmax(axis=1), NO_PHENOTYPE)


def present(shares: Matrix) -> NDArray[np.bool_]:
    """Whether each patient has each phenotype: one of a sufficient share, or the leading one."""
    return (shares >= MIN_PRESENT_SHARE) | (leading(shares)[:, None] == np.arange(shares.shape[1]))
