"""What is measured of a fitted method, the same for all: error in other patients, AUC."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

from phenotaste.baselines.lasso import PAPER_GRID, fit_lasso
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import align_visits, columns_of_fitted
from phenotaste.core.kernels.nnls import solve_rows_bpp
from phenotaste.core.records import Array
from phenotaste.prediction.methods import is_case, record_size, score_scale

SUM_BLOCK = 4096  # patients whose sums are dense at a time


class Aucs(NamedTuple):
    """Areas under the ROC curve on test patients; NaN where there is nothing to add, and for classifiers."""

    scores: float  # from the scores alone
    static: float  # and the static features
    size: float  # and the size of the record


def held_out_error(model: Any, cohort: Cohort) -> float | None:
    """The mean over patients of ‖x − V w‖² / ‖x‖², x the sum of the patient's visits, w ≥ 0 the best for it.

    It is the same for all methods, whatever they minimise: how much of other patients the definitions describe.
    Signed definitions have signed w. None without a patient who has a history.
    """
    visits = align_visits(cohort, columns_of_fitted(model)).visits
    V = model.V_
    shares: list[Array] = []
    for first in range(0, len(cohort), SUM_BLOCK):
        last = min(first + SUM_BLOCK, len(cohort))
        rows = visits[int(cohort.offsets[first]) : int(cohort.offsets[last])]
        owner = np.repeat(np.arange(last - first), np.diff(cohort.offsets[first : last + 1]))
        x = np.zeros((last - first, len(V)))
        entries = rows.tocoo()
        np.add.at(x, (owner[entries.coords[0]], entries.coords[1]), entries.data)
        sizes = np.linalg.norm(x, axis=1)
        x = x[sizes > 0] / sizes[sizes > 0, None]
        shares.append(np.sum((x - fitted_rows(x, V) @ V.T) ** 2, axis=1))
    known = np.concatenate(shares) if shares else np.zeros(0)
    return float(known.mean()) if len(known) else None


def fitted_rows(x: Array, V: Array) -> Array:
    """Coefficients of each row: non-negative ones unless V is signed."""
    if V.min(initial=0.0) < 0:
        return np.linalg.lstsq(V, x.T, rcond=None)[0].T
    W = np.zeros((len(x), V.shape[1]))
    solve_rows_bpp(V.T @ V, x @ V, W)
    return W


def aucs(model: Any, train: Cohort, validation: Cohort, test: Cohort, seed: int) -> Aucs:
    """AUC on the test patients of a fitted model: of a classifier, or of a lasso regression on the scores.

    All patients are scored under the definitions of training patients, as new ones; the strength of the lasso is the
    one with the highest validation AUC.
    """
    if hasattr(model, "classes_"):
        risk = model.predict_proba(test)[:, 1]
        return Aucs(float(roc_auc_score(is_case(test), risk)), float("nan"), float("nan"))
    parts = train, validation, test
    known = [np.asarray(model.transform(part), np.float64) for part in parts]
    found = [regression_auc(known, parts, seed)]
    for more in (static_of, record_size):
        columns = [more(part) for part in parts]
        known = [np.hstack(pair) for pair in zip(known, columns, strict=True)]
        found.append(regression_auc(known, parts, seed) if columns[0].shape[1] else float("nan"))
    return Aucs(*found)


def static_of(cohort: Cohort) -> Array:
    return np.zeros((len(cohort), 0)) if cohort.static is None else np.asarray(cohort.static)


def regression_auc(X: list[Array], parts: tuple[Cohort, Cohort, Cohort], seed: int) -> float:
    scale = score_scale(X[0])
    train, validation, test = (is_case(part) for part in parts)
    held_out = X[1] / scale, validation
    lasso = fit_lasso(X[0] / scale, train, PAPER_GRID, held_out, seed=seed % 2**31)
    return float(roc_auc_score(test, lasso.probability(X[2] / scale)))
