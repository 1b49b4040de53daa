"""The figures, drawn with matplotlib from the same content as the page: definitions, fit, map, outcome, stability."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.report import panels
from phenotaste.report.content import build
from phenotaste.report.drawing import (
    FORMATS,
    INK,
    LINE,
    SOFT,
    STATIC,
    TEMPORAL,
    TOO_FEW,
    clean,
    label,
    loud_if_trusted,
    new_figure,
    plain,
    save,
)
from phenotaste.report.record import Content, Phenotype

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAPS = {"temporal": "Blues", "static": "Reds"}
MOST_ROWS = 60  # of one kind in the map of definitions
SHOWN_WEIGHT = 0.1  # a feature is in it if it weighs so much in some phenotype
PREFIXES = {"diagnosis": "Dx ", "medication": "Rx ", "procedure": "Px ", "other": ""}


def save_all(
    content: Any,
    folder: str | os.PathLike[str],
    cohort: Cohort | None = None,
    formats: tuple[str, ...] = FORMATS,
) -> list[Path]:
    """Draw every figure that the content allows into a folder; a model in its place has its content built first."""
    if not isinstance(content, Content):
        content = build(content, cohort)
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in drawings(content).items():
        figure = draw(content)
        loud_if_trusted(figure, content)
        for kind in formats:
            paths.append(Path(folder) / f"{name}.{kind}")
            save(figure, paths[-1])
    return paths


def drawings(content: Content) -> dict[str, Callable[[Content], "Figure"]]:
    """The figures for which there is something to show."""
    found = content.phenotypes
    possible: dict[str, tuple[Callable[[Content], Figure], bool]] = {
        "definitions": (definitions, True),
        "loss": (loss, bool(content.overview.loss)),
        "map": (phenotype_map, len(found) > 1),
        "prevalence": (prevalence, any(p.prevalence is not None for p in found)),
        "courses": (panels.typical_courses, any(p.typical for p in found)),
        "visits": (panels.over_visits, any(p.course.visits for p in found)),
        "months": (panels.over_months, any(p.course.months for p in found)),
        "profiles": (panels.profiles, any(c.effect is not None for p in found for c in p.profile)),
        "outcome": (outcome, any(p.outcome and p.outcome.odds_ratio is not None for p in found)),
        "stability": (stability, any(p.stability for p in found)),
    }
    return {name: draw for name, (draw, there) in possible.items() if there}


def definitions(content: Content) -> "Figure":
    """Features by phenotypes, temporal ones above static ones, each next to those of the same phenotype."""
    maps = {kind: weight_map(content, kind) for kind in MAPS}
    maps = {kind: found for kind, found in maps.items() if found[0]}
    rows = [max(len(names), 2) for names, _ in maps.values()] or [2]
    count = max(len(content.phenotypes), 3)
    figure = new_figure(4.8 + (0.62 if count <= 12 else 0.34) * count, 1.3 + 0.235 * sum(rows))
    axes = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0]
    for axis, (kind, (names, weights)) in zip(axes, maps.items(), strict=False):
        draw_map(axis, content, names, weights, kind, top=axis is axes[0])
    if not maps:
        axes[0].set_axis_off()
        axes[0].text(0.5, 0.5, f"no feature of {content.fewest} patients or more", ha="center", color=SOFT)
    return figure


def weight_map(content: Content, kind: str) -> tuple[list[str], np.ndarray]:
    """Names and weights (features by phenotypes), ordered by their heaviest phenotype, then by weight."""
    named = (
        [PREFIXES[f.group] + f.name for f in content.features.temporal]
        if kind == "temporal"
        else [f.name for f in content.features.static]
    )
    weights = np.zeros((len(named), len(content.phenotypes)))
    for r, phenotype in enumerate(content.phenotypes):
        for j, weight in phenotype.temporal if kind == "temporal" else phenotype.static:
            weights[j, r] = weight
    heaviest = weights.max(axis=1, initial=0.0)
    kept = np.argsort(-heaviest, kind="stable")[:MOST_ROWS]
    kept = kept[heaviest[kept] >= SHOWN_WEIGHT]
    order = kept[np.lexsort((-heaviest[kept], weights[kept].argmax(axis=1)))] if len(kept) else kept
    return [named[j] for j in order], weights[order]


def draw_map(
    axis: "Axes", content: Content, names: list[str], weights: np.ndarray, kind: str, top: bool
) -> None:
    mesh = axis.imshow(weights, cmap=MAPS[kind], vmin=0.0, vmax=1.0, aspect="auto")
    axis.set_yticks(range(len(names)), [plain(name) for name in names], fontsize=8)
    long = any(p.name for p in content.phenotypes)
    ticks = [label(p) if p.name else str(p.number) for p in content.phenotypes]
    axis.set_xticks(range(len(ticks)), ticks, fontsize=8)
    if top and long:
        axis.tick_params(axis="x", labelrotation=40)
        for tick in axis.xaxis.get_major_ticks():
            tick.label2.set(horizontalalignment="left", rotation_mode="anchor")  # label1 is below the axis
    elif top:
        axis.set_title("Phenotype", fontsize=9)
    axis.tick_params(length=0, labeltop=top, labelbottom=False)
    axis.set_xticks(np.arange(len(ticks) + 1) - 0.5, minor=True)
    axis.set_yticks(np.arange(len(names) + 1) - 0.5, minor=True)
    axis.grid(which="minor", color="white", linewidth=1.5)
    axis.tick_params(which="minor", length=0)
    axis.spines[:].set_visible(False)
    bar = axis.figure.colorbar(mesh, ax=axis, fraction=0.05, pad=0.02, aspect=12)
    bar.set_label(f"{kind} weight", fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)


def loss(content: Content) -> "Figure":
    figure = new_figure(6.0, 3.4)
    axis = figure.subplots()
    curve = content.overview.loss
    axis.plot(np.arange(1, len(curve) + 1), curve, color=TEMPORAL, marker="o", markersize=3)
    axis.set_xlabel("Iteration", fontsize=9)
    axis.set_ylabel("Objective", fontsize=9)
    ending = content.overview.outcome.split(":")[0]
    axis.set_title(f"Objective by iteration ({ending})", fontsize=10, loc="left")
    axis.locator_params(axis="x", integer=True)
    axis.yaxis.set_major_formatter("{x:,.6g}")
    axis.tick_params(labelsize=8)
    clean(axis)
    return figure


def phenotype_map(content: Content) -> "Figure":
    """Phenotypes with similar temporal definitions lie near each other; the larger the more patients have them."""
    figure = new_figure(6.0, 5.4)
    axis = figure.subplots()
    for phenotype, point in zip(content.phenotypes, content.overview.map, strict=True):
        hidden = point.size is None
        area = 160 if point.size is None else 160 + 2400 * point.size
        axis.scatter(
            point.x,
            point.y,
            s=area,
            facecolor="white" if hidden else TEMPORAL,
            edgecolor=TEMPORAL,
            linestyle="--" if hidden else "-",
            alpha=0.9 if hidden else 0.35,
        )
        middle: dict[str, Any] = {"ha": "center", "va": "center", "color": INK}
        axis.annotate(str(phenotype.number), (point.x, point.y), fontsize=8, **middle)
        if phenotype.name:
            below = (0, -6 - np.sqrt(area) / 2)  # clear of the circle
            place: dict[str, Any] = {"xytext": below, "textcoords": "offset points"}
            axis.annotate(plain(phenotype.name, 24), (point.x, point.y), fontsize=7, **place, **middle)
    axis.set(xlim=(-0.15, 1.15), ylim=(-0.15, 1.15), xticks=[], yticks=[])
    axis.set_aspect("equal")
    axis.spines[:].set_color(LINE)
    sized = any(point.size is not None for point in content.overview.map)
    title = "Phenotypes by how alike their temporal definitions are"
    axis.set_title(f"{title}\n(size: share of patients)" if sized else title, fontsize=10, loc="left")
    return figure


def prevalence(content: Content) -> "Figure":
    """How many patients have each phenotype, and in how many it leads."""
    figure, axis, rows = one_row_each(content, content.phenotypes, "Share of patients (%)")
    for y, phenotype in zip(rows, content.phenotypes, strict=True):
        have, lead = phenotype.prevalence, phenotype.leading.share
        if have is not None:
            axis.barh(y, 100 * have, height=0.62, color=TEMPORAL, alpha=0.35, label="have it")
        if lead is not None:
            axis.barh(y, 100 * lead, height=0.28, color=TEMPORAL, label="it leads in")
        if have is None and lead is None:
            axis.text(0, y, f"  {TOO_FEW}", va="center", fontsize=8, color=SOFT)
    axis.set_xlim(left=0)
    axis.set_title("Patients that have a phenotype, and in whom it leads", fontsize=10, loc="left")
    once = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    axis.legend(once.values(), once.keys(), fontsize=8, frameon=False, loc="best")
    return figure


def outcome(content: Content) -> "Figure":
    """Odds ratios with their intervals, on a logarithmic scale."""
    shown = [p for p in content.phenotypes if p.outcome is not None]
    figure, axis, rows = one_row_each(content, shown, "Odds ratio against all other patients (95 % interval)")
    axis.set_xscale("log")
    axis.axvline(1.0, color=LINE, linewidth=1)
    for y, phenotype in zip(rows, shown, strict=True):
        link = phenotype.outcome
        if link is None or link.odds_ratio is None or link.low is None or link.high is None:
            axis.text(
                1.0, y, TOO_FEW, va="center", ha="center", fontsize=8, color=SOFT, backgroundcolor="white"
            )
            continue
        axis.plot([link.low, link.high], [y, y], color=TEMPORAL, linewidth=1.5)
        axis.plot(link.odds_ratio, y, marker="s", color=TEMPORAL, markersize=6)
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_title("Outcome where a phenotype leads", fontsize=10, loc="left")
    return figure


def stability(content: Content) -> "Figure":
    """How alike each phenotype's counterparts in other starts and in resamples were."""
    shown = [p for p in content.phenotypes if p.stability is not None]
    figure, axis, rows = one_row_each(content, shown, "Cosine with the counterpart in another run")
    for y, phenotype in zip(rows, shown, strict=True):
        assert phenotype.stability is not None
        kinds = (("other starts", phenotype.stability.starts), ("resamples", phenotype.stability.bootstrap))
        for step, (kind, found), colour in zip((0.16, -0.16), kinds, (TEMPORAL, STATIC), strict=True):
            if found is not None:
                places = np.full(len(found.values), y + step)
                axis.plot(found.values, places, "|", color=colour, alpha=0.5, markersize=8)
                marker = "o" if kind == "other starts" else "D"
                axis.plot(
                    found.median, y + step, marker, color=colour, markersize=5, label=f"{kind} (median)"
                )
    axis.set_xlim(right=1.02)
    axis.set_title("How surely each phenotype is found again", fontsize=10, loc="left")
    once = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    axis.legend(once.values(), once.keys(), fontsize=8, frameon=False, loc="best")
    return figure


def one_row_each(
    content: Content, shown: list[Phenotype], x_label: str
) -> tuple["Figure", "Axes", list[int]]:
    """A horizontal axis with a row for each phenotype, the first on top."""
    figure = new_figure(6.4, 1.3 + 0.36 * len(shown))
    axis = figure.subplots()
    rows = list(range(len(shown)))[::-1]
    axis.set_yticks(rows, [label(p, 40) for p in shown], fontsize=8)
    axis.set_ylim(-0.6, len(shown) - 0.4)
    axis.set_xlabel(x_label, fontsize=8)
    axis.tick_params(labelsize=8, axis="x")
    axis.tick_params(axis="y", length=0)
    clean(axis)
    return figure, axis, rows
