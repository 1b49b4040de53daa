"""SUSTain: CP of patients × A × B counts with small integers as factors (Perros et al. 2018, KDD)."""

from typing import Any, ClassVar

import numpy as np

from phenotaste.baselines._tensor import DEFAULT_MODES, TensorFit, TensorModel
from phenotaste.core.cp import nonnegative, sustain
from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.records import Array


class SUSTain(TensorModel):
    """CP factorisation whose scores and definitions are integers from 0 to `max_score` (Perros et al. 2018, KDD).

    Minimises ‖T − Σ_r λ_r w_r∘a_r∘b_r‖² over λ > 0 and integers in W, A and B, where T_kab is the number of visits of
    patient k that contain feature a of the first mode and b of the second. Columns and their scales λ are updated in
    turn in closed form, so the error never increases. New patients get integers by the same updates under fixed A, B
    and λ, each on its own.

    Parameters
    ----------
    rank : number of phenotypes.
    modes : the features of A and those of B, each a prefix of their names or a list of names.
    max_score : the largest integer.
    n_init : number of random starts, of which the one with the lowest error is kept.
    max_iter, tol : maximum iterations of a start, and the relative decrease of the error below which it has converged.
    random_state : an integer for reproducible starts.

    Attributes
    ----------
    A_, B_, W_ : integers, as floating-point numbers: definitions in each mode, and scores.
    scales_ : λ.
    V_ : both definitions in one matrix of features × rank, with unit columns; F_ is None.
    loss_curve_ : the squared error after each iteration of the winning start.

    Examples
    --------
    >>> import numpy as np
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=100)
    >>> model = baselines.SUSTain(rank=3, n_init=1, random_state=0).fit(cohort)
    >>> np.unique(model.A_).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """

    _arrays: ClassVar[tuple[str, ...]] = (*TensorModel._arrays, "scales_")
    _counts: ClassVar[tuple[str, ...]] = (*TensorModel._counts, "max_score")

    scales_: Array

    def __init__(
        self,
        rank: int = 5,
        *,
        modes: Any = DEFAULT_MODES,
        max_score: int = 5,
        n_init: int = 4,
        max_iter: int = 200,
        tol: float = 1e-5,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.modes = modes
        self.max_score = max_score
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _fit_counts(self, counts: Counts, rng: np.random.Generator) -> TensorFit:
        start = nonnegative.random_start(counts.shape, self.rank, rng)
        model, losses, outcome = sustain.fit(counts, start, self.max_score, self.max_iter, self.tol)
        W = sustain.project(counts, model, self.max_score)
        return TensorFit(model.factors._replace(W=W), losses, outcome, {"scales_": model.scales})

    def _score_counts(self, counts: Counts) -> Array:
        factors = Factors(np.zeros((0, self.rank)), self.A_, self.B_)
        return sustain.project(counts, sustain.IntegerFactors(factors, self.scales_), self.max_score)

    def _sizes(self, W: Array) -> Array:
        """The norm of λ_r w_r a_r∘b_r: the integers of two phenotypes have no scale in common."""
        return W * self.scales_ * np.linalg.norm(self.A_, axis=0) * np.linalg.norm(self.B_, axis=0)

    def _fit_without_counts(self, shape: tuple[int, int, int]) -> TensorFit:
        K, n_a, n_b = shape
        factors = Factors(np.zeros((K, self.rank)), np.ones((n_a, self.rank)), np.ones((n_b, self.rank)))
        fit = super()._fit_without_counts(shape)
        return fit._replace(factors=factors, more={"scales_": np.ones(self.rank)})

    def _check_fitted(self) -> None:
        super()._check_fitted()
        for factor in (self.A_, self.B_):
            if not np.isin(factor, np.arange(self.max_score + 1)).all():
                raise ValueError("A or B")
        if self.scales_.shape != (self.rank,) or not (self.scales_ > 0).all():
            raise ValueError("scales")
