"""The overview of the page: figures of the fit, facts about the cohort, and its attrition; the summary of a fit."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.loop import Outcome
from phenotaste.disclosure import Gate, printable, rounded, rounded_all
from phenotaste.report.names import without_dates
from phenotaste.report.patients import Groups, Patients
from phenotaste.report.profile import LabelCounts, follow_up
from phenotaste.report.schema import AttritionStep, Lines
from phenotaste.storage.encoding import json_value
from phenotaste.taste import TASTE

WHERE = "overview"
NOT_SHOWN = "not shown"
MAX_STEPS = 50


def fit_figures(model: Any, n_patients: int, gate: Gate) -> Lines:
    """Patients, number of phenotypes, and quality of the fit; only the second if fewer than 11 were fitted."""
    phenotypes = ("Phenotypes", f"{model.V_.shape[1]:,}")
    if model.n_patients_ < gate.min_group_size:
        gate.note(WHERE, "figures of the fit")
        return [phenotypes]
    described = ("Patients", f"{n_patients:,}")
    fitted = gate.count(WHERE, "patients of the fit", model.n_patients_, abs(model.n_patients_ - n_patients))
    patients = [described, ("Fitted on", NOT_SHOWN if fitted is None else f"{fitted:,} patients")]
    if n_patients == model.n_patients_:
        patients = [described]
    elif not n_patients:
        patients = [("Patients", f"{model.n_patients_:,}")]
    return [
        *patients,
        phenotypes,
        ("CPI", format_finite(model.cpi_, ".3f")),
        ("RMSE", format_finite(model.rmse_, ".3g")),
        ("Outcome", str(model.outcome_).replace("_", " ")),
    ]


def format_finite(value: float, spec: str) -> str:
    return format(value, spec) if np.isfinite(value) else "undefined"


def loss_curve(model: Any, gate: Gate) -> tuple[list[float], str]:
    """The objective after each iteration, and how the fit ended."""
    outcome = str(model.outcome_)
    ending = f"{outcome.replace('_', ' ')}: {Outcome(outcome).advice}"
    if model.n_patients_ < gate.min_group_size or not np.isfinite(model.loss_curve_).all():
        return [], ending
    return rounded_all(model.loss_curve_, 6), ending


def cohort_lines(
    patients: Patients,
    groups: Groups,
    cohort: Cohort | None,
    months: Any,
    labels: LabelCounts | None,
    gate: Gate,
) -> Lines:
    """Visits, follow-up, codes and cases; medians with quartiles."""
    visits = patients.visits
    lines: Lines = [("Visits", f"{int(visits.sum()):,}"), ("Visits per patient", quartiles(visits))]
    seen = visits > 0
    if cohort is not None and np.count_nonzero(seen) >= gate.min_group_size:
        lines.append(("Codes per visit", quartiles(np.diff(cohort.visits.indptr))))
        if months is not None:
            lines.append(("Follow-up in months", quartiles(follow_up(cohort, months)[seen])))
        elif cohort.visit_times is not None:
            lines.append(("Follow-up in time units", quartiles(time_spans(cohort)[seen])))
    lines += history_lines(patients, groups, gate)
    if labels is not None:
        cases, controls = (int(n) for n in labels.counts.sum(axis=0)[:2])
        lines.append(("Cases", f"{cases / (cases + controls):.1%} of patients with a label"))
    return lines


def time_spans(cohort: Cohort) -> np.ndarray:
    """Time from first to last visit, for times that are numbers without a unit."""
    assert cohort.visit_times is not None
    spans = np.zeros(len(cohort))
    seen = cohort.visit_counts > 0
    times = cohort.visit_times.astype(np.float64)
    spans[seen] = times[cohort.offsets[1:][seen] - 1] - times[cohort.offsets[:-1][seen]]
    return spans


def quartiles(values: np.ndarray) -> str:
    low, median, high = (f"{rounded(float(q)):g}" for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return f"median {median} (quartiles {low} to {high})"


def history_lines(patients: Patients, groups: Groups, gate: Gate) -> Lines:
    """Numbers of patients without visits, with short histories, and without a phenotype, where they may be shown."""
    rank, visits = patients.W.shape[1], patients.visits
    empty, short = int(np.sum(visits == 0)), int(np.sum((visits > 0) & (visits < rank)))
    without = groups.without_phenotype
    shown = gate.parts(WHERE, "short and empty histories", [empty, short, len(visits) - empty - short])
    if without is not None and gate.is_small(
        without - empty
    ):  # patients with visits, but without a phenotype
        gate.note(WHERE, "empty histories")
        shown = [None, None, None]
    labels = ("Without visits", f"Fewer visits than phenotypes ({rank})", "Without any phenotype")
    counts = (*shown[:2], without)
    return [
        (label, NOT_SHOWN if count is None else f"{count:,} patients")
        for label, count in zip(labels, counts, strict=True)
        if count != 0
    ]


def attrition(origin: Mapping[str, Any] | None, n_patients: int, gate: Gate) -> list[AttritionStep] | None:
    """The steps by which the cohort was built, and a last one if the report is about a part of it."""
    try:
        steps = [(str(step["step"]), int(step["patients"])) for step in (origin or {})["attrition"]]
    except (KeyError, TypeError, ValueError):
        return None
    steps = steps[:MAX_STEPS]
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
    (60, 18, True, 'The objective stopped improving.')
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
        '0.991 (near 1, the phenotypes are unique)'
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
    Iterations: 18 (best of 1 start)
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
        starts=model.n_init,
        outcome=model.outcome_,
        advice=Outcome(model.outcome_).advice,
        seconds=seconds,
    )
