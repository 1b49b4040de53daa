"""A fit in a few numbers, for the terminal and for machines."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from phenotaste.core.loop import Outcome
from phenotaste.taste import TASTE

UNIQUE = 0.9  # a CPI from here on is called near 1, as the rules of `phenotaste select` have it


@dataclass(frozen=True)
class FitSummary:
    """What `fit_summary` returns; `seconds` is None where nobody said how long the fit took.

    Examples
    --------
    >>> from phenotaste import TASTE, report, simulate
    >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    >>> model = TASTE(rank=3, random_state=0).fit(cohort)
    >>> found = report.fit_summary(model)
    >>> found.patients, found.iterations, found.converged, found.advice
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
        """For JSON: what is not a finite number becomes None.

        Examples
        --------
        >>> from phenotaste import TASTE, report, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> report.fit_summary(model).as_dict()["outcome"]
        'converged'
        """
        record = asdict(self) | {"converged": self.converged}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in record.items()
        }

    def lines(self) -> list[tuple[str, str]]:
        """Label and text of each line, for those who fitted the model: small counts are among them.

        Examples
        --------
        >>> from phenotaste import TASTE, report, simulate
        >>> cohort, truth = simulate.ehr(60, n_features=30, rank=3, random_state=1)
        >>> model = TASTE(rank=3, random_state=0).fit(cohort)
        >>> dict(report.fit_summary(model).lines())["CPI"]
        '0.991 (near 1, the phenotypes are unique)'
        """
        found = [
            ("Patients", f"{self.patients:,}"),
            ("Visits", f"{self.visits:,}"),
            ("Features", f"{self.features:,} temporal, {self.static_features:,} static"),
            ("Short histories", f"{self.short_histories:,} (fewer visits than phenotypes)"),
            ("Empty histories", f"{self.empty_histories:,}"),
            ("RMSE", f"{self.rmse:.4g}"),
            ("CPI", self._cpi_in_words()),
            ("Objective", f"{self.objective:,.6g}"),
            ("Iterations", f"{self.iterations:,} (best of {self.starts:,} {plural('start', self.starts)})"),
        ]
        if self.seconds is not None:
            found.append(("Time", f"{self.seconds:.1f} s"))
        word = self.outcome.replace("_", " ")
        return [*found, ("Outcome", word if self.converged else f"{word}. {self.advice}")]

    def _cpi_in_words(self) -> str:
        """What CPI says. Fewer visits than phenotypes can share a cross-product that tells no courses apart."""
        if not math.isfinite(self.cpi):
            return "undefined"
        if 2 * self.short_histories > self.patients:
            return f"{self.cpi:.3f} (most histories are short: this says little about uniqueness)"
        if self.cpi < UNIQUE:
            return f"{self.cpi:.3f} (not near 1, so the phenotypes are not unique: try a larger mu)"
        return f"{self.cpi:.3f} (near 1, the phenotypes are unique)"


def fit_summary(model: TASTE, seconds: float | None = None) -> FitSummary:
    """The summary of a fitted model; how long the fit took is the caller's to tell.

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


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
