"""Shared by the simulators: the true factors they return, seeds, and labels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phenotaste.errors import InputError
from phenotaste.validation import is_integer

Array = NDArray[np.floating]
RandomState = int | np.random.Generator | None


@dataclass(frozen=True, eq=False)
class Truth:
    """The factors a cohort was simulated from; None if a simulator has no such factor.

    Attributes
    ----------
    V, F, W : temporal definitions (J × R), static definitions (P × R) and scores (K × R).
    labels : one per patient.
    H, U : R × R, and n_visits × R: the courses of all patients, stacked as the visits are.

    Examples
    --------
    >>> from phenotaste import TASTE, metrics, simulate
    >>> cohort, truth = simulate.recovery(n_patients=30)
    >>> model = TASTE(rank=4, smooth=0, random_state=0).fit(cohort)  # these courses are not smooth
    >>> round(metrics.matched_similarity(model.V_, truth.V), 3)  # the fit recovers the true definitions
    1.0
    """

    V: Array
    F: Array
    W: Array
    labels: NDArray[np.integer] | None = None
    H: Array | None = None
    U: Array | None = None


def generator(random_state: RandomState) -> np.random.Generator:
    """The random generator of a `random_state`."""
    if random_state is None or is_integer(random_state) or isinstance(random_state, np.random.Generator):
        return np.random.default_rng(random_state)
    raise InputError("random_state must be None, an integer >= 0 or a numpy Generator.")


def shares(scores: Array) -> Array:
    """Each row divided by its sum; a row of zeros stays zeros."""
    total = scores.sum(axis=1, keepdims=True)
    return np.divide(scores, total, out=np.zeros_like(scores), where=total > 0)


def static_scale(scores: Array) -> float:
    """The s that makes s·W Pᵀ closest to shares(W) Pᵀ: static features are drawn by shares, the model has scores."""
    total = scores.sum(axis=1)
    return float(total.sum() / (total @ total)) if total.any() else 1.0


def draw_labels(logit: Array, prevalence: float, rng: np.random.Generator) -> NDArray[np.int8]:
    """0/1 labels from a logistic model, with the intercept set so that `prevalence` is the expected share of cases."""
    low, high = -40.0 - logit.max(), 40.0 - logit.min()
    for _ in range(100):
        middle = (low + high) / 2
        if _sigmoid(logit + middle).mean() < prevalence:
            low = middle
        else:
            high = middle
    return (rng.random(logit.size) < _sigmoid(logit + low)).astype(np.int8)


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))
