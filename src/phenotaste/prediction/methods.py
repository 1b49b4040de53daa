"""The methods that can be compared: each is fitted to training patients and tuned on validation patients, and then
predicts risks. Test patients are used for neither."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.linalg import norm as sparse_norm
from sklearn.metrics import roc_auc_score

from phenotaste import baselines
from phenotaste.baselines.lasso import PAPER_GRID, Lasso, fit_lasso
from phenotaste.cohort import Cohort
from phenotaste.core.records import Array
from phenotaste.courses import PREDICTORS, describe
from phenotaste.errors import InputError
from phenotaste.patients import Patients
from phenotaste.prediction.split_cohorts import SplitCohorts
from phenotaste.taste import TASTE

TASTE_NAME = "taste"
SCORE = "score"  # as the name of a column, beside the features of courses
LABELS = {
    TASTE_NAME: "TASTE",
    "copa": "COPA",
    "copa-static": "COPA with static",
    "cntf": "CNTF",
    "gru": "GRU",
    "raw": "Codes alone",
    "raw-static": "Codes and static",
    "nmf": "NMF",
    "visit-nmf": "NMF of visits",
    "lda": "LDA",
    "svd": "SVD",
    "boosting": "Gradient boosting",
}
# Methods without courses: the features of a patient are the scores alone, also with courses=True.
POOLED = {"nmf": "PatientNMF", "visit-nmf": "VisitNMF", "lda": "PatientLDA", "svd": "PatientSVD"}
SCORED = {"copa": "Copa", "copa-static": "CopaStatic", **POOLED}  # with a lasso on their scores, as for TASTE
NEED_STATIC = ("copa-static", "raw-static")
DEFAULT_BASELINES = ("copa", "copa-static", "raw", "raw-static")  # the paper's that need no torch


@dataclass(frozen=True)
class TuningSettings:
    """The tuning of hyperparameters, and what all fits have in common."""

    ranks: tuple[int, ...] = (5,)
    lams: tuple[float, ...] = (0.01,)
    mus: tuple[float, ...] = (1.0,)
    Cs: tuple[float, ...] = PAPER_GRID
    objective: str = "relative"
    smooth: float | None = None  # as in TASTE
    balance: float = 0.5
    n_init: int | None = None  # each method's own
    max_iter: int = 200
    tol: float = 1e-4
    courses: bool = False  # features of courses beside the scores, of methods that have courses
    size: bool = False  # the size of the record beside the scores; the paper does without, `evaluate` has it by default
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
    courses: bool
    size: bool

    def risk(self, cohort: Cohort) -> Array:
        return self.lasso.probability(
            score_features(self.factors, cohort, self.courses, self.size) / self.scale
        )

    @property
    def coef(self) -> Array:
        """The coefficients of the phenotypes, in the order of `feature_names`."""
        return self.lasso.coef[:-1] if self.size else self.lasso.coef


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
    if method in POOLED:
        return pooled(method, candidate, tuning, seed)
    settings: Any = candidate._asdict()
    shared: dict[str, Any] = {
        "max_iter": tuning.max_iter,
        "tol": tuning.tol,
        "n_jobs": threads,
        "random_state": seed,
        **starts(tuning),
    }
    if method == TASTE_NAME:
        shared |= {"objective": tuning.objective, "balance": tuning.balance}
        shared |= {} if tuning.smooth is None else {"smooth": tuning.smooth}
    shared |= tuning.extra.get(method, {})
    if method == TASTE_NAME:
        return TASTE(**settings, **shared)
    return getattr(baselines, SCORED[method])(candidate.rank, **shared)


def pooled(method: str, candidate: Candidate, tuning: TuningSettings, seed: int) -> Any:
    """A method without courses; when its iterations end is its own setting, which has another meaning than TASTE's."""
    shared = {} if method == "svd" else {"random_state": seed, **starts(tuning)}
    return getattr(baselines, POOLED[method])(candidate.rank, **shared | dict(tuning.extra.get(method, {})))


def starts(tuning: TuningSettings) -> dict[str, int]:
    """The number of starts as a setting, if it is not left to the method."""
    return {} if tuning.n_init is None else {"n_init": tuning.n_init}


def classifier(method: str, candidate: Candidate, tuning: TuningSettings, seed: int) -> Any:
    own: dict[str, Any] = dict(tuning.extra.get(method, {})) | {"random_state": seed}
    if method == "cntf":
        return baselines.CNTF(candidate.rank or 0, **starts(tuning) | {"tol": tuning.tol} | own)
    if method == "gru":
        return baselines.GRUClassifier(**own)
    if method == "boosting":
        return baselines.RawGradientBoosting(**own)
    return baselines.RawLogistic(static=method == "raw-static", C=tuning.Cs, **own)


def with_lasso(factors: Any, cohorts: SplitCohorts, tuning: TuningSettings, seed: int) -> Fitted:
    """Fit a factorisation and a lasso logistic regression on its scores.

    Training patients are projected, as new patients will be: the scores at the end of a fit are those of a patient step
    that has not converged.
    """
    factors.fit(cohorts.train)
    chosen = tuning.courses, tuning.size
    X = score_features(factors, cohorts.train, *chosen)
    scale = score_scale(X)
    held_out = (
        score_features(factors, cohorts.validation, *chosen) / scale,
        is_case(cohorts.validation),
    )
    lasso = fit_lasso(X / scale, is_case(cohorts.train), tuning.Cs, held_out, seed=seed % 2**31)
    model = ScoreModel(factors, scale, lasso, *chosen)
    auc = lasso.validation_auc
    if np.isnan(auc):  # a single C needs no validation
        auc = float(roc_auc_score(held_out[1], lasso.probability(held_out[0])))
    return Fitted(auc, lasso.C, model.risk, model)


def score_features(factors: Any, cohort: Cohort, courses: bool = False, size: bool = False) -> Array:
    """Return the scores and, with `courses`, the features of each phenotype's course, in the order of `feature_names`.

    With `size`, the last column is the size of the record. Every patient is described on their own, under definitions
    of the training patients. Methods without courses have scores alone.
    """
    projection = factors.project(cohort)
    columns = [np.asarray(projection.W)]
    if courses and factors.has_courses:
        columns.append(describe(Patients.of(projection), cohort.visit_times, PREDICTORS))
    if size:
        columns.append(record_size(cohort))
    return np.hstack(columns)


def record_size(cohort: Cohort) -> Array:
    """log ‖X_k‖ of each patient's visits, a column; 0 without a history.

    Scores that are relative to the size of the record leave it out, others contain it: with it, both know the same.
    The visits of a cohort are those of the observation window, and nothing later.
    """
    norms = sparse_norm(cohort.visits, axis=1)
    owner = np.repeat(np.arange(len(cohort)), np.diff(cohort.offsets))
    sizes = np.sqrt(np.bincount(owner, norms**2, len(cohort)))
    return np.log(np.where(sizes > 0, sizes, 1.0))[:, None]


def feature_names(rank: int, courses: bool) -> list[tuple[int, str]]:
    """Return phenotype (from 0) and name of each column of `score_features`, but for the size of the record."""
    scores = [(r, SCORE) for r in range(rank)]
    return scores + [(r, name) for r in range(rank) for name in PREDICTORS if courses]


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
