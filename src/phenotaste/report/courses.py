"""How active a phenotype is over time in the patients it leads in: bands over all of them, means over groups."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate, rounded_all
from phenotaste.report.patients import Integers, Matrix, Patients
from phenotaste.report.schema import Band, Course, TypicalCourse

N_POINTS = 21  # of a typical course, from first to last visit
MAX_POINTS = 60  # of a band
DAYS_PER_MONTH = 365.25 / 12
LABELS = {1: ("all",), 2: ("early", "late"), 3: ("early", "middle", "late")}


class Activity(NamedTuple):
    """w·u of one phenotype at the visits of some patients, stacked."""

    values: Matrix
    starts: Integers  # of each patient in `values`, and the end
    rows: Integers  # the same visits as rows of U

    @property
    def owner(self) -> Integers:
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @property
    def number(self) -> Integers:
        """The number of each visit within its patient, from 0."""
        return np.arange(len(self.values)) - np.repeat(self.starts[:-1], np.diff(self.starts))


def activity(patients: Patients, phenotype: int, chosen: Integers) -> Activity:
    """Return the activity in the patients at the chosen positions, which must have visits."""
    counts = patients.visits[chosen]
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = np.repeat(patients.offsets[chosen] - starts[:-1], counts) + np.arange(starts[-1])
    values = patients.U[rows, phenotype] * np.repeat(patients.W[chosen, phenotype], counts)
    return Activity(values.astype(np.float64, copy=False), starts, rows)


def months_since_first(cohort: Cohort) -> NDArray[np.float32] | None:
    """Return months since the first visit for every visit; None unless visits are dated."""
    times = cohort.visit_times
    if times is None or times.dtype.kind != "M":
        return None
    seen = cohort.visit_counts > 0
    first = np.repeat(times[cohort.offsets[:-1][seen]], cohort.visit_counts[seen])
    days = (times - first) / np.timedelta64(1, "D")
    return (days / DAYS_PER_MONTH).astype(np.float32)


def activity_bands(active: Activity, months: NDArray[np.float32] | None, gate: Gate) -> Course:
    """Median and quartiles by visit number and by month; points of fewer than 11 patients are left out."""
    by_visit = band(active.number, smoothed(active), 1, 1, gate)
    return Course(by_visit, None if months is None else by_month(active, months[active.rows], gate))


def smoothed(active: Activity, reach: int = 2) -> Matrix:
    """Moving average of each patient's activity over 2 * reach + 1 visits.

    A single visit is about the phenotype or it is not, so that medians of raw activity would mostly be 0.
    """
    visits = np.diff(active.starts)
    index = np.arange(len(active.values))
    first = np.maximum(index - reach, np.repeat(active.starts[:-1], visits))
    last = np.minimum(index + reach + 1, np.repeat(active.starts[1:], visits))
    sums = np.concatenate([[0.0], np.cumsum(active.values)])
    return np.maximum(sums[last] - sums[first], 0.0) / (last - first)


def by_month(active: Activity, months: NDArray[np.float32], gate: Gate) -> Band | None:
    """Quartiles by month; the visits of a patient within a month are averaged first."""
    month, owner = np.floor(months).astype(np.int64), active.owner
    last = last_shown(month, owner, gate)
    width = max(1, -(-(last + 1) // MAX_POINTS))
    bin_ = month // width
    first = np.flatnonzero(np.concatenate([[True], (np.diff(bin_) != 0) | (np.diff(owner) != 0)]))
    means = np.add.reduceat(active.values, first) / np.diff(np.append(first, len(bin_)))
    return band(bin_[first], means, 0, width, gate)


def last_shown(month: Integers, owner: Integers, gate: Gate) -> int:
    """The last month in which enough patients have visits."""
    changes = np.concatenate([[True], (np.diff(month) != 0) | (np.diff(owner) != 0)])
    patients = np.bincount(month[changes])
    shown = np.flatnonzero(patients >= gate.min_group_size)
    return int(shown[-1]) if len(shown) else 0


def band(keys: Integers, values: Matrix, offset: int, width: int, gate: Gate) -> Band | None:
    """Quartiles of the values of each key; no patient may have two values at one key."""
    counts = np.bincount(keys)
    order = np.lexsort((values, keys))
    ordered, begin = values[order], np.cumsum(counts) - counts
    shown = np.flatnonzero(counts >= gate.min_group_size)[:MAX_POINTS]
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
    position = begin + q * (counts - 1)
    before = np.floor(position).astype(np.int64)
    after = np.minimum(before + 1, begin + counts - 1)
    return ordered[before] + (position - before) * (ordered[after] - ordered[before])


def typical_courses(active: Activity, count_shown: bool, gate: Gate) -> list[TypicalCourse]:
    """Mean courses of the patients whose activity is early, in the middle, and late, at least 11 in each group."""
    n_patients = len(active.starts) - 1
    labels = LABELS[min(max(n_patients // gate.min_group_size, 1), len(LABELS))]
    order = np.argsort(mean_time(active), kind="stable")
    curves = resampled(active)
    return [
        TypicalCourse(label, len(group) if count_shown else None, rounded_all(curves[group].mean(axis=0)))
        for label, group in zip(labels, np.array_split(order, len(labels)), strict=True)
    ]


def mean_time(active: Activity) -> Matrix:
    """Mean time of each patient's activity, from 0 (first visit) to 1 (last); NaN without any activity."""
    visits = np.diff(active.starts)
    time = active.number / np.repeat(np.maximum(visits - 1, 1), visits)
    total = np.add.reduceat(active.values, active.starts[:-1])
    moment = np.add.reduceat(active.values * time, active.starts[:-1])
    return np.divide(moment, total, out=np.full(len(visits), np.nan), where=total > 0)


def resampled(active: Activity, points: int = N_POINTS) -> Matrix:
    """Each patient's activity, interpolated at the same number of points."""
    first, last = active.starts[:-1], active.starts[1:] - 1
    curves = np.empty((len(first), points))
    for i, time in enumerate(np.linspace(0.0, 1.0, points)):
        position = first + time * (last - first)
        before = np.floor(position).astype(np.int64)
        after = np.minimum(before + 1, last)
        curves[:, i] = active.values[before] + (position - before) * (
            active.values[after] - active.values[before]
        )
    return curves
