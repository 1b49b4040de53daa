"""Cohort: the visits of many patients as one sparse matrix, their static features, and the names of both.

The record that every other part of the package shares; it is checked once, on the way in.
"""

import operator
import os
import warnings
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from phenotaste import store
from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

INT32_MAX = np.iinfo(np.int32).max
MAX_CATEGORIES = 1000  # more is an identifier or free text, not a category


class PatientIndexError(InputError, IndexError):
    """A patient position that the cohort does not have."""


class Cohort:
    """Visits, static features and names of K patients; all arrays are read-only.

    Parameters
    ----------
    visits : (n_visits, J) sparse matrix or array
        Non-negative; the rows of one patient stand together, in order of time.
    offsets : K + 1 integers
        The visits of patient k are the rows from offsets[k] up to offsets[k + 1].
    static : (K, P) array or DataFrame, optional
        Non-negative; the columns of a DataFrame give `static_names`.
    patient_ids : K integers or texts, optional
        0 to K - 1 when not given.
    visit_times : n_visits dates or numbers, optional
        Never decreasing within a patient.
    feature_names, static_names : J and P texts, optional
        Unnamed data is matched to a model by position.
    labels : K numbers, optional
        NaN where unknown.
    allow_negative : bool
        Only for simulated data whose noise makes it negative.

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
        allow_negative: bool = False,
    ) -> None:
        self.allow_negative = bool(allow_negative)
        parts = visits if isinstance(visits, _CSR) else _csr_parts(visits)
        self.offsets = _checked_offsets(offsets, len(parts.indptr) - 1)
        self.feature_names = _checked_names(feature_names, parts.n_features, "feature_names")
        self.visits = _checked_visits(parts, self.offsets, self.feature_names, self.allow_negative)
        self.static, self.static_names = _checked_static(
            static, static_names, self.n_patients, self.allow_negative
        )
        self.patient_ids = _checked_ids(patient_ids, self.n_patients)
        self.visit_times = _checked_times(visit_times, self.offsets)
        self.labels = _checked_labels(labels, self.n_patients)

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
        """A cohort from a table of events and, optionally, a table of static facts with a row per patient.

        Both are pandas, polars or Arrow tables. One visit is one distinct (patient, time); an entry counts
        its rows, or sums their `value`. Patients and features are sorted, visits go by time; times with a
        zone are converted to UTC. Text and categorical static columns become one-hot "column=value", numbers
        are kept. Every patient with events needs a row in `static`; a row without events is an empty history.
        """
        table = _Table(events, "events")
        ids, patients = table.codes(patient)
        features, columns = table.codes(feature)
        times = table.times(time)
        amounts = None if value is None else table.numbers(value)
        matrix, static_names = None, None
        if static is not None:
            facts = _Table(static, "static")
            ids, patients, rows = _join_patients(facts, patient, ids, patients)
            matrix, static_names = _static_matrix(facts, patient, rows)
        if not len(ids):
            raise InputError("events has no rows and no static table is given; give at least one patient.")
        visits, owners, visit_times = _group_visits(patients, times, columns, amounts, len(features))
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
        """Load a saved cohort; with `mmap` its arrays stay on disk until they are touched."""
        files, meta = store.read(path, "cohort", mmap=mmap)
        parts = files.get("cohort", {})
        try:
            data, indices, indptr = (parts.pop(f"visits.{name}") for name in ("data", "indices", "indptr"))
            # Checked like any input: compiled code will index with these numbers.
            visits = _CSR(data, indices, indptr, operator.index(meta["n_features"]))
            return cls(visits, allow_negative=meta["allow_negative"], **parts)
        except (KeyError, TypeError):
            raise InputError(f"{path} lacks parts of a cohort; save the cohort again.") from None
        except InputError as error:
            raise InputError(f"{path} does not hold a sound cohort: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save as a folder of safetensors and a manifest; it holds patient data and only you can read it."""
        arrays = {f"visits.{name}": getattr(self.visits, name) for name in ("data", "indices", "indptr")}
        for name in (
            "offsets",
            "static",
            "patient_ids",
            "visit_times",
            "feature_names",
            "static_names",
            "labels",
        ):
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        meta = {"n_features": self.n_features, "allow_negative": self.allow_negative}
        store.write(path, "cohort", {"cohort": arrays}, meta)

    @property
    def n_patients(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_visits(self) -> int:
        return int(self.offsets[-1])

    @property
    def n_features(self) -> int:
        return int(self.visits.shape[1])

    @property
    def n_static(self) -> int:
        return 0 if self.static is None else self.static.shape[1]

    @property
    def visit_counts(self) -> np.ndarray:
        return np.diff(self.offsets)

    @property
    def shape(self) -> tuple[int, int]:
        return self.n_patients, self.n_features

    def __len__(self) -> int:
        return self.n_patients

    def __repr__(self) -> str:
        return (
            f"Cohort({self.n_patients:,} patients, {self.n_visits:,} visits, "
            f"{self.n_features:,} features, {self.n_static:,} static features)"
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        # Without this numpy would take a cohort for a sequence of sequences without end.
        raise InputError("a Cohort is not one array; use its .visits, .offsets and .static.")

    def __getitem__(self, index: Any) -> "Cohort":
        """The patients at these positions, as a Cohort: integers, a mask, a slice or one integer.

        A patient may be taken more than once, as the bootstrap does: the ids of the result are then texts,
        and further copies of patient "a" are called "a#2", "a#3".
        """
        positions = _positions(index, self.n_patients)
        counts = self.visit_counts[positions]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        chosen: Any
        rows: Any
        if np.all(np.diff(positions) == 1):  # neighbours: views, so that what is memory-mapped stays so
            chosen = slice(positions[0], positions[-1] + 1)
            rows = slice(self.offsets[chosen.start], self.offsets[chosen.stop])
        else:
            chosen = positions
            rows = np.repeat(self.offsets[positions] - offsets[:-1], counts) + np.arange(offsets[-1])
        ids = self.patient_ids[chosen]
        if len(np.unique(positions)) < len(positions):
            ids = _distinct(ids)
        part = object.__new__(Cohort)  # what was checked once need not be checked again
        vars(part).update(
            vars(self),
            visits=_take_rows(self.visits, rows),
            offsets=_frozen(offsets),
            patient_ids=_frozen(ids),
            static=None if self.static is None else _frozen(self.static[chosen]),
            labels=None if self.labels is None else _frozen(self.labels[chosen]),
            visit_times=None if self.visit_times is None else _frozen(self.visit_times[rows]),
        )
        return part

    def summary(self) -> "CohortSummary":
        """The cohort in a few numbers."""
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
        )


@dataclass(frozen=True)
class CohortSummary:
    """What `Cohort.summary` returns; cases and controls are None unless the labels are 0 and 1."""

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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        spread = f"{self.visits_median:g} per patient (median; {self.visits_min} to {self.visits_max})"
        lines = [
            ("patients", f"{self.patients:,}, {self.empty_histories:,} of them without visits"),
            ("visits", f"{self.visits:,}, {self.empty_visits:,} of them empty; {spread}"),
            ("features", f"{self.features:,} temporal, {self.static_features:,} static"),
            ("non-zeros", f"{self.nonzeros:,} ({self.density:.3%} of the entries)"),
        ]
        if self.cases is not None:
            lines.append(("labels", f"{self.cases:,} cases, {self.controls:,} controls"))
        return "\n".join(f"{name:<10} {text}" for name, text in lines)


# --- checks: arrays in, read-only arrays out; copied only where they must change ----------------------------


class _CSR(NamedTuple):
    """The arrays of a CSR matrix that nobody has checked yet."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    n_features: int


def _frozen(array: np.ndarray) -> np.ndarray:
    """A read-only view: the caller's own array stays writeable."""
    view = array.view()
    view.setflags(write=False)
    return view


def _array(values: Any, what: str, kinds: str, wanted: str, ndim: int = 1) -> np.ndarray:
    """`values` as an array of one of numpy's dtype kinds, or a sentence."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} is ragged; give rows of equal length.") from None
    if "U" in kinds and array.dtype.kind in "OT" and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    if not array.size and array.dtype == np.float64 and "f" not in kinds:
        array = array.astype(np.int64 if "i" in kinds else str)  # an empty list says nothing about its kind
    if array.dtype.kind not in kinds:
        raise InputError(f"{what} must hold {wanted}, not {array.dtype.name}; convert it first.")
    if array.ndim != ndim:
        raise InputError(f"{what} must have {ndim} dimension(s), not {array.ndim}; reshape it.")
    return array


def _check_length(array: np.ndarray, length: int, what: str, per: str) -> None:
    if len(array) != length:
        raise InputError(f"{what} has {len(array):,} entries for {length:,} {per}; give one for each.")


def _first_fault(values: np.ndarray, allow_negative: bool) -> tuple[int, str] | None:
    """Where the first value stands that no model can use, and what is wrong with it."""
    if not values.size:
        return None
    with np.errstate(invalid="ignore"):
        low, high = (
            values.min(),
            values.max(),
        )  # NaN comes through both: no mask as long as the data is needed
    if np.isfinite(low) and np.isfinite(high) and (allow_negative or low >= 0):
        return None
    faulty = ~np.isfinite(values)
    if not allow_negative:
        faulty |= values < 0
    at = int(np.argmax(faulty))
    word = "missing (NaN)" if np.isnan(values[at]) else "infinite" if np.isinf(values[at]) else "negative"
    return at, word


def _label(names: np.ndarray | None, position: int) -> str:
    return f"at position {position}" if names is None else repr(str(names[position]))


def _csr_parts(visits: Any) -> _CSR:
    if not sp.issparse(visits):
        dense = _array(visits, "visits", "fbiu", "numbers", ndim=2)
        visits = sp.csr_array(dense if dense.dtype == np.float32 else dense.astype(np.float64, copy=False))
    if visits.ndim != 2 or visits.dtype.kind not in "fbiu":
        raise InputError("visits must be a two-dimensional matrix of numbers; convert it first.")
    if visits.format != "csr":
        try:
            if visits.format in ("csc", "bsr"):
                visits.check_format()
            visits = visits.tocsr()
        except (TypeError, ValueError):
            raise InputError("visits is not a sound sparse matrix; rebuild it.") from None
    return _CSR(visits.data, visits.indices, visits.indptr, visits.shape[1])


def _checked_csr(parts: _CSR) -> sp.csr_array:
    """A CSR matrix within its bounds: compiled code will trust these index arrays, so we do not."""
    data = _array(parts.data, "visits", "fbiu", "numbers")
    indices = _array(parts.indices, "visits.indices", "iu", "whole numbers")
    indptr = _array(parts.indptr, "visits.indptr", "iu", "whole numbers")
    n_features = parts.n_features
    if not 0 <= n_features <= np.iinfo(np.int64).max:
        raise InputError("visits has no valid number of features; rebuild the matrix.")
    rising = len(indptr) > 0 and indptr[0] == 0 and bool((indptr[1:] >= indptr[:-1]).all())
    if not rising or indptr[-1] > len(indices) or len(indices) != len(data):
        raise InputError("visits.indptr does not fit the entries of visits; rebuild the matrix.")
    n_entries = int(indptr[-1])
    data, indices = data[:n_entries], indices[:n_entries]
    if n_entries and (indices.min() < 0 or indices.max() >= n_features):
        raise InputError(
            f"visits has a column index outside its {n_features:,} features; rebuild the matrix."
        )
    if n_features == 0 and len(indptr) > 1:
        raise InputError("visits has no columns; give at least one feature.")
    width = np.int32 if max(n_entries, n_features) <= INT32_MAX else np.int64
    indices, indptr = indices.astype(width, copy=False), indptr.astype(width, copy=False)
    if data.dtype != np.float32:
        data = data.astype(np.float64, copy=False)
    return sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_features))


def _checked_visits(
    parts: _CSR, offsets: np.ndarray, names: np.ndarray | None, allow_negative: bool
) -> sp.csr_array:
    matrix = _checked_csr(parts)
    fault = _first_fault(matrix.data, allow_negative)
    if fault:
        row = np.searchsorted(matrix.indptr, fault[0], side="right") - 1
        patient = np.searchsorted(offsets, row, side="right") - 1
        raise InputError(
            f"feature {_label(names, matrix.indices[fault[0]])} is {fault[1]} in a visit of the patient at "
            f"position {patient}; correct it or drop the visit."
        )
    if not matrix.has_canonical_format or np.count_nonzero(matrix.data) < matrix.nnz:
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return _frozen_csr(matrix.data, matrix.indices, matrix.indptr, matrix.shape[1])


def _frozen_csr(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, n_features: int) -> sp.csr_array:
    matrix = sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_features))
    matrix.data, matrix.indices, matrix.indptr = (_frozen(part) for part in (data, indices, indptr))
    matrix.has_canonical_format = True
    return matrix


def _checked_offsets(offsets: Any, n_visits: int) -> np.ndarray:
    array = _array(offsets, "offsets", "iu", "whole numbers")
    if len(array) < 2:
        raise InputError("the cohort has no patients; offsets needs one entry more than there are patients.")
    if array[0] != 0:
        raise InputError("offsets must start at 0; put a 0 in front.")
    falling = array[1:] < array[:-1]
    if falling.any():
        raise InputError(
            f"offsets decreases at the patient at position {int(np.argmax(falling))}; "
            "put the visits of each patient together and count them up."
        )
    if array[-1] != n_visits:
        raise InputError(f"offsets ends at {array[-1]:,} but there are {n_visits:,} visits; make them agree.")
    return _frozen(array.astype(np.int64, copy=False))


def _checked_names(names: Any, length: int, what: str) -> np.ndarray | None:
    if names is None:
        return None
    array = _array(names, what, "U", "texts")
    _check_length(array, length, what, "columns")
    if len(np.unique(array)) < length:
        values, counts = np.unique(array, return_counts=True)
        raise InputError(f"{what} holds {str(values[counts > 1][0])!r} more than once; rename one of them.")
    return _frozen(array)


def _checked_ids(ids: Any, n_patients: int) -> np.ndarray:
    if ids is None:
        return _frozen(np.arange(n_patients))
    array = _array(ids, "patient_ids", "iuU", "whole numbers or texts")
    _check_length(array, n_patients, "patient_ids", "patients")
    firsts = np.unique(array, return_index=True)[1]
    if len(firsts) < n_patients:
        again = np.setdiff1d(np.arange(n_patients), firsts)[0]
        raise InputError(
            f"the patient at position {again} has the id of an earlier one; make the ids unique."
        )
    return _frozen(array)


def _checked_static(
    static: Any, names: Any, n_patients: int, allow_negative: bool
) -> tuple[np.ndarray | None, np.ndarray | None]:
    if static is None:
        if names is not None:
            raise InputError("static_names is given without static; give both or neither.")
        return None, None
    if hasattr(static, "columns"):
        columns = list(static.columns)
        if names is None and all(isinstance(name, str) for name in columns):
            names = columns
        parts = [_array(static[name], f"static column {name!r}", "fbiu", "numbers") for name in columns]
        static = np.column_stack(parts) if parts else np.empty((len(static), 0))
    array = np.ascontiguousarray(_array(static, "static", "fbiu", "numbers", ndim=2), dtype=np.float64)
    _check_length(array, n_patients, "static", "patients")
    names = _checked_names(names, array.shape[1], "static_names")
    fault = _first_fault(array.reshape(-1), allow_negative)
    if fault:
        patient, column = divmod(fault[0], array.shape[1])
        raise InputError(
            f"static feature {_label(names, column)} is {fault[1]} for the patient at position {patient}; "
            "correct it or drop the patient."
        )
    return (_frozen(array), names) if array.shape[1] else (None, None)


def _checked_times(times: Any, offsets: np.ndarray) -> np.ndarray | None:
    if times is None:
        return None
    array = _array(times, "visit_times", "iufM", "dates (datetime64, without a zone) or numbers")
    _check_length(array, int(offsets[-1]), "visit_times", "visits")
    missing = np.isnat(array) if array.dtype.kind == "M" else ~np.isfinite(array)
    back = np.zeros(len(array), bool)
    back[1:] = array[1:] < array[:-1]
    back[offsets[:-1][np.diff(offsets) > 0]] = False  # a first visit follows nobody's
    for faulty, word in ((missing, "missing or infinite"), (back, "earlier than the visit before")):
        if faulty.any():
            patient = np.searchsorted(offsets, int(np.argmax(faulty)), side="right") - 1
            raise InputError(
                f"visit_times is {word} for the patient at position {patient}; "
                "date every visit and sort the visits of each patient by time."
            )
    return _frozen(array)


def _checked_labels(labels: Any, n_patients: int) -> np.ndarray | None:
    if labels is None:
        return None
    array = _array(labels, "labels", "fbiu", "numbers, NaN where unknown")
    _check_length(array, n_patients, "labels", "patients")
    if np.isinf(array).any():
        patient = int(np.argmax(np.isinf(array)))
        raise InputError(f"labels is infinite for the patient at position {patient}; put NaN where unknown.")
    return _frozen(array)


# --- choosing patients -------------------------------------------------------------------------------------


def _positions(index: Any, n_patients: int) -> np.ndarray:
    """Any of numpy's ways to choose rows, as positions from 0."""
    if isinstance(index, tuple):
        index, *others = index
        if any(other is not Ellipsis and other != slice(None) for other in others):
            raise PatientIndexError("a Cohort is indexed by patient only; choose features when building it.")
    if isinstance(index, slice):
        index = np.arange(n_patients)[index]
    positions = np.atleast_1d(np.asarray(index))
    if positions.dtype.kind == "b":
        if positions.shape != (n_patients,):
            raise PatientIndexError(f"the mask does not have one entry for each of {n_patients:,} patients.")
        positions = np.flatnonzero(positions)
    if positions.size == 0:
        raise PatientIndexError("the selection holds no patient; choose at least one.")
    if positions.dtype.kind not in "iu" or positions.ndim != 1:
        raise PatientIndexError("patients are chosen by position: use whole numbers, a mask or a slice.")
    if positions.min() < -n_patients or positions.max() >= n_patients:
        raise PatientIndexError(f"a position is out of range; the {n_patients:,} patients count from 0.")
    positions = positions.astype(np.int64)
    return np.where(positions < 0, positions + n_patients, positions)


def _take_rows(matrix: sp.csr_array, rows: Any) -> sp.csr_array:
    if not isinstance(rows, slice):
        taken = matrix[rows]
        return _frozen_csr(taken.data, taken.indices, taken.indptr, matrix.shape[1])
    indptr = matrix.indptr[rows.start : rows.stop + 1]
    entries = slice(indptr[0], indptr[-1])
    return _frozen_csr(matrix.data[entries], matrix.indices[entries], indptr - indptr[0], matrix.shape[1])


def _distinct(ids: np.ndarray) -> np.ndarray:
    """Ids as texts, where further copies of "a" become "a#2", "a#3"."""
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


# --- events and static facts, from tables ------------------------------------------------------------------


class _Table:
    """An input table, read through Arrow a column at a time: columns nobody asks for are not converted."""

    def __init__(self, source: Any, title: str) -> None:
        import pyarrow as pa

        self.title = title
        # pandas and polars: choose the column first, then convert it
        self.is_frame = hasattr(source, "__arrow_c_stream__") and hasattr(source, "dtypes")
        try:
            self.source = source if self.is_frame else pa.table(source)
        except (pa.ArrowException, TypeError, ValueError):
            raise InputError(f"{title} is not a table; give a pandas, polars or Arrow table.") from None
        self.names = list(self.source.columns if self.is_frame else self.source.column_names)

    def refusal(self, name: Any, what: str) -> InputError:
        return InputError(f"column {name!r} of {self.title} {what}.")

    def column(self, name: Any) -> "pa.ChunkedArray":
        """A column that has a value in every row."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.names.count(name) != 1:
            found = "more than one column" if name in self.names else "no column"
            listed = ", ".join(map(str, self.names))
            raise InputError(f"{self.title} has {found} {name!r}; its columns are: {listed}.")
        try:
            column = pa.table(self.source[[name]]).column(0) if self.is_frame else self.source.column(name)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # Arrow's own message would quote the value: it may be a patient's.
            raise self.refusal(name, "mixes kinds of values; make it all numbers or all text") from None
        gaps = pc.is_null(column, nan_is_null=True)
        if pc.any(gaps).as_py():
            row = pc.index(gaps, True).as_py()
            advice = "drop the row or fill it, for instance with 'unknown' in a text column"
            raise self.refusal(name, f"has no value in row {row}; {advice}")
        return column

    def codes(self, name: Any) -> tuple[np.ndarray, np.ndarray]:
        """The sorted distinct values of a column of integers or text, and each row's rank among them."""
        import pyarrow.types as kinds

        column = self.column(name)
        if not len(column):
            return np.empty(0, "U1"), np.empty(0, np.int32)
        kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
        if not kinds.is_integer(kind) and not _is_text(kind):
            raise self.refusal(name, f"must hold integers or text, not {kind}; convert it first")
        encoded = column if kinds.is_dictionary(column.type) else column.dictionary_encode()
        chunks = encoded.unify_dictionaries().chunks
        values = chunks[0].dictionary.to_numpy(zero_copy_only=False)
        rows = np.concatenate([np.asarray(chunk.indices) for chunk in chunks])
        used = np.zeros(len(values), bool)  # a categorical column may list values that no row has
        used[rows] = True
        distinct, ranks = np.unique(values[used], return_inverse=True)
        if distinct.dtype.kind in "iu" and distinct[-1] <= np.iinfo(np.int64).max:
            distinct = distinct.astype(np.int64)  # whatever the width in which each table keeps its ids
        rank_of = np.zeros(len(values), np.int32)
        rank_of[used] = ranks
        return distinct, rank_of[rows]

    def times(self, name: Any) -> np.ndarray:
        import pyarrow as pa
        import pyarrow.types as kinds

        column = self.column(name)
        kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
        if kinds.is_date32(kind):
            return column.cast(pa.int32()).to_numpy().astype("M8[D]")
        if kinds.is_date64(kind) or kinds.is_timestamp(kind):  # Arrow keeps times with a zone in UTC
            unit = "ms" if kinds.is_date64(kind) else kind.unit
            return column.cast(pa.int64()).to_numpy().astype(f"M8[{unit}]")
        if kinds.is_integer(kind) and not kinds.is_uint64(kind):
            return column.cast(pa.int64()).to_numpy()
        if kinds.is_floating(kind):
            return column.cast(pa.float64()).to_numpy()
        if not len(column):
            return np.empty(0)
        if not _is_text(kind):
            raise self.refusal(name, f"must hold dates, times or numbers, not {kind}; convert it first")
        values, rows = self.codes(name)
        moments = _iso_times(values)
        if moments is None:
            raise self.refusal(name, "holds text that is not ISO 8601; convert it with pandas.to_datetime")
        return moments[rows]

    def numbers(self, name: Any) -> np.ndarray:
        """A column of finite, non-negative numbers."""
        import pyarrow as pa
        import pyarrow.types as kinds

        column = self.column(name)
        kind = column.type
        if len(column) and not (
            kinds.is_integer(kind)
            or kinds.is_floating(kind)
            or kinds.is_boolean(kind)
            or kinds.is_decimal(kind)
        ):
            raise self.refusal(name, f"must hold numbers, not {kind}; convert it first")
        values = column.cast(pa.float64()).to_numpy()
        fault = _first_fault(values, allow_negative=False)
        if fault:
            raise self.refusal(name, f"is {fault[1]} in row {fault[0]}; correct it or drop the row")
        return values


def _is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    return kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)


def _iso_times(texts: np.ndarray) -> np.ndarray | None:
    """ISO 8601 texts as datetime64, in UTC when they carry zones; None when they are something else."""
    import pyarrow as pa

    array = pa.array(texts, pa.large_string())
    for unit in ("us", "ns"):
        for zone in (None, "UTC"):
            try:
                return array.cast(pa.timestamp(unit, zone)).cast(pa.int64()).to_numpy().astype(f"M8[{unit}]")
            except pa.ArrowInvalid:
                continue
    return None


def _group_visits(
    patients: np.ndarray, times: np.ndarray, columns: np.ndarray, amounts: np.ndarray | None, n_features: int
) -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """A matrix with a row for each distinct (patient, time), and the patient and the time of each row."""
    order = np.lexsort((times, patients))
    patients, times = patients[order], times[order]
    first = np.ones(len(order), bool)
    first[1:] = (patients[1:] != patients[:-1]) | (times[1:] != times[:-1])
    starts = np.flatnonzero(first)
    indptr = np.append(starts, len(order))
    if len(order) <= INT32_MAX:
        indptr = indptr.astype(np.int32)
    data = np.ones(len(order)) if amounts is None else amounts[order]
    visits = sp.csr_array((data, columns[order], indptr), shape=(len(starts), n_features))
    visits.sum_duplicates()  # here in place; the constructor would have to copy first
    visits.eliminate_zeros()
    return visits, patients[starts], times[starts]


def _join_patients(
    facts: _Table, patient: str, ids: np.ndarray, patients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The patients of the static table, sorted; each event's position among them; each one's static row."""
    known, codes = facts.codes(patient)
    rows = np.argsort(codes, kind="stable")
    again = rows[1:][codes[rows[1:]] == codes[rows[:-1]]]
    if len(again):
        raise facts.refusal(patient, f"repeats a patient in row {again.min()}; keep one row for each patient")
    if len(ids) and len(known) and (ids.dtype.kind == "O") != (known.dtype.kind == "O"):
        raise facts.refusal(patient, "is text in one table and integers in the other; use one kind in both")
    missing = len(ids) - int(np.isin(ids, known).sum())
    if missing:
        raise InputError(
            f"{missing:,} patients with events have no row in static; add the rows or drop them."
        )
    positions = np.searchsorted(known, ids).astype(np.int32) if len(ids) else np.empty(0, np.int32)
    return known, positions[patients], rows


def _static_matrix(
    facts: _Table, patient: str, rows: np.ndarray
) -> tuple[np.ndarray | None, list[str] | None]:
    """The static columns as numbers, one row for each patient in order, and their names."""
    blocks: list[np.ndarray] = []
    names: list[str] = []
    wide: list[str] = []
    for name in facts.names:
        if name == patient:
            continue
        block, values = _static_block(facts, name)
        blocks.append(block[rows])
        names += [str(name)] if values is None else [f"{name}={value}" for value in values]
        if block.size and block.max() > 1:
            wide.append(str(name))
    if wide:
        warnings.warn(
            f"static columns exceed 1 and may outweigh the others: {', '.join(wide)}; cut them into bands, "
            "for example with pandas.cut.",
            stacklevel=3,
        )
    return (np.column_stack(blocks), names) if blocks else (None, None)


def _static_block(facts: _Table, name: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """One column: its numbers and None, or its one-hot columns and the value that each stands for."""
    import pyarrow.types as kinds

    kind = facts.column(name).type
    if kinds.is_temporal(kind):
        raise facts.refusal(name, "holds dates or times; turn it into numbers or bands, such as an age band")
    if not kinds.is_dictionary(kind) and not _is_text(kind):
        return facts.numbers(name), None
    values, codes = facts.codes(name)
    if len(values) > MAX_CATEGORIES:
        raise facts.refusal(name, f"has {len(values):,} different values; group them or drop the column")
    return np.eye(len(values))[codes], values
