"""The figure and the page of the studies `icu` and `claims`, from their results alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from phenotaste.comparison.methods import EXTERNAL, METHODS
from phenotaste.plotting import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LABEL_SIZE,
    LIGHT_BLUE,
    LIGHT_GREY,
    ORANGE,
    PALE_GREY,
    PURPLE,
    legend_entries,
    new_grid,
    set_labels,
)
from phenotaste.studies.evidence import (
    HALF,
    MIN_COSINE,
    NETWORKS,
    PHENOTYPE,
    PUBLISHED,
    interval,
    measures,
    needs_kinds,
)
from phenotaste.studies.prediction_page import joined
from phenotaste.studies.study import Row
from phenotaste.studies.study_page import format_duration, markdown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TASTE, PLAIN = "taste", "nmf"
PHENOTYPES_RANK = 10
LEGEND_WIDTH = 9.2  # inches, of five families side by side
HIGHEST = 1.01  # on the axis of cosines: bars of one standard deviation may be longer
EQUAL = 1e-9  # means that differ by no more are tied


class About(NamedTuple):
    """What the page says about a cohort."""

    outcome: str
    rows: str  # what its patients are called
    description: str
    kinds: str  # about the methods that need two kinds of codes
    two_kinds: bool = True  # whether the cohort has them


Abouts = Mapping[str, About]
READING = (
    "The figure shows means and standard deviations over the random halves: to the right are definitions that "
    "both halves have, and further up scores that predict. Lines across are methods without phenotypes."
)


class Measure(NamedTuple):
    column: str
    name: str
    sign: int = 1  # -1 where less is better


REPLICATION = Measure("v_cosine", "replication of V")
FOUND_AGAIN = Measure("v_share", "phenotypes found again")
AUC = Measure("auc", "AUC, scores alone")
AUC_STATIC = Measure("auc_static", "AUC, with static features")
AUC_SIZE = Measure("auc_size", "AUC, with static features and size")
ERROR = Measure("held_out_error", "held-out error", -1)
JUDGED = (REPLICATION, FOUND_AGAIN, AUC, AUC_STATIC, AUC_SIZE, ERROR)

FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "This package": (BLUE, ("taste", "taste-paper")),
    "PARAFAC2": (GREEN, ("copa", "copa-plus", "copa-static", "spartan", "cohen-plus")),
    "Matrices": (ORANGE, ("nmf", "nmf-kl", "visit-nmf", "lda", "svd")),
    "Tensors of pairs": (PURPLE, ("limestone", "marble", "granite", "sustain", "cp")),
}
MARKERS = ("o", "s", "^", "D", "v")
DASHES: tuple[Any, ...] = ((0, (6, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)), "-")


# The figure --------------------------------------------------------------------------------------------------------


def figure(results: "pd.DataFrame", table: "pd.DataFrame", about: Abouts) -> "Figure":
    """AUC against replication: a row of panels for each cohort, a panel for each number of phenotypes."""
    rows = table[table["sets"] == HALF]
    cohorts = list(dict.fromkeys(rows["cohort"]))
    ranks = sorted(rows["rank"].dropna().unique())
    centre = float(rows["v_cosine_mean"].agg(["min", "max"]).mean())
    width, height = max(3.1 * len(ranks) + 0.5, LEGEND_WIDTH), 3.3 * len(cohorts) + 1.3
    drawn, axes = new_grid(len(cohorts), len(ranks), width, height, sharex=True, sharey="row")
    for line, cohort in zip(axes, cohorts, strict=True):
        part = rows[rows["cohort"] == cohort]
        for axis, rank in zip(line, ranks, strict=True):
            draw_panel(axis, part[part["rank"] == rank], classifiers_of(part), centre)
            title = f"{cohort}, {rank:g} phenotypes" if len(cohorts) > 1 else f"{rank:g} phenotypes"
            set_labels(axis, title)
        set_labels(line[0], y=f"AUC of {about[cohort].outcome}, mean ± sd")
    for axis in axes[-1]:
        set_labels(axis, x="replication of V: cosine, mean ± sd")
    axes[0, 0].set_xlim(right=min(axes[0, 0].get_xlim()[1], HIGHEST))
    axes[0, 0].locator_params(axis="x", nbins=5)
    legend_by_family(drawn, axes.flat)
    return drawn


def draw_panel(axis: "Axes", rows: "pd.DataFrame", classifiers: "pd.DataFrame", centre: float) -> None:
    """Draw the methods; the label of TASTE is on the side of the centre, so that it stays within the panel."""
    from matplotlib.patheffects import withStroke

    for number, row in enumerate(records(classifiers)):
        style = {
            "color": LIGHT_GREY,
            "linestyle": DASHES[number % len(DASHES)],
            "linewidth": 1.0,
            "zorder": 1,
        }
        axis.axhline(row["auc_mean"], label=label(row["method"]), **style)
    axis.grid(color=PALE_GREY, linewidth=0.6, zorder=0)
    for row in records(rows[rows["v_cosine_mean"].notna()]):  # networks are compared as predictors only
        style = style_of(row["method"])
        x, y = row["v_cosine_mean"], row["auc_mean"]
        bars = {"xerr": row["v_cosine_sd"], "yerr": row["auc_sd"]}
        known = {name: value for name, value in bars.items() if value == value}
        axis.errorbar(x, y, label=label(row["method"]), **known, **style)
        if row["method"] == TASTE:
            axis.annotate(
                "TASTE",
                (x, y),
                xytext=(-8 if x > centre else 8, 7),
                textcoords="offset points",
                horizontalalignment="right" if x > centre else "left",
                fontsize=LABEL_SIZE,
                fontweight="bold",
                color=BLUE,
                path_effects=[withStroke(linewidth=2.5, foreground="white")],
                zorder=8,
            )


def style_of(method: str) -> dict[str, Any]:
    """Colour by family, marker by method; TASTE is larger and on top."""
    style: dict[str, Any]
    for colour, members in FAMILIES.values():
        if method in members:
            style = {"color": colour, "marker": MARKERS[members.index(method)], "linestyle": "none"}
            break
    else:
        style = {"color": INK, "marker": "x", "linestyle": "none"}
    style |= {"markersize": 5.0, "elinewidth": 0.8, "alpha": 0.9, "zorder": 4}
    if method == TASTE:
        style |= {"markersize": 9.0, "elinewidth": 1.6, "markeredgecolor": "white", "alpha": 1.0, "zorder": 7}
    elif method == "taste-paper":
        style |= {"color": LIGHT_BLUE, "marker": "o", "zorder": 5}
    return style


def legend_by_family(figure: "Figure", axes: Any) -> None:
    """A legend below the panels with a column for each family, under its name."""
    from matplotlib.lines import Line2D

    entries = legend_entries(axes)
    families = {title: [label(name) for name in members] for title, (_, members) in FAMILIES.items()}
    named = {text for members in families.values() for text in members}
    families["Without phenotypes"] = [text for text in entries if text not in named]
    columns = [
        [title, *known] for title, texts in families.items() if (known := [t for t in texts if t in entries])
    ]
    depth = max(map(len, columns))
    labels = [text for column in columns for text in [*column, *[""] * (depth - len(column))]]
    blank = Line2D([], [], linestyle="none")
    handles = [blank if k % depth == 0 else entries.get(text, blank) for k, text in enumerate(labels)]
    legend = figure.legend(
        handles, labels, loc="outside lower center", fontsize=LABEL_SIZE, frameon=False, ncols=len(columns)
    )
    for k, text in enumerate(legend.get_texts()):
        if k % depth == 0:
            text.set(fontweight="bold", color=GREY)


def label(method: str) -> str:
    return METHODS[method].label if method in METHODS else method


# The page ----------------------------------------------------------------------------------------------------------


def text(results: "pd.DataFrame", table: "pd.DataFrame", about: Abouts, data: str) -> str:
    rows = measures(results)
    cohorts = [name for name in about if name in set(rows["cohort"])]
    parts = ["## Result", READING]
    for cohort in cohorts:
        parts += [*heading(cohort, cohorts), *verdict(rows[rows["cohort"] == cohort])]
    parts += ["## What was run", protocol(rows), size_table(rows, cohorts, about), data]
    parts += filter(None, [left_out(rows[rows["cohort"] == cohort], about[cohort]) for cohort in cohorts])
    sections = (
        ("Replication", replication),
        ("Prediction", prediction),
        ("Courses, error and time", courses),
    )
    for title, section in sections:
        parts.append(f"## {title}")
        for cohort in cohorts:
            part = table[table["cohort"] == cohort]
            parts += [*heading(cohort, cohorts), *section(part, about[cohort])]
    parts.append("## Phenotypes")
    for cohort in cohorts:
        parts += [*heading(cohort, cohorts), *phenotypes(results[results["cohort"] == cohort], about[cohort])]
    return "\n\n".join(parts)


def heading(cohort: str, cohorts: Sequence[str]) -> list[str]:
    return [f"### {capital(cohort)}"] if len(cohorts) > 1 else []


# The verdict


class Judged(NamedTuple):
    """TASTE's place in one measure at one number of phenotypes."""

    measure: Measure
    rank: float
    place: int
    tied: bool  # whether another method has the same mean
    methods: int
    other: str  # the best of the others
    gap: list[float]  # TASTE minus that one, by split


def verdict(rows: "pd.DataFrame") -> list[str]:
    """Say where TASTE is first and where it is not, and how it differs from plain NMF."""
    rows = rows[rows["sets"] == HALF]
    judged = [found for measure in JUDGED for rank in ranks_of(rows) if (found := judge(rows, measure, rank))]
    if not judged:
        return ["TASTE was not run beside another method, so that there is nothing to compare."]
    parts = [summary(judged), place_table(judged)]
    if PLAIN in set(rows["method"]):
        parts += against_plain(rows)
    return parts


def judge(rows: "pd.DataFrame", measure: Measure, rank: float) -> Judged | None:
    part = rows[(rows["rank"] == rank) & rows[measure.column].notna() & ~rows["method"].isin(NETWORKS)]
    means = measure.sign * part.groupby("method", sort=False)[measure.column].mean()
    if TASTE not in means.index or len(means) < 2:
        return None
    other = str(means.drop(TASTE).idxmax())
    others = means.drop(TASTE)
    place = 1 + int((others > means[TASTE] + EQUAL).sum())
    tied = bool((abs(others - means[TASTE]) <= EQUAL).any())
    return Judged(measure, rank, place, tied, len(means), other, gaps(part, measure, other))


def gaps(rows: "pd.DataFrame", measure: Measure, other: str) -> list[float]:
    """TASTE minus another method, paired by split."""
    by_split = rows.pivot_table(index="split", columns="method", values=measure.column, sort=True)
    return [float(gap) for gap in (by_split[TASTE] - by_split[other]).dropna()]


def side_of_zero(gap: Sequence[float], sign: int) -> int:
    """1 if the interval says that TASTE is better, -1 if worse, 0 if it contains zero."""
    bounds = interval(gap, "gap")
    low, high = sorted((sign * bounds["gap_low"], sign * bounds["gap_high"]))
    return 1 if low > 0 else -1 if high < 0 else 0


def summary(judged: Sequence[Judged]) -> str:
    first = [found for found in judged if found.place == 1]
    tied = sum(found.tied for found in first)
    named = []
    for measure in JUDGED:
        ranks = [f"{found.rank:g}" for found in first if found.measure == measure]
        if ranks:
            named.append(f"{measure.name} (R = {joined(ranks)})")
    sides = [side_of_zero(found.gap, found.measure.sign) for found in judged]
    behind = [
        f"{found.measure.name} at R = {found.rank:g} ({label(found.other)})"
        for found, side in zip(judged, sides, strict=True)
        if side == -1
    ]
    sentences = [
        f"**TASTE is first in {len(first)} of {len(judged)} comparisons**"
        + (f", in {tied} of them with others" if tied else "")
        + (f": {joined(named)}." if named else "."),
        f"By the 95 % interval of the difference it is better than the best of the others in {sides.count(1)}, "
        "and worse "
        f"in {sides.count(-1)}" + (f": {joined(behind)}." if behind else "."),
        "The best of many others is chosen after the fact, which favours it.",
    ]
    return " ".join(sentences)


def place_table(judged: Sequence[Judged]) -> str:
    lines = [
        [
            found.measure.name,
            f"{found.rank:g}",
            f"{found.place}{' (shared)' if found.tied else ''} of {found.methods}",
            label(found.other),
            with_interval(found.gap, "+"),
        ]
        for found in judged
    ]
    return markdown(lines, ["measure", "R", "TASTE's place", "best of the others", "TASTE minus that one"])


def against_plain(rows: "pd.DataFrame") -> list[str]:
    """The differences between TASTE and NMF of patients' sums, the simplest of all methods."""
    ranks = ranks_of(rows)
    lines = []
    for measure in JUDGED:
        cells = []
        for rank in ranks:
            part = rows[rows["rank"] == rank]
            known = part[part[measure.column].notna()]
            if not {TASTE, PLAIN} <= set(known["method"]):
                cells.append("–")
                continue
            gap = gaps(known, measure, PLAIN)
            word = {1: "better", -1: "worse", 0: "no clear difference"}[side_of_zero(gap, measure.sign)]
            cells.append(f"{with_interval(gap, '+')}, {word}")
        lines.append([measure.name, *cells])
    return [
        f"TASTE minus {label(PLAIN)}, the sums of each patient's visits factorised by scikit-learn:",
        markdown(lines, ["", *[f"R = {rank:g}" for rank in ranks]]),
    ]


def with_interval(values: Sequence[float], sign: str = "") -> str:
    if not len(values):
        return "–"
    bounds = interval(values, "gap")
    return mean_and_interval(float(np.mean(values)), bounds["gap_low"], bounds["gap_high"], sign)


def mean_and_interval(mean: float, low: float, high: float, sign: str = "") -> str:
    if mean != mean:
        return "–"
    text = f"{mean:{sign}.3f}"
    return text if low != low else f"{text} ({low:{sign}.3f} to {high:{sign}.3f})"


# What was run


def protocol(rows: "pd.DataFrame") -> str:
    n_halves = rows.loc[rows["sets"] == HALF, "split"].nunique()
    ranks = joined([f"{rank:g}" for rank in ranks_of(rows)])
    published = PUBLISHED in set(rows["sets"])
    return (
        f"Each method with {ranks} phenotypes is fitted to both of two disjoint sets of patients"
        + (", the sets as published and" if published else ":")
        + f" {n_halves} times two random halves, the same for all methods. Settings are those of `phenotaste "
        "compare`. Phenotypes of the two fits are matched one to one by the cosine of V: the mean cosine is "
        f"the replication, and a phenotype counts as found again at {MIN_COSINE:g} or more. What is learnt on "
        "one side is tested on the other, in both directions, and the mean is given: a lasso logistic "
        "regression on the scores, alone, with the static features, and with these and the size of the record; "
        "its strength is chosen on about an eighth of the patients that it learns from. The held-out error is "
        "the share of the squared sums of "
        "the other patients' visits that the definitions do not describe. In brackets is the 95 % interval of "
        "the mean over the random halves (Nadeau and Bengio 2003), which accounts for halves that share "
        "patients."
    )


def size_table(rows: "pd.DataFrame", cohorts: Sequence[str], about: Abouts) -> str:
    lines, descriptions = [], []
    for cohort in cohorts:
        row = rows[rows["cohort"] == cohort].iloc[0]
        sides = " and ".join(
            f"{count(row[f'n_{side}'])} ({count(row[f'outcomes_{side}'])})" for side in ("first", "second")
        )
        counts = [f"{int(row[name]):,}" for name in ("visits", "features", "static")]
        lines.append([cohort, sides, about[cohort].outcome, *counts])
        descriptions.append(f"**{capital(cohort)}.** {about[cohort].description}")
    header = [
        "",
        "patients of both sides (with the outcome)",
        "outcome",
        "visits",
        "codes",
        "static features",
    ]
    return "\n\n".join(
        [*descriptions, markdown(lines, header) + "\n\nNumbers of patients are rounded to multiples of five."]
    )


def count(number: Any) -> str:
    return "few" if number is None or number != number else f"{int(number):,}"


def left_out(rows: "pd.DataFrame", about: About) -> str:
    """Say which methods are missing and why."""
    present = set(rows["method"])
    pairs = [name for name in METHODS if needs_kinds(name)]
    missing = [name for name in METHODS if name not in {*present, *NETWORKS, *EXTERNAL}]
    sentences = [about.kinds] if present & set(pairs) or not about.two_kinds else []
    if not about.two_kinds:
        missing = [name for name in missing if name not in pairs]
    networks = [label(name) for name in NETWORKS if name not in present]
    if networks:
        sentences.append(
            f"{joined(networks)} may take hours on a processor, and are left out unless `--methods` names them."
        )
    on_gpu = set(rows["method"][rows["device"] == "cuda"]) if "device" in rows else set()
    if on_gpu:
        trained = joined([label(name) for name in NETWORKS if name in on_gpu])
        sentences.append(f"{trained} were trained on a GPU.")
    if missing:
        sentences.append(
            f"Not run (not chosen, or not in this version): {joined([label(name) for name in missing])}."
        )
    cohort = str(rows["cohort"].iloc[0])
    return f"*{capital(cohort)}.* {' '.join(sentences)}" if sentences else ""


def capital(name: str) -> str:
    return name[0].upper() + name[1:]


# Tables of measures


def replication(table: "pd.DataFrame", about: About) -> list[str]:
    halves = table[(table["sets"] == HALF) & table["v_cosine_mean"].notna()]
    parts = [
        "Mean cosine of the definitions V of both halves:",
        rank_table(halves, interval_of("v_cosine")),
        f"Share of the phenotypes found again (cosine of at least {MIN_COSINE:g}), and the lowest cosine, "
        "means over the halves:",
        rank_table(halves, share_and_lowest),
    ]
    static = halves[halves["f_cosine_mean"].notna()]
    if len(static):
        parts += [
            "Mean cosine of the static definitions F of matched phenotypes:",
            rank_table(static, interval_of("f_cosine")),
        ]
    published = table[(table["sets"] == PUBLISHED) & table["v_cosine_mean"].notna()]
    if len(published):
        parts += [
            "Between the sets as published, mean cosine of V, and AUC from the scores alone:",
            rank_table(published, cosine_and_auc),
        ]
    return parts


def prediction(table: "pd.DataFrame", about: About) -> list[str]:
    halves = table[table["sets"] == HALF]
    ranked = halves[halves["rank"].notna()]
    parts = [f"AUC of {about.outcome} from the scores alone:", rank_table(ranked, interval_of("auc"))]
    static = ranked[ranked["auc_static_mean"].notna()]
    if len(static):
        parts += ["From the scores and the static features:", rank_table(static, interval_of("auc_static"))]
    sized = ranked[ranked["auc_size_mean"].notna()]
    if len(sized):
        parts += [
            "From the scores, the static features and the size of the record, log ‖X_k‖. Scores of TASTE are relative "
            "to that size and do not contain it, those of most other methods grow with it; with it, all know the same:",
            rank_table(sized, interval_of("auc_size")),
        ]
    classifiers = classifiers_of(halves)
    if len(classifiers):
        lines = [[label(str(row["method"])), interval_of("auc")(row)] for row in records(classifiers)]
        parts += [
            "Without phenotypes, from the patients' codes and, but for codes alone, their static features:",
            markdown(lines, ["", "AUC"]),
        ]
    return parts


def courses(table: "pd.DataFrame", about: About) -> list[str]:
    halves = table[(table["sets"] == HALF) & table["rank"].notna()]
    rank = shown_rank(halves)
    lines = []
    for row in sorted(records(halves[halves["rank"] == rank]), key=place):
        figures = [
            "–" if row[f"{name}_mean"] != row[f"{name}_mean"] else f"{row[f'{name}_mean']:.3f}"
            for name in ("cpi", "rmse", "held_out_error")
        ]
        lines.append([label(str(row["method"])), *figures, format_duration(float(row["seconds_mean"]))])
    return [
        f"With {rank:g} phenotypes, means over the halves. CPI and RMSE are those of methods with courses; the "
        "RMSE of those that use static features counts these too. Times are of one fit on one thread beside "
        "other fits, and no more than an orientation.",
        markdown(lines, ["", "CPI", "RMSE", "held-out error", "time of a fit"]),
    ]


def rank_table(rows: "pd.DataFrame", entry: Callable[[Row], str]) -> str:
    """A line for each method and a column for each number of phenotypes; `entry` formats a row of the table."""
    ranks = ranks_of(rows)
    found = {(str(row["method"]), row["rank"]): row for row in records(rows)}
    lines = [
        [
            label(method),
            *[entry(found[method, rank]) if (method, rank) in found else "–" for rank in ranks],
        ]
        for method in in_order(rows["method"])
    ]
    return markdown(lines, ["", *[f"R = {rank:g}" for rank in ranks]])


def place(row: Row) -> int:
    """The place of a row's method in the order in which methods are shown."""
    return [*METHODS, row["method"]].index(row["method"])


def records(rows: "pd.DataFrame") -> list[Row]:
    return cast(list[Row], rows.to_dict("records"))


def interval_of(name: str) -> Callable[[Row], str]:
    return lambda row: mean_and_interval(row[f"{name}_mean"], row[f"{name}_low"], row[f"{name}_high"])


def share_and_lowest(row: Row) -> str:
    return f"{100 * row['v_share_mean']:.0f} %, {row['v_min_mean']:.2f}"


def cosine_and_auc(row: Row) -> str:
    return f"{row['v_cosine_mean']:.3f}, {row['auc_mean']:.3f}"


def classifiers_of(table: "pd.DataFrame") -> "pd.DataFrame":
    return table[(table["sets"] == HALF) & table["rank"].isna()]


def in_order(methods: Any) -> list[str]:
    present = set(methods)
    return [*[name for name in METHODS if name in present], *sorted(present - set(METHODS))]


def ranks_of(rows: "pd.DataFrame") -> list[float]:
    return sorted(float(rank) for rank in rows["rank"].dropna().unique())


def shown_rank(rows: "pd.DataFrame") -> float:
    """The number of phenotypes of tables that have room for one."""
    ranks = ranks_of(rows)
    return min(ranks, key=lambda rank: (abs(rank - PHENOTYPES_RANK), rank))


# Phenotypes


def phenotypes(results: "pd.DataFrame", about: About) -> list[str]:
    """The phenotypes of TASTE and of NMF on the first side, with outcomes in the other one."""
    rows = results[results["kind"] == PHENOTYPE]
    methods = [name for name in (TASTE, PLAIN) if name in set(rows["method"])]
    if not methods:
        return ["Neither TASTE nor NMF was run."]
    rank = shown_rank(rows)
    first = results[results["split"] == 0].iloc[0]
    parts = [
        f"With {rank:g} phenotypes, fitted to the first side of the first split: the heaviest codes with their "
        "weights relative to the largest, the cosine with the counterpart in the second side, and how many of "
        f"the tenth of the second side's {about.rows} with the highest score have "
        f"{about.outcome}{base_share(first)}. Shares are quotients of rounded counts; – stands for too few to "
        "be shown."
    ]
    for method in methods:
        part = rows[(rows["method"] == method) & (rows["rank"] == rank)]
        lines = [
            [f"{int(row['phenotype'])}", str(row["codes"]), f"{row['cosine']:.2f}", percent(row["top_share"])]
            for row in records(part.sort_values("top_share", ascending=False, kind="stable"))
        ]
        parts += [f"**{label(method)}**", phenotype_table(lines, about)]
    return parts


def phenotype_table(lines: Sequence[Sequence[str]], about: About) -> str:
    header = ["", "codes", "counterpart", about.outcome]
    rows = [header, ["---", "---", "---:", "---:"], *lines]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def base_share(row: "pd.Series") -> str:
    whole, part = row["n_second"], row["outcomes_second"]
    known = whole == whole and part == part and whole
    return f" (of all {about_all(part, whole)})" if known else ""


def about_all(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %"


def percent(share: Any) -> str:
    return "–" if share is None or share != share else f"{100 * float(share):.0f} %"
