"""What a refit keeps of a model and its review: the columns that are given to the fit, and where each comes from.

An accepted phenotype keeps its definition, a merged one begins at the sum of its parts, an open one where it was; a
rejected one becomes part of the background, with what earlier reviews rejected.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from phenotaste.background import all_definitions
from phenotaste.core.constraints import Constraints, Given, Near
from phenotaste.core.records import Array, Model
from phenotaste.errors import InputError
from phenotaste.metrics import cosines
from phenotaste.review import Group, Review, Reviewed
from phenotaste.validation import check_integer, check_number

MATCHED_COSINE = 0.9  # a phenotype found anew has the name of an earlier one from this cosine on


class Origin(NamedTuple):
    """Where a phenotype of a refitted model comes from."""

    members: tuple[int, ...]  # phenotypes of the model that was reviewed, from 1; none for a new one
    decision: str  # accepted, merged, open, rejected or new
    name: str = ""
    comment: str = ""


class RefitPlan(NamedTuple):
    """What a refit begins with."""

    rank: int  # phenotypes to be shown
    given: Given
    columns: tuple[int, ...]  # of the given phenotypes that are shown, among all that are given
    origins: tuple[Origin, ...]  # of the given phenotypes that are shown
    rejected: tuple[Origin, ...]  # by this review
    sources: tuple[int, ...]  # for each given column, its place, or that of its main part, in the model
    guides: list[dict[str, Any]]  # those of phenotypes that are still open, with their new numbers
    order: tuple[int, ...]  # the reviewer's, of the new numbers

    @property
    def undecided(self) -> bool:
        """Whether the review decides nothing: then a refit is a fit."""
        return (
            not self.given.background
            and len(self.origins) == self.rank
            and all(origin.decision == "open" for origin in self.origins)
        )


def plan_refit(model: Any, review: Review, freedom: float, rank: int | None) -> RefitPlan:
    """The columns that a refit begins with: those of the model in its order, without those merged into others."""
    check_number("freedom", freedom, max=1, closed="left")
    groups = sorted(review.groups(), key=lambda group: group.number)
    rank = check_rank(rank, len(groups))
    whole, background = all_definitions(model), model.background_
    hidden = [] if background is None else background.columns.tolist()
    shown = np.arange(len(whole.H)) if background is None else background.shown  # the place of each phenotype
    dropped = {int(shown[each.phenotype - 1]) for each in review.decisions if each.status == "rejected"}
    kept = [int(shown[group.number - 1]) for group in groups]
    sources = sorted([*hidden, *dropped, *kept])
    definitions = given_definitions(whole, sources)
    columns = [sources.index(place) for place in kept]  # of the groups, in the given definitions
    origins = tuple(origin_of(group) for group in groups)
    if any(origin.decision == "merged" for origin in origins):
        set_merged(definitions, columns, origins, Reviewed(model, replace(review, order=())))
    guides = open_guides(model, origins)
    fixed = [r for r, place in enumerate(sources) if place not in kept]
    accepted = [r for r, origin in zip(columns, origins, strict=True) if origin.decision == "accepted"]
    near = [(columns[row["phenotype"] - 1], row["strength"]) for row in guides]
    constraints = constraints_of(definitions, fixed, accepted, freedom, near)
    rejected = tuple(
        Origin((each.phenotype,), "rejected", each.name, each.comment)
        for each in review.decisions
        if each.status == "rejected"
    )
    given = Given(definitions, constraints, tuple(fixed))
    order = tuple(origins.index(origin_of(group)) + 1 for group in review.groups()) if review.order else ()
    return RefitPlan(rank, given, tuple(columns), origins, rejected, tuple(sources), guides, order)


def open_guides(model: Any, origins: tuple[Origin, ...]) -> list[dict[str, Any]]:
    """The guides of phenotypes that the review leaves open, with their new numbers; decisions replace the others."""
    numbers = {origin.members: g + 1 for g, origin in enumerate(origins) if origin.decision == "open"}
    rows = [row | {"phenotype": numbers.get((row["phenotype"],))} for row in model.guides_]
    return [row for row in rows if row["phenotype"] is not None]


def check_rank(rank: int | None, kept: int) -> int:
    """The number of phenotypes to be shown, by default those that the review keeps."""
    if rank is None:
        if kept == 0:
            raise InputError(
                "The review rejects every phenotype: give rank, the number of phenotypes to find instead."
            )
        return kept
    check_integer("rank", rank, min=1)
    if rank < kept:
        raise InputError(
            f"rank={rank} is less than the {kept} phenotypes that the review keeps: reject or merge some, or "
            "give a larger rank."
        )
    return rank


def origin_of(group: Group) -> Origin:
    decision = "merged" if len(group.members) > 1 else group.status
    return Origin(group.members, decision, group.name, group.comment)


def given_definitions(whole: Model, columns: list[int]) -> Model:
    """Copies of some columns of V and F, and H with the cross product of these columns."""
    H = whole.H[:, columns]
    if len(columns) < len(whole.H):
        H = np.asarray(np.linalg.qr(H, mode="r"))
    return Model(H, whole.V[:, columns], whole.F[:, columns])


def set_merged(model: Model, columns: list[int], origins: tuple[Origin, ...], reviewed: Reviewed) -> None:
    """Where phenotypes were merged, begin at the mean of their definitions by size, with a unit column of V."""
    for g, (r, origin) in enumerate(zip(columns, origins, strict=True)):
        if origin.decision == "merged":
            norm = np.linalg.norm(reviewed.V_[:, g]) or 1.0
            model.V[:, r] = reviewed.V_[:, g] / norm
            model.F[:, r] = 0.0 if reviewed.F_ is None else reviewed.F_[:, g] / norm


def constraints_of(
    model: Model, fixed: list[int], accepted: list[int], freedom: float, guided: list[tuple[int, float]]
) -> Constraints:
    """Background and accepted columns are fixed; with some freedom, accepted ones are near their definitions."""
    if freedom == 0:
        fixed, accepted = sorted([*fixed, *accepted]), []
    fixed = [*fixed, *(r for r in accepted if not model.V[:, r].any())]
    near = [(r, 1 - freedom) for r in accepted if r not in fixed]
    V = tuple((r, Near(model.V[:, r].copy(), cosine)) for r, cosine in [*near, *guided])
    F = tuple((r, Near(model.F[:, r].copy(), cosine)) for r, cosine in near if model.F[:, r].any())
    return Constraints(tuple(fixed), V, F)


def refit_record(
    refitted: Any, plan: RefitPlan, review: Review, freedom: float, earlier: Any
) -> dict[str, Any]:
    """What a refitted model keeps of the review: provenance, and where each phenotype comes from.

    `earlier` is the record of the model that was reviewed, whose rejected phenotypes are still in the background.
    """
    F, before = refitted.F_, plan.given.model
    rows = []
    for r, place in enumerate(places(refitted.V_, plan)):
        origin = Origin((), "new") if place is None else plan.origins[place]
        row = {"phenotype": r + 1} | origin_record(origin)
        if origin.decision == "accepted":
            row["sources"] = sources_of(review, origin.members[0])
        if place is not None:
            row["cosine"] = cosine(refitted.V_[:, r], before.V[:, plan.columns[place]])
            row["static_cosine"] = None if F is None else cosine(F[:, r], before.F[:, plan.columns[place]])
        rows.append(row)
    rejected = [origin_record(origin) | {"model": review.model} for origin in plan.rejected]
    return {
        "model": review.model,
        "reviewer": review.reviewer,
        "date": review.date,
        "based_on": [source._asdict() for source in (review.provenance(), *review.based_on)],
        "freedom": freedom,
        "order": list(plan.order),
        "phenotypes": rows,
        "rejected": [*(earlier or {}).get("rejected", []), *rejected],
    }


def sources_of(review: Review, phenotype: int) -> list[int]:
    """Which reviews made a decision, as numbers from 1 of the review itself and those that it is based on."""
    return [source + 1 for source in review.decisions[phenotype - 1].sources] or [1]


def places(V: Array, plan: RefitPlan) -> list[int | None]:
    """For each phenotype, that of the plan which it comes from; matched by definitions where all were found anew."""
    if not plan.undecided:
        return [r if r < len(plan.origins) else None for r in range(V.shape[1])]
    similar = cosines(V, plan.given.model.V)
    rows, columns = linear_sum_assignment(-similar)
    return [int(c) if similar[r, c] >= MATCHED_COSINE else None for r, c in zip(rows, columns, strict=True)]


def origin_record(origin: Origin) -> dict[str, Any]:
    name, comment = origin.name, origin.comment
    return {"from": list(origin.members), "decision": origin.decision, "name": name, "comment": comment}


def cosine(one: Array, other: Array) -> float:
    return float(cosines(one[:, None], other[:, None])[0, 0])
