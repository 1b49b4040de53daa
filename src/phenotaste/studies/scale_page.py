"""Figure and page of the study `scale`, from its results."""

from typing import TYPE_CHECKING, Any

from phenotaste.plotting import GREEN, LABEL_SIZE, set_labels
from phenotaste.studies import drawing
from phenotaste.studies.methods import LABELS, PUBLISHED, ordered
from phenotaste.studies.study_page import markdown, shown, span, spread

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_RATIO, PAPER_SIZES = (
    14,
    (125_000, 250_000, 500_000, 1_000_000),
)  # Q2: up to so many times faster than Cohen+
PLANNED = (12_500, 25_000, 50_000, 100_000)
COMPLETE, PART = "to the tolerance", "an iteration"
ON_GPU: dict[str, Any] = {"color": GREEN, "marker": "D", "markersize": 4, "linewidth": 2.0, "zorder": 5}


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    on_gpu = table[table["device"] == "cuda"]
    drawn, axes = drawing.grid(1, 3 if len(on_gpu) else 2, width=4.0, height=3.0)
    whole, iteration = axes[0][:2]
    panel(whole, table[(table["part"] == COMPLETE) & (table["device"] == "cpu")], "processor_seconds")
    panel(iteration, table[table["device"] == "cpu"], "processor_iteration")
    set_labels(whole, "A fit to 1e-4", y="processor seconds")
    set_labels(iteration, "An iteration")
    if len(on_gpu):
        clock = axes[0][2]
        ours = table[(table["part"] == COMPLETE) & (table["method"] == "TASTE")]
        panel(clock, ours[ours["device"] == "cpu"], "seconds")
        clock.plot(on_gpu["patients"], on_gpu["seconds_mean"], label="TASTE, on a GPU", **ON_GPU)
        sizes_below(clock, ours["patients"])
        set_labels(clock, "A fit to 1e-4, elapsed time", y="seconds")
    drawing.legend(drawn, axes)
    return drawn


def panel(axis: "Axes", rows: "pd.DataFrame", measure: str) -> None:
    """Means against patients; a fit that was stopped is an arrow: it would have taken longer."""
    for method in ordered(rows["method"]):
        mine = rows[rows["method"] == method]
        ended = (
            mine[mine["finished_mean"] > 0]
            if measure == "processor_seconds"
            else mine[mine["iterations_mean"] > 0]
        )
        if len(ended):
            drawing.line(axis, ended, "patients", measure, method)
        stopped = mine[(mine["finished_mean"] == 0) & (mine["iterations_mean"] > 0)]
        if measure == "processor_seconds" and len(stopped):
            style = {"color": drawing.STYLES[method]["color"], "marker": "$↑$", "s": 90}
            axis.scatter(stopped["patients"], stopped[f"{measure}_mean"], **style, zorder=6)
    axis.set_xscale("log")
    if rows[f"{measure}_mean"].notna().any():
        axis.set_yscale("log")
    sizes_below(axis, rows["patients"])


def sizes_below(axis: "Axes", patients: "pd.Series") -> None:
    """Sizes, but for those whose words would run into the one before."""
    there: list[int] = []
    sizes = sorted(int(size) for size in patients.unique())
    apart = 1.9 if len(sizes) < 6 else 3.9
    for size in sizes:
        if not there or size > apart * there[-1]:
            there.append(size)
    axis.set_xticks(there, [short(size) for size in there], fontsize=LABEL_SIZE)
    axis.minorticks_off()
    set_labels(axis, x="patients")


def short(size: int) -> str:
    """12,500 is 12.5 k."""
    for unit, name in ((1_000_000, " M"), (1_000, " k")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return str(size)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    first = results[results["device"] == "cpu"].iloc[0]
    return f"""
## What was run

`simulate.ehr` in the shape of the paper's CMS data (284 features, 30 static ones, about 50 visits a patient), rank
{int(first["rank"])}, λ = μ = {first["lam"]:g} in absolute terms, so that TASTE and Cohen+ have the same objective.
Cohen+ is its authors' algorithm, in numpy on one core; on TASTE's own core it takes TASTE's steps. The others have
{int(first["threads"])} threads. A fit that takes more than {first["limit_minutes"]:g} minutes is stopped and told
as such.

{what_ran(results)}

{what_else(results)}

## To the tolerance

{whole_fits(table)}

## Beside the paper

For {", ".join(f"{size:,}" for size in PAPER_SIZES)} patients the paper finds TASTE up to {PAPER_RATIO} times as fast as
Cohen+, in MATLAB with 12 workers for both. Measured, Cohen+ as published over TASTE, in processor
seconds{guessed(table)}:

{ratios(table)}

The paper's {PAPER_RATIO} compares two programs in one language. Here TASTE is compiled and Cohen+'s authors' steps are
numpy's, so that much of the ratio is the implementation's; on the same compiled core the two take the same time.

## Seconds an iteration

{iterations(table)}
"""


def what_else(results: "pd.DataFrame") -> str:
    """What the machines did beside, and whose rows those of a GPU are."""
    here = results[results["device"] == "cpu"]
    low, high, cores = here["load"].min(), here["load"].max(), int(here["cores"].iloc[0])
    text = f"""Load average before each fit, the study's own threads included: {low:g} to {high:g} on {cores} cores.
Where others used them too, processor seconds are what to compare."""
    beside = results[results["device"] == "cuda"]
    if len(beside) and beside["processor"].iloc[0] != here["processor"].iloc[0]:
        text += f""" The rows of the GPU are of another machine, whose processor has
{int(beside["cores"].iloc[0])} cores."""
    return text


def guessed(table: "pd.DataFrame") -> str:
    """Fits that were not begun have an iteration that was worked out from one of fewer patients."""
    return (
        " (of a fit not begun, from an iteration on fewer patients)"
        if ((table["iterations_mean"] == 0) & table["gb_needed_mean"].isna()).any()
        else ""
    )


def what_ran(results: "pd.DataFrame") -> str:
    """Sizes and starts that were run, and those of the whole study that were not."""
    sizes = sorted(int(size) for size in results["patients"].unique())
    starts = int(results[results["method"] == "TASTE"].groupby(["part", "patients", "device"]).size().max())
    missing = [f"{size:,}" for size in PLANNED if size not in sizes]
    large = [f"{size:,}" for size in PAPER_SIZES if size not in sizes]
    lines = [f"- run: {', '.join(f'{size:,}' for size in sizes)} patients, up to {starts} starts"]
    if missing:
        lines.append(f"- of the whole study not run here: fits of {', '.join(missing)} patients")
    if large:
        lines.append(f"- of the whole study not run here: iterations of {', '.join(large)} patients")
    if not (results["device"] == "cuda").any():
        lines.append("- no GPU was there; docs/gpu.md has what one takes")
    return "\n".join(lines)


def whole_fits(table: "pd.DataFrame") -> str:
    rows = [
        [
            f"{int(row['patients']):,}",
            LABELS[row["method"]] + (", GPU" if row["device"] == "cuda" else ""),
            ended(row),
            spread(row["seconds_mean"], row["seconds_sd"]),
            spread(row["processor_seconds_mean"], row["processor_seconds_sd"]),
            shown(row["iterations_mean"], 3),
            shown(row["cpi_mean"], 3),
        ]
        for _, row in table[table["part"] == COMPLETE].iterrows()
    ]
    header = ["patients", "", "converged", "seconds", "processor seconds", "iterations", "CPI"]
    return markdown(rows, header)


def ended(row: "pd.Series") -> str:
    """How many of the starts converged; where none did, how far the last iteration still moved the objective."""
    if row["gb_needed_mean"] > 0:
        return f"not begun: needs {row['gb_needed_mean']:.0f} GB of memory"
    done = round(row["finished_mean"] * row["count"])
    if done:
        return f"{done} of {int(row['count'])}"
    if row["iterations_mean"] == 0:
        return f"not begun: one iteration would take about {span(row['seconds_iteration_mean'])}"
    if row["last_fall_mean"] != row["last_fall_mean"]:
        return "stopped after the first iteration"
    return f"stopped; the objective still fell by {row['last_fall_mean']:.1e} of itself an iteration"


def ratios(table: "pd.DataFrame") -> str:
    rows = []
    for size, part in table[(table["part"] == COMPLETE) & (table["device"] == "cpu")].groupby("patients"):
        by = part.set_index("method")
        if {"TASTE", PUBLISHED} <= set(by.index):
            whole = by["processor_seconds_mean"][PUBLISHED] / by["processor_seconds_mean"]["TASTE"]
            single = by["processor_iteration_mean"][PUBLISHED] / by["processor_iteration_mean"]["TASTE"]
            rows.append(
                [f"{size:,}", at_least(by, float(whole)), shown(float(single), 3), f"up to {PAPER_RATIO}"]
            )
    return markdown(rows, ["patients", "to 1e-4, times", "an iteration, times", "paper"])


def at_least(by: "pd.DataFrame", ratio: float) -> str:
    """The ratio of two whole fits; where Cohen+ was stopped it would have been larger."""
    if by["finished_mean"]["TASTE"] == 0 or ratio != ratio:
        return "–"
    return f"{ratio:.0f}" if by["finished_mean"][PUBLISHED] > 0 else f"over {ratio:.0f}"


def iterations(table: "pd.DataFrame") -> str:
    rows = [
        [
            f"{int(row['patients']):,}",
            LABELS[row["method"]] + (", GPU" if row["device"] == "cuda" else ""),
            ended(row) if row["gb_needed_mean"] > 0 else shown(row["seconds_iteration_mean"], 3),
            shown(row["processor_iteration_mean"], 3),
        ]
        for _, row in table.iterrows()
    ]
    return markdown(rows, ["patients", "", "seconds", "processor seconds"])
