"""Records with one more phenotype that is hard to judge or to find: a nuisance in most patients, or a rare one."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from phenotaste.cohort import Cohort
from phenotaste.simulate._common import Array, RandomState, Truth, generator
from phenotaste.simulate._ehr import ehr
from phenotaste.validation import check_number

OWN_CODES, RARE_CODES = 20, 8
OTHER_CODES = 0.3  # the part of care intensity that is spread over the codes of the phenotypes
NO_CARE, CARE_SPREAD = 0.1, 0.7
NOISE = 0.002  # the chance of a rare code in a visit of a patient without the phenotype
MAX_COUNT = 3


def care_intensity(
    n_patients: int, rank: int = 5, intensity: float = 5.0, random_state: RandomState = 0
) -> tuple[Cohort, Truth]:
    """Records of `ehr` with a nuisance: how much is recorded of nine patients in ten, whatever they have.

    Its codes are twenty of its own and, with a third of the probability, all others; a visit has `intensity` of them
    on average, and a patient a rate of the log-normal kind. The nuisance is the last column of the truth, beside the
    `rank` phenotypes.

    Examples
    --------
    >>> from phenotaste import simulate
    >>> cohort, truth = simulate.care_intensity(50)
    >>> cohort.shape, truth.V.shape
    ((50, 80), (80, 6))
    """
    check_number("intensity", intensity)
    rng = generator(random_state)
    cohort, truth = ehr(n_patients, 60, 10, 12, rank=rank, random_state=rng)
    others = OTHER_CODES * rng.dirichlet(np.full(60, 0.5))
    own = rng.uniform(0.3, 1.0, OWN_CODES)
    chances = np.concatenate([others, (1 - OTHER_CODES) * own / own.sum()])
    spread = np.exp(CARE_SPREAD * rng.standard_normal(n_patients))
    rates = intensity * spread * (rng.random(n_patients) >= NO_CARE)
    return added(cohort, truth, draw_codes(rng, rates, cohort.offsets, chances), rates, chances, "care")


def rare_phenotype(
    n_patients: int, rank: int = 5, share: float = 0.03, random_state: RandomState = 0
) -> tuple[Cohort, Truth]:
    """Records of `ehr` with a phenotype that few patients have: eight codes of its own, one a visit on average.

    It is the last column of the truth, beside the `rank` phenotypes; each patient has it with the chance `share`.

    Examples
    --------
    >>> from phenotaste import simulate
    >>> cohort, truth = simulate.rare_phenotype(500)
    >>> cohort.shape, truth.V.shape, int((truth.W[:, -1] > 0).sum())
    ((500, 108), (108, 6), 12)
    """
    check_number("share", share, max=1)
    rng = generator(random_state)
    cohort, truth = ehr(n_patients, 100, 10, 12, rank=rank, random_state=rng)
    own = np.linspace(1.0, 0.4, RARE_CODES)
    chances = np.concatenate([np.zeros(100), own / own.sum()])
    rates = (rng.random(n_patients) < share).astype(float)
    codes = draw_codes(rng, rates, cohort.offsets, chances)
    noise = np.zeros(codes.shape)
    noise[:, 100:] = rng.random((len(noise), RARE_CODES)) < NOISE
    return added(cohort, truth, codes + sparse.csr_array(noise), rates, chances, "rare")


def draw_codes(
    rng: np.random.Generator, rates: Array, offsets: NDArray[np.integer], chances: Array
) -> sparse.csr_array:
    """Visits × codes: a Poisson number of codes at the rate of the patient, drawn independently."""
    numbers = rng.poisson(np.repeat(rates, np.diff(offsets)))
    visits = np.repeat(np.arange(len(numbers)), numbers)
    codes = rng.choice(len(chances), len(visits), p=chances)
    return sparse.csr_array((np.ones(len(visits)), (visits, codes)), (len(numbers), len(chances)))


def added(
    cohort: Cohort, truth: Truth, codes: sparse.csr_array, rates: Array, chances: Array, word: str
) -> tuple[Cohort, Truth]:
    """The cohort with more codes, and the truth with one more column."""
    J, new = cohort.n_features, len(chances) - cohort.n_features
    wide = sparse.csr_array((cohort.visits.data, cohort.visits.indices, cohort.visits.indptr), codes.shape)
    visits = (wide + codes).tocsr()
    visits.data = np.minimum(visits.data, MAX_COUNT)
    assert cohort.feature_names is not None
    names = [*map(str, cohort.feature_names), *(f"{word}_{j + 1:02d}" for j in range(new))]
    made = Cohort(
        visits,
        cohort.offsets,
        cohort.static,
        visit_times=cohort.visit_times,
        feature_names=names,
        static_names=cohort.static_names,
        labels=cohort.labels,
    )
    size = float(np.linalg.norm(chances))
    V = np.zeros((J + new, truth.V.shape[1] + 1))
    V[:J, :-1], V[:, -1] = truth.V, chances / size
    W = np.column_stack([truth.W, rates * size * np.sqrt(np.diff(cohort.offsets))])
    F = np.column_stack([truth.F, np.zeros(len(truth.F))])
    return made, replace(truth, V=V, F=F, W=W)
