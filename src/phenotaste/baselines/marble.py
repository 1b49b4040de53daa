"""Marble: Limestone's model with a rank-one bias for what all patients share, and a threshold that grows in the fit.

J. C. Ho, J. Ghosh, J. Sun: "Marble: high-throughput phenotyping from electronic health records via sparse nonnegative
tensor factorization", KDD 2014. The text was not available: after its abstract and a public implementation of others
(hu-i-oop/MarbleNNTF).
"""

from typing import Any, ClassVar

import numpy as np

from phenotaste.baselines._poisson_tensor import PoissonTensorModel
from phenotaste.baselines._tensor import DEFAULT_MODES, TensorFit
from phenotaste.core.cp import bias
from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.records import Array


class Marble(PoissonTensorModel):
    """Poisson factorisation of patients × A × B counts with a rank-one bias (Ho, Ghosh & Sun 2014).

    The bias, u ∘ c ∘ d with positive entries, takes what is common to all patients, so that phenotypes need few
    features. The threshold of their entries grows during the fit. New patients are scored by maximum likelihood, each
    on its own, together with their share of the bias.

    Parameters
    ----------
    rank : number of phenotypes, without the bias.
    modes : A and B, each a prefix of feature names or a list of feature names.
    threshold : final threshold of entries of A_ and B_, below which they are zero; the largest always remains.
    n_init : number of random starts, of which the one with the lowest loss is kept.
    max_iter : maximum iterations per start, of up to ten updates of each factor and of its bias.
    tol : a fit ends when the loss changes by less than this part of it; 0 to end by `kkt_tol` alone.
    kkt_tol : a fit ends when the largest violation of the optimality conditions is below it.
    random_state : an integer for reproducible starts.
    n_jobs : number of threads, by default one for each available core; it does not change the result.

    Attributes
    ----------
    A_, B_ : definitions, with columns that sum to one; a score is the expected number of co-occurrences.
    bias_A_, bias_B_ : the bias of the features, c and d, which sum to one.
    V_, W_ : definitions with unit columns, half of A_ and half of B_, and scores, without the bias; F_ is None.
    loss_curve_ : the Kullback–Leibler divergence after each iteration; it may rise as the threshold grows.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> model = baselines.Marble(rank=5, n_init=1, random_state=0).fit(cohort)
    >>> bool((model.bias_A_ > 0).all()), bool((model.A_ > 0).mean() < 0.2)
    (True, True)
    """

    _arrays: ClassVar[tuple[str, ...]] = ("A_", "B_", "bias_A_", "bias_B_")

    bias_A_: Array
    bias_B_: Array

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
            start = bias.warm_start(passes, self.rank, self._options(), rng)
            found = bias.fit(passes, start, self.threshold, self._options())
        A, B = found.factors[1:]
        W = self._project(counts, A, B)
        more = {"bias_A_": A[:, -1].copy(), "bias_B_": B[:, -1].copy()}
        return TensorFit(Factors(W[:, :-1], A[:, :-1], B[:, :-1]), found.losses, found.outcome, more)

    def _fit_without_counts(self, shape: tuple[int, int, int]) -> TensorFit:
        more = {f"bias_{name}_": np.full(n, 1.0 / n) for name, n in zip("AB", shape[1:], strict=True)}
        return super()._fit_without_counts(shape)._replace(more=more)

    def _score_counts(self, counts: Counts) -> Array:
        A, B = (np.column_stack(parts) for parts in ((self.A_, self.bias_A_), (self.B_, self.bias_B_)))
        return np.ascontiguousarray(self._project(counts, A, B)[:, :-1])

    def _check_fitted(self) -> None:
        super()._check_fitted()
        for bias_of_mode, factor in ((self.bias_A_, self.A_), (self.bias_B_, self.B_)):
            if bias_of_mode.shape != (len(factor),) or not np.isfinite(bias_of_mode).all():
                raise ValueError("bias")
