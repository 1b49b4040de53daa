"""The overview of the page: figures of the fit, facts about the cohort, and its attrition; the summary of a fit."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.loop import Outcome
from phenotaste.disclosure import Gate, printable, rounded_all
from phenotaste.patients import Patients
from phenotaste.report.names import without_dates
from phenotaste.report.patients import Groups
from phenotaste.report.profile import LabelCounts, follow_up
from phenotaste.report.schema import AttritionStep, Lines
from phenotaste.storage.encoding import json_value
from phenotaste.taste import TASTE

WHERE = "overview"
NOT_SHOWN = "withheld"
MAX_STEPS = 50
LOSS_DIGITS = 4
PERCENT_STEP = 5


def fit_figures(model: Any, n_patients: int, gate: Gate, at_fit: Gate) -> Lines:
    """Patients, number of phenotypes, and quality of the fit; only the second if too few were fitted.

    `at_fit` is the gate for the patients of the fit.
    """
    phenotypes = ("Phenotypes", f"{model.V_.shape[1]:,}")
    fitted = at_fit.count("patients", model.n_patients_)
    if fitted is None:
        gate.note(WHERE, "figures of the fit")
        return [phenotypes]
    patients = [("Patients", about(gate.rounded("patients", n_patients), gate))]
    if not n_patients:
        patients = [("Patients", about(fitted, gate))]
    elif gate.key != at_fit.key:
        patients.append(("Fitted on", f"{about(fitted, gate)} patients"))
    quality = []
    if model.has_courses:
        quality = [
            ("CPI", format_finite(model.cpi_, ".3f")),
            ("RMSE", format_finite(model.rmse_, ".3g")),
        ]
    return [
        *patients,
        phenotypes,
        *quality,
        ("Outcome", str(model.outcome_).replace("_", " ")),
    ]


def about(count: int | None, gate: Gate) -> str:
    """A rounded count as text."""
    return NOT_SHOWN if count is None else f"{count:,}" if gate.trusted else f"about {count:,}"


def format_finite(value: float, spec: str) -> str:
    return format(value, spec) if np.isfinite(value) else "undefined"


def loss_curve(model: Any, gate: Gate) -> tuple[list[float], str]:
    """The objective after each iteration, and how the fit ended."""
    outcome = str(model.outcome_)
    ending = f"{outcome.replace('_', ' ')}: {Outcome(outcome).advice}"
    if gate.count("patients", model.n_patients_) is None or not np.isfinite(model.loss_curve_).all():
        return [], ending
    return rounded_all(model.loss_curve_, LOSS_DIGITS), ending


def cohort_lines(
    patients: Patients,
    groups: Groups,
    cohort: Cohort | None,
    months: Any,
    labels: LabelCounts | None,
    gate: Gate,
) -> Lines:
    """Visits, follow-up, codes and cases; medians with quartiles over the patients."""
    visits = patients.visits
    seen = visits > 0
    lines: Lines = [
        ("Visits", about(gate.total("visits", visits), gate)),
        ("Visits per patient", quartiles("visits", visits, gate)),
    ]
    if cohort is not None:
        codes = np.diff(cohort.visits.indptr[cohort.offsets])[seen] / visits[seen]
        lines.append(("Codes per visit", quartiles("codes", codes, gate)))
        if months is not None:
            lines.append(
                ("Follow-up in months", quartiles("follow-up", follow_up(cohort, months)[seen], gate))
            )
        elif cohort.visit_times is not None:
            unit = {None: "time units", "order": "ranks"}
            stated = (cohort.origin or {}).get("time_unit")
            spans = quartiles("follow-up", time_spans(cohort)[seen], gate)
            lines.append((f"Follow-up in {unit.get(stated, stated)}", spans))
    lines += history_lines(patients, groups, gate)
    if labels is not None:
        lines.append(("Cases", f"{labels.share:.1%} of patients with a label"))
    return lines


def time_spans(cohort: Cohort) -> np.ndarray:
    """Time from first to last visit, for times that are numbers without a unit."""
    assert cohort.visit_times is not None
    spans = np.zeros(len(cohort))
    seen = cohort.visit_counts > 0
    times = cohort.visit_times.astype(np.float64)
    spans[seen] = times[cohort.offsets[1:][seen] - 1] - times[cohort.offsets[:-1][seen]]
    return spans


def quartiles(what: str, values: np.ndarray, gate: Gate) -> str:
    found = gate.quantiles(what, values)
    if found is None:
        return NOT_SHOWN
    low, median, high = (f"{value:g}" for value in found)
    return f"median {median} (quartiles {low} to {high})"


def history_lines(patients: Patients, groups: Groups, gate: Gate) -> Lines:
    """Numbers of patients without visits, with short histories if there are courses, and without a phenotype.

    A line that is left out where there are none would show just that.
    """
    rank, visits = patients.W.shape[1], patients.visits
    counts = {"Without visits": gate.count("empty histories", int(np.sum(visits == 0)))}
    if patients.U is not None:
        short = int(np.sum((visits > 0) & (visits < rank)))
        counts[f"Fewer visits than phenotypes ({rank})"] = gate.count("short histories", short)
    counts["Without any phenotype"] = groups.without_phenotype
    if None in counts.values():
        gate.note(WHERE, "short and empty histories")
    words = {
        label: f"{about(count, gate)}{'' if count is None else ' patients'}"
        for label, count in counts.items()
    }
    return list(words.items())


PLACEMENT = {
    "events_with_encounter": "in their own encounter",
    "events_covered_by_encounter": "placed in one that covers their time",
    "events_near_encounter": "in one near it",
    "events_by_day": "in none, as visits by day",
}


def placement_lines(origin: Mapping[str, Any] | None) -> Lines:
    """How events came to their encounters, in steps of 5 %: exact numbers could be those of few patients."""
    quality = (origin or {}).get("quality")
    if not isinstance(quality, Mapping):
        return []
    counts = {words: quality.get(key) for key, words in PLACEMENT.items()}
    total = sum(count for count in counts.values() if isinstance(count, int))
    if not total or counts["in their own encounter"] == total:
        return []
    shares = {words: count / total for words, count in counts.items() if isinstance(count, int) and count}
    return [("Events", ", ".join(f"{in_percent(share)} {words}" for words, share in shares.items()))]


def in_percent(share: float) -> str:
    return (
        f"under {PERCENT_STEP}%"
        if share < PERCENT_STEP / 200
        else f"{PERCENT_STEP * round(100 * share / PERCENT_STEP)}%"
    )


def attrition(origin: Mapping[str, Any] | None, n_patients: int, gate: Gate) -> list[AttritionStep] | None:
    """The steps by which the cohort was built, and a last one if the report is about a part of it."""
    try:
        steps = [(str(step["step"]), int(step["patients"])) for step in (origin or {})["attrition"]]
    except (KeyError, TypeError, ValueError):
        return None
    steps = steps[:MAX_STEPS]
    if not steps:
        return None
    if gate.rounded("patients", steps[-1][1]) != gate.rounded("patients", n_patients):
        steps.append(("chosen for this report", n_patients))
    counts = [gate.count("patients", count) for _, count in steps]
    removed = [
        None if left is None or had is None or had - left < gate.min_shown else had - left
        for had, left in zip([None, *counts[:-1]], counts, strict=True)
    ]
    if None in (*counts, *removed[1:]):
        gate.note(WHERE, "steps of attrition")
    return [
        AttritionStep(without_dates(printable(step)), left, fewer)
        for (step, _), left, fewer in zip(steps, counts, removed, strict=True)
    ]


UNIQUE_CPI = 0.9  # called near 1 from here; the same threshold as in the rules of `phenotaste select`


@dataclass(frozen=True)
class FitSummary:
    """What `fit_summary` returns; `seconds` is None if it was not given.

    Examples
    --------
    >>> from phenotaste import TASTE, report, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> model = TASTE(rank=3, random_state=0).fit(cohort)
    >>> summary = report.fit_summary(model)
    >>> summary.patients, summary.iterations, summary.converged, summary.advice
    (60, 21, True, 'The objective stopped improving.')
    """

    phenotypes: int
    features: int
    static_features: int
    patients: int
    visits: int
    short_histories: int  # fewer visits than phenotypes
    empty_histories: int  # no visit with a known code
    rmse: float
    cpi: float
    objective: float
    iterations: int
    starts: int
    outcome: str
    advice: str
    warnings: list[str]  # what is unusual about the scores
    seconds: float | None = None

    @property
    def converged(self) -> bool:
        """Whether the fit ended because the objective stopped improving."""
        return self.outcome == Outcome.CONVERGED

    def as_dict(self) -> dict[str, Any]:
        """Return a record for JSON, with None for numbers that are not finite.

        Examples
        --------
        >>> from phenotaste import TASTE, report, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> report.fit_summary(model).as_dict()["outcome"]
        'converged'
        """
        record: dict[str, Any] = json_value(asdict(self) | {"converged": self.converged})
        return record

    def lines(self) -> list[tuple[str, str]]:
        """Return label and text of each line. Small counts are not hidden.

        Examples
        --------
        >>> from phenotaste import TASTE, report, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> dict(report.fit_summary(model).lines())["CPI"]
        '1.000 (near 1, the phenotypes are unique)'
        """
        lines = [
            ("Patients", f"{self.patients:,}"),
            ("Visits", f"{self.visits:,}"),
            ("Features", f"{self.features:,} temporal, {self.static_features:,} static"),
            ("Short histories", f"{self.short_histories:,} (fewer visits than phenotypes)"),
            ("Empty histories", f"{self.empty_histories:,}"),
            ("RMSE", f"{self.rmse:.4g}"),
            ("CPI", self._describe_cpi()),
            ("Objective", f"{self.objective:,.6g}"),
            (
                "Iterations",
                f"{self.iterations:,} (best of {self.starts:,} start{'' if self.starts == 1 else 's'})",
            ),
        ]
        if self.seconds is not None:
            lines.append(("Time", f"{self.seconds:.1f} s"))
        outcome = self.outcome.replace("_", " ")
        return [*lines, ("Outcome", outcome if self.converged else f"{outcome}. {self.advice}")]

    def _describe_cpi(self) -> str:
        """Interpret CPI, which short histories can make high: with fewer visits than phenotypes it says little."""
        if not math.isfinite(self.cpi):
            return "undefined"
        if 2 * self.short_histories > self.patients:
            return f"{self.cpi:.3f} (most histories are short: this says little about uniqueness)"
        if self.cpi < UNIQUE_CPI:
            return f"{self.cpi:.3f} (not near 1, so the phenotypes are not unique: try a larger mu)"
        return f"{self.cpi:.3f} (near 1, the phenotypes are unique)"


def fit_summary(model: TASTE, seconds: float | None = None) -> FitSummary:
    """Summarise a fitted model; `seconds` is how long the fit took.

    Examples
    --------
    >>> from phenotaste import TASTE, report, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> model = TASTE(rank=3, random_state=0).fit(cohort)
    >>> for label, text in report.fit_summary(model, seconds=0.4).lines()[-3:]:
    ...     print(f"{label}: {text}")
    Iterations: 21 (best of 4 starts)
    Time: 0.4 s
    Outcome: converged
    """
    return FitSummary(
        phenotypes=model.V_.shape[1],
        features=model.V_.shape[0],
        static_features=0 if model.F_ is None else model.F_.shape[0],
        patients=model.n_patients_,
        visits=model.n_visits_,
        short_histories=model.n_short_,
        empty_histories=model.n_empty_,
        rmse=float(model.rmse_),
        cpi=float(model.cpi_),
        objective=float(model.loss_curve_[-1]),
        iterations=model.n_iter_,
        starts=model.n_starts_ or model._n_starts(),
        outcome=model.outcome_,
        advice=Outcome(model.outcome_).advice,
        warnings=list(getattr(model, "warnings_", ())),
        seconds=seconds,
    )
