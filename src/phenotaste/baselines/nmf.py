"""Non-negative matrix factorisation of patients' sums, or of visits, of which scikit-learn is the engine.

D. D. Lee, H. S. Seung: "Learning the parts of objects by non-negative matrix factorization", Nature 1999, and
"Algorithms for non-negative matrix factorization", NIPS 2000.
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

SCORE_TOL, SCORE_MAX_ITER = 1e-8, 1000  # of expectation–maximisation, for each row


class _NMF(Pooled):
    """What both methods share: they differ in the rows that are factorised."""

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

    def _factorise(self, X: Any, rng: np.random.Generator) -> Found:
        """One start; W has a row for each row of X."""
        engine = NMF(
            self.rank,
            init="random",
            solver="cd" if self.loss == "frobenius" else "mu",
            beta_loss=self.loss,
            max_iter=self.max_iter,
            tol=self.tol,
            random_state=int(rng.integers(2**31)),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # `outcome_` reports it, as for all methods
            W = engine.fit_transform(X)
        outcome = Outcome.CONVERGED if engine.n_iter_ < self.max_iter else Outcome.MAX_ITER
        norms = np.linalg.norm(engine.components_, axis=1)
        V = engine.components_.T / np.where(norms > 0, norms, 1.0)
        return Found(V, W * norms, [float(engine.reconstruction_err_)], outcome, n_iter=int(engine.n_iter_))


class PatientNMF(_NMF):
    """Non-negative matrix factorisation of the sums of each patient's visits (Lee & Seung 1999, 2000).

    What most users try first: the order of visits and what occurs in the same visit are not used. New patients are
    scored under the fitted definitions until convergence, each on their own.

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

    codes_occur_in = "records"

    def _find(self, visits: Visits, rng: np.random.Generator) -> Found:
        return self._factorise(visits.sums(), rng)

    def _scores(self, visits: Visits) -> Array:
        return row_scores(visits.sums(), self.V_, self.loss)


class VisitNMF(_NMF):
    """Non-negative matrix factorisation of visits (Lee & Seung 1999, 2000); scores are sums over a patient's visits.

    Which visits belong to one patient is not used in the fit: codes form a phenotype if they occur in the same visit.

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
    >>> model = baselines.VisitNMF(rank=3, random_state=0).fit(cohort)
    >>> bool(metrics.matched_similarity(truth.V, model.V_) > 0.9)
    True
    """

    def _find(self, visits: Visits, rng: np.random.Generator) -> Found:
        found = self._factorise(visits.X.astype(np.float64), rng)
        return found._replace(W=visits.add_up(found.W))

    def _scores(self, visits: Visits) -> Array:
        return np.asarray(visits.add_up(row_scores(visits.X, self.V_, self.loss)))


def row_scores(X: Any, V: Array, loss: str) -> Array:
    """The scores of each row of sparse X under fixed definitions that minimise its loss."""
    W = np.zeros((X.shape[0], V.shape[1]))
    if loss == "frobenius":
        solve_rows_bpp(V.T @ V, np.asarray(X @ V, np.float64), W)
        return W
    sizes = V.sum(axis=0)
    sizes = np.where(sizes > 0, sizes, 1.0)
    counts = CsrCounts(X.data.astype(np.float64), X.indices.astype(np.int32), X.indptr.astype(np.int64))
    project_rows(counts, V / sizes, W, SCORE_TOL, SCORE_MAX_ITER)
    return W / sizes
