"""The head of the page: the fit in a few figures, the cohort in a few lines, and how it came about."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.loop import Outcome
from phenotaste.disclosure import Gate, printable, rounded, rounded_all
from phenotaste.report.facts import follow_up
from phenotaste.report.groups import Groups
from phenotaste.report.names import without_dates
from phenotaste.report.patients import Patients
from phenotaste.report.profile import Outcome as Labels
from phenotaste.report.record import AttritionStep, Lines

WHERE = "overview"
NOT_SHOWN = "not shown"
MOST_STEPS = 50


def fit_figures(model: Any, n_patients: int, gate: Gate) -> Lines:
    """Of the fit: patients, visits, size, and how well it went; nothing where fewer than 11 were fitted."""
    phenotypes = ("Phenotypes", f"{model.V_.shape[1]:,}")
    if model.n_patients_ < gate.smallest_group:
        gate.note(WHERE, "figures of the fit")
        return [phenotypes]
    here = ("Patients", f"{n_patients:,}")
    fitted = gate.count(WHERE, "patients of the fit", model.n_patients_, abs(model.n_patients_ - n_patients))
    patients = [here, ("Fitted on", NOT_SHOWN if fitted is None else f"{fitted:,} patients")]
    if n_patients == model.n_patients_:
        patients = [here]
    elif not n_patients:
        patients = [("Patients", f"{model.n_patients_:,}")]
    return [
        *patients,
        phenotypes,
        ("CPI", number(model.cpi_, "{:.3f}")),
        ("RMSE", number(model.rmse_, "{:.3g}")),
        ("Outcome", str(model.outcome_).replace("_", " ")),
    ]


def number(value: float, form: str) -> str:
    return form.format(value) if np.isfinite(value) else "undefined"


def loss(model: Any, gate: Gate) -> tuple[list[float], str]:
    """The objective after each iteration, and how the fit ended."""
    outcome = str(model.outcome_)
    words = f"{outcome.replace('_', ' ')}: {Outcome(outcome).advice}"
    if model.n_patients_ < gate.smallest_group or not np.isfinite(model.loss_curve_).all():
        return [], words
    return rounded_all(model.loss_curve_, 6), words


def cohort_lines(
    patients: Patients, groups: Groups, cohort: Cohort | None, months: Any, labels: Labels | None, gate: Gate
) -> Lines:
    """Visits, follow-up, codes, cases; medians with quartiles."""
    visits = patients.visits
    lines: Lines = [("Visits", f"{int(visits.sum()):,}"), ("Visits per patient", quartiles(visits))]
    seen = visits > 0
    if cohort is not None and np.count_nonzero(seen) >= gate.smallest_group:
        lines.append(("Codes per visit", quartiles(np.diff(cohort.visits.indptr))))
        if months is not None:
            lines.append(("Follow-up in months", quartiles(follow_up(cohort, months)[seen])))
        elif cohort.visit_times is not None:
            lines.append(("Follow-up in time units", quartiles(spans(cohort)[seen])))
    lines += histories(patients, groups, gate)
    if labels is not None:
        cases, others = (int(n) for n in labels.counts.sum(axis=0)[:2])
        lines.append(("Cases", f"{cases / (cases + others):.1%} of patients with a label"))
    return lines


def spans(cohort: Cohort) -> np.ndarray:
    """From first to last visit, for times that are mere numbers."""
    assert cohort.visit_times is not None
    found = np.zeros(len(cohort))
    seen = cohort.visit_counts > 0
    times = cohort.visit_times.astype(np.float64)
    found[seen] = times[cohort.offsets[1:][seen] - 1] - times[cohort.offsets[:-1][seen]]
    return found


def quartiles(values: np.ndarray) -> str:
    low, median, high = (f"{rounded(float(q)):g}" for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return f"median {median} (quartiles {low} to {high})"


def histories(patients: Patients, groups: Groups, gate: Gate) -> Lines:
    """Patients without visits, with short histories, and without any phenotype, as far as they may be known."""
    rank, visits = patients.W.shape[1], patients.visits
    empty, short = int(np.sum(visits == 0)), int(np.sum((visits > 0) & (visits < rank)))
    nobody = groups.nobody
    shown = gate.parts(WHERE, "short and empty histories", [empty, short, len(visits) - empty - short])
    if nobody is not None and gate.few(nobody - empty):  # those with visits, but without a phenotype
        gate.note(WHERE, "empty histories")
        shown = [None, None, None]
    words = ("Without visits", f"Fewer visits than phenotypes ({rank})", "Without any phenotype")
    counts = (*shown[:2], nobody)
    return [
        (word, NOT_SHOWN if count is None else f"{count:,} patients")
        for word, count in zip(words, counts, strict=True)
        if count != 0
    ]


def attrition(origin: Mapping[str, Any] | None, n_patients: int, gate: Gate) -> list[AttritionStep] | None:
    """The steps by which the cohort was built, the cohort itself last where patients were chosen from it later."""
    try:
        steps = [(str(step["step"]), int(step["patients"])) for step in (origin or {})["attrition"]][
            :MOST_STEPS
        ]
    except (KeyError, TypeError, ValueError):
        return None
    if not steps:
        return None
    if steps[-1][1] != n_patients:
        steps.append(("chosen for this report", n_patients))
    shown = gate.chain(WHERE, "steps of attrition", [count for _, count in steps])
    before = [None, *shown[:-1]]
    return [
        AttritionStep(
            without_dates(printable(step)), left, None if left is None or had is None else had - left
        )
        for (step, _), left, had in zip(steps, shown, before, strict=True)
    ]
