"""The TASTE estimator: thin, with scikit-learn's manners. The mathematics is in `core`."""

import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted, check_random_state

from phenotaste import metrics, model_file, phenotypes
from phenotaste.align import Aligned, align, columns_of, columns_of_fitted
from phenotaste.cohort import Cohort
from phenotaste.core import loop
from phenotaste.core.records import Array, Model, Weights
from phenotaste.core.start import starting_model
from phenotaste.engines.threads import Threads, one_blas_thread
from phenotaste.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

SMALLEST_SIZE, LARGEST_SIZE = 1e-100, 1e100  # of ‖X‖²: beyond, its own square is no number
PROJECTION_TOL = 1e-8
PROJECTION_ITERATIONS = 1000


class Projection(NamedTuple):
    """Patients under a fitted model: U[offsets[k]:offsets[k+1]] are patient k's courses."""

    W: Array
    U: Array
    offsets: Array
    loss: float  # the whole objective of these patients
    patient_loss: Array
    mu_k: Array
    unknown_features: int  # temporal features the model does not know, left out
    absent_features: int  # temporal features of the model that the cohort lacks, taken as zero


class TASTE(TransformerMixin, BaseEstimator):
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
    n_jobs : threads, all cores by default. The result does not depend on it, to the bit.
    callback : called after each iteration with a record (start, n_starts, iteration, max_iter, loss); return
        True to stop.

    `TASTE(rank, weights="absolute", normalize=False, solver="bpp", init="uniform")` is the paper to the letter.

    Attributes
    ----------
    V_, F_, H_ : temporal definitions (J × R), static definitions (P × R, None without), R × R.
    W_, U_, offsets_ : scores (K × R) and courses; patient k's courses are U_[offsets_[k]:offsets_[k + 1]].
    loss_curve_ : the objective after each iteration of the winning start.
    outcome_ : "converged", "max_iter", "stopped" or "not_finite".
    lam_eff_, mu_k_ : the weights in absolute terms, fixed at fit and used again for new patients.
    rmse_, cpi_, n_iter_, converged_, patient_ids_, feature_names_in_, static_names_in_, empty_history_.
    n_patients_, n_visits_, n_short_ (fewer visits than phenotypes), n_empty_ (no history at all).

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> cohort, truth = simulate.recovery()
    >>> model = TASTE(rank=4, random_state=0).fit(cohort)
    >>> model.W_.shape, model.V_.shape, model.F_.shape
    ((100, 4), (30, 4), (20, 4))
    >>> scores = model.transform(cohort[:3])
    """

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "weights": ("relative", "absolute"),
        "solver": ("cd", "bpp"),
        "init": ("nmf", "random", "uniform"),
        "dtype": ("float64", "float32"),
        "device": ("cpu",),
    }

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
        """Find the phenotypes of a cohort; y is ignored."""
        engine, aligned = self._prepare(cohort)
        with one_blas_thread():  # also for the small products between the steps: idle BLAS threads spin
            best = self._best_start(engine, aligned, cohort.shape[1])
        self._keep(best, cohort, aligned, engine.weights)
        return self

    def transform(self, cohort: Cohort) -> Array:
        """Scores of patients under the fitted definitions, each patient on its own."""
        return self._labelled(self.project(cohort).W, cohort)

    def fit_transform(self, cohort: Cohort, y: Any = None) -> Array:
        """Fit, and return the scores found on the way (`W_`)."""
        return self._labelled(self.fit(cohort).W_, cohort)

    def project(self, cohort: Cohort) -> Projection:
        """Scores, courses and loss of patients under the fitted definitions."""
        check_is_fitted(self, "V_")
        need_cohort(cohort)
        rank = self.H_.shape[0]
        F = np.zeros((0, rank)) if self.F_ is None else self.F_
        aligned = align(cohort, columns_of_fitted(self))
        mu = self._patient_weights(aligned.norms, rank)
        engine = self._engine(aligned, Weights(self.lam_eff_, mu), rank)
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

    def phenotypes(
        self, top: int | None = 10, min_weight: float = 0.1, scale: Literal["matrix", "column"] = "matrix"
    ) -> "pd.DataFrame":
        """The definitions as a table: phenotype, kind (temporal or static), feature, weight."""
        check_is_fitted(self, "V_")
        return phenotypes.definitions(
            self.V_,
            self.F_,
            self.feature_names_in_,
            self.static_names_in_,
            top=top,
            min_weight=min_weight,
            scale=scale,
        )

    def save(self, path: str | os.PathLike[str], include_patients: bool = False) -> None:
        """Write the model as a folder; without `include_patients` nothing in it is about a single patient."""
        check_is_fitted(self, "V_")
        model_file.save(self, path, include_patients)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote; it scores exactly as it did before."""
        settings, fitted = model_file.load(path)
        try:
            model = cls(**settings)
        except TypeError as error:
            raise InputError(
                f"{path} has settings that this version does not know: upgrade phenotaste."
            ) from error
        model._check_settings()
        for name, value in fitted.items():
            setattr(model, name, value)
        return model

    def __getattr__(self, name: str) -> Any:
        if name in model_file.PATIENTS and "V_" in self.__dict__:
            raise AttributeError(
                f"{name}: this model was saved without its patients; use project(cohort), "
                "or save it with include_patients=True."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        check_is_fitted(self, "V_")
        return np.array([f"phenotype_{r + 1}" for r in range(self.V_.shape[1])], dtype=object)

    def _check_settings(self) -> None:
        for name, allowed in self._choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name}={getattr(self, name)!r} is not known: choose one of {', '.join(allowed)}."
                )
        for name in ("rank", "n_init", "max_iter"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name}={value!r} must be a whole number of at least 1.")
        for name in ("lam", "mu", "tol"):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not 0 <= value < np.inf:
                raise InputError(f"{name}={value!r} must be a finite number, zero or more.")
        if self.engine is not None:
            raise InputError("engine must be None: the patient step runs on this machine's threads.")

    def _prepare(self, cohort: Cohort) -> tuple[Threads, Aligned]:
        """Everything a fit needs but its start, checked."""
        self._check_settings()
        need_cohort(cohort)
        n_features = cohort.shape[1]
        if n_features == 0:
            raise InputError(
                "The cohort has no temporal features: TASTE needs visits with at least one code."
            )
        if self.rank > n_features:
            warnings.warn(
                f"rank={self.rank} exceeds the {n_features} temporal features: "
                "some phenotypes will repeat each other.",
                stacklevel=3,
            )
        if self.mu == 0:
            warnings.warn(
                "mu=0 drops the uniqueness term: the phenotypes found are one choice of many.", stacklevel=3
            )
        aligned = align(cohort, columns_of(cohort))
        size = float(aligned.norms.sum())
        if size > 0 and not SMALLEST_SIZE < size < LARGEST_SIZE:
            raise InputError(
                f"The visits' values are of a size ({size:.0e} when squared and added up) that cannot be computed "
                "with: divide them by a constant."
            )
        weights = Weights(self._static_weight(aligned), self._patient_weights(aligned.norms, self.rank))
        return self._engine(aligned, weights, self.rank), aligned

    def _static_weight(self, aligned: Aligned) -> float:
        """λ_eff: a relative weight is a share of the visits' size against that of the static features."""
        if self.weights == "absolute":
            return float(self.lam)
        size = float(np.sum(aligned.shard.static**2))
        return self.lam * float(aligned.norms.sum()) / size if size > 0 else 0.0

    def _patient_weights(self, norms: Array, rank: int) -> Array:
        """μ_k: a relative weight is a share of the patient's own size, spread over the phenotypes."""
        if self.weights == "relative":
            return self.mu * norms / rank
        return np.where(norms > 0, float(self.mu), 0.0)

    def _engine(self, aligned: Aligned, weights: Weights, rank: int) -> Threads:
        n_jobs = None if self.n_jobs is None or self.n_jobs < 1 else self.n_jobs
        return Threads(
            aligned.shard, weights, rank, exact=self.solver == "bpp", dtype=self.dtype, n_jobs=n_jobs
        )

    def _best_start(self, engine: Threads, aligned: Aligned, n_features: int) -> loop.Fit:
        seeds = check_random_state(self.random_state).randint(2**31, size=self.n_init)
        best: loop.Fit | None = None
        for start in range(self.n_init):
            rng = np.random.default_rng(seeds[start])
            kind = "random" if self.init == "nmf" and start % 2 else self.init
            model = starting_model(kind, aligned.shard, n_features, self.rank, self.normalize, rng)
            if self.init == "uniform":
                engine.start_uniform(rng)
            else:
                engine.start(model)
            found = loop.fit(
                engine,
                model,
                normalize=self.normalize,
                exact=self.solver == "bpp",
                max_iter=self.max_iter,
                tol=self.tol,
                callback=self._reporter(start),
            )
            if self.verbose:
                print(f"start {start + 1} of {self.n_init}: {found.outcome} at {found.losses[-1]:.6g}")
            if best is None or found.losses[-1] < best.losses[-1] or not np.isfinite(best.losses[-1]):
                best = found
                if start + 1 < self.n_init:  # the engine goes on with courses of its own
                    engine.courses = np.zeros_like(engine.courses)
            if found.outcome is loop.Outcome.STOPPED:
                break
        assert best is not None
        return best

    def _reporter(self, start: int) -> Callable[[int, float], object] | None:
        if self.callback is None:
            return None
        callback = self.callback
        return lambda iteration, loss: callback(
            loop.Progress(start, self.n_init, iteration, self.max_iter, loss)
        )

    def _keep(self, best: loop.Fit, cohort: Cohort, aligned: Aligned, weights: Weights) -> None:
        columns = columns_of(cohort)
        self.H_, self.V_, F = best.model
        self.F_ = F if columns.n_static else None
        self.U_, self.W_ = best.patients.U, best.patients.W
        self.offsets_, self.patient_ids_ = cohort.offsets, cohort.patient_ids
        self.n_features_in_ = columns.n_features
        self.feature_names_in_, self.static_names_in_ = columns.feature_names, columns.static_names
        self.lam_eff_, self.mu_k_ = weights
        self.empty_history_ = aligned.norms == 0
        self.n_patients_, self.n_visits_ = len(cohort), int(cohort.offsets[-1])
        self.n_empty_ = int(self.empty_history_.sum())
        self.n_short_ = int(np.sum((np.diff(cohort.offsets) < self.rank) & ~self.empty_history_))
        self.loss_curve_ = np.array(best.losses)
        self.n_iter_ = len(best.losses)
        self.outcome_ = str(best.outcome)
        self.converged_ = best.outcome is loop.Outcome.CONVERGED
        self.rmse_ = metrics.rmse(self, cohort)
        self.cpi_ = metrics.cpi(self)

    def _labelled(self, W: Array, cohort: Cohort) -> Any:
        """Scores as set_output asks for them; patient ids become the index of a pandas frame."""
        if _get_output_config("transform", self)["dense"] != "pandas":
            return W
        import pandas as pd

        return pd.DataFrame(W, index=cohort.patient_ids, columns=self.get_feature_names_out())


def need_cohort(cohort: Any) -> None:
    if not isinstance(cohort, Cohort):
        raise InputError(
            f"TASTE works on a Cohort, not on {type(cohort).__name__}: "
            "build one with Cohort(...) or Cohort.from_events(...)."
        )
