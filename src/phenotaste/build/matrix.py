"""Sorted events streamed into the arrays of a sparse matrix, and filters on its visits and features."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.build.attrition import Attrition
from phenotaste.sources.workspace import Workspace, translate_errors

if TYPE_CHECKING:
    from ibis import Table

KEYS = ("patient", "visit", "feature")
MAX_CELLS = 2**24  # patients times features counted at once
VISITS_PER_SORT = 2**20


class Rows(NamedTuple):
    """Visits in order of patient and time; the entries of visit i are those from indptr[i] up to indptr[i + 1]."""

    patient: np.ndarray  # of each visit: int32
    time: np.ndarray  # of each visit: datetime64[us]
    last: np.ndarray  # of each visit, the time of its last event: datetime64[us]
    indptr: np.ndarray
    feature: np.ndarray  # of each entry: int32
    amount: np.ndarray  # of each entry: number of events

    @property
    def n_events(self) -> int:
        return int(self.amount.sum(dtype=np.int64))

    @property
    def n_patients(self) -> int:
        """The number of patients; visits of one patient are contiguous."""
        return int(np.count_nonzero(np.diff(self.patient)) + 1) if len(self.patient) else 0

    def take_entries(self, mask: np.ndarray) -> "Rows":
        """Keep entries by mask, and drop visits without entries."""
        if mask.all():
            return self
        ends = np.concatenate([[0], np.cumsum(mask)])[self.indptr]
        visits = np.flatnonzero(np.diff(ends))
        return Rows(
            self.patient[visits],
            self.time[visits],
            self.last[visits],
            np.append(ends[visits], ends[-1]),
            self.feature[mask],
            self.amount[mask],
        )

    def take_visits(self, mask: np.ndarray) -> "Rows":
        if mask.all():
            return self
        lengths = np.diff(self.indptr)
        entries = np.repeat(mask, lengths)
        indptr = np.concatenate([[0], np.cumsum(lengths[mask])])
        return Rows(
            self.patient[mask],
            self.time[mask],
            self.last[mask],
            indptr,
            self.feature[entries],
            self.amount[entries],
        )


def collect_visits(workspace: Workspace, events: "Table", starts: "Table | None") -> Rows:
    """Collect events (patient, time, visit, feature) as rows; a visit starts at its first event.

    `starts` (patient, visit, time) are recorded starts, used where they are earlier.
    """
    times = ("time",) if starts is None else ("start", "time")
    columns = _chunked_columns(_complete_visits(workspace, _with_starts(events, starts), times))
    # One column at a time, freeing its chunks before the next, to limit peak memory.
    patient, time, last, lengths, feature, amount = (
        np.concatenate(columns.pop(0)) for _ in range(len(columns))
    )
    indptr = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return _sorted_by_time(Rows(patient, time.view("M8[us]"), last.view("M8[us]"), indptr, feature, amount))


def _chunked_columns(blocks: Iterator[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """The chunks of each column; the first one is empty."""
    columns = [[column] for column in _compress(*[np.empty(0, np.int64)] * 4)]
    for block in blocks:
        for chunks, chunk in zip(columns, _compress(*block), strict=True):
            chunks.append(chunk)
    return columns


def _with_starts(events: "Table", starts: "Table | None") -> "Table":
    """Add the column `start`: the recorded start of the event's visit where it is earlier, else its own time."""
    if starts is None:
        return events
    begin = starts.select(start_patient=starts.patient, start_visit=starts.visit, start=starts.time)
    joined = events.left_join(
        begin, [events.patient == begin.start_patient, events.visit == begin.start_visit]
    )
    start = (joined.start < joined.time).ifelse(joined.start, joined.time)
    return joined.select("patient", "visit", "feature", "time", start=start)


def _complete_visits(
    workspace: Workspace, events: "Table", times: Sequence[str]
) -> Iterator[list[np.ndarray]]:
    """Columns patient, visit, feature and the times in blocks that do not split a visit."""
    import pyarrow as pa

    moments = {name: events[name].cast("timestamp(6)") for name in times}
    ordered = events.select(*KEYS, **moments).order_by(*KEYS)
    rest = None
    with translate_errors("the events"):
        # DuckDB's own reader: Ibis would hold the rows twice.
        for batch in workspace.con.con.sql(workspace.con.compile(ordered)).to_arrow_reader(1_000_000):
            columns = [batch.column(name) for name in KEYS]
            columns += [batch.column(name).cast(pa.int64()) for name in times]
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


def _compress(
    patient: np.ndarray, visit: np.ndarray, feature: np.ndarray, *times: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Reduce sorted events to visits (patient, time, last, number of entries) and entries (feature, count).

    `times` are the starts of the visits, where recorded, and the times of the events.
    """
    start, time = times[0], times[-1]
    new_visit = np.ones(len(patient), bool)
    new_visit[1:] = (patient[1:] != patient[:-1]) | (visit[1:] != visit[:-1])
    new_entry = new_visit.copy()
    new_entry[1:] |= feature[1:] != feature[:-1]
    visits, entries = np.flatnonzero(new_visit), np.flatnonzero(new_entry)
    first = np.minimum.reduceat(start, visits) if len(visits) else start
    last = np.maximum.reduceat(time, visits) if len(visits) else time
    lengths = np.diff(np.append(np.searchsorted(entries, visits), len(entries)))
    counts = np.diff(np.append(entries, len(patient)))
    return (
        patient[visits].astype(np.int32),
        first,
        last,
        lengths.astype(np.int32),
        feature[entries].astype(np.int32),
        counts.astype(np.int32),
    )


def _sorted_by_time(rows: Rows) -> Rows:
    """Sort the visits of each patient in place; needed for encounters only, whose numbers are hashes."""
    if not ((np.diff(rows.patient) == 0) & (np.diff(rows.time) < np.timedelta64(0, "us"))).any():
        return rows
    # In blocks of whole patients: the order of all entries at once would need gigabytes.
    firsts = np.flatnonzero(np.diff(rows.patient, prepend=-1))
    starts = np.arange(0, len(rows.patient), VISITS_PER_SORT)
    begins = np.unique(firsts[np.searchsorted(firsts, starts, side="right") - 1])
    for begin, end in pairwise([*begins.tolist(), len(rows.patient)]):
        _sort_block(rows, begin, end)
    return rows


def _sort_block(rows: Rows, begin: int, end: int) -> None:
    """Sort the visits from `begin` up to `end`, which are those of whole patients, and their entries."""
    # Stable, so that simultaneous encounters have an order that does not depend on the source.
    order = np.lexsort((rows.time[begin:end], rows.patient[begin:end]))
    first = rows.indptr[begin:end][order]
    lengths = np.diff(rows.indptr[begin : end + 1])[order]
    block = slice(int(rows.indptr[begin]), int(rows.indptr[end]))
    ends = block.start + np.cumsum(lengths)
    entries = np.repeat(first - (ends - lengths), lengths) + np.arange(block.start, block.stop)
    for column in (rows.time, rows.last):
        column[begin:end] = column[begin:end][order]
    for column in (rows.feature, rows.amount):
        column[block] = column[entries]
    rows.indptr[begin + 1 : end + 1] = ends


def apply_minimums(
    rows: Rows,
    n_features: int,
    min_visits: int,
    min_patients: int,
    attrition: Attrition,
    persons: np.ndarray | None = None,
) -> Rows:
    """Remove patients with few visits and features with few patients, alternately until both minimums hold.

    `persons` is the patient of each number in `rows.patient`, non-decreasing, where a patient has several rows of the
    cohort.
    """
    size = _size(rows)
    visits_kept = size.copy()
    while True:
        rows = with_visits(rows, min_visits)
        visits_kept -= size - _size(rows)
        common = rows if min_patients <= 1 else _with_common_features(rows, n_features, min_patients, persons)
        if len(common.feature) == len(rows.feature):
            break
        rows, size = common, _size(common)
    if min_visits > 1:
        patients, visits, events = visits_kept
        attrition.record(
            f"at least {min_visits} visits",
            patients,
            visits,
            events,
            f"no patient has at least {min_visits} visits; lower --min-visits.",
        )
    if min_patients > 1:
        patients, visits, events = _size(rows)
        attrition.record(
            f"features in at least {min_patients} patients",
            patients,
            visits,
            events,
            f"no feature occurs in at least {min_patients} patients with enough visits; "
            "lower --min-patients or --min-visits.",
        )
    return rows


def with_visits(rows: Rows, min_visits: int) -> Rows:
    counts = np.bincount(rows.patient)
    return rows if min_visits <= 1 else rows.take_visits((counts >= min_visits)[rows.patient])


def _with_common_features(rows: Rows, n_features: int, min_patients: int, persons: np.ndarray | None) -> Rows:
    counted = rows if persons is None else rows._replace(patient=persons[rows.patient])
    common = patients_per_feature(counted, n_features) >= min_patients
    return rows if common.all() else rows.take_entries(common[rows.feature])


def patients_per_feature(rows: Rows, n_features: int) -> np.ndarray:
    """The number of patients with each feature, in chunks of patients to bound memory."""
    firsts = np.flatnonzero(np.diff(rows.patient, prepend=-1))  # the first visit of each patient
    step = max(1, MAX_CELLS // max(1, n_features))
    total = np.zeros(n_features, np.int64)
    for begin in range(0, len(firsts), step):
        chosen = slice(
            firsts[begin], firsts[begin + step] if begin + step < len(firsts) else len(rows.patient)
        )
        indptr = rows.indptr[chosen.start : chosen.stop + 1]
        rank = np.cumsum(np.diff(rows.patient[chosen], prepend=rows.patient[chosen.start]) != 0)
        seen = np.zeros((min(step, len(firsts) - begin), n_features), bool)
        seen[np.repeat(rank, np.diff(indptr)), rows.feature[indptr[0] : indptr[-1]]] = True
        total += seen.sum(axis=0)
    return total


def to_model_features(
    rows: Rows, names: np.ndarray, model_names: tuple[str, ...], attrition: Attrition
) -> Rows:
    """Keep the features of a model, in its order."""
    column = {name: number for number, name in enumerate(model_names)}
    columns = np.array([column.get(str(name), -1) for name in names], np.int32)
    rows = rows.take_entries(columns[rows.feature] >= 0)
    patients, visits, events = _size(rows)
    attrition.record(
        "features of the model",
        patients,
        visits,
        events,
        "no feature of the data is one of the model's; use the settings with which the model's cohort was built.",
    )
    return _sorted_within_visits(rows._replace(feature=columns[rows.feature]))


def _sorted_within_visits(rows: Rows) -> Rows:
    visit = np.repeat(np.arange(len(rows.patient)), np.diff(rows.indptr))
    order = np.lexsort((rows.feature, visit))
    return rows._replace(feature=rows.feature[order], amount=rows.amount[order])


def _size(rows: Rows) -> np.ndarray:
    return np.array([rows.n_patients, len(rows.patient), rows.n_events])
