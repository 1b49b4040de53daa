"""The content of page, figures and tables, from a model and a cohort: every number about patients passes the gate."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from phenotaste import __version__
from phenotaste.cohort import Cohort
from phenotaste.disclosure import Gate, printable
from phenotaste.patients import Patients
from phenotaste.report.courses import activity, activity_bands, months_since_first, typical_courses
from phenotaste.report.definitions import (
    Factor,
    FeatureCounts,
    PhenotypeDefinitions,
    Rates,
    count_features,
    definitions,
    feature_counts_at_fit,
    feature_names,
    merge_rows,
    most_similar,
    phenotype_map,
    shown_rates,
)
from phenotaste.report.model_card import model_card
from phenotaste.report.names import group_of, old_ages, static_label
from phenotaste.report.overview import attrition, cohort_lines, fit_figures, loss_curve, placement_lines
from phenotaste.report.patients import Groups, group_patients, patients_of
from phenotaste.report.profile import (
    Compared,
    LabelCounts,
    compare_groups,
    contrasts,
    count_labels,
    outcome_link,
    patient_facts,
)
from phenotaste.report.reviewers import review_section, with_decisions, with_opinions
from phenotaste.report.rounds import LastReview, since_last_review
from phenotaste.report.schema import (
    Content,
    Features,
    Lines,
    Overview,
    Phenotype,
    StaticFeature,
    TemporalFeature,
)
from phenotaste.report.stability import overall_stability, stability, temporal_evidence
from phenotaste.review import Review, compare, fingerprint
from phenotaste.review.comparison import agreed

TRUSTED_NOTE = (
    "Disclosure control is switched off: figures of very few patients are shown. Do not pass this on to anyone who "
    "may not see the patients' records."
)


def build(
    model: Any,
    cohort: Cohort | None = None,
    *,
    gate: Gate | None = None,
    selection: Any = None,
    review: Any = None,
    last: LastReview | None = None,
    reviews: Sequence[Review] = (),
    title: str = "Phenotypes",
) -> Content:
    """Build everything that may be shown of a model, and of the patients of a cohort or of the fit.

    Parameters
    ----------
    model : a fitted model, or what its `apply_review` returned, with names, merges and rejections.
    cohort : patients to describe; by default those of the fit, if the model has them.
    gate : what may be shown; `Gate(trusted=True)` hides nothing.
    selection : evidence of stability: what `selection.select` returned, or its table `evidence`.
    review : a review that the page starts from.
    last : the model and the review of the round before, with which this model is compared.
    reviews : several reviews of this model; the page starts from what they agree on.
    """
    gate = Gate() if gate is None else gate
    if cohort is not None:
        gate = gate.for_rows(cohort.rows_per_patient)
    numbers = [group.number for group in model.groups] if hasattr(model, "groups") else None
    numbers = numbers or [r + 1 for r in range(model.V_.shape[1])]
    described = describe_patients(model, cohort, numbers, gate)
    gate = described.gate
    at_fit = gate.keyed(key_of_fit(model) or gate.key)
    counts = feature_counts_at_fit(model, described.feature_counts, gate)
    defined = definitions(model, counts, at_fit)
    compared = compare_facts(model, described, defined, gate)
    rates = shown_rates(model, defined.static, at_fit)
    evidence = temporal_evidence(selection)
    n_patients = 0 if described.groups is None else described.groups.n_patients
    fit = fit_figures(model, n_patients, gate, at_fit)
    origin = None if cohort is None else cohort.origin
    review = None if review is None else Review.read(review)
    shown = phenotypes(model, described, defined, compared, rates, evidence, gate)
    changes = None
    if last is not None:
        changes, by_phenotype, review = since_last_review(model, last, defined, gate)
        shown = [replace(each, change=change) for each, change in zip(shown, by_phenotype, strict=True)]
    if reviews:
        review, shown = agreed(reviews), with_opinions(shown, reviews)
    card = model_card(model, origin, described.lines, fit, gate)
    return Content(
        version=__version__,
        title=printable(title),
        fingerprint=fingerprint(getattr(model, "model", model)),
        overview=overview(model, described, defined, evidence, fit, origin, at_fit),
        features=features(defined, described, compared, rates, gate),
        phenotypes=shown if review is None else with_decisions(shown, review),
        card=card if review is None else [*card, review_section(review)],
        audit=list(gate.audit),
        review=None if review is None else review.as_dict(),
        carried=last is not None or bool(reviews),
        changes=changes,
        agreement=compare(reviews).text() if reviews else None,
        min_cell_size=gate.min_cell_size,
        trusted=gate.trusted,
    )


def key_of_fit(model: Any) -> str | None:
    """The key by which numbers of the patients of the fit are rounded; None for a model saved without it."""
    base = getattr(model, "model", model)
    return getattr(base, "rounding_key_", None)


class Described(NamedTuple):
    """The patients to describe, and what was computed about them; only notes if they are too few."""

    numbers: list[int]
    gate: Gate  # for these patients
    notes: list[str]
    patients: Patients | None = None
    groups: Groups | None = None
    cohort: Cohort | None = None
    feature_counts: FeatureCounts | None = None
    months: Any = None
    labels: LabelCounts | None = None
    lines: Lines = []  # noqa: RUF012  (never changed)


def describe_patients(model: Any, cohort: Cohort | None, numbers: list[int], gate: Gate) -> Described:
    counts = None
    if cohort is None:
        gate = gate.keyed(key_of_fit(model) or fingerprint(getattr(model, "model", model)))
    elif len(cohort):
        counts, key = count_features(model, cohort)
        gate = gate.keyed(key)
    if cohort is not None and not gate.count("patients", len(cohort)):
        return too_few("The cohort", numbers, gate)
    patients = patients_of(model, cohort)
    if patients is None:
        return Described(
            numbers, gate, ["No cohort was given: the page shows the definitions and the fit only."]
        )
    if not gate.count("patients", len(patients.W)):
        return too_few("The fit", numbers, gate)
    groups = group_patients(patients, numbers, gate)
    months = None if cohort is None else months_since_first(cohort)
    labels = None if cohort is None else count_labels(cohort.labels, groups, gate)
    lines = cohort_lines(patients, groups, cohort, months, labels, gate)
    return Described(numbers, gate, [], patients, groups, cohort, counts, months, labels, lines)


def too_few(whose: str, numbers: list[int], gate: Gate) -> Described:
    reason = f"fewer than {gate.min_shown} patients after rounding"
    gate.note("overview", f"everything about the patients of {whose.lower()}", reason)
    return Described(numbers, gate, [f"{whose} has {reason}: nothing about them is shown."])


def overview(
    model: Any,
    described: Described,
    defined: PhenotypeDefinitions,
    evidence: Any,
    fit: Lines,
    origin: Any,
    gate: Gate,
) -> Overview:
    notes = [*described.notes, *getattr(model, "warnings_", ())]
    notes = [TRUSTED_NOTE, *notes] if gate.trusted else notes
    if not defined.temporal.names:
        notes = [
            *notes,
            "No feature is shown: too few patients of the fit have any of them.",
        ]
    curve, ending = loss_curve(model, gate)
    hidden: list[float | None] = [None] * len(described.numbers)
    sizes = hidden if described.groups is None else described.groups.prevalence
    return Overview(
        figures=fit,
        cohort=described.lines + (placement_lines(origin) if described.lines else []),
        attrition=None
        if described.groups is None
        else attrition(origin, described.groups.n_patients, described.gate),
        stability=overall_stability(evidence, described.numbers),
        map=phenotype_map(defined.temporal.weights, sizes),
        loss=curve,
        outcome=ending,
        notes=notes,
    )


def compare_facts(
    model: Any, described: Described, defined: PhenotypeDefinitions, gate: Gate
) -> list[Compared]:
    """Static features by group; those hidden in the definitions are hidden here too."""
    if described.cohort is None or described.groups is None:
        return []
    static_names = [] if model.F_ is None else feature_names(model.static_names_in_, len(model.F_))
    merged = {} if gate.trusted else old_ages(static_names)
    unnamed = set(merge_rows(static_names, merged)[0]) - set(defined.static.names)
    facts = patient_facts(described.cohort, described.months, gate)
    return compare_groups(facts, described.groups, unnamed, gate)


def features(
    defined: PhenotypeDefinitions, described: Described, compared: list[Compared], rates: Rates, gate: Gate
) -> Features:
    """The features that are shown, with the share of patients that have each."""
    static = {fact.name: fact.share for fact in compared}
    temporal = temporal_shares(defined.temporal, described, gate)
    shown_static = [static.get(name) for name in defined.static.names]
    hidden = sum(share is None for share in (*temporal, *shown_static))
    if hidden and described.groups is not None:
        gate.note("features", f"shares of {hidden:,} {'feature' if hidden == 1 else 'features'}")
    return Features(
        [
            TemporalFeature(label, group, share)
            for (group, label), share in zip(map(group_of, defined.temporal.names), temporal, strict=True)
        ],
        [
            StaticFeature(static_label(name), shown_static[j], rates.cohort[j], rates.numeric[j])
            for j, name in enumerate(defined.static.names)
        ],
    )


def temporal_shares(factor: Factor, described: Described, gate: Gate) -> list[float | None]:
    if described.feature_counts is None or described.groups is None:
        return [None] * len(factor.names)
    counts = [int(described.feature_counts.temporal[rows].sum()) for rows in factor.sources]
    return [
        gate.share(gate.count(f"temporal {name}", n), described.groups.n_shown)
        for name, n in zip(factor.names, counts, strict=True)
    ]


def phenotypes(
    model: Any,
    described: Described,
    defined: PhenotypeDefinitions,
    compared: list[Compared],
    rates: Rates,
    evidence: Any,
    gate: Gate,
) -> list[Phenotype]:
    similar = most_similar(defined.temporal.weights, described.numbers)
    result = []
    for r, number in enumerate(described.numbers):
        group = model.groups[r] if hasattr(model, "groups") else None
        members = [number] if group is None else list(group.members)
        result.append(
            Phenotype(
                number=number,
                name=None if group is None or not group.name else printable(group.name),
                status="open" if group is None else group.status,
                merged_from=members if len(members) > 1 else [],
                temporal=defined.temporal.column(r),
                static=defined.static.column(r),
                mass=defined.mass(r),
                stability=stability(evidence, number) if len(members) == 1 else None,
                similar=similar[r],
                rates=rates.phenotypes[r],
                **patient_results(described, compared, r, gate),
            )
        )
    return result


def patient_results(described: Described, compared: list[Compared], r: int, gate: Gate) -> dict[str, Any]:
    """Prevalence, courses, profile and outcome of the patients of a phenotype."""
    groups, patients = described.groups, described.patients
    if groups is None or patients is None:
        return {}
    shown: dict[str, Any] = {
        "prevalence": groups.prevalence[r],
        "leading": groups.leading(r, gate),
        "profile": contrasts(compared, groups, r, gate),
        "outcome": outcome_link(described.labels, groups, r, gate),
    }
    size = groups.shown[r]
    if not size:
        gate.note(f"phenotype {described.numbers[r]}", "courses")
        return shown
    active = activity(patients, r, groups.members(r))
    return shown | {
        "course": activity_bands(active, described.months, size, gate),
        "typical": typical_courses(active, size, gate),
    }
