"""The figures of an evaluation: ROC curves, calibration, AUC of every method, and which phenotypes drive the risk."""

import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, logit

from phenotaste.errors import InputError
from phenotaste.prediction.folder import Folder
from phenotaste.prediction.methods import LABELS, TASTE_NAME
from phenotaste.prediction.tables import bounds
from phenotaste.selection.figures import BLUE, DPI, LINE, SOFT, clean, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from phenotaste.prediction.record import Evaluation

# Of one lightness step each, so that they can be told apart in grey and by colour-blind readers; dashes help too.
COLOURS = {
    TASTE_NAME: BLUE,
    "copa": "#c2641a",
    "copa-static": "#e0a062",
    "cntf": "#7b5ea7",
    "gru": "#4f8a4b",
    "raw": "#22303c",
    "raw-static": "#8b97a3",
}
DASHES = {"copa-static": "--", "cntf": "-.", "gru": ":", "raw-static": "--"}
NAME_LENGTH = 70
MOST_PHENOTYPES = 25
TICKS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1, 1.2, 1.5, 2, 3, 5, 10, 20)  # of odds ratios


def save_all(found: "Evaluation", folder: Folder) -> None:
    """Every figure that there is something to draw for, as PNG and PDF."""
    place = Folder(folder.path / "figures")
    place.path.mkdir(exist_ok=True)
    for what in drawable(found):
        figure = draw(found, what)
        for kind in ("png", "pdf"):
            picture = io.BytesIO()
            metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
            figure.savefig(picture, format=kind, dpi=DPI, metadata=metadata)
            place.put(f"{what}.{kind}", picture.getvalue())


def drawable(found: "Evaluation") -> list[str]:
    there = {"roc": len(found.roc) > 0, "calibration": len(found.calibration) > 0}
    return [what for what in DRAWINGS if there.get(what, True)]


def draw(found: "Evaluation", what: str) -> "Figure":
    if what not in DRAWINGS:
        raise InputError(f"There is no figure {what!r}: choose one of {', '.join(drawable(found))}.")
    if what not in drawable(found):
        raise InputError(f"The figure {what!r} is not drawn: too few patients were tested on.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter the font lacks is drawn as a box
        return DRAWINGS[what](found)


def roc(found: "Evaluation") -> "Figure":
    """Mean curve of every method over the splits; TASTE's spread as a band."""
    figure = new_figure(5.6, 4.6)
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color=LINE, linewidth=1)
    for method, curve in found.roc.groupby("method", sort=False):
        row = found.row(str(method))
        ours = method == TASTE_NAME
        low, high, kind = bounds(row)
        label = f"{LABELS[str(method)]}: {row['auc']:.3f} ({low:.3f} to {high:.3f})"
        axis.plot(
            curve["controls"], curve["cases"], color=COLOURS[str(method)], linestyle=DASHES.get(str(method), "-"),
            linewidth=2.2 if ours else 1.2, label=label, zorder=3 if ours else 2,
        )  # fmt: skip
        if ours and curve["cases_sd"].notna().all():
            below, above = curve["cases"] - curve["cases_sd"], curve["cases"] + curve["cases_sd"]
            axis.fill_between(
                curve["controls"], below.clip(0, 1), above.clip(0, 1), color=BLUE, alpha=0.12, linewidth=0
            )
    axis.set_aspect("equal")
    finish(
        axis,
        f"ROC, mean of {int(found.summary['splits'].max())} splits",
        "controls taken for cases",
        "cases found",
    )
    axis.legend(fontsize=7, frameon=False, loc="lower right", title=f"AUC ({kind})", title_fontsize=7)
    return figure


def calibration(found: "Evaluation") -> "Figure":
    """TASTE's groups of risk on every split, and the curve that intercept and slope stand for."""
    figure = new_figure(5.0, 4.4)
    axis = figure.subplots()
    points = found.calibration[found.calibration["method"] == TASTE_NAME]
    splits = found.splits[found.splits["method"] == TASTE_NAME]
    top = float(
        min(1.0, 1.1 * max(points["observed"].max(), points["predicted"].max(), splits["risk_high"].max()))
    )
    axis.plot([0, top], [0, top], color=LINE, linewidth=1, label="perfect")
    for number, (_, row) in enumerate(splits[splits["calibration_slope"].notna()].iterrows()):
        risks = np.linspace(row["risk_low"], row["risk_high"], 100)
        curve = expit(row["calibration_slope_intercept"] + row["calibration_slope"] * logit(risks))
        label = "" if number else "logistic calibration, each split"
        axis.plot(risks, curve, color=BLUE, alpha=0.4, linewidth=1, label=label)
    axis.scatter(
        points["predicted"], points["observed"], s=4 + points["patients"] ** 0.5 * 2, color=BLUE, alpha=0.75,
        linewidths=0, label="groups of risk, each split", zorder=3,
    )  # fmt: skip
    axis.set(xlim=(0, top), ylim=(0, top))
    axis.set_aspect("equal")
    finish(axis, "Calibration of TASTE's scores", "predicted risk", "observed share of cases")
    axis.legend(fontsize=7, frameon=False, loc="upper left")
    return figure


def auc(found: "Evaluation") -> "Figure":
    """AUC of every method: each split, the mean, and its interval."""
    rows = found.summary.iloc[::-1].reset_index(drop=True)
    figure = new_figure(5.6, 0.9 + 0.38 * len(rows))
    axis = figure.subplots()
    for place, row in rows.iterrows():
        method, height = str(row["method"]), float(str(place))
        each = found.splits[found.splits["method"] == method]["auc"]
        axis.scatter(each, np.full(len(each), height + 0.16), s=10, color=SOFT, alpha=0.6, linewidths=0)
        low, high, kind = bounds(row)
        axis.hlines(height, low, high, color=COLOURS[method], linewidth=2)
        axis.plot(row["auc"], height, marker="o", color=COLOURS[method], markersize=6)
    axis.set_yticks(range(len(rows)), [LABELS[str(method)] for method in rows["method"]])
    axis.set_ylim(-0.6, len(rows) - 0.3)
    finish(axis, f"AUC: mean, {kind}; small dots are splits", "AUC on test patients", "")
    return figure


def phenotypes(found: "Evaluation") -> "Figure":
    """Odds ratio of each phenotype's score, the strongest on top."""
    rows = found.coefficients.head(MOST_PHENOTYPES).iloc[::-1].reset_index(drop=True)
    figure = new_figure(8.2, 1.0 + 0.33 * len(rows))
    axis = figure.subplots()
    axis.axvline(1.0, color=LINE, linewidth=1)
    places = np.arange(len(rows))
    axis.hlines(places, rows["odds_ratio_low"], rows["odds_ratio_high"], color=BLUE, linewidth=2)
    axis.scatter(rows["odds_ratio"], places, color=BLUE, s=28, zorder=3)
    names = [
        plain(f"P{number}: {text}")
        for number, text in zip(rows["phenotype"], rows["definition"], strict=True)
    ]
    axis.set_yticks(places, names)
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    finish(
        axis, "Which phenotypes drive the risk", "odds ratio for one standard deviation (95 % interval)", ""
    )
    axis.tick_params(axis="y", labelsize=7)
    return figure


def plain(text: str) -> str:
    """Letter by letter: a dollar sign would start a formula."""
    text = text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…"
    return text.replace("$", r"\$")


def finish(axis: "Axes", title: str, x_label: str, y_label: str) -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(x_label, fontsize=8)
    axis.set_ylabel(y_label, fontsize=8)
    clean(axis)


DRAWINGS: dict[str, Callable[["Evaluation"], "Figure"]] = {
    "roc": roc,
    "calibration": calibration,
    "auc": auc,
    "phenotypes": phenotypes,
}
