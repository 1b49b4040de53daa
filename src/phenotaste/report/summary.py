"""The summary of a fit, for the terminal and as JSON."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from phenotaste.core.loop import Outcome
from phenotaste.storage.encoding import json_value
from phenotaste.taste import TASTE

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
