"""The result of `evaluate`, its page, and the files that it is saved as."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import __version__
from phenotaste.disclosure import Suppressed, rounded
from phenotaste.prediction.evaluation_tables import column_label
from phenotaste.prediction.figures import drawable
from phenotaste.prediction.methods import LABELS, SCORE, TASTE_NAME
from phenotaste.prediction.nested_split import EvaluationFolder
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TABLES = ("splits", "summary", "comparison", "tuning", "roc", "calibration", "coefficients")
PREDICTIONS = "predictions.parquet"
DIGITS = 4  # significant, of the figures in tables


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
    coefficients : for each phenotype of `model` the odds ratio per standard deviation of its score and, with
        courses=True, of each `feature` of its course.
    roc, calibration : the curves, in steps and groups large enough to be shown.
    model : TASTE fitted to all patients with the settings that validation chose; for description only.
    predictions : patient, split, method, case and risk of every test patient, if requested.
    counts : rounded numbers of patients and cases in total and in the test; None for small counts.
    audit, trusted : what disclosure control has hidden, and whether it was off.
    size : whether the size of the record is used beside the scores.

    Examples
    --------
    >>> from phenotaste import prediction, simulate
    >>> cohort, truth = simulate.heart_failure(n_patients=300)
    >>> small = {"ranks": 3, "splits": 1, "C": 1.0, "resamples": 20, "n_init": 1, "max_iter": 20}
    >>> result = prediction.evaluate(cohort, baselines="raw", **small)
    >>> result.methods, round(result.auc, 2)
    (['taste', 'raw'], 0.72)
    >>> [name for name in result.coefficients.columns if name in ("phenotype", "odds_ratio")]
    ['phenotype', 'odds_ratio']
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
    size: bool = False

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
        >>> small = {"ranks": 3, "splits": 1, "C": 1.0, "resamples": 20, "n_init": 1, "max_iter": 20}
        >>> result = prediction.evaluate(cohort, baselines="raw", **small)
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
        >>> small = {"ranks": 3, "splits": 1, "C": 1.0, "resamples": 20, "n_init": 1, "max_iter": 20}
        >>> result = prediction.evaluate(cohort, baselines="raw", **small)
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
        >>> small = {"ranks": 3, "splits": 1, "C": 1.0, "resamples": 20, "n_init": 1, "max_iter": 20}
        >>> result = prediction.evaluate(cohort, baselines="raw", **small)
        >>> record = result.as_dict()
        >>> record["patients"], record["cases"], record["test_cases"]  # rounded; a small count is withheld
        (300, 25, None)
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
            "size": self.size,
        }

    def save(self, folder: EvaluationFolder) -> None:
        """Write tables, model, figures and a short page to the folder of the finished splits."""
        from phenotaste.prediction import evaluation, figures

        for name in TABLES:
            folder.write(f"{name}.csv", as_csv(getattr(self, name), self.trusted))
        self.model.save(folder.path / "model")
        figures.save_all(self, folder.path / "figures")
        if self.predictions is not None:
            file = io.BytesIO()
            self.predictions.to_parquet(file, index=False)
            folder.write(PREDICTIONS, file.getvalue(), private=True)
        folder.write("prediction.md", evaluation.render(self))


def as_csv(table: "pd.DataFrame", trusted: bool) -> str:
    """A table as CSV; exact measures would give numbers of patients."""
    return str(table.to_csv(index=False, float_format=None if trusted else f"%.{DIGITS}g"))


def records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return the rows for JSON: rounded, with None for NaN."""
    return [
        {
            str(name): rounded(float(value), DIGITS) if isinstance(value, float | np.floating) else value
            for name, value in row.items()
        }
        for row in table.astype(object).to_dict("records")
    ]


MAX_PHENOTYPES = 20
TITLES = {
    "roc": "ROC curves",
    "calibration": "Calibration",
    "auc": "AUC of every method",
    "phenotypes": "Odds ratios",
}


def render(result: "Evaluation") -> str:
    taste, counts = result.row(TASTE_NAME), result.counts
    splits = int(taste["splits"])
    patients = f"{counts['patients']:,} patients"
    if counts["cases"] is not None:
        patients += f", {counts['cases']:,} of them cases"
    pictures = drawable(result)
    what = "scores and courses" if (result.coefficients["feature"] != SCORE).any() else "scores"
    size = " and the size of the record" if result.size else ""
    others = "all other scores and the size of the record" if result.size else "all other scores"
    parts = [
        "# Prediction",
        f"Phenotype {what} of TASTE{size} predict the label with an **AUC of {taste['auc']:.3f}** in {patients}.",
        interval_sentence(taste),
        warning(result),
        f"The patients were split {splits} times at random, stratified by class, into 75 % training, 10 % validation "
        "and 15 % test patients. Definitions, scaling and regression were fitted to the training patients only; number "
        "of phenotypes, weights and strength of the lasso were chosen by the validation AUC; the test patients were "
        "used once, at the end.",
        "## Methods",
        table(methods_rows(result.summary), METHOD_HEADER),
        "Means over the splits; medians for calibration. In brackets the 95 % bootstrap interval for the fitted "
        "models; “over splits” is the interval of the mean over repeated splits (Nadeau and Bengio 2003), which "
        "accounts for models that differ between splits and for splits that share patients. A calibration slope below "
        "1 means risks that are too extreme.",
        comparison_text(result.comparison),
        picture("auc", pictures),
        picture("roc", pictures) or "ROC curves are not shown: there are too few test patients.",
        picture("calibration", pictures) or "Calibration is not shown: there are too few test patients.",
        "## Odds ratios of the phenotypes",
        f"TASTE fitted to all patients with {result.model.rank} phenotypes, lam = {result.model.lam:g} and "
        f"mu = {result.model.mu:g}, the settings with the highest mean validation AUC; it is saved in `model`. The "
        f"odds ratio is per standard deviation of the score, {others} held constant; the lasso shrinks it "
        "towards 1. Its interval and “kept” (the fraction of bootstrap samples in which the lasso keeps the score) "
        "hold for these definitions; “splits” is the number of splits that reproduce the phenotype (a cosine of at "
        "least 0.8), with the lowest and highest odds ratio in them. These are associations, not causes.",
        table(phenotype_rows(result.coefficients, splits), PHENOTYPE_HEADER),
        picture("phenotypes", pictures),
        f"The CSV files in this folder have all figures. phenotaste {__version__}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


METHOD_HEADER = (
    "method", "AUC", "over splits", "AUPRC", "Brier score", "calibration intercept", "slope"
)  # fmt: skip
PHENOTYPE_HEADER = ("phenotype", "odds ratio", "kept", "splits", "features with the largest weights")


def interval_sentence(row: "pd.Series") -> str:
    """Return the two intervals of the AUC; a single split has no interval over splits."""
    bootstrap = f"{row['auc_low']:.3f} to {row['auc_high']:.3f} for these models on other patients"
    if row["auc_splits_low"] != row["auc_splits_low"]:
        return f"95 % interval: {bootstrap}."
    low, high = row["auc_splits_low"], row["auc_splits_high"]
    return f"95 % intervals: {low:.3f} to {high:.3f} for newly trained models, {bootstrap}."


def methods_rows(summary: "pd.DataFrame") -> list[list[str]]:
    return [
        [
            LABELS[row["method"]],
            between(row, "auc", "auc_low", "auc_high"),
            f"{number(row['auc_splits_low'])} to {number(row['auc_splits_high'])}",
            between(row, "auprc", "auprc_low", "auprc_high"),
            number(row["brier"]),
            number(row["calibration_intercept"], 2),
            number(row["calibration_slope"], 2),
        ]
        for _, row in summary.iterrows()
    ]


def phenotype_rows(coefficients: "pd.DataFrame", splits: int) -> list[list[str]]:
    rows = []
    for _, row in coefficients.head(MAX_PHENOTYPES).iterrows():
        reproduced = f"{row['reproduced_in_splits']} of {splits}"
        if row["reproduced_in_splits"]:
            reproduced += f", {number(row['splits_minimum'], 2)} to {number(row['splits_maximum'], 2)}"
        ratio = between(row, "odds_ratio", "odds_ratio_low", "odds_ratio_high", 2)
        rows.append([column_label(row), ratio, percent(row["kept"]), reproduced, escaped(row["definition"])])
    return rows


def comparison_text(comparison: "pd.DataFrame") -> str:
    if not len(comparison):
        return ""
    rows = [
        [
            LABELS[row["method"]],
            between(row, "difference", "difference_low", "difference_high"),
            f"{number(row['difference_splits_low'])} to {number(row['difference_splits_high'])}",
            f"{row['better_in']} of {row['splits']}",
        ]
        for _, row in comparison.iterrows()
    ]
    header = ("TASTE's AUC minus that of", "difference", "over splits", "higher in splits")
    return table(rows, header) + "\n\nPaired by split and by bootstrap sample."


def warning(result: "Evaluation") -> str:
    return "**Disclosure control is off: keep these files with the data.**" if result.trusted else ""


def picture(what: str, drawn: list[str]) -> str:
    return f"![{TITLES[what]}](figures/{what}.png)" if what in drawn else ""


def table(rows: list[list[str]], header: tuple[str, ...]) -> str:
    lines = [list(header), ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def between(row: "pd.Series", mean: str, low: str, high: str, digits: int = 3) -> str:
    return f"{number(row[mean], digits)} ({number(row[low], digits)} to {number(row[high], digits)})"


def number(value: float, digits: int = 3) -> str:
    return "–" if value != value else f"{value:.{digits}f}"


def percent(value: float) -> str:
    return "–" if value != value else f"{value:.0%}"


def escaped(text: str) -> str:
    """Escape names from the data, so that they neither end a cell of the table nor are read as markup."""
    for letter in ("\\", "|", "`", "*", "_", "[", "]", "<"):
        text = text.replace(letter, f"\\{letter}")
    return text
