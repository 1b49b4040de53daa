"""The paper's Q2: the time of TASTE, Cohen+ and COPA+ as a function of the number of patients."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.loop import Progress
from phenotaste.engines.cuda import cuda_available
from phenotaste.plan import fit_bytes
from phenotaste.plotting import GREEN, LABEL_SIZE, set_labels
from phenotaste.runs.resources import free_memory, load_average, processor_seconds
from phenotaste.studies import methods, study_page
from phenotaste.studies.methods import LABELS, PUBLISHED, estimator, sort_methods, timed_fit, warm_up
from phenotaste.studies.results import summarise
from phenotaste.studies.study import Cell, CellContext, Options, Row
from phenotaste.studies.study_page import format_duration, format_value, markdown, mean_sd

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "scale"
TITLE = "More patients"
QUESTION = (
    "How long do TASTE, Cohen+ and COPA+ take until the relative decrease of the objective is below 1e-4, and how does "
    "that grow with the number of patients?"
)
TIMED = True
ACCEPTS = frozenset({"starts", "largest", "limit_minutes", "device"})

RANK, TOL = 40, 1e-4  # the paper's Q2
OURS: Cell = {"weights": "relative", "lam": 0.01, "mu": 1.0}  # the defaults of TASTE
OTHERS: Cell = {"weights": "absolute", "lam": 0.1, "mu": 0.1}  # the middle of the paper's grid
SIZES = (12_500, 25_000, 50_000, 100_000)  # to the tolerance, on the CPU
PUBLISHED_SIZES = (250, 12_500)  # Cohen+ by its authors' algorithm, which takes minutes for the first
PROBE = 250  # patients on which an iteration of that algorithm is timed before a larger fit
PUBLISHED_STARTS = 1
SIZE_FACTOR = 10  # of single iterations and of fits on a GPU, relative to `largest`
LARGE = (
    125_000,
    250_000,
    500_000,
    1_000_000,
)  # the paper's; a few iterations on the CPU, to the tolerance on a GPU
DRAWN = 50_000  # distinct patients; larger cohorts repeat them
ITERATIONS = 4  # timed on a large cohort
LIMIT_MINUTES = 30.0
MAX_ITER = 200


def cells(options: Options) -> list[Cell]:
    starts = options.starts or (1 if options.quick else 5)
    limit = options.limit_minutes or LIMIT_MINUTES
    rank = 5 if options.quick else RANK
    cells = []
    for part, method, device, patients in parts(options):
        largest = float("inf") if options.largest is None else options.largest
        if part == "an iteration" or device == "cuda":
            largest *= SIZE_FACTOR
        if patients <= largest:
            shared = {"part": part, "patients": patients, "method": method, "device": device, "rank": rank}
            shared |= (OURS if method == "TASTE" else OTHERS) | {"limit_minutes": limit}
            shared["data_seed"] = options.seed
            cells += [
                {**shared, "seed": options.seed + start} for start in range(starts_of(part, method, starts))
            ]
    return cells


def parts(options: Options) -> list[tuple[str, str, str, int]]:
    """Return what is timed, the method, the device and the number of patients."""
    sizes, slow, large = ((40, 80), (40,), (120,)) if options.quick else (SIZES, PUBLISHED_SIZES, LARGE)
    device = options.device or "auto"
    found = [("to the tolerance", PUBLISHED, "cpu", size) for size in slow]
    found += [("to the tolerance", name, "cpu", size) for size in slow for name in ("TASTE", "CopaPlus")]
    found += [
        ("to the tolerance", name, "cpu", size)
        for size in sizes
        for name in ("TASTE", "CopaPlus")
        if size not in slow
    ]
    found += [("an iteration", name, "cpu", size) for size in large for name in ("TASTE", "CopaPlus")]
    if device == "cuda" or (device == "auto" and cuda_available()):
        found += [("to the tolerance", "TASTE", "cuda", size) for size in large]
    return sorted(found, key=lambda part: part[3])


def starts_of(part: str, method: str, starts: int) -> int:
    """Return the number of starts, fewer for slow cells with little variation."""
    if part == "an iteration":
        return 1
    return min(starts, PUBLISHED_STARTS) if method == PUBLISHED else starts


def cost(cell: Cell) -> float:
    if cell["method"] == PUBLISHED:
        return 90.0 * min(cell["patients"], PROBE)  # larger fits are rarely started
    share = {"an iteration": 0.15}.get(cell["part"], 1.0) * (0.02 if cell["device"] == "cuda" else 1.0)
    return float(cell["patients"]) * share


def run(cell: Cell, context: CellContext) -> Row:
    cohort = methods.repeated("CMS", cell["patients"], DRAWN, cell["data_seed"])
    callback = TimedCallback(60 * cell["limit_minutes"], context.on_progress)
    settings: dict[str, Any] = {"n_init": 1}
    settings |= {"dtype": "float32", "device": cell["device"]} if cell["method"] == "TASTE" else {}
    if cell["device"] == "cpu" and cell["patients"] <= DRAWN * 2:
        settings.pop("dtype", None)
    size = {"visits": cohort.n_visits, "entries": int(cohort.visits.nnz)}
    needed = bytes_needed(cell, cohort, settings)
    if cell["device"] == "cpu" and needed > free_memory():
        return {
            "outcome": "no memory",
            "iterations": 0,
            "load": load_average(),
            "gb_needed": needed / 1e9,
            **size,
        }
    warm_up(cell, cohort, context.threads, **settings)
    if cell["method"] == PUBLISHED and cell["patients"] > PROBE:
        expected = expected_iteration(cell, cohort, context)
        if expected["seconds_iteration"] > callback.limit:
            return {"outcome": "not started", "iterations": 0, "load": load_average(), **expected, **size}
    short = cell["part"] == "an iteration"
    settings |= {"tol": 0.0, "max_iter": ITERATIONS} if short else {"tol": TOL, "max_iter": MAX_ITER}
    model, taken = timed_fit(estimator(cell, context.threads, callback=callback, **settings), cohort)
    return {
        **taken,
        **callback.figures(),
        "iterations": model.n_iter_,
        "outcome": "stopped" if callback.stopped else str(model.outcome_),
        "objective": float(model.loss_curve_[-1]),
        "cpi": model.cpi_,
        **size,
    }


def bytes_needed(cell: Cell, cohort: Cohort, settings: dict[str, Any]) -> int:
    """Return the memory of a fit on the CPU, without the cohort."""
    if cell["method"] == "TASTE":
        return fit_bytes(estimator(cell, None, **settings), cohort)
    return int(3.2 * 8 * cohort.n_visits * cell["rank"])  # measured: Q, U and their intermediates


def expected_iteration(cell: Cell, cohort: Cohort, context: CellContext) -> Row:
    """Estimate the time of an iteration of the published algorithm, which is proportional to the visits."""
    sample = cohort[:PROBE]
    callback = TimedCallback(float("inf"))
    estimator(cell, context.threads, callback=callback, tol=0.0, max_iter=3).fit(sample)
    ratio = cohort.n_visits / sample.n_visits
    figures = callback.figures()
    return {name: ratio * figures[name] for name in ("seconds_iteration", "processor_iteration")}


class TimedCallback:
    """The callback of a timed fit: measures iterations, and stops the fit at a limit in seconds."""

    def __init__(self, limit: float, on_progress: Callable[[float], None] = lambda fraction: None) -> None:
        self.limit, self.on_progress, self.started = limit, on_progress, time.perf_counter()
        self.stamps: list[float] = []
        self.used: list[float] = []
        self.losses: list[float] = []
        self.stopped = False

    def __call__(self, progress: Progress) -> bool:
        self.stamps.append(time.perf_counter())
        self.used.append(processor_seconds())
        self.losses.append(progress.loss)
        elapsed = self.stamps[-1] - self.started
        self.on_progress(min(max(elapsed / self.limit, progress.iteration / progress.max_iter), 1.0))
        self.stopped = elapsed > self.limit
        return self.stopped

    def figures(self) -> Row:
        """Return medians over all iterations except the first, whose beginning is not observed."""
        several = len(self.stamps) > 1
        last_decrease = abs(self.losses[-2] - self.losses[-1]) / self.losses[-1] if several else float("nan")
        return {
            "seconds_iteration": float(np.median(np.diff(self.stamps))) if several else float("nan"),
            "processor_iteration": float(np.median(np.diff(self.used))) if several else float("nan"),
            "last_decrease": last_decrease,
        }


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    marked = results.assign(finished=(results["outcome"] == "converged").astype(float))
    keys = ["part", "patients", "method", "device"]
    measured = ["seconds", "processor_seconds", "iterations", "seconds_iteration", "processor_iteration"]
    if "gb_needed" not in marked:  # if memory was sufficient for all
        marked = marked.assign(gb_needed=np.nan)
    summary = summarise(marked, keys, [*measured, "cpi", "last_decrease", "finished", "gb_needed"])
    return summary.drop(columns=["finished_sd", "last_decrease_sd", "gb_needed_sd"])


PAPER_RATIO = 14  # Q2: of the times of Cohen+ and TASTE, at most
PAPER_SIZES = (125_000, 250_000, 500_000, 1_000_000)
PLANNED = (12_500, 25_000, 50_000, 100_000)
COMPLETE, PART = "to the tolerance", "an iteration"
ON_GPU: dict[str, Any] = {"color": GREEN, "marker": "D", "markersize": 4, "linewidth": 2.0, "zorder": 5}


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    on_gpu = table[table["device"] == "cuda"]
    drawn, axes = study_page.grid(1, 3 if len(on_gpu) else 2, width=4.0, height=3.0)
    complete, iteration = axes[0][:2]
    draw_panel(complete, table[(table["part"] == COMPLETE) & (table["device"] == "cpu")], "processor_seconds")
    draw_panel(iteration, table[table["device"] == "cpu"], "processor_iteration")
    set_labels(complete, "A fit to 1e-4", y="processor seconds")
    set_labels(iteration, "An iteration")
    if len(on_gpu):
        wall = axes[0][2]
        taste = table[(table["part"] == COMPLETE) & (table["method"] == "TASTE")]
        draw_panel(wall, taste[taste["device"] == "cpu"], "seconds")
        wall.plot(on_gpu["patients"], on_gpu["seconds_mean"], label="TASTE, on a GPU", **ON_GPU)
        label_sizes(wall, taste["patients"])
        set_labels(wall, "A fit to 1e-4, elapsed time", y="seconds")
    study_page.legend(drawn, axes)
    return drawn


def draw_panel(axis: "Axes", rows: "pd.DataFrame", measure: str) -> None:
    """Draw means against patients; an arrow is a fit that was stopped, a lower bound."""
    for method in sort_methods(rows["method"]):
        part = rows[rows["method"] == method]
        complete = part["finished_mean" if measure == "processor_seconds" else "iterations_mean"] > 0
        if complete.any():
            study_page.line(axis, part[complete], "patients", measure, method)
        stopped = part[(part["finished_mean"] == 0) & (part["iterations_mean"] > 0)]
        if measure == "processor_seconds" and len(stopped):
            style = {"color": study_page.STYLES[method]["color"], "marker": "$↑$", "s": 90}
            axis.scatter(stopped["patients"], stopped[f"{measure}_mean"], **style, zorder=6)
    axis.set_xscale("log")
    if rows[f"{measure}_mean"].notna().any():
        axis.set_yscale("log")
    label_sizes(axis, rows["patients"])


def label_sizes(axis: "Axes", patients: "pd.Series") -> None:
    """Label the sizes, except those whose labels would overlap."""
    labelled: list[int] = []
    sizes = sorted(int(size) for size in patients.unique())
    apart = 1.9 if len(sizes) < 6 else 3.9
    for size in sizes:
        if not labelled or size > apart * labelled[-1]:
            labelled.append(size)
    axis.set_xticks(labelled, [format_size(size) for size in labelled], fontsize=LABEL_SIZE)
    axis.minorticks_off()
    set_labels(axis, x="patients")


def format_size(size: int) -> str:
    """Return 12.5 k for 12500."""
    for unit, name in ((1_000_000, " M"), (1_000, " k")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return str(size)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    first = results[results["device"] == "cpu"].iloc[0]
    return f"""
## What was run

`simulate.ehr` in the shape of the paper's CMS data (284 features, 30 static ones, about 50 visits a patient), rank
{int(first["rank"])}, one start. Cohen+ is its authors' algorithm, in numpy on one core. The others have
{int(first["threads"])} threads. A fit that takes more than {first["limit_minutes"]:g} minutes is stopped and reported
as such.

{markdown(weights_used(results), ["", "weights", "λ", "μ"])}

Relative weights are those of TASTE's default objective.

{sizes_run(results)}

{load_sentence(results)}

## To the tolerance

{complete_fits(table)}

## Comparison with the paper

For {", ".join(f"{size:,}" for size in PAPER_SIZES)} patients the paper finds TASTE up to {PAPER_RATIO} times as fast as
Cohen+, in MATLAB with 12 workers for both. Measured, the ratio of Cohen+ as published to TASTE, in processor
seconds{estimate_note(table)}:

{ratios(table)}

The paper's {PAPER_RATIO} compares two programs in one language. Here TASTE is compiled and Cohen+'s authors' algorithm
is in numpy, so that much of the ratio is due to the implementation.

## Seconds per iteration

{iterations(table)}
"""


def weights_used(results: "pd.DataFrame") -> list[list[Any]]:
    """Return the weights of each method; COPA+ has no μ."""
    rows = results.drop_duplicates("method").set_index("method")[["weights", "lam", "mu"]]
    return [
        [
            LABELS[name],
            rows.at[name, "weights"],
            rows.at[name, "lam"],
            None if name == "CopaPlus" else rows.at[name, "mu"],
        ]
        for name in sort_methods(rows.index)
    ]


def load_sentence(results: "pd.DataFrame") -> str:
    """Return the load of the system, and where the rows of a GPU were measured."""
    cpu = results[results["device"] == "cpu"]
    low, high, cores = cpu["load"].min(), cpu["load"].max(), int(cpu["cores"].iloc[0])
    text = f"""Load average before each fit, including the study's own threads: {low:g} to {high:g} on {cores} cores.
Compare processor seconds, which depend least on other processes."""
    gpu = results[results["device"] == "cuda"]
    if len(gpu) and gpu["processor"].iloc[0] != cpu["processor"].iloc[0]:
        text += f""" The rows of the GPU were measured on another computer, whose processor has
{int(gpu["cores"].iloc[0])} cores."""
    return text


def estimate_note(table: "pd.DataFrame") -> str:
    """Return a note if some iteration was not measured but estimated from fewer patients."""
    return (
        " (for fits that were not started, from an iteration on fewer patients)"
        if ((table["iterations_mean"] == 0) & table["gb_needed_mean"].isna()).any()
        else ""
    )


def sizes_run(results: "pd.DataFrame") -> str:
    """Return the sizes and starts that were run, and the sizes of the complete study that were not."""
    sizes = sorted(int(size) for size in results["patients"].unique())
    starts = int(results[results["method"] == "TASTE"].groupby(["part", "patients", "device"]).size().max())
    missing = [f"{size:,}" for size in PLANNED if size not in sizes]
    large = [f"{size:,}" for size in PAPER_SIZES if size not in sizes]
    lines = [f"- run: {', '.join(f'{size:,}' for size in sizes)} patients, up to {starts} starts"]
    if missing:
        lines.append(f"- not run: fits of {', '.join(missing)} patients")
    if large:
        lines.append(f"- not run: iterations of {', '.join(large)} patients")
    if not (results["device"] == "cuda").any():
        lines.append("- no GPU was available; docs/gpu.md has measured times")
    return "\n".join(lines)


def complete_fits(table: "pd.DataFrame") -> str:
    rows = [
        [
            f"{int(row['patients']):,}",
            LABELS[row["method"]] + (", GPU" if row["device"] == "cuda" else ""),
            outcome(row),
            mean_sd(row["seconds_mean"], row["seconds_sd"]),
            mean_sd(row["processor_seconds_mean"], row["processor_seconds_sd"]),
            format_value(row["iterations_mean"], 3),
            format_value(row["cpi_mean"], 3),
        ]
        for _, row in table[table["part"] == COMPLETE].iterrows()
    ]
    header = ["patients", "", "converged", "seconds", "processor seconds", "iterations", "CPI"]
    return markdown(rows, header)


def outcome(row: "pd.Series") -> str:
    """Return the number of starts that converged; if none, the last relative decrease of the objective."""
    if row["gb_needed_mean"] > 0:
        return f"not started: requires {row['gb_needed_mean']:.0f} GB of memory"
    done = round(row["finished_mean"] * row["count"])
    if done:
        return f"{done} of {int(row['count'])}"
    if row["iterations_mean"] == 0:
        return f"not started: one iteration would take about {format_duration(row['seconds_iteration_mean'])}"
    if row["last_decrease_mean"] != row["last_decrease_mean"]:
        return "stopped after the first iteration"
    return f"stopped at a relative decrease of {row['last_decrease_mean']:.1e} per iteration"


def ratios(table: "pd.DataFrame") -> str:
    rows = []
    for size, part in table[(table["part"] == COMPLETE) & (table["device"] == "cpu")].groupby("patients"):
        by = part.set_index("method")
        if {"TASTE", PUBLISHED} <= set(by.index):
            complete = by["processor_seconds_mean"][PUBLISHED] / by["processor_seconds_mean"]["TASTE"]
            single = by["processor_iteration_mean"][PUBLISHED] / by["processor_iteration_mean"]["TASTE"]
            rows.append(
                [
                    f"{size:,}",
                    at_least(by, float(complete)),
                    format_value(float(single), 3),
                    f"up to {PAPER_RATIO}",
                ]
            )
    return markdown(rows, ["patients", "ratio to 1e-4", "ratio per iteration", "paper"])


def at_least(by: "pd.DataFrame", ratio: float) -> str:
    """Return the ratio of two complete fits, a lower bound if Cohen+ was stopped."""
    if by["finished_mean"]["TASTE"] == 0 or ratio != ratio:
        return "–"
    return f"{ratio:.0f}" if by["finished_mean"][PUBLISHED] > 0 else f"over {ratio:.0f}"


def iterations(table: "pd.DataFrame") -> str:
    rows = [
        [
            f"{int(row['patients']):,}",
            LABELS[row["method"]] + (", GPU" if row["device"] == "cuda" else ""),
            outcome(row) if row["gb_needed_mean"] > 0 else format_value(row["seconds_iteration_mean"], 3),
            format_value(row["processor_iteration_mean"], 3),
        ]
        for _, row in table.iterrows()
    ]
    return markdown(rows, ["patients", "", "seconds", "processor seconds"])
