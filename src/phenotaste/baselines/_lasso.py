"""Lasso logistic regression whose strength is chosen by validation AUC, as in TASTE's supplement (Q3)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import sklearn
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from phenotaste.core.records import Array
from phenotaste.errors import InputError

PAPER_GRID = (1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0, 10000.0)  # the supplement's, for every baseline
# liblinear shrinks the intercept too, and with few cases that costs AUC (0.71 for 0.75 on the simulated heart-failure
# cohort); on a scale this large the shrinkage is nothing. saga leaves it alone, but does not converge at large C.
INTERCEPT_SCALING = 1000.0
NEW_SPELLING = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 8)  # of "penalty l1"


class Lasso(NamedTuple):
    """A fitted regression: P(case) = expit(X coef + intercept)."""

    coef: Array
    intercept: float
    C: float
    validation_auc: float  # NaN where no choice was made

    def probability(self, X: Any) -> Array:
        return expit(np.asarray(X @ self.coef) + self.intercept)


def fit_lasso(
    X: Any,
    case: Array,
    Cs: Sequence[float],
    held_out: tuple[Any, Array] | Array | None,
    *,
    max_iter: int = 1000,
    class_weight: str | None = None,
    seed: int = 0,
) -> Lasso:
    """Fit on all of X with the C of the best AUC; of two that tie the stronger lasso wins.

    `held_out` is other patients' (X, case), or a mask of the rows of X to choose by, or None: then the first C.
    """

    def fit(rows: Any, C: float) -> Lasso:
        spelling: dict[str, Any] = {"l1_ratio": 1.0} if NEW_SPELLING else {"penalty": "l1"}
        model = LogisticRegression(
            C=C,
            solver="liblinear",
            intercept_scaling=INTERCEPT_SCALING,
            max_iter=max_iter,
            class_weight=class_weight,
            random_state=seed,
            **spelling,
        ).fit(X[rows], case[rows])
        return Lasso(model.coef_[0].astype(np.float64), float(model.intercept_[0]), C, float("nan"))

    everyone: Any = slice(None)
    if len(Cs) == 1 or held_out is None:
        return fit(everyone, Cs[0])
    if isinstance(held_out, tuple):
        training, (X_choice, choice) = everyone, held_out
    else:
        training, X_choice, choice = ~held_out, X[held_out], case[held_out]
    tried = [fit(training, C) for C in sorted(Cs)]
    aucs = [float(roc_auc_score(choice, model.probability(X_choice))) for model in tried]
    best = int(np.argmax(aucs))
    final = tried[best] if isinstance(held_out, tuple) else fit(everyone, tried[best].C)
    return final._replace(validation_auc=aucs[best])


def checked_grid(C: Any) -> tuple[float, ...]:
    """C as given (one number, or several to choose from), or the paper's grid where it is None."""
    values = PAPER_GRID if C is None else tuple(C) if np.ndim(C) else (C,)
    sound = all(isinstance(value, (int, float, np.number)) and 0 < value < np.inf for value in values)
    if not values or not sound:
        raise InputError("C must be a positive number, or several of them to choose from.")
    return tuple(float(value) for value in values)
