"""The figures of a selection: stability, fit, weights, starts, evidence, unseen patients. None is about a patient."""

import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import metrics
from phenotaste.errors import InputError
from phenotaste.selection.files import Result
from phenotaste.selection.folder import Folder
from phenotaste.selection.matching import FOUND, matched
from phenotaste.selection.rules import by_rank

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from phenotaste.selection.record import Selection

BLUE, RED, SOFT, LINE, PALE = "#1f6391", "#c4261d", "#5b6875", "#c9d0d6", "#d9e7f1"
DPI = 150
MOST_LABELS = 25  # phenotypes named along the matrix of starts


def save_all(found: "Selection", folder: Folder) -> None:
    """Every figure that the selection allows, as PNG and PDF."""
    place = Folder(folder.path / "figures")
    place.path.mkdir(exist_ok=True)
    for what in drawable(found):
        figure = draw(found, what)
        for kind in ("png", "pdf"):
            picture = io.BytesIO()
            # Without its date a PDF of the same selection is the same file.
            figure.savefig(
                picture, format=kind, dpi=DPI, metadata={"CreationDate": None} if kind == "pdf" else None
            )
            place.put(f"{what}.{kind}", picture.getvalue())


def drawable(found: "Selection") -> list[str]:
    several = found.table["lam"].nunique() * found.table["mu"].nunique() > 1
    wanted = {
        "weights": several,
        "evidence": len(found.evidence) > 0,
        "unseen": "unseen_error" in found.table,
    }
    return [what for what in DRAWINGS if wanted.get(what, True)]


def draw(found: "Selection", what: str) -> "Figure":
    if what not in DRAWINGS:
        raise InputError(f"There is no figure {what!r}: choose one of {', '.join(drawable(found))}.")
    if what not in drawable(found):
        raise InputError(f"The figure {what!r} needs more than this selection has: {NEEDS[what]}.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter the font lacks is drawn as a box
        return DRAWINGS[what](found)


def stability(found: "Selection") -> "Figure":
    """The paper's figure, with the spread over pairs of starts."""
    rows = by_rank(found.rule, found.table)
    figure, (axis,) = panels(1)
    axis.fill_between(
        rows["rank"],
        rows["dissimilarity_low"],
        rows["dissimilarity_high"],
        color=PALE,
        linewidth=0,
        label="lowest to highest of all pairs",
    )
    axis.errorbar(
        rows["rank"],
        rows["dissimilarity"],
        rows["dissimilarity_se"],
        color=BLUE,
        marker="o",
        markersize=4,
        capsize=2,
        label="mean and its standard error",
    )
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    finish(axis, found, "How much the starts differ, by number of phenotypes", "mean dissimilarity")
    legend_below(figure, axis)
    return figure


def fit(found: "Selection") -> "Figure":
    """RMSE and CPI against rank."""
    rows = by_rank(found.rule, found.table)
    figure, axes = panels(2)
    for axis, name, title in zip(
        axes, ("rmse", "cpi"), ("RMSE (lower is better)", "CPI (near 1: phenotypes are unique)"), strict=True
    ):
        axis.plot(rows["rank"], rows[name], color=BLUE, marker="o", markersize=4, label="mean of the starts")
        axis.plot(
            rows["rank"],
            rows[f"best_{name}"],
            color=SOFT,
            linestyle=":",
            label="start with the lowest RMSE",
        )
        finish(axis, found, title, name.upper())
        axis.ticklabel_format(axis="y", useOffset=False)
    legend_below(figure, axes[0])
    return figure


def weights(found: "Selection") -> "Figure":
    """λ × μ at the chosen rank."""
    rows = found.table[found.table["rank"] == found.rank]
    figure = new_figure(9.6, 3.3)
    figure.suptitle(f"{found.rank} phenotypes, by weights", fontsize=10, x=0.01, horizontalalignment="left")
    axes = figure.subplots(1, 3)
    titles = {"dissimilarity": "dissimilarity", "rmse": "RMSE", "cpi": "CPI"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        table = rows.pivot_table(index="lam", columns="mu", values=name, dropna=False)
        heat_map(axis, table, title, "Blues_r" if name != "cpi" else "Blues")
        here = np.argmax(table.columns == found.best.mu), np.argmax(table.index == found.best.lam)
        axis.add_patch(rectangle((here[0] - 0.5, here[1] - 0.5)))
    return figure


def heat_map(axis: "Axes", table: "pd.DataFrame", title: str, colours: str) -> None:
    values = table.to_numpy(float)
    axis.imshow(values, cmap=colours, aspect="auto", origin="lower")
    low, high = np.nanmin(values), np.nanmax(values)
    for (i, j), value in np.ndenumerate(values):
        share = (value - low) / (high - low) if high > low else 0.0
        dark = share < 0.45 if colours.endswith("_r") else share > 0.55
        axis.text(
            j, i, f"{value:.3g}", ha="center", va="center", fontsize=8, color="white" if dark else "black"
        )
    axis.set_xticks(range(table.shape[1]), [f"{value:g}" for value in table.columns], fontsize=8)
    axis.set_yticks(range(table.shape[0]), [f"{value:g}" for value in table.index], fontsize=8)
    axis.set_xlabel("μ (uniqueness)", fontsize=8)
    axis.set_ylabel("λ (static features)", fontsize=8)
    axis.set_title(title, fontsize=9, loc="left")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def rectangle(corner: tuple[float, float]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, 1, 1, fill=False, edgecolor=RED, linewidth=2)


def starts(found: "Selection") -> "Figure":
    """Cosines between all phenotypes of all starts, phenotype by phenotype: bright squares are found again."""
    R, n = found.rank, len(found.definitions)
    anchor = as_result(found.best.V_)
    ordered = [V[:, matched(anchor, as_result(V)).partner] for V in found.definitions]
    stacked = np.stack(ordered, axis=2).reshape(
        len(found.best.V_), R * n
    )  # phenotype by phenotype, start by start
    size = float(np.clip(1.5 + 0.055 * R * n, 4.2, 9.0))
    figure = new_figure(size + 0.9, size)
    axis = figure.subplots()
    mesh = axis.imshow(metrics.cosines(stacked, stacked), cmap="Blues", vmin=0, vmax=1)
    edges = np.arange(1, R) * n - 0.5
    for draw_line in (axis.axhline, axis.axvline):
        for edge in edges:
            draw_line(edge, color="white", linewidth=1.2)
    places = np.arange(R) * n + (n - 1) / 2
    names = [str(r + 1) for r in range(R)] if R <= MOST_LABELS else [""] * R
    axis.set_xticks(places, names, fontsize=8)
    axis.set_yticks(places, names, fontsize=8)
    axis.set_xlabel(f"phenotype, its {n} starts side by side", fontsize=8)
    axis.set_ylabel("phenotype", fontsize=8)
    axis.set_title("Phenotypes of all starts, matched to the chosen one's", fontsize=10, loc="left")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, ax=axis, fraction=0.046, pad=0.03)
    bar.set_label("cosine of the definitions", fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)
    return figure


def as_result(V: np.ndarray) -> Result:
    return Result(V, None, np.eye(V.shape[1]), {})


def evidence(found: "Selection") -> "Figure":
    """How alike each phenotype and its partners are, over starts and over resampled patients."""
    table = found.evidence
    kinds = [kind for kind in ("starts", "bootstrap") if (table["kind"] == kind).any()]
    titles = {"starts": "other starts", "bootstrap": "resampled patients"}
    figure = new_figure(max(6.0, 2.0 + 0.55 * found.rank), 1.2 + 2.3 * len(kinds))
    axes = figure.subplots(len(kinds), 1, sharex=True, squeeze=False)[:, 0]
    for axis, kind in zip(axes, kinds, strict=True):
        for factor, colour, shift in (("V", BLUE, -0.14), ("F", RED, 0.14)):
            rows = table[(table["kind"] == kind) & (table["factor"] == factor)]
            scatter(axis, rows, colour, shift, {"V": "temporal", "F": "static"}[factor] + " definition")
        axis.axhline(FOUND, color=LINE, linewidth=1, zorder=0)
        axis.set_ylim(-0.03, 1.03)
        axis.set_ylabel("cosine", fontsize=8)
        axis.set_title(f"Each phenotype and its partners in {titles[kind]}", fontsize=10, loc="left")
        clean(axis)
    axes[-1].set_xlabel(f"phenotype (above the line, {FOUND:g}, it counts as found again)", fontsize=8)
    axes[-1].set_xticks(range(1, found.rank + 1))
    legend_below(figure, axes[0])
    return figure


def scatter(axis: "Axes", rows: "pd.DataFrame", colour: str, shift: float, label: str) -> None:
    """Each comparison a dot, moved a little sideways in turn so that equal ones can be told; the median a bar."""
    if rows.empty:
        return
    turn = rows.groupby("phenotype").cumcount().to_numpy() % 7
    x = rows["phenotype"].to_numpy() + shift + (turn - 3) * 0.025
    axis.scatter(x, rows["similarity"], s=9, color=colour, alpha=0.45, linewidths=0, label=label)
    middle = rows.groupby("phenotype")["similarity"].median()
    places = middle.index.to_numpy(float) + shift
    axis.hlines(middle, places - 0.11, places + 0.11, color=colour, linewidth=2)


def unseen(found: "Selection") -> "Figure":
    """Hold-out: reconstruction of patients that were not fitted, and how alike two halves' phenotypes are."""
    rows = by_rank(found.rule, found.table)
    figure, axes = panels(2)
    for name, label, style in (
        ("unseen_error", "patients of the other half", {"color": BLUE, "marker": "o", "markersize": 4}),
        ("seen_error", "patients fitted", {"color": SOFT, "linestyle": ":"}),
    ):
        axes[0].plot(rows["rank"], rows[name], label=label, **style)
    finish(axes[0], found, "What is left of the visits' size", "share not rebuilt")
    axes[1].plot(rows["rank"], rows["halves_alike"], color=BLUE, marker="o", markersize=4, label="mean")
    axes[1].plot(
        rows["rank"], rows["halves_least"], color=SOFT, linestyle=":", label="least of the phenotypes"
    )
    finish(axes[1], found, "Two halves of the patients, matched", "cosine")
    axes[1].set_ylim(-0.03, 1.03)
    for axis in axes:
        axis.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
    return figure


def panels(count: int) -> tuple["Figure", list["Axes"]]:
    figure = new_figure(6.2 if count == 1 else 4.6 * count, 3.6)
    grid: Any = figure.subplots(1, count, squeeze=False)
    return figure, list(grid.flat)


def finish(axis: "Axes", found: "Selection", title: str, y_label: str) -> None:
    """What figures over ranks share: the chosen rank, whole numbers below, names."""
    axis.axvline(found.rank, color=RED, linewidth=1, linestyle="--", zorder=0)
    top = axis.get_xaxis_transform()
    axis.text(found.rank, 1.0, " chosen", transform=top, color=RED, fontsize=8, va="top", zorder=0)
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel("number of phenotypes", fontsize=8)
    axis.set_ylabel(y_label, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.locator_params(axis="x", integer=True)
    clean(axis)


def legend_below(figure: "Figure", axis: "Axes") -> None:
    """Below everything, where it hides nothing."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=8, frameon=False, ncols=2)


def new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # not pyplot: it keeps figures, and may look for a screen

    return Figure(figsize=(width, height), layout="constrained")


def clean(axis: "Axes") -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(LINE)
    axis.tick_params(color=LINE, labelsize=8)


DRAWINGS: dict[str, Callable[["Selection"], "Figure"]] = {
    "stability": stability,
    "fit": fit,
    "weights": weights,
    "starts": starts,
    "evidence": evidence,
    "unseen": unseen,
}
NEEDS = {
    "weights": "more than one lam or mu",
    "evidence": "starts or resamples to compare with",
    "unseen": "a hold-out",
}
