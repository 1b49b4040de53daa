"""Calendar months, the observation window of each patient, and what lies inside it: where time is cut, once."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build.settings import Index

if TYPE_CHECKING:
    from ibis import Table

OPEN_END = np.datetime64("9999-12-31", "D")


def months_before(days: np.ndarray, months: int) -> np.ndarray:
    """The same day of an earlier month, or that month's last: 31 August less 6 months is 28 or 29 February.

    Counted in one step from the day, as databases do; two steps may end on another day.
    """
    days = np.asarray(days, "datetime64[D]")
    month = days.astype("datetime64[M]")
    earlier = month - months
    last = (earlier + 1).astype("datetime64[D]") - 1
    return np.minimum(earlier.astype("datetime64[D]") + (days - month.astype("datetime64[D]")), last)


def window(days: np.ndarray, index: Index) -> tuple[np.ndarray, np.ndarray]:
    """First day of the window and the day it ends before, for each index date."""
    return months_before(days, index.gap_months + index.window_months), months_before(days, index.gap_months)


def inside(events: "Table", anchors: "Table") -> "Table":
    """Events from the start of their patient's window up to, but never at, its end; others' events are left out."""
    bounds = anchors.select("patient", "start", "end")
    joined = events.inner_join(bounds, "patient")
    return joined.filter(joined.time >= joined.start, joined.time < joined.end).select(*events.columns)


def known_by_end(facts: "Table", anchors: "Table") -> "Table":
    """Facts known before their patient's window ends; one without a time was always known."""
    joined = facts.inner_join(anchors.select("patient", "end"), "patient")
    return joined.filter(joined.time.isnull() | (joined.time < joined.end)).select(*facts.columns)


class Periods(NamedTuple):
    """When patients were under observation: patient k has the stretches from pointer[k] up to pointer[k + 1]."""

    pointer: np.ndarray
    start: np.ndarray
    end: np.ndarray  # both days included

    @classmethod
    def merged(cls, n_patients: int, patient: np.ndarray, start: np.ndarray, end: np.ndarray) -> "Periods":
        """Stretches that touch or overlap become one; one without an end lasts, one without a start is void."""
        start, end = np.asarray(start, "datetime64[D]"), np.asarray(end, "datetime64[D]")
        end = np.where(np.isnat(end), OPEN_END, end)
        sound = ~np.isnat(start) & (start <= end)
        order = np.lexsort((end[sound], start[sound], patient[sound]))
        patient, start, end = (column[sound][order] for column in (patient, start, end))
        latest = _running_latest(patient, end)
        new = np.ones(len(patient), bool)
        new[1:] = (patient[1:] != patient[:-1]) | (start[1:] > latest[:-1] + 1)
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(patient))[: len(first)] - 1
        pointer = np.searchsorted(patient[first], np.arange(n_patients + 1))
        return cls(pointer, start[first], latest[last])

    def covers(self, patient: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Whether one stretch of each patient holds all days from `first` to `last`."""
        at = self.pointer[patient]
        count = self.pointer[patient + 1] - at
        first, last = np.broadcast_to(first, at.shape), np.broadcast_to(last, at.shape)
        found = np.zeros(len(at), bool)
        for nth in range(int(count.max(initial=0))):  # nearly everybody has one stretch only
            rows = np.flatnonzero(nth < count)
            where = at[rows] + nth
            found[rows] |= (self.start[where] <= first[rows]) & (self.end[where] >= last[rows])
        return found


def _running_latest(patient: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The latest end so far within each patient; rows are sorted by patient."""
    days = end.astype(np.int64)
    low = int(days.min(initial=0))
    step = (
        int(days.max(initial=0)) - low + 1
    )  # lifts each patient above all before, so that one sweep serves all
    lift = patient.astype(np.int64) * step
    return (np.maximum.accumulate(days - low + lift) - lift + low).astype("datetime64[D]")
