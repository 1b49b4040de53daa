"""The paper's Q2: the time of TASTE, Cohen+ and COPA+ as a function of the number of patients."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.loop import Progress
from phenotaste.engines.cuda import cuda_available
from phenotaste.plan import fit_bytes
from phenotaste.runs.resources import free_memory, load_average, processor_seconds
from phenotaste.studies import cohorts, scale_page
from phenotaste.studies.methods import PUBLISHED, estimator, timed_fit, warm_up
from phenotaste.studies.results import summarise
from phenotaste.studies.study import Cell, CellContext, Options, Row

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAME = "scale"
TITLE = "More patients"
QUESTION = (
    "How long do TASTE, Cohen+ and COPA+ take until the relative decrease of the objective is below 1e-4, and how does "
    "that grow with the number of patients?"
)
TIMED = True
ACCEPTS = frozenset({"starts", "largest", "limit_minutes", "device"})

RANK, WEIGHT, TOL = 40, 0.1, 1e-4  # the paper's Q2; λ and μ are the middle of its grid of absolute weights
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
            shared |= {"weights": "absolute", "lam": WEIGHT, "mu": WEIGHT, "limit_minutes": limit}
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
    cohort = cohorts.repeated("CMS", cell["patients"], DRAWN, cell["data_seed"])
    callback = TimedCallback(60 * cell["limit_minutes"], context.on_progress)
    settings = {"dtype": "float32", "device": cell["device"]} if cell["method"] == "TASTE" else {}
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


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    return scale_page.figure(results, table)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    return scale_page.text(results, table)
