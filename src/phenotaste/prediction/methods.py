"""The methods that can be compared: each is fitted to training patients and tuned on validation patients, and then
predicts risks. Test patients are used for neither."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

from phenotaste import baselines
from phenotaste.baselines.lasso import PAPER_GRID, Lasso, fit_lasso
from phenotaste.cohort import Cohort
from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.prediction.split_cohorts import SplitCohorts
from phenotaste.taste import TASTE

TASTE_NAME = "taste"
LABELS = {
    TASTE_NAME: "TASTE",
    "copa": "COPA",
    "copa-static": "COPA with static",
    "cntf": "CNTF",
    "gru": "GRU",
    "raw": "Codes alone",
    "raw-static": "Codes and static",
}
SCORED = {"copa": "Copa", "copa-static": "CopaStatic"}  # with a lasso on their scores, as for TASTE
NEED_STATIC = ("copa-static", "raw-static")
DEFAULT_BASELINES = ("copa", "copa-static", "raw", "raw-static")  # those that need no torch


@dataclass(frozen=True)
class TuningSettings:
    """The tuning of hyperparameters, and what all fits have in common."""

    ranks: tuple[int, ...] = (5,)
    lams: tuple[float, ...] = (0.1,)
    mus: tuple[float, ...] = (1.0,)
    Cs: tuple[float, ...] = PAPER_GRID
    weights: str = "relative"
    n_init: int = 1
    max_iter: int = 200
    tol: float = 1e-4
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings by method

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Candidate(NamedTuple):
    """One point of a method's grid, except for C; None for settings that the method does not have."""

    rank: int | None = None
    lam: float | None = None
    mu: float | None = None


class Fitted(NamedTuple):
    """A method fitted with the settings of one candidate."""

    validation_auc: float
    C: float | None
    risk: Callable[[Cohort], Array]
    scores: "ScoreModel | None" = None  # of factorisations with a lasso on their scores


class ScoreModel(NamedTuple):
    """A factorisation and the regression on its scores, divided by their standard deviations in training."""

    factors: Any
    scale: Array
    lasso: Lasso

    def risk(self, cohort: Cohort) -> Array:
        return self.lasso.probability(self.factors.project(cohort).W / self.scale)


def candidates(method: str, tuning: TuningSettings) -> list[Candidate]:
    """Return the candidates; among ties the first wins, so that few phenotypes come before many."""
    if method == TASTE_NAME:
        return [Candidate(rank, lam, mu) for rank in tuning.ranks for lam in tuning.lams for mu in tuning.mus]
    if method in SCORED or method == "cntf":
        return [Candidate(rank) for rank in tuning.ranks]
    return [Candidate()]


def cost(method: str, candidate: Candidate) -> float:
    """Return the approximate relative duration of a fit, for the estimate of the time left."""
    if candidate.rank is None:
        return 40.0 if method == "gru" else 4.0
    factor = {TASTE_NAME: 4.0, "cntf": 12.0}
    return factor.get(method, 1.0) * (4.0 + candidate.rank)


def fit(
    method: str,
    candidate: Candidate,
    cohorts: SplitCohorts,
    tuning: TuningSettings,
    seed: int,
    threads: int | None = None,
) -> Fitted:
    """Fit to the training patients; C, epochs and the like are tuned on the validation patients."""
    if method == TASTE_NAME or method in SCORED:
        return with_lasso(factorisation(method, candidate, tuning, seed, threads), cohorts, tuning, seed)
    model = classifier(method, candidate, tuning, seed)
    model.fit(cohorts.train, validation=cohorts.validation)

    def risk(cohort: Cohort) -> Array:
        return model.predict_proba(cohort)[:, 1]

    auc = roc_auc_score(is_case(cohorts.validation), risk(cohorts.validation))
    return Fitted(float(auc), getattr(model, "C_", None), risk)


def factorisation(
    method: str, candidate: Candidate, tuning: TuningSettings, seed: int, threads: int | None = None
) -> Any:
    settings: Any = candidate._asdict()
    shared: dict[str, Any] = {
        "n_init": tuning.n_init, "max_iter": tuning.max_iter, "tol": tuning.tol, "n_jobs": threads, "random_state": seed
    }  # fmt: skip
    shared |= tuning.extra.get(method, {})
    if method == TASTE_NAME:
        return TASTE(**settings, **{"weights": tuning.weights} | shared)
    return getattr(baselines, SCORED[method])(candidate.rank, **shared)


def classifier(method: str, candidate: Candidate, tuning: TuningSettings, seed: int) -> Any:
    own: dict[str, Any] = dict(tuning.extra.get(method, {})) | {"random_state": seed}
    if method == "cntf":
        return baselines.CNTF(candidate.rank or 0, **{"n_init": tuning.n_init, "tol": tuning.tol} | own)
    if method == "gru":
        return baselines.GRUClassifier(**own)
    return baselines.RawLogistic(static=method == "raw-static", C=tuning.Cs, **own)


def with_lasso(factors: Any, cohorts: SplitCohorts, tuning: TuningSettings, seed: int) -> Fitted:
    """Fit a factorisation and a lasso logistic regression on its scores.

    Training patients are projected, as new patients will be: the scores at the end of a fit are those of a patient step
    that has not converged, and some of them are outliers.
    """
    factors.fit(cohorts.train)
    W = factors.project(cohorts.train).W
    scale = score_scale(W)
    held_out = factors.project(cohorts.validation).W / scale, is_case(cohorts.validation)
    lasso = fit_lasso(W / scale, is_case(cohorts.train), tuning.Cs, held_out, seed=seed % 2**31)
    model = ScoreModel(factors, scale, lasso)
    auc = lasso.validation_auc
    if np.isnan(auc):  # a single C needs no validation
        auc = float(roc_auc_score(held_out[1], lasso.probability(held_out[0])))
    return Fitted(auc, lasso.C, model.risk, model)


def score_scale(W: Array) -> Array:
    """Return the standard deviation of each score; 1 for a constant score."""
    deviation = W.std(axis=0)
    return np.where(deviation > 0, deviation, 1.0)


def is_case(cohort: Cohort) -> Array:
    return np.asarray(cohort.labels) == 1


def checked_methods(baselines: Iterable[str] | str | None, static: bool) -> list[str]:
    """Return TASTE and the baselines; by default, those that need static features only if the cohort has some."""
    if baselines is None:
        return [TASTE_NAME, *(name for name in DEFAULT_BASELINES if static or name not in NEED_STATIC)]
    names = [baselines] if isinstance(baselines, str) else list(baselines)
    for name in names:
        if name not in LABELS:
            raise InputError(f"The method {name!r} does not exist: choose among {', '.join(LABELS)}.")
        if name in NEED_STATIC and not static:
            raise InputError(f"The cohort has no static features, which {name} requires: leave {name} out.")
    return [TASTE_NAME, *dict.fromkeys(name for name in names if name != TASTE_NAME)]
