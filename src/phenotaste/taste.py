"""The TASTE estimator: thin, with scikit-learn's manners. The mathematics is in `core`."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from phenotaste import model_file
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import Aligned, Allocator, align, columns_of_fitted
from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.records import Array, Model, Weights
from phenotaste.engines import Opener
from phenotaste.engines.checkpoint import Keeper, fingerprint
from phenotaste.engines.cuda import Device, Figures, cuda_available, need_cuda
from phenotaste.engines.threads import Threads, one_blas_thread
from phenotaste.errors import InputError
from phenotaste.factorization import Factorization, Projection, patient_weights, static_weight

__all__ = ["TASTE", "Projection"]

PROJECTION_TOL = 1e-8
PROJECTION_ITERATIONS = 1000


class TASTE(Factorization):
    """Temporal and static tensor factorisation (Afshar et al. 2020).

    Visits X_k ≈ U_k diag(w_k) Vᵀ and static features A ≈ W Fᵀ, all factors non-negative, the scores W shared,
    and U_kᵀU_k kept near one HᵀH for every patient, which is what makes the phenotypes unique. Without static
    features it is non-negative PARAFAC2.

    Parameters
    ----------
    rank : number of phenotypes.
    lam : weight of the static features against the visits.
    mu : weight of the uniqueness term; 0 drops it.
    weights : "relative" measures lam and mu against the size of the data, so that they mean the same on every
        data set; "absolute" takes them as they are, as the paper does.
    normalize : keep the columns of H and V at unit norm, which anchors the scale that mu is measured in.
    solver : "cd", coordinate descent, or "bpp", exact block principal pivoting, the paper's choice.
    init : "nmf", "random" or "uniform" (the paper's). With "nmf" every second start of `n_init` is random.
    n_init : number of starts; the one with the lowest objective is kept.
    max_iter, tol : stop after `max_iter` iterations or when the objective falls by less than `tol` of itself;
        tol=0 never stops early.
    dtype : precision in which the courses U are kept; all sums are float64.
    device : "cpu", "cuda" (one GPU, courses in float32, solver="cd") or "auto": the GPU where there is one.
    engine : None for this machine's threads, or where else the patient step runs: an object that opens an engine
        over a cohort, `phenotaste.engines.disk.Disk` or `phenotaste.engines.dask.DaskEngine`. The result does not
        depend on it, to the bit.
    n_jobs : threads, all cores by default. The result does not depend on it, to the bit.
    random_state : a whole number, so that the starts are the same each time; None draws new ones.
    callback : called after each iteration with a record (start, n_starts, iteration, max_iter, loss); return
        True to stop.
    verbose : 1 prints a line after each start.

    `TASTE(rank, weights="absolute", normalize=False, solver="bpp", init="uniform")` is the paper to the letter.

    Attributes
    ----------
    V_, F_, H_ : temporal definitions (J × R), static definitions (P × R, None without), R × R.
    W_, U_, offsets_ : scores (K × R) and courses; patient k's courses are U_[offsets_[k]:offsets_[k + 1]].
    loss_curve_ : the objective after each iteration of the winning start.
    outcome_ : "converged", "max_iter", "stopped" or "not_finite".
    lam_eff_, mu_k_ : the weights in absolute terms, fixed at fit and used again for new patients.
    rmse_, cpi_ : error and cross-product invariance of the fit, as `phenotaste.metrics` has them.
    n_iter_, converged_ : iterations of the winning start, and whether it converged.
    patient_ids_, feature_names_in_, static_names_in_ : what the cohort calls its patients and columns.
    empty_history_ : for each patient whether no visit holds a code.
    feature_patients_, static_patients_ : how many patients of the fit have each feature.
    score_totals_ : sums of W_ over the patients.
    n_patients_, n_visits_, n_short_, n_empty_ : patients and visits of the fit; of the patients, those with fewer
        visits than phenotypes, and those without any history.

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
        engine: Any = None,
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
        with self._around(), ExitStack() as at_end:
            engine, aligned = self._prepare(cohort)
            at_end.callback(getattr(engine, "close", nothing))
            getattr(engine, "check_start", nothing)(self.init)
            getattr(engine, "reserve", nothing)(self.n_init)
            keeper = self._keeper(engine, cohort, aligned)
            if keeper is not None:
                at_end.callback(keeper.let_go)
            self._fit(engine, keeper, cohort, aligned)
        return self

    def _fit(
        self, engine: loop.Engine | Device, keeper: Keeper | None, cohort: Cohort, aligned: Aligned
    ) -> None:
        self._figures: dict[int, Figures | None] = {}  # of each start, where it ran on a GPU
        with one_blas_thread():  # also for the small products between the steps: idle BLAS threads spin
            best = self._best_start(
                lambda start, rng: self._attempt(start, rng, engine, aligned, cohort.shape[1], keeper), keeper
            )
        measured = getattr(engine, "measure", nothing)(best.model, best.patients, aligned.norms > 0)
        self._found = measured or self._figures.get(id(best))
        self._keep(best, cohort, aligned, engine.weights)
        del self._figures, self._found
        if keeper is not None:
            keeper.finish()

    def _keeper(self, engine: Any, cohort: Cohort, aligned: Aligned) -> Keeper | None:
        """Who keeps the fit on its way, where the engine was told to."""
        checkpoint = getattr(self.engine, "checkpoint", None)
        if checkpoint is None:
            return None

        def identity() -> dict[str, Any]:
            settings = model_file.settings_of(self)
            found = fingerprint(aligned.shard, cohort.feature_names, cohort.static_names)
            return {"settings": settings, "cohort": found}

        return Keeper(checkpoint, engine, identity)

    def _around(self) -> AbstractContextManager[Any]:
        around = getattr(self.engine, "around", None)
        return nullcontext() if around is None else around()

    def _room(self) -> Allocator:
        return getattr(self.engine, "room", np.empty)

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
        self._need_cohort(cohort)
        rank = self.H_.shape[0]
        F = np.zeros((0, rank)) if self.F_ is None else self.F_
        with self._around(), ExitStack() as at_end:
            aligned = align(cohort, columns_of_fitted(self), self._room())
            mu = self._patient_weights(aligned.norms, rank)
            engine = self._engine(cohort, aligned, Weights(self.lam_eff_, mu), rank, len(self.V_))
            at_end.callback(getattr(engine, "close", nothing))
            scored = engine.project(Model(self.H_, self.V_, F), PROJECTION_TOL, PROJECTION_ITERATIONS)
        return Projection(
            scored.W,
            scored.U,
            cohort.offsets,
            float(scored.loss.sum()),
            scored.loss.sum(axis=1),
            mu,
            aligned.unknown_features,
            aligned.absent_features,
        )

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.engine is None:
            return
        if not callable(getattr(self.engine, "open", None)):
            raise InputError(
                "engine must be None, for this machine's threads, or an object that opens an engine, such as "
                "phenotaste.engines.disk.Disk."
            )
        if self.device != "cpu":
            raise InputError(f'device={self.device!r} and engine do not go together: use device="cpu".')

    def _measure(self, cohort: Cohort) -> None:
        """RMSE and CPI; where a GPU has looked at all patients already, from what it found."""
        if self._found is None:
            super()._measure(cohort)
            return
        visits, static, gaps = self._found
        counted, HH = int(np.sum(~self.empty_history_)), self.H_.T @ self.H_
        entries = self.n_visits_ * len(self.V_) + self.n_patients_ * (0 if self.F_ is None else len(self.F_))
        self.rmse_ = float(np.sqrt((2 * visits + self.lam * static) / max(entries, 1)))
        self.cpi_ = 1 - gaps / (counted * float(np.sum(HH**2))) if counted else float("nan")

    def _prepare(self, cohort: Cohort) -> tuple[loop.Engine | Device, Aligned]:
        """Everything a fit needs but its start, checked."""
        aligned = self._read(cohort)
        if self.mu == 0:
            warnings.warn(
                "mu=0 drops the uniqueness term: the phenotypes found are one choice of many.", stacklevel=3
            )
        weights = Weights(
            static_weight(self.lam, self.weights, aligned), self._patient_weights(aligned.norms, self.rank)
        )
        return self._engine(cohort, aligned, weights, self.rank, cohort.shape[1]), aligned

    def _patient_weights(self, norms: Array, rank: int) -> Array:
        return patient_weights(self.mu, self.weights, norms, rank)

    def _engine(
        self, cohort: Cohort, aligned: Aligned, weights: Weights, rank: int, n_features: int
    ) -> loop.Engine | Device:
        exact = self.solver == "bpp"
        n_jobs = None if self.n_jobs is None or self.n_jobs < 1 else self.n_jobs
        if self.engine is not None:
            opener: Opener = self.engine
            return opener.open(cohort, aligned, weights, rank, exact=exact, dtype=self.dtype, n_jobs=n_jobs)
        if self.device == "cuda" or (self.device == "auto" and not exact and cuda_available()):
            need_cuda(rank, exact)
            return Device(aligned.shard, weights, rank, n_features=n_features)
        return Threads(aligned.shard, weights, rank, exact=exact, dtype=self.dtype, n_jobs=n_jobs)

    def _attempt(
        self,
        start: int,
        rng: np.random.Generator,
        engine: loop.Engine | Device,
        aligned: Aligned,
        n_features: int,
        keeper: Keeper | None = None,
    ) -> loop.Fit:
        """One fit from a start of its own, or from where it was interrupted."""
        begin: Model | loop.State | None = None if keeper is None else keeper.state_of(start)
        if begin is None:
            kind = "random" if self.init == "nmf" and start % 2 else self.init
            begin = init_model(kind, aligned.shard, n_features, self.rank, self.normalize, rng)
            if self.init == "uniform":
                engine.start_uniform(rng)
            else:
                engine.start(begin)
        found = loop.fit(
            engine,
            begin,
            normalize=self.normalize,
            exact=self.solver == "bpp",
            max_iter=self.max_iter,
            tol=self.tol,
            callback=self._reporter(start),
            keep=None if keeper is None else partial(keeper.look, start),
        )
        self._figures[id(found)] = engine.figures if isinstance(engine, Device) else None
        return found


def nothing(*_: Any) -> None:
    """What an engine does that has nothing to do here."""
