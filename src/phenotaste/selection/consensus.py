"""Consensus phenotypes: the matched average of all starts of a cell, as a model that scores patients."""

import copy
from collections.abc import Sequence

import numpy as np

from phenotaste import metrics
from phenotaste.cohort import Cohort
from phenotaste.selection.files import Result
from phenotaste.selection.matching import matched
from phenotaste.taste import TASTE


def consensus(best: Result, others: Sequence[Result]) -> Result:
    """Each phenotype of the best start averaged with its partners in the others; columns of V at unit norm again."""
    pairs = [(best, np.arange(best.V.shape[1])), *((other, matched(best, other).partner) for other in others)]
    V = unit(np.mean([unit(result.V[:, own]) for result, own in pairs], axis=0))
    static = [result.F[:, own] for result, own in pairs if result.F is not None]
    F = np.mean(static, axis=0) if static else None
    # Of H only HᵀH can be told, so that is what is averaged; the symmetric root gives it back.
    cross = [result.H[:, own].T @ result.H[:, own] for result, own in pairs]
    values, vectors = np.linalg.eigh(np.mean(cross, axis=0))
    H = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return Result(V, F, H, {})


def unit(columns: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(columns, axis=0)
    return columns / np.where(norms > 0, norms, 1.0)


def consensus_model(best: TASTE, found: Result, cohort: Cohort) -> TASTE:
    """The best start's model with the consensus in place of its own definitions; the patients are scored anew."""
    model = copy.copy(best)
    model.V_, model.F_, model.H_ = found.V, found.F, found.H
    scored = model.project(cohort)
    model.W_, model.U_ = scored.W, scored.U
    model.loss_curve_ = np.array([scored.loss])
    model.n_iter_, model.converged_, model.outcome_ = (
        1,
        False,
        "stopped",
    )  # it was not fitted, but put together
    model.rmse_, model.cpi_ = metrics.rmse(model, cohort), metrics.cpi(model)
    if hasattr(best, "score_totals_"):
        model.score_totals_ = scored.W.sum(axis=0)
    return model
