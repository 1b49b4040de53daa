"""Events in order of patient, visit and feature, streamed into the arrays of a sparse matrix."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.sources.workspace import Workspace, refusing

if TYPE_CHECKING:
    from ibis import Table

KEYS = ("patient", "visit", "feature")


class Rows(NamedTuple):
    """Visits in order of patient and time; the entries of visit i lie from indptr[i] up to indptr[i + 1]."""

    patient: np.ndarray  # of each visit: int32
    time: np.ndarray  # of each visit: datetime64[us]
    indptr: np.ndarray
    feature: np.ndarray  # of each entry: int32
    amount: np.ndarray  # of each entry: how many events

    @property
    def n_events(self) -> int:
        return int(self.amount.sum(dtype=np.int64))

    @property
    def n_patients(self) -> int:
        """Visits of one patient stand together."""
        return int(np.count_nonzero(np.diff(self.patient)) + 1) if len(self.patient) else 0

    def take_entries(self, wanted: np.ndarray) -> "Rows":
        """These entries only; a visit that has none of them is gone."""
        if wanted.all():
            return self
        ends = np.concatenate([[0], np.cumsum(wanted)])[self.indptr]
        left = np.flatnonzero(np.diff(ends))
        return Rows(
            self.patient[left],
            self.time[left],
            np.append(ends[left], ends[-1]),
            self.feature[wanted],
            self.amount[wanted],
        )

    def take_visits(self, wanted: np.ndarray) -> "Rows":
        if wanted.all():
            return self
        lengths = np.diff(self.indptr)
        entries = np.repeat(wanted, lengths)
        indptr = np.concatenate([[0], np.cumsum(lengths[wanted])])
        return Rows(
            self.patient[wanted], self.time[wanted], indptr, self.feature[entries], self.amount[entries]
        )


def gather(workspace: Workspace, events: "Table", starts: "Table | None") -> Rows:
    """The events (patient, time, visit, feature) as rows; a visit begins with its first event.

    `starts` (patient, visit, time) are visits that are known to have begun earlier.
    """
    columns = _collected(_whole_visits(workspace, _begun(events, starts)))
    # One column at a time, and its pieces gone before the next: together they may fill the memory.
    patient, time, lengths, feature, amount = (np.concatenate(columns.pop(0)) for _ in range(len(columns)))
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return _in_order_of_time(Rows(patient, time.view("M8[us]"), indptr, feature, amount))


def _collected(blocks: Iterator[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """The pieces of each column; one at least, without rows."""
    columns = [[column] for column in _piece(*[np.empty(0, np.int64)] * 4)]
    for block in blocks:
        for pieces, piece in zip(columns, _piece(*block), strict=True):
            pieces.append(piece)
    return columns


def _begun(events: "Table", starts: "Table | None") -> "Table":
    if starts is None:
        return events
    begun = starts.select(start_patient=starts.patient, start_visit=starts.visit, start=starts.time)
    joined = events.left_join(
        begun, [events.patient == begun.start_patient, events.visit == begun.start_visit]
    )
    time = (joined.start < joined.time).ifelse(joined.start, joined.time)
    return joined.select("patient", "visit", "feature", time=time)


def _whole_visits(workspace: Workspace, events: "Table") -> Iterator[list[np.ndarray]]:
    """Columns patient, visit, feature and time, block by block, where no visit is cut in two."""
    import pyarrow as pa

    ordered = events.select(*KEYS, time=events.time.cast("timestamp(6)")).order_by(*KEYS)
    rest = None
    with refusing("the events"):
        # DuckDB's own reader, for Ibis would hold the rows twice.
        for batch in workspace.con.con.sql(workspace.con.compile(ordered)).to_arrow_reader(1_000_000):
            columns = [batch.column(name) for name in (*KEYS, "time")]
            columns[3] = columns[3].cast(pa.int64())
            block = [column.to_numpy(zero_copy_only=False) for column in columns]
            if rest is not None:
                block = [np.concatenate(pair) for pair in zip(rest, block, strict=True)]
            patient, visit = block[:2]
            other = np.flatnonzero((patient != patient[-1]) | (visit != visit[-1]))
            cut = int(other[-1]) + 1 if len(other) else 0
            rest = [column[cut:] for column in block]
            if cut:
                yield [column[:cut] for column in block]
        if rest is not None and len(rest[0]):
            yield rest


def _piece(
    patient: np.ndarray, visit: np.ndarray, feature: np.ndarray, time: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Sorted events as visits (patient, time, number of entries) and entries (feature, count)."""
    new_visit = np.ones(len(patient), bool)
    new_visit[1:] = (patient[1:] != patient[:-1]) | (visit[1:] != visit[:-1])
    new_entry = new_visit.copy()
    new_entry[1:] |= feature[1:] != feature[:-1]
    visits, entries = np.flatnonzero(new_visit), np.flatnonzero(new_entry)
    first = np.minimum.reduceat(time, visits) if len(visits) else time
    lengths = np.diff(np.append(np.searchsorted(entries, visits), len(entries)))
    counts = np.diff(np.append(entries, len(patient)))
    return (
        patient[visits].astype(np.int32),
        first,
        lengths.astype(np.int32),
        feature[entries].astype(np.int32),
        counts.astype(np.int32),
    )


def _in_order_of_time(rows: Rows) -> Rows:
    """Encounters are numbered at random; days, weeks and months come in order already."""
    if not ((np.diff(rows.patient) == 0) & (np.diff(rows.time) < np.timedelta64(0, "us"))).any():
        return rows
    # Stable, so that encounters which begin at one moment keep one order whatever the order of the source.
    order = np.lexsort((rows.time, rows.patient))
    lengths = np.diff(rows.indptr)[order]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.repeat(rows.indptr[:-1][order] - indptr[:-1], lengths) + np.arange(indptr[-1])
    return Rows(rows.patient[order], rows.time[order], indptr, rows.feature[entries], rows.amount[entries])
