"""The paper's Q1: RMSE, CPI and time of TASTE, Cohen+ and COPA+ for several ranks and weights."""

from typing import TYPE_CHECKING

from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.studies import cohorts, speed_page
from phenotaste.studies.methods import PUBLISHED, estimator, fitted, quality, warm
from phenotaste.studies.study import Cell, Options, Row, Work
from phenotaste.studies.summary import summarise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAME = "speed"
TITLE = "Fast, accurate, unique"
QUESTION = (
    "How well do TASTE, Cohen+ and COPA+ rebuild the data (RMSE), do they keep U_kᵀU_k the same for all patients "
    "(CPI), and how long does a fit take?"
)
TIMED = True
ACCEPTS = frozenset({"starts", "fraction", "synpuf"})

RANKS = (5, 10, 20, 40)
GRID = (0.01, 0.1, 1.0)  # λ and μ of TASTE and Cohen+; the paper's supplement
COPA_GRID = (0.1, 1.0, 10.0)  # λ of COPA+
MIDDLE = 0.1  # of the grid: where Cohen+ also runs as it was published, which is too slow for all of it
PUBLISHED_STARTS = 2  # at most, of that algorithm
FRACTION = 0.001  # of the paper's patients: what half an hour has room for
TOL, MOST_ITERATIONS = 1e-4, 200


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
    """Fewer where more would say nothing: on TASTE's core Cohen+ takes TASTE's steps, to the bit."""
    return min(starts, {"CohenPlus": 1, PUBLISHED: PUBLISHED_STARTS}.get(setting["method"], starts))


def sizes(options: Options) -> dict[str, int]:
    """Patients of each cohort; DE-SynPUF, where there is a folder, has as many as the CMS-shaped one, or all."""
    fraction = options.fraction or (0.0003 if options.quick else FRACTION)
    found = {name: max(round(fraction * shape.patients), 10) for name, shape in cohorts.SHAPES.items()}
    return found | ({} if options.synpuf is None else {cohorts.SYNPUF: found["CMS"]})


def settings(quick: bool) -> list[Cell]:
    """The grids; under absolute weights Cohen+ also runs by its authors' algorithm, in the middle of the grid."""
    grid, copa = ((MIDDLE,), (MIDDLE,)) if quick else (GRID, COPA_GRID)
    found: list[Cell] = []
    for weights in ("relative", "absolute"):
        for method in ("TASTE", "CohenPlus"):
            found += [
                {"method": method, "weights": weights, "lam": lam, "mu": mu} for lam in grid for mu in grid
            ]
        found += [{"method": "CopaPlus", "weights": weights, "lam": lam, "mu": None} for lam in copa]
    return [*found, {"method": PUBLISHED, "weights": "absolute", "lam": MIDDLE, "mu": MIDDLE}]


def cost(cell: Cell) -> float:
    return float(cell["rank"]) * (100.0 if cell["method"] == PUBLISHED else 1.0)


def run(cell: Cell, work: Work) -> Row:
    cohort = data_of(cell, work)
    warm(cell, cohort, work.threads)
    model, taken = fitted(estimator(cell, work.threads, tol=TOL, max_iter=MOST_ITERATIONS), cohort)
    size = {"patients_fitted": len(cohort), "visits": cohort.n_visits, "features": cohort.shape[1]}
    return {**quality(model, cohort), **taken, **size, "entries": int(cohort.visits.nnz)}


def data_of(cell: Cell, work: Work) -> Cohort:
    if cell["data"] != cohorts.SYNPUF:
        return cohorts.shaped(cell["data"], cell["patients"], cell["data_seed"])
    if work.options.synpuf is None:
        raise InputError("This cell needs the folder of DE-SynPUF: give it with --synpuf.")
    return cohorts.synpuf(work.options.synpuf, cell["patients"], cell["data_seed"])


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    keys = ["data", "rank", "method", "weights", "lam", "mu"]
    measured = ["rmse", "rmse_one", "cpi", "iterations", "seconds", "processor_seconds"]
    return summarise(results, keys, measured)


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    return speed_page.figure(results, table)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    return speed_page.text(results, table)
