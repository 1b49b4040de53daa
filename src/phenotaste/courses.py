"""Courses as features: what each patient's courses look like, in four numbers for each phenotype."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.patients import Integers, Matrix, Patients

if TYPE_CHECKING:
    import pandas as pd

FEATURES = ("last_quarter", "slope", "peak_time", "above_half")
PREDICTORS = (
    "last_quarter",
    "slope",
)  # of an outcome; the others added noise rather than information on ICU stays
LAST_QUARTER = 0.75


def course_features(model: Any, cohort: Cohort) -> "pd.DataFrame":
    """Return four numbers for each patient and phenotype that describe its course, score × course over the visits.

    Time runs from 0, the patient's first visit, to 1, the last: by the visits' times where the cohort has them, else
    by their numbers. Each visit stands for the time that is nearer to it than to the other visits.

    - `phenotype_1_last_quarter`: share of the course that lies in the last quarter of the time.
    - `phenotype_1_slope`: change from first to last visit on the straight line of best fit, divided by the course's
      mean.
    - `phenotype_1_peak_time`: time of the highest visit, the first of several.
    - `phenotype_1_above_half`: part of the time in which the course is at least half as high as at its peak.

    All four are 0 if the patient does not have the phenotype (score 0) or has no history. One visit, or visits at
    one time, are read as a course in order of the visits; one visit alone gives 0.25, 0, 0.5 and 1, as a constant
    course does. Every patient is described on their own.

    Examples
    --------
    >>> from phenotaste import TASTE, course_features, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> model = TASTE(rank=3, random_state=0).fit(cohort[:50])
    >>> table = course_features(model, cohort[50:])
    >>> table.shape, table.columns[:4].tolist()
    ((10, 12), ['phenotype_1_last_quarter', 'phenotype_1_slope', 'phenotype_1_peak_time', 'phenotype_1_above_half'])
    """
    import pandas as pd

    patients = Patients.of(model.project(cohort))
    if patients.U is None:
        method = type(getattr(model, "model", model)).__name__
        raise InputError(f"{method} has no courses to describe: use its scores.")
    labels = model.labels() if hasattr(model, "labels") else range(1, model.V_.shape[1] + 1)
    names = [f"phenotype_{label}_{feature}" for label in labels for feature in FEATURES]
    values = describe(patients, cohort.visit_times)
    return pd.DataFrame(values, index=cohort.patient_ids, columns=names)


def describe(patients: Patients, times: NDArray[Any] | None, features: tuple[str, ...] = FEATURES) -> Matrix:
    """Return the features, patients × (phenotypes · features); `times` of the visits may be None for their numbers."""
    chosen = [FEATURES.index(name) for name in features]
    result = np.zeros((*patients.W.shape, len(features)))
    for block in patients.blocks():
        rows = patients.rows(block)
        counts = patients.visits[block]
        clock = relative_times(None if times is None else times[rows], counts)
        result[block] = describe_block(patients.sizes_at_visits(block), clock, counts)[:, :, chosen]
    return result.reshape(len(result), result.shape[1] * len(features))


class Clock(NamedTuple):
    """The time of each visit from 0 to 1, and the limits of the time that it stands for."""

    time: Matrix
    begin: Matrix
    end: Matrix


def relative_times(times: NDArray[Any] | None, counts: Integers) -> Clock:
    """Times of the stacked visits of patients, who have `counts` visits each, at least one."""
    first = np.cumsum(counts) - counts
    number = np.arange(counts.sum()) - np.repeat(first, counts)
    since = number.astype(np.float64)
    if times is not None:
        gaps = times - np.repeat(times[first], counts)
        since = (gaps / np.timedelta64(1, "s") if gaps.dtype.kind == "m" else gaps).astype(np.float64)
    span = np.repeat(since[first + counts - 1], counts)
    n = np.repeat(counts, counts)
    in_order = span == 0  # one visit, or all at one time: each stands for an equal part
    time = np.divide(since, span, out=(number + 0.5) / n, where=~in_order)
    middle = np.append((time[1:] + time[:-1]) / 2, 1.0)
    end = np.where(number == n - 1, 1.0, middle)
    begin = np.where(number == 0, 0.0, np.append(0.0, middle[:-1]))
    return Clock(time, begin, end)


def describe_block(sizes: Matrix, clock: Clock, counts: Integers) -> NDArray[np.float64]:
    """Return patients × phenotypes × 4 from the sizes at the visits (visits × phenotypes)."""
    first = np.cumsum(counts) - counts
    time = clock.time[:, None]

    def total(values: Matrix) -> Matrix:
        return np.add.reduceat(values, first, axis=0)

    length = clock.end - clock.begin
    late = np.clip(clock.end - np.maximum(clock.begin, LAST_QUARTER), 0.0, None)
    late = np.divide(late, length, out=(clock.time >= LAST_QUARTER).astype(np.float64), where=length > 0)
    peak = np.maximum.reduceat(sizes, first, axis=0)
    has = peak > 0
    # Relative to the peak, which changes no feature, tiny sizes do not underflow.
    sizes = np.divide(sizes, np.repeat(peak, counts, axis=0), out=np.zeros_like(sizes), where=sizes > 0)
    amount = total(sizes)
    last_quarter = np.divide(total(sizes * late[:, None]), amount, out=np.zeros_like(amount), where=has)
    centred = time - np.repeat(total(time) / counts[:, None], counts, axis=0)
    spread = np.broadcast_to(total(centred**2), amount.shape)
    rise = np.divide(total(centred * sizes), spread, out=np.zeros_like(amount), where=spread > 0)
    slope = np.divide(rise, amount / counts[:, None], out=np.zeros_like(amount), where=has)
    peak_time = np.minimum.reduceat(np.where(sizes == 1.0, time, np.inf), first, axis=0)
    above_half = total(np.where(sizes >= 0.5, length[:, None], 0.0))
    found = np.stack([last_quarter, slope, peak_time, above_half], axis=2)
    return np.where(has[:, :, None], found, 0.0)
