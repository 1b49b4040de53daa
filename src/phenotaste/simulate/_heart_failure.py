"""The paper's heart-failure cohort, simulated: its five phenotypes planted in visits, static features and labels."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from phenotaste.cohort import Cohort
from phenotaste.simulate import paper_phenotypes as names
from phenotaste.simulate._common import (
    Array,
    RandomState,
    Truth,
    draw_labels,
    generator,
    shares,
    static_scale,
)
from phenotaste.validation import check_integer, check_number

Integers = NDArray[np.int64]

WINDOW_DAYS = 730
FIRST_WINDOW = np.datetime64("2008-01-01")
WINDOW_STARTS_WITHIN_DAYS = 4 * 365
MIN_VISITS, MEAN_VISITS, MAX_VISITS = 5, 29, 60

# Frequency of each phenotype as a patient's main one; the paper calls hypertensive heart failure dominant.
MAIN_PHENOTYPE = (0.19, 0.25, 0.19, 0.19, 0.18)
SECOND_PHENOTYPE = 0.35
NO_PHENOTYPE = 0.06

# Probability of the levels that the table lists, in every static group with listed levels.
LISTED_LEVELS = 0.75

# Codes that are independent of the phenotypes. The most common one occurs at 2-3 % of the visits: under squared
# loss a code at every fifth visit would form a component of its own. Half of them are recurring complaints of the
# patient. Codes of the table occur without the phenotype too.
BACKGROUND_CODES_PER_VISIT = 1.5
ZIPF_SHIFT = 8
OWN_COMPLAINTS = 4
OWN_SHARE = 0.5
TABLE_CODE_SHARE = 0.01

# Logit of being a case: from the root mean square activity of each phenotype over the visits, and, weakly, from
# static features. Chosen for the strength of signal in the paper's Q3, where lasso logistic regression reaches AUC
# 0.743 on occurrence of codes and 0.750 with static features, and TASTE's scores 0.755. Measured here, 4-fold, mean
# of 6 seeds of 10 000 patients: 0.743 (0.733 to 0.759), 0.749, and rank 5 scores 0.759; 3 seeds of 35 000:
# 0.750, 0.756, 0.763.
CASE_SHARE = 0.092
PHENOTYPE_RISK = (5.5, 2.6, 0.7, 2.1, 4.2)
STATIC_RISK = {
    "Static_age_between_70_79": 0.25,
    "Static_age_greater_80": 0.5,
    "Static_male": 0.2,
    "Static_Smk_Yes": 0.4,
}
MAX_STATIC_RISK = 100.0  # a factor; far above, labels would depend on static features alone


def heart_failure(
    n_patients: int = 3000, random_state: RandomState = 0, *, static_risk: float = 1.0
) -> tuple[Cohort, Truth]:
    """Heart-failure cases and controls with the five phenotypes of the paper's table.

    Each patient has 5 to 60 visits in a window of two years, 178 diagnosis and 145 medication codes, one level
    of each of 7 static groups (22 levels), and a label: 9.2 % are cases. A patient has
    one or two phenotypes; 6 % have none. The activity of a phenotype rises, falls, has an episode or is constant; it is
    the probability that a visit belongs to the phenotype, and such a visit has each of its codes with a probability
    proportional to the table's weight. Static levels are drawn from the level probabilities of the phenotypes, mixed
    by the patient's score shares. The table prints only weights above 0.1: omitted levels share the rest of their group
    as in the population, and a few gaps are our additions. Background codes do not depend on phenotype, sex or age.

    `static_risk` scales the contribution of age, sex and smoking to the risk, which is small by default; at 0 labels
    depend on the phenotypes alone. It affects labels only.

    The truth is in the scale of a fitted model: columns of V, and of U in each patient, have unit norm, so that
    the expectation of X_k is U_k diag(W_k) Vᵀ plus background. F holds the level probabilities times the
    constant that makes W Fᵀ closest to the expectation of A.

    Examples
    --------
    >>> from phenotaste import simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=50, random_state=1)
    >>> cohort.shape, cohort.static.shape
    ((50, 323), (50, 22))
    >>> print(cohort.feature_names[truth.V[:, 0].argmax()])
    Dx_Cardiac dysrhythmias [106.]
    """
    check_integer("n_patients", n_patients, min=1)
    check_number("static_risk", static_risk, max=MAX_STATIC_RISK)
    rng = generator(random_state)
    offsets, patient, day = _draw_visits(n_patients, rng)
    activity = _draw_memberships(n_patients, rng)[patient] * _draw_courses(day / WINDOW_DAYS, patient, rng)
    chances = code_chances()
    visits = _draw_phenotype_codes(activity, chances, rng) + _draw_background_codes(patient, rng)

    norms = np.sqrt(np.add.reduceat(activity**2, offsets[:-1]))
    V, W = _unit_columns(chances), norms * np.linalg.norm(chances, axis=0)
    static = _draw_static(shares(W), rng)
    risk = _risk(norms / np.sqrt(np.diff(offsets))[:, None], static, static_risk)
    labels = draw_labels(risk, CASE_SHARE, rng)
    window = FIRST_WINDOW + rng.integers(WINDOW_STARTS_WITHIN_DAYS, size=n_patients)
    cohort = Cohort(
        visits,
        offsets,
        static,
        visit_times=window[patient] + day,
        feature_names=names.FEATURE_NAMES,
        static_names=names.STATIC_NAMES,
        labels=labels,
    )
    U = np.divide(activity, norms[patient], out=np.zeros_like(activity), where=activity > 0)
    return cohort, Truth(V=V, F=level_chances() * static_scale(W), W=W, labels=labels, U=U)


def code_chances() -> Array:
    """J × R: the probability of each code at a visit of the phenotype; 1 for its code of largest weight."""
    chances = np.zeros((len(names.FEATURE_NAMES), len(names.PHENOTYPES)))
    for r, weights in enumerate(names.TEMPORAL_WEIGHTS):
        for code, weight in weights.items():
            chances[names.FEATURE_NAMES.index(code), r] = weight / max(weights.values())
    return chances


def level_chances() -> Array:
    """P × R: the probability of each static level in patients with that phenotype only; sums to 1 in every group."""
    planted = [
        listed | completed
        for listed, completed in zip(names.STATIC_WEIGHTS, names.STATIC_COMPLETIONS, strict=True)
    ]
    groups = [[_group_chances(group, listed) for listed in planted] for group in names.STATIC_GROUPS]
    return np.concatenate([np.stack(columns, axis=1) for columns in groups])


def _group_chances(population: dict[str, float], listed: dict[str, float]) -> Array:
    """Listed levels by their weights; the other levels share the rest as in the population."""
    weight = np.array([listed.get(level, 0.0) for level in population])
    rest = np.array([0.0 if level in listed else share for level, share in population.items()])
    if not weight.any() or not rest.any():
        return (weight + rest) / (weight + rest).sum()
    return LISTED_LEVELS * weight / weight.sum() + (1 - LISTED_LEVELS) * rest / rest.sum()


def _draw_visits(n_patients: int, rng: np.random.Generator) -> tuple[Integers, Integers, Integers]:
    """Offsets, and for each visit its patient and its day in the window; days of a patient are distinct."""
    more = rng.negative_binomial(3, 3 / (3 + MEAN_VISITS - MIN_VISITS), n_patients)
    n_visits = np.minimum(MIN_VISITS + more, MAX_VISITS)
    offsets = np.concatenate([[0], np.cumsum(n_visits)])
    patient = np.repeat(np.arange(n_patients), n_visits)
    # Sorted draws with replacement plus 0, 1, 2, ... are sorted draws without.
    free = rng.integers(WINDOW_DAYS - n_visits[patient] + 1)
    free = free[np.lexsort((free, patient))]
    return offsets, patient, free + np.arange(patient.size) - offsets[patient]


def _draw_memberships(n_patients: int, rng: np.random.Generator) -> Array:
    """K × R strengths: a main phenotype, for some patients a second, weaker one, for a few none."""
    rank, patients = len(MAIN_PHENOTYPE), np.arange(n_patients)
    strength = np.zeros((n_patients, rank))
    main = rng.choice(rank, n_patients, p=MAIN_PHENOTYPE)
    second = (main + rng.integers(1, rank, n_patients)) % rank
    strength[patients, main] = rng.uniform(0.5, 1.0, n_patients)
    has_second = rng.random(n_patients) < SECOND_PHENOTYPE
    strength[patients, second] = has_second * rng.uniform(0.2, 0.8, n_patients)
    strength[rng.random(n_patients) < NO_PHENOTYPE] = 0.0
    return strength


def _draw_courses(time: Array, patient: Integers, rng: np.random.Generator) -> Array:
    """n_visits × R in (0, 1]: each phenotype of each patient rises, falls, has an episode, or is constant."""
    shape = (patient[-1] + 1, len(MAIN_PHENOTYPE))
    kind = rng.integers(4, size=shape)[patient]
    peak = rng.random(shape)[patient]
    t = time[:, None]
    rising = 0.25 + 0.75 * t
    falling = 1.0 - 0.75 * t
    episode = 0.15 + 0.85 * np.exp(-0.5 * ((t - peak) / 0.15) ** 2)
    return np.select([kind == 0, kind == 1, kind == 2], [rising, falling, episode], 0.7)


def _draw_phenotype_codes(activity: Array, chances: Array, rng: np.random.Generator) -> sparse.csr_array:
    rows, columns = [], []
    for r in range(activity.shape[1]):
        codes = np.flatnonzero(chances[:, r])
        visits = np.flatnonzero(rng.random(len(activity)) < activity[:, r])
        i, j = np.nonzero(rng.random((visits.size, codes.size)) < chances[codes, r])
        rows.append(visits[i])
        columns.append(codes[j])
    return _count(np.concatenate(rows), np.concatenate(columns), len(activity))


def _draw_background_codes(patient: Integers, rng: np.random.Generator) -> sparse.csr_array:
    """At least one code at every visit, from common codes or from the patient's recurring complaints."""
    share = _background_shares()
    n_codes = 1 + rng.poisson(BACKGROUND_CODES_PER_VISIT - 1, patient.size)
    visit = np.repeat(np.arange(patient.size), n_codes)
    common = rng.choice(share.size, visit.size, p=share)
    complaints = rng.choice(share.size, (patient[-1] + 1, OWN_COMPLAINTS), p=share)
    own = complaints[patient[visit], rng.integers(OWN_COMPLAINTS, size=visit.size)]
    return _count(visit, np.where(rng.random(visit.size) < OWN_SHARE, own, common), patient.size)


def _background_shares() -> Array:
    """The share of each code in the background: Zipf's law over diagnoses, and over medications."""
    rank_of = {
        code: i
        for block in (names.BACKGROUND_DIAGNOSES, names.BACKGROUND_MEDICATIONS)
        for i, code in enumerate(block)
    }
    zipf = np.array(
        [1 / (rank_of[code] + ZIPF_SHIFT) if code in rank_of else 0.0 for code in names.FEATURE_NAMES]
    )
    rest = 1 - TABLE_CODE_SHARE * len(names.TABLE_CODES)
    return np.where(zipf > 0, rest * zipf / zipf.sum(), TABLE_CODE_SHARE)


def _draw_static(share: Array, rng: np.random.Generator) -> Array:
    """K × P of 0 and 1: one level per group, from the phenotypes' probabilities mixed by the patient's shares."""
    chances, drawn, first = level_chances(), [], 0
    no_phenotype = share.sum(axis=1, keepdims=True) == 0
    for group in names.STATIC_GROUPS:
        population = np.array(list(group.values()))
        mixed = np.where(no_phenotype, population, share @ chances[first : first + len(group)].T)
        level = (rng.random((len(share), 1)) > np.cumsum(mixed, axis=1)[:, :-1]).sum(axis=1)
        drawn.append(np.eye(len(group))[level])
        first += len(group)
    return np.hstack(drawn)


def _risk(activity: Array, static: Array, static_risk: float) -> Array:
    risk = static_risk * np.array([STATIC_RISK.get(level, 0.0) for level in names.STATIC_NAMES])
    return activity @ np.array(PHENOTYPE_RISK) + static @ risk


def _count(rows: Integers, columns: Integers, n_visits: int) -> sparse.csr_array:
    shape = (n_visits, len(names.FEATURE_NAMES))
    return sparse.csr_array(sparse.coo_array((np.ones(rows.size), (rows, columns)), shape))


def _unit_columns(matrix: Array) -> Array:
    return matrix / np.linalg.norm(matrix, axis=0)
