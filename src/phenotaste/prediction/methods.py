"""The methods that can be compared: each learns from the training part, is tuned by the validation part, and then
gives patients' risks. None of them is ever shown the test part while that goes on."""

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
from phenotaste.prediction.split_cohorts import Parts
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
SCORED = {"copa": "Copa", "copa-static": "CopaStatic"}  # lasso on their scores, like TASTE's
NEED_STATIC = ("copa-static", "raw-static")
BY_DEFAULT = ("copa", "copa-static", "raw", "raw-static")  # those that need no torch


@dataclass(frozen=True)
class Grids:
    """What is tuned over, and what all fits have in common."""

    ranks: tuple[int, ...] = (5,)
    lams: tuple[float, ...] = (0.1,)
    mus: tuple[float, ...] = (1.0,)
    Cs: tuple[float, ...] = PAPER_GRID
    weights: str = "relative"
    n_init: int = 1
    max_iter: int = 200
    tol: float = 1e-4
    more: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # a method's own settings

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Candidate(NamedTuple):
    """One point of a method's grid, but for C; None where the method has no such setting."""

    rank: int | None = None
    lam: float | None = None
    mu: float | None = None


class Fitted(NamedTuple):
    """A method fitted with one candidate's settings."""

    validation_auc: float
    C: float | None
    risk: Callable[[Cohort], Array]
    scores: "ScoreModel | None" = None  # of the factorisations whose scores a lasso reads


class ScoreModel(NamedTuple):
    """A factorisation and the regression on its scores, each divided by its standard deviation in training."""

    factors: Any
    scale: Array
    lasso: Lasso

    def risk(self, cohort: Cohort) -> Array:
        return self.lasso.probability(self.factors.project(cohort).W / self.scale)


def candidates(method: str, grids: Grids) -> list[Candidate]:
    """In the order in which the first of equals wins: few phenotypes before many."""
    if method == TASTE_NAME:
        return [Candidate(rank, lam, mu) for rank in grids.ranks for lam in grids.lams for mu in grids.mus]
    if method in SCORED or method == "cntf":
        return [Candidate(rank) for rank in grids.ranks]
    return [Candidate()]


def cost(method: str, candidate: Candidate) -> float:
    """How long a fit takes beside others, roughly; only the time left is told by it."""
    if candidate.rank is None:
        return 40.0 if method == "gru" else 4.0
    dear = {TASTE_NAME: 4.0, "cntf": 12.0}
    return dear.get(method, 1.0) * (4.0 + candidate.rank)


def fit(
    method: str, candidate: Candidate, parts: Parts, grids: Grids, seed: int, threads: int | None = None
) -> Fitted:
    """Learn from the training part and tune C, epochs and the like by the validation part."""
    if method == TASTE_NAME or method in SCORED:
        return with_lasso(factorisation(method, candidate, grids, seed, threads), parts, grids, seed)
    model = classifier(method, candidate, grids, seed)
    model.fit(parts.train, validation=parts.validation)

    def risk(cohort: Cohort) -> Array:
        return model.predict_proba(cohort)[:, 1]

    auc = roc_auc_score(case_of(parts.validation), risk(parts.validation))
    return Fitted(float(auc), getattr(model, "C_", None), risk)


def factorisation(
    method: str, candidate: Candidate, grids: Grids, seed: int, threads: int | None = None
) -> Any:
    settings: Any = candidate._asdict()
    shared: dict[str, Any] = {
        "n_init": grids.n_init, "max_iter": grids.max_iter, "tol": grids.tol, "n_jobs": threads, "random_state": seed
    }  # fmt: skip
    shared |= grids.more.get(method, {})
    if method == TASTE_NAME:
        return TASTE(**settings, **{"weights": grids.weights} | shared)
    return getattr(baselines, SCORED[method])(candidate.rank, **shared)


def classifier(method: str, candidate: Candidate, grids: Grids, seed: int) -> Any:
    own: dict[str, Any] = dict(grids.more.get(method, {})) | {"random_state": seed}
    if method == "cntf":
        return baselines.CNTF(candidate.rank or 0, **{"n_init": grids.n_init, "tol": grids.tol} | own)
    if method == "gru":
        return baselines.GRUClassifier(**own)
    return baselines.RawLogistic(static=method == "raw-static", C=grids.Cs, **own)


def with_lasso(factors: Any, parts: Parts, grids: Grids, seed: int) -> Fitted:
    """Lasso logistic regression on scores.

    Training patients are scored with the definitions fixed, as new ones will be: the scores a fit ends with are those
    of a patient step that has not settled, and a few of them are far out.
    """
    factors.fit(parts.train)
    W = factors.project(parts.train).W
    scale = scale_of(W)
    held_out = factors.project(parts.validation).W / scale, case_of(parts.validation)
    lasso = fit_lasso(W / scale, case_of(parts.train), grids.Cs, held_out, seed=seed % 2**31)
    model = ScoreModel(factors, scale, lasso)
    auc = lasso.validation_auc
    if np.isnan(auc):  # there was one C only, so nothing to choose
        auc = float(roc_auc_score(held_out[1], lasso.probability(held_out[0])))
    return Fitted(auc, lasso.C, model.risk, model)


def scale_of(W: Array) -> Array:
    """The standard deviation of each score; 1 for a score that all patients share."""
    found = W.std(axis=0)
    return np.where(found > 0, found, 1.0)


def case_of(part: Cohort) -> Array:
    return np.asarray(part.labels) == 1


def checked_methods(wanted: Iterable[str] | str | None, static: bool) -> list[str]:
    """The baselines asked for, after TASTE; those that need static features only where the cohort has some."""
    if wanted is None:
        return [TASTE_NAME, *(name for name in BY_DEFAULT if static or name not in NEED_STATIC)]
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in LABELS:
            raise InputError(f"There is no method {name!r}: choose among {', '.join(LABELS)}.")
        if name in NEED_STATIC and not static:
            raise InputError(f"The cohort has no static features, which {name} is for: leave {name} out.")
    return [TASTE_NAME, *dict.fromkeys(name for name in names if name != TASTE_NAME)]
