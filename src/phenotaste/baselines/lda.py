"""Latent Dirichlet allocation of patients' sums, of which scikit-learn is the engine.

D. M. Blei, A. Y. Ng, M. I. Jordan: "Latent Dirichlet allocation", JMLR 2003.
"""

from typing import Any, ClassVar

import numpy as np
from scipy.special import psi
from sklearn.decomposition import LatentDirichletAllocation

from phenotaste.baselines._pooled import Found, Pooled, Visits
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array

EVALUATE_EVERY = 5  # iterations


class PatientLDA(Pooled):
    """Latent Dirichlet allocation of the sums of each patient's visits (Blei, Ng & Jordan 2003).

    A topic is a phenotype, and each code of a patient belongs to one of them. Fitted by batch variational inference
    with scikit-learn's priors. The order of visits and what occurs in the same visit are not used. Values are counts
    of zero or more.

    Parameters
    ----------
    rank : number of phenotypes.
    n_init : number of random starts, of which the one with the lowest perplexity is kept.
    max_iter : maximum number of iterations.
    tol : a fit ends when the perplexity changes by less than this in five iterations.
    random_state : an integer for reproducible starts.

    Attributes
    ----------
    V_ : definitions, the distributions of codes in the topics, with unit columns.
    W_ : scores, the expected number of a patient's codes in each topic; F_ is None.
    topic_counts_ : the parameters of the topics' posterior distributions, phenotypes × features.
    loss_curve_ : the final perplexity of the winning start.

    Examples
    --------
    >>> from phenotaste import baselines, metrics, simulate
    >>> cohort, truth = simulate.ehr(300, n_features=30, rank=3, random_state=1)
    >>> model = baselines.PatientLDA(rank=3, random_state=0).fit(cohort)
    >>> bool(metrics.matched_similarity(truth.V, model.V_) > 0.9)
    True
    """

    codes_occur_in = "records"
    _arrays: ClassVar[tuple[str, ...]] = ("topic_counts_",)

    def __init__(
        self,
        rank: int = 5,
        *,
        n_init: int = 1,
        max_iter: int = 100,
        tol: float = 0.01,
        random_state: Any = None,
    ) -> None:
        self.rank = rank
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _find(self, visits: Visits, rng: np.random.Generator) -> Found:
        X = visits.sums()
        engine = LatentDirichletAllocation(
            self.rank,
            learning_method="batch",
            max_iter=self.max_iter,
            evaluate_every=EVALUATE_EVERY,
            perp_tol=self.tol,
            random_state=int(rng.integers(2**31)),
        ).fit(X)
        topics = engine.components_
        return Found(
            (topics / np.linalg.norm(topics, axis=1, keepdims=True)).T,
            expected_counts(X, topics),
            [float(engine.bound_)],
            Outcome.CONVERGED if engine.n_iter_ < self.max_iter else Outcome.MAX_ITER,
            {"topic_counts_": topics},
            int(engine.n_iter_),
        )

    def _scores(self, visits: Visits) -> Array:
        return expected_counts(visits.sums(), self.topic_counts_)

    def _without_data(self, n_features: int) -> Found:
        more = {"topic_counts_": np.ones((self.rank, n_features))}
        return super()._without_data(n_features)._replace(more=more)

    def _check_fitted(self) -> None:
        super()._check_fitted()
        topics = self.topic_counts_
        if topics.shape != self.V_.T.shape or not np.isfinite(topics).all() or topics.min() <= 0:
            raise ValueError("topics")


def expected_counts(X: Any, topics: Array) -> Array:
    """The expected number of each row's counts in every topic, given the parameters of the topics' posterior."""
    R = len(topics)
    engine = LatentDirichletAllocation(R)
    engine.components_, engine.n_features_in_ = topics, topics.shape[1]
    engine.exp_dirichlet_component_ = np.exp(psi(topics) - psi(topics.sum(axis=1, keepdims=True)))
    engine.doc_topic_prior_, engine.n_iter_ = 1.0 / R, 0
    if not X.shape[0]:
        return np.zeros((0, R))
    # The posterior of a row has the parameters prior + expected counts; `transform` divides them by their sum.
    totals = np.asarray(X.sum(axis=1)).reshape(-1, 1)
    counts = np.asarray(engine.transform(X)) * (totals + 1.0) - engine.doc_topic_prior_
    return np.where(totals > 0, np.maximum(counts, 0.0), 0.0)
