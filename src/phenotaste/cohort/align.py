"""The arrays of a cohort for the kernels, with columns matched by name to those of a fitted model."""

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from phenotaste.cohort import Cohort
from phenotaste.cohort.checks import row_blocks
from phenotaste.core.kernels.driver import patient_sizes
from phenotaste.core.records import Array, Shard
from phenotaste.errors import InputError

Allocator = Callable[[tuple[int, ...], Any], Array]  # like np.empty

ENTRIES_PER_COPY = 2**22
ENTRIES_PER_COUNT = 2**20  # bounds the temporary memory of counting


class Columns(NamedTuple):
    """The columns a model was fitted on; names are None where the data had none."""

    n_features: int
    feature_names: Array | None
    n_static: int
    static_names: Array | None


class Aligned(NamedTuple):
    shard: Shard
    sizes: Array  # ‖X_k‖ of every patient
    unknown_features: int  # columns of the cohort that the model does not have; ignored
    absent_features: int  # columns of the model that the cohort does not have; zero

    @property
    def norms(self) -> Array:
        """‖X_k‖² of every patient."""
        return self.sizes**2


def columns_of(cohort: Cohort) -> Columns:
    P = 0 if cohort.static is None else cohort.static.shape[1]
    return Columns(cohort.shape[1], cohort.feature_names, P, cohort.static_names)


def columns_of_fitted(model: Any) -> Columns:
    """The columns of a fitted model, from its attributes."""
    P = 0 if model.F_ is None else model.F_.shape[0]
    return Columns(model.V_.shape[0], model.feature_names_in_, P, model.static_names_in_)


class AlignedVisits(NamedTuple):
    visits: sparse.csr_array
    unknown_features: int  # columns of the cohort that the model does not have; ignored
    absent_features: int  # columns of the model that the cohort does not have; zero


def align_visits(cohort: Cohort, columns: Columns) -> AlignedVisits:
    """The visits of a cohort in the order of `columns`; data without names must have the same width."""
    where, unknown = positions(
        cohort.feature_names, columns.feature_names, cohort.shape[1], columns.n_features, "temporal"
    )
    if where is None:
        return AlignedVisits(cohort.visits, unknown, 0)
    moved = move_columns(cohort.visits, where, columns.n_features)
    return AlignedVisits(moved, unknown, columns.n_features - int(np.sum(where >= 0)))


def check_same_columns(cohort: Cohort, model: Any) -> None:
    """Refuse a cohort whose features are not those of the model, in the same order."""
    found, expected = columns_of(cohort), columns_of_fitted(model)
    temporal = found.n_features, expected.n_features, found.feature_names, expected.feature_names
    static = found.n_static, expected.n_static, found.static_names, expected.static_names
    for kind, (mine, its, names, model_names) in (("temporal", temporal), ("static", static)):
        unnamed = names is None or model_names is None
        same = names is model_names if unnamed else np.array_equal(np.asarray(names), np.asarray(model_names))
        if mine != its or not same:
            raise InputError(
                f"The {kind} features of the cohort are not those of the model: use the cohort of its fit, or build "
                "one with its columns (phenotaste cohort --like MODEL)."
            )


def align(cohort: Cohort, columns: Columns, allocate: Allocator = np.empty) -> Aligned:
    """Arrange the data of a cohort in the order of `columns`; data without names must have the same width.

    `allocate` creates the arrays that a conversion needs.
    """
    visits, *missing = align_visits(cohort, columns)
    static = align_static(cohort.static, cohort.static_names, columns)
    shard = shard_of(visits, cohort.offsets, static, allocate)
    return Aligned(shard, patient_sizes(shard), *missing)


def positions(
    names: Array | None, model_names: Array | None, width: int, model_width: int, kind: str
) -> tuple[Array | None, int]:
    """The position of each column among those of the model (−1: unknown), or None if they are identical."""
    if names is None or model_names is None:
        if width != model_width:
            raise InputError(
                f"The cohort has {width} {kind} features and the model {model_width}, which cannot be matched "
                "without names: give both their feature names, or the same columns in the same order."
            )
        return None, 0
    if np.array_equal(names, model_names):
        return None, 0
    position = {name: j for j, name in enumerate(model_names.tolist())}
    where = np.array([position.get(name, -1) for name in names.tolist()], dtype=np.int64)
    return where, int(np.sum(where < 0))


def move_columns(visits: sparse.csr_array, where: Array, width: int) -> sparse.csr_array:
    column = where[visits.indices]
    keep = column >= 0
    before = np.concatenate([[0], np.cumsum(keep)])
    moved = sparse.csr_array(
        (visits.data[keep], column[keep], before[visits.indptr]), shape=(visits.shape[0], width)
    )
    moved.sort_indices()
    return moved


def align_static(static: Array | None, names: Array | None, columns: Columns) -> Array | None:
    if columns.n_static == 0:
        return None
    if static is None:
        raise InputError(
            f"The model was fitted with {columns.n_static} static features and this cohort has none: "
            "add them, or fit a model without static features."
        )
    where, _ = positions(names, columns.static_names, static.shape[1], columns.n_static, "static")
    if where is None:
        return static
    aligned = np.zeros((static.shape[0], columns.n_static))
    aligned[:, where[where >= 0]] = static[:, where >= 0]
    return aligned


def shard_of(
    visits: sparse.csr_array, offsets: Array, static: Array | None, allocate: Allocator = np.empty
) -> Shard:
    """The arrays for the kernels, read-only so that they are compiled for a single array type."""
    K = len(offsets) - 1
    A = np.zeros((K, 0)) if static is None else static
    return Shard(
        read_only(visits.data),
        read_only(visits.indices, np.int32, allocate),
        read_only(visits.indptr, np.int64, allocate),
        read_only(offsets, np.int64),
        read_only(A, np.float64),
    )


def patients_having(shard: Shard, n_features: int, persons: Array | None = None) -> tuple[Array, Array]:
    """The number of patients with each temporal and each static feature; `persons` where they have several rows."""
    if persons is not None:
        entries = np.repeat(persons, np.diff(shard.indptr[shard.offsets]))
        pairs = np.unique(entries * n_features + shard.indices)
        static = [len(np.unique(persons[column > 0])) for column in shard.static.T]
        return np.bincount(pairs % n_features, minlength=n_features), np.array(static, np.int64)
    # One row per patient, in which a code of several visits is repeated.
    starts = shard.indptr[shard.offsets]
    counts = np.zeros(n_features, np.int64)
    for rows in row_blocks(starts, ENTRIES_PER_COUNT):
        codes = shard.indices[rows[0] : rows[-1]]
        ones = np.ones(len(codes), np.int8)
        by_code = sparse.csr_array((ones, codes, rows - rows[0]), shape=(len(rows) - 1, n_features)).tocsc()
        patient, edges = by_code.indices, by_code.indptr
        new = np.ones(len(patient), bool)
        new[1:] = patient[1:] != patient[:-1]
        new[edges[:-1][np.diff(edges) > 0]] = True
        counts += np.diff(np.concatenate([[0], np.cumsum(new, dtype=np.int64)])[edges])
    return counts, np.count_nonzero(shard.static, axis=0).astype(np.int64)


def read_only(array: Array, dtype: Any = None, allocate: Allocator = np.empty) -> Array:
    if dtype is not None and array.dtype != dtype:
        view = allocate(array.shape, dtype)
        for first in range(0, len(array), ENTRIES_PER_COPY):
            view[first : first + ENTRIES_PER_COPY] = array[first : first + ENTRIES_PER_COPY]
    else:
        view = np.ascontiguousarray(array).view(np.ndarray)
    if view is array or view.base is not None:
        view = view[:]
    view.flags.writeable = False
    return view


def cohort_digest(cohort: Cohort) -> str:
    """SHA-256 of everything that a fit or a split reads: results of another cohort are recognised by it."""
    digest = hashlib.sha256()
    parts = [cohort.visits.data, cohort.visits.indices, cohort.visits.indptr, cohort.offsets, cohort.static]
    for part in parts:
        array = np.zeros(0) if part is None else np.ascontiguousarray(part)
        digest.update(f"{array.dtype} {array.shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    if cohort.groups is not None:
        digest.update(np.ascontiguousarray(cohort.persons).tobytes())
    for names in (cohort.feature_names, cohort.static_names):
        digest.update(json.dumps(None if names is None else [str(name) for name in names]).encode())
    return digest.hexdigest()
