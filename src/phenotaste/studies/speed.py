"""The paper's Q1: RMSE, CPI and time of TASTE, Cohen+ and COPA+ for several ranks and weights."""

from typing import TYPE_CHECKING

from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.studies import cohorts, speed_page
from phenotaste.studies.methods import PUBLISHED, estimator, quality, timed_fit, warm_up
from phenotaste.studies.results import summarise
from phenotaste.studies.study import Cell, CellContext, Options, Row

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
    """Return the number of starts; one for Cohen+ on TASTE's core, whose iterates are bitwise those of TASTE."""
    return min(starts, {"CohenPlus": 1, PUBLISHED: PUBLISHED_STARTS}.get(setting["method"], starts))


def sizes(options: Options) -> dict[str, int]:
    """Return the number of patients of each cohort; DE-SynPUF has at most as many as the CMS-shaped one."""
    fraction = options.fraction or (0.0003 if options.quick else FRACTION)
    sizes = {name: max(round(fraction * shape.patients), 10) for name, shape in cohorts.SHAPES.items()}
    return sizes | ({} if options.synpuf is None else {cohorts.SYNPUF: sizes["CMS"]})


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
    model, taken = timed_fit(estimator(cell, context.threads, tol=TOL, max_iter=MAX_ITER), cohort)
    size = {"patients_fitted": len(cohort), "visits": cohort.n_visits, "features": cohort.shape[1]}
    return {**quality(model, cohort), **taken, **size, "entries": int(cohort.visits.nnz)}


def cell_cohort(cell: Cell, context: CellContext) -> Cohort:
    if cell["data"] != cohorts.SYNPUF:
        return cohorts.shaped(cell["data"], cell["patients"], cell["data_seed"])
    if context.options.synpuf is None:
        raise InputError("This cell requires the folder of DE-SynPUF: give it with --synpuf.")
    return cohorts.synpuf(context.options.synpuf, cell["patients"], cell["data_seed"])


def table(results: "pd.DataFrame") -> "pd.DataFrame":
    keys = ["data", "rank", "method", "weights", "lam", "mu"]
    measured = ["rmse", "rmse_one", "cpi", "iterations", "seconds", "processor_seconds"]
    return summarise(results, keys, measured)


def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    return speed_page.figure(results, table)


def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
    return speed_page.text(results, table)
