"""SPARTan: PARAFAC2 for large sparse data.

I. Perros, E. E. Papalexakis, F. Wang, R. Vuduc, E. Searles, M. Thompson, J. Sun: "SPARTan: Scalable PARAFAC2 for
large & sparse data", KDD 2017.
"""

from collections.abc import Callable
from typing import Any, Literal

from phenotaste.baselines._parafac2 import ExactParafac2
from phenotaste.core import loop
from phenotaste.core.parafac2 import kernels
from phenotaste.core.parafac2 import loop as parafac2_loop


class Spartan(ExactParafac2):
    """PARAFAC2 of sparse visits, X_k ≈ Q_k H diag(w_k) Vᵀ with Q_kᵀQ_k = I (Perros et al. 2017).

    V and W are non-negative; the courses U_k = Q_k H may have any sign (TASTE adds their non-negativity).
    Static features are not used. Alternating least squares: Q_k by orthogonal Procrustes, H by least squares, V and W
    by exact NNLS; all products run over the non-zeros of X_k only. After ten plain iterations, later ones start from
    extrapolated factors, as in TASTE, and never raise the objective. A patient with fewer visits than phenotypes is
    padded with empty visits, which keeps the objective well defined and non-increasing.

    Parameters
    ----------
    rank : number of phenotypes.
    nonnegative : False gives plain PARAFAC2, with V and W of any sign.
    init : V from a quick "nmf" of visit-summed counts, or "random". With "nmf" every second start is random.
    n_init, max_iter, tol, n_jobs, random_state, callback, verbose : as for TASTE.

    Attributes
    ----------
    Those of TASTE; F_ is None, lam_eff_ and mu_k_ are zero. H_ and V_ have unit columns. The last entry
    of loss_curve_ is the squared error of the returned factors.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = baselines.Spartan(rank=4, random_state=0).fit(cohort)
    >>> model.W_.shape, model.V_.shape, round(model.cpi_, 3)
    ((20, 4), (30, 4), 1.0)
    """

    def __init__(
        self,
        rank: int = 5,
        *,
        nonnegative: bool = True,
        init: Literal["nmf", "random"] = "nmf",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-5,
        n_jobs: int | None = None,
        random_state: Any = None,
        callback: Callable[[loop.Progress], object] | None = None,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.nonnegative = nonnegative
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    def _updates(self) -> parafac2_loop.Updates:
        return parafac2_loop.AlternatingLeastSquares(self.nonnegative)

    def _score_solver(self, fitting: bool) -> kernels.ScoreSolver:
        method = kernels.NONNEGATIVE if self.nonnegative else kernels.UNCONSTRAINED
        return kernels.ScoreSolver(method, admm_steps=1)
