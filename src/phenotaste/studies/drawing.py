"""What the studies' figures share: a colour and a marker for each method, and lines with their spread."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phenotaste.plotting import BLUE, BROWN, GREY, LIGHT_BLUE, ORANGE, legend_below, new_grid
from phenotaste.studies.methods import AS_IN_PAPER, LABELS, PUBLISHED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Line styles tell variants of one method apart.
STYLES: dict[str, dict[str, Any]] = {
    "TASTE": {"color": BLUE, "marker": "o", "linewidth": 2.0, "zorder": 5},
    AS_IN_PAPER: {
        "color": LIGHT_BLUE,
        "marker": "o",
        "linewidth": 1.2,
        "linestyle": (0, (4, 2)),
        "zorder": 3,
    },
    # Hollow, because Cohen+ on TASTE's core coincides with TASTE.
    "CohenPlus": {
        "color": ORANGE,
        "marker": "s",
        "markersize": 6.5,
        "markerfacecolor": "none",
        "linewidth": 1.4,
        "zorder": 4,
    },
    PUBLISHED: {"color": BROWN, "marker": "s", "linewidth": 1.4, "linestyle": (0, (4, 2)), "zorder": 4},
    "CopaPlus": {"color": GREY, "marker": "^", "linewidth": 1.4, "zorder": 4},
}


def grid(
    n_rows: int, n_columns: int, *, width: float = 2.5, height: float = 2.1, **sharing: Any
) -> tuple["Figure", Any]:
    """Return a figure and its panels, each of this size, with space below them for a legend."""
    return new_grid(n_rows, n_columns, width * n_columns + 0.6, height * n_rows + 0.6, **sharing)


def line(axis: "Axes", rows: "pd.DataFrame", x: str, y: str, method: str) -> None:
    """Draw means joined by a line, with a band of one standard deviation to either side."""
    rows = rows.sort_values(x)
    style = {"markersize": 3.5, **STYLES.get(method, {})}
    axis.plot(rows[x], rows[f"{y}_mean"], label=LABELS.get(method, method), **style)
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


def share_y(axes: Sequence["Axes"], within: tuple[float, float] = (-float("inf"), float("inf"))) -> None:
    """Give a row of panels the same y limits, clipped to `within`; only the first shows tick labels."""
    limits = [axis.get_ylim() for axis in axes]
    low, high = min(pair[0] for pair in limits), max(pair[1] for pair in limits)
    for n, axis in enumerate(axes):
        axis.set_ylim(max(low, within[0]), min(high, within[1]))
        axis.tick_params(labelleft=n == 0)


def legend(figure: "Figure", axes: Any) -> None:
    """Add one legend for all panels below the figure, methods in the order of `LABELS`."""
    legend_below(figure, axes.flat, list(LABELS.values()))
