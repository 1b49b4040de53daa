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
from phenotaste.validation import is_number

PAPER_GRID = (1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0, 10000.0)  # the supplement's, for every baseline
# liblinear penalises the intercept too, which with few cases lowers the AUC (0.71 instead of 0.75 on the simulated
# heart-failure cohort); with a scaling this large the penalty is negligible. saga does not penalise it, but does not
# converge at large C.
INTERCEPT_SCALING = 1000.0
SKLEARN_VERSION = tuple(map(int, sklearn.__version__.split(".")[:2]))
L1_PENALTY: dict[str, Any] = {"l1_ratio": 1.0} if SKLEARN_VERSION >= (1, 8) else {"penalty": "l1"}


class Lasso(NamedTuple):
    """A fitted regression: P(case) = expit(X coef + intercept)."""

    coef: Array
    intercept: float
    C: float
    validation_auc: float  # NaN unless C was chosen by it

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
    """Fit on all of X with the C of the best validation AUC; ties go to the smaller C.

    `held_out` is (X, case) of other patients, a mask of the rows of X to hold out for the choice, or None for Cs[0].
    """

    def fit(rows: Any, C: float) -> Lasso:
        model = LogisticRegression(
            C=C,
            solver="liblinear",
            intercept_scaling=INTERCEPT_SCALING,
            max_iter=max_iter,
            class_weight=class_weight,
            random_state=seed,
            **L1_PENALTY,
        ).fit(X[rows], case[rows])
        return Lasso(model.coef_[0].astype(np.float64), float(model.intercept_[0]), C, float("nan"))

    all_rows: Any = slice(None)
    if len(Cs) == 1 or held_out is None:
        return fit(all_rows, Cs[0])
    if isinstance(held_out, tuple):
        training, (X_validation, validation) = all_rows, held_out
    else:
        training, X_validation, validation = ~held_out, X[held_out], case[held_out]
    candidates = [fit(training, C) for C in sorted(Cs)]
    aucs = [float(roc_auc_score(validation, model.probability(X_validation))) for model in candidates]
    best = int(np.argmax(aucs))
    final = candidates[best] if isinstance(held_out, tuple) else fit(all_rows, candidates[best].C)
    return final._replace(validation_auc=aucs[best])


def checked_grid(C: Any) -> tuple[float, ...]:
    """C (a number, or several to choose from) as a tuple; the paper's grid if None."""
    values = PAPER_GRID if C is None else tuple(C) if np.ndim(C) else (C,)
    if not values or not all(is_number(value, closed="neither") for value in values):
        raise InputError("C must be a positive number or a sequence of positive numbers.")
    return tuple(float(value) for value in values)
