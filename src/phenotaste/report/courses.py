"""How active a phenotype is over time in the patients it leads in: bands over all of them, means over groups."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.disclosure import BASE, Gate, in_steps, rounded_all
from phenotaste.patients import Integers, Matrix, Patients
from phenotaste.report.schema import Band, Course, TypicalCourse

N_POINTS = 21  # of a typical course, from first to last visit
MAX_POINTS = 60  # of a band
DAYS_PER_MONTH = 365.25 / 12
LABELS = {1: ("all",), 2: ("early", "late"), 3: ("early", "middle", "late")}


class Activity(NamedTuple):
    """w·u of one phenotype at the visits of some patients, stacked, in the data's own units.

    Relative sizes would not do here: a unit of them is a patient's whole history, so that long ones would seem low.
    """

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
    values = patients.sizes_at_visits(chosen, phenotype) * np.repeat(patients.scale[chosen], counts)
    return Activity(values, starts, patients.rows(chosen))


def months_since_first(cohort: Cohort) -> NDArray[np.float32] | None:
    """Return months since the first visit for every visit; None unless visits are dated."""
    times = cohort.visit_times
    if times is None or times.dtype.kind != "M":
        return None
    seen = cohort.visit_counts > 0
    first = np.repeat(times[cohort.offsets[:-1][seen]], cohort.visit_counts[seen])
    days = (times - first) / np.timedelta64(1, "D")
    return (days / DAYS_PER_MONTH).astype(np.float32)


def activity_bands(active: Activity, months: NDArray[np.float32] | None, size: int, gate: Gate) -> Course:
    """Median and quartiles by visit number and by month, of a group of patients whose rounded size is shown."""
    by_visit = band(active.number, smoothed(active), 1, 1, size, gate)
    return Course(by_visit, None if months is None else by_month(active, months[active.rows], size, gate))


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


def by_month(active: Activity, months: NDArray[np.float32], size: int, gate: Gate) -> Band | None:
    """Quartiles by month; the visits of a patient within a month are averaged first."""
    month, owner = np.floor(months).astype(np.int64), active.owner
    shown = shown_points(month[changes(month, owner)], gate)
    width = max(1, -(-(int(shown.max(initial=0)) + 1) // MAX_POINTS))
    bin_ = month // width
    first = np.flatnonzero(changes(bin_, owner))
    means = np.add.reduceat(active.values, first) / np.diff(np.append(first, len(bin_)))
    return band(bin_[first], means, 0, width, size, gate)


def changes(key: Integers, owner: Integers) -> NDArray[np.bool_]:
    return np.concatenate([[True], (np.diff(key) != 0) | (np.diff(owner) != 0)])


def shown_points(keys: Integers, gate: Gate) -> Integers:
    """The points of a band, which enough patients reach; it ends after up to 5 points, or a multiple of 5.

    A band that ended anywhere would show how long the history of one patient is.
    """
    counts = np.bincount(keys).tolist()
    enough = [gate.rounded("point of a course", n) >= max(gate.min_shown, 1) for n in counts]
    shown = np.flatnonzero(enough)
    end = int(shown[-1]) + 1 if len(shown) else 0
    return shown[shown < (end if gate.trusted or end < BASE else end - end % BASE)]


def band(keys: Integers, values: Matrix, offset: int, width: int, size: int, gate: Gate) -> Band | None:
    """Quartiles of the values of each key; no patient may have two values at one key."""
    counts = np.bincount(keys)
    order = np.lexsort((values, keys))
    shown = shown_points(keys, gate)[:MAX_POINTS]
    if len(shown) < 2:
        return None
    tops = np.sort(values)
    top = float(tops[-min(len(tops), gate.min_group_size)])
    low, median, high = (
        quantile(values[order], np.cumsum(counts) - counts, counts, q, gate)[shown] for q in (0.25, 0.5, 0.75)
    )
    points = [
        rounded_all(curve) if gate.trusted else in_steps(np.minimum(curve, top), top, size)
        for curve in (median, low, high)
    ]
    return Band([float(offset + key * width) for key in shown], *points)


def quantile(ordered: Matrix, begin: Integers, counts: Integers, q: float, gate: Gate) -> Matrix:
    """The mean of the 11 values around the quantile of each group: no point is of a single patient."""
    n = np.minimum(gate.min_group_size, counts)
    first = begin + np.clip(np.rint(q * (counts - 1) - (n - 1) / 2).astype(np.int64), 0, counts - n)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    return np.divide(sums[first + n] - sums[first], n, out=np.zeros(len(n)), where=n > 0)


def typical_courses(active: Activity, size: int, gate: Gate) -> list[TypicalCourse]:
    """Mean courses of the patients whose activity is early, in the middle, and late, at least 11 in each group."""
    labels = LABELS[min(max(size // max(gate.min_shown, 1), 1), len(LABELS))]
    order = np.argsort(mean_time(active), kind="stable")
    curves = resampled(active)
    return [
        TypicalCourse(label, gate.curve(curves[group], size // len(labels)))
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
