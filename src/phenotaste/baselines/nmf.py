"""Non-negative matrix factorisation of patients' sums, of which scikit-learn is the engine.

D. D. Lee, H. S. Seung: "Learning the parts of objects by non-negative matrix factorization", Nature 1999 (et al. 2001
for the Kullback–Leibler divergence).
"""

import warnings
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from phenotaste.baselines._pooled import Found, Pooled, Visits
from phenotaste.core.kernels.nnls import solve_rows_bpp
from phenotaste.core.loop import Outcome
from phenotaste.core.poisson import CsrCounts, project_rows
from phenotaste.core.records import Array


class PatientNMF(Pooled):
    """Non-negative matrix factorisation of the sums of each patient's visits (Lee & Seung 1999; et al. 2001).

    What most users try first: the order of visits and what occurs in the same visit are not used. New patients are
    scored exactly, each on its own.

    Parameters
    ----------
    rank : number of phenotypes.
    loss : "frobenius", squared errors, or "kullback-leibler", the likelihood of Poisson counts.
    n_init : number of random starts, of which the one with the lowest loss is kept.
    max_iter, tol : as for scikit-learn's NMF.
    random_state : an integer for reproducible starts.

    Attributes
    ----------
    V_, W_ : definitions with unit columns, and scores; F_ is None.
    loss_curve_ : the final loss of the winning start.

    Examples
    --------
    >>> from phenotaste import baselines, metrics, simulate
    >>> cohort, truth = simulate.ehr(300, n_features=30, rank=3, random_state=1)
    >>> model = baselines.PatientNMF(rank=3, random_state=0).fit(cohort)
    >>> bool(metrics.matched_similarity(truth.V, model.V_) > 0.9)
    True
    """

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {"loss": ("frobenius", "kullback-leibler")}

    def __init__(
        self,
        rank: int = 5,
        *,
        loss: Literal["frobenius", "kullback-leibler"] = "frobenius",
        n_init: int = 4,
        max_iter: int = 1000,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.loss = loss
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _rows(self, visits: Visits) -> Any:
        """What is factorised."""
        return visits.sums()

    def _find(self, visits: Visits, rng: np.random.Generator) -> Found:
        X = self._rows(visits)
        solver = "cd" if self.loss == "frobenius" else "mu"
        engine = NMF(
            self.rank,
            init="random",
            solver=solver,
            beta_loss=self.loss,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=int(rng.integers(2**31)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            W = engine.fit_transform(X)
        outcome = Outcome.CONVERGED if engine.n_iter_ < self.max_iter else Outcome.MAX_ITER
        norms = np.linalg.norm(engine.components_, axis=1)
        V = engine.components_.T / np.where(norms > 0, norms, 1.0)
        return Found(V, W * norms, [float(engine.reconstruction_err_)], outcome)

    def _scores(self, visits: Visits) -> Array:
        return row_scores(self._rows(visits), self.V_, self.loss)


def row_scores(X: Any, V: Array, loss: str) -> Array:
    """The scores of each row of sparse X under fixed definitions, to the minimum."""
    W = np.zeros((X.shape[0], V.shape[1]))
    if loss == "frobenius":
        solve_rows_bpp(V.T @ V, X @ V, W)
        return W
    sizes = V.sum(axis=0)
    counts = CsrCounts(X.data.astype(np.float64), X.indices.astype(np.int32), X.indptr.astype(np.int64))
    project_rows(counts, V / np.where(sizes > 0, sizes, 1.0), W, 1e-8, 1000)
    return W / np.where(sizes > 0, sizes, 1.0)
