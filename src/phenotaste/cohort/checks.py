"""Validation of the arrays of a cohort; returns read-only arrays, copied only where they have to change."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from phenotaste.errors import InputError

INT32_MAX = np.iinfo(np.int32).max
ENTRIES_PER_BLOCK = 2**20


class CSR(NamedTuple):
    """The arrays of a CSR matrix that has not been validated."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    n_features: int


def frozen(array: np.ndarray) -> np.ndarray:
    """A read-only view; the caller's array stays writeable."""
    view = array.view()
    view.setflags(write=False)
    return view


def checked_origin(origin: Any) -> dict[str, Any] | None:
    """The provenance as a dictionary, in which the parts that are read later have their types."""
    if origin is None:
        return None
    valid = isinstance(origin, Mapping)
    if valid:
        settings, learnt = origin.get("settings") or {}, origin.get("learnt") or {}
        rows = origin.get("thresholds") or []
        valid = (
            isinstance(settings, Mapping) and isinstance(learnt, Mapping) and isinstance(rows, list | tuple)
        )
        valid = valid and all(isinstance(row, Mapping) for row in rows)
        valid = valid and isinstance(learnt.get("measurements") or 0, int)
        valid = valid and isinstance(learnt.get("static") or [], list | tuple)
    if not valid:
        raise InputError("origin is not a record that a build of a cohort writes; leave it out.")
    return dict(origin)


def checked_array(values: Any, what: str, kinds: str, expected: str, ndim: int = 1) -> np.ndarray:
    """Convert `values` to an array of one of these dtype kinds, or raise an InputError."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} is ragged; give rows of equal length.") from None
    if "U" in kinds and array.dtype.kind in "OT" and all(isinstance(item, str) for item in array.flat):
        array = array.astype(str)
    if not array.size and array.dtype == np.float64 and "f" not in kinds:
        array = array.astype(np.int64 if "i" in kinds else str)  # NumPy's default for an empty list
    if array.dtype.kind not in kinds:
        raise InputError(f"{what} must hold {expected}, not {array.dtype.name}; convert it first.")
    if array.ndim != ndim:
        raise InputError(f"{what} must have {ndim} dimension(s), not {array.ndim}; reshape it.")
    return array


def check_length(array: np.ndarray, length: int, what: str, per: str) -> None:
    if len(array) != length:
        raise InputError(f"{what} has {len(array):,} entries for {length:,} {per}; give one entry for each.")


def first_invalid(values: np.ndarray, allow_negative: bool) -> tuple[int, str] | None:
    """Position and description of the first invalid value, if any."""
    if not values.size:
        return None
    with np.errstate(invalid="ignore"):
        low, high = values.min(), values.max()  # both propagate NaN, and need no mask as long as the data
    if np.isfinite(low) and np.isfinite(high) and (allow_negative or low >= 0):
        return None
    invalid = ~np.isfinite(values)
    if not allow_negative:
        invalid |= values < 0
    at = int(np.argmax(invalid))
    word = "missing (NaN)" if np.isnan(values[at]) else "infinite" if np.isinf(values[at]) else "negative"
    return at, word


def label(names: np.ndarray | None, position: int) -> str:
    return f"at position {position}" if names is None else repr(str(names[position]))


def csr_parts(visits: Any) -> CSR:
    if not sp.issparse(visits):
        dense = checked_array(visits, "visits", "fbiu", "numbers", ndim=2)
        visits = sp.csr_array(dense if dense.dtype == np.float32 else dense.astype(np.float64, copy=False))
    if visits.ndim != 2 or visits.dtype.kind not in "fbiu":
        raise InputError("visits must be a two-dimensional matrix of numbers; convert it first.")
    if visits.format != "csr":
        try:
            if visits.format in ("csc", "bsr"):
                visits.check_format()
            visits = visits.tocsr()
        except (TypeError, ValueError):
            raise InputError("visits is not a valid sparse matrix; rebuild it.") from None
    return CSR(visits.data, visits.indices, visits.indptr, visits.shape[1])


def checked_csr(parts: CSR) -> sp.csr_array:
    """A CSR matrix with valid indices: compiled code indexes with them without bounds checks."""
    data = checked_array(parts.data, "visits", "fbiu", "numbers")
    indices = checked_array(parts.indices, "visits.indices", "iu", "integers")
    indptr = checked_array(parts.indptr, "visits.indptr", "iu", "integers")
    n_features = parts.n_features
    if not 0 <= n_features <= np.iinfo(np.int64).max:
        raise InputError("visits has no valid number of features; rebuild the matrix.")
    increasing = len(indptr) > 0 and indptr[0] == 0 and bool((indptr[1:] >= indptr[:-1]).all())
    if not increasing or indptr[-1] > len(indices) or len(indices) != len(data):
        raise InputError("visits.indptr does not match the entries of visits; rebuild the matrix.")
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


def checked_visits(
    parts: CSR, offsets: np.ndarray, names: np.ndarray | None, allow_negative: bool
) -> sp.csr_array:
    matrix = checked_csr(parts)
    invalid = first_invalid(matrix.data, allow_negative)
    if invalid:
        row = np.searchsorted(matrix.indptr, invalid[0], side="right") - 1
        patient = np.searchsorted(offsets, row, side="right") - 1
        raise InputError(
            f"feature {label(names, matrix.indices[invalid[0]])} is {invalid[1]} in a visit of the patient at "
            f"position {patient}; correct it or drop the visit."
        )
    if not is_canonical(matrix):
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    return frozen_csr(matrix.data, matrix.indices, matrix.indptr, matrix.shape[1])


def is_canonical(matrix: sp.csr_array) -> bool:
    """Whether column indices increase within each row and no zero is stored.

    Checked in blocks of rows: NumPy holds the GIL while it counts, and for files larger than memory another thread has
    to evict the pages that were read.
    """
    for rows in row_blocks(matrix.indptr, ENTRIES_PER_BLOCK):
        entries, shape = slice(rows[0], rows[-1]), (len(rows) - 1, matrix.shape[1])
        block = sp.csr_array((matrix.data[entries], matrix.indices[entries], rows - rows[0]), shape=shape)
        if not block.has_canonical_format or np.count_nonzero(block.data) < block.nnz:
            return False
    return True


def row_blocks(indptr: np.ndarray, max_entries: int) -> Iterator[np.ndarray]:
    """Slices of `indptr` for consecutive blocks of rows with at most `max_entries` entries, or of a single row."""
    first = 0
    while first < len(indptr) - 1:
        last = max(int(np.searchsorted(indptr, int(indptr[first]) + max_entries, "right")) - 1, first + 1)
        yield indptr[first : last + 1]
        first = last


def frozen_csr(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, n_features: int) -> sp.csr_array:
    matrix = sp.csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_features))
    matrix.data, matrix.indices, matrix.indptr = (frozen(part) for part in (data, indices, indptr))
    matrix.has_canonical_format = True
    return matrix


def checked_offsets(offsets: Any, n_visits: int) -> np.ndarray:
    array = checked_array(offsets, "offsets", "iu", "integers")
    if len(array) < 2:
        raise InputError("the cohort has no patients; offsets needs one more entry than there are patients.")
    if array[0] != 0:
        raise InputError("offsets must start at 0; put a 0 in front.")
    decreasing = array[1:] < array[:-1]
    if decreasing.any():
        raise InputError(
            f"offsets decreases at the patient at position {int(np.argmax(decreasing))}; "
            "make the visits of each patient contiguous and accumulate their numbers."
        )
    if array[-1] != n_visits:
        raise InputError(f"offsets ends at {array[-1]:,} but there are {n_visits:,} visits; make them agree.")
    return frozen(array.astype(np.int64, copy=False))


def checked_names(names: Any, length: int, what: str) -> np.ndarray | None:
    if names is None:
        return None
    array = checked_array(names, what, "U", "strings")
    check_length(array, length, what, "columns")
    if len(np.unique(array)) < length:
        values, counts = np.unique(array, return_counts=True)
        raise InputError(
            f"{what} contains {str(values[counts > 1][0])!r} more than once; rename one of them."
        )
    return frozen(array)


def checked_ids(ids: Any, n_patients: int) -> np.ndarray:
    if ids is None:
        return frozen(np.arange(n_patients))
    array = checked_array(ids, "patient_ids", "iuU", "integers or strings")
    check_length(array, n_patients, "patient_ids", "patients")
    firsts = np.unique(array, return_index=True)[1]
    if len(firsts) < n_patients:
        repeated = np.setdiff1d(np.arange(n_patients), firsts)[0]
        raise InputError(
            f"the patient at position {repeated} has the id of an earlier one; make the ids unique."
        )
    return frozen(array)


def checked_groups(groups: Any, n_patients: int) -> np.ndarray | None:
    if groups is None:
        return None
    array = checked_array(groups, "groups", "iuU", "integers or strings")
    check_length(array, n_patients, "groups", "rows")
    return frozen(array)


def checked_static(
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
        parts = [
            checked_array(static[name], f"static column {name!r}", "fbiu", "numbers") for name in columns
        ]
        static = np.column_stack(parts) if parts else np.empty((len(static), 0))
    array = np.ascontiguousarray(checked_array(static, "static", "fbiu", "numbers", ndim=2), dtype=np.float64)
    check_length(array, n_patients, "static", "patients")
    names = checked_names(names, array.shape[1], "static_names")
    invalid = first_invalid(array.reshape(-1), allow_negative)
    if invalid:
        patient, column = divmod(invalid[0], array.shape[1])
        raise InputError(
            f"static feature {label(names, column)} is {invalid[1]} for the patient at position {patient}; "
            "correct it or drop the patient."
        )
    return (frozen(array), names) if array.shape[1] else (None, None)


def checked_times(times: Any, offsets: np.ndarray) -> np.ndarray | None:
    if times is None:
        return None
    array = checked_array(times, "visit_times", "iufM", "dates (datetime64, without a time zone) or numbers")
    check_length(array, int(offsets[-1]), "visit_times", "visits")
    missing = np.isnat(array) if array.dtype.kind == "M" else ~np.isfinite(array)
    back = np.zeros(len(array), bool)
    back[1:] = array[1:] < array[:-1]
    back[offsets[:-1][np.diff(offsets) > 0]] = False  # a patient's first visit has no predecessor
    for invalid, word in ((missing, "missing or infinite"), (back, "earlier than the visit before")):
        if invalid.any():
            patient = np.searchsorted(offsets, int(np.argmax(invalid)), side="right") - 1
            raise InputError(
                f"visit_times is {word} for the patient at position {patient}; "
                "date every visit and sort the visits of each patient by time."
            )
    return frozen(array)


def checked_last_times(times: Any, offsets: np.ndarray, visit_times: np.ndarray | None) -> np.ndarray | None:
    """Times of the last records used; a patient without visits may have none."""
    if times is None:
        return None
    if visit_times is None:
        raise InputError("last_times needs visit_times; give both.")
    array = checked_array(times, "last_times", "iufM", "dates (datetime64, without a time zone) or numbers")
    check_length(array, len(offsets) - 1, "last_times", "patients")
    if (array.dtype.kind == "M") != (visit_times.dtype.kind == "M"):
        raise InputError("last_times and visit_times must both be dates or both be numbers; convert one.")
    seen = np.flatnonzero(np.diff(offsets))
    early = ~(array[seen] >= visit_times[offsets[seen + 1] - 1])  # also where missing
    if early.any():
        raise InputError(
            f"last_times is missing or before the last visit for the patient at position {seen[np.argmax(early)]}; "
            "give the time of the last record used."
        )
    return frozen(array)


def checked_labels(labels: Any, n_patients: int) -> np.ndarray | None:
    if labels is None:
        return None
    array = checked_array(labels, "labels", "fbiu", "numbers, NaN where unknown")
    check_length(array, n_patients, "labels", "patients")
    if np.isinf(array).any():
        patient = int(np.argmax(np.isinf(array)))
        raise InputError(f"labels is infinite for the patient at position {patient}; use NaN where unknown.")
    return frozen(array)
