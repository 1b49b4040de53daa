"""Granite: Poisson CP of patients × A × B counts with distinct, sparse definitions (Henderson et al. 2017, ICHI)."""

from typing import Any, ClassVar

import numpy as np

from phenotaste.baselines._tensor import DEFAULT_MODES, TensorFit, TensorModel
from phenotaste.core.cp import granite
from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.records import Array
from phenotaste.validation import check_number

PROJECTION_TOL = 1e-8  # of a patient's counts
PROJECTION_STEPS = 1000


class Granite(TensorModel):
    """Poisson CP factorisation with an angular penalty and columns on the simplex (Henderson et al. 2017, ICHI).

    Minimises the divergence Σ x log(x/m) − x + m of the counts x from m = Σ_r w_r∘a_r∘b_r, plus
    N diversity/2 Σ max(0, cosine − max_cosine)² over the pairs of columns of A and those of B, where x_kab is the
    number of visits of patient k that contain feature a of the first mode and b of the second, and N = Σ x. Columns of
    A and B are projected onto the simplex: non-negative, with sum one, and exactly zero where the likelihood and the
    penalty do not need an entry. The objective never increases. New patients are scored by maximum likelihood, each on
    its own.

    Parameters
    ----------
    rank : number of phenotypes.
    modes : the features of A and those of B, each a prefix of their names or a list of names.
    diversity : weight of the angular penalty, relative to the number of counts; 0 for none.
    max_cosine : cosines up to this are not penalised.
    n_init : number of random starts, of which the one with the lowest objective is kept.
    max_iter, tol : maximum iterations of a start, and the relative decrease of the objective below which it has
        converged.
    random_state : an integer for reproducible starts.

    Attributes
    ----------
    A_, B_ : definitions in each mode; columns sum to one.
    W_ : scores of the patients of the fit, the expected number of counts of each phenotype.
    V_ : both definitions in one matrix of features × rank, with unit columns; F_ is None.
    loss_curve_ : the objective after each iteration of the winning start.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=100)
    >>> model = baselines.Granite(rank=3, n_init=1, random_state=0).fit(cohort)
    >>> model.A_.sum(axis=0).round(6).tolist()
    [1.0, 1.0, 1.0]
    """

    _amounts: ClassVar[tuple[str, ...]] = (*TensorModel._amounts, "diversity")

    def __init__(
        self,
        rank: int = 5,
        *,
        modes: Any = DEFAULT_MODES,
        diversity: float = 1.0,
        max_cosine: float = 0.3,
        n_init: int = 4,
        max_iter: int = 500,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.modes = modes
        self.diversity = diversity
        self.max_cosine = max_cosine
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _check_settings(self) -> None:
        super()._check_settings()
        check_number("max_cosine", self.max_cosine, max=1)

    def _fit_counts(self, counts: Counts, rng: np.random.Generator) -> TensorFit:
        start = granite.random_start(counts, self.rank, rng)
        penalty = granite.Penalty(self.diversity * float(counts.values.sum()), self.max_cosine)
        (_, A, B), losses, outcome = granite.fit(counts, start, penalty, self.max_iter, self.tol)
        return TensorFit(Factors(maximum_likelihood(counts, A, B), A, B), losses, outcome)

    def _score_counts(self, counts: Counts) -> Array:
        return maximum_likelihood(counts, self.A_, self.B_)


def maximum_likelihood(counts: Counts, A: Array, B: Array) -> Array:
    """The scores of patients, converged."""
    return granite.project(counts, A, B, PROJECTION_STEPS, PROJECTION_TOL)
