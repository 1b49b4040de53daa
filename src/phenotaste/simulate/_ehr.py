"""Simulated health records of any size in the shape of the paper's CMS set: sparse visits, static features, labels."""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from phenotaste.cohort import Cohort
from phenotaste.core.kernels.jit import kernel, part
from phenotaste.errors import InputError
from phenotaste.simulate._common import (
    Array,
    RandomState,
    Truth,
    draw_labels,
    generator,
    shares,
    static_scale,
)
from phenotaste.validation import check_choice, check_integer, check_number

CHUNK = 4096  # patients per random stream; a constant, since the result depends on it
MIN_VISITS = 5
MAX_VISITS_PER_MEAN = 4
MEAN_VISITS, CODES_PER_VISIT = 50.0, 4.5  # of the paper's CMS set
SKEWED_MEDIAN, SKEWED_SPREAD, SKEWED_MAX = (
    10,
    1.2,
    400,
)  # log-normal: a sixth has 3 visits or fewer, another 33 or more
SKEWED_CODES = (3, 7)
SKEWED_CONCENTRATION = 0.1  # of the Dirichlet draw of a phenotype: broad, and sharing codes with others
WINDOW_DAYS = 3 * 365
ACTIVE_CHANCES = {
    "uniform": (0.97, 0.5, 0.2),
    "skewed": (0.97, 0.8, 0.6),
}  # of a first, second, third phenotype
BACKGROUND_ACTIVITY = {
    "uniform": 0.15,
    "skewed": 0.05,
}  # outside the phenotypes, whose activities are up to 1
COUNT_CHANCES = (0.85, 0.12, 0.03)  # of a code occurring once, twice, three times
MEAN_COUNT = sum(count * chance for count, chance in enumerate(COUNT_CHANCES, start=1))
CASE_SHARE = 0.1
CORE_CODES = 10
MAX_REDRAWS = 30  # beyond, a visit has nearly exhausted the codes of its phenotypes


class Plan(NamedTuple):
    """Parameters shared by all patients."""

    V: Array  # J × R, columns sum to 1
    F: Array  # P × R, probabilities of the static features
    cumulative: Array  # (R + 1) × J, cumulative probabilities of the codes; the last row is the background
    risk: Array  # R, log odds of being a case
    active: tuple[float, ...]  # chances of having a first, second and third phenotype
    background: float  # activity of codes outside the phenotypes


class Records(NamedTuple):
    """The arrays of the cohort, allocated at their final size."""

    data: NDArray[np.float32]
    indices: NDArray[np.integer]
    indptr: NDArray[np.integer]
    offsets: NDArray[np.int64]
    times: NDArray[np.int32]
    static: NDArray[np.float32]
    W: Array


def ehr(
    n_patients: int,
    n_features: int = 284,
    n_static: int = 30,
    mean_visits: float = MEAN_VISITS,
    codes_per_visit: float = CODES_PER_VISIT,
    rank: int = 10,
    separation: float = 1.0,
    random_state: RandomState = 0,
    *,
    lengths: Literal["uniform", "skewed"] = "uniform",
) -> tuple[Cohort, Truth]:
    """Health records with `rank` planted phenotypes, in the paper's CMS shape by default.

    A patient has from 5 to four times `mean_visits` visits. Most patients have one to three phenotypes, which rise,
    fall, occur in an episode or are constant; each visit draws distinct codes from the phenotypes active at that time
    and from a background. Counts are 1 to 3, static features 0 or 1.

    With `lengths="skewed"` histories are as unequal as in real records: 1 to 400 visits, log-normal with a median of
    10, and 3 to 7 codes a visit. Phenotypes are then broad and share codes, most patients have two or three of them,
    and `mean_visits` and `codes_per_visit` do not apply: a visit says little, the sum over a patient much.

    With a `separation` of 1 phenotypes have disjoint codes, with 0 all phenotypes are equal.

    The truth is in the scale of a fitted model: columns of V have unit norm and W carries the scale, so that
    W_kr is the norm of the expected codes from phenotype r over the visits of patient k. This is an approximation,
    since the codes of a visit are drawn without replacement. truth.U is None: for a million patients it would be
    larger than the data.

    Examples
    --------
    >>> from phenotaste import simulate
    >>> cohort, truth = simulate.ehr(20, random_state=1)
    >>> cohort.shape, cohort.static.shape, truth.W.shape
    ((20, 284), (20, 30), (20, 10))
    >>> cohort, truth = simulate.ehr(1000, lengths="skewed", random_state=1)
    >>> summary = cohort.summary()
    >>> summary.visits_min, summary.visits_median, summary.visits_max
    (1, 10.0, 400)
    """
    _check(n_patients, n_features, n_static, mean_visits, codes_per_visit, rank, separation)
    check_choice("lengths", lengths, ("uniform", "skewed"))
    skewed = lengths == "skewed"
    if skewed and (mean_visits, codes_per_visit) != (MEAN_VISITS, CODES_PER_VISIT):
        raise InputError('mean_visits and codes_per_visit do not apply to lengths="skewed": leave them out.')
    rng = generator(random_state)
    plan = _draw_plan(n_features, n_static, rank, separation, lengths, rng)
    n_visits = (
        _draw_skewed_counts(n_patients, rng) if skewed else _draw_visit_counts(n_patients, mean_visits, rng)
    )
    streams = [np.random.default_rng(seed) for seed in rng.integers(2**63, size=-(-n_patients // CHUNK))]
    records = _allocate(n_visits, n_features, n_static, None if skewed else codes_per_visit, rank, streams)
    for chunk, stream in enumerate(streams):
        first, last = chunk * CHUNK, min((chunk + 1) * CHUNK, n_patients)
        _fill_chunk(first, last, plan, records, stream)
    labels = draw_labels(shares(records.W) @ plan.risk, CASE_SHARE, rng)
    cohort = Cohort(
        sparse.csr_array((records.data, records.indices, records.indptr), (len(records.times), n_features)),
        records.offsets,
        records.static,
        visit_times=records.times,
        feature_names=_numbered("code", n_features, 3),
        static_names=_numbered("static", n_static, 2),
        labels=labels,
    )
    V = plan.V / np.linalg.norm(plan.V, axis=0)
    return cohort, Truth(V=V, F=plan.F * static_scale(records.W), W=records.W, labels=labels)


def _check(
    n_patients: int,
    n_features: int,
    n_static: int,
    mean_visits: float,
    codes_per_visit: float,
    rank: int,
    separation: float,
) -> None:
    for name, value in {"n_patients": n_patients, "n_static": n_static, "rank": rank}.items():
        check_integer(name, value, min=1)
    check_integer("n_features", n_features, min=2)
    if n_features < rank:
        raise InputError("n_features must be at least rank: every phenotype needs a code of its own.")
    check_number("mean_visits", mean_visits, min=MIN_VISITS, max=10_000)
    check_number("codes_per_visit", codes_per_visit, min=1, max=n_features / 2)
    check_number("separation", separation, max=1)


def _draw_plan(
    n_features: int, n_static: int, rank: int, separation: float, lengths: str, rng: np.random.Generator
) -> Plan:
    draw = _draw_overlapping if lengths == "skewed" else _draw_disjoint
    own = draw(n_features, rank, rng)
    V = separation * own + (1 - separation) * own.mean(axis=1, keepdims=True)
    typical = rng.random((n_static, rank)) < 0.25
    levels = np.where(typical, rng.uniform(0.6, 0.9, typical.shape), rng.uniform(0.05, 0.25, typical.shape))
    F = separation * levels + (1 - separation) * levels.mean(axis=1, keepdims=True)
    background = rng.permutation(_zipf(n_features))
    cumulative = np.cumsum(np.column_stack([V, background]).T, axis=1)
    risk = rng.normal(0.0, 1.5, rank)
    chances, activity = ACTIVE_CHANCES[lengths], BACKGROUND_ACTIVITY[lengths]
    return Plan(V, F, cumulative / cumulative[:, -1:], risk, chances, activity)


def _draw_disjoint(n_features: int, rank: int, rng: np.random.Generator) -> Array:
    own = np.zeros((n_features, rank))
    for r, codes in enumerate(np.array_split(rng.permutation(n_features), rank)):
        own[codes, r] = _signature(codes.size)
    return own


def _draw_overlapping(n_features: int, rank: int, rng: np.random.Generator) -> Array:
    return rng.dirichlet(np.full(n_features, SKEWED_CONCENTRATION), rank).T


def _signature(n_codes: int) -> Array:
    """Ten core codes have most of the probability of a phenotype; its other codes share a tenth of it."""
    core = np.linspace(1.0, 0.3, min(n_codes, CORE_CODES))
    n_tail = n_codes - core.size
    if n_tail == 0:
        return core / core.sum()
    return np.concatenate([0.9 * core / core.sum(), np.full(n_tail, 0.1 / n_tail)])


def _zipf(n_codes: int) -> Array:
    weights = 1.0 / (np.arange(n_codes) + 8.0)
    return weights / weights.sum()


def _draw_visit_counts(n_patients: int, mean_visits: float, rng: np.random.Generator) -> NDArray[np.int64]:
    more = rng.negative_binomial(2, 2 / (2 + mean_visits - MIN_VISITS), n_patients)
    return np.minimum(MIN_VISITS + more, round(MAX_VISITS_PER_MEAN * mean_visits))


def _draw_skewed_counts(n_patients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    counts = np.round(SKEWED_MEDIAN * np.exp(SKEWED_SPREAD * rng.standard_normal(n_patients)))
    return np.clip(counts, 1, SKEWED_MAX).astype(np.int64)


def _allocate(
    n_visits: NDArray[np.int64],
    n_features: int,
    n_static: int,
    codes_per_visit: float | None,
    rank: int,
    streams: list[np.random.Generator],
) -> Records:
    """Draw the number of codes of each visit, which determines all sizes, and allocate the arrays."""
    n_patients = len(n_visits)
    offsets = np.concatenate([[0], np.cumsum(n_visits)])
    indptr = np.zeros(offsets[-1] + 1, np.int64)
    for chunk, stream in enumerate(streams):
        first, last = offsets[chunk * CHUNK], offsets[min((chunk + 1) * CHUNK, n_patients)]
        n_codes = _draw_code_counts(last - first, codes_per_visit, stream)
        indptr[first + 1 : last + 1] = np.minimum(n_codes, n_features)
    np.cumsum(indptr, out=indptr)
    width = np.int32 if indptr[-1] <= np.iinfo(np.int32).max else np.int64
    return Records(
        np.empty(indptr[-1], np.float32),
        np.empty(indptr[-1], width),
        indptr.astype(width),
        offsets,
        np.empty(offsets[-1], np.int32),
        np.empty((n_patients, n_static), np.float32),
        np.empty((n_patients, rank)),
    )


def _draw_code_counts(
    n_visits: int, codes_per_visit: float | None, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The number of codes of each visit: one and more around a mean, or 3 to 7 where None is given."""
    if codes_per_visit is None:
        return rng.integers(SKEWED_CODES[0], SKEWED_CODES[1] + 1, n_visits)
    return 1 + rng.poisson(codes_per_visit - 1, n_visits)


def _fill_chunk(first: int, last: int, plan: Plan, records: Records, rng: np.random.Generator) -> None:
    rank = plan.V.shape[1]
    strength = _draw_memberships(last - first, rank, plan.active, rng)
    kind = rng.integers(4, size=strength.shape)
    peak = rng.random(strength.shape)
    _draw_visits(rng, first, strength, kind, peak, plan.cumulative, plan.background, records)
    W = records.W[first:last]
    W *= MEAN_COUNT * np.linalg.norm(plan.V, axis=0)
    share = shares(W)
    chances = np.where(share.any(axis=1, keepdims=True), share @ plan.F.T, plan.F.mean(axis=1))
    records.static[first:last] = rng.random(chances.shape) < chances


def _draw_memberships(
    n_patients: int, rank: int, chances: tuple[float, ...], rng: np.random.Generator
) -> Array:
    """Strengths of up to three phenotypes per patient; the others are zero."""
    order = rng.random((n_patients, rank)).argsort(axis=1)[:, : len(chances)]
    has = rng.random(order.shape) < np.array(chances[:rank])
    strength = np.zeros((n_patients, rank))
    np.put_along_axis(strength, order, has * rng.uniform(0.3, 1.0, order.shape), axis=1)
    return strength


@kernel(allocates=True)
def _draw_visits(
    rng: np.random.Generator,
    first: int,
    strength: Array,
    kind: NDArray[np.int64],
    peak: Array,
    cumulative: Array,
    background: float,
    records: Records,
) -> None:
    """Fill the visits of the patients from `first` on, and W with the norms of their expected codes."""
    activity = np.zeros(strength.shape[1])
    for p in range(len(strength)):
        start, stop = records.offsets[first + p], records.offsets[first + p + 1]
        gap = max(0.0, WINDOW_DAYS / (stop - start) - 1.0)
        active = np.flatnonzero(strength[p])
        norms = records.W[first + p]
        norms[:] = 0.0
        day = 0
        for i in range(start, stop):
            day += 1 + int(rng.standard_exponential() * gap)
            records.times[i] = day
            time = (i - start + 0.5) / (stop - start)
            for r in active:
                activity[r] = strength[p, r] * _course(kind[p, r], peak[p, r], time)
            begin, end = records.indptr[i], records.indptr[i + 1]
            _draw_codes(rng, activity, cumulative, background, records.indices[begin:end])
            for n in range(begin, end):
                records.data[n] = _draw_count(rng)
            norms += ((end - begin) * activity / (activity.sum() + background)) ** 2
        norms[:] = np.sqrt(norms)
        activity[:] = 0.0


@part(allocates=True)
def _course(kind: int, peak: float, time: float) -> float:
    """Rising, falling, an episode, or steady."""
    if kind == 0:
        return 0.1 + 0.9 * time
    if kind == 1:
        return 1.0 - 0.9 * time
    if kind == 2:
        return 0.05 + 0.95 * np.exp(-0.5 * ((time - peak) / 0.15) ** 2)
    return 0.6


@part(allocates=True)
def _draw_codes(
    rng: np.random.Generator,
    activity: Array,
    cumulative: Array,
    background: float,
    codes: NDArray[np.integer],
) -> None:
    """Fill `codes` with distinct codes in ascending order; repeated codes are redrawn."""
    rank = len(activity)
    total = activity.sum() + background
    for filled in range(len(codes)):
        position, code = 0, 0
        for _ in range(MAX_REDRAWS):
            r, left = 0, rng.random() * total
            while r < rank and left >= activity[r]:
                left -= activity[r]
                r += 1
            code = int(np.searchsorted(cumulative[r], rng.random(), side="right"))
            position = int(np.searchsorted(codes[:filled], code))
            if position == filled or codes[position] != code:
                break
        else:  # the active phenotypes have almost no unused codes: take the first unused one of all
            position = 0
            while position < filled and codes[position] == position:
                position += 1
            code = position
        for n in range(filled, position, -1):
            codes[n] = codes[n - 1]
        codes[position] = code


@part(allocates=True)
def _draw_count(rng: np.random.Generator) -> int:
    u = rng.random()
    if u < COUNT_CHANCES[0]:
        return 1
    return 2 if u < COUNT_CHANCES[0] + COUNT_CHANCES[1] else 3


def _numbered(word: str, n: int, digits: int) -> list[str]:
    return [f"{word}_{i:0{digits}d}" for i in range(1, n + 1)]
