"""The page of a study in Markdown: its frame, tables, numbers with their standard deviations, and figures."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from phenotaste.plotting import BLUE, BROWN, GREY, LIGHT_BLUE, ORANGE, legend_below, new_grid
from phenotaste.studies.methods import AS_IN_PAPER, LABELS, NOT_SMOOTH, PUBLISHED
from phenotaste.studies.study import Study

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIRST_OBJECTIVE = "phenotaste 0.1."  # in `versions` of results


def page(study: Study, results: "pd.DataFrame") -> str:
    """Return the page, a function of the results."""
    parts = [
        f"# {study.TITLE}",
        study.QUESTION,
        *objective_note(results),
        f"![{study.TITLE}]({study.NAME}.png)",
        study.text(results, study.table(results)).strip(),
        f"*{environment_sentence(results)}*",
        f"`phenotaste study {study.NAME} --out DIR` writes this page.",
    ]
    return "\n\n".join(parts) + "\n"


def objective_note(results: "pd.DataFrame") -> list[str]:
    """Return a note on results of version 0.1, whose TASTE minimised another objective."""
    if not results["versions"].astype(str).str.contains(FIRST_OBJECTIVE, regex=False).any():
        return []
    return [
        "**Measured with version 0.1**, whose TASTE had another objective: see the changelog. The description below "
        "is that of the present version."
    ]


def environment_sentence(results: "pd.DataFrame") -> str:
    """Return the processor, the versions and the time taken."""
    cells = results.drop_duplicates("cell")
    environments = cells[["processor", "threads", "versions"]].drop_duplicates()
    description = "; ".join(
        f"{row.processor}, {row.threads} thread{'s' if row.threads != 1 else ''} per fit, {row.versions}"
        for row in environments.itertuples()
    )
    processor, wall = cells["cell_processor_seconds"].sum(), cells["cell_seconds"].sum()
    return (
        f"{len(cells):,} cells took {format_duration(processor)} of processor time and {format_duration(wall)} of wall "
        f"time in sequence; {description}."
    )


def format_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else str(timedelta(seconds=round(seconds)))


def markdown(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> str:
    """Return a table; the first column is text, the others are numbers."""
    lines = [list(header), ["---", *["---:"] * (len(header) - 1)]]
    lines += [[format_value(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def format_value(value: Any, digits: int = 4) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def mean_sd(mean: float, sd: float, digits: int = 3) -> str:
    """Return mean ± standard deviation."""
    if mean != mean:
        return "–"
    return f"{mean:.{digits}g}" + (f" ± {sd:.2g}" if sd == sd else "")


def fixed_mean_sd(mean: float, sd: float = float("nan"), decimals: int = 3) -> str:
    """Return mean ± standard deviation with a fixed number of decimals, for values on one scale."""
    if mean != mean:
        return "–"
    return f"{mean:.{decimals}f}" + (f" ± {sd:.{decimals}f}" if sd == sd else "")


# Line styles tell variants of one method apart.
STYLES: dict[str, dict[str, Any]] = {
    "TASTE": {"color": BLUE, "marker": "o", "linewidth": 2.0, "zorder": 5},
    NOT_SMOOTH: {"color": BLUE, "marker": "o", "linewidth": 1.2, "linestyle": (0, (1, 1.5)), "zorder": 4},
    AS_IN_PAPER: {
        "color": LIGHT_BLUE,
        "marker": "o",
        "linewidth": 1.2,
        "linestyle": (0, (4, 2)),
        "zorder": 3,
    },
    # Hollow, because it often coincides with TASTE as in the paper.
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
