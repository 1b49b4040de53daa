"""The palette of all figures, and helpers for figures, axes, legends and image files.

Colours differ in lightness as well as in hue, so that they can be told apart in print and by colour-blind readers.
The review page has the same `BLUE`, `RED`, `INK` and `GREY` in `report/web/page.css`.
"""

import io
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from phenotaste.disclosure import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Blue is for temporal features, red for static ones, as in the paper's tables.
BLUE, DARK_BLUE, LIGHT_BLUE, PALE_BLUE = "#1f6391", "#0c2f4a", "#6fb0dc", "#dbe8f1"
RED, ORANGE, LIGHT_ORANGE, BROWN = "#b3261e", "#c2641a", "#e0a062", "#8f4a0b"
GREEN, PURPLE = "#4f8a4b", "#7b5ea7"
INK, GREY, LIGHT_GREY, LINE, PALE_GREY = "#18222d", "#55626f", "#8b97a3", "#c9d0d6", "#eef0f2"

TITLE_SIZE, PANEL_TITLE_SIZE, LABEL_SIZE = 10, 9, 8  # points
DPI = 150
FORMATS = ("png", "pdf")
MAX_NAME_LENGTH = 60


def new_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> "Figure":
    """Return an empty figure of this size in inches."""
    from matplotlib.figure import Figure  # not pyplot: it keeps figures alive, and may try to open a display

    return Figure(figsize=(width, height), layout=layout)


def new_grid(
    n_rows: int, n_columns: int, width: float, height: float, **sharing: Any
) -> tuple["Figure", Any]:
    """Return a figure of this size and its clean axes, an array of n_rows × n_columns."""
    figure = new_figure(width, height)
    axes: Any = figure.subplots(n_rows, n_columns, squeeze=False, **sharing)
    for axis in axes.flat:
        clean_axes(axis)
    return figure, axes


def clean_axes(axis: "Axes", label_size: float = LABEL_SIZE) -> None:
    """Remove the top and right spines, and draw the others and the ticks in grey."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(LINE)
    axis.tick_params(color=LINE, labelsize=label_size)


def hide_frame(axis: "Axes") -> None:
    """Remove spines and tick marks, as a heat map needs neither."""
    axis.spines[:].set_visible(False)
    axis.tick_params(which="both", length=0)


def set_labels(
    axis: "Axes", title: str = "", x: str = "", y: str = "", title_size: float = PANEL_TITLE_SIZE
) -> None:
    """Set the title, on the left, and the labels of both axes; an empty one is left as it is."""
    if title:
        axis.set_title(title, fontsize=title_size, loc="left")
    if x:
        axis.set_xlabel(x, fontsize=LABEL_SIZE)
    if y:
        axis.set_ylabel(y, fontsize=LABEL_SIZE)


def set_suptitle(figure: "Figure", title: str) -> None:
    figure.suptitle(title, fontsize=TITLE_SIZE, x=0.01, horizontalalignment="left")


def legend_entries(axes: Iterable["Axes"], order: Sequence[str] = ()) -> dict[str, Any]:
    """Return the handle of each label in any of the axes, labels in `order` first."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    return {label: entries[label] for label in (*order, *entries) if label in entries}


def legend_below(
    figure: "Figure", axes: Iterable["Axes"], order: Sequence[str] = (), n_columns: int | None = None
) -> None:
    """Add one legend for all axes below the figure; in one row unless `n_columns` says otherwise."""
    entries = legend_entries(axes, order)
    if entries:
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            fontsize=LABEL_SIZE,
            frameon=False,
            ncols=n_columns or len(entries),
        )


def axis_legend(axis: "Axes", **options: Any) -> None:
    """Add a legend inside one panel, in which no label is repeated."""
    entries = legend_entries([axis])
    options = {"fontsize": LABEL_SIZE, "frameon": False, **options}
    axis.legend(entries.values(), entries.keys(), **options)


def axis_legend_below(axis: "Axes") -> None:
    """Add a legend in two columns below one panel."""
    axis_legend(axis, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)


def add_colorbar(image: "AxesImage", axis: "Axes", label: str, **size: Any) -> None:
    """Add the colour scale of an image to the right of its axes."""
    bar = axis.figure.colorbar(image, ax=axis, **size)
    bar.set_label(label, fontsize=LABEL_SIZE)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)


def error_line(axis: "Axes", x: Any, mean: Any, error: Any, **style: Any) -> None:
    """Draw means joined by a line, with error bars."""
    axis.errorbar(x, mean, error, **{"marker": "o", "markersize": 4, "capsize": 2, **style})


def escape_name(name: Any, length: int = MAX_NAME_LENGTH) -> str:
    """Shorten a name and escape what matplotlib would interpret: a dollar sign would start a formula.

    Examples
    --------
    >>> escape_name("Cost in $ per visit", 12)
    'Cost in \\\\$ p…'
    """
    text = printable(name)
    text = text if len(text) <= length else text[: length - 1] + "…"
    return text.replace("$", r"\$")


def wrap_name(name: Any, width: int = MAX_NAME_LENGTH) -> str:
    """Return a name on two lines if it does not fit on one, and escape it; only what is longer than these is cut.

    Examples
    --------
    >>> wrap_name("Coronary atherosclerosis and other heart disease", 30).split("\\n")
    ['Coronary atherosclerosis and', 'other heart disease']
    """
    lines = textwrap.wrap(printable(name), width, max_lines=2, placeholder="…")
    return "\n".join(line.replace("$", r"\$") for line in lines)


def encode_figure(figure: "Figure", kind: str, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the figure as the contents of a file: PNG, PDF or SVG.

    Dates, versions and random identifiers are left out, so that equal figures are equal files.
    """
    import matplotlib

    omitted = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
    file = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": "phenotaste"}):
        warnings.filterwarnings("ignore", message="Glyph")  # a character the font lacks is drawn as a box
        figure.savefig(file, format=kind, dpi=DPI, metadata={**omitted, **(metadata or {})})
    return file.getvalue()


def image_files(name: str, figure: "Figure", formats: Sequence[str] = FORMATS) -> Iterator[tuple[str, bytes]]:
    """Yield the file name and the contents of a figure in each format."""
    for kind in formats:
        yield f"{name}.{kind}", encode_figure(figure, kind)
        figure.set_layout_engine(None)  # arranging the panels takes as long as drawing them, and is done once
