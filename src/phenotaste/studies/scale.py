"""The paper's Q2: how long TASTE, Cohen+ and COPA+ take as patients grow more."""

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.loop import Progress
from phenotaste.engines.cuda import cuda_available
from phenotaste.plan import fit_bytes
from phenotaste.runs.resources import free_memory, load_average, processor_seconds
from phenotaste.studies import cohorts, scale_page
from phenotaste.studies.methods import PUBLISHED, estimator, fitted, warm
from phenotaste.studies.study import Cell, Options, Row, Work
from phenotaste.studies.summary import summarise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAME = "scale"
TITLE = "More patients"
QUESTION = (
    "How long do TASTE, Cohen+ and COPA+ take until the objective falls by less than 1e-4 of itself, and how does that "
    "grow with the number of patients?"
)
TIMED = True
ACCEPTS = frozenset({"starts", "largest", "limit_minutes", "device"})

RANK, WEIGHT, TOL = 40, 0.1, 1e-4  # the paper's Q2; λ and μ are the middle of its grid, in absolute terms
SIZES = (12_500, 25_000, 50_000, 100_000)  # to the tolerance, on the processor
PUBLISHED_SIZES = (250, 12_500)  # Cohen+ by its authors' algorithm, which ends within minutes on the first
PROBE = 250  # patients on which that algorithm's iteration is tried out before a larger fit begins
PUBLISHED_STARTS = 1
TIMES_LARGER = (
    10  # iterations, and fits on a GPU, are of so many times as many patients as fits on the processor
)
LARGE = (
    125_000,
    250_000,
    500_000,
    1_000_000,
)  # the paper's; a few iterations here, to the tolerance on a GPU
DRAWN = 50_000  # patients; larger cohorts repeat them
ITERATIONS = 4  # of a large cohort
LIMIT_MINUTES = 30.0
MOST_ITERATIONS = 200


def cells(options: Options) -> list[Cell]:
    starts = options.starts or (1 if options.quick else 5)
    limit = options.limit_minutes or LIMIT_MINUTES
    rank = 5 if options.quick else RANK
    found = []
    for part, method, device, patients in parts(options):
        most = float("inf") if options.largest is None else options.largest
        if part == "an iteration" or device == "cuda":
            most *= TIMES_LARGER
        if patients <= most:
            shared = {"part": part, "patients": patients, "method": method, "device": device, "rank": rank}
            shared |= {"weights": "absolute", "lam": WEIGHT, "mu": WEIGHT, "limit_minutes": limit}
            shared["data_seed"] = options.seed
            found += [
                {**shared, "seed": options.seed + start} for start in range(starts_of(part, method, starts))
            ]
    return found


def parts(options: Options) -> list[tuple[str, str, str, int]]:
    """What is timed, by which method, where, on how many patients."""
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
    """Fewer where a cell takes long and says little more the second time."""
    if part == "an iteration":
        return 1
    return min(starts, PUBLISHED_STARTS) if method == PUBLISHED else starts


def cost(cell: Cell) -> float:
    if cell["method"] == PUBLISHED:
        return 90.0 * min(cell["patients"], PROBE)  # beyond it few machines will begin
    share = {"an iteration": 0.15}.get(cell["part"], 1.0) * (0.02 if cell["device"] == "cuda" else 1.0)
    return float(cell["patients"]) * share


def run(cell: Cell, work: Work) -> Row:
    cohort = cohorts.repeated("CMS", cell["patients"], DRAWN, cell["data_seed"])
    watch = Watch(60 * cell["limit_minutes"], work)
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
    warm(cell, cohort, work.threads, **settings)
    if cell["method"] == PUBLISHED and cell["patients"] > PROBE:
        expected = expected_iteration(cell, cohort, work)
        if expected["seconds_iteration"] > watch.seconds:
            return {"outcome": "not begun", "iterations": 0, "load": load_average(), **expected, **size}
    short = cell["part"] == "an iteration"
    settings |= {"tol": 0.0, "max_iter": ITERATIONS} if short else {"tol": TOL, "max_iter": MOST_ITERATIONS}
    model, taken = fitted(estimator(cell, work.threads, callback=watch, **settings), cohort)
    return {
        **taken,
        **watch.figures(),
        "iterations": model.n_iter_,
        "outcome": "stopped" if watch.stopped else str(model.outcome_),
        "objective": float(model.loss_curve_[-1]),
        "cpi": model.cpi_,
        **size,
    }


def bytes_needed(cell: Cell, cohort: Cohort, settings: dict[str, Any]) -> int:
    """What a fit on the processor holds in memory beside the cohort."""
    if cell["method"] == "TASTE":
        return fit_bytes(estimator(cell, None, **settings), cohort)
    return int(3.2 * 8 * cohort.n_visits * cell["rank"])  # measured: Q, courses and what they are made from


def expected_iteration(cell: Cell, cohort: Cohort, work: Work) -> Row:
    """What an iteration of the published algorithm would take: it goes through the visits one patient after another."""
    few = cohort[:PROBE]
    watch = Watch(float("inf"), Work(work.options))
    estimator(cell, work.threads, callback=watch, tol=0.0, max_iter=3).fit(few)
    share = cohort.n_visits / few.n_visits
    figures = watch.figures()
    return {name: share * figures[name] for name in ("seconds_iteration", "processor_iteration")}


class Watch:
    """The callback of a timed fit: what an iteration takes, and an end when its time is over."""

    def __init__(self, seconds: float, work: Work) -> None:
        self.seconds, self.told, self.began = seconds, work.told, time.perf_counter()
        self.stamps: list[float] = []
        self.used: list[float] = []
        self.losses: list[float] = []
        self.stopped = False

    def __call__(self, now: Progress) -> bool:
        self.stamps.append(time.perf_counter())
        self.used.append(processor_seconds())
        self.losses.append(now.loss)
        passed = self.stamps[-1] - self.began
        self.told(min(max(passed / self.seconds, now.iteration / now.max_iter), 1.0))
        self.stopped = passed > self.seconds
        return self.stopped

    def figures(self) -> Row:
        """Medians over all iterations but the first, which begins before anybody looks."""
        several = len(self.stamps) > 1
        last = abs(self.losses[-2] - self.losses[-1]) / self.losses[-1] if several else float("nan")
        return {
            "seconds_iteration": float(np.median(np.diff(self.stamps))) if several else float("nan"),
            "processor_iteration": float(np.median(np.diff(self.used))) if several else float("nan"),
            "last_fall": last,
        }


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    marked = results.assign(finished=(results["outcome"] == "converged").astype(float))
    keys = ["part", "patients", "method", "device"]
    measured = ["seconds", "processor_seconds", "iterations", "seconds_iteration", "processor_iteration"]
    if "gb_needed" not in marked:  # where memory sufficed for all
        marked = marked.assign(gb_needed=np.nan)
    found = summarise(marked, keys, [*measured, "cpi", "last_fall", "finished", "gb_needed"])
    return found.drop(columns=["finished_sd", "last_fall_sd", "gb_needed_sd"])


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    return scale_page.figure(results, table)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    return scale_page.text(results, table)
