"""What the studies' figures share: a colour and a mark for each method, and lines with their spread."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phenotaste.report.drawing import SOFT, clean, new_figure
from phenotaste.studies.methods import LABELS, LETTER, PUBLISHED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# They differ in lightness and mark as well as in hue, and line styles tell variants of one method apart.
STYLES: dict[str, dict[str, Any]] = {
    "TASTE": {"color": "#1f6391", "marker": "o", "linewidth": 2.0, "zorder": 5},
    LETTER: {"color": "#7fb2d6", "marker": "o", "linewidth": 1.2, "linestyle": (0, (4, 2)), "zorder": 3},
    # Hollow: on TASTE's core it lies on TASTE's line.
    "CohenPlus": {
        "color": "#d07a1f",
        "marker": "s",
        "markersize": 6.5,
        "markerfacecolor": "none",
        "linewidth": 1.4,
        "zorder": 4,
    },
    PUBLISHED: {"color": "#8f4a0b", "marker": "s", "linewidth": 1.4, "linestyle": (0, (4, 2)), "zorder": 4},
    "CopaPlus": {"color": SOFT, "marker": "^", "linewidth": 1.4, "zorder": 4},
}


def grid(
    down: int, across: int, *, width: float = 2.5, height: float = 2.1, **sharing: Any
) -> tuple["Figure", Any]:
    """Panels in rows and columns, and room below them for a legend."""
    figure = new_figure(width * across + 0.6, height * down + 0.6)
    axes: Any = figure.subplots(down, across, squeeze=False, **sharing)
    for axis in axes.flat:
        axis.tick_params(labelsize=8)
        clean(axis)
    return figure, axes


def line(axis: "Axes", rows: "pd.DataFrame", x: str, y: str, method: str, label: str | None = None) -> None:
    """Means joined by a line, and one standard deviation to either side."""
    rows = rows.sort_values(x)
    name = LABELS.get(method, method) if label is None else label
    style = {"markersize": 3.5, **STYLES.get(method, {})}
    axis.plot(rows[x], rows[f"{y}_mean"], label=name, **style)
    spread = rows[f"{y}_sd"].fillna(0.0)
    axis.fill_between(
        rows[x],
        rows[f"{y}_mean"] - spread,
        rows[f"{y}_mean"] + spread,
        color=style.get("color"),
        alpha=0.15,
        linewidth=0,
        zorder=style.get("zorder", 3) - 2,
    )


def same_heights(axes: Sequence["Axes"], within: tuple[float, float] = (-float("inf"), float("inf"))) -> None:
    """One scale for panels side by side, cut to these limits; only the first of them says which."""
    limits = [axis.get_ylim() for axis in axes]
    low, high = min(pair[0] for pair in limits), max(pair[1] for pair in limits)
    for n, axis in enumerate(axes):
        axis.set_ylim(max(low, within[0]), min(high, within[1]))
        axis.tick_params(labelleft=n == 0)


def titles(axes: Sequence["Axes"], names: Sequence[str]) -> None:
    for axis, name in zip(axes, names, strict=True):
        axis.set_title(name, fontsize=9, loc="left")


def legend(figure: "Figure", axes: Any) -> None:
    """One for all panels, below everything, in a row."""
    entries: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    known = list(LABELS.values())
    names = sorted(entries, key=lambda name: known.index(name) if name in known else len(known))
    entries = {name: entries[name] for name in names}
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        fontsize=8,
        frameon=False,
        ncols=len(entries),
    )
