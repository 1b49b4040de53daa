"""Goodness of fit, and similarity of two sets of phenotypes.

`rmse` and `objective` use the fitted courses and scores if the cohort is the one the model was fitted on (the same
patient ids and visits), and projected ones otherwise.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from phenotaste.background import all_definitions, all_patients
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import align, columns_of_fitted
from phenotaste.core.kernels.driver import cross_product_gaps
from phenotaste.core.records import Scored, Weights
from phenotaste.engines.threads import ThreadSession
from phenotaste.errors import InputError


def objective(model: Any, cohort: Cohort) -> float:
    """The total objective: ½‖X − USVᵀ‖² + λ_eff/2 ‖A − WFᵀ‖² + the uniqueness term, or the method's own.

    Examples
    --------
    >>> from phenotaste import TASTE, metrics, simulate
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = TASTE(rank=4, random_state=0, max_iter=20).fit(cohort)
    >>> round(metrics.objective(model, cohort) / float(model.loss_curve_[-1]), 8)
    1.0
    """
    own = getattr(model, "own_objective", None)  # of a method with another loss
    if own is not None:
        return float(own(cohort))
    return float(losses(model, cohort)[0].loss.sum())


def rmse(model: Any, cohort: Cohort, static_weight: Literal["paper", "one"] = "paper") -> float:
    """Root mean square error over all entries of X and A; those of A have weight λ/2 as in the paper's text, or 1.

    Examples
    --------
    >>> from phenotaste import TASTE, metrics, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> model = TASTE(rank=3, random_state=0).fit(cohort[:50])
    >>> round(metrics.rmse(model, cohort[:50]), 1), round(metrics.rmse(model, cohort[50:]), 1)  # training, new
    (0.4, 0.4)
    """
    if static_weight not in ("paper", "one"):
        raise InputError(f"static_weight is {static_weight!r}: choose 'paper' (λ/2) or 'one'.")
    return rmse_of(
        model, *losses(model, cohort), static_weight=model.lam / 2 if static_weight == "paper" else 1.0
    )


def rmse_of(model: Any, patients: Scored, weights: Weights, static_weight: float) -> float:
    """`rmse` of scored patients, in the units of the data; patients without influence do not count."""
    counted = weights.influence > 0
    n_static = 0 if model.F_ is None else len(model.F_)
    n_entries = len(patients.U) * len(model.V_) + int(counted.sum()) * n_static
    visits = scaled_norm(np.sqrt(2 * patients.visit_error[counted]) / weights.scale[counted])
    static = np.sqrt(static_weight * 2 * patients.static_error[counted].sum())
    return float(np.hypot(visits, static) / np.sqrt(max(n_entries, 1)))


def scaled_norm(values: NDArray[Any]) -> float:
    """The Euclidean norm, also of numbers whose squares overflow."""
    largest = float(values.max(initial=0.0))
    return largest * float(np.linalg.norm(values / largest)) if largest > 0 else 0.0


def cpi(model: Any, short: Literal["include", "exclude"] = "include") -> float:
    """Cross-product invariance: 1 − Σ‖U_kᵀU_k − HᵀH‖² / Σ‖HᵀH‖²; 1 is perfect.

    Patients with fewer than two visits have no courses and are excluded; `short="exclude"` also excludes those with
    fewer visits than phenotypes, for whom U_kᵀU_k cannot reach full rank.

    Examples
    --------
    >>> from phenotaste import TASTE, metrics, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, mean_visits=6, random_state=1)
    >>> model = TASTE(rank=6, random_state=0).fit(cohort)
    >>> model.n_short_  # patients with fewer than six visits
    28
    >>> metrics.cpi(model) > 0.95, metrics.cpi(model, short="exclude") > 0.95
    (True, True)
    """
    if short not in ("include", "exclude"):
        raise InputError(f"short is {short!r}: choose 'include' or 'exclude'.")
    check_has_patients(model)
    counted = has_course(model)
    if short == "exclude":
        counted = counted & (np.diff(model.offsets_) >= model.H_.shape[0])
    H, U = all_definitions(model).H, np.ascontiguousarray(all_patients(model)[1])
    return cpi_of(cross_product_gaps(model.offsets_, U, H), counted, H)


def has_course(model: Any) -> NDArray[np.bool_]:
    """Patients with at least two visits: a single one has no course that could be unique."""
    return np.asarray(~model.empty_history_ & (np.diff(model.offsets_) > 1))


def present_cpi(model: Any, cohort: Cohort) -> float:
    """`cpi` over pairs of different phenotypes that a patient has, where there are as many visits as phenotypes.

    The constraint to unit columns makes the diagonal of U_kᵀU_k exact, and the course of a phenotype that a patient
    does not have is fitted to H alone: this is what remains to be judged.

    Examples
    --------
    >>> from phenotaste import TASTE, metrics, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> model = TASTE(rank=3, random_state=0).fit(cohort)
    >>> round(metrics.present_cpi(model, cohort), 2) == round(model.cpi_present_, 2)
    True
    """
    return present_cpi_of(losses(model, cohort)[0])


def present_cpi_of(patients: Scored) -> float:
    """`present_cpi` of scored patients."""
    size = patients.present_size.sum()
    return float(1 - patients.present_gap.sum() / size) if size > 0 else float("nan")


def cpi_of(gaps: NDArray[Any], counted: NDArray[Any], H: NDArray[Any]) -> float:
    """`cpi` from ‖U_kᵀU_k − HᵀH‖² of the patients in the mask `counted`."""
    if not counted.any():
        return float("nan")
    return float(1 - gaps[counted].sum() / (counted.sum() * np.sum((H.T @ H) ** 2)))


def losses(model: Any, cohort: Cohort) -> tuple[Scored, Weights]:
    """Each patient's parts of the objective, and cross-product gap, at the fitted or projected U and W."""
    definitions, aligned = all_definitions(model), align(cohort, columns_of_fitted(model))
    if is_fitted_on(model, cohort):
        (W, U), weights = all_patients(model), model._fitted_weights()
    else:
        projected = getattr(model, "_project_all", model.project)(cohort)
        U, W, weights = projected.U, projected.W, projected.weights
    with ThreadSession(aligned.shard, weights, np.ascontiguousarray(U), len(model.V_)) as session:
        return session.score(definitions, W), weights


def is_fitted_on(model: Any, cohort: Cohort) -> bool:
    return (
        getattr(model, "U_", None) is not None
        and np.array_equal(model.offsets_, cohort.offsets)
        and np.array_equal(model.patient_ids_, cohort.patient_ids)
    )


def check_has_patients(model: Any) -> None:
    if getattr(model, "U_", None) is None:
        raise InputError(
            "This model was saved without its patients: use model.project(cohort), "
            "or save it with include_patients=True."
        )


def cosines(X: ArrayLike, Y: ArrayLike) -> NDArray[np.float64]:
    """Cosine of every column of X with every column of Y; zero for a zero column."""
    X, Y = np.asarray(X, np.float64), np.asarray(Y, np.float64)
    if X.ndim != 2 or Y.ndim != 2 or X.shape[0] != Y.shape[0]:
        raise InputError(
            f"Factors of shapes {X.shape} and {Y.shape} cannot be compared: give matrices of equally many rows."
        )
    sizes = np.outer(np.linalg.norm(X, axis=0), np.linalg.norm(Y, axis=0))
    return np.clip(np.divide(X.T @ Y, sizes, out=np.zeros_like(sizes), where=sizes > 0), -1.0, 1.0)


def similarity(X: ArrayLike, Y: ArrayLike) -> float:
    """The paper's Sim: mean over X's columns of the best cosine in Y (a column of Y may be used repeatedly).

    Examples
    --------
    >>> from phenotaste import metrics
    >>> metrics.similarity([[1, 1], [0, 0]], [[2, 0], [0, 3]])  # both columns match the same one
    1.0
    """
    return float(cosines(X, Y).max(axis=1).mean())


def matched_similarity(X: ArrayLike, Y: ArrayLike) -> float:
    """Mean cosine under the best one-to-one matching of columns; unmatched columns count zero.

    Examples
    --------
    >>> from phenotaste import metrics
    >>> metrics.matched_similarity([[1, 1], [0, 0]], [[2, 0], [0, 3]])  # the second column has no match left
    0.5
    """
    from scipy.optimize import linear_sum_assignment

    C = cosines(X, Y)
    rows, columns = linear_sum_assignment(-C)
    return float(C[rows, columns].sum() / max(C.shape))


def dissimilarity(V: ArrayLike, V2: ArrayLike) -> float:
    """The stability metric of Wu et al. 2016 for two starts: 0 if they have the same phenotypes.

    Examples
    --------
    >>> from phenotaste import metrics
    >>> metrics.dissimilarity([[1, 0], [0, 1]], [[0, 5], [2, 0]])  # the same two, in another order and scale
    0.0
    >>> metrics.dissimilarity([[1, 0], [0, 1], [0, 0]], [[1, 0], [0, 0], [0, 1]])  # one of two is reproduced
    0.5
    """
    C = cosines(V, V2)
    if C.shape[0] != C.shape[1]:
        raise InputError(f"Stability compares equal ranks, not {C.shape[0]} and {C.shape[1]}.")
    return float((2 * len(C) - C.max(axis=1).sum() - C.max(axis=0).sum()) / (2 * len(C)))
