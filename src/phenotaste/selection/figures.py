"""Figures of a selection: stability, halves, fit, weights, starts, evidence. None shows a single patient."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import metrics
from phenotaste.errors import InputError
from phenotaste.plotting import (
    BLUE,
    GREY,
    LINE,
    PALE_BLUE,
    RED,
    TITLE_SIZE,
    add_colorbar,
    axis_legend_below,
    clean_axes,
    error_line,
    hide_frame,
    image_files,
    legend_below,
    new_figure,
    new_grid,
    set_labels,
    set_suptitle,
)
from phenotaste.selection.fits import Result
from phenotaste.selection.matching import KINDS, MIN_COSINE, match
from phenotaste.selection.rules import by_rank
from phenotaste.storage.atomic import write_file

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from phenotaste.selection.selection import Selection

WEIGHTS = {"lam": "λ (static features)", "mu": "μ (uniqueness)", "smooth": "τ (smoothness)"}
MAX_TICK_LABELS = 25  # phenotypes named along the matrix of starts


def save_all(result: "Selection", folder: Path) -> None:
    """Write every figure that the selection allows, as PNG and PDF."""
    folder.mkdir(exist_ok=True)
    for what in drawable(result):
        for name, content in image_files(what, draw(result, what)):
            write_file(folder / name, content)


def drawable(result: "Selection") -> list[str]:
    """Return the names of the figures that the selection has results for."""
    allowed = {
        "weights": any(result.table[name].nunique() > 1 for name in WEIGHTS),
        "evidence": len(result.evidence) > 0,
        "halves": "split_half_cosine" in result.table,
    }
    return [what for what in FIGURES if allowed.get(what, True)]


def draw(result: "Selection", what: str) -> "Figure":
    if what not in FIGURES:
        raise InputError(f"There is no figure {what!r}: choose one of {', '.join(drawable(result))}.")
    if what not in drawable(result):
        raise InputError(f"The figure {what!r} needs more than this selection has: {NEEDS[what]}.")
    return FIGURES[what](result)


def stability(result: "Selection") -> "Figure":
    """Mean dissimilarity of the starts against rank, as in the paper, with its spread over pairs of starts."""
    rows = by_rank(result.rule, result.table)
    figure, (axis,) = panels(1)
    axis.fill_between(
        rows["rank"],
        rows["dissimilarity_low"],
        rows["dissimilarity_high"],
        color=PALE_BLUE,
        linewidth=0,
        label="lowest to highest of all pairs",
    )
    error_line(
        axis,
        rows["rank"],
        rows["dissimilarity"],
        rows["dissimilarity_se"],
        color=BLUE,
        label="mean and its standard error",
    )
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    label_ranks(axis, result, "How much the starts differ, by number of phenotypes", "mean dissimilarity")
    legend_below(figure, [axis])
    return figure


def fit(result: "Selection") -> "Figure":
    """RMSE and CPI against rank."""
    rows = by_rank(result.rule, result.table)
    figure, axes = panels(2)
    for axis, name, title in zip(
        axes, ("rmse", "cpi"), ("RMSE (lower is better)", "CPI (near 1: phenotypes are unique)"), strict=True
    ):
        axis.plot(rows["rank"], rows[name], color=BLUE, marker="o", markersize=4, label="mean of the starts")
        axis.plot(
            rows["rank"],
            rows[f"best_{name}"],
            color=GREY,
            linestyle=":",
            label="start with the lowest objective",
        )
        label_ranks(axis, result, title, name.upper())
        axis.ticklabel_format(axis="y", useOffset=False)
    legend_below(figure, axes[:1])
    return figure


def weights(result: "Selection") -> "Figure":
    """Dissimilarity, RMSE and CPI at the chosen rank, over the two weights with the most values in the grid."""
    down, across = sorted(WEIGHTS, key=lambda name: -result.table[name].nunique())[:2]
    (fixed,) = set(WEIGHTS) - {down, across}
    chosen = {name: getattr(result.best, name) for name in ("rank", *WEIGHTS)}
    rows = result.table[(result.table["rank"] == chosen["rank"]) & (result.table[fixed] == chosen[fixed])]
    figure = new_figure(9.6, 3.3)
    set_suptitle(figure, f"{result.rank} phenotypes, by weights")
    axes = figure.subplots(1, 3)
    titles = {"dissimilarity": "dissimilarity", "rmse": "RMSE", "cpi": "CPI"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        table = rows.pivot_table(index=down, columns=across, values=name, dropna=False)
        heat_map(axis, table, title, "Blues_r" if name != "cpi" else "Blues")
        mark_cell(
            axis,
            int(np.argmax(table.columns == chosen[across])),
            int(np.argmax(table.index == chosen[down])),
        )
    return figure


def heat_map(axis: "Axes", table: "pd.DataFrame", title: str, colours: str) -> None:
    values = table.to_numpy(float)
    axis.imshow(values, cmap=colours, aspect="auto", origin="lower")
    low, high = np.nanmin(values), np.nanmax(values)
    for (i, j), value in np.ndenumerate(values):
        share = (value - low) / (high - low) if high > low else 0.0
        dark = share < 0.45 if colours.endswith("_r") else share > 0.55
        axis.text(
            j, i, f"{value:.3g}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
        )
    axis.set_xticks(range(table.shape[1]), [f"{value:g}" for value in table.columns], fontsize=8)
    axis.set_yticks(range(table.shape[0]), [f"{value:g}" for value in table.index], fontsize=8)
    set_labels(axis, title, WEIGHTS[str(table.columns.name)], WEIGHTS[str(table.index.name)])
    hide_frame(axis)


def mark_cell(axis: "Axes", column: int, row: int) -> None:
    """Frame the cell of the chosen model."""
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=RED, linewidth=2))


def starts(result: "Selection") -> "Figure":
    """Cosines between all phenotypes of all starts: dark blocks are phenotypes that most starts reproduce."""
    R, n = result.rank, len(result.definitions)
    anchor = as_result(result.best.V_)
    ordered = [V[:, match(anchor, as_result(V)).partner] for V in result.definitions]
    # Column r * n + i is phenotype r of start i.
    stacked = np.stack(ordered, axis=2).reshape(len(result.best.V_), R * n)
    size = float(np.clip(1.5 + 0.055 * R * n, 4.2, 9.0))
    figure = new_figure(size + 0.9, size)
    axis = figure.subplots()
    image = axis.imshow(metrics.cosines(stacked, stacked), cmap="Blues", vmin=0, vmax=1)
    edges = np.arange(1, R) * n - 0.5
    for draw_line in (axis.axhline, axis.axvline):
        for edge in edges:
            draw_line(edge, color="white", linewidth=1.2)
    centres = np.arange(R) * n + (n - 1) / 2
    names = [str(r + 1) for r in range(R)] if R <= MAX_TICK_LABELS else [""] * R
    axis.set_xticks(centres, names, fontsize=8)
    axis.set_yticks(centres, names, fontsize=8)
    title = "Phenotypes of all starts, matched to those of the chosen start"
    set_labels(axis, title, f"phenotype, {n} starts each", "phenotype", TITLE_SIZE)
    hide_frame(axis)
    add_colorbar(image, axis, "cosine of the definitions", fraction=0.046, pad=0.03)
    return figure


def as_result(V: np.ndarray) -> Result:
    return Result(V, None, np.eye(V.shape[1]), {})


def evidence(result: "Selection") -> "Figure":
    """Similarity of each phenotype to its counterparts in halves of the patients, other starts and resamples."""
    table = result.evidence
    kinds = [kind for kind in KINDS if (table["kind"] == kind).any()]
    figure = new_figure(max(6.0, 2.0 + 0.55 * result.rank), 1.2 + 2.3 * len(kinds))
    axes = figure.subplots(len(kinds), 1, sharex=True, squeeze=False)[:, 0]
    for axis, kind in zip(axes, kinds, strict=True):
        for factor, colour, shift in (("V", BLUE, -0.14), ("F", RED, 0.14)):
            rows = table[(table["kind"] == kind) & (table["factor"] == factor)]
            scatter(axis, rows, colour, shift, {"V": "temporal", "F": "static"}[factor] + " definition")
        axis.axhline(MIN_COSINE, color=LINE, linewidth=1, zorder=0)
        axis.set_ylim(-0.03, 1.03)
        title = f"Each phenotype and its counterparts in {KINDS[kind]}"
        set_labels(axis, title, y="cosine", title_size=TITLE_SIZE)
        clean_axes(axis)
    set_labels(axes[-1], x=f"phenotype (above the line at {MIN_COSINE:g} it counts as reproduced)")
    axes[-1].set_xticks(range(1, result.rank + 1))
    legend_below(figure, axes[:1])
    return figure


def scatter(axis: "Axes", rows: "pd.DataFrame", colour: str, shift: float, label: str) -> None:
    """Draw each comparison as a dot, jittered so that equal ones stay visible, and the median as a bar."""
    if rows.empty:
        return
    jitter = (rows.groupby("phenotype").cumcount().to_numpy() % 7 - 3) * 0.025
    x = rows["phenotype"].to_numpy() + shift + jitter
    axis.scatter(x, rows["similarity"], s=9, color=colour, alpha=0.45, linewidths=0, label=label)
    median = rows.groupby("phenotype")["similarity"].median()
    centres = median.index.to_numpy(float) + shift
    axis.hlines(median, centres - 0.11, centres + 0.11, color=colour, linewidth=2)


def halves(result: "Selection") -> "Figure":
    """Similarity of the phenotypes of two halves of the patients, beside that of two starts, and held-out error."""
    rows = by_rank(result.rule, result.table)
    figure, axes = panels(2)
    dotted = {"linestyle": ":", "linewidth": 1.2}
    marked = {"marker": "o", "markersize": 4}
    lines: list[tuple[str, str, dict[str, Any]]] = [
        ("split_half_cosine", "temporal, mean", {"color": BLUE, **marked}),
        ("split_half_cosine_min", "temporal, lowest phenotype", {"color": BLUE, **dotted}),
        ("split_half_cosine_static", "static, mean", {"color": RED, **marked}),
        ("split_half_cosine_static_min", "static, lowest phenotype", {"color": RED, **dotted}),
        ("matched", "all patients, two starts: temporal, mean", {"color": GREY}),
    ]
    draw_lines(axes[0], rows, lines)
    label_ranks(axes[0], result, "Phenotypes of two halves of the patients, matched", "cosine")
    axes[0].set_ylim(-0.03, 1.03)
    errors = [
        ("held_out_error", "held-out patients", {"color": BLUE, **marked}),
        ("fitted_error", "fitted patients", {"color": GREY, **dotted}),
    ]
    draw_lines(axes[1], rows, errors)
    label_ranks(axes[1], result, "Relative reconstruction error of the visits", "share not reconstructed")
    for axis in axes:
        axis_legend_below(axis)
    return figure


def draw_lines(axis: "Axes", rows: "pd.DataFrame", lines: list[tuple[str, str, dict[str, Any]]]) -> None:
    """Draw columns against the rank; those without a value, such as static ones of plain visits, are left out."""
    for name, label, style in lines:
        if rows[name].notna().any():
            axis.plot(rows["rank"], rows[name], label=label, **style)


def panels(count: int) -> tuple["Figure", list["Axes"]]:
    figure, grid = new_grid(1, count, 6.2 if count == 1 else 4.6 * count, 3.6)
    return figure, list(grid.flat)


def label_ranks(axis: "Axes", result: "Selection", title: str, y_label: str) -> None:
    """Mark the chosen rank, and label an axis of ranks with integers."""
    axis.axvline(result.rank, color=RED, linewidth=1, linestyle="--", zorder=0)
    top = axis.get_xaxis_transform()
    axis.text(result.rank, 1.0, " chosen", transform=top, color=RED, fontsize=8, va="top", zorder=0)
    set_labels(axis, title, "number of phenotypes", y_label, TITLE_SIZE)
    axis.locator_params(axis="x", integer=True)


FIGURES: dict[str, Callable[["Selection"], "Figure"]] = {
    "stability": stability,
    "halves": halves,
    "fit": fit,
    "weights": weights,
    "starts": starts,
    "evidence": evidence,
}
NEEDS = {
    "weights": "more than one lam, mu or smooth",
    "evidence": "halves, starts or resamples to compare with",
    "halves": "fits of halves of the patients",
}
