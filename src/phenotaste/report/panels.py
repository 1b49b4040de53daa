"""Figures with a small panel for each phenotype: typical courses, bands over time, and profiles."""

from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.report.drawing import (
    LINE,
    SOFT,
    STATIC,
    TEMPORAL,
    clean,
    label,
    legend_below,
    new_figure,
    panels,
    plain,
    too_few,
)
from phenotaste.report.record import Band, Content, Phenotype

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: dict[str, dict[str, Any]] = {
    "early": {"color": "#6fb0dc", "linewidth": 1.8, "linestyle": "--"},
    "middle": {"color": TEMPORAL, "linewidth": 1.8},
    "late": {"color": "#0c2f4a", "linewidth": 1.8, "linestyle": "-."},
    "all": {"color": SOFT, "linewidth": 1.8, "linestyle": ":"},
}
WORDS = {
    "early": "patients with early activity",
    "middle": "in between",
    "late": "with late activity",
    "all": "all together, where they are few",
}
MOST_EFFECTS = 8
PROFILES_ACROSS = 3


def typical_courses(content: Content) -> "Figure":
    """Mean activity from first to last visit, for groups of the patients a phenotype leads in."""
    title = "Mean activity over the history of the patients a phenotype leads in"
    figure, axes = panels(content, title, "visits so far (%)", "activity")
    for phenotype, axis in zip(content.phenotypes, axes, strict=True):
        for curve in phenotype.typical:
            along = np.linspace(0, 100, len(curve.curve))
            axis.plot(along, curve.curve, label=WORDS[curve.label], **STYLES[curve.label])
        if not phenotype.typical:
            too_few(axis)
    axes[0].set_ylim(bottom=0)
    legend_below(figure, axes, list(WORDS.values()))
    return figure


def over_visits(content: Content) -> "Figure":
    bands = [phenotype.course.visits for phenotype in content.phenotypes]
    return draw_bands(content, bands, "visit")


def over_months(content: Content) -> "Figure":
    bands = [phenotype.course.months for phenotype in content.phenotypes]
    return draw_bands(content, bands, "months since first visit")


def draw_bands(content: Content, bands: list[Band | None], x_label: str) -> "Figure":
    title = "Activity of a phenotype in the patients it leads in"
    figure, axes = panels(content, title, x_label, "activity")
    for band, axis in zip(bands, axes, strict=True):
        if band is None:
            too_few(axis)
            continue
        axis.fill_between(
            band.x,
            band.low,
            band.high,
            color=TEMPORAL,
            alpha=0.18,
            linewidth=0,
            label="middle half of the patients",
        )
        axis.plot(band.x, band.median, color=TEMPORAL, linewidth=1.6, label="median")
    axes[0].set_ylim(bottom=0)
    legend_below(figure, axes)
    return figure


def profiles(content: Content) -> "Figure":
    """The largest differences between the patients a phenotype leads in and all others."""
    count = len(content.phenotypes)
    across = min(count, PROFILES_ACROSS)
    down = -(-count // across)
    figure = new_figure(3.7 * across + 0.4, (0.9 + 0.21 * MOST_EFFECTS) * down + 0.5)
    title = "Patients a phenotype leads in against all others (standardised difference)"
    figure.suptitle(title, fontsize=10, x=0.01, horizontalalignment="left")
    grid: Any = figure.subplots(down, across, squeeze=False)
    reach = 1.1 * max(abs(c.effect or 0.0) for p in content.phenotypes for c in p.profile)
    for axis in grid.flat[count:]:
        axis.set_visible(False)
    for phenotype, axis in zip(content.phenotypes, grid.flat, strict=False):
        draw_profile(axis, phenotype, max(reach, 0.2))
    return figure


def draw_profile(axis: "Axes", phenotype: Phenotype, reach: float) -> None:
    shown = [c for c in phenotype.profile if c.effect is not None][:MOST_EFFECTS]
    axis.set_title(label(phenotype, 40), fontsize=9, loc="left")
    clean(axis)
    axis.set_xlim(-reach, reach)
    axis.set_ylim(-0.6, MOST_EFFECTS - 0.4)
    axis.tick_params(labelsize=7)
    axis.tick_params(axis="y", length=0)
    rows = MOST_EFFECTS - 1 - np.arange(len(shown))
    axis.set_yticks(rows, [plain(c.feature, 30) for c in shown], fontsize=7)
    axis.axvline(0.0, color=LINE, linewidth=1)
    effects = [c.effect or 0.0 for c in shown]
    axis.hlines(rows, 0.0, effects, color=SOFT, linewidth=1)
    axis.plot(effects, rows, "o", color=STATIC, markersize=5)
    if not shown:
        too_few(axis)
