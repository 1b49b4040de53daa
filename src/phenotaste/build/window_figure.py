"""The figure of the windows: which part of a patient's history is used, which is not, and where the index date is."""

from typing import TYPE_CHECKING, Any

from phenotaste.build import durations
from phenotaste.build.settings import Index, Match, Settings
from phenotaste.plotting import BLUE, GREY, INK, PALE_BLUE, PALE_GREY, RED, encode_figure, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

USED: dict[str, Any] = {"marker": "o", "color": BLUE, "markersize": 6.5, "markeredgecolor": "white"}
UNUSED: dict[str, Any] = {"marker": "o", "color": "white", "markersize": 5, "markeredgecolor": GREY}
TEXT: dict[str, Any] = {"fontsize": 8.5, "color": GREY}
MIN_GAP_SHARE, MAX_GAP_SHARE = 0.2, 0.6  # of what is drawn up to the index, so that labels fit
BEFORE, AFTER = 0.2, 0.19  # drawn before the window and after the index date, which are 1 apart
ENCOUNTERS = (-0.15, -0.06, 0.04, 0.13, 0.19, 0.31, 0.44, 0.48, 0.62, 0.7, 0.77, 0.84, 0.93, 1.07, 1.12)
CONTROL_ENCOUNTERS = (-0.11, -0.07, 0.07, 0.16, 0.28, 0.37, 0.41, 0.55, 0.66, 0.73, 0.88, 1.03, 1.09)
HALF_HEIGHT = 0.19  # of a bar; vertical distances are in inches
ROW_HEIGHT, TOP_MARGIN, BOTTOM_MARGIN = 0.86, 0.7, 0.92


def windows(settings: Settings, labelled: bool = False) -> bytes:
    """Draw the observation window, the gap and the index date on the time line of a patient, as SVG.

    With `labelled`, index dates come with the source; otherwise they are the dates of the first index codes.
    """
    if settings.index is None:
        raise ValueError("settings have no index, so there is no window to draw")
    rows = 1 if settings.match is None else 2
    height = TOP_MARGIN + (rows - 1) * ROW_HEIGHT + BOTTOM_MARGIN
    figure = new_figure(7.6, height, layout=None)
    axis = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axis.set_axis_off()
    axis.set_xlim(-BEFORE - 0.03, 1 + AFTER + 0.03)
    axis.set_ylim(TOP_MARGIN - height, TOP_MARGIN)
    labelled = labelled or settings.index.labels is not None
    _draw(axis, settings.index, settings.match, -(rows - 1) * ROW_HEIGHT, labelled)
    about = {"Title": "Observation window", "Description": _description(settings.index)}
    return encode_figure(figure, "svg", about)


def _draw(axis: "Axes", index: Index, match: Match | None, last_row: float, labelled: bool) -> None:
    end = _end_of_window(index)
    axis.plot(
        [1, 1], [HALF_HEIGHT + 0.05, last_row - HALF_HEIGHT - 0.05], color=RED, linewidth=1.3, zorder=2.5
    )
    _time_line(axis, 0, end, ENCOUNTERS)
    axis.plot([1], [0], "D", color=RED, markersize=7.5, markeredgecolor="white", zorder=4)
    window, gap, _ = index.lengths
    if index.first is not None:
        length = str(durations.known(index.first))
        _label_above(axis, end / 2, "Observation window", f"first {length}", BLUE)
        _label_above(axis, 1.02, "Index", "end of the window", RED, "left")
    else:
        _label_above(axis, end / 2, "Observation window", str(window), BLUE)
        _label_above(axis, 1.02, "Index date", "as labelled" if labelled else "first index code", RED, "left")
    if end < 1:
        _label_above(axis, (1 + end) / 2, "Prediction gap", str(gap), GREY)
    _label_above(axis, -BEFORE, "Patient" if match is None else "Case", "", INK, "left")
    if match is not None:
        _time_line(axis, last_row, end, CONTROL_ENCOUNTERS)
        each = "1 for each case" if match.ratio == 1 else f"up to {match.ratio} for each case"
        _label_above(axis, -BEFORE, "Control", "", INK, "left", last_row)
        detail = f"{each}, with the index date of the case"
        axis.text(0, last_row + HALF_HEIGHT + 0.06, detail, **TEXT, ha="left", va="bottom")
    _label_below(axis, index, end, last_row)


def _end_of_window(index: Index) -> float:
    """Return the end of the window as drawn, from 0 (its start) to 1 (the index date)."""
    if index.first is not None or not index.lengths[1].number:
        return 1.0
    return 1 - min(max(_gap_share(index), MIN_GAP_SHARE), MAX_GAP_SHARE)


def _gap_share(index: Index) -> float:
    window, gap, _ = index.lengths
    return gap.minutes / (gap.minutes + window.minutes)


def _time_line(axis: "Axes", y: float, end: float, encounters: tuple[float, ...]) -> None:
    from matplotlib.patches import Rectangle

    axis.add_patch(
        Rectangle((0, y - HALF_HEIGHT), end, 2 * HALF_HEIGHT, facecolor=PALE_BLUE, edgecolor="none")
    )
    axis.add_patch(
        Rectangle((end, y - HALF_HEIGHT), 1 - end, 2 * HALF_HEIGHT, facecolor=PALE_GREY, edgecolor="none")
    )
    arrow = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", xy=(1 + AFTER, y), xytext=(-BEFORE, y), arrowprops=arrow, zorder=2)
    for x in encounters:
        axis.plot([x], [y], **(USED if 0 <= x < end else UNUSED), zorder=3)


def _label_above(
    axis: "Axes", x: float, name: str, detail: str, colour: str, align: str = "center", row: float = 0
) -> None:
    y = row + HALF_HEIGHT + 0.06
    axis.text(
        x, y + (0.15 if detail else 0), name, fontsize=9, color=colour, ha=align, va="bottom", weight="bold"
    )
    axis.text(x, y, detail, fontsize=8.5, color=colour, ha=align, va="bottom")


def _label_below(axis: "Axes", index: Index, end: float, last_row: float) -> None:
    y = last_row - HALF_HEIGHT
    for x, text in _distances(index, end):
        axis.plot([x, x], [y, y - 0.07], color=GREY, linewidth=1)
        axis.text(x, y - 0.1, text, **TEXT, ha="center", va="top")
    axis.plot([-BEFORE + 0.01], [y - 0.52], **USED)
    axis.text(-BEFORE + 0.03, y - 0.52, "encounter that is used", fontsize=8.5, va="center")
    axis.plot([0.19], [y - 0.52], **UNUSED)
    axis.text(0.21, y - 0.52, "encounter that is not", fontsize=8.5, va="center")
    remarks = []
    if index.lengths[2].number and index.first is None:
        remarks.append(f"no index code in the {index.lengths[2]} before the index")
    if end < 1 and end != 1 - _gap_share(index):
        remarks.append("not to scale")
    axis.text(1 + AFTER, y - 0.52, "; ".join(remarks), **TEXT, ha="right", va="center")


def _distances(index: Index, end: float) -> list[tuple[float, str]]:
    """The positions of the start and, with a gap, of the end of the window, and their distance from the index."""
    window, gap, _ = index.lengths
    if index.first is not None:
        return [(0.0, "first event, admission or zero")]
    if not gap.number:
        return [(0.0, f"{window} before")]
    same = window.unit == gap.unit
    both = window._replace(number=window.number + gap.number) if same else f"{window} and {gap}"
    return [(0.0, f"{both} before"), (end, f"{gap} before")]


def _description(index: Index) -> str:
    """Describe the figure for screen readers."""
    if index.first is not None:
        return f"Only what happened in the first {durations.known(index.first)} is used."
    window, gap, _ = index.lengths
    end = f"{gap} before the index date" if gap.number else "the index date"
    return f"Only what happened in the {window} that end {end} is used."
