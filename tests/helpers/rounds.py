"""Two models for two rounds of review: the second has phenotypes of the first that stayed, moved, came back or left."""

import copy
from dataclasses import replace

import numpy as np

from phenotaste import TASTE, simulate
from phenotaste.review import Review

NAMES = {1: "Treated hypertension", 2: "Care intensity", 4: "Diabetes", 5: "Heart failure"}


def first_model():
    """A cohort of 300 patients and a model of six phenotypes."""
    cohort, _ = simulate.heart_failure(300, random_state=1)
    return cohort, TASTE(6, n_init=1, random_state=0, max_iter=15).fit(cohort)


def first_review(model, reviewer="Dr Ada Byron"):
    """1 is accepted with 3 merged into it, 2 is rejected, 4 and 5 are accepted, 6 is open."""
    blank = Review.blank(model, reviewer, NAMES)
    changes = {
        1: {"status": "accepted", "comment": "Clear."},
        2: {"status": "rejected", "comment": "How often they come."},
        3: {"status": "merged", "merge_with": 1},
        4: {"status": "accepted", "comment": "Kidneys, too."},
        5: {"status": "accepted"},
    }
    decisions = [replace(each, **changes.get(each.phenotype, {})) for each in blank.decisions]
    return replace(blank, decisions=tuple(decisions), date="2026-05-12")


def second_model(model, review):
    """Phenotypes: 1 the merged one, 2 Diabetes moved, 3 Care intensity, 4 Heart failure, 5 a new one.

    The open phenotype 6 of the first model is gone.
    """
    reviewed = model.apply_review(review)
    second = copy.copy(model)
    second.V_ = with_moved(reviewed.V_, model.V_, 0.5)
    second.F_ = with_moved(reviewed.F_, model.F_, 0.0)
    second.H_, second.mean_scores_ = model.H_[:5, :5], model.mean_scores_[:5]
    second.rank, second.U_, second.W_ = 5, model.U_[:, :5], model.W_[:, :5]
    if getattr(model, "phenotype_rates_", None) is not None:
        second.phenotype_rates_ = model.phenotype_rates_[:, :5]
    return second


def with_moved(kept, whole, by):
    """Columns of the second model; `by` is how much of something else Diabetes gets."""
    norm = np.linalg.norm
    other = np.roll(kept[:, 2], 1)
    moved = kept[:, 1] / norm(kept[:, 1]) + by * other / norm(other)
    new = np.zeros(len(kept))
    new[np.argsort(kept.max(axis=1), kind="stable")[len(kept) // 3 : len(kept) // 2]] = norm(kept[:, 1])
    return np.column_stack([kept[:, 0], moved * norm(kept[:, 1]), whole[:, 1], kept[:, 2], new])
