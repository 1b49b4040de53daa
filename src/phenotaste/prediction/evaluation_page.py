"""A short page about an evaluation, in Markdown: how it was done, how well it predicts, and what drives the risk."""

from typing import TYPE_CHECKING

from phenotaste import __version__
from phenotaste.prediction.figures import drawable
from phenotaste.prediction.methods import LABELS, TASTE_NAME

if TYPE_CHECKING:
    import pandas as pd

    from phenotaste.prediction.evaluation import Evaluation

MOST_PHENOTYPES = 20
TITLES = {
    "roc": "ROC curves",
    "calibration": "Calibration",
    "auc": "AUC of every method",
    "phenotypes": "Odds ratios",
}


def render(found: "Evaluation") -> str:
    ours, counts = found.row(TASTE_NAME), found.counts
    splits = int(ours["splits"])
    patients = f"{counts['patients']:,} patients"
    if counts["cases"] is not None:
        patients += f", {counts['cases']:,} of them cases"
    pictures = drawable(found)
    parts = [
        "# Prediction",
        f"Phenotype scores of TASTE predict the label with an **AUC of {ours['auc']:.3f}** in {patients}.",
        surely(ours),
        warning(found),
        f"{splits} times the patients were split at random, either class alike: 75 % to learn from, 10 % to tune by, "
        "15 % to test on. Definitions, scaling and regression were learned from the first part alone; number of "
        "phenotypes, weights and strength of the lasso were chosen by the AUC on the second; the third was looked at "
        "once, at the end.",
        "## Methods",
        table(methods_rows(found.summary), METHOD_HEADER),
        "Means over the splits, of the calibration medians. In brackets the 95 % interval by resampled patients, which "
        "takes the fitted models as they are; “over splits” is the interval of the mean over repeated splits (Nadeau "
        "and Bengio 2003), which knows that models differ from split to split and that splits share patients. A "
        "calibration slope below 1 means risks that are too extreme.",
        comparison_text(found.comparison),
        picture("auc", pictures),
        picture("roc", pictures) or "ROC curves are not shown: too few patients were tested on.",
        picture("calibration", pictures) or "Calibration is not shown: too few patients were tested on.",
        "## Which phenotypes drive the risk",
        f"TASTE fitted to all patients with {found.model.rank} phenotypes, lam = {found.model.lam:g} and "
        f"mu = {found.model.mu:g}, the settings with the best mean validation AUC; it is in `model`. The odds ratio is "
        "for one standard deviation more of the score, all other scores as they are; the lasso pulls it towards 1. "
        "Its interval and “kept” (in how many resamples the lasso kept the score) come from resampled patients with "
        "these definitions; “splits” says in how many splits the phenotype was found again (a cosine of at least 0.8), "
        "and its lowest and highest odds ratio there. These are associations, not causes.",
        table(phenotype_rows(found.coefficients, splits), PHENOTYPE_HEADER),
        picture("phenotypes", pictures),
        f"Every figure is in the CSV files beside this page. phenotaste {__version__}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


METHOD_HEADER = (
    "method", "AUC", "over splits", "AUPRC", "Brier score", "calibration intercept", "slope"
)  # fmt: skip
PHENOTYPE_HEADER = ("phenotype", "odds ratio", "kept", "splits", "weightiest codes and facts")


def surely(row: "pd.Series") -> str:
    """The AUC's two intervals in words; one split has no interval over splits."""
    here = (
        f"{row['auc_low']:.3f} to {row['auc_high']:.3f} for these models on other patients of the same kind"
    )
    if row["auc_splits_low"] != row["auc_splits_low"]:
        return f"95 % interval: {here}."
    low, high = row["auc_splits_low"], row["auc_splits_high"]
    return f"95 % intervals: {low:.3f} to {high:.3f} for models learned anew, {here}."


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
    for _, row in coefficients.head(MOST_PHENOTYPES).iterrows():
        again = f"{row['found_in_splits']} of {splits}"
        if row["found_in_splits"]:
            again += f", {number(row['splits_lowest'], 2)} to {number(row['splits_highest'], 2)}"
        ratio = between(row, "odds_ratio", "odds_ratio_low", "odds_ratio_high", 2)
        rows.append([str(row["phenotype"]), ratio, share(row["kept"]), again, escaped(row["definition"])])
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
    header = ("TASTE's AUC less that of", "difference", "over splits", "higher in splits")
    return table(rows, header) + "\n\nOn the same splits and the same resampled patients."


def warning(found: "Evaluation") -> str:
    return "**Disclosure control is off: keep these files where the data is.**" if found.trusted else ""


def picture(what: str, there: list[str]) -> str:
    return f"![{TITLES[what]}](figures/{what}.png)" if what in there else ""


def table(rows: list[list[str]], header: tuple[str, ...]) -> str:
    lines = [list(header), ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def between(row: "pd.Series", mean: str, low: str, high: str, digits: int = 3) -> str:
    return f"{number(row[mean], digits)} ({number(row[low], digits)} to {number(row[high], digits)})"


def number(value: float, digits: int = 3) -> str:
    return "–" if value != value else f"{value:.{digits}f}"


def share(value: float) -> str:
    return "–" if value != value else f"{value:.0%}"


def escaped(text: str) -> str:
    """Names from the data must not end a cell of the table, nor be read as markup."""
    for letter in ("\\", "|", "`", "*", "_", "[", "]", "<"):
        text = text.replace(letter, f"\\{letter}")
    return text
