"""Scores of patients without a history, who take no part in a fit."""

import numpy as np

from phenotaste.core.kernels.nnls import solve_rows_bpp
from phenotaste.core.records import Array

PATIENTS_PER_BLOCK = 2**14


def scores_from_static(static: Array, F: Array, lam: float, mean_scores: Array) -> Array:
    """w ≥ 0 that minimises ½‖w − w̄‖² + λ/2 ‖a − F w‖² for every row a: the mean scores stand in for the visits."""
    scores = np.tile(mean_scores, (len(static), 1))
    gram = np.eye(len(mean_scores)) + lam * (F.T @ F)
    solve_rows_bpp(gram, np.ascontiguousarray(mean_scores + lam * (static @ F)), scores)
    return scores


def mean_of_scores(W: Array, influence: Array) -> Array:
    """w̄, the mean score of the patients who take part in a fit; scores that lie in a file are read in blocks."""
    counted, total = np.flatnonzero(influence > 0), np.zeros(W.shape[1])
    for first in range(0, len(counted), PATIENTS_PER_BLOCK):
        total += W[counted[first : first + PATIENTS_PER_BLOCK]].sum(axis=0)
    return total / max(len(counted), 1)
