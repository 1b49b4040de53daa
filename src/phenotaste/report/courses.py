"""How active a phenotype is over time in the patients it leads in: bands over all of them, averages over groups."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate, rounded_all
from phenotaste.report.patients import Integers, Matrix, Patients
from phenotaste.report.record import Band, Course, TypicalCourse

POINTS = 21  # of a typical course, from first to last visit
MOST_POINTS = 60  # of a band
DAYS_PER_MONTH = 365.25 / 12
LABELS = {1: ("all",), 2: ("early", "late"), 3: ("early", "middle", "late")}


class Activity(NamedTuple):
    """w·u of one phenotype at the visits of some patients, one patient after the other."""

    values: Matrix
    starts: Integers  # each patient's first place in `values`, and the end
    rows: Integers  # the same visits as rows of U

    @property
    def owner(self) -> Integers:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def number(self) -> Integers:
        """Each visit's number, from 0."""
        return np.arange(len(self.values)) - np.repeat(self.starts[:-1], np.diff(self.starts))


def activity(patients: Patients, phenotype: int, chosen: Integers) -> Activity:
    """Of the patients at the chosen positions; they must have visits."""
    counts = patients.visits[chosen]
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(patients.offsets[chosen] - starts[:-1], counts) + np.arange(starts[-1])
    values = patients.U[rows, phenotype] * np.repeat(patients.W[chosen, phenotype], counts)
    return Activity(values.astype(np.float64, copy=False), starts, rows)


def months_since_first(cohort: Cohort) -> NDArray[np.float32] | None:
    """Of every visit; None where times are missing or only numbers, whose unit nobody knows."""
    times = cohort.visit_times
    if times is None or times.dtype.kind != "M":
        return None
    seen = cohort.visit_counts > 0
    first = np.repeat(times[cohort.offsets[:-1][seen]], cohort.visit_counts[seen])
    days = (times - first) / np.timedelta64(1, "D")
    return (days / DAYS_PER_MONTH).astype(np.float32)


def course(found: Activity, months: NDArray[np.float32] | None, gate: Gate) -> Course:
    """Median and quartiles by the number of the visit and by months; points of fewer than 11 patients are left out."""
    by_visit = band(found.number, smoothed(found), 1, 1, gate)
    return Course(by_visit, None if months is None else by_month(found, months[found.rows], gate))


def smoothed(found: Activity, reach: int = 2) -> Matrix:
    """Each patient's activity averaged over the visits around: a visit is about the phenotype or it is not, and the
    median of such jumps would say little."""
    visits = np.diff(found.starts)
    place = np.arange(len(found.values))
    first = np.maximum(place - reach, np.repeat(found.starts[:-1], visits))
    last = np.minimum(place + reach + 1, np.repeat(found.starts[1:], visits))
    sums = np.concatenate([[0.0], np.cumsum(found.values)])
    return np.maximum(sums[last] - sums[first], 0.0) / (last - first)


def by_month(found: Activity, months: NDArray[np.float32], gate: Gate) -> Band | None:
    """As a patient may come several times a month, each one's visits of a month are averaged first."""
    month, owner = np.floor(months).astype(np.int64), found.owner
    last = last_shown(month, owner, gate)
    width = max(1, -(-(last + 1) // MOST_POINTS))
    bin_ = month // width
    first = np.flatnonzero(np.concatenate([[True], (np.diff(bin_) != 0) | (np.diff(owner) != 0)]))
    means = np.add.reduceat(found.values, first) / np.diff(np.append(first, len(bin_)))
    return band(bin_[first], means, 0, width, gate)


def last_shown(month: Integers, owner: Integers, gate: Gate) -> int:
    """The last month in which enough patients have visits."""
    changes = np.concatenate([[True], (np.diff(month) != 0) | (np.diff(owner) != 0)])
    patients = np.bincount(month[changes])
    shown = np.flatnonzero(patients >= gate.smallest_group)
    return int(shown[-1]) if len(shown) else 0


def band(keys: Integers, values: Matrix, offset: int, width: int, gate: Gate) -> Band | None:
    """Quartiles of the values of each key; at most one value of a patient stands at a key."""
    counts = np.bincount(keys)
    order = np.lexsort((values, keys))
    ordered, begin = values[order], np.cumsum(counts) - counts
    shown = np.flatnonzero(counts >= gate.smallest_group)[:MOST_POINTS]
    if len(shown) < 2:
        return None
    low, median, high = (quantile(ordered, begin[shown], counts[shown], q) for q in (0.25, 0.5, 0.75))
    return Band(
        [float(offset + key * width) for key in shown],
        rounded_all(median),
        rounded_all(low),
        rounded_all(high),
    )


def quantile(ordered: Matrix, begin: Integers, counts: Integers, q: float) -> Matrix:
    place = begin + q * (counts - 1)
    before = np.floor(place).astype(np.int64)
    after = np.minimum(before + 1, begin + counts - 1)
    return ordered[before] + (place - before) * (ordered[after] - ordered[before])


def typical(found: Activity, count_shown: bool, gate: Gate) -> list[TypicalCourse]:
    """Averages over the patients whose activity lies early, in the middle, and late; each of at least 11."""
    n_patients = len(found.starts) - 1
    labels = LABELS[min(max(n_patients // gate.smallest_group, 1), len(LABELS))]
    order = np.argsort(timing(found), kind="stable")
    curves = along(found)
    return [
        TypicalCourse(label, len(group) if count_shown else None, rounded_all(curves[group].mean(axis=0)))
        for label, group in zip(labels, np.array_split(order, len(labels)), strict=True)
    ]


def timing(found: Activity) -> Matrix:
    """Where the middle of each patient's activity lies, from 0 (first visit) to 1 (last); NaN if there is none."""
    visits = np.diff(found.starts)
    place = found.number / np.repeat(np.maximum(visits - 1, 1), visits)
    total = np.add.reduceat(found.values, found.starts[:-1])
    moment = np.add.reduceat(found.values * place, found.starts[:-1])
    return np.divide(moment, total, out=np.full(len(visits), np.nan), where=total > 0)


def along(found: Activity, points: int = POINTS) -> Matrix:
    """Each patient's activity, read off at the same number of places: histories differ in length."""
    first, last = found.starts[:-1], found.starts[1:] - 1
    curves = np.empty((len(first), points))
    for i, part in enumerate(np.linspace(0.0, 1.0, points)):
        place = first + part * (last - first)
        before = np.floor(place).astype(np.int64)
        after = np.minimum(before + 1, last)
        curves[:, i] = found.values[before] + (place - before) * (found.values[after] - found.values[before])
    return curves
