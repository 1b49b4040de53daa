"""The figures, drawn with matplotlib: definitions, loss, courses and shares. Each is of many patients or of none."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.report.counts import FEWEST, in_steps
from phenotaste.report.files import replacing
from phenotaste.report.patients import Patients, mean_course, patients_of, timing
from phenotaste.report.text import readable
from phenotaste.taste import TASTE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TEMPORAL, STATIC, SOFT, LINE = "#1f6391", "#c4261d", "#5b6875", "#c9d0d6"
MAPS = {"temporal": "Blues", "static": "Reds"}
DPI = 150
MOST_ROWS = 60  # of one kind in the map of definitions
NAME_LENGTH = 60
PANELS_ACROSS = 5
COURSE_POINTS = 21
THIRDS: dict[str, dict[str, Any]] = {
    "the third with the earliest activity": {"color": "#6fb0dc", "linewidth": 1.8, "linestyle": "--"},
    "in between": {"color": TEMPORAL, "linewidth": 1.8},
    "the third with the latest": {"color": "#0c2f4a", "linewidth": 1.8, "linestyle": "-."},
}
SHARE_EDGES = np.linspace(0.0, 1.0, 11)


def save_all(model: TASTE, folder: str | os.PathLike[str], cohort: Cohort | None = None) -> list[Path]:
    """Draw every figure that the model, and the patients if known, allow, as PNG files into a folder."""
    drawings: dict[str, Callable[[], Figure]] = {
        "definitions": lambda: definitions(model),
        "loss": lambda: loss_curve(model),
    }
    patients = patients_of(model, cohort)
    if patients is not None:
        drawings["courses"] = lambda: courses(patients)
        drawings["shares"] = lambda: shares(patients)
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = [Path(folder) / f"{name}.png" for name in drawings]
    for path, draw in zip(paths, drawings.values(), strict=True):
        save(draw(), path)
    return paths


def save(figure: "Figure", path: Path) -> None:
    with warnings.catch_warnings(), replacing(path) as file:
        warnings.filterwarnings("ignore", message="Glyph")  # a letter the font lacks is drawn as a box
        figure.savefig(file, format="png", dpi=DPI)


def definitions(model: TASTE) -> "Figure":
    """Features by phenotypes, temporal ones above static ones, each next to those of the same phenotype."""
    table = model.phenotypes(top=None)
    maps = {kind: weight_map(table, kind, model.V_.shape[1]) for kind in MAPS}
    maps = {kind: found for kind, found in maps.items() if len(found)}
    rows = [max(len(found), 2) for found in maps.values()] or [2]
    figure = new_figure(4.2 + 0.62 * model.V_.shape[1], 1.1 + 0.235 * sum(rows))
    axes = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0]
    for axis, (kind, found) in zip(axes, maps.items(), strict=False):
        draw_map(axis, found, kind, top=axis is axes[0])
    return figure


def weight_map(table: "pd.DataFrame", kind: str, rank: int) -> "pd.DataFrame":
    """Features (rows) by phenotypes (columns); rows ordered by their heaviest phenotype, then by weight."""
    rows = table[table["kind"] == kind]
    found = rows.pivot_table(index="feature", columns="phenotype", values="weight", aggfunc="max")
    found = found.reindex(columns=range(1, rank + 1)).fillna(0.0)
    found = found.loc[found.max(axis=1).sort_values(ascending=False).index[:MOST_ROWS]]
    order = np.lexsort((-found.max(axis=1).to_numpy(), found.to_numpy().argmax(axis=1)))
    return found.iloc[order]


def draw_map(axis: "Axes", found: "pd.DataFrame", kind: str, top: bool) -> None:
    mesh = axis.imshow(found.to_numpy(), cmap=MAPS[kind], vmin=0.0, vmax=1.0, aspect="auto")
    axis.set_yticks(range(len(found)), [plain(name) for name in found.index], fontsize=8)
    axis.set_xticks(range(found.shape[1]), [str(r) for r in found.columns], fontsize=8)
    if top:
        axis.set_title("Phenotype", fontsize=9)
    axis.tick_params(length=0, labeltop=top, labelbottom=False)
    axis.set_xticks(np.arange(found.shape[1] + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(found) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=1.5)
    axis.tick_params(which="minor", length=0)
    axis.spines[:].set_visible(False)
    bar = axis.figure.colorbar(mesh, ax=axis, fraction=0.05, pad=0.02, aspect=12)
    bar.set_label(f"{kind} weight", fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)


def loss_curve(model: TASTE) -> "Figure":
    figure = new_figure(6.0, 3.4)
    axis = figure.subplots()
    axis.plot(np.arange(1, model.n_iter_ + 1), model.loss_curve_, color=TEMPORAL, marker="o", markersize=3)
    axis.set_xlabel("Iteration")
    axis.set_ylabel("Objective")
    axis.set_title(f"Objective by iteration ({model.outcome_.replace('_', ' ')})", fontsize=10, loc="left")
    axis.locator_params(axis="x", integer=True)
    axis.yaxis.set_major_formatter("{x:,.6g}")
    axis.tick_params(labelsize=8)
    clean(axis)
    return figure


def courses(patients: Patients) -> "Figure":
    """Mean activity from first to last visit, for thirds of the patients a phenotype leads in, and for the others."""
    leading = patients.leading()
    title = "Mean activity over the history of the patients a phenotype leads in"
    figure, axes = panels(patients.W.shape[1], title, "visits so far (%)")
    along = np.linspace(0, 100, COURSE_POINTS)
    for r, axis in enumerate(axes):
        led = np.flatnonzero(leading == r)
        thirds = np.array_split(led[np.argsort(timing(patients, r)[led], kind="stable")], len(THIRDS))
        for (name, style), third in zip(THIRDS.items(), thirds, strict=True):
            mean = mean_course(patients, r, third, COURSE_POINTS)
            axis.plot(along, np.nan * along if mean is None else mean, label=name, **style)
        others = mean_course(patients, r, np.flatnonzero(leading != r), COURSE_POINTS)
        if others is not None:
            axis.plot(along, others, color=SOFT, linewidth=1, linestyle=":", label="all other patients")
        if min(map(len, thirds)) < FEWEST:
            too_few(axis)
    axes[0].set_ylim(bottom=0)
    handles, labels = axes[0].get_legend_handles_labels()
    columns = 4 if len(axes) >= PANELS_ACROSS else 2
    figure.legend(handles, labels, loc="outside lower center", fontsize=8, frameon=False, ncols=columns)
    return figure


def shares(patients: Patients) -> "Figure":
    """How many patients have how much of each phenotype."""
    share = patients.shares()
    explained = share[share.any(axis=1)]
    title = f"Patients by the share a phenotype has in them (in steps of {FEWEST})"
    figure, axes = panels(patients.W.shape[1], title, "share (%)")
    for r, axis in enumerate(axes):
        height = in_steps(np.histogram(explained[:, r], SHARE_EDGES)[0])
        axis.bar(100 * SHARE_EDGES[:-1], height, width=9.2, align="edge", color=TEMPORAL)
        if not any(height):
            too_few(axis)
    return figure


def panels(count: int, title: str, x_label: str) -> tuple["Figure", list["Axes"]]:
    """One small panel for each phenotype, on common scales."""
    across = min(count, PANELS_ACROSS)
    down = -(-count // across)
    figure = new_figure(max(2.1 * across, 5.5) + 0.6, 1.9 * down + 0.9)
    figure.suptitle(title, fontsize=10, x=0.01, horizontalalignment="left")
    grid: Any = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    axes = list(grid.flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    for r, axis in enumerate(axes[:count]):
        axis.set_title(f"Phenotype {r + 1}", fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        clean(axis)
        if r + across >= count:  # nothing below it
            axis.tick_params(labelbottom=True)
            axis.set_xlabel(x_label, fontsize=8)
    return figure, axes[:count]


def new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # not pyplot: it keeps figures, and may look for a screen

    return Figure(figsize=(width, height), layout="constrained")


def clean(axis: "Axes") -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(LINE)
    axis.tick_params(color=LINE)


def too_few(axis: "Axes") -> None:
    axis.text(0.5, 0.5, "too few\npatients", transform=axis.transAxes, ha="center", fontsize=8, color=SOFT)


def plain(name: Any) -> str:
    """A name as matplotlib shows it letter by letter: a dollar sign would start a formula."""
    text = readable(name)
    text = text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…"
    return text.replace("$", r"\$")
