"""The figures of a report, from the same content as the page: definitions, fit, map, outcome, stability."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.plotting import (
    BLUE,
    FORMATS,
    GREEN,
    GREY,
    INK,
    LINE,
    PANEL_TITLE_SIZE,
    RED,
    TITLE_SIZE,
    add_colorbar,
    axis_legend,
    axis_legend_below,
    clean_axes,
    escape_name,
    hide_frame,
    image_files,
    new_figure,
    set_labels,
    wrap_name,
)
from phenotaste.report import panels
from phenotaste.report.content import build
from phenotaste.report.panels import phenotype_label
from phenotaste.report.schema import Content, Phenotype
from phenotaste.report.stability import MIN_COSINE
from phenotaste.storage.atomic import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR_MAPS = {"temporal": "Blues", "static": "Reds"}
MAX_ROWS = 60  # of one kind in the heat map of definitions
MIN_WEIGHT = 0.1  # a feature is in it if its weight in some phenotype is at least this
PREFIXES = {"diagnosis": "Dx ", "medication": "Rx ", "procedure": "Px ", "other": ""}
WITHHELD = "withheld"  # too few patients, or a number of too few could be derived from it


def save_all(
    content: Any,
    folder: str | os.PathLike[str],
    cohort: Cohort | None = None,
    formats: tuple[str, ...] = FORMATS,
) -> list[Path]:
    """Write every figure that the content allows into a folder; of a model, the content is built first."""
    if not isinstance(content, Content):
        content = build(content, cohort)
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in drawings(content).items():
        figure = draw(content)
        mark_trusted(figure, content)
        for file_name, image in image_files(name, figure, formats):
            paths.append(Path(folder) / file_name)
            write_file(paths[-1], image)
    return paths


def mark_trusted(figure: "Figure", content: Content) -> None:
    """Warn on a figure that is drawn without disclosure control; at the side, which titles and legends leave free."""
    if content.trusted:
        figure.supylabel("Disclosure control is OFF", fontsize=9, color=RED, fontweight="bold")


def drawings(content: Content) -> dict[str, Callable[[Content], "Figure"]]:
    """Return the figures for which the content has results."""
    shown = content.phenotypes
    possible: dict[str, tuple[Callable[[Content], Figure], bool]] = {
        "definitions": (definitions, True),
        "loss": (loss, len(content.overview.loss) > 1),
        "map": (phenotype_map, len(shown) > 1),
        "prevalence": (prevalence, any(p.prevalence is not None for p in shown)),
        "courses": (panels.typical_courses, any(p.typical for p in shown)),
        "visits": (panels.over_visits, any(p.course.visits for p in shown)),
        "months": (panels.over_months, any(p.course.months for p in shown)),
        "profiles": (panels.profiles, any(c.effect is not None for p in shown for c in p.profile)),
        "outcome": (outcome, any(p.outcome and p.outcome.odds_ratio is not None for p in shown)),
        "stability": (stability, any(p.stability for p in shown)),
    }
    return {name: draw for name, (draw, allowed) in possible.items() if allowed}


def definitions(content: Content) -> "Figure":
    """Weights of features (rows) in phenotypes (columns), temporal features above static ones."""
    maps = {kind: weight_map(content, kind) for kind in COLOUR_MAPS}
    maps = {kind: (names, weights) for kind, (names, weights) in maps.items() if names}
    rows = [max(len(names), 2) for names, _ in maps.values()] or [2]
    count = max(len(content.phenotypes), 3)
    figure = new_figure(4.8 + (0.62 if count <= 12 else 0.34) * count, 1.3 + 0.235 * sum(rows))
    axes = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0]
    for axis, (kind, (names, weights)) in zip(axes, maps.items(), strict=False):
        draw_map(axis, content, names, weights, kind, top=axis is axes[0])
    if not maps:
        axes[0].set_axis_off()
        axes[0].text(
            0.5, 0.5, f"no feature of {content.min_cell_size} patients or more", ha="center", color=GREY
        )
    return figure


def weight_map(content: Content, kind: str) -> tuple[list[str], np.ndarray]:
    """Return names and weights (features × phenotypes), sorted by leading phenotype and then by weight."""
    names = (
        [PREFIXES[f.group] + f.name for f in content.features.temporal]
        if kind == "temporal"
        else [f.name for f in content.features.static]
    )
    weights = np.zeros((len(names), len(content.phenotypes)))
    for r, phenotype in enumerate(content.phenotypes):
        for j, weight in phenotype.temporal if kind == "temporal" else phenotype.static:
            weights[j, r] = weight
    largest = weights.max(axis=1, initial=0.0)
    kept = np.argsort(-largest, kind="stable")[:MAX_ROWS]
    kept = kept[largest[kept] >= MIN_WEIGHT]
    order = kept[np.lexsort((-largest[kept], weights[kept].argmax(axis=1)))] if len(kept) else kept
    return [names[j] for j in order], weights[order]


def draw_map(
    axis: "Axes", content: Content, names: list[str], weights: np.ndarray, kind: str, top: bool
) -> None:
    image = axis.imshow(weights, cmap=COLOUR_MAPS[kind], vmin=0.0, vmax=1.0, aspect="auto")
    axis.set_yticks(range(len(names)), [wrap_name(name) for name in names], fontsize=8)
    named = any(p.name for p in content.phenotypes)
    ticks = [phenotype_label(p) if p.name else str(p.number) for p in content.phenotypes]
    axis.set_xticks(range(len(ticks)), ticks, fontsize=8)
    if top and named:
        axis.tick_params(axis="x", labelrotation=40)
        for tick in axis.xaxis.get_major_ticks():
            tick.label2.set(horizontalalignment="left", rotation_mode="anchor")  # label1 is below the axis
    elif top:
        axis.set_title("Phenotype", fontsize=PANEL_TITLE_SIZE)
    axis.tick_params(labeltop=top, labelbottom=False)
    axis.set_xticks(np.arange(len(ticks) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=1.5)
    hide_frame(axis)
    add_colorbar(image, axis, f"{kind} weight", fraction=0.05, pad=0.02, aspect=12)


def loss(content: Content) -> "Figure":
    figure = new_figure(6.0, 3.4)
    axis = figure.subplots()
    curve = content.overview.loss
    axis.plot(np.arange(1, len(curve) + 1), curve, color=BLUE, marker="o", markersize=3)
    ending = content.overview.outcome.split(":")[0]
    set_labels(axis, f"Objective by iteration ({ending})", "Iteration", "Objective", TITLE_SIZE)
    axis.locator_params(axis="x", integer=True)
    axis.yaxis.set_major_formatter("{x:,.6g}")
    clean_axes(axis)
    return figure


def phenotype_map(content: Content) -> "Figure":
    """Phenotypes with similar temporal definitions are near each other; the area grows with the share of patients."""
    figure = new_figure(6.0, 5.4)
    axis = figure.subplots()
    for phenotype, point in zip(content.phenotypes, content.overview.map, strict=True):
        hidden = point.size is None
        area = 160 if point.size is None else 160 + 2400 * point.size
        axis.scatter(
            point.x,
            point.y,
            s=area,
            facecolor="white" if hidden else BLUE,
            edgecolor=BLUE,
            linestyle="--" if hidden else "-",
            alpha=0.9 if hidden else 0.35,
        )
        centred: dict[str, Any] = {"ha": "center", "va": "center", "color": INK}
        axis.annotate(str(phenotype.number), (point.x, point.y), fontsize=8, **centred)
        if phenotype.name:
            below = (0, -6 - np.sqrt(area) / 2)  # clear of the circle
            offset: dict[str, Any] = {"xytext": below, "textcoords": "offset points"}
            axis.annotate(
                escape_name(phenotype.name, 24), (point.x, point.y), fontsize=7, **offset, **centred
            )
    axis.set(xlim=(-0.15, 1.15), ylim=(-0.15, 1.15), xticks=[], yticks=[])
    axis.set_aspect("equal")
    axis.spines[:].set_color(LINE)
    sized = any(point.size is not None for point in content.overview.map)
    title = "Phenotypes by similarity of their temporal definitions"
    set_labels(axis, f"{title}\n(size: share of patients)" if sized else title, title_size=TITLE_SIZE)
    return figure


def prevalence(content: Content) -> "Figure":
    """Share of patients that have each phenotype, and share of those in whom it leads."""
    figure, axis, rows = phenotype_rows(content.phenotypes, "Share of patients (%)")
    for y, phenotype in zip(rows, content.phenotypes, strict=True):
        have, lead = phenotype.prevalence, phenotype.leading.share
        if have is not None:
            axis.barh(y, 100 * have, height=0.62, color=BLUE, alpha=0.35, label="have it")
        if lead is not None:
            axis.barh(y, 100 * lead, height=0.28, color=BLUE, label="it leads in")
        if have is None and lead is None:
            axis.text(0, y, f"  {WITHHELD}", va="center", fontsize=8, color=GREY)
    axis.set_xlim(left=0)
    set_labels(axis, "Patients that have a phenotype, and in whom it leads", title_size=TITLE_SIZE)
    axis_legend(axis)
    return figure


def outcome(content: Content) -> "Figure":
    """Odds ratios with their intervals, on a logarithmic scale."""
    shown = [p for p in content.phenotypes if p.outcome is not None]
    figure, axis, rows = phenotype_rows(shown, "Odds ratio against all other patients (95 % interval)")
    axis.set_xscale("log")
    axis.axvline(1.0, color=LINE, linewidth=1)
    for y, phenotype in zip(rows, shown, strict=True):
        link = phenotype.outcome
        if link is None or link.odds_ratio is None or link.low is None or link.high is None:
            axis.text(
                1.0, y, WITHHELD, va="center", ha="center", fontsize=8, color=GREY, backgroundcolor="white"
            )
            continue
        axis.plot([link.low, link.high], [y, y], color=BLUE, linewidth=1.5)
        axis.plot(link.odds_ratio, y, marker="s", color=BLUE, markersize=6)
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    set_labels(axis, "Outcome where a phenotype leads", title_size=TITLE_SIZE)
    return figure


def stability(content: Content) -> "Figure":
    """Similarity of each phenotype to its counterparts in halves of the patients, other starts and resamples."""
    shown = [p for p in content.phenotypes if p.stability is not None]
    figure, axis, rows = phenotype_rows(shown, "Cosine with the counterpart in another run")
    for y, phenotype in zip(rows, shown, strict=True):
        assert phenotype.stability is not None
        found = phenotype.stability
        for kind, runs, shift, colour, marker in (
            ("halves of the patients", found.halves, 0.25, GREEN, "s"),
            ("other starts", found.starts, 0.0, BLUE, "o"),
            ("resamples", found.bootstrap, -0.25, RED, "D"),
        ):
            if runs is not None:
                heights = np.full(len(runs.values), y + shift)
                axis.plot(runs.values, heights, "|", color=colour, alpha=0.5, markersize=7)
                label = f"{kind} (median)"
                axis.plot(runs.median, y + shift, marker, color=colour, markersize=4, label=label)
    axis.axvline(MIN_COSINE, color=LINE, linewidth=1, zorder=0)  # from here it counts as reproduced
    axis.set_xlim(min(axis.get_xlim()[0], MIN_COSINE - 0.05), 1.01)
    set_labels(axis, "Reproducibility of each phenotype", title_size=TITLE_SIZE)
    axis_legend_below(axis)
    return figure


def phenotype_rows(shown: list[Phenotype], x_label: str) -> tuple["Figure", "Axes", list[int]]:
    """Return a figure whose axis has a row for each phenotype, the first on top, and the heights of the rows."""
    figure = new_figure(6.4, 1.3 + 0.36 * len(shown))
    axis = figure.subplots()
    rows = list(range(len(shown)))[::-1]
    axis.set_yticks(rows, [phenotype_label(p, 40) for p in shown], fontsize=8)
    axis.set_ylim(-0.6, len(shown) - 0.4)
    set_labels(axis, x=x_label)
    clean_axes(axis)
    axis.tick_params(axis="y", length=0)
    return figure, axis, rows
