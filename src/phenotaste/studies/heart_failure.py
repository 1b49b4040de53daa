"""The paper's Q4: the phenotypes of patients with heart failure, and the effect of repeating static features on every
visit. The patients are simulated with the paper's five phenotypes planted, so that the answer is known."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import metrics, selection, simulate
from phenotaste.baselines import CopaStatic
from phenotaste.cohort import Cohort
from phenotaste.plotting import (
    BLUE,
    GREY,
    LINE,
    RED,
    axis_legend_below,
    clean_axes,
    error_line,
    escape_name,
    new_figure,
    set_labels,
)
from phenotaste.selection import rules
from phenotaste.simulate import Truth
from phenotaste.simulate.paper_phenotypes import PHENOTYPES
from phenotaste.studies.study import Cell, CellContext, Options, Row
from phenotaste.studies.study_page import fixed_mean_sd, format_duration, format_value, markdown

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "heart-failure"
TITLE = "Heart-failure phenotypes"
QUESTION = (
    "Among patients with heart failure: how many phenotypes does the paper's stability rule choose, which are they, "
    "and what does PARAFAC2 find if static features are repeated on every visit?"
)
TIMED = False
PARALLEL_CELLS = True
ACCEPTS = frozenset({"starts", "fraction"})
FILES = ("phenotypes.tex",)

PATIENTS = 35_113  # the paper's Q3, of whom 3 244 are cases
RANKS, LAMS, MUS = (3, 20), (0.01, 0.1, 1.0), (0.01, 0.1, 1.0)  # the paper's supplement
PLANTED = len(PHENOTYPES)
MIN_WEIGHT = 0.1  # of the features that the paper shows
TOL = 1e-4


def cells(options: Options) -> list[Cell]:
    fraction = options.fraction or (0.05 if options.quick else 1.0)
    shared = {
        "patients": round(PATIENTS * fraction),
        "starts": options.starts or (2 if options.quick else 10),
        "seed": options.seed,
    }
    grid = {"last_rank": 5 if options.quick else RANKS[1], "grid": "short" if options.quick else "paper"}
    return [{"method": "TASTE", **shared, **grid}, {"method": "CopaStatic", **shared}]


def cost(cell: Cell) -> float:
    return 100.0 if cell["method"] == "TASTE" else 1.0


def run(cell: Cell, context: CellContext) -> list[Row]:
    cohort, truth = simulate.heart_failure(cell["patients"], random_state=cell["seed"])
    cases = cohort[np.asarray(cohort.labels) == 1]
    common = {"cases": len(cases), "visits": cases.n_visits}
    run_method = run_selection if cell["method"] == "TASTE" else run_copa_static
    rows = run_method(cell, cases, truth, context)
    return [common | row for row in rows]


def run_selection(cell: Cell, cases: Cohort, truth: Truth, context: CellContext) -> list[Row]:
    """Run the paper's search; describe the chosen model and one with the planted number of phenotypes."""
    lams, mus = (LAMS, MUS) if cell["grid"] == "paper" else ((0.01,), (0.1, 1.0))
    ranks = range(RANKS[0], cell["last_rank"] + 1)
    out = None if context.folder is None else context.folder / "selection"
    shared: dict[str, Any] = {"random_state": cell["seed"], "tol": TOL, "jobs": context.threads, "halves": 0}
    result = selection.select(
        cases,
        ranks,
        lams,
        mus,
        cell["starts"],
        "stability",
        out=out,
        resume=True,
        callback=lambda progress: context.on_progress(progress.fraction),
        **shared,
    )
    if context.folder is not None:
        write_latex(result.best, cases, context.folder)
    rows: list[Row] = [{"kind": "grid"} | dict(row) for _, row in result.table.iterrows()]
    rows += describe("chosen", result.best, cases, truth)
    if result.rank != PLANTED:
        best = (
            result.table[result.table["rank"] == PLANTED].sort_values("dissimilarity", kind="stable").iloc[0]
        )
        planted = selection.select(
            cases, PLANTED, best["lam"], best["mu"], cell["starts"], "stability", **shared
        ).best
        rows += describe("planted number", planted, cases, truth)
    return rows


def write_latex(model: Any, cases: Cohort, folder: Path) -> None:
    """Write the definitions in the paper's layout."""
    from phenotaste.report import content, table_files
    from phenotaste.storage.atomic import write_file

    made = content.build(model, cases, title="Phenotypes of simulated patients with heart failure")
    write_file(folder / FILES[0], table_files.definitions_tex(made))


def run_copa_static(cell: Cell, cases: Cohort, truth: Truth, context: CellContext) -> list[Row]:
    """Fit PARAFAC2 with the static features as codes of every visit."""
    model = CopaStatic(
        PLANTED, n_init=cell["starts"], tol=TOL, n_jobs=context.threads, random_state=cell["seed"]
    ).fit(cases)
    return describe("static repeated", model, cases, truth)


def describe(which: str, model: Any, cases: Cohort, truth: Truth) -> list[Row]:
    """Return a row for each phenotype with its planted partner, and one for each feature that the paper would show."""
    assert truth.F is not None
    assert cases.feature_names is not None
    assert cases.static_names is not None
    rows: list[Row] = []
    partner = partners(model, truth)
    one_factor = isinstance(model, CopaStatic)  # V and F are rows of one factor, with common weights
    largest = [max(model.V_.max(), model.F_.max())] * 2 if one_factor else [model.V_.max(), model.F_.max()]
    for r in range(model.rank):
        common = {"which": which, "rank": model.rank, "lam": getattr(model, "lam", None)}
        common |= {"mu": getattr(model, "mu", None), "phenotype": r + 1}
        true = partner.get(r)
        static = float(np.sum(model.F_[:, r] ** 2))
        rows.append(
            common
            | {
                "kind": "phenotype",
                "planted": None if true is None else PHENOTYPES[true],
                "cosine": None if true is None else column_cosine(model.V_[:, r], truth.V[:, true]),
                "static_cosine": None if true is None else column_cosine(model.F_[:, r], truth.F[:, true]),
                "static_share": static / (static + float(np.sum(model.V_[:, r] ** 2))),
            }
        )
        for kind, factor, top, names in (
            ("temporal", model.V_, largest[0], cases.feature_names),
            ("static", model.F_, largest[1], cases.static_names),
        ):
            weights = factor[:, r] / top
            for j in np.argsort(-weights, kind="stable"):
                if weights[j] >= MIN_WEIGHT:
                    feature = {"feature": str(names[j]), "weight": round(float(weights[j]), 6)}
                    rows.append(common | {"kind": "feature", "of": kind, **feature})
    return rows


def partners(model: Any, truth: Truth) -> dict[int, int]:
    """Match estimated to planted phenotypes one to one by their temporal definitions."""
    from scipy.optimize import linear_sum_assignment

    estimated, true = linear_sum_assignment(-metrics.cosines(model.V_, truth.V))
    return dict(zip(estimated.tolist(), true.tolist(), strict=True))


def column_cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(metrics.cosines(a[:, None], b[:, None])[0, 0])


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    """Return the grid by number of phenotypes, with the most stable weights at each."""
    grid = results[results["kind"] == "grid"]
    columns = ["rank", "lam", "mu", "dissimilarity", "dissimilarity_se", "reproducibility", "rmse", "cpi"]
    return rules.by_rank("stability", grid)[columns].reset_index(drop=True)


PAPER_RANK, PAPER_LAM, PAPER_MU = 5, 0.1, 0.1  # supplement, "Hyper-parameter search"
REPEATED = "static repeated"


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    drawn = new_figure(10.6, 3.6)
    left, middle, right = drawn.subplots(1, 3, width_ratios=(1.15, 0.8, 1.25))
    draw_stability(left, table)
    draw_static_shares(middle, phenotypes(results, REPEATED))
    draw_recovery(right, results)
    for axis in (left, middle, right):
        clean_axes(axis)
    right.spines["left"].set_visible(False)
    return drawn


def draw_stability(axis: "Axes", table: "pd.DataFrame") -> None:
    """Draw the paper's figure, the lowest mean dissimilarity at each number of phenotypes."""
    error_line(
        axis,
        table["rank"],
        table["dissimilarity"],
        table["dissimilarity_se"],
        color=BLUE,
        linewidth=1.6,
    )
    chosen = table.sort_values("dissimilarity").iloc[0]
    axis.annotate(
        "chosen",
        (chosen["rank"], chosen["dissimilarity"]),
        xytext=(8, -3),
        textcoords="offset points",
        fontsize=8,
        color=RED,
    )
    axis.plot(chosen["rank"], chosen["dissimilarity"], "o", color=RED, markersize=6, zorder=5)
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    axis.locator_params(axis="x", integer=True)
    set_labels(axis, "Stability", "number of phenotypes", "mean dissimilarity, its standard error")


def draw_static_shares(axis: "Axes", rows: "pd.DataFrame") -> None:
    """Draw the fraction of each definition that static features have, for COPA with static features repeated."""
    axis.barh(rows["phenotype"], 100 * rows["static_share"], color=RED, height=0.6, label="static features")
    axis.barh(
        rows["phenotype"],
        100 * (1 - rows["static_share"]),
        left=100 * rows["static_share"],
        color=BLUE,
        height=0.6,
        label="codes",
    )
    axis.invert_yaxis()
    axis.set_yticks(rows["phenotype"])
    axis.set_xlim(0, 100)
    set_labels(axis, "Definitions by COPA (+static)", "% of the squared weight", "phenotype")
    axis_legend_below(axis)


def draw_recovery(axis: "Axes", results: "pd.DataFrame") -> None:
    """Draw the cosine with each planted phenotype, for TASTE and for COPA with static features repeated."""
    taste = phenotypes(results, planted_model(results)).set_index("planted")["cosine"]
    copa = phenotypes(results, REPEATED).set_index("planted")["cosine"]
    for y, name in enumerate(PHENOTYPES):
        if name in taste.index and name in copa.index:
            axis.plot([taste[name], copa[name]], [y, y], color=LINE, linewidth=2, zorder=1)
    for values, colour, mark, label in (
        (copa, GREY, "^", "COPA (+static)"),
        (taste, BLUE, "o", "TASTE"),
    ):
        recovered = [y for y, name in enumerate(PHENOTYPES) if name in values.index]
        cosines = [float(values[PHENOTYPES[y]]) for y in recovered]
        axis.scatter(cosines, recovered, color=colour, marker=mark, s=34, label=label, zorder=3)
    axis.set_yticks(
        range(len(PHENOTYPES)), [escape_name(short_name(name)) for name in PHENOTYPES], fontsize=8
    )
    axis.invert_yaxis()
    axis.set_xlim(-0.03, 1.03)
    set_labels(axis, "Recovery of planted phenotypes", "cosine with the planted codes")
    axis_legend_below(axis)


def short_name(name: str) -> str:
    return name.replace(" Heart Failure", "").replace(" Heart Disease", " heart disease")


def phenotypes(results: "pd.DataFrame", which: str) -> "pd.DataFrame":
    return results[(results["kind"] == "phenotype") & (results["which"] == which)]


def planted_model(results: "pd.DataFrame") -> str:
    """Return the name of the model with the planted number of phenotypes."""
    return "planted number" if (results["which"] == "planted number").any() else "chosen"


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    grid = results[results["kind"] == "grid"]
    first = grid.iloc[0]
    chosen = grid.loc[rules.choose("stability", grid)]
    at_five = table[table["rank"] == PAPER_RANK].iloc[0]
    repeated = phenotypes(results, REPEATED)
    taste = phenotypes(results, planted_model(results))
    fits = len(grid) * int(first.starts)
    dominated = int((repeated["static_share"] > 0.5).sum())
    return f"""
## What was run

`simulate.heart_failure({int(first.patients)})`, cases only: {int(first.cases)} patients with {int(first.visits)}
visits, 323 codes and 22 static features; the paper has 3 244 cases of 35 113. TASTE with {grid["rank"].min()} to
{grid["rank"].max()} phenotypes, λ ∈ {{{distinct(grid["lam"])}}}, μ ∈ {{{distinct(grid["mu"])}}} (relative weights) and
{int(first.starts)} starts: {fits} fits by `selection.select`, which took
{format_duration(grid["processor_seconds"].sum())} of processor time{interruption_note(results, grid)}.

## How many phenotypes

The paper's rule, the lowest mean dissimilarity over the grid, chooses **{int(chosen["rank"])}** phenotypes, with
λ = {chosen["lam"]:g} and μ = {chosen["mu"]:g} (dissimilarity {chosen["dissimilarity"]:.2g}). On its own data the paper
chooses {PAPER_RANK} with λ = {PAPER_LAM} and μ = {PAPER_MU}. Five are planted here; at five the dissimilarity is
{at_five["dissimilarity"]:.2g}. The choice of the other rules (docs/selection.md has the accuracy of each):

{markdown(rule_choices(grid), ["rule", "phenotypes", "λ", "μ"])}

At each number of phenotypes the most stable weights; results.csv has the complete grid:

{markdown(by_rank(table), ["phenotypes", "λ", "μ", "dissimilarity", "lowest reproducibility", "RMSE", "CPI"])}

## The phenotypes of the chosen model

{definitions(results, "chosen")}
{planted_part(results)}
## Static features repeated on every visit

COPA (+static) with {PAPER_RANK} phenotypes: V and F are rows of one factor, and weights are relative to its largest.
The paper finds that static features dominate the definitions and that codes are close to 0. Measured: static features
have {share_range(repeated)} of the squared weight of a phenotype, more than half in {dominated} of {len(repeated)}. The
planted codes are recovered with a mean cosine of {repeated["cosine"].mean():.2f} (lowest
{repeated["cosine"].min():.2f}); by TASTE with the same number of phenotypes, {taste["cosine"].mean():.2f} (lowest
{taste["cosine"].min():.2f}).

{definitions(results, REPEATED)}
"""


def interruption_note(results: "pd.DataFrame", grid: "pd.DataFrame") -> str:
    """Return a note if the study was resumed: the cell's time then excludes the fits of earlier runs."""
    measured = results.drop_duplicates("cell")["cell_processor_seconds"].sum()
    total = grid["processor_seconds"].sum()
    return " (the run was interrupted: the last line excludes what came before)" if total > measured else ""


def distinct(values: "pd.Series") -> str:
    return ", ".join(f"{value:g}" for value in sorted(values.unique()))


def share_range(rows: "pd.DataFrame") -> str:
    low, high = rows["static_share"].min(), rows["static_share"].max()
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def rule_choices(grid: "pd.DataFrame") -> list[list[str]]:
    """Return the choice of each rule."""
    rows = []
    for name, rule in rules.RULES.items():
        if rule.halves:
            continue  # the paper's search has none
        row = grid.loc[rules.choose(name, grid)]
        rows.append([name, str(int(row["rank"])), f"{row['lam']:g}", f"{row['mu']:g}"])
    return rows


def by_rank(table: "pd.DataFrame") -> list[list[str]]:
    return [
        [
            str(int(row["rank"])),
            f"{row['lam']:g}",
            f"{row['mu']:g}",
            fixed_mean_sd(row["dissimilarity"], row["dissimilarity_se"], 4),
            f"{100 * row['reproducibility']:.0f} %",
            format_value(row["rmse"]),
            fixed_mean_sd(row["cpi"]),
        ]
        for _, row in table.iterrows()
    ]


def planted_part(results: "pd.DataFrame") -> str:
    if planted_model(results) == "chosen":
        return ""
    rows = phenotypes(results, "planted number")
    row = rows.iloc[0]
    grid = results[results["kind"] == "grid"]
    same = (grid["rank"] == row["rank"]) & (grid["lam"] == row["lam"]) & (grid["mu"] == row["mu"])
    reproducibility = grid.loc[same, "reproducibility"].iloc[0]
    return f"""
## With the planted number of phenotypes

{int(row["rank"])} phenotypes, λ = {row["lam"]:g}, μ = {row["mu"]:g}, the most stable weights at that number.
The start with the lowest RMSE recovers the codes of every planted phenotype with a cosine of at least
{rows["cosine"].min():.2f}; the least reproducible of these phenotypes has a partner in
{100 * reproducibility:.0f} % of the other starts.

{definitions(results, "planted number")}
"""


def definitions(results: "pd.DataFrame", which: str) -> str:
    """Return a table for each phenotype in the paper's layout: features with a weight of at least 0.1."""
    features = results[(results["kind"] == "feature") & (results["which"] == which)]
    parts = []
    for row in phenotypes(results, which).to_dict("records"):
        rows = [
            [f["feature"] if f["of"] == "temporal" else f"*{f['feature']}*", f"{f['weight']:.3f}"]
            for f in features[features["phenotype"] == row["phenotype"]].to_dict("records")
        ]
        nearest = "none of the planted ones"
        if isinstance(row["planted"], str):
            nearest = (
                f"{row['planted']}, cosine {row['cosine']:.2f} of the codes and {row['static_cosine']:.2f} of the "
                "static features"
            )
        heading = f"**Phenotype {row['phenotype']:.0f}**: {nearest}"
        parts.append(f"{heading}\n\n{markdown(rows, ['feature (static in italics)', 'weight'])}")
    return "\n\n".join(parts)
