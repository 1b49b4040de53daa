"""Observation windows and periods, and the events and facts inside windows."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build.durations import MONTH, add_months, before
from phenotaste.build.settings import Index

if TYPE_CHECKING:
    from ibis import Table

OPEN_END = np.datetime64("9999-12-31", "D")


def window(times: np.ndarray, index: Index) -> tuple[np.ndarray, np.ndarray]:
    """The start of the window, and its end, which is excluded, for each index time."""
    length, gap, _ = index.lengths
    end = before(times, gap)
    if length.unit == gap.unit == MONTH:
        return add_months(times, -length.number - gap.number), end
    return before(end, length), end


def inside(events: "Table", anchors: "Table") -> "Table":
    """Events from the start of a window up to, but excluding, its end; `patient` is the row of the window."""
    bounds = anchors.select("patient", "row", "start", "end")
    joined = events.inner_join(bounds, "patient")
    return of_rows(joined.filter(joined.time >= joined.start, joined.time < joined.end), events)


def known_by_end(facts: "Table", anchors: "Table") -> "Table":
    """Facts known before a window ends, undated ones included; `patient` is the row of the window."""
    joined = facts.inner_join(anchors.select("patient", "row", "end"), "patient")
    return of_rows(joined.filter(joined.time.isnull() | (joined.time < joined.end)), facts)


def of_rows(joined: "Table", original: "Table") -> "Table":
    """The original columns, with the row of the window in place of the patient, who may have several."""
    return joined.select(**{name: joined["row" if name == "patient" else name] for name in original.columns})


class Periods(NamedTuple):
    """Observation periods; those of patient k are the rows from pointer[k] up to pointer[k + 1]."""

    pointer: np.ndarray
    start: np.ndarray
    end: np.ndarray  # inclusive, as is start

    @classmethod
    def merged(cls, n_patients: int, patient: np.ndarray, start: np.ndarray, end: np.ndarray) -> "Periods":
        """Merge adjacent and overlapping periods; a missing end is open, a period without a start is ignored."""
        start, end = np.asarray(start, "datetime64[D]"), np.asarray(end, "datetime64[D]")
        end = np.where(np.isnat(end), OPEN_END, end)
        valid = ~np.isnat(start) & (start <= end)
        order = np.lexsort((end[valid], start[valid], patient[valid]))
        patient, start, end = (column[valid][order] for column in (patient, start, end))
        latest = _running_latest(patient, end)
        new = np.ones(len(patient), bool)
        new[1:] = (patient[1:] != patient[:-1]) | (start[1:] > latest[:-1] + 1)
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(patient))[: len(first)] - 1
        pointer = np.searchsorted(patient[first], np.arange(n_patients + 1))
        return cls(pointer, start[first], latest[last])

    def covers(self, patient: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Whether one period of each patient contains all days from `first` to `last`."""
        at = self.pointer[patient]
        count = self.pointer[patient + 1] - at
        first, last = np.broadcast_to(first, at.shape), np.broadcast_to(last, at.shape)
        covered = np.zeros(len(at), bool)
        for nth in range(int(count.max(initial=0))):  # most patients have a single period
            rows = np.flatnonzero(nth < count)
            where = at[rows] + nth
            covered[rows] |= (self.start[where] <= first[rows]) & (self.end[where] >= last[rows])
        return covered


def _running_latest(patient: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The latest end so far within each patient; rows are sorted by patient."""
    days = end.astype(np.int64)
    low = int(days.min(initial=0))
    # Offsets that order the patients, so that one running maximum serves all of them.
    offset = patient.astype(np.int64) * (int(days.max(initial=0)) - low + 1)
    return (np.maximum.accumulate(days - low + offset) - offset + low).astype("datetime64[D]")
