"""Figure and page of the study `speed`, from its results."""

from typing import TYPE_CHECKING

from phenotaste.plotting import set_labels
from phenotaste.studies import cohorts, drawing
from phenotaste.studies.methods import LABELS, PUBLISHED, ordered
from phenotaste.studies.study_page import markdown, shown, span, spread

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PAPER_TIMES = {"Sutter": 4.5, "CMS": 2.0}  # Q1: TASTE is up to so many times faster than Cohen+
LOWEST_CPI = -0.25  # drawn; what lies below is in the tables
MEASURES = (
    ("rmse_one", "RMSE (static entries weigh one)"),
    ("cpi", "CPI"),
    ("processor_seconds", "processor seconds of a fit"),
)


def best(table: "pd.DataFrame", weights: str, measure: str = "rmse") -> "pd.DataFrame":
    """As the paper chooses λ and μ: by the lowest mean RMSE, for each method and rank."""
    rows = table[table["weights"] == weights].sort_values(f"{measure}_mean", kind="stable")
    return rows.groupby(["data", "rank", "method"], sort=False).head(1)


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    """The paper's figure, at λ = 0.1 and the default μ: one column for each cohort and kind of weights."""
    columns = [(data, weights) for data in table["data"].unique() for weights in ("relative", "absolute")]
    drawn, axes = drawing.grid(3, len(columns), sharex=True)
    for column, (data, weights) in enumerate(columns):
        rows = at_middle(table[(table["data"] == data) & (table["weights"] == weights)])
        for axis, (measure, _) in zip(axes[:, column], MEASURES, strict=True):
            for method in ordered(rows["method"]):
                drawing.line(axis, rows[rows["method"] == method], "rank", measure, method)
        set_labels(axes[0, column], f"{shape_name(data)}\n{weights} weights")
        set_labels(axes[2, column], x="phenotypes")
        axes[2, column].set_yscale("log")
        axes[2, column].set_xticks(sorted(table["rank"].unique()))
    for pair in range(0, len(columns), 2):  # the RMSE of two cohorts have nothing to do with each other
        drawing.share_y(axes[0, pair : pair + 2])
    drawing.share_y(axes[1], within=(LOWEST_CPI, 1.05))
    drawing.share_y(axes[2])
    for axis, (_, title) in zip(axes[:, 0], MEASURES, strict=True):
        set_labels(axis, y=title.replace(" (", "\n("))
    drawing.legend(drawn, axes)
    return drawn


def at_middle(rows: "pd.DataFrame") -> "pd.DataFrame":
    """λ = 0.1, and the default μ: 0.1 in absolute terms, 1 in relative ones; the nearest there is."""
    wanted = 0.1 if (rows["weights"] == "absolute").all() else 1.0
    there = rows["mu"].dropna().unique()
    mu = min(there, key=lambda value: abs(value - wanted)) if len(there) else wanted
    return rows[(rows["lam"] == 0.1) & (rows["mu"].isna() | (rows["mu"] == mu))]


def shape_name(data: str) -> str:
    return data if data == cohorts.SYNPUF else f"{data}-shaped"


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    starts = int(table["count"].max())
    ranks = ", ".join(map(str, sorted(table["rank"].unique())))
    low, high = results["load"].min(), results["load"].max()
    return f"""
## What was run

{markdown(sizes(results), ["cohort", "patients", "of the paper's", "visits", "features", "non-zeros"])}

`simulate.ehr` in the shapes of the paper's two data sets, with {cohorts.PHENOTYPES} phenotypes
planted{synpuf_words(table)}.

Ranks {ranks}; TASTE and Cohen+ with λ, μ ∈ {grid_of(table, "TASTE")}, COPA+ with
λ ∈ {grid_of(table, "CopaPlus")}; {starts} starts each; once with weights measured against the size of the data
("relative") and once as they are ("absolute", the paper's); until the objective falls by less than 1e-4 of itself.

Cohen+ runs on TASTE's own core, where with a fixed μ it takes the very same steps (docs/baselines.md), so that one
start is enough to see that the two agree but for their time. "As published" is its authors' algorithm, HALS with
explicit Khatri–Rao products, here in numpy on one core. It runs in the middle of the grid only, from
{published_starts(table)} starts: the whole grid would take {span(whole_grid(table, starts))}.

Times are of {int(results["threads"].iloc[0])} thread(s), compiling left out, on a machine that did other work beside
(load average {low:g} to {high:g} on {int(results["cores"].iloc[0])} cores): processor seconds are what to compare.

The figure has λ = 0.1 and μ = 1 (relative) or 0.1 (absolute); CPI below {LOWEST_CPI:g} is left out of it.

## Beside the paper

The paper finds comparable RMSE, poor CPI for COPA+, higher CPI for TASTE than for Cohen+, and TASTE up to
{PAPER_TIMES["Sutter"]} (Sutter) and {PAPER_TIMES["CMS"]:g} (CMS) times as fast as Cohen+. Measured, at λ = μ = 0.1 and
absolute weights, to the same tolerance:

{times_faster(table)}

{verdict(table, "relative")} {verdict(table, "absolute")} Absolute weights mean something else on every cohort.

## With the weights that the paper would choose

Those with the lowest mean RMSE, λ/2 on static entries, as in the paper. The RMSE shown counts static entries by one, so
that it can be compared across λ.

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


def whole_grid(table: "pd.DataFrame", starts: int) -> float:
    """Seconds that the published algorithm would take for every cell that the others have."""
    fits = 2 * starts * len(table.loc[table["method"] == "TASTE", ["lam", "mu"]].drop_duplicates())
    return float(table.loc[table["method"] == PUBLISHED, "processor_seconds_mean"].sum()) * fits


def smallest_mu(table: "pd.DataFrame") -> str:
    """Whether RMSE can choose μ."""
    ours = table[table["method"] == "TASTE"]
    if ours["mu"].nunique() < 2:
        return "Only one μ was tried, so nothing is said here about choosing it."
    lowest = worst = total = 0
    for _, part in ours.groupby(["data", "weights", "rank", "lam"]):
        total += 1
        lowest += int(part.sort_values("rmse_one_mean")["mu"].iloc[0] == part["mu"].min())
        worst += int(part.sort_values("cpi_mean")["mu"].iloc[0] == part["mu"].min())
    return (
        f"In {lowest} of {total} comparisons across μ alone the smallest μ has the lowest RMSE, and in {worst} the "
        "lowest CPI: RMSE cannot choose μ."
    )


def sizes(results: "pd.DataFrame") -> list[list[str]]:
    rows = []
    for data, part in results.groupby("data", sort=False):
        first = part.iloc[0]
        shape = cohorts.SHAPES.get(str(data))
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


def synpuf_words(table: "pd.DataFrame") -> str:
    there = (table["data"] == cohorts.SYNPUF).any()
    return "; and patients of DE-SynPUF (CCS diagnoses, a day a visit, at least five visits)" if there else ""


def grid_of(table: "pd.DataFrame", method: str) -> str:
    values = sorted(table.loc[table["method"] == method, "lam"].unique())
    return "{" + ", ".join(f"{value:g}" for value in values) + "}"


def times_faster(table: "pd.DataFrame") -> str:
    """Cohen+ as published over TASTE, the same objective and weights."""
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
                    *[spread(float(seconds[name]), float(deviation[name])) for name in pair],
                    f"{float(seconds[PUBLISHED]) / float(seconds['TASTE']):.0f}",
                    f"up to {PAPER_TIMES[data]:g}" if data in PAPER_TIMES else "–",
                ]
            )
    header = ["cohort", "rank", "TASTE, processor s", "Cohen+ as published, processor s", "times", "paper"]
    return markdown(rows, header)


def verdict(table: "pd.DataFrame", weights: str) -> str:
    """CPI and RMSE of TASTE beside COPA+, at the weights of the figure."""
    rows = at_middle(table[table["weights"] == weights])
    ours, theirs = (
        rows[rows["method"] == name].set_index(["data", "rank"])[["cpi_mean", "rmse_one_mean"]]
        for name in ("TASTE", "CopaPlus")
    )
    above = int((ours["cpi_mean"] > theirs["cpi_mean"]).sum())
    change = ours["rmse_one_mean"] / theirs["rmse_one_mean"] - 1
    return (
        f"With {weights} weights, as in the figure, TASTE's CPI is {ours['cpi_mean'].min():.2f} to "
        f"{ours['cpi_mean'].max():.2f}, above COPA+'s in {above} of {len(ours)}, and its RMSE differs from COPA+'s by "
        f"{100 * change.min():+.1f} to {100 * change.max():+.1f} %."
    )


def chosen(table: "pd.DataFrame", weights: str) -> str:
    rows = []
    picked = best(table, weights)
    for data in table["data"].unique():
        for rank in sorted(table["rank"].unique()):
            here = picked[(picked["data"] == data) & (picked["rank"] == rank)].set_index("method")
            for method in ordered(here.index):
                row = here.loc[method]
                rows.append(
                    [
                        shape_name(data),
                        str(rank),
                        LABELS[method],
                        shown(row["lam"]),
                        shown(row["mu"]),
                        spread(row["rmse_one_mean"], row["rmse_one_sd"], 4),
                        spread(row["cpi_mean"], row["cpi_sd"]),
                        spread(row["processor_seconds_mean"], row["processor_seconds_sd"]),
                    ]
                )
    return markdown(rows, ["cohort", "rank", "", "λ", "μ", "RMSE", "CPI", "processor seconds"])


def by_weights(table: "pd.DataFrame") -> str:
    ours = table[(table["method"] == "TASTE") & (table["rank"] == table["rank"].max())]
    rows = [
        [
            f"{shape_name(row['data'])}, {row['weights']}",
            shown(row["lam"]),
            shown(row["mu"]),
            spread(row["rmse_one_mean"], row["rmse_one_sd"], 4),
            spread(row["cpi_mean"], row["cpi_sd"]),
            shown(row["iterations_mean"], 3),
        ]
        for _, row in ours.iterrows()
    ]
    return markdown(rows, ["cohort, weights", "λ", "μ", "RMSE", "CPI", "iterations"])
