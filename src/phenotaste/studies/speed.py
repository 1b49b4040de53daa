"""The paper's Q1: RMSE, CPI and time of TASTE, Cohen+ and COPA+ for several ranks and weights."""

from typing import TYPE_CHECKING

from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.plotting import set_labels
from phenotaste.studies import methods, study_page
from phenotaste.studies.methods import LABELS, PUBLISHED, estimator, quality, sort_methods, timed_fit, warm_up
from phenotaste.studies.results import summarise
from phenotaste.studies.study import Cell, CellContext, Options, Row
from phenotaste.studies.study_page import format_duration, format_value, markdown, mean_sd

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAME = "speed"
TITLE = "Fast, accurate, unique"
QUESTION = (
    "How well do TASTE, Cohen+ and COPA+ reconstruct the data (RMSE), do they keep U_kᵀU_k the same for all patients "
    "(CPI), and how long does a fit take?"
)
TIMED = True
ACCEPTS = frozenset({"starts", "fraction", "synpuf"})

RANKS = (5, 10, 20, 40)
GRID = (0.01, 0.1, 1.0)  # λ and μ of TASTE and Cohen+; the paper's supplement
COPA_GRID = (0.1, 1.0, 10.0)  # λ of COPA+
MIDDLE = 0.1  # of the grid, where Cohen+ also runs as published, which is too slow for the complete grid
PUBLISHED_STARTS = 2  # of that algorithm, at most
FRACTION = 0.001  # of the paper's patients: about half an hour
TOL, MAX_ITER = 1e-4, 200


def cells(options: Options) -> list[Cell]:
    starts = options.starts or (1 if options.quick else 5)
    ranks = (3, 6) if options.quick else RANKS
    return [
        {"data": data, "patients": patients, "rank": rank, **setting, "data_seed": options.seed, "seed": seed}
        for data, patients in sizes(options).items()
        for rank in ranks
        for setting in settings(options.quick)
        for seed in range(options.seed, options.seed + starts_of(setting, starts))
    ]


def starts_of(setting: Cell, starts: int) -> int:
    """Return the number of starts, fewer for the slow algorithm."""
    return min(starts, PUBLISHED_STARTS) if setting["method"] == PUBLISHED else starts


def sizes(options: Options) -> dict[str, int]:
    """Return the number of patients of each cohort; DE-SynPUF has at most as many as the CMS-shaped one."""
    fraction = options.fraction or (0.0003 if options.quick else FRACTION)
    sizes = {name: max(round(fraction * shape.patients), 10) for name, shape in methods.SHAPES.items()}
    return sizes | ({} if options.synpuf is None else {methods.SYNPUF: sizes["CMS"]})


def settings(quick: bool) -> list[Cell]:
    """Return the grids; with absolute weights Cohen+ also runs by its authors' algorithm, in the middle of the grid."""
    grid, copa = ((MIDDLE,), (MIDDLE,)) if quick else (GRID, COPA_GRID)
    settings: list[Cell] = []
    for weights in ("relative", "absolute"):
        for method in ("TASTE", "CohenPlus"):
            settings += [
                {"method": method, "weights": weights, "lam": lam, "mu": mu} for lam in grid for mu in grid
            ]
        settings += [{"method": "CopaPlus", "weights": weights, "lam": lam, "mu": None} for lam in copa]
    return [*settings, {"method": PUBLISHED, "weights": "absolute", "lam": MIDDLE, "mu": MIDDLE}]


def cost(cell: Cell) -> float:
    return float(cell["rank"]) * (100.0 if cell["method"] == PUBLISHED else 1.0)


def run(cell: Cell, context: CellContext) -> Row:
    cohort = cell_cohort(cell, context)
    warm_up(cell, cohort, context.threads)
    settings = {"n_init": 1, "tol": TOL, "max_iter": MAX_ITER}
    model, taken = timed_fit(estimator(cell, context.threads, **settings), cohort)
    size = {"patients_fitted": len(cohort), "visits": cohort.n_visits, "features": cohort.shape[1]}
    return {**quality(model, cohort), **taken, **size, "entries": int(cohort.visits.nnz)}


def cell_cohort(cell: Cell, context: CellContext) -> Cohort:
    if cell["data"] != methods.SYNPUF:
        return methods.shaped(cell["data"], cell["patients"], cell["data_seed"])
    if context.options.synpuf is None:
        raise InputError("This cell requires the folder of DE-SynPUF: give it with --synpuf.")
    return methods.synpuf(context.options.synpuf, cell["patients"], cell["data_seed"])


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    keys = ["data", "rank", "method", "weights", "lam", "mu"]
    measured = ["rmse", "rmse_one", "cpi", "iterations", "seconds", "processor_seconds"]
    return summarise(results, keys, measured)


PAPER_RATIOS = {"Sutter": 4.5, "CMS": 2.0}  # Q1: of the times of Cohen+ and TASTE, at most
MIN_CPI = -0.25  # in the figure; lower values are in the tables
MEASURES = (
    ("rmse_one", "RMSE (static entries have weight 1)"),
    ("cpi", "CPI"),
    ("processor_seconds", "processor seconds per fit"),
)


def best(table: "pd.DataFrame", weights: str, measure: str = "rmse") -> "pd.DataFrame":
    """Return the rows with the lowest mean RMSE for each method and rank, the paper's choice of λ and μ."""
    rows = table[table["weights"] == weights].sort_values(f"{measure}_mean", kind="stable")
    return rows.groupby(["data", "rank", "method"], sort=False).head(1)


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    """The paper's figure, at λ = 0.1 and the default μ: one column for each cohort and kind of weights."""
    columns = [(data, weights) for data in table["data"].unique() for weights in ("relative", "absolute")]
    drawn, axes = study_page.grid(3, len(columns), sharex=True)
    for column, (data, weights) in enumerate(columns):
        rows = at_middle(table[(table["data"] == data) & (table["weights"] == weights)])
        for axis, (measure, _) in zip(axes[:, column], MEASURES, strict=True):
            for method in sort_methods(rows["method"]):
                study_page.line(axis, rows[rows["method"] == method], "rank", measure, method)
        set_labels(axes[0, column], f"{shape_name(data)}\n{weights} weights")
        set_labels(axes[2, column], x="phenotypes")
        axes[2, column].set_yscale("log")
        axes[2, column].set_xticks(sorted(table["rank"].unique()))
    for pair in range(0, len(columns), 2):  # the RMSE of different cohorts cannot be compared
        study_page.share_y(axes[0, pair : pair + 2])
    study_page.share_y(axes[1], within=(MIN_CPI, 1.05))
    study_page.share_y(axes[2])
    for axis, (_, title) in zip(axes[:, 0], MEASURES, strict=True):
        set_labels(axis, y=title.replace(" (", "\n("))
    study_page.legend(drawn, axes)
    return drawn


def at_middle(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Return the rows with λ = 0.1 and μ closest to 0.1 (absolute) or 1 (relative)."""
    target = 0.1 if (rows["weights"] == "absolute").all() else 1.0
    values = rows["mu"].dropna().unique()
    mu = min(values, key=lambda value: abs(value - target)) if len(values) else target
    return rows[(rows["lam"] == 0.1) & (rows["mu"].isna() | (rows["mu"] == mu))]


def shape_name(data: str) -> str:
    return data if data == methods.SYNPUF else f"{data}-shaped"


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    starts = int(table["count"].max())
    ranks = ", ".join(map(str, sorted(table["rank"].unique())))
    low, high = results["load"].min(), results["load"].max()
    return f"""
## What was run

{markdown(cohort_sizes(results), ["cohort", "patients", "of the paper's", "visits", "features", "nonzeros"])}

`simulate.ehr` in the shapes of the paper's two data sets, with {methods.PHENOTYPES} phenotypes
planted{synpuf_clause(table)}.

Ranks {ranks}; TASTE and Cohen+ with λ, μ ∈ {grid_of(table, "TASTE")}, COPA+ with
λ ∈ {grid_of(table, "CopaPlus")}; {starts} starts each, every one a fit of its own; with weights relative to the size
of the data and with absolute weights, the paper's; until the relative decrease of the objective is below 1e-4. TASTE
with relative weights has its default objective, in which every patient has unit size, and with absolute weights
`objective="paper"`: RMSE is in the units of the data, which only the latter minimises.

Cohen+ runs on TASTE's core (docs/baselines.md). "As published" is its authors' algorithm, HALS with explicit
Khatri–Rao products, in numpy on one core. It runs in the middle of the grid only, from {published_starts(table)}
starts: the complete grid would take {format_duration(complete_grid(table, starts))}.

Times are for {int(results["threads"].iloc[0])} thread(s), without compilation. The computer also ran other processes
(load average {low:g} to {high:g} on {int(results["cores"].iloc[0])} cores): compare processor seconds.

The figure has λ = 0.1 and μ = 1 (relative) or 0.1 (absolute); CPI below {MIN_CPI:g} is not shown in it.

## Comparison with the paper

The paper finds comparable RMSE, low CPI for COPA+, higher CPI for TASTE than for Cohen+, and TASTE up to
{PAPER_RATIOS["Sutter"]} (Sutter) and {PAPER_RATIOS["CMS"]:g} (CMS) times as fast as Cohen+. Measured, at λ = μ = 0.1
and absolute weights, to the same tolerance:

{time_ratios(table)}

{verdict(table, "relative")} {verdict(table, "absolute")} The scale of absolute weights depends on the cohort.

## With the weights that the paper would choose

Those with the lowest mean RMSE, with weight λ/2 on static entries as in the paper. The RMSE in the table has weight 1
on static entries, so that it can be compared across λ.

### Relative weights

{chosen(table, "relative")}

### Absolute weights

{chosen(table, "absolute")}

## By weights

{smallest_mu(table)} TASTE at the largest rank:

{by_weights(table)}
"""


def published_starts(table: "pd.DataFrame") -> int:
    return int(table.loc[table["method"] == PUBLISHED, "count"].max())


def complete_grid(table: "pd.DataFrame", starts: int) -> float:
    """Return the seconds that the published algorithm would take for all cells of the grid."""
    fits = 2 * starts * len(table.loc[table["method"] == "TASTE", ["lam", "mu"]].drop_duplicates())
    return float(table.loc[table["method"] == PUBLISHED, "processor_seconds_mean"].sum()) * fits


def smallest_mu(table: "pd.DataFrame") -> str:
    """Return whether the RMSE can be used to choose μ."""
    taste = table[table["method"] == "TASTE"]
    if taste["mu"].nunique() < 2:
        return "Only one μ was run."
    lowest = worst = total = 0
    for _, part in taste.groupby(["data", "weights", "rank", "lam"]):
        total += 1
        lowest += int(part.sort_values("rmse_one_mean")["mu"].iloc[0] == part["mu"].min())
        worst += int(part.sort_values("cpi_mean")["mu"].iloc[0] == part["mu"].min())
    return (
        f"In {lowest} of {total} comparisons across μ alone the smallest μ has the lowest RMSE, and in {worst} the "
        "lowest CPI: the RMSE cannot be used to choose μ."
    )


def cohort_sizes(results: "pd.DataFrame") -> list[list[str]]:
    rows = []
    for data, part in results.groupby("data", sort=False):
        first = part.iloc[0]
        shape = methods.SHAPES.get(str(data))
        share = "–" if shape is None else f"{100 * first['patients_fitted'] / shape.patients:.2g} %"
        rows.append(
            [
                shape_name(str(data)),
                f"{int(first['patients_fitted']):,}",
                share,
                f"{int(first['visits']):,}",
                f"{int(first['features']):,}",
                f"{int(first['entries']):,}",
            ]
        )
    return rows


def synpuf_clause(table: "pd.DataFrame") -> str:
    included = (table["data"] == methods.SYNPUF).any()
    text = "; and patients of DE-SynPUF (CCS diagnoses, one visit per day, at least five visits)"
    return text if included else ""


def grid_of(table: "pd.DataFrame", method: str) -> str:
    values = sorted(table.loc[table["method"] == method, "lam"].unique())
    return "{" + ", ".join(f"{value:g}" for value in values) + "}"


def time_ratios(table: "pd.DataFrame") -> str:
    """Return the ratio of Cohen+ as published to TASTE with the paper's objective."""
    rows = []
    middle = table[(table["weights"] == "absolute") & (table["lam"] == 0.1) & (table["mu"] == 0.1)]
    for (data, rank), part in middle.groupby(["data", "rank"], sort=False):
        by = part.set_index("method")
        if PUBLISHED in by.index:
            seconds, deviation = by["processor_seconds_mean"], by["processor_seconds_sd"]
            pair = ("TASTE", PUBLISHED)
            rows.append(
                [
                    shape_name(str(data)),
                    str(rank),
                    *[mean_sd(float(seconds[name]), float(deviation[name])) for name in pair],
                    f"{float(seconds[PUBLISHED]) / float(seconds['TASTE']):.0f}",
                    f"up to {PAPER_RATIOS[data]:g}" if data in PAPER_RATIOS else "–",
                ]
            )
    header = ["cohort", "rank", "TASTE, processor s", "Cohen+ as published, processor s", "ratio", "paper"]
    return markdown(rows, header)


def verdict(table: "pd.DataFrame", weights: str) -> str:
    """Compare CPI and RMSE of TASTE and COPA+ at the weights of the figure."""
    rows = at_middle(table[table["weights"] == weights])
    taste, copa = (
        rows[rows["method"] == name].set_index(["data", "rank"])[["cpi_mean", "rmse_one_mean"]]
        for name in ("TASTE", "CopaPlus")
    )
    above = int((taste["cpi_mean"] > copa["cpi_mean"]).sum())
    change = taste["rmse_one_mean"] / copa["rmse_one_mean"] - 1
    return (
        f"With {weights} weights, as in the figure, TASTE's CPI is {taste['cpi_mean'].min():.2f} to "
        f"{taste['cpi_mean'].max():.2f}, above COPA+'s in {above} of {len(taste)}, and its RMSE differs from COPA+'s "
        f"by {100 * change.min():+.1f} to {100 * change.max():+.1f} %."
    )


def chosen(table: "pd.DataFrame", weights: str) -> str:
    rows = []
    picked = best(table, weights)
    for data in table["data"].unique():
        for rank in sorted(table["rank"].unique()):
            selected = picked[(picked["data"] == data) & (picked["rank"] == rank)].set_index("method")
            for method in sort_methods(selected.index):
                row = selected.loc[method]
                rows.append(
                    [
                        shape_name(data),
                        str(rank),
                        LABELS[method],
                        format_value(row["lam"]),
                        format_value(row["mu"]),
                        mean_sd(row["rmse_one_mean"], row["rmse_one_sd"], 4),
                        mean_sd(row["cpi_mean"], row["cpi_sd"]),
                        mean_sd(row["processor_seconds_mean"], row["processor_seconds_sd"]),
                    ]
                )
    return markdown(rows, ["cohort", "rank", "", "λ", "μ", "RMSE", "CPI", "processor seconds"])


def by_weights(table: "pd.DataFrame") -> str:
    taste = table[(table["method"] == "TASTE") & (table["rank"] == table["rank"].max())]
    rows = [
        [
            f"{shape_name(row['data'])}, {row['weights']}",
            format_value(row["lam"]),
            format_value(row["mu"]),
            mean_sd(row["rmse_one_mean"], row["rmse_one_sd"], 4),
            mean_sd(row["cpi_mean"], row["cpi_sd"]),
            format_value(row["iterations_mean"], 3),
        ]
        for _, row in taste.iterrows()
    ]
    return markdown(rows, ["cohort, weights", "λ", "μ", "RMSE", "CPI", "iterations"])
