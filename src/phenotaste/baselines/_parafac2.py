"""Base class of Spartan and COPA: fit and projection of PARAFAC2 with U_k = Q_k H."""

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from phenotaste.cohort import Cohort, check_cohort
from phenotaste.cohort.align import Aligned, align, columns_of_fitted, read_only
from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.parafac2 import kernels
from phenotaste.core.parafac2 import loop as parafac2_loop
from phenotaste.core.records import Array, Model, Scored, Shard, Weights
from phenotaste.engines.parafac2 import Parafac2Threads
from phenotaste.engines.threads import ThreadSession, one_blas_thread
from phenotaste.factorization import Factorization, Projection, as_projection

PROJECTION_TOL = 1e-8
PROJECTION_ITERATIONS = 1000


class ExactParafac2(Factorization):
    """PARAFAC2 with U_k = Q_k H exactly, without a penalty; a subclass defines the updates of the factors.

    Q_k has orthonormal columns for every history of at least R visits; columns that the data do not determine (zero
    scores, identical visits) are completed deterministically after the fit.
    """

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {"init": ("nmf", "random")}
    _couples_static: ClassVar[bool] = False

    tol: float
    init: str
    n_jobs: int | None

    def fit(self, cohort: Cohort, y: Any = None) -> Self:
        """Fit the phenotypes to a cohort; y is ignored.

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
        engine = self._engine(self._input_data(aligned, cohort.shape[1]), cohort, self.rank, fitting=True)
        with one_blas_thread():
            best = self._best_start(
                lambda start, rng: self._attempt(start, rng, engine, lam, cohort.shape[1])
            )
        self._set_fitted(best, cohort, aligned, Weights.absolute(lam, np.zeros(len(cohort))))
        return self

    def project(self, cohort: Cohort) -> Projection:
        """Scores, courses and loss of patients under the fitted definitions.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> model = baselines.Spartan(rank=4, random_state=0, max_iter=20).fit(cohort[:15])
        >>> projection = model.project(cohort[15:])
        >>> projection.W.shape, projection.U.shape
        ((5, 4), (500, 4))
        """
        check_is_fitted(self, "V_")
        check_cohort(cohort, type(self).__name__)
        aligned = align(cohort, columns_of_fitted(self))
        self._check_sizes(aligned)
        model = self._input_model(self._model())
        engine = self._engine(self._input_data(aligned, len(self.V_)), cohort, len(self.H_), fitting=False)
        engine.project(kernels.model_products(*model, self.lam_eff_), PROJECTION_TOL, PROJECTION_ITERATIONS)
        scored = self._score(engine, model, self.lam_eff_)
        return as_projection(scored, cohort, aligned, Weights.absolute(self.lam_eff_, np.zeros(len(cohort))))

    def _model(self) -> Model:
        """The fitted definitions."""
        return Model(self.H_, self.V_, np.zeros((0, len(self.H_))) if self.F_ is None else self.F_)

    def _updates(self) -> parafac2_loop.Updates:
        """The updates of H, V and F."""
        raise NotImplementedError

    def _score_solver(self, fitting: bool) -> kernels.ScoreSolver:
        """The solver of the scores in a fit or a projection."""
        raise NotImplementedError

    def _static_weight(self, aligned: Aligned) -> float:
        return 0.0

    def _bases(self, cohort: Cohort) -> Array | None:
        """Orthonormal bases of smooth courses, or None for unconstrained ones."""
        return None

    def _input_data(self, aligned: Aligned, n_features: int) -> tuple[Shard, int]:
        """The data that the method factorises, and the number of columns of its visits."""
        shard = aligned.shard
        if not self._couples_static:
            shard = shard._replace(static=read_only(np.zeros((len(shard.offsets) - 1, 0))))
        return shard, n_features

    def _input_model(self, model: Model) -> Model:
        """The fitted definitions, with columns as in `_input_data`."""
        return model

    def _output_model(self, model: Model, n_features: int) -> Model:
        """The inverse of `_input_model`."""
        return model

    def _courses(self, Q: Array, H: Array) -> Array:
        return Q @ H

    def _engine(
        self, data: tuple[Shard, int], cohort: Cohort, rank: int, *, fitting: bool
    ) -> Parafac2Threads:
        n_jobs = None if self.n_jobs is None or self.n_jobs < 1 else self.n_jobs
        solver, bases = self._score_solver(fitting), self._bases(cohort)
        return Parafac2Threads(*data, rank, score_solver=solver, bases=bases, n_jobs=n_jobs)

    def _attempt(
        self, start: int, rng: np.random.Generator, engine: Parafac2Threads, lam: float, n_features: int
    ) -> loop.Fit:
        """The fit from one start."""
        kind = "random" if self.init == "nmf" and start % 2 else self.init
        shard = engine.shard
        engine.reset()
        result = parafac2_loop.fit(
            engine,
            init_model(kind, shard, engine.n_features, self.rank, True, rng),
            self._updates(),
            (float(np.sum(shard.data.astype(np.float64) ** 2)), float(np.sum(shard.static**2))),
            lam=lam,
            max_iter=self.max_iter,
            tol=self.tol,
            callback=self._progress_callback(start),
        )
        scored = self._score(engine, result.model, lam)
        # The last loss is that of the returned factors, in which short histories are not padded with empty visits.
        losses = [*result.losses[:-1], float(scored.loss.sum())]
        return loop.Fit(self._output_model(result.model, n_features), scored, losses, result.outcome)

    def _score(self, engine: Parafac2Threads, model: Model, lam: float) -> Scored:
        """Courses, scores and losses of the patients in the current state of the engine."""
        engine.complete()
        U = self._courses(engine.Q, model.H)
        weights = Weights.absolute(lam, np.zeros(len(engine.W)))
        with ThreadSession(engine.shard, weights, U, engine.n_features) as session:
            return session.score(model, engine.W)
