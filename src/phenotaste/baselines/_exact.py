"""What Spartan and the Copas share: fits and projections with U_k = Q_k H."""

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from phenotaste.cohort import Cohort
from phenotaste.cohort.align import Aligned, align, columns_of_fitted, read_only
from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.parafac2 import kernels
from phenotaste.core.parafac2 import loop as parafac2_loop
from phenotaste.core.records import Array, Model, Scored, Shard, Weights
from phenotaste.engines.slices import SliceThreads
from phenotaste.engines.threads import Threads, one_blas_thread
from phenotaste.factorization import Factorization, Projection

PROJECTION_TOL = 1e-8
PROJECTION_ITERATIONS = 1000


class ExactParafac2(Factorization):
    """PARAFAC2 with U_k = Q_k H, so that cross-products need no penalty; a method says how its factors are updated.

    Q_k is orthonormal for every history of at least R visits; directions that the data say nothing about, because
    scores are zero or visits alike, are filled in at the end by a fixed rule.
    """

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {"init": ("nmf", "random")}
    _couples_static: ClassVar[bool] = False

    tol: float
    init: str
    n_jobs: int | None

    def fit(self, cohort: Cohort, y: Any = None) -> Self:
        """Find the phenotypes of a cohort; y is ignored.

        Examples
        --------
        >>> from phenotaste import baselines, metrics, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> model = baselines.Spartan(rank=4, random_state=0, max_iter=20).fit(cohort)
        >>> round(model.cpi_, 3), round(metrics.matched_similarity(model.V_, truth.V), 2)
        (1.0, 1.0)
        """
        aligned = self._read(cohort)
        lam = self._static_weight(aligned)
        engine = self._engine(self._factorised(aligned, cohort.shape[1]), cohort, self.rank, fitting=True)
        with one_blas_thread():
            best = self._best_start(
                lambda start, rng: self._attempt(start, rng, engine, lam, cohort.shape[1])
            )
        self._keep(best, cohort, aligned, Weights(lam, np.zeros(len(cohort))))
        return self

    def project(self, cohort: Cohort) -> Projection:
        """Scores, courses and loss of patients under the fitted definitions.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> model = baselines.Spartan(rank=4, random_state=0, max_iter=20).fit(cohort[:15])
        >>> found = model.project(cohort[15:])
        >>> found.W.shape, found.U.shape
        ((5, 4), (500, 4))
        """
        check_is_fitted(self, "V_")
        self._need_cohort(cohort)
        aligned = align(cohort, columns_of_fitted(self))
        model = self._to_factorised(self._model())
        engine = self._engine(self._factorised(aligned, len(self.V_)), cohort, len(self.H_), fitting=False)
        engine.project(kernels.model_products(*model, self.lam_eff_), PROJECTION_TOL, PROJECTION_ITERATIONS)
        scored = self._score(engine, model, self.lam_eff_)
        return Projection(
            scored.W,
            scored.U,
            cohort.offsets,
            float(scored.loss.sum()),
            scored.loss.sum(axis=1),
            np.zeros(len(cohort)),
            aligned.unknown_features,
            aligned.absent_features,
        )

    def _model(self) -> Model:
        """The fitted definitions."""
        return Model(self.H_, self.V_, np.zeros((0, len(self.H_))) if self.F_ is None else self.F_)

    def _updates(self) -> parafac2_loop.Updates:
        """How H, V and F are updated."""
        raise NotImplementedError

    def _how(self, fitting: bool) -> tuple[int, int]:
        """How scores are solved, and in how many ADMM steps, while fitting or projecting."""
        raise NotImplementedError

    def _static_weight(self, aligned: Aligned) -> float:
        return 0.0

    def _bases(self, cohort: Cohort) -> Array | None:
        """Orthonormal bases that the courses lie in, if they are to be smooth."""
        return None

    def _factorised(self, aligned: Aligned, n_features: int) -> tuple[Shard, int]:
        """The data as the method sees it, and how many columns the visits have there."""
        shard = aligned.shard
        if not self._couples_static:
            shard = shard._replace(static=read_only(np.zeros((len(shard.offsets) - 1, 0))))
        return shard, n_features

    def _to_factorised(self, model: Model) -> Model:
        """The fitted definitions as the method sees them."""
        return model

    def _from_factorised(self, model: Model, n_features: int) -> Model:
        return model

    def _courses(self, Q: Array, H: Array) -> Array:
        return Q @ H

    def _engine(self, data: tuple[Shard, int], cohort: Cohort, rank: int, *, fitting: bool) -> SliceThreads:
        n_jobs = None if self.n_jobs is None or self.n_jobs < 1 else self.n_jobs
        how, inner = self._how(fitting)
        return SliceThreads(*data, rank, how=how, inner=inner, bases=self._bases(cohort), n_jobs=n_jobs)

    def _attempt(
        self, start: int, rng: np.random.Generator, engine: SliceThreads, lam: float, n_features: int
    ) -> loop.Fit:
        """One fit from a start of its own."""
        kind = "random" if self.init == "nmf" and start % 2 else self.init
        shard = engine.shard
        engine.start()
        found = parafac2_loop.fit(
            engine,
            init_model(kind, shard, engine.n_features, self.rank, True, rng),
            self._updates(),
            (float(np.sum(shard.data.astype(np.float64) ** 2)), float(np.sum(shard.static**2))),
            lam=lam,
            max_iter=self.max_iter,
            tol=self.tol,
            callback=self._reporter(start),
        )
        scored = self._score(engine, found.model, lam)
        # The last loss is that of the factors handed out: short histories count their own visits only.
        losses = [*found.losses[:-1], float(scored.loss.sum())]
        return loop.Fit(self._from_factorised(found.model, n_features), scored, losses, found.outcome)

    def _score(self, engine: SliceThreads, model: Model, lam: float) -> Scored:
        """Courses, scores and what they add to the objective, for the state the engine is in."""
        engine.complete()
        U = self._courses(engine.Q, model.H)
        weights = Weights(lam, np.zeros(len(engine.W)))
        return Threads(engine.shard, weights, U.shape[1], courses=U).score(model, engine.W)
