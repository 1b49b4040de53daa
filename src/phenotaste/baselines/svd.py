"""Truncated singular value decomposition of patients' sums.

C. Eckart, G. Young: "The approximation of one matrix by another of lower rank", Psychometrika 1936.
"""

from typing import Any, ClassVar

import numpy as np
from scipy.sparse.linalg import svds

from phenotaste.baselines._pooled import Found, Pooled, Visits
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array


class PatientSVD(Pooled):
    """Truncated singular value decomposition of the sums of each patient's visits (Eckart & Young 1936).

    The best approximation of its rank in squared errors. Definitions are orthogonal, and their entries and the scores
    may be negative, so that a phenotype is a contrast of codes. The order of visits and what occurs in the same visit
    are not used. Columns are not centred.

    Parameters
    ----------
    rank : number of phenotypes.

    Attributes
    ----------
    V_ : right singular vectors, largest singular value first, with the sign that makes the largest entry positive; if
        the data have a lower rank, the remaining columns are zero.
    W_ : scores, X V; F_ is None.
    loss_curve_ : the root of the sum of squared errors.

    Examples
    --------
    >>> import numpy as np
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.ehr(300, n_features=30, rank=3, random_state=1)
    >>> model = baselines.PatientSVD(rank=3).fit(cohort)
    >>> bool(np.allclose(model.V_.T @ model.V_, np.eye(3)))
    True
    """

    codes_occur_in = "records"
    _signed: ClassVar[bool] = True
    _counts: ClassVar[tuple[str, ...]] = ("rank",)
    _amounts: ClassVar[tuple[str, ...]] = ()
    n_init = 1  # the result does not depend on a start
    random_state: Any = 0

    def __init__(self, rank: int = 5) -> None:
        self.rank = rank

    def _find(self, visits: Visits, rng: np.random.Generator) -> Found:
        X = visits.sums()
        values, V = right_singular(X, self.rank, rng)
        error = np.sqrt(max(float(np.sum(X.data**2) - np.sum(values**2)), 0.0))
        return Found(V, np.asarray(X @ V), [error], Outcome.CONVERGED)

    def _scores(self, visits: Visits) -> Array:
        return np.asarray(visits.sums() @ self.V_)


def right_singular(X: Any, rank: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """The largest singular values in descending order, and V (J × rank) with zero columns where they vanish."""
    shorter = min(X.shape)
    if not X.data.any():
        return np.zeros(0), np.zeros((X.shape[1], rank))
    if rank < shorter:  # ARPACK does not compute all of them
        _, values, vectors = svds(X, k=rank, v0=rng.standard_normal(shorter))
        order = np.argsort(-values, kind="stable")
        values, vectors = values[order], vectors[order]
    else:
        _, values, vectors = np.linalg.svd(X.toarray(), full_matrices=False)
    known = values > max(X.shape) * np.finfo(np.float64).eps * values.max(initial=0.0)
    V = np.zeros((X.shape[1], rank))
    V[:, : known.sum()] = vectors[known].T
    largest = V[np.abs(V).argmax(axis=0), np.arange(rank)]
    return values[known], V * np.where(largest < 0, -1.0, 1.0)
