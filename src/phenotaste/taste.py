"""The TASTE estimator: a thin scikit-learn interface. The mathematics is in `core`."""

import warnings
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from phenotaste import model_file
from phenotaste.cohort import Cohort, check_cohort
from phenotaste.cohort.align import Aligned, Allocator, align, columns_of_fitted
from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.records import Array, Model, Scored, Weights
from phenotaste.engines import Checkpoint, CudaEngine, Engine, EngineSession, ThreadEngine
from phenotaste.engines.checkpoint import CheckpointWriter, shard_digest
from phenotaste.engines.cuda import cuda_available
from phenotaste.engines.threads import one_blas_thread
from phenotaste.errors import InputError
from phenotaste.factorization import Factorization, Projection, as_projection, patient_weights, static_weight

__all__ = ["TASTE", "Projection"]

PROJECTION_TOL = 1e-8
PROJECTION_ITERATIONS = 1000


class TASTE(Factorization):
    """Temporal and static tensor factorisation (Afshar et al. 2020).

    Visits X_k ≈ U_k diag(w_k) Vᵀ and static features A ≈ W Fᵀ with all factors non-negative and shared scores W.
    U_kᵀU_k is kept near one HᵀH for every patient, which makes the phenotypes unique. Without static features the
    model is non-negative PARAFAC2.

    Parameters
    ----------
    rank : number of phenotypes.
    lam : weight of the static features relative to the visits.
    mu : weight of the uniqueness term; 0 drops it.
    weights : "relative" scales lam and mu by the size of the data, so that they are comparable across data sets;
        "absolute" uses them unscaled, as in the paper.
    normalize : keep the columns of H and V at unit norm, which fixes the scale that mu refers to.
    solver : "cd", coordinate descent, or "bpp", exact block principal pivoting, as in the paper.
    init : "nmf", "random" or "uniform" (the paper's). With "nmf" every second start of `n_init` is random.
    n_init : number of starts; the one with the lowest objective is kept.
    max_iter, tol : stop after `max_iter` iterations, or when the relative decrease of the objective is below `tol`;
        tol=0 never stops early.
    dtype : precision of the courses U; all sums are float64.
    device : "cpu", "cuda" (one GPU, courses in float32, solver="cd") or "auto": a GPU if there is one.
    engine : where the patient step runs: `phenotaste.engines.ThreadEngine` (the default), `DiskEngine`, `DaskEngine`
        or `CudaEngine`. The result is the same to the bit, except on a GPU.
    checkpoint : `phenotaste.engines.Checkpoint`, to resume the fit after an interruption.
    n_jobs : number of threads, all cores by default. The result does not depend on it, to the bit.
    random_state : an integer for reproducible starts; None draws new ones.
    callback : called after each iteration with a record (start, n_starts, iteration, max_iter, loss); return
        True to stop.
    verbose : 1 prints a line after each start.

    `TASTE(rank, weights="absolute", normalize=False, solver="bpp", init="uniform")` is the method of the paper.

    Attributes
    ----------
    V_, F_, H_ : temporal definitions (J × R), static definitions (P × R, None without), R × R.
    W_, U_, offsets_ : scores (K × R) and courses; patient k's courses are U_[offsets_[k]:offsets_[k + 1]].
    loss_curve_ : the objective after each iteration of the winning start.
    outcome_ : "converged", "max_iter", "stopped" or "not_finite".
    lam_eff_, mu_k_ : the weights in absolute terms, fixed by the fit and reused for new patients.
    rmse_, cpi_ : error and cross-product invariance of the fit, as defined in `phenotaste.metrics`.
    n_iter_, converged_ : iterations of the winning start, and whether it converged.
    patient_ids_, feature_names_in_, static_names_in_ : the cohort's patient ids and column names.
    empty_history_ : for each patient, whether all visits are empty.
    feature_patients_, static_patients_ : number of patients of the fit with each feature.
    score_totals_ : sums of W_ over the patients.
    n_patients_, n_visits_, n_short_, n_empty_ : number of patients and visits of the fit, of patients with fewer
        visits than phenotypes, and of patients without any history.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> cohort, truth = simulate.recovery()
    >>> model = TASTE(rank=4, random_state=0).fit(cohort)
    >>> model.W_.shape, model.V_.shape, model.F_.shape
    ((100, 4), (30, 4), (20, 4))
    >>> model.transform(cohort[:3]).shape  # scores of the first three patients, as if they were new
    (3, 4)
    """

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "weights": ("relative", "absolute"),
        "solver": ("cd", "bpp"),
        "init": ("nmf", "random", "uniform"),
        "dtype": ("float64", "float32"),
        "device": ("cpu", "cuda", "auto"),
    }
    _amounts: ClassVar[tuple[str, ...]] = ("lam", "mu", "tol")

    def __init__(
        self,
        rank: int = 5,
        *,
        lam: float = 0.1,
        mu: float = 1.0,
        weights: Literal["relative", "absolute"] = "relative",
        normalize: bool = True,
        solver: Literal["cd", "bpp"] = "cd",
        init: Literal["nmf", "random", "uniform"] = "nmf",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-5,
        dtype: Literal["float64", "float32"] = "float64",
        device: str = "cpu",
        engine: Engine | None = None,
        checkpoint: Checkpoint | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        callback: Callable[[loop.Progress], object] | None = None,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.lam = lam
        self.mu = mu
        self.weights = weights
        self.normalize = normalize
        self.solver = solver
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.dtype = dtype
        self.device = device
        self.engine = engine
        self.checkpoint = checkpoint
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    def fit(self, cohort: Cohort, y: Any = None) -> Self:
        """Find the phenotypes of a cohort; y is ignored.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=2, random_state=0).fit(cohort)
        >>> model.outcome_, round(model.rmse_, 2), round(model.cpi_, 2)
        ('converged', 0.41, 0.99)
        """
        self._check_settings()
        engine = self._engine()
        with engine.memory_limit():
            aligned = self._read(cohort)
            with self._open(engine, aligned, cohort) as session:
                writer = self._checkpoint_writer(session, cohort, aligned)
                session.check_init_memory(self.init)
                session.check_disk(self.n_init)
                with nullcontext() if writer is None else closing(writer):
                    self._fit(session, writer, cohort, aligned)
        return self

    def _fit(
        self, session: EngineSession, writer: CheckpointWriter | None, cohort: Cohort, aligned: Aligned
    ) -> None:
        with one_blas_thread():  # also for the small products between the steps: idle BLAS threads spin
            best = self._best_start(
                lambda start, rng: self._run_start(start, rng, session, aligned, cohort.shape[1], writer),
                writer,
            )
        self._set_fitted(best, cohort, aligned, session.weights)
        if writer is not None:
            writer.complete()

    def _checkpoint_writer(
        self, session: EngineSession, cohort: Cohort, aligned: Aligned
    ) -> CheckpointWriter | None:
        if self.checkpoint is None:
            return None

        def identity() -> dict[str, Any]:
            digest = shard_digest(aligned.shard, cohort.feature_names, cohort.static_names)
            return {"settings": model_file.settings_of(self), "cohort": digest}

        return CheckpointWriter(self.checkpoint, session, identity)

    def project(self, cohort: Cohort) -> Projection:
        """Scores, courses and loss of patients under the fitted definitions.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort[:50])
        >>> found = model.project(cohort[50:])
        >>> first = found.U[found.offsets[0] : found.offsets[1]]  # the courses of the first patient
        >>> first.shape == (cohort[50].n_visits, 3)
        True
        """
        check_is_fitted(self, "V_")
        check_cohort(cohort, type(self).__name__)
        rank = self.H_.shape[0]
        F = np.zeros((0, rank)) if self.F_ is None else self.F_
        engine = self._engine()
        with engine.memory_limit():
            aligned = align(cohort, columns_of_fitted(self), engine.allocate)
            mu = self._patient_weights(aligned.norms, rank)
            weights = Weights(self.lam_eff_, mu)
            with self._open_session(engine, aligned, weights, rank, len(self.V_)) as session:
                scored = session.project(Model(self.H_, self.V_, F), PROJECTION_TOL, PROJECTION_ITERATIONS)
        return as_projection(scored, cohort, aligned, mu)

    def _check_settings(self) -> None:
        super()._check_settings()
        if not isinstance(self.checkpoint, Checkpoint | None):
            raise InputError("checkpoint must be None or a phenotaste.engines.Checkpoint.")
        if self.engine is None:
            return
        if not isinstance(self.engine, Engine):
            raise InputError(
                "engine must be None, for the threads of this machine, or an engine such as "
                "phenotaste.engines.DiskEngine."
            )
        if self.device != "cpu":
            raise InputError(f'device={self.device!r} and engine exclude each other: use device="cpu".')

    def _engine(self) -> Engine:
        """The engine of the settings: `device` is short for one."""
        if self.engine is not None:
            return self.engine
        if self.device == "cuda" or (self.device == "auto" and self.solver != "bpp" and cuda_available()):
            return CudaEngine()
        return ThreadEngine()

    def _allocator(self) -> Allocator:
        return self._engine().allocate

    def _open(self, engine: Engine, aligned: Aligned, cohort: Cohort) -> EngineSession:
        """A session for a fit."""
        if self.mu == 0:
            warnings.warn("mu=0 drops the uniqueness term: the phenotypes are then not unique.", stacklevel=3)
        lam = static_weight(self.lam, self.weights, aligned)
        weights = Weights(lam, self._patient_weights(aligned.norms, self.rank))
        return self._open_session(engine, aligned, weights, self.rank, cohort.shape[1])

    def _open_session(
        self, engine: Engine, aligned: Aligned, weights: Weights, rank: int, n_features: int
    ) -> EngineSession:
        exact = self.solver == "bpp"
        n_jobs = None if self.n_jobs is None or self.n_jobs < 1 else self.n_jobs
        return engine.open(
            aligned.shard, weights, rank, n_features, exact=exact, dtype=self.dtype, n_jobs=n_jobs
        )

    def _scored(self, best: loop.Fit, cohort: Cohort) -> Scored:
        return best.patients

    def _patient_weights(self, norms: Array, rank: int) -> Array:
        return patient_weights(self.mu, self.weights, norms, rank)

    def _run_start(
        self,
        start: int,
        rng: np.random.Generator,
        session: EngineSession,
        aligned: Aligned,
        n_features: int,
        writer: CheckpointWriter | None,
    ) -> loop.Fit:
        """One fit from its own initialisation, or from where it was interrupted."""
        begin: Model | loop.State | None = None if writer is None else writer.resumed_state(start)
        if begin is None:
            init = "random" if self.init == "nmf" and start % 2 else self.init
            begin = init_model(init, aligned.shard, n_features, self.rank, self.normalize, rng)
            if self.init == "uniform":
                session.init_U_uniform(rng)
            else:
                session.init_U(begin)
        return loop.fit(
            session,
            begin,
            normalize=self.normalize,
            exact=self.solver == "bpp",
            max_iter=self.max_iter,
            tol=self.tol,
            callback=self._progress_callback(start),
            on_iteration=None if writer is None else partial(writer.maybe_write, start),
        )
