"""Non-negative CP of patients × A × B counts by least squares, for phenotyping as by Zhao et al. 2019."""

from typing import Any

import numpy as np

from phenotaste.baselines._tensor import DEFAULT_MODES, TensorFit, TensorModel
from phenotaste.core.cp import nonnegative
from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.records import Array


class NonnegativeCP(TensorModel):
    """Non-negative CP factorisation by least squares (Zhao et al. 2019, JBI), without other constraints.

    Minimises ‖T − Σ_r w_r∘a_r∘b_r‖² over W, A, B ≥ 0, where T_kab is the number of visits of patient k that contain
    feature a of the first mode and b of the second. Each factor in turn is the exact minimum, so the error never
    increases. New patients are scored exactly, each on its own.

    Parameters
    ----------
    rank : number of phenotypes.
    modes : the features of A and those of B, each a prefix of their names or a list of names.
    n_init : number of random starts, of which the one with the lowest error is kept.
    max_iter, tol : maximum iterations of a start, and the relative decrease of the error below which it has converged.
    random_state : an integer for reproducible starts.

    Attributes
    ----------
    A_, B_ : definitions in each mode, with columns of length one.
    W_ : scores of the patients of the fit.
    V_ : both definitions in one matrix of features × rank, with unit columns; F_ is None.
    loss_curve_ : the squared error after each iteration of the winning start.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=100)
    >>> model = baselines.NonnegativeCP(rank=3, n_init=1, random_state=0).fit(cohort)
    >>> model.transform(cohort[:5]).shape
    (5, 3)
    """

    def __init__(
        self,
        rank: int = 5,
        *,
        modes: Any = DEFAULT_MODES,
        n_init: int = 4,
        max_iter: int = 500,
        tol: float = 1e-5,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.modes = modes
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _fit_counts(self, counts: Counts, rng: np.random.Generator) -> TensorFit:
        start = nonnegative.random_start(counts.shape, self.rank, rng)
        factors, losses, outcome = nonnegative.fit(counts, start, self.max_iter, self.tol)
        return TensorFit(factors._replace(W=nonnegative.project(counts, factors)), losses, outcome)

    def _score_counts(self, counts: Counts) -> Array:
        return nonnegative.project(counts, Factors(np.zeros((0, self.rank)), self.A_, self.B_))
