"""Figures of a comparison: methods side by side, and whether each finds the phenotypes of another."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.comparison.methods import METHODS
from phenotaste.errors import InputError
from phenotaste.plotting import (
    BLUE,
    DARK_BLUE,
    GREY,
    INK,
    LIGHT_BLUE,
    PALE_GREY,
    add_colorbar,
    hide_frame,
    image_files,
    legend_below,
    new_figure,
    new_grid,
    set_labels,
    set_suptitle,
)
from phenotaste.storage.atomic import write_file

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from phenotaste.comparison.comparison import Comparison

# Column of the table, title, label of the axis; the columns NAME_low and NAME_high are drawn as a bar.
PANELS = (
    ("halves_V", "Replication, codes", "cosine"),
    ("halves_F", "Replication, static", "cosine"),
    ("groups_V", "Between groups, codes", "cosine"),
    ("auc", "Prediction, scores", "AUC"),
    ("auc_static", "Prediction, with static", "AUC"),
    ("auc_size", "… and record size", "AUC"),
    ("held_out_error", "Error in other patients", "share of squares"),
    ("processor_seconds", "Processor time", "seconds"),
)
RANK_COLOURS = (LIGHT_BLUE, BLUE, DARK_BLUE, INK)
REFERENCE = "taste"


def save_all(result: "Comparison", folder: Path) -> None:
    """Write every figure as PNG and PDF."""
    folder.mkdir(exist_ok=True)
    for what in drawable(result):
        for name, content in image_files(what, draw(result, what)):
            write_file(folder / name, content)


def drawable(result: "Comparison") -> list[str]:
    """The names of the figures that the comparison has results for."""
    return ["methods", *(["counterparts"] if len(result.counterparts) else [])]


def draw(result: "Comparison", what: str) -> "Figure":
    if what not in drawable(result):
        raise InputError(f"There is no figure {what!r}: choose one of {', '.join(drawable(result))}.")
    return {"methods": methods, "counterparts": counterparts}[what](result)


def methods(result: "Comparison") -> "Figure":
    """One row for each method, one panel for each measure, one point for each number of phenotypes."""
    table = result.table
    shown = [panel for panel in PANELS if panel[0] in table]
    names = list(dict.fromkeys(table["method"]))
    figure, axes = new_grid(1, len(shown), 1.6 + 1.55 * len(shown), 1.3 + 0.27 * len(names), sharey=True)
    for axis, (column, title, unit) in zip(axes[0], shown, strict=True):
        dots(axis, table, column, names)
        set_labels(axis, title, unit)
        if column == "processor_seconds":
            axis.set_xscale("log")
            axis.tick_params(axis="x", which="minor", labelbottom=False)
    first = axes[0, 0]
    first.set_yticks(range(len(names)), [METHODS[name].label for name in names])
    first.set_ylim(len(names) - 0.5, -0.5)
    legend_below(figure, axes.flat)
    return figure


def dots(axis: "Axes", table: "pd.DataFrame", column: str, names: Sequence[str]) -> None:
    """The values of one measure, with their range or interval."""
    for row in range(0, len(names), 2):
        axis.axhspan(row - 0.5, row + 0.5, color=PALE_GREY, linewidth=0, zorder=0)
    ranks = sorted(table["rank"].dropna().unique())
    for number, rank in enumerate([*ranks, None]):
        part = table[table["rank"].isna() if rank is None else table["rank"] == rank]
        part = part[part[column].notna()]
        if not len(part):
            continue
        offset = 0.0 if rank is None else 0.22 * (number - (len(ranks) - 1) / 2)
        y = np.array([names.index(name) for name in part["method"]]) + offset
        colour = GREY if rank is None else RANK_COLOURS[number % len(RANK_COLOURS)]
        style: dict[str, Any] = {"color": colour, "zorder": 3}
        if f"{column}_low" in part:
            axis.hlines(y, part[f"{column}_low"], part[f"{column}_high"], linewidth=1.2, alpha=0.6, **style)
        label = "no phenotypes" if rank is None else f"{rank:g} phenotypes"
        axis.plot(part[column], y, "o", markersize=4, label=label, **style)
    low, high = table[column].min(), table[column].max()
    margin = 0.08 * (high - low) or 0.05
    if column != "processor_seconds" and np.isfinite(low):
        axis.set_xlim(low - margin, min(high + margin, 1.02) if high <= 1 else high + margin)


def counterparts(result: "Comparison") -> "Figure":
    """For the phenotypes of a reference, the cosine of the counterpart in every other method."""
    table = result.counterparts
    rank = int(table["rank"].max())
    reference = REFERENCE if (table["method"] == REFERENCE).any() else str(table["method"].iloc[0])
    rows = table[(table["rank"] == rank) & (table["method"] == reference)]
    grid = rows.pivot_table(index="other", columns="phenotype", values="cosine", sort=False)
    order = [name for name in METHODS if name in grid.index]
    values = grid.loc[order].to_numpy()
    figure = new_figure(2.6 + 0.42 * values.shape[1], 1.3 + 0.27 * len(order))
    axis = figure.subplots()
    image = axis.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        colour = "white" if value > 0.6 else "black"
        axis.text(
            j,
            i,
            f"{value:.2f}"[1 if value < 0.995 else 0 :],
            ha="center",
            va="center",
            fontsize=7,
            color=colour,
        )
    axis.set_yticks(range(len(order)), [METHODS[name].label for name in order], fontsize=8)
    axis.set_xticks(range(values.shape[1]), [str(r) for r in grid.columns], fontsize=8)
    set_labels(axis, x=f"phenotype of {METHODS[reference].label}")
    set_suptitle(figure, f"Cosine of the counterpart in other methods, {rank} phenotypes")
    hide_frame(axis)
    add_colorbar(image, axis, "cosine")
    return figure
