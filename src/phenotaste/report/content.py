"""The content of page, figures and tables, from a model and a cohort: every number about patients passes the gate."""

from typing import Any, NamedTuple

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate, printable, rounded
from phenotaste.report.card import card
from phenotaste.report.courses import activity, course, months_since_first, typical
from phenotaste.report.definitions import (
    Definitions,
    Factor,
    Having,
    definitions,
    having,
    having_at_fit,
    merge,
    named,
    phenotype_map,
    similar,
)
from phenotaste.report.facts import facts_of
from phenotaste.report.groups import Groups, groups_of
from phenotaste.report.names import group_of, old_ages, static_label
from phenotaste.report.overview import attrition, cohort_lines, fit_figures, loss
from phenotaste.report.patients import Patients, patients_of
from phenotaste.report.profile import Compared, Outcome, compare, contrasts, outcome, outcome_link
from phenotaste.report.record import (
    AttritionStep,
    Band,
    CardSection,
    Content,
    Contrast,
    Course,
    Features,
    Found,
    Hidden,
    Leading,
    Lines,
    MapPoint,
    Mass,
    OutcomeLink,
    Overview,
    Phenotype,
    Similar,
    Stability,
    StabilityText,
    StaticFeature,
    TemporalFeature,
    TypicalCourse,
)
from phenotaste.report.stability import evidence_of, overall, stability
from phenotaste.review import Review, fingerprint

__all__ = [
    "AttritionStep",
    "Band",
    "CardSection",
    "Content",
    "Contrast",
    "Course",
    "Features",
    "Found",
    "Hidden",
    "Leading",
    "MapPoint",
    "Mass",
    "OutcomeLink",
    "Overview",
    "Phenotype",
    "Similar",
    "Stability",
    "StabilityText",
    "StaticFeature",
    "TemporalFeature",
    "TypicalCourse",
    "build",
]

TRUSTED_NOTE = (
    "Disclosure control is switched off: figures of very few patients are shown. Do not pass this on to anybody who "
    "may not see the patients' records."
)


def build(
    model: Any,
    cohort: Cohort | None = None,
    *,
    gate: Gate | None = None,
    selection: Any = None,
    review: Any = None,
    title: str = "Phenotypes",
) -> Content:
    """Everything that may be shown of a model, and of the patients of a cohort or of the fit.

    Parameters
    ----------
    model : a fitted model, or what its `apply_review` gave: names, merges and rejections are then in the content.
    cohort : patients to describe; without one those of the fit, as far as the model kept them.
    gate : what may be shown; `Gate(trusted=True)` hides nothing.
    selection : evidence of stability, as `selection.select` returns it, or its table `evidence`.
    review : a review to preload into the page, which then starts from it.
    """
    gate = Gate() if gate is None else gate
    numbers = [group.number for group in model.groups] if hasattr(model, "groups") else None
    numbers = numbers or [r + 1 for r in range(model.V_.shape[1])]
    seen = seen_patients(model, cohort, numbers, gate)
    at_fit = having_at_fit(model, seen.having, gate)
    defined = definitions(model, at_fit, gate)
    compared = compared_facts(model, seen, defined, gate)
    evidence = evidence_of(selection)
    n_patients = 0 if seen.groups is None else seen.groups.n_patients
    fit = fit_figures(model, n_patients, gate)
    origin = None if cohort is None else cohort.origin
    return Content(
        version=__version__,
        title=printable(title),
        fingerprint=fingerprint(getattr(model, "model", model)),
        overview=overview(model, seen, defined, evidence, fit, origin, gate),
        features=features(defined, seen, compared, gate),
        phenotypes=phenotypes(model, seen, defined, compared, evidence, gate),
        card=card(model, origin, seen.lines, fit, gate),
        audit=list(gate.audit),
        review=None if review is None else Review.read(review).as_dict(),
        fewest=gate.fewest,
        trusted=gate.trusted,
    )


class Seen(NamedTuple):
    """The patients there are to describe, and what was found about them; nothing where they are too few."""

    numbers: list[int]
    notes: list[str]
    patients: Patients | None = None
    groups: Groups | None = None
    cohort: Cohort | None = None
    having: Having | None = None
    months: Any = None
    outcome: Outcome | None = None
    lines: Lines = []  # noqa: RUF012  (never changed)


def seen_patients(model: Any, cohort: Cohort | None, numbers: list[int], gate: Gate) -> Seen:
    if cohort is not None and len(cohort) < gate.smallest_group:
        gate.note("overview", "everything about the cohort", f"it has fewer than {gate.fewest} patients")
        return Seen(numbers, [f"The cohort has fewer than {gate.fewest} patients: nothing is shown of it."])
    patients = patients_of(model, cohort)
    if patients is None:
        return Seen(
            numbers, ["No cohort was given: the page shows the definitions and the fit, and no patients."]
        )
    if len(patients.W) < gate.smallest_group:
        gate.note(
            "overview", "everything about the patients of the fit", f"there are fewer than {gate.fewest}"
        )
        return Seen(numbers, [f"There are fewer than {gate.fewest} patients: nothing is shown of them."])
    groups = groups_of(patients, numbers, gate)
    months = None if cohort is None else months_since_first(cohort)
    labels = None if cohort is None else outcome(cohort.labels, groups, gate)
    lines = cohort_lines(patients, groups, cohort, months, labels, gate)
    counted = None if cohort is None else having(model, cohort)
    return Seen(numbers, [], patients, groups, cohort, counted, months, labels, lines)


def overview(
    model: Any,
    seen: Seen,
    defined: Definitions,
    evidence: Any,
    fit: Lines,
    origin: Any,
    gate: Gate,
) -> Overview:
    notes = [TRUSTED_NOTE, *seen.notes] if gate.trusted else seen.notes
    if not defined.temporal.names:
        notes = [
            *notes,
            f"No feature is shown: fewer than {gate.fewest} patients of the fit have any of them.",
        ]
    curve, ending = loss(model, gate)
    hidden: list[float | None] = [None] * len(seen.numbers)
    sizes = hidden if seen.groups is None else seen.groups.prevalence
    return Overview(
        figures=fit,
        cohort=seen.lines,
        attrition=None if seen.groups is None else attrition(origin, seen.groups.n_patients, gate),
        stability=overall(evidence, seen.numbers),
        map=phenotype_map(defined.temporal.weights, sizes),
        loss=curve,
        outcome=ending,
        notes=notes,
    )


def compared_facts(model: Any, seen: Seen, defined: Definitions, gate: Gate) -> list[Compared]:
    """Static facts by group; what the definitions do not name is not named here either."""
    if seen.cohort is None or seen.groups is None:
        return []
    known = [] if model.F_ is None else named(model.static_names_in_, len(model.F_))
    merged = {} if gate.trusted else old_ages(known)
    unnamed = set(merge(known, merged)[0]) - set(defined.static.names)
    return compare(facts_of(seen.cohort, seen.months, gate), seen.groups, unnamed, gate)


def features(defined: Definitions, seen: Seen, compared: list[Compared], gate: Gate) -> Features:
    """The features that are named, with the share of patients that have each."""
    static = {fact.name: fact.share for fact in compared}
    temporal = temporal_shares(defined.temporal, seen, gate)
    shown_static = [static.get(name) for name in defined.static.names]
    hidden = sum(share is None for share in (*temporal, *shown_static))
    if hidden and seen.groups is not None:
        gate.note("features", f"shares of {hidden:,} {'feature' if hidden == 1 else 'features'}")
    return Features(
        [
            TemporalFeature(label, group, share)
            for (group, label), share in zip(map(group_of, defined.temporal.names), temporal, strict=True)
        ],
        [
            StaticFeature(static_label(name), share)
            for name, share in zip(defined.static.names, shown_static, strict=True)
        ],
    )


def temporal_shares(factor: Factor, seen: Seen, gate: Gate) -> list[float | None]:
    if seen.having is None or seen.groups is None:
        return [None] * len(factor.names)
    K = seen.groups.n_patients
    counts = [int(seen.having.temporal[rows].sum()) for rows in factor.sources]
    return [None if gate.few(n) or gate.few(K - n) else rounded(n / K) for n in counts]


def phenotypes(
    model: Any, seen: Seen, defined: Definitions, compared: list[Compared], evidence: Any, gate: Gate
) -> list[Phenotype]:
    alike = similar(defined.temporal.weights, seen.numbers)
    found = []
    for r, number in enumerate(seen.numbers):
        group = model.groups[r] if hasattr(model, "groups") else None
        members = [number] if group is None else list(group.members)
        found.append(
            Phenotype(
                number=number,
                name=None if group is None or not group.name else printable(group.name),
                status="open" if group is None else group.status,
                merged_from=members if len(members) > 1 else [],
                temporal=defined.temporal.of(r),
                static=defined.static.of(r),
                mass=defined.mass(r),
                stability=stability(evidence, number) if len(members) == 1 else None,
                similar=alike[r],
                **of_patients(seen, compared, r, gate),
            )
        )
    return found


def of_patients(seen: Seen, compared: list[Compared], r: int, gate: Gate) -> dict[str, Any]:
    """What the patients say about a phenotype: how many have it, its courses, their profile and outcome."""
    groups, patients = seen.groups, seen.patients
    if groups is None or patients is None:
        return {}
    shown: dict[str, Any] = {
        "prevalence": groups.prevalence[r],
        "leading": groups.leading(r),
        "profile": contrasts(compared, groups, r, gate),
        "outcome": outcome_link(seen.outcome, groups, r, gate),
    }
    if groups.sizes[r] < gate.smallest_group:
        if groups.sizes[r]:
            gate.note(f"phenotype {seen.numbers[r]}", "courses")
        return shown
    found = activity(patients, r, groups.members(r))
    return shown | {
        "course": course(found, seen.months, gate),
        "typical": typical(found, groups.shown[r] is not None, gate),
    }
