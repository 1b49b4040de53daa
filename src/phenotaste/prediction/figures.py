"""Figures of an evaluation: ROC curves, calibration, AUC of every method, and odds ratios of the phenotypes."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit

from phenotaste.errors import InputError
from phenotaste.plotting import (
    BLUE,
    BROWN,
    DARK_BLUE,
    GREEN,
    GREY,
    INK,
    LIGHT_GREY,
    LIGHT_ORANGE,
    LINE,
    ORANGE,
    PURPLE,
    RED,
    TITLE_SIZE,
    axis_legend,
    clean_axes,
    escape_name,
    image_files,
    new_figure,
    set_labels,
)
from phenotaste.prediction.evaluation_tables import bounds, column_label
from phenotaste.prediction.methods import LABELS, TASTE_NAME
from phenotaste.storage.atomic import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from phenotaste.prediction.evaluation import Evaluation

COLOURS = {
    TASTE_NAME: BLUE,
    "copa": ORANGE,
    "copa-static": LIGHT_ORANGE,
    "cntf": PURPLE,
    "gru": GREEN,
    "raw": INK,
    "raw-static": LIGHT_GREY,
    "nmf": RED,
    "visit-nmf": RED,
    "lda": BROWN,
    "svd": BROWN,
    "boosting": DARK_BLUE,
}
DASHES = {"copa-static": "--", "cntf": "-.", "gru": ":", "raw-static": "--"}
DASHES |= {"visit-nmf": "--", "svd": "--", "boosting": "-."}
MAX_NAME_LENGTH = 70
MAX_PHENOTYPES = 25
TICKS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1, 1.2, 1.5, 2, 3, 5, 10, 20)  # of odds ratios


def save_all(result: "Evaluation", folder: Path) -> None:
    """Write every figure that the evaluation has results for, as PNG and PDF."""
    folder.mkdir(exist_ok=True)
    for what in drawable(result):
        for name, content in image_files(what, draw(result, what)):
            write_file(folder / name, content)


def drawable(result: "Evaluation") -> list[str]:
    """Return the names of the figures that the evaluation has results for."""
    allowed = {"roc": len(result.roc) > 0, "calibration": len(result.calibration) > 0}
    return [what for what in FIGURES if allowed.get(what, True)]


def draw(result: "Evaluation", what: str) -> "Figure":
    if what not in FIGURES:
        raise InputError(f"There is no figure {what!r}: choose one of {', '.join(drawable(result))}.")
    if what not in drawable(result):
        raise InputError(f"The figure {what!r} is not drawn: there are too few test patients.")
    return FIGURES[what](result)


def roc(result: "Evaluation") -> "Figure":
    """Mean curve of every method over the splits, with the spread of TASTE as a band."""
    figure = new_figure(5.6, 4.6)
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color=LINE, linewidth=1)
    for method, curve in result.roc.groupby("method", sort=False):
        row = result.row(str(method))
        is_taste = method == TASTE_NAME
        low, high, kind = bounds(row)
        label = f"{LABELS[str(method)]}: {row['auc']:.3f} ({low:.3f} to {high:.3f})"
        axis.plot(
            curve["controls"], curve["cases"], color=COLOURS[str(method)], linestyle=DASHES.get(str(method), "-"),
            linewidth=2.2 if is_taste else 1.2, label=label, zorder=3 if is_taste else 2,
        )  # fmt: skip
        if is_taste and curve["cases_sd"].notna().all():
            below, above = curve["cases"] - curve["cases_sd"], curve["cases"] + curve["cases_sd"]
            axis.fill_between(
                curve["controls"], below.clip(0, 1), above.clip(0, 1), color=BLUE, alpha=0.12, linewidth=0
            )
    axis.set_aspect("equal")
    label_axes(
        axis,
        f"ROC, mean of {int(result.summary['splits'].max())} splits",
        "false positive rate",
        "true positive rate",
    )
    axis_legend(axis, loc="lower right", fontsize=7, title=f"AUC ({kind})", title_fontsize=7)
    return figure


def calibration(result: "Evaluation") -> "Figure":
    """Observed against predicted risk of TASTE on every split, and the curve of calibration intercept and slope."""
    figure = new_figure(5.0, 4.4)
    axis = figure.subplots()
    points = result.calibration[result.calibration["method"] == TASTE_NAME]
    splits = result.splits[result.splits["method"] == TASTE_NAME]
    top = float(
        min(
            1.0,
            1.1 * np.nanmax([points["observed"].max(), points["predicted"].max(), splits["risk_high"].max()]),
        )
    )
    axis.plot([0, top], [0, top], color=LINE, linewidth=1, label="perfect")
    drawn = splits[splits["calibration_slope"].notna() & splits["risk_low"].notna()]
    for number, (_, row) in enumerate(drawn.iterrows()):
        risks = np.linspace(row["risk_low"], row["risk_high"], 100)
        curve = expit(row["calibration_slope_intercept"] + row["calibration_slope"] * logit(risks))
        label = "" if number else "logistic calibration, each split"
        axis.plot(risks, curve, color=BLUE, alpha=0.4, linewidth=1, label=label)
    axis.scatter(
        points["predicted"], points["observed"], s=4 + points["patients"] ** 0.5 * 2, color=BLUE, alpha=0.75,
        linewidths=0, label="risk groups, each split", zorder=3,
    )  # fmt: skip
    axis.set(xlim=(0, top), ylim=(0, top))
    axis.set_aspect("equal")
    label_axes(axis, "Calibration of TASTE", "predicted risk", "observed share of cases")
    axis_legend(axis, loc="upper left", fontsize=7)
    return figure


def auc(result: "Evaluation") -> "Figure":
    """AUC of every method: each split, the mean, and its interval."""
    rows = result.summary.iloc[::-1].reset_index(drop=True)
    figure = new_figure(5.6, 0.9 + 0.38 * len(rows))
    axis = figure.subplots()
    for position, row in rows.iterrows():
        method, height = str(row["method"]), float(str(position))
        each = result.splits[result.splits["method"] == method]["auc"]
        axis.scatter(each, np.full(len(each), height + 0.16), s=10, color=GREY, alpha=0.6, linewidths=0)
        low, high, kind = bounds(row)
        axis.hlines(height, low, high, color=COLOURS[method], linewidth=2)
        axis.plot(row["auc"], height, marker="o", color=COLOURS[method], markersize=6)
    axis.set_yticks(range(len(rows)), [LABELS[str(method)] for method in rows["method"]])
    axis.set_ylim(-0.6, len(rows) - 0.3)
    label_axes(axis, f"AUC: mean, {kind}; small dots are splits", "AUC on test patients", "")
    return figure


def phenotypes(result: "Evaluation") -> "Figure":
    """Odds ratio of each phenotype score, the strongest on top."""
    rows = result.coefficients.head(MAX_PHENOTYPES).iloc[::-1].reset_index(drop=True)
    figure = new_figure(8.2, 1.0 + 0.33 * len(rows))
    axis = figure.subplots()
    axis.axvline(1.0, color=LINE, linewidth=1)
    heights = np.arange(len(rows))
    axis.hlines(heights, rows["odds_ratio_low"], rows["odds_ratio_high"], color=BLUE, linewidth=2)
    axis.scatter(rows["odds_ratio"], heights, color=BLUE, s=28, zorder=3)
    names = [
        escape_name(f"P{column_label(row)}: {row['definition']}", MAX_NAME_LENGTH)
        for _, row in rows.iterrows()
    ]
    axis.set_yticks(heights, names)
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    label_axes(
        axis, "Odds ratios of the phenotypes", "odds ratio for one standard deviation (95 % interval)", ""
    )
    axis.tick_params(axis="y", labelsize=7)
    return figure


def label_axes(axis: "Axes", title: str, x_label: str, y_label: str) -> None:
    set_labels(axis, title, x_label, y_label, TITLE_SIZE)
    clean_axes(axis)


FIGURES: dict[str, Callable[["Evaluation"], "Figure"]] = {
    "roc": roc,
    "calibration": calibration,
    "auc": auc,
    "phenotypes": phenotypes,
}
