"""Limestone: phenotypes from a Poisson factorisation (CP-APR) of a tensor of co-occurrences, without small entries.

J. C. Ho, J. Ghosh, S. R. Steinhubl, W. F. Stewart, J. C. Denny, B. A. Malin, J. Sun: "Limestone: high-throughput
candidate phenotype generation via tensor factorization", J. Biomed. Inform. 2014. The text was not available: after its
abstract and descriptions of others. CP-APR is that of Chi & Kolda 2012 and was compared with pyttb.
"""

from typing import Any

import numpy as np

from phenotaste.baselines._poisson_tensor import PoissonTensorModel
from phenotaste.baselines._tensor import DEFAULT_MODES, TensorFit
from phenotaste.core.cp.apr import cp_apr, random_start, zero_small
from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.records import Array


class Limestone(PoissonTensorModel):
    """Poisson factorisation of patients × A × B counts, entries below a threshold zeroed (Ho et al. 2014).

    An entry of the tensor is the number of visits of a patient that contain both a feature of A and one of B, such as a
    diagnosis and a medication. New patients are scored by maximum likelihood, each on its own.

    Parameters
    ----------
    rank : number of phenotypes.
    modes : A and B, each a prefix of feature names or a list of feature names.
    threshold : entries of A_ and B_ below it are set to zero; the largest of a phenotype always remains.
    n_init : number of random starts, of which the one with the lowest loss is kept.
    max_iter : maximum iterations per start, of up to ten updates of each factor.
    tol : a fit ends when the loss changes by less than this part of it; 0 to end by `kkt_tol` alone.
    kkt_tol : a fit ends when the largest violation of the optimality conditions is below it.
    random_state : an integer for reproducible starts.
    n_jobs : number of threads, by default one for each available core; it does not change the result.

    Attributes
    ----------
    A_, B_ : definitions, with columns that sum to one; a score is the expected number of co-occurrences.
    V_, W_ : definitions with unit columns, half of A_ and half of B_, and scores; F_ is None.
    loss_curve_ : the Kullback–Leibler divergence after each iteration of the winning start, before zeroing.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> model = baselines.Limestone(rank=5, n_init=1, random_state=0).fit(cohort)
    >>> model.A_.shape, model.B_.shape
    ((178, 5), (145, 5))
    """

    def __init__(
        self,
        rank: int = 5,
        *,
        modes: Any = DEFAULT_MODES,
        threshold: float = 0.01,
        n_init: int = 4,
        max_iter: int = 200,
        tol: float = 1e-5,
        kkt_tol: float = 1e-4,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.rank = rank
        self.modes = modes
        self.threshold = threshold
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.kkt_tol = kkt_tol
        self.random_state = random_state
        self.n_jobs = n_jobs

    def _fit_counts(self, counts: Counts, rng: np.random.Generator) -> TensorFit:
        with self._passes(counts) as passes:
            found = cp_apr(passes, random_start(counts.shape, self.rank, rng), self._options())
        A, B = (zero_small(factor, self.threshold) for factor in found.factors[1:])
        return TensorFit(Factors(self._project(counts, A, B), A, B), found.losses, found.outcome)

    def _score_counts(self, counts: Counts) -> Array:
        return self._project(counts, self.A_, self.B_)
