"""Figures with a small panel for each phenotype: typical courses, bands over time, and profiles."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.plotting import (
    BLUE,
    DARK_BLUE,
    GREY,
    LIGHT_BLUE,
    LINE,
    RED,
    clean_axes,
    escape_name,
    legend_below,
    new_grid,
    set_labels,
    set_suptitle,
    wrap_name,
)
from phenotaste.report.schema import Band, Content, Phenotype

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES: dict[str, dict[str, Any]] = {
    "early": {"color": LIGHT_BLUE, "linewidth": 1.8, "linestyle": "--"},
    "middle": {"color": BLUE, "linewidth": 1.8},
    "late": {"color": DARK_BLUE, "linewidth": 1.8, "linestyle": "-."},
    "all": {"color": GREY, "linewidth": 1.8, "linestyle": ":"},
}
LABELS = {
    "early": "patients with early activity",
    "middle": "in between",
    "late": "with late activity",
    "all": "all patients, if there are few",
}
MAX_EFFECTS = 8
TICK_SIZE = 7
COLUMNS, PROFILE_COLUMNS = 5, 3
SHORT_NAME = 30


def typical_courses(content: Content) -> "Figure":
    """Mean activity from first to last visit, for groups of the patients a phenotype leads in."""
    title = "Mean activity over the history of the patients a phenotype leads in"
    figure, axes = phenotype_panels(content, title, "visits so far (%)", "activity")
    for phenotype, axis in zip(content.phenotypes, axes, strict=True):
        for curve in phenotype.typical:
            along = np.linspace(0, 100, len(curve.curve))
            axis.plot(along, curve.curve, label=LABELS[curve.label], **STYLES[curve.label])
        if not phenotype.typical:
            withheld(axis)
    axes[0].set_ylim(bottom=0)
    panel_legend(figure, axes, list(LABELS.values()))
    return figure


def over_visits(content: Content) -> "Figure":
    bands = [phenotype.course.visits for phenotype in content.phenotypes]
    return draw_bands(content, bands, "visit")


def over_months(content: Content) -> "Figure":
    bands = [phenotype.course.months for phenotype in content.phenotypes]
    return draw_bands(content, bands, "months since first visit")


def draw_bands(content: Content, bands: list[Band | None], x_label: str) -> "Figure":
    title = "Activity of a phenotype in the patients it leads in"
    figure, axes = phenotype_panels(content, title, x_label, "activity")
    for band, axis in zip(bands, axes, strict=True):
        if band is None:
            withheld(axis)
            continue
        axis.fill_between(
            band.x,
            band.low,
            band.high,
            color=BLUE,
            alpha=0.18,
            linewidth=0,
            label="quartiles",
        )
        axis.plot(band.x, band.median, color=BLUE, linewidth=1.6, label="median")
    axes[0].set_ylim(bottom=0)
    panel_legend(figure, axes)
    return figure


def profiles(content: Content) -> "Figure":
    """The largest differences between the patients a phenotype leads in and all others."""
    count = len(content.phenotypes)
    columns = min(count, PROFILE_COLUMNS)
    rows = -(-count // columns)
    figure, grid = new_grid(rows, columns, 3.7 * columns + 0.4, (0.9 + 0.21 * MAX_EFFECTS) * rows + 0.5)
    set_suptitle(figure, "Patients a phenotype leads in against all others (standardised difference)")
    limit = 1.1 * max(abs(c.effect or 0.0) for p in content.phenotypes for c in p.profile)
    for axis in grid.flat[count:]:
        axis.set_visible(False)
    for phenotype, axis in zip(content.phenotypes, grid.flat, strict=False):
        draw_profile(axis, phenotype, max(limit, 0.2))
    return figure


def draw_profile(axis: "Axes", phenotype: Phenotype, limit: float) -> None:
    shown = [c for c in phenotype.profile if c.effect is not None][:MAX_EFFECTS]
    set_labels(axis, phenotype_label(phenotype, 40))
    clean_axes(axis, TICK_SIZE)
    axis.set_xlim(-limit, limit)
    axis.set_ylim(-0.6, MAX_EFFECTS - 0.4)
    axis.tick_params(axis="y", length=0)
    rows = MAX_EFFECTS - 1 - np.arange(len(shown))
    axis.set_yticks(rows, [wrap_name(c.feature, 30) for c in shown], fontsize=TICK_SIZE)
    axis.axvline(0.0, color=LINE, linewidth=1)
    effects = [c.effect or 0.0 for c in shown]
    axis.hlines(rows, 0.0, effects, color=GREY, linewidth=1)
    axis.plot(effects, rows, "o", color=RED, markersize=5)
    if not shown:
        withheld(axis)


def phenotype_panels(
    content: Content, title: str, x_label: str, y_label: str = ""
) -> tuple["Figure", list["Axes"]]:
    """Return a figure with one small panel for each phenotype, on common scales."""
    count = len(content.phenotypes)
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure, grid = new_grid(
        rows, columns, max(2.3 * columns, 5.5) + 0.6, 1.9 * rows + 0.9, sharex=True, sharey=True
    )
    set_suptitle(figure, title)
    axes = list(grid.flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    for r, (axis, phenotype) in enumerate(zip(axes, content.phenotypes, strict=False)):
        set_labels(axis, phenotype_label(phenotype))
        axis.tick_params(labelsize=TICK_SIZE)
        if r + columns >= count:  # no panel below it
            axis.tick_params(labelbottom=True)
            set_labels(axis, x=x_label)
        if r % columns == 0:
            set_labels(axis, y=y_label)
    return figure, axes[:count]


def panel_legend(figure: "Figure", axes: list["Axes"], order: Sequence[str] = ()) -> None:
    legend_below(figure, axes, order, None if len(axes) >= 3 else 2)


def phenotype_label(phenotype: Phenotype, length: int = SHORT_NAME) -> str:
    if not phenotype.name:
        return f"Phenotype {phenotype.number}"
    return escape_name(f"P{phenotype.number}. {phenotype.name}", length)


def withheld(axis: "Axes") -> None:
    axis.text(0.5, 0.4, "withheld", transform=axis.transAxes, ha="center", fontsize=8, color=GREY)
