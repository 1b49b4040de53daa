"""What changed since the last review: the phenotypes of two models, matched by their definitions.

Each phenotype is the same as one that was reviewed, has moved away from it, or is new; what has no counterpart is gone.
Phenotypes are compared as the review left them: merged ones by their common definition, and rejected ones, too. What
is the same keeps its name, its comment and the decision on it.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from phenotaste.disclosure import Gate, rounded
from phenotaste.errors import InputError
from phenotaste.metrics import cosines
from phenotaste.patients import Matrix
from phenotaste.report.definitions import (
    Factor,
    PhenotypeDefinitions,
    definitions,
    feature_counts_at_fit,
    feature_names,
)
from phenotaste.report.names import group_of, static_label
from phenotaste.report.reviewers import authors_of
from phenotaste.report.schema import Change, ChangedCode, Changes, EarlierPhenotype, FeatureKind, Gone
from phenotaste.review import Decision, Group, Provenance, Review, Reviewed, fingerprint
from phenotaste.review.decisions import numbered_sources, one_line
from phenotaste.selection.matching import MIN_COSINE

SAME_COSINE = 0.99  # of V, and of F if both models have it, from which a phenotype is the same
MIN_CHANGE = 0.02  # of the sum of a phenotype's weights; codes whose share changed by less are not listed
MAX_CODES = 5  # listed as gained, as lost, and of a phenotype that is gone


@dataclass(frozen=True)
class LastReview:
    """The phenotypes of a reviewed model as its review left them: those kept, and then those rejected.

    It has the attributes of a model from which definitions are shown.
    """

    model: Any
    review: Review
    phenotypes: tuple[Group, ...]
    V_: Matrix
    F_: Matrix | None

    @classmethod
    def of(cls, model: Any, review: Any) -> "LastReview":
        review = Review.read(review)
        review.check_model(model)
        kept = review.groups()
        rejected = [
            Group(each.phenotype, one_line(each.name), "rejected", each.comment, (each.phenotype,))
            for each in review.decisions
            if each.status == "rejected"
        ]
        reviewed = Reviewed(model, review) if kept else None
        columns = [group.number - 1 for group in rejected]
        V, F = model.V_[:, columns], None if model.F_ is None else model.F_[:, columns]
        if reviewed is not None:
            V = np.hstack([reviewed.V_, V])
            F = None if F is None or reviewed.F_ is None else np.hstack([reviewed.F_, F])
        return cls(model, review, (*kept, *rejected), V, F)

    @property
    def feature_names_in_(self) -> Any:
        return self.model.feature_names_in_

    @property
    def static_names_in_(self) -> Any:
        return self.model.static_names_in_


class Match(NamedTuple):
    """The counterpart of a phenotype of the new model, or else the phenotype that it is most similar to."""

    partner: int | None  # position among those of the last review
    same: bool
    cosine: float  # with the partner, or else with the nearest
    nearest: int | None = (
        None  # number in the reviewed model, also of a merged one; None unless it is similar
    )


def match(last: LastReview, model: Any) -> list[Match]:
    """Match one to one: as many phenotypes as possible that are the same, then the highest sum of cosines on V.

    Pairs below MIN_COSINE are no match. A merged phenotype without one has moved to what resembles one of its parts, so
    that its name is not lost where the parts are found apart again. A model that was fitted again after this review
    records which phenotypes its own are from.
    """
    V = cosines_by_name(last.V_, last.feature_names_in_, model.V_, model.feature_names_in_)
    same = V >= SAME_COSINE
    if last.F_ is not None and model.F_ is not None:
        same &= (
            cosines_by_name(last.F_, last.static_names_in_, model.F_, model.static_names_in_) >= SAME_COSINE
        )
    known = recorded(last, model)
    gain = np.where(V >= MIN_COSINE, V, 0.0) + len(V) * same
    gain[list(known.values())] = 0.0
    gain[:, list(known)] = 0.0
    rows, columns = linear_sum_assignment(-gain)
    partner = known | {c: r for r, c in zip(rows.tolist(), columns.tolist(), strict=True) if gain[r, c] > 0}
    single = cosines_by_name(last.model.V_, last.feature_names_in_, model.V_, model.feature_names_in_)
    for r, group in enumerate(last.phenotypes):
        if len(group.members) > 1 and r not in partner.values():
            resembles = single[np.array(group.members) - 1].max(axis=0) >= MIN_COSINE
            resembles[list(partner)] = False
            if resembles.any():
                partner[int(np.where(resembles, V[r], -1.0).argmax())] = r
    result = []
    for c in range(V.shape[1]):
        if c in partner:
            r = partner[c]
            result.append(Match(r, bool(same[r, c]), float(V[r, c])))
        else:
            nearest, cosine = int(single[:, c].argmax()), float(single[:, c].max())
            result.append(Match(None, False, cosine, nearest + 1 if cosine >= MIN_COSINE else None))
    return result


def recorded(last: LastReview, model: Any) -> dict[int, int]:
    """Which phenotype of the last review each column is from, where the model was fitted again after that review."""
    record = getattr(model, "refit_", None) or {}
    if not record or record["model"] != last.review.model:
        return {}
    kept = {group.members: r for r, group in enumerate(last.phenotypes) if group.status != "rejected"}
    origins = {row["phenotype"] - 1: kept.get(tuple(row["from"])) for row in record["phenotypes"]}
    return {column: r for column, r in origins.items() if r is not None}


def cosines_by_name(old: Matrix, old_names: Any, new: Matrix, new_names: Any) -> Matrix:
    """Cosines of columns, matched by the names of their rows; a row that only one has is zero in the other."""
    if old_names is None and new_names is None and len(old) != len(new):
        raise InputError(
            f"The previous model has {len(old)} features and this one {len(new)}, both without names: give a model of "
            "the same features."
        )
    before, now = feature_names(old_names, len(old)), feature_names(new_names, len(new))
    place = {name: j for j, name in enumerate(dict.fromkeys([*before, *now]))}
    if len(old) and len(new) and len(place) == len(old) + len(new):
        raise InputError(
            "The previous model has no feature in common with this one: give the model that was reviewed before."
        )
    aligned = []
    for names, matrix in ((before, old), (now, new)):
        rows = np.zeros((len(place), matrix.shape[1]))
        rows[[place[name] for name in names]] = matrix
        aligned.append(rows)
    empty = np.outer(~aligned[0].any(axis=0), ~aligned[1].any(axis=0))
    return cosines(*aligned) + empty  # two columns without any weight are equal


def carry_over(last: LastReview, matches: list[Match], model: Any) -> Review:
    """The review that the next one starts from: decisions on what is the same, and names of what has moved."""
    based_on: tuple[Provenance, ...] = (last.review.provenance(),)
    decisions = []
    for number, found in enumerate(matches, 1):
        if found.partner is None:
            decisions.append(Decision(number))
            continue
        group = last.phenotypes[found.partner]
        if not found.same or group.status == "open":
            decisions.append(Decision(number, group.name, group.comment if found.same else ""))
            continue
        based_on, sources = numbered_sources(based_on, last.review.authors(group.number))
        decisions.append(Decision(number, group.name, group.comment, group.status, sources=sources))
    return Review(fingerprint(model), tuple(decisions), based_on=based_on)


def since_last_review(
    model: Any, last: LastReview, defined: PhenotypeDefinitions, gate: Gate
) -> tuple[Changes, list[Change], Review]:
    """What changed as the page shows it, and the review that it starts from; `gate` is that of the page.

    The codes that are named are those that both pages may name; the earlier page lists what it hides.
    """
    matches = match(last, model)
    at_fit = replace(
        gate, key=getattr(last.model, "rounding_key_", None) or fingerprint(last.model), audit=[]
    )
    before = definitions(last, feature_counts_at_fit(last.model, None, at_fit), at_fit)
    changes = [change_of(found, last, before, defined, r) for r, found in enumerate(matches)]
    found_again = {found.partner for found in matches}
    gone = [
        Gone(earlier_record(last, position), top_codes(before, position))
        for position in range(len(last.phenotypes))
        if position not in found_again
    ]
    review = last.review
    who = one_line(review.reviewer), review.date, review.model
    summary = Changes(*who, SAME_COSINE, MIN_COSINE, gone)
    return summary, changes, carry_over(last, matches, model)


def change_of(
    found: Match, last: LastReview, before: PhenotypeDefinitions, now: PhenotypeDefinitions, r: int
) -> Change:
    cosine = rounded(found.cosine, 2)
    if found.partner is None:
        if found.nearest is None:
            return Change("new")
        return Change("new", cosine, single_record(last.review, found.nearest))
    earlier = earlier_record(last, found.partner)
    if found.same:
        return Change("same", cosine, earlier)
    changed = [
        *changed_codes("temporal", before.temporal, found.partner, now.temporal, r),
        *changed_codes("static", before.static, found.partner, now.static, r),
    ]
    gained = sorted((code for code in changed if code.now > code.before), key=lambda c: c.before - c.now)
    lost = sorted((code for code in changed if code.now < code.before), key=lambda c: c.now - c.before)
    return Change("moved", cosine, earlier, gained[:MAX_CODES], lost[:MAX_CODES])


def earlier_record(last: LastReview, position: int) -> EarlierPhenotype:
    group = last.phenotypes[position]
    return EarlierPhenotype(
        group.number,
        group.name or None,
        group.status,
        group.comment,
        authors_of(last.review, group.number),
        list(group.members) if len(group.members) > 1 else [],
    )


def single_record(review: Review, number: int) -> EarlierPhenotype:
    """A phenotype of the reviewed model by itself, even if it was merged; then with the name of the merged one."""
    decision = review.decisions[number - 1]
    named = review.decisions[review.merge_target(number) - 1] if decision.status == "merged" else decision
    name, authors = one_line(named.name) or None, authors_of(review, number)
    return EarlierPhenotype(number, name, decision.status, decision.comment, authors)


def changed_codes(kind: FeatureKind, old: Factor, e: int, new: Factor, r: int) -> list[ChangedCode]:
    """Codes that both models show and whose share of the weights changed: weights compare only within a model."""
    shares = dict(zip(old.names, shares_of(old.weights[:, e]), strict=True))
    pairs = [
        (name, shares[name], now)
        for name, now in zip(new.names, shares_of(new.weights[:, r]), strict=True)
        if name in shares
    ]
    return [
        ChangedCode(label(kind, name), kind, rounded(was) or 0.0, rounded(now) or 0.0)
        for name, was, now in pairs
        if abs(now - was) >= MIN_CHANGE
    ]


def shares_of(weights: Matrix) -> list[float]:
    total = float(weights.sum())
    shares: list[float] = (weights / total if total > 0 else weights).tolist()
    return shares


def label(kind: FeatureKind, name: str) -> str:
    return group_of(name)[1] if kind == "temporal" else static_label(name)


def top_codes(before: PhenotypeDefinitions, e: int) -> list[str]:
    return [label("temporal", before.temporal.names[j]) for j, _ in before.temporal.column(e)[:MAX_CODES]]
