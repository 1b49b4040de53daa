"""A figure of the windows: what of a patient's history is looked at, what is not, and where the index lies."""

import io
from typing import TYPE_CHECKING, Any

from phenotaste.build.settings import Index, Match, Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW, MARK, SOFT = "#1f6391", "#c4261d", "#5b6875"
WINDOW_FILL, GAP_FILL = "#dbe8f1", "#eef0f2"
USED: dict[str, Any] = {"marker": "o", "color": WINDOW, "markersize": 6.5, "markeredgecolor": "white"}
UNUSED: dict[str, Any] = {"marker": "o", "color": "white", "markersize": 5, "markeredgecolor": SOFT}
LEAST_SHARE, MOST_SHARE = 0.2, 0.6  # of the gap between window and index, so that there is room for words
BEFORE, AFTER = 0.2, 0.19  # what is drawn before the window and after the index, which are 1 apart
ENCOUNTERS = (-0.15, -0.06, 0.04, 0.13, 0.19, 0.31, 0.44, 0.48, 0.62, 0.7, 0.77, 0.84, 0.93, 1.07, 1.12)
CONTROL_ENCOUNTERS = (-0.11, -0.07, 0.07, 0.16, 0.28, 0.37, 0.41, 0.55, 0.66, 0.73, 0.88, 1.03, 1.09)
HEIGHT = 0.19  # half of a bar, in inches like the rest
ROW, ROOM_ABOVE, ROOM_BELOW = 0.86, 0.7, 0.92


def windows(settings: Settings, labelled: bool = False) -> bytes:
    """The observation window, the gap and the index date on the time line of a patient, as SVG.

    `labelled` says that the source brought the index dates; without it they are the first index codes.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if settings.index is None:
        raise ValueError("without an index there is no window to draw")
    rows = 1 if settings.match is None else 2
    height = ROOM_ABOVE + (rows - 1) * ROW + ROOM_BELOW
    figure = Figure(figsize=(7.6, height))
    axis = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axis.set_axis_off()
    axis.set_xlim(-BEFORE - 0.03, 1 + AFTER + 0.03)
    axis.set_ylim(ROOM_ABOVE - height, ROOM_ABOVE)
    labelled = labelled or settings.index.labels is not None
    _draw(axis, settings.index, settings.match, -(rows - 1) * ROW, labelled)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "phenotaste"}):  # the same settings give the same bytes
        about = {"Title": "Observation window", "Description": _sentence(settings.index), "Date": None}
        figure.savefig(buffer, format="svg", metadata=about)
    return buffer.getvalue()


def _draw(axis: "Axes", index: Index, match: Match | None, last_row: float, labelled: bool) -> None:
    end = _end_of_window(index)
    axis.plot([1, 1], [HEIGHT + 0.05, last_row - HEIGHT - 0.05], color=MARK, linewidth=1.3, zorder=2.5)
    _time_line(axis, 0, end, ENCOUNTERS)
    axis.plot([1], [0], "D", color=MARK, markersize=7.5, markeredgecolor="white", zorder=4)
    _above(axis, end / 2, "Observation window", _months(index.window_months), WINDOW)
    if end < 1:
        _above(axis, (1 + end) / 2, "Prediction gap", _months(index.gap_months), SOFT)
    _above(axis, 1.02, "Index date", "as labelled" if labelled else "first index code", MARK, "left")
    _above(axis, -BEFORE, "Patient" if match is None else "Case", "", "black", "left")
    if match is not None:
        _time_line(axis, last_row, end, CONTROL_ENCOUNTERS)
        each = "1 for each case" if match.ratio == 1 else f"up to {match.ratio} for each case"
        _above(axis, -BEFORE, "Control", "", "black", "left", last_row)
        words = f"{each}, with the index date of the case"
        axis.text(0, last_row + HEIGHT + 0.06, words, fontsize=8.5, color=SOFT, ha="left", va="bottom")
    _below(axis, index, end, last_row)


def _end_of_window(index: Index) -> float:
    """Where the window ends, from 0 (its start) to 1 (the index)."""
    if not index.gap_months:
        return 1.0
    return 1 - min(max(_true_share(index), LEAST_SHARE), MOST_SHARE)


def _true_share(index: Index) -> float:
    return index.gap_months / (index.gap_months + index.window_months)


def _time_line(axis: "Axes", y: float, end: float, encounters: tuple[float, ...]) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((0, y - HEIGHT), end, 2 * HEIGHT, facecolor=WINDOW_FILL, edgecolor="none"))
    axis.add_patch(Rectangle((end, y - HEIGHT), 1 - end, 2 * HEIGHT, facecolor=GAP_FILL, edgecolor="none"))
    arrow = {"arrowstyle": "-|>", "color": SOFT, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", xy=(1 + AFTER, y), xytext=(-BEFORE, y), arrowprops=arrow, zorder=2)
    for x in encounters:
        axis.plot([x], [y], **(USED if 0 <= x < end else UNUSED), zorder=3)


def _above(
    axis: "Axes", x: float, name: str, detail: str, colour: str, align: str = "center", row: float = 0
) -> None:
    y = row + HEIGHT + 0.06
    axis.text(
        x, y + (0.15 if detail else 0), name, fontsize=9, color=colour, ha=align, va="bottom", weight="bold"
    )
    axis.text(x, y, detail, fontsize=8.5, color=colour, ha=align, va="bottom")


def _below(axis: "Axes", index: Index, end: float, last_row: float) -> None:
    y = last_row - HEIGHT
    for x, months in ((0.0, index.gap_months + index.window_months), (end, index.gap_months)):
        if months:
            axis.plot([x, x], [y, y - 0.07], color=SOFT, linewidth=1)
            axis.text(
                x, y - 0.1, f"{_months(months)} before", fontsize=8.5, color=SOFT, ha="center", va="top"
            )
    axis.plot([-BEFORE + 0.01], [y - 0.52], **USED)
    axis.text(-BEFORE + 0.03, y - 0.52, "encounter that is used", fontsize=8.5, va="center")
    axis.plot([0.19], [y - 0.52], **UNUSED)
    axis.text(0.21, y - 0.52, "encounter that is not", fontsize=8.5, va="center")
    remarks = []
    if index.washout_months:
        remarks.append(f"no index code in the {_months(index.washout_months)} before the index")
    if index.gap_months and _end_of_window(index) != 1 - _true_share(index):
        remarks.append("not to scale")
    axis.text(1 + AFTER, y - 0.52, "; ".join(remarks), fontsize=8.5, color=SOFT, ha="right", va="center")


def _months(count: int) -> str:
    return f"{count} month" if count == 1 else f"{count} months"


def _sentence(index: Index) -> str:
    """The figure for those who hear it read."""
    end = "the index date" if not index.gap_months else f"{_months(index.gap_months)} before the index date"
    return f"What happened in the {_months(index.window_months)} that end {end} is used, and nothing else."
