"""Conversion of tables of events and static facts to the arrays of a cohort, through Arrow."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from phenotaste.cohort.checks import INT32_MAX, first_invalid
from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_CATEGORIES = 1000  # more indicates an identifier or free text


class Table:
    """An input table, converted to Arrow by column: unused columns are not converted."""

    def __init__(self, source: Any, title: str) -> None:
        import pyarrow as pa

        self.title = title
        # pandas and polars: select the column before converting it
        self.is_frame = hasattr(source, "__arrow_c_stream__") and hasattr(source, "dtypes")
        try:
            self.source = source if self.is_frame else pa.table(source)
        except (pa.ArrowException, TypeError, ValueError):
            raise InputError(f"{title} is not a table; give a pandas, polars or Arrow table.") from None
        self.names = list(self.source.columns if self.is_frame else self.source.column_names)

    def error(self, name: Any, what: str) -> InputError:
        return InputError(f"column {name!r} of {self.title} {what}.")

    def column(self, name: Any) -> "pa.ChunkedArray":
        """A column; raises an InputError if a value is missing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.names.count(name) != 1:
            number = "more than one column" if name in self.names else "no column"
            listed = ", ".join(map(str, self.names))
            raise InputError(f"{self.title} has {number} {name!r}; its columns are: {listed}.")
        try:
            column = pa.table(self.source[[name]]).column(0) if self.is_frame else self.source.column(name)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # Arrow's message quotes the value, which may be patient data.
            raise self.error(
                name, "mixes types of values; make all of them numbers or all of them text"
            ) from None
        missing = pc.is_null(column, nan_is_null=True)
        if pc.any(missing).as_py():
            row = pc.index(missing, True).as_py()
            advice = "drop the row or fill it, for example with 'unknown' in a text column"
            raise self.error(name, f"has no value in row {row}; {advice}")
        return column

    def codes(self, name: Any) -> tuple[np.ndarray, np.ndarray]:
        """The sorted distinct values of a column of integers or text, and each row's rank among them."""
        import pyarrow.types as kinds

        column = self.column(name)
        if not len(column):
            return np.empty(0, "U1"), np.empty(0, np.int32)
        kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
        if not kinds.is_integer(kind) and not is_text(kind):
            raise self.error(name, f"must hold integers or text, not {kind}; convert it first")
        encoded = column if kinds.is_dictionary(column.type) else column.dictionary_encode()
        chunks = encoded.unify_dictionaries().chunks
        values = chunks[0].dictionary.to_numpy(zero_copy_only=False)
        rows = np.concatenate([np.asarray(chunk.indices) for chunk in chunks])
        used = np.zeros(len(values), bool)  # a categorical column may have unused categories
        used[rows] = True
        distinct, ranks = np.unique(values[used], return_inverse=True)
        if distinct.dtype.kind in "iu" and distinct[-1] <= np.iinfo(np.int64).max:
            distinct = distinct.astype(np.int64)  # so that ids of different integer types compare equal
        rank = np.zeros(len(values), np.int32)
        rank[used] = ranks
        return distinct, rank[rows]

    def times(self, name: Any) -> np.ndarray:
        """A column of dates, timestamps, numbers or ISO 8601 text."""
        import pyarrow as pa
        import pyarrow.types as kinds

        column = self.column(name)
        kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
        if kinds.is_date32(kind):
            return column.cast(pa.int32()).to_numpy().astype("M8[D]")
        if kinds.is_date64(kind) or kinds.is_timestamp(kind):  # Arrow stores zoned timestamps in UTC
            unit = "ms" if kinds.is_date64(kind) else kind.unit
            return column.cast(pa.int64()).to_numpy().astype(f"M8[{unit}]")
        if kinds.is_integer(kind) and not kinds.is_uint64(kind):
            return column.cast(pa.int64()).to_numpy()
        if kinds.is_floating(kind):
            return column.cast(pa.float64()).to_numpy()
        if not len(column):
            return np.empty(0)
        if not is_text(kind):
            raise self.error(name, f"must hold dates, times or numbers, not {kind}; convert it first")
        values, rows = self.codes(name)
        moments = iso_times(values)
        if moments is None:
            raise self.error(name, "contains text that is not ISO 8601; convert it with pandas.to_datetime")
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
            raise self.error(name, f"must hold numbers, not {kind}; convert it first")
        values = column.cast(pa.float64()).to_numpy()
        invalid = first_invalid(values, allow_negative=False)
        if invalid:
            raise self.error(name, f"is {invalid[1]} in row {invalid[0]}; correct it or drop the row")
        return values


def is_text(kind: Any) -> bool:
    import pyarrow.types as kinds

    return kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind)


def iso_times(texts: np.ndarray) -> np.ndarray | None:
    """ISO 8601 texts as datetime64, in UTC if they have a time zone; None if they are not ISO 8601."""
    import pyarrow as pa

    array = pa.array(texts, pa.large_string())
    for unit in ("us", "ns"):
        for zone in (None, "UTC"):
            try:
                return array.cast(pa.timestamp(unit, zone)).cast(pa.int64()).to_numpy().astype(f"M8[{unit}]")
            except pa.ArrowInvalid:
                continue
    return None


def group_visits(
    patients: np.ndarray, times: np.ndarray, columns: np.ndarray, amounts: np.ndarray | None, n_features: int
) -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """A matrix with a row for each distinct (patient, time), and the patient and time of each row."""
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
    visits.sum_duplicates()  # in place; the constructor would have to copy
    visits.eliminate_zeros()
    return visits, patients[starts], times[starts]


def join_patients(
    facts: Table, patient: str, ids: np.ndarray, patients: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sorted patients of the static table, the position of each event among them, and their static rows."""
    known, codes = facts.codes(patient)
    rows = np.argsort(codes, kind="stable")
    repeated = rows[1:][codes[rows[1:]] == codes[rows[:-1]]]
    if len(repeated):
        raise facts.error(patient, f"repeats a patient in row {repeated.min()}; keep one row per patient")
    if len(ids) and len(known) and (ids.dtype.kind == "O") != (known.dtype.kind == "O"):
        raise facts.error(
            patient, "is text in one table and integers in the other; use the same type in both"
        )
    missing = len(ids) - int(np.isin(ids, known).sum())
    if missing:
        raise InputError(
            f"{missing:,} patients with events have no row in static; add the rows or drop them."
        )
    positions = np.searchsorted(known, ids).astype(np.int32) if len(ids) else np.empty(0, np.int32)
    return known, positions[patients], rows


def static_matrix(facts: Table, patient: str, rows: np.ndarray) -> tuple[np.ndarray | None, list[str] | None]:
    """The static columns as numbers, with a row for each patient in order, and their names."""
    blocks: list[np.ndarray] = []
    names: list[str] = []
    above_one: list[str] = []
    for name in facts.names:
        if name == patient:
            continue
        block, values = static_block(facts, name)
        blocks.append(block[rows])
        names += [str(name)] if values is None else [f"{name}={value}" for value in values]
        if block.size and block.max() > 1:
            above_one.append(str(name))
    if above_one:
        warnings.warn(
            f"static columns exceed 1 and may outweigh the others: {', '.join(above_one)}; convert them to bands, "
            "for example with pandas.cut.",
            stacklevel=3,
        )
    return (np.column_stack(blocks), names) if blocks else (None, None)


def static_block(facts: Table, name: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """One column: its numbers and None, or its one-hot columns and the value of each."""
    import pyarrow.types as kinds

    kind = facts.column(name).type
    if kinds.is_temporal(kind):
        raise facts.error(
            name, "contains dates or times; convert it to numbers or bands, such as an age band"
        )
    if not kinds.is_dictionary(kind) and not is_text(kind):
        return facts.numbers(name), None
    values, codes = facts.codes(name)
    if len(values) > MAX_CATEGORIES:
        raise facts.error(name, f"has {len(values):,} different values; group them or drop the column")
    return np.eye(len(values))[codes], values
