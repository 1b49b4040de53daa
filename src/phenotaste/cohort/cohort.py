"""Cohort: the visits of many patients as one sparse matrix, their static features, and the names of both.

The input of all estimators; its arrays are validated once, on construction.
"""

import operator
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from phenotaste.cohort.checks import (
    CSR,
    checked_groups,
    checked_ids,
    checked_labels,
    checked_last_times,
    checked_names,
    checked_offsets,
    checked_origin,
    checked_static,
    checked_times,
    checked_visits,
    csr_parts,
    frozen,
    frozen_csr,
)
from phenotaste.cohort.from_tables import Table, group_visits, join_patients, static_matrix
from phenotaste.errors import InputError
from phenotaste.storage import tensors


class PatientIndexError(InputError, IndexError):
    """A patient position outside the cohort: both an InputError and an IndexError.

    Examples
    --------
    >>> Cohort([[1, 0], [0, 1]], offsets=[0, 1, 2])[2]
    Traceback (most recent call last):
        ...
    phenotaste.cohort.cohort.PatientIndexError: a position is out of range for 2 patients, counted from 0.
    """


class Cohort:
    """Visits, static features and names of K patients; all arrays are read-only.

    Parameters
    ----------
    visits : sparse matrix or array (n_visits × J), non-negative; the rows of one patient are contiguous and in order
        of time.
    offsets : K + 1 integers; the visits of patient k are the rows from offsets[k] up to offsets[k + 1].
    static : array or DataFrame (K × P), non-negative; the columns of a DataFrame give `static_names`.
    patient_ids : K integers or strings; 0 to K - 1 by default.
    groups : K integers or strings, the patient of each row where patients have several, as with several index times;
        rows of one patient are never split between training and test. None: each row is a patient.
    visit_times : n_visits dates or numbers, non-decreasing within a patient.
    feature_names, static_names : J and P strings; unnamed columns are matched to a model by position.
    labels : K numbers, NaN where unknown.
    last_times : K dates or numbers, the time of the last record used of each patient; without it, that of the last
        visit. It differs where a visit contains later events, as a hospital stay does.
    allow_negative : accept negative values, as in simulated data with noise.
    origin : provenance (source, settings, attrition, data quality), JSON-serialisable and without patient data.

    All parameters are also attributes.

    Examples
    --------
    >>> from phenotaste.cohort import Cohort
    >>> c = Cohort([[1, 0, 2], [0, 1, 0], [3, 0, 0]], offsets=[0, 2, 3], static=[[0, 1], [1, 0]])
    >>> c
    Cohort(2 patients, 3 visits, 3 features, 2 static features)
    >>> c[1].visits.toarray()
    array([[3., 0., 0.]])
    """

    def __init__(
        self,
        visits: Any,
        offsets: Any,
        static: Any = None,
        *,
        patient_ids: Any = None,
        visit_times: Any = None,
        feature_names: Any = None,
        static_names: Any = None,
        labels: Any = None,
        last_times: Any = None,
        groups: Any = None,
        allow_negative: bool = False,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self.allow_negative = bool(allow_negative)
        self.origin = checked_origin(origin)
        parts = visits if isinstance(visits, CSR) else csr_parts(visits)
        self.offsets = checked_offsets(offsets, len(parts.indptr) - 1)
        self.feature_names = checked_names(feature_names, parts.n_features, "feature_names")
        self.visits = checked_visits(parts, self.offsets, self.feature_names, self.allow_negative)
        self.static, self.static_names = checked_static(
            static, static_names, self.n_patients, self.allow_negative
        )
        self.patient_ids = checked_ids(patient_ids, self.n_patients)
        self.groups = checked_groups(groups, self.n_patients)
        self.visit_times = checked_times(visit_times, self.offsets)
        self.labels = checked_labels(labels, self.n_patients)
        self.last_times = checked_last_times(last_times, self.offsets, self.visit_times)

    @classmethod
    def from_events(
        cls,
        events: Any,
        static: Any = None,
        *,
        patient: str = "patient",
        time: str = "time",
        feature: str = "feature",
        value: str | None = None,
    ) -> "Cohort":
        """Build a cohort from a table of events and, optionally, a table of static facts with a row per patient.

        Both are pandas, polars or Arrow tables. A visit is a distinct (patient, time); an entry is the number of its
        rows, or the sum of their `value`. Patients and features are sorted, and visits are in order of time; zoned
        times are converted to UTC. Text and categorical static columns become one-hot columns "column=value", numbers
        are kept. Every patient with events needs a row in `static`; a row without events is an empty history.

        Examples
        --------
        >>> import pandas as pd
        >>> rows = [("b", "2020-05-01", "gout"), ("a", "2020-01-01", "cough"), ("a", "2020-03-01", "gout")]
        >>> events = pd.DataFrame(rows, columns=["patient", "time", "feature"])
        >>> static = pd.DataFrame({"patient": ["a", "b"], "sex": ["F", "M"]})
        >>> c = Cohort.from_events(events, static)
        >>> c.patient_ids.tolist(), c.feature_names.tolist(), c.static_names.tolist()
        (['a', 'b'], ['cough', 'gout'], ['sex=F', 'sex=M'])
        >>> c[0].visits.toarray()  # the two visits of a, in order of time
        array([[1., 0.],
               [0., 1.]])
        """
        table = Table(events, "events")
        ids, patients = table.codes(patient)
        features, columns = table.codes(feature)
        times = table.times(time)
        amounts = None if value is None else table.numbers(value)
        matrix, static_names = None, None
        if static is not None:
            facts = Table(static, "static")
            ids, patients, rows = join_patients(facts, patient, ids, patients)
            matrix, static_names = static_matrix(facts, patient, rows)
        if not len(ids):
            raise InputError("events has no rows and no static table is given; give at least one patient.")
        visits, owners, visit_times = group_visits(patients, times, columns, amounts, len(features))
        return cls(
            visits,
            np.searchsorted(owners, np.arange(len(ids) + 1)),
            matrix,
            patient_ids=ids,
            visit_times=visit_times,
            feature_names=features.astype(str),
            static_names=static_names,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], mmap: bool = True) -> "Cohort":
        """Load a saved cohort; with `mmap`, its arrays are memory-mapped.

        Examples
        --------
        >>> Cohort([[1, 0, 2], [3, 0, 0]], offsets=[0, 1, 2], patient_ids=["a", "b"]).save("cohort")
        >>> Cohort.load("cohort").patient_ids.tolist()
        ['a', 'b']
        """
        files, meta = tensors.read(path, "cohort", mmap=mmap)
        parts = files.get("cohort", {})
        try:
            data, indices, indptr = (parts.pop(f"visits.{name}") for name in ("data", "indices", "indptr"))
            # Validated like any input: compiled code indexes with these numbers.
            visits = CSR(data, indices, indptr, operator.index(meta["n_features"]))
            return cls(visits, allow_negative=meta["allow_negative"], origin=meta.get("origin"), **parts)
        except (KeyError, TypeError):
            raise InputError(f"{path} lacks parts of a cohort; save the cohort again.") from None
        except InputError as error:
            raise InputError(f"{path} does not contain a valid cohort: {error}") from None

    def save(self, path: str | os.PathLike[str], *, extra_files: Mapping[str, bytes] | None = None) -> None:
        """Save as a folder of safetensors and a manifest; it holds patient data and only you can read it.

        `extra_files` are files to write to the folder for people to read, by name.

        Examples
        --------
        >>> import os
        >>> Cohort([[1, 0, 2], [3, 0, 0]], offsets=[0, 1, 2]).save("cohort")
        >>> sorted(os.listdir("cohort"))
        ['cohort.safetensors', 'manifest.json']
        """
        arrays = {f"visits.{name}": getattr(self.visits, name) for name in ("data", "indices", "indptr")}
        for name in (
            "offsets",
            "static",
            "patient_ids",
            "visit_times",
            "feature_names",
            "static_names",
            "labels",
            "last_times",
            "groups",
        ):
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        meta = {"n_features": self.n_features, "allow_negative": self.allow_negative, "origin": self.origin}
        tensors.write(path, "cohort", {"cohort": arrays}, meta, extra_files)

    @property
    def n_patients(self) -> int:
        """Number of patients (K), including those without visits; the same as `len(cohort)`."""
        return len(self.offsets) - 1

    @property
    def n_visits(self) -> int:
        """Number of visits of all patients."""
        return int(self.offsets[-1])

    @property
    def n_features(self) -> int:
        """Number of temporal features (J)."""
        return int(self.visits.shape[1])

    @property
    def n_static(self) -> int:
        """Number of static features (P)."""
        return 0 if self.static is None else self.static.shape[1]

    @property
    def visit_counts(self) -> np.ndarray:
        """Number of visits of each patient."""
        return np.diff(self.offsets)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of patients and temporal features (K, J)."""
        return self.n_patients, self.n_features

    @property
    def persons(self) -> np.ndarray:
        """The patient of each row as a number from 0: rows of one group have the same.

        Examples
        --------
        >>> Cohort([[1], [2], [3]], offsets=[0, 1, 2, 3], groups=["b", "a", "b"]).persons.tolist()
        [1, 0, 1]
        """
        if self.groups is None:
            return np.arange(self.n_patients)
        return np.unique(self.groups, return_inverse=True)[1]

    @property
    def rows_per_patient(self) -> int:
        """The largest number of rows of one patient.

        Examples
        --------
        >>> Cohort([[1], [2], [3]], offsets=[0, 1, 2, 3], groups=["b", "a", "b"]).rows_per_patient
        2
        """
        return 1 if self.groups is None else int(np.bincount(self.persons).max())

    def __len__(self) -> int:
        return self.n_patients

    def __repr__(self) -> str:
        return (
            f"Cohort({self.n_patients:,} patients, {self.n_visits:,} visits, "
            f"{self.n_features:,} features, {self.n_static:,} static features)"
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        # Without this, NumPy would treat a cohort as an infinitely nested sequence.
        raise InputError("a Cohort is not one array; use its .visits, .offsets and .static.")

    def __getitem__(self, index: Any) -> "Cohort":
        """Select patients by position: integers, a mask, a slice or one integer.

        Positions may repeat, as in a bootstrap sample: the ids of the result are then strings, and further copies of
        patient "a" are "a#2", "a#3".

        Examples
        --------
        >>> c = Cohort([[1, 0], [0, 1], [3, 0]], offsets=[0, 1, 2, 3], patient_ids=["a", "b", "c"])
        >>> c[1:].patient_ids.tolist(), c[[True, False, True]].patient_ids.tolist(), len(c[0])
        (['b', 'c'], ['a', 'c'], 1)
        >>> c[[0, 0, 2]].patient_ids.tolist()
        ['a', 'a#2', 'c']
        """
        positions = _positions(index, self.n_patients)
        counts = self.visit_counts[positions]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        chosen: Any
        rows: Any
        if np.all(np.diff(positions) == 1):  # contiguous: views, so that memory-mapped arrays stay mapped
            chosen = slice(positions[0], positions[-1] + 1)
            rows = slice(self.offsets[chosen.start], self.offsets[chosen.stop])
        else:
            chosen = positions
            rows = np.repeat(self.offsets[positions] - offsets[:-1], counts) + np.arange(offsets[-1])
        ids = self.patient_ids[chosen]
        if len(np.unique(positions)) < len(positions):
            ids = _distinct(ids)
        part = object.__new__(Cohort)  # already validated
        vars(part).update(
            vars(self),
            visits=_take_rows(self.visits, rows),
            offsets=frozen(offsets),
            patient_ids=frozen(ids),
            groups=None if self.groups is None else frozen(self.groups[chosen]),
            static=None if self.static is None else frozen(self.static[chosen]),
            labels=None if self.labels is None else frozen(self.labels[chosen]),
            last_times=None if self.last_times is None else frozen(self.last_times[chosen]),
            visit_times=None if self.visit_times is None else frozen(self.visit_times[rows]),
        )
        return part

    def with_labels(self, labels: Any) -> "Cohort":
        """Return the same patients with other labels: K numbers, NaN where unknown.

        Examples
        --------
        >>> Cohort([[1, 0], [0, 1]], offsets=[0, 1, 2]).with_labels([0, 1]).labels.tolist()
        [0, 1]
        """
        other = self[:]
        other.labels = checked_labels(labels, self.n_patients)
        return other

    def summary(self) -> "CohortSummary":
        """Summary statistics of the cohort.

        Examples
        --------
        >>> c = Cohort([[1, 0, 2], [0, 0, 0], [3, 0, 0]], offsets=[0, 2, 3, 3], labels=[1, 0, 0])
        >>> print(c.summary())
        patients   3, 1 of them without visits
        visits     3, 1 of them empty; 1 per patient (median; 0 to 2)
        features   3 temporal, 0 static
        non-zeros  3 (33.333% of the entries)
        labels     1 cases, 2 controls
        """
        counts = self.visit_counts
        known = None if self.labels is None else self.labels[~np.isnan(self.labels)]
        binary = known is not None and bool(np.isin(known, (0, 1)).all())
        return CohortSummary(
            patients=self.n_patients,
            visits=self.n_visits,
            features=self.n_features,
            static_features=self.n_static,
            nonzeros=int(self.visits.nnz),
            density=float(self.visits.nnz / max(1, self.n_visits * self.n_features)),
            visits_median=float(np.median(counts)),
            visits_min=int(counts.min()),
            visits_max=int(counts.max()),
            empty_histories=int(np.count_nonzero(counts == 0)),
            empty_visits=int(np.count_nonzero(np.diff(self.visits.indptr) == 0)),
            cases=int(np.count_nonzero(known == 1)) if binary else None,
            controls=int(np.count_nonzero(known == 0)) if binary else None,
            groups=None if self.groups is None else int(self.persons.max()) + 1,
        )


@dataclass(frozen=True)
class CohortSummary:
    """The result of `Cohort.summary`; cases and controls are None unless the labels are 0 and 1.

    Examples
    --------
    >>> summary = Cohort([[1, 0, 2], [3, 0, 0]], offsets=[0, 1, 2]).summary()
    >>> summary.patients, summary.visits, summary.density, summary.cases
    (2, 2, 0.5, None)
    """

    patients: int
    visits: int
    features: int
    static_features: int
    nonzeros: int
    density: float
    visits_median: float
    visits_min: int
    visits_max: int
    empty_histories: int
    empty_visits: int
    cases: int | None
    controls: int | None
    groups: int | None = None  # the number of patients, where they have several rows, which are counted above

    def as_dict(self) -> dict[str, Any]:
        """The statistics as a dictionary.

        Examples
        --------
        >>> Cohort([[1, 0, 2], [3, 0, 0]], offsets=[0, 1, 2]).summary().as_dict()["nonzeros"]
        3
        """
        return asdict(self)

    def __str__(self) -> str:
        rows = f"{self.patients:,}" if self.groups is None else f"{self.groups:,} with {self.patients:,} rows"
        spread = f"{self.visits_median:g} per patient (median; {self.visits_min} to {self.visits_max})"
        lines = [
            ("patients", f"{rows}, {self.empty_histories:,} of them without visits"),
            ("visits", f"{self.visits:,}, {self.empty_visits:,} of them empty; {spread}"),
            ("features", f"{self.features:,} temporal, {self.static_features:,} static"),
            ("non-zeros", f"{self.nonzeros:,} ({self.density:.3%} of the entries)"),
        ]
        if self.cases is not None:
            lines.append(("labels", f"{self.cases:,} cases, {self.controls:,} controls"))
        return "\n".join(f"{name:<10} {text}" for name, text in lines)


def check_cohort(cohort: Any, caller: str) -> Cohort:
    """Return `cohort`; raise an InputError that names the caller if it is not a Cohort.

    Examples
    --------
    >>> from phenotaste.cohort import check_cohort
    >>> check_cohort([[1, 0], [0, 1]], "TASTE")
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: TASTE needs a Cohort, not list: build one with Cohort(...) or Cohort.from_events(...).
    """
    if not isinstance(cohort, Cohort):
        raise InputError(
            f"{caller} needs a Cohort, not {type(cohort).__name__}: "
            "build one with Cohort(...) or Cohort.from_events(...)."
        )
    return cohort


def _positions(index: Any, n_patients: int) -> np.ndarray:
    """Convert an index of any NumPy type to non-negative positions."""
    if isinstance(index, tuple):
        index, *others = index
        if any(other is not Ellipsis and other != slice(None) for other in others):
            raise PatientIndexError("a Cohort is indexed by patient only; select features when building it.")
    if isinstance(index, slice):
        index = np.arange(n_patients)[index]
    positions = np.atleast_1d(np.asarray(index))
    if positions.dtype.kind == "b":
        if positions.shape != (n_patients,):
            raise PatientIndexError(f"the mask does not have one entry for each of {n_patients:,} patients.")
        positions = np.flatnonzero(positions)
    if positions.size == 0:
        raise PatientIndexError("the selection is empty; select at least one patient.")
    if positions.dtype.kind not in "iu" or positions.ndim != 1:
        raise PatientIndexError("patients are selected by position: use integers, a mask or a slice.")
    if positions.min() < -n_patients or positions.max() >= n_patients:
        raise PatientIndexError(f"a position is out of range for {n_patients:,} patients, counted from 0.")
    positions = positions.astype(np.int64)
    return np.where(positions < 0, positions + n_patients, positions)


def _take_rows(matrix: sp.csr_array, rows: Any) -> sp.csr_array:
    if not isinstance(rows, slice):
        taken = matrix[rows]
        return frozen_csr(taken.data, taken.indices, taken.indptr, matrix.shape[1])
    indptr = matrix.indptr[rows.start : rows.stop + 1]
    entries = slice(indptr[0], indptr[-1])
    return frozen_csr(matrix.data[entries], matrix.indices[entries], indptr - indptr[0], matrix.shape[1])


def _distinct(ids: np.ndarray) -> np.ndarray:
    """Ids as strings, in which further copies of "a" become "a#2", "a#3"."""
    texts = ids.astype(str).tolist()
    taken, seen = set(texts), set()
    for position, text in enumerate(texts):
        if text in seen:
            copy = 2
            while f"{text}#{copy}" in taken:
                copy += 1
            texts[position] = f"{text}#{copy}"
            taken.add(texts[position])
        seen.add(text)
    return np.array(texts)
