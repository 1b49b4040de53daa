"""A fit in a few numbers, for the terminal and for machines."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from phenotaste.core.loop import Outcome
from phenotaste.taste import TASTE


@dataclass(frozen=True)
class FitSummary:
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
        return self.outcome == Outcome.CONVERGED

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what is not a finite number becomes None."""
        record = asdict(self) | {"converged": self.converged}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }

    def lines(self) -> list[tuple[str, str]]:
        """Label and text of each line, for those who fitted the model: small counts are among them."""
        found = [
            ("Patients", f"{self.patients:,}"),
            ("Visits", f"{self.visits:,}"),
            ("Features", f"{self.features:,} temporal, {self.static_features:,} static"),
            ("Short histories", f"{self.short_histories:,} (fewer visits than phenotypes)"),
            ("Empty histories", f"{self.empty_histories:,}"),
            ("RMSE", f"{self.rmse:.4g}"),
            (
                "CPI",
                f"{self.cpi:.3f} (near 1, the phenotypes are unique)"
                if self.cpi == self.cpi
                else "undefined",
            ),
            ("Objective", f"{self.objective:,.6g}"),
            ("Iterations", f"{self.iterations:,} (best of {self.starts:,} {plural('start', self.starts)})"),
        ]
        if self.seconds is not None:
            found.append(("Time", f"{self.seconds:.1f} s"))
        word = self.outcome.replace("_", " ")
        return [*found, ("Outcome", word if self.converged else f"{word}. {self.advice}")]


def fit_summary(model: TASTE, seconds: float | None = None) -> FitSummary:
    """The summary of a fitted model; how long the fit took is the caller's to tell."""
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


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
