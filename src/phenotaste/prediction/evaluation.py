"""The record that `evaluate` returns, and the files it is kept as."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.disclosure import Suppressed, rounded
from phenotaste.prediction.methods import TASTE_NAME
from phenotaste.prediction.results import Folder
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TABLES = ("splits", "summary", "comparison", "tuning", "roc", "calibration", "coefficients")
PREDICTIONS = "predictions.parquet"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well the phenotype scores predict, beside the other methods.

    Attributes
    ----------
    summary : a row for each method: AUC, AUPRC and Brier score as means over the splits, with intervals by resampled
        patients (`_low`, `_high`) and over the splits (`_splits_low`, `_splits_high`), calibration.
    comparison : TASTE's AUC less that of each other method, with the same two intervals.
    splits : a row for each method and split.
    tuning : every setting tried on each split, with its validation AUC.
    coefficients : for each phenotype of `model` the odds ratio for one standard deviation of its score.
    roc, calibration : the curves, in steps and groups large enough to be shown.
    model : TASTE fitted to all patients with the settings that validation chose; for describing, not for the figures.
    predictions : patient, split, method, case, risk of every test patient, where asked for; else None.
    counts : patients and cases in each part, None where too few to be told.
    audit, trusted : what is not shown, and why; whether all was to be shown.

    Examples
    --------
    >>> from phenotaste import prediction, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> found = prediction.evaluate(cohort, ranks=3, splits=1, baselines="raw", C=1.0, resamples=20, max_iter=20)
    >>> found.methods, round(found.auc, 2)
    (['taste', 'raw'], 0.7)
    >>> found.coefficients[["phenotype", "odds_ratio"]].round(1).to_numpy().tolist()[0]
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
    counts: dict[str, int | None]  # patients and cases in each part; None where too few to be told
    audit: list[Suppressed]
    trusted: bool

    @property
    def auc(self) -> float:
        """TASTE's AUC, the mean over the splits."""
        return float(self.row(TASTE_NAME)["auc"])

    @property
    def methods(self) -> list[str]:
        """Names of the methods, TASTE's first."""
        return [str(name) for name in self.summary["method"]]

    def row(self, method: str) -> "pd.Series[Any]":
        """The row of `summary` for one method.

        Examples
        --------
        >>> from phenotaste import prediction, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> found = prediction.evaluate(cohort, ranks=3, splits=1, baselines="raw", C=1.0, resamples=20, max_iter=20)
        >>> round(float(found.row("raw")["auc"]), 2)
        0.74
        """
        return self.summary[self.summary["method"] == method].iloc[0]

    def plot(self, what: str = "roc") -> "Figure":
        """A figure: "roc", "calibration", "auc" or "phenotypes"; what stands for too few patients is refused.

        Examples
        --------
        >>> from phenotaste import prediction, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> found = prediction.evaluate(cohort, ranks=3, splits=1, baselines="raw", C=1.0, resamples=20, max_iter=20)
        >>> found.plot("auc").axes[0].get_xlabel()
        'AUC on test patients'
        """
        from phenotaste.prediction import figures

        return figures.draw(self, what)

    def as_dict(self) -> dict[str, Any]:
        """In short, for JSON.

        Examples
        --------
        >>> from phenotaste import prediction, simulate
        >>> cohort, truth = simulate.heart_failure(n_patients=300)
        >>> found = prediction.evaluate(cohort, ranks=3, splits=1, baselines="raw", C=1.0, resamples=20, max_iter=20)
        >>> short = found.as_dict()
        >>> short["patients"], short["cases"], short["tested_cases"]  # too few cases were tested on to be told
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

    def save(self, folder: Folder) -> None:
        """Write tables, model, figures and a short page beside the finished splits."""
        from phenotaste.prediction import evaluation_page, figures

        for name in TABLES:
            folder.put(f"{name}.csv", getattr(self, name).to_csv(index=False))
        self.model.save(folder.path / "model")
        figures.save_all(self, folder)
        if self.predictions is not None:
            file = io.BytesIO()
            self.predictions.to_parquet(file, index=False)
            folder.put_private(PREDICTIONS, file.getvalue())
        folder.put("prediction.md", evaluation_page.render(self))


def records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Rows for JSON: rounded, and None for what is not a number."""
    return [
        {
            str(name): rounded(float(value), 4) if isinstance(value, float | np.floating) else value
            for name, value in row.items()
        }
        for row in table.astype(object).to_dict("records")
    ]
