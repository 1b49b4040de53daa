"""The result of `evaluate`, and the files that it is saved as."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.disclosure import Suppressed, rounded
from phenotaste.prediction.methods import TASTE_NAME
from phenotaste.prediction.nested_split import EvaluationFolder
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TABLES = ("splits", "summary", "comparison", "tuning", "roc", "calibration", "coefficients")
PREDICTIONS = "predictions.parquet"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The predictive performance of phenotype scores and of the other methods.

    Attributes
    ----------
    summary : a row for each method: AUC, AUPRC and Brier score as means over the splits, with bootstrap intervals
        (`_low`, `_high`) and intervals over the splits (`_splits_low`, `_splits_high`), and calibration.
    comparison : the difference between TASTE's AUC and that of each other method, with the same two intervals.
    splits : a row for each method and split.
    tuning : every candidate of each split, with its validation AUC.
    coefficients : for each phenotype of `model` the odds ratio per standard deviation of its score.
    roc, calibration : the curves, in steps and groups large enough to be shown.
    model : TASTE fitted to all patients with the settings that validation chose; for description only.
    predictions : patient, split, method, case and risk of every test patient, if requested.
    counts : patients and cases in total and in the test; None for small counts.
    audit, trusted : what disclosure control has hidden, and whether it was off.

    Examples
    --------
    >>> from phenotaste import prediction, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> result = prediction.evaluate(cohort, ranks=3, splits=1, baselines="raw", C=1.0, resamples=20, max_iter=20)
    >>> result.methods, round(result.auc, 2)
    (['taste', 'raw'], 0.7)
    >>> result.coefficients[["phenotype", "odds_ratio"]].round(1).to_numpy().tolist()[0]
    [2.0, 1.6]
    """

    summary: "pd.DataFrame"
    comparison: "pd.DataFrame"
    splits: "pd.DataFrame"
    tuning: "pd.DataFrame"
    coefficients: "pd.DataFrame"
    roc: "pd.DataFrame"
    calibration: "pd.DataFrame"
    model: TASTE
    predictions: "pd.DataFrame | None"
    counts: dict[str, int | None]
    audit: list[Suppressed]
    trusted: bool

    @property
    def auc(self) -> float:
        """TASTE's AUC, as the mean over the splits."""
        return float(self.row(TASTE_NAME)["auc"])

    @property
    def methods(self) -> list[str]:
        """Names of the methods, TASTE's first."""
        return [str(name) for name in self.summary["method"]]

    def row(self, method: str) -> "pd.Series[Any]":
        """Return the row of `summary` for one method.

        Examples
        --------
        >>> from phenotaste import prediction, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> result = prediction.evaluate(cohort, ranks=3, splits=1, baselines="raw", C=1.0, resamples=20, max_iter=20)
        >>> round(float(result.row("raw")["auc"]), 2)
        0.74
        """
        return self.summary[self.summary["method"] == method].iloc[0]

    def plot(self, what: str = "roc") -> "Figure":
        """Return a figure: "roc", "calibration", "auc" or "phenotypes".

        Figures of too few patients raise InputError.

        Examples
        --------
        >>> from phenotaste import prediction, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> result = prediction.evaluate(cohort, ranks=3, splits=1, baselines="raw", C=1.0, resamples=20, max_iter=20)
        >>> result.plot("auc").axes[0].get_xlabel()
        'AUC on test patients'
        """
        from phenotaste.prediction import figures

        return figures.draw(self, what)

    def as_dict(self) -> dict[str, Any]:
        """Return a summary as a dictionary, for JSON.

        Examples
        --------
        >>> from phenotaste import prediction, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> result = prediction.evaluate(cohort, ranks=3, splits=1, baselines="raw", C=1.0, resamples=20, max_iter=20)
        >>> record = result.as_dict()
        >>> record["patients"], record["cases"], record["test_cases"]  # a small count is hidden
        (300, 26, None)
        """
        return {
            **self.counts,
            "rank": int(self.model.rank),
            "lam": float(self.model.lam),
            "mu": float(self.model.mu),
            "methods": records(self.summary),
            "comparison": records(self.comparison),
            "phenotypes": records(self.coefficients),
            "hidden": len(self.audit),
            "trusted": self.trusted,
        }

    def save(self, folder: EvaluationFolder) -> None:
        """Write tables, model, figures and a short page to the folder of the finished splits."""
        from phenotaste.prediction import evaluation_page, figures

        for name in TABLES:
            folder.write(f"{name}.csv", getattr(self, name).to_csv(index=False))
        self.model.save(folder.path / "model")
        figures.save_all(self, folder.path / "figures")
        if self.predictions is not None:
            file = io.BytesIO()
            self.predictions.to_parquet(file, index=False)
            folder.write(PREDICTIONS, file.getvalue(), private=True)
        folder.write("prediction.md", evaluation_page.render(self))


def records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows for JSON: rounded, with None for NaN."""
    return [
        {
            str(name): rounded(float(value), 4) if isinstance(value, float | np.floating) else value
            for name, value in row.items()
        }
        for row in table.astype(object).to_dict("records")
    ]
