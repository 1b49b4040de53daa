"""A short page about an evaluation, in Markdown: procedure, performance, and odds ratios of the phenotypes."""

from typing import TYPE_CHECKING

from phenotaste import __version__
from phenotaste.prediction.figures import drawable
from phenotaste.prediction.methods import LABELS, TASTE_NAME

if TYPE_CHECKING:
    import pandas as pd

    from phenotaste.prediction.evaluation import Evaluation

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
    parts = [
        "# Prediction",
        f"Phenotype scores of TASTE predict the label with an **AUC of {taste['auc']:.3f}** in {patients}.",
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
        "odds ratio is per standard deviation of the score, all other scores held constant; the lasso shrinks it "
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
        rows.append(
            [str(row["phenotype"]), ratio, percent(row["kept"]), reproduced, escaped(row["definition"])]
        )
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
