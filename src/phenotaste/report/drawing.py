"""What all figures share: colours, panels, names that matplotlib shows letter by letter, and files."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phenotaste.report.files import replacing
from phenotaste.report.record import Content, Phenotype
from phenotaste.report.text import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue for what happens at visits, red for static facts as in the paper's table; they differ in lightness too.
TEMPORAL, STATIC, SOFT, LINE, INK = "#1f6391", "#c4261d", "#5b6875", "#c9d0d6", "#22303c"
FORMATS = ("png", "pdf")
DPI = 150
TOO_FEW = "not shown: too few patients"  # or fewer could be told from it
NAME_LENGTH = 60
SHORT_NAME = 30
PANELS_ACROSS = 5


def label(phenotype: Phenotype, length: int = SHORT_NAME) -> str:
    name = f"Phenotype {phenotype.number}"
    return name if not phenotype.name else plain(f"P{phenotype.number}. {phenotype.name}", length)


def panels(
    content: Content, title: str, x_label: str, y_label: str = "", share_y: bool = True
) -> tuple["Figure", list["Axes"]]:
    """One small panel for each phenotype, on common scales."""
    count = len(content.phenotypes)
    across = min(count, PANELS_ACROSS)
    down = -(-count // across)
    figure = new_figure(max(2.3 * across, 5.5) + 0.6, 1.9 * down + 0.9)
    figure.suptitle(title, fontsize=10, x=0.01, horizontalalignment="left")
    grid: Any = figure.subplots(down, across, sharex=True, sharey=share_y, squeeze=False)
    axes = list(grid.flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    for r, (axis, phenotype) in enumerate(zip(axes, content.phenotypes, strict=False)):
        axis.set_title(label(phenotype), fontsize=9, loc="left")
        axis.tick_params(labelsize=7)
        clean(axis)
        if r + across >= count:  # nothing below it
            axis.tick_params(labelbottom=True)
            axis.set_xlabel(x_label, fontsize=8)
        if r % across == 0 and y_label:
            axis.set_ylabel(y_label, fontsize=8)
    return figure, axes[:count]


def legend_below(figure: "Figure", axes: list["Axes"], order: Sequence[str] = ()) -> None:
    """One legend for all panels, with what any of them shows, in this order if one is given."""
    entries: dict[str, Any] = {}
    for axis in axes:
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(name, handle)
    entries = {name: entries[name] for name in (*order, *entries) if name in entries}
    if entries:
        columns = len(entries) if len(axes) >= 3 else 2
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            fontsize=8,
            frameon=False,
            ncols=columns,
        )


def new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # not pyplot: it keeps figures, and may look for a screen

    return Figure(figsize=(width, height), layout="constrained")


def clean(axis: "Axes") -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(LINE)
    axis.tick_params(color=LINE)


def too_few(axis: "Axes") -> None:
    axis.text(0.5, 0.4, "too few\npatients", transform=axis.transAxes, ha="center", fontsize=8, color=SOFT)


def plain(name: Any, length: int = NAME_LENGTH) -> str:
    """A name as matplotlib shows it letter by letter: a dollar sign would start a formula."""
    text = readable(name)
    text = text if len(text) <= length else text[: length - 1] + "…"
    return text.replace("$", r"\$")


def save(figure: "Figure", path: Path) -> None:
    """Write one file, of the kind its name ends in; without the date of today, so that the same is the same."""
    kind = path.suffix[1:]
    metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    with warnings.catch_warnings(), replacing(path) as file:
        warnings.filterwarnings("ignore", message="Glyph")  # a letter the font lacks is drawn as a box
        figure.savefig(file, format=kind, dpi=DPI, metadata=metadata)


def loud_if_trusted(figure: "Figure", content: Content) -> None:
    if content.trusted:
        # At the side: legends and titles are below and above.
        figure.supylabel("Disclosure control is OFF", fontsize=9, color=STATIC, fontweight="bold")
