"""The TASTE estimator: a thin scikit-learn interface. The mathematics is in `core`."""

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from phenotaste import model_file
from phenotaste.background import all_definitions, all_mean_scores, select_columns
from phenotaste.cohort import Cohort, check_cohort
from phenotaste.cohort.align import Aligned, Allocator, align, check_same_columns, columns_of_fitted
from phenotaste.core import loop
from phenotaste.core.constraints import NO_CONSTRAINTS, Constraints, Given, Near
from phenotaste.core.init import init_model
from phenotaste.core.no_history import mean_of_scores
from phenotaste.core.records import Array, Model, Scored, Weights
from phenotaste.engines import Checkpoint, CudaEngine, Engine, EngineSession, ThreadEngine
from phenotaste.engines.checkpoint import CheckpointWriter, shard_digest
from phenotaste.engines.cuda import cuda_available
from phenotaste.engines.starts import best_short_fit, guided
from phenotaste.engines.threads import one_blas_thread
from phenotaste.errors import InputError
from phenotaste.factorization import (
    PATIENT_SIZE_RANGE,
    Factorization,
    Projection,
    as_projection,
    influence_of,
    relative_static_weight,
    relative_weights,
    score_without_history,
)
from phenotaste.guides import Guide, find_guides, judge, parse_guides
from phenotaste.phenotype_model import check_size, check_static_size
from phenotaste.refit import RefitPlan, plan_refit, refit_record
from phenotaste.review import Review
from phenotaste.validation import check_integer

__all__ = ["TASTE", "Projection"]

PROJECTION_TOL = 1e-8
PROJECTION_ITERATIONS = 1000
N_STARTS = 4


class TASTE(Factorization):
    """Temporal and static tensor factorisation (Afshar et al. 2020).

    Visits X_k ≈ s_k U_k diag(w_k) Vᵀ and static features a_k ≈ F w_k, all factors non-negative, with shared scores w_k.
    U_kᵀU_k is kept near one HᵀH for every patient, which makes the phenotypes unique. Without static features the
    model is non-negative PARAFAC2.

    Every patient is divided by its own size s_k = ‖X_k‖, and the columns of U_k have unit norm: a score is the size of
    a phenotype relative to the patient's record, whether that is long or short.

    Parameters
    ----------
    rank : number of phenotypes.
    objective : "relative", described above, or "paper", the method of the paper to the letter: the data as they are,
        U_k of any scale, no smoothness, exact solutions, one start from uniform random factors.
    lam : weight of the static features relative to the visits; absolute with "paper".
    mu : weight of the uniqueness term, likewise; 0 drops it.
    smooth : weight of the changes of a course from one visit to the next; 0 drops it. Not used with "paper".
    balance : how much more a long record counts than a short one: a patient with n entries counts n ** balance. With 0
        every patient counts the same, with 1 every entry. Not used with "paper".
    init : where a start begins: "short_fits", at a short fit of at most 2,000 patients with three phenotypes too many,
        which are removed one by one; or "nmf", an NMF of the patients' sums of visits, "nmf_visits", of single visits,
        or "random" definitions. Not used with "paper".
    n_init : number of starts, of which the one with the lowest objective is kept; 4 by default, 1 with "paper".
    guides : phenotypes that are known in part: a dict of names with a list of codes, or with {"codes": [...],
        "strength": 0.99}. The first phenotypes of the fit begin with these codes and what goes with them, and stay near
        that: the cosine of a column of V with where it began is at least the strength. A code is the name of a
        feature, or such as CCS:108, phecode:250.2, OMOP:201826 or ICD10CM:E11.9. Not used with "paper".
    max_iter, tol : stop after `max_iter` iterations, or when the relative decrease of the objective is below `tol`;
        tol=0 never stops early.
    dtype : precision of the courses U; all sums are float64.
    device : "cpu", "cuda" (one GPU, courses in float32, not with "paper") or "auto": a GPU if there is one.
    engine : where the patient step runs: `phenotaste.engines.ThreadEngine` (the default), `DiskEngine`, `DaskEngine`
        or `CudaEngine`. The result is the same to the bit, except on a GPU.
    checkpoint : `phenotaste.engines.Checkpoint`, to resume the fit after an interruption.
    n_jobs : number of threads, all cores by default. The result does not depend on it, to the bit.
    random_state : an integer for reproducible starts; None draws new ones.
    callback : called after each iteration with a record (start, n_starts, iteration, max_iter, loss); return
        True to stop.
    verbose : 1 prints a line after each start.

    Attributes
    ----------
    V_, F_, H_ : temporal definitions (J × R), static definitions (P × R, None without), R × R.
    W_, U_, offsets_ : scores (K × R) and courses; patient k's courses are U_[offsets_[k]:offsets_[k + 1]]. The size of
        the phenotypes at each visit is U_ * w: the course of a phenotype without a score has no meaning.
    scale_ : s_k of every patient: W_ * scale_[:, None] is in the units of the data.
    mean_scores_ : mean of W_, which stands in for the visits of a patient without a history.
    influence_ : how much each patient counted; 0 without a history.
    loss_curve_ : the objective after each iteration of the winning start.
    outcome_ : "converged", "max_iter" or "stopped"; a fit whose objective is not finite raises InputError.
    lam_eff_, mu_k_ : λ as the objective has it, fixed by the fit and reused for new patients; μ of each patient.
    rmse_, cpi_, cpi_present_ : error and cross-product invariance of the fit, as defined in `phenotaste.metrics`.
    n_iter_, converged_, n_starts_ : iterations of the winning start, whether it converged, and how many there were.
    patient_ids_, feature_names_in_, static_names_in_ : the cohort's patient ids and column names.
    empty_history_ : for each patient, whether all visits are empty.
    feature_patients_, static_patients_ : number of patients of the fit with each feature.
    score_totals_ : sums of W_ over the patients.
    static_rates_, phenotype_rates_ : rate of each static fact (mean of a column that is not 0 or 1) in the cohort (P),
        and among the patients who have each phenotype (P × R); from rounded counts, NaN where these are withheld.
    static_numeric_ : 1 for static columns of other values than 0 and 1, whose rates are means.
    guides_ : for each guide its phenotype, and why the data do not support it ("unsupported"), None if they do.
    names_ : the names of the phenotypes, from guides and reviews; empty for those without one.
    refit_, background_ : of a refitted model, see `refit`: the review and the origin of each phenotype; the phenotypes
        that it does not show.
    shareable_ : whether the model was saved without what too few patients have.
    rounding_key_ : hash of the data from which reports draw the rounding of counts.
    warnings_ : what is unusual about the scores, in a sentence each; the fit warned of it.
    cohort_settings_ : the settings that the cohort was built with by `phenotaste cohort`, else None.
    cohort_thresholds_ : the quantiles by which its measurements were rated, for new patients; often empty.
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
        "objective": ("relative", "paper"),
        "init": ("short_fits", "nmf", "nmf_visits", "random"),
        "dtype": ("float64", "float32"),
        "device": ("cpu", "cuda", "auto"),
    }
    _counts: ClassVar[tuple[str, ...]] = ("rank", "max_iter")
    _amounts: ClassVar[tuple[str, ...]] = ("lam", "mu", "smooth", "balance", "tol")

    def __init__(
        self,
        rank: int = 5,
        *,
        objective: Literal["relative", "paper"] = "relative",
        lam: float = 0.01,
        mu: float = 1.0,
        smooth: float = 0.3,
        balance: float = 0.5,
        init: Literal["short_fits", "nmf", "nmf_visits", "random"] = "short_fits",
        n_init: int | None = None,
        guides: Mapping[str, Any] | None = None,
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
        self.objective = objective
        self.lam = lam
        self.mu = mu
        self.smooth = smooth
        self.balance = balance
        self.init = init
        self.n_init = n_init
        self.guides = guides
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
        >>> model.outcome_, round(model.rmse_, 1), model.cpi_ > 0.95
        ('converged', 0.4, True)
        """
        self._fit_cohort(cohort, None)
        return self

    def refit(
        self,
        cohort: Cohort,
        review: str | os.PathLike[str] | Mapping[str, Any] | Review,
        *,
        freedom: float = 0.0,
        rank: int | None = None,
    ) -> "TASTE":
        """Fit again after a review: a new model, which keeps what was accepted and hides what was rejected.

        Accepted phenotypes keep their columns of V and F. Merged ones become one, which begins at the sum of their
        definitions and is estimated anew, as are open ones, from where they were. Rejected ones stay in the fit as
        fixed columns that are not shown (`background_`), so that what they explain does not come back under another
        name. A review that decides nothing gives the result of `fit`; where all phenotypes are accepted or rejected,
        H is kept too, and scores are those of `transform`. The settings are those of this model.

        Parameters
        ----------
        cohort : patients with the features of this model, such as those of the fit.
        review : the review of this model: a file, its content, or a Review.
        freedom : how far accepted definitions may move: the cosines of the new columns of V and F with the accepted
            ones are at least 1 − freedom. With 0 the columns are the same to the bit.
        rank : number of phenotypes to be shown; more than the review keeps are found anew. By default those that
            it keeps.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.review import Decision, Review
        >>> cohort, truth = simulate.ehr(100, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, n_init=1, random_state=0).fit(cohort)
        >>> decisions = (Decision(1, "Gout", status="accepted"), Decision(2, status="rejected"), Decision(3))
        >>> again = model.refit(cohort, replace(Review.blank(model), decisions=decisions), rank=3)
        >>> bool((again.V_[:, 0] == model.V_[:, 0]).all()), again.background_.size
        (True, 1)
        >>> [(row["phenotype"], row["from"], row["decision"]) for row in again.refit_["phenotypes"]]
        [(1, [1], 'accepted'), (2, [3], 'open'), (3, [], 'new')]
        """
        check_is_fitted(self, "V_")
        if self._paper:
            raise InputError(
                'A refit needs objective="relative": fit the model again with it, and review that one.'
            )
        check_same_columns(cohort, self)
        review = Review.read(review)
        review.check_model(self)
        plan = plan_refit(self, review, freedom, rank)
        settings = self.get_params(deep=False) | {"rank": plan.rank, "guides": self._open_guides(plan)}
        model = TASTE(**settings)
        if plan.undecided:
            model.fit(cohort)
        elif plan.given.all_fixed and plan.rank == len(plan.origins):
            model._project_cohort(cohort, self, plan)
        else:
            model._fit_cohort(cohort, plan.given)
        if not plan.undecided:
            model.guides_ = plan.guides
        model.refit_ = refit_record(model, plan, review, freedom, self.refit_)
        return model

    def _open_guides(self, plan: RefitPlan) -> dict[str, Any] | None:
        """The guides of phenotypes that a review leaves open, as a setting."""
        kept = {row["name"] for row in plan.guides}
        guides = [guide for guide in parse_guides(self.guides) if guide.name in kept]
        return {each.name: {"codes": list(each.codes), "strength": each.strength} for each in guides} or None

    def _project_cohort(self, cohort: Cohort, before: "TASTE", plan: RefitPlan) -> None:
        """The fitted attributes where nothing is left to fit: weights and mean scores are those of the model before."""
        self._check_settings()
        given, engine = plan.given, self._engine()
        mean = all_mean_scores(before)[list(plan.sources)]
        with engine.memory_limit():
            aligned = self._read(cohort)
            weights = self._weights(aligned, given.rank, before.lam_eff_, self._influence(aligned))
            with self._open_session(engine, aligned, weights, given.rank, cohort.shape[1]) as session:
                found = session.project(given.model, PROJECTION_TOL, PROJECTION_ITERATIONS)
            score_without_history(found.W, aligned, given.model.F, weights.lam, mean)
            self.n_starts_ = 1
            fit = loop.Fit(given.model, found, [float(found.loss.sum())], loop.Outcome.CONVERGED)
            self._set_fitted(fit, cohort, aligned, weights, given.background, mean)

    def _fit_cohort(self, cohort: Cohort, given: Given | None) -> None:
        """Fit `rank` phenotypes, of which the first may be given, and the background that is given."""
        self._check_settings()
        engine = self._engine()
        with engine.memory_limit():
            aligned = self._read(cohort)
            rank = self.rank + (0 if given is None else len(given.background))
            guides = find_guides(self.guides, cohort.feature_names) if given is None else []
            with self._open(engine, aligned, cohort, rank) as session:
                if guides:
                    given = self._guided(guides, aligned, session.weights, cohort.shape[1])
                writer = self._checkpoint_writer(session, cohort, aligned, given)
                session.check_init_memory(self.init)
                session.check_disk(self._n_starts())
                with nullcontext() if writer is None else closing(writer):
                    self._fit(FitRun(session, cohort, aligned, rank, given, writer))
            if guides and given is not None:
                self.guides_ = judge(guides, aligned.shard, given.model.V, self.V_, self.W_)
        for row in self.guides_:
            if guides and row["unsupported"] is not None:
                sentence = f"The guide {row['name']!r} is not supported by the data: {row['unsupported']}."
                self.warnings_.append(sentence)
                warnings.warn(sentence, stacklevel=3)

    def _fit(self, run: "FitRun") -> None:
        n_starts = self._n_starts() if run.draws else 1  # without a draw all starts are the same
        with one_blas_thread():  # also for the small products between the steps: idle BLAS threads spin
            best = self._best_start(
                lambda start, rng: self._run_start(start, rng, run, self._progress_callback(start, n_starts)),
                run.writer,
                n_starts,
            )
        weights, aligned = run.session.weights, run.aligned
        mean = mean_of_scores(best.patients.W, weights.influence)
        score_without_history(best.patients.W, aligned, best.model.F, weights.lam, mean)
        self._set_fitted(best, run.cohort, aligned, weights, run.hidden)
        if run.writer is not None:
            run.writer.complete()

    def _guided(
        self, guides: list[tuple[Guide, Array]], aligned: Aligned, weights: Weights, n_features: int
    ) -> Given:
        """The columns that guides begin with, each near where it begins."""
        rows = [mask for _, mask in guides]
        V = guided(aligned.shard, weights, n_features, self.rank, rows, self._n_threads())
        near = tuple((g, Near(V[:, g], guide.strength)) for g, (guide, _) in enumerate(guides))
        F = np.zeros((aligned.shard.static.shape[1], len(guides)))
        return Given(Model(np.eye(len(guides)), V, F), Constraints(V=near))

    def _checkpoint_writer(
        self, session: EngineSession, cohort: Cohort, aligned: Aligned, given: Given | None
    ) -> CheckpointWriter | None:
        if self.checkpoint is None:
            return None

        def identity() -> dict[str, Any]:
            digest = shard_digest(aligned.shard, cohort.feature_names, cohort.static_names)
            settings = model_file.settings_of(self)
            if given is not None:
                settings["review"] = given.digest()
            return {"settings": settings, "cohort": digest}

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
        found = self._project_all(cohort)
        if self.background_ is None:
            return found
        W, U = (
            select_columns(array, self.background_.shown, self._allocator()) for array in (found.W, found.U)
        )
        return found._replace(W=W, U=U)

    def _project_all(self, cohort: Cohort) -> Projection:
        """`project` with the background of a refitted model."""
        check_is_fitted(self, "V_")
        check_cohort(cohort, type(self).__name__)
        definitions = all_definitions(self)
        rank, engine = definitions.V.shape[1], self._engine()
        with engine.memory_limit():
            aligned = align(cohort, columns_of_fitted(self), engine.allocate)
            self._check_sizes(aligned)
            weights = self._weights(aligned, rank, self.lam_eff_, self._influence(aligned))
            with self._open_session(engine, aligned, weights, rank, len(self.V_)) as session:
                scored = session.project(definitions, PROJECTION_TOL, PROJECTION_ITERATIONS)
        score_without_history(scored.W, aligned, definitions.F, self.lam_eff_, all_mean_scores(self))
        return as_projection(scored, cohort, aligned, weights)

    def _check_names(self, cohort: Cohort) -> None:
        find_guides(self.guides, cohort.feature_names)

    def _check_settings(self) -> None:
        super()._check_settings()
        guides = parse_guides(self.guides)
        if guides and self._paper:
            raise InputError('guides need objective="relative": leave them out, or the objective.')
        if len(guides) > self.rank:
            raise InputError(f"rank={self.rank} is less than the {len(guides)} guides: give a larger rank.")
        if self.n_init is not None:
            check_integer("n_init", self.n_init, min=1)
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
        if self.device == "cuda" or (self.device == "auto" and not self._paper and cuda_available()):
            return CudaEngine()
        return ThreadEngine()

    def _allocator(self) -> Allocator:
        return self._engine().allocate

    def _open(self, engine: Engine, aligned: Aligned, cohort: Cohort, rank: int) -> EngineSession:
        """A session for a fit of that many columns."""
        if self.mu == 0:
            warnings.warn("mu=0 drops the uniqueness term: the phenotypes are then not unique.", stacklevel=3)
        influence = self._influence(aligned)
        lam = float(self.lam)
        if not self._paper:
            lam = relative_static_weight(lam, aligned.shard.static, influence)
        weights = self._weights(aligned, rank, lam, influence)
        return self._open_session(engine, aligned, weights, rank, cohort.shape[1])

    def _open_session(
        self, engine: Engine, aligned: Aligned, weights: Weights, rank: int, n_features: int
    ) -> EngineSession:
        return engine.open(
            aligned.shard,
            weights,
            rank,
            n_features,
            exact=self._paper,
            dtype=self.dtype,
            n_jobs=self._n_threads(),
        )

    @property
    def _paper(self) -> bool:
        return self.objective == "paper"

    def _n_starts(self) -> int:
        if self.n_init is not None:
            return self.n_init
        return 1 if self._paper else N_STARTS

    def _scored(self, best: loop.Fit, cohort: Cohort) -> Scored:
        return best.patients

    def _check_sizes(self, aligned: Aligned) -> None:
        if self._paper:
            super()._check_sizes(aligned)
            return
        for size in aligned.sizes.min(where=aligned.sizes > 0, initial=1.0), aligned.sizes.max(initial=0.0):
            check_size("visits'", float(size), PATIENT_SIZE_RANGE)
        check_static_size(aligned)

    def _influence(self, aligned: Aligned) -> Array:
        return influence_of(0.0 if self._paper else self.balance, aligned)

    def _weights(self, aligned: Aligned, rank: int, lam: float, influence: Array) -> Weights:
        """The weights of these patients."""
        if self._paper:
            return Weights.absolute(lam, self.mu * (aligned.sizes > 0), influence)
        return relative_weights(aligned, rank, lam, self.mu, self.smooth, influence)

    def _fitted_weights(self) -> Weights:
        if self._paper:
            return super()._fitted_weights()
        tau = self.smooth / len(all_definitions(self).H)
        return Weights(self.lam_eff_, tau, True, self.mu_k_, 1 / self.scale_, self.influence_)

    def _run_start(
        self,
        start: int,
        rng: np.random.Generator,
        run: "FitRun",
        callback: Callable[[int, float], object] | None,
    ) -> loop.Fit:
        """One fit from its own initialisation, or from where it was interrupted."""
        session, writer = run.session, run.writer
        begin: Model | loop.State | None = None if writer is None else writer.resumed_state(start)
        if begin is None:
            begin = self._initial_model(rng, run)
            if self._paper:
                session.init_U_uniform(rng)
            else:
                session.init_U(begin)
        return loop.fit(
            session,
            begin,
            normalize=not self._paper,
            exact=self._paper,
            max_iter=self.max_iter,
            tol=self.tol,
            callback=callback,
            on_iteration=None if writer is None else partial(writer.maybe_write, start),
            constraints=NO_CONSTRAINTS if run.given is None else run.given.constraints,
        )

    def _initial_model(self, rng: np.random.Generator, run: "FitRun") -> Model:
        shard, weights, n_features = run.aligned.shard, run.session.weights, run.cohort.shape[1]
        if run.given is not None and not run.draws:
            return run.given.model
        if not self._paper and self.init == "short_fits":
            threads = self._n_threads()
            return best_short_fit(shard, weights, n_features, run.rank, rng, threads, run.given)
        kind = "uniform" if self._paper else self.init
        return init_model(kind, shard, n_features, run.rank, not self._paper, rng, weights.scale, run.given)

    def _n_threads(self) -> int | None:
        return None if self.n_jobs is None or self.n_jobs < 1 else self.n_jobs


class FitRun(NamedTuple):
    """What all starts of a fit have in common."""

    session: EngineSession
    cohort: Cohort
    aligned: Aligned
    rank: int  # of all columns
    given: Given | None
    writer: CheckpointWriter | None

    @property
    def draws(self) -> bool:
        """Whether starts differ: not if all columns are given."""
        return self.given is None or self.given.rank < self.rank

    @property
    def hidden(self) -> tuple[int, ...]:
        return () if self.given is None else self.given.background


class OpenFit(NamedTuple):
    """A fit before its first iteration."""

    session: EngineSession  # to be closed by the caller
    aligned: Aligned
    model: Model


def open_fit(estimator: TASTE, cohort: Cohort, engine: Engine, seed: int = 0) -> OpenFit:
    """The fit of a cohort on an engine from a random start, for timing its steps."""
    estimator = TASTE(**{**estimator.get_params(), "engine": None, "device": "cpu", "checkpoint": None})
    aligned, paper, rng = estimator._read(cohort), estimator._paper, np.random.default_rng(seed)
    session, kind = estimator._open(engine, aligned, cohort, estimator.rank), "uniform" if paper else "random"
    model = init_model(kind, aligned.shard, cohort.shape[1], estimator.rank, not paper, rng)
    if paper:
        session.init_U_uniform(rng)
    else:
        session.init_U(model)
    return OpenFit(session, aligned, model)
