"""One-to-one matching of phenotypes between fits, and what follows from it: consensus and reproducibility."""

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from phenotaste import metrics
from phenotaste.cohort import Cohort
from phenotaste.selection.fits import Result
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd

MIN_COSINE = 0.8  # with its partner, from which a phenotype counts as reproduced
HALVES, STARTS, BOOTSTRAP = "halves", "starts", "bootstrap"
KINDS = {  # of evidence, in the order in which it counts, and what a phenotype is compared in
    HALVES: "halves of the patients",
    STARTS: "other starts",
    BOOTSTRAP: "bootstrap samples",
}
COLUMNS = ["phenotype", "kind", "factor", "similarity"]


class Matched(NamedTuple):
    """For each phenotype of a reference: its partner in another fit, and their similarity."""

    partner: np.ndarray
    V: np.ndarray  # cosines of the temporal definitions
    F: np.ndarray | None  # cosines of the partners' static definitions


def match(reference: Result, other: Result) -> Matched:
    """Match the definitions of two fits."""
    return match_factors(reference.V, reference.F, other.V, other.F)


def match_factors(
    V: np.ndarray, F: np.ndarray | None, other_V: np.ndarray, other_F: np.ndarray | None
) -> Matched:
    """Return the matching with the highest sum of cosines on V; F follows that matching.

    Signed definitions have no sign of their own, so that opposite ones are equal.
    """
    cosines = metrics.cosines(V, other_V)
    if min(V.min(initial=0.0), other_V.min(initial=0.0)) < 0:
        cosines = np.abs(cosines)
    rows, partner = linear_sum_assignment(-cosines)
    static = None if F is None or other_F is None else metrics.cosines(F, other_F)[rows, partner]
    return Matched(partner, cosines[rows, partner], static)


def evidence(
    best: Result, others: Iterable[Result], resampled: Iterable[Result], halves: Iterable[Result] = ()
) -> "pd.DataFrame":
    """Return the cosine with the partner, one row for each phenotype, comparison and factor.

    `others` are other starts, `resampled` fits of bootstrap samples, and `halves` fits of halves of the patients.
    """
    import pandas as pd

    rows: list[tuple[int, str, str, float]] = []
    for kind, results in zip(KINDS, (halves, others, resampled), strict=True):
        for result in results:
            matched = match(best, result)
            for factor, cosines in (("V", matched.V), ("F", matched.F)):
                if cosines is not None:
                    rows += [(r + 1, kind, factor, float(cosine)) for r, cosine in enumerate(cosines)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    order = table.assign(kind=table["kind"].map(list(KINDS).index), factor=table["factor"] != "V")
    return table.loc[order.sort_values(COLUMNS[:3], kind="stable").index].reset_index(drop=True)


def reproducibility(table: "pd.DataFrame") -> "pd.DataFrame":
    """Summarise the evidence: the fraction of comparisons that reproduce a phenotype, and quantiles of its cosines."""
    groups = table.groupby(COLUMNS[:3], sort=False)["similarity"]
    summary = groups.agg(
        comparisons="size",
        reproducibility=lambda cosines: float(np.mean(cosines >= MIN_COSINE)),
        minimum="min",
        lower_quartile=lambda cosines: float(np.quantile(cosines, 0.25)),
        median="median",
    )
    return summary.reset_index()


def average(best: Result, others: Sequence[Result]) -> Result:
    """Average each phenotype of the best start with its partners in the others; columns of V have unit norm."""
    pairs = [(best, np.arange(best.V.shape[1])), *((other, match(best, other).partner) for other in others)]
    V = unit_columns(np.mean([unit_columns(result.V[:, columns]) for result, columns in pairs], axis=0))
    static = [result.F[:, columns] for result, columns in pairs if result.F is not None]
    F = np.mean(static, axis=0) if static else None
    # Only HᵀH is identified, so that it is what is averaged; its symmetric square root is an H that has it.
    cross = [result.H[:, columns].T @ result.H[:, columns] for result, columns in pairs]
    values, vectors = np.linalg.eigh(np.mean(cross, axis=0))
    H = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return Result(V, F, H, {})


def unit_columns(matrix: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(matrix, axis=0)
    return matrix / np.where(norms > 0, norms, 1.0)


def consensus_model(best: TASTE, consensus: Result, cohort: Cohort) -> TASTE:
    """Return the best start's model with the consensus definitions and the scores that they give the patients."""
    model = copy.copy(best)
    model.V_, model.F_, model.H_ = consensus.V, consensus.F, consensus.H
    scored = model.project(cohort)
    model.W_, model.U_ = scored.W, scored.U
    model.loss_curve_ = np.array([metrics.objective(model, cohort)])
    model.n_iter_, model.converged_, model.outcome_ = 1, False, "stopped"  # it was averaged, not fitted
    model.rmse_, model.cpi_ = metrics.rmse(model, cohort), metrics.cpi(model)
    model.cpi_present_ = metrics.present_cpi(model, cohort)
    if hasattr(best, "score_totals_"):
        model.score_totals_ = scored.W.sum(axis=0)
    return model
