"""Cohen+: non-negative PARAFAC2 by flexible coupling, coupled with the static features.

J. E. Cohen, R. Bro: "Nonnegative PARAFAC2: a flexible coupling approach", LVA/ICA 2018; coupled with the static matrix
as in question Q1 of A. Afshar et al.: "TASTE: temporal and static tensor factorization for phenotyping electronic
health records", CHIL 2020.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from phenotaste.baselines._cohen_published import Published
from phenotaste.cohort import Cohort, check_cohort
from phenotaste.cohort.align import Aligned, align, columns_of_fitted
from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.model_step import model_step
from phenotaste.core.no_history import mean_of_scores
from phenotaste.core.records import Array, Model, Scored, Weights
from phenotaste.engines.partition import has_history
from phenotaste.engines.threads import ThreadEngine, ThreadSession, one_blas_thread
from phenotaste.factorization import (
    Factorization,
    Projection,
    as_projection,
    patient_weights,
    score_without_history,
    static_weight,
)
from phenotaste.validation import check_number

PROJECTION_TOL = 1e-8
PROJECTION_ITERATIONS = 1000
COUPLED = 1e-6  # mean ‖U − QH‖² / ‖H‖² below which a larger μ would only add rounding errors


class CohenPlus(Factorization):
    """Non-negative PARAFAC2 by flexible coupling (Cohen & Bro 2018) with A ≈ W Fᵀ (Afshar et al. 2020, Q1).

    The objective is that of `TASTE(objective="paper")`, U_k near Q_k H by μ, with columns of H and V at unit norm; what
    differs is how it is minimised, and that Cohen & Bro let μ grow until the coupling is exact.

    Parameters
    ----------
    rank : number of phenotypes.
    lam, mu : weights of the static features and of the coupling; the paper's grid is 0.01, 0.1, 1 for both.
    weights : "absolute", as the paper has them, or "relative": λ to ‖X‖²/‖A‖² and μ to ‖X_k‖²/R.
    growth : 1 keeps μ as it is. Above 1, μ is after the first iteration set to `mu` times misfit over coupling error
        and multiplied by `growth` every iteration, until the coupling holds (the authors' code: growth 1.05, mu 0.2).
        It is one number for all patients, so that new ones can be projected with it; `weights` then holds for lam only.
    algorithm : "published" is the authors' HALS with explicit Khatri–Rao products, one dense patient at a time; "core"
        runs on TASTE's compiled patient step, extrapolated where μ is fixed.
    init, n_init, max_iter, tol, n_jobs, random_state, callback, verbose : as for TASTE, with one start by
        default; "published" uses one thread.

    Attributes
    ----------
    Those of TASTE, and mu_eff_: the μ that the fit ended with (of all patients, or as it was set).

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = baselines.CohenPlus(rank=4, random_state=0, max_iter=20).fit(cohort)
    >>> model.W_.shape, bool((model.U_ >= 0).all())
    ((20, 4), True)
    """

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "weights": ("absolute", "relative"),
        "algorithm": ("core", "published"),
        "init": ("nmf", "random"),
    }
    _amounts: ClassVar[tuple[str, ...]] = ("lam", "mu", "growth", "tol")
    _more_figures: ClassVar[tuple[str, ...]] = ("mu_eff_",)

    def __init__(
        self,
        rank: int = 5,
        *,
        lam: float = 0.1,
        mu: float = 0.1,
        weights: Literal["absolute", "relative"] = "absolute",
        growth: float = 1.0,
        algorithm: Literal["core", "published"] = "core",
        init: Literal["nmf", "random"] = "nmf",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-5,
        n_jobs: int | None = None,
        random_state: Any = None,
        callback: Callable[[loop.Progress], object] | None = None,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.lam = lam
        self.mu = mu
        self.weights = weights
        self.growth = growth
        self.algorithm = algorithm
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    def fit(self, cohort: Cohort, y: Any = None) -> Self:
        """Find the phenotypes of a cohort; y is ignored.

        Examples
        --------
        >>> from phenotaste import baselines, metrics, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> model = baselines.CohenPlus(rank=4, random_state=0, max_iter=20).fit(cohort)
        >>> round(model.mu_eff_, 2), round(metrics.matched_similarity(model.V_, truth.V), 2)
        (0.1, 1.0)
        """
        aligned = self._read(cohort)
        lam = static_weight(self.lam, self.weights, aligned)
        fixed = patient_weights(self.mu, self.weights, aligned.norms, self.rank)
        results: list[tuple[loop.Fit, Array]] = []  # of every start: the fit, and its final μ_k
        with (
            self._open(aligned, self._weights(lam, fixed, aligned), self.rank, cohort.shape[1]) as session,
            one_blas_thread(),
        ):
            best = self._best_start(lambda start, rng: self._run_start(start, rng, session, results))
        mu = next(weights for fit, weights in results if fit is best)
        self.mu_eff_ = float(mu.max(initial=0.0)) if self.growth > 1 else float(self.mu)
        weights = self._weights(lam, mu, aligned)
        mean = mean_of_scores(best.patients.W, weights.influence)
        score_without_history(best.patients.W, aligned, best.model.F, lam, mean)
        self._set_fitted(best, cohort, aligned, weights)
        return self

    def project(self, cohort: Cohort) -> Projection:
        """Scores, courses and loss of patients under the fitted definitions.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> model = baselines.CohenPlus(rank=4, random_state=0, max_iter=20).fit(cohort[:15])
        >>> found = model.project(cohort[15:])
        >>> found.W.shape, found.U.shape
        ((5, 4), (500, 4))
        """
        check_is_fitted(self, "V_")
        check_cohort(cohort, type(self).__name__)
        rank = self.H_.shape[0]
        F = np.zeros((0, rank)) if self.F_ is None else self.F_
        aligned = align(cohort, columns_of_fitted(self))
        self._check_sizes(aligned)
        weights = "absolute" if self.growth > 1 else self.weights
        mu = patient_weights(self.mu_eff_, weights, aligned.norms, rank)
        fixed = self._weights(self.lam_eff_, mu, aligned)
        with self._open(aligned, fixed, rank, len(self.V_)) as session:
            scored = session.project(Model(self.H_, self.V_, F), PROJECTION_TOL, PROJECTION_ITERATIONS)
        score_without_history(scored.W, aligned, F, self.lam_eff_, self.mean_scores_)
        return as_projection(scored, cohort, aligned, fixed)

    def _check_settings(self) -> None:
        super()._check_settings()
        check_number("growth", self.growth, min=1)

    def _weights(self, lam: float, mu: Array, aligned: Aligned) -> Weights:
        return Weights.absolute(lam, mu, (aligned.sizes > 0).astype(np.float64))

    def _open(self, aligned: Aligned, weights: Weights, rank: int, n_features: int) -> ThreadSession:
        n_jobs = None if self.n_jobs is None or self.n_jobs < 1 else self.n_jobs
        return ThreadEngine().open(aligned.shard, weights, rank, n_features, n_jobs=n_jobs)

    def _scored(self, best: loop.Fit, cohort: Cohort) -> Scored:
        return best.patients

    def _run_start(
        self,
        start: int,
        rng: np.random.Generator,
        session: ThreadSession,
        results: list[tuple[loop.Fit, Array]],
    ) -> loop.Fit:
        """One fit from its own initialisation, appended to `results` with its final weights."""
        mu = session.weights.mu
        init = "random" if self.init == "nmf" and start % 2 else self.init
        model = init_model(init, session.shard, session.n_features, self.rank, True, rng)
        session.init_U(model)
        callback = self._progress_callback(start)
        if self.algorithm == "core" and self.growth == 1:
            fit = loop.fit(
                session,
                model,
                normalize=True,
                exact=False,
                max_iter=self.max_iter,
                tol=self.tol,
                callback=callback,
            )
        else:
            fit = self._alternate(session, model, callback)
        results.append((fit, session.weights.mu))
        session.set_mu(mu)
        return fit

    def _alternate(
        self, session: ThreadSession, model: Model, callback: Callable[[int, float], object] | None
    ) -> loop.Fit:
        """Plain iterations with fixed or growing μ; the session ends with the U and weights of the last."""
        shard, lam, mu = session.shard, session.weights.lam, session.weights.mu
        has_data = np.where(has_history(shard), 1.0, 0.0)
        if self.growth > 1:
            mu = self.mu * float(np.sum(shard.data.astype(np.float64) ** 2)) / self.rank * has_data
            mu = mu / max(len(has_data), 1)
        method: Method = (
            CoreMethod(session, model)
            if self.algorithm == "core"
            else Published(shard, model, session.U, lam)
        )
        losses: list[float] = []
        outcome = loop.Outcome.MAX_ITER
        for iteration in range(1, self.max_iter + 1):
            misfit, coupling, loss = method.iterate(mu)
            losses.append(loss)
            if not np.isfinite(loss):
                outcome = loop.Outcome.NOT_FINITE
                break
            if callback is not None and callback(iteration, loss) is True:
                outcome = loop.Outcome.STOPPED
                break
            if self.growth > 1 and iteration < self.max_iter:
                if iteration == 1:
                    mu = self.mu * (misfit / coupling if coupling > 0 else 1.0) * has_data
                elif coupling > COUPLED * self.rank * has_data.sum():
                    mu = mu * self.growth
            if self.tol > 0 and iteration > 2 and abs(losses[-2] - loss) < self.tol * loss:
                outcome = loop.Outcome.CONVERGED
                break
        session.set_mu(mu)
        session.set_U(method.U)
        scored = session.score(method.model, method.W)
        losses[-1] = float(scored.loss.sum())
        return loop.Fit(method.model, scored, losses, outcome)


class Method(Protocol):
    """An algorithm for one iteration."""

    @property
    def model(self) -> Model: ...

    @property
    def U(self) -> Array: ...

    @property
    def W(self) -> Array | None:
        """The scores, or None if they are to be solved for U."""

    def iterate(self, mu: Array) -> tuple[float, float, float]:
        """Misfit Σ‖X − X̂‖², coupling error Σ‖U − QH‖², objective."""


class CoreMethod:
    """Compiled patient steps without extrapolation, since the objective changes with μ."""

    W = None

    def __init__(self, session: ThreadSession, model: Model) -> None:
        self.session, self.model = session, model

    @property
    def U(self) -> Array:
        return self.session.U

    def iterate(self, mu: Array) -> tuple[float, float, float]:
        lam = self.session.weights.lam
        self.session.set_mu(mu)
        sums = self.session.step(self.model)
        V = self.model.V
        misfit = sums.scalars[0] - 2 * np.sum(sums.XU * V) + np.sum(sums.UU * (V.T @ V))
        self.model, loss = model_step(sums, self.model, lam, normalize=True, exact=False)
        H = self.model.H
        weighted = sums.scalars[3] - 2 * np.sum(sums.QU * H) + sums.scalars[2] * np.sum(H**2)
        level = float(mu.max(initial=0.0))
        return float(misfit), float(weighted) / level if level > 0 else 0.0, loss
