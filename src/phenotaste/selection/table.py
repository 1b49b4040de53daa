"""The table of a selection: stability, fit, uniqueness and time of each cell, from its finished fits."""

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import metrics
from phenotaste.engines.threads import one_blas_thread
from phenotaste.selection.fits import Result, SelectionFolder
from phenotaste.selection.grid import Cell, Grid, half_tasks
from phenotaste.selection.matching import MIN_COSINE, match

if TYPE_CHECKING:
    import pandas as pd

TIMES = ("seconds", "processor_seconds")


def grid_table(folder: SelectionFolder, grid: Grid, halves: int = 0) -> "pd.DataFrame":
    """One row for each cell, in the order of the grid; stability is NaN below two finished starts."""
    import pandas as pd

    with one_blas_thread():  # the bits must not depend on the number of threads
        return pd.DataFrame([cell_row(folder, grid, cell, halves) for cell in grid.cells])


def cell_row(folder: SelectionFolder, grid: Grid, cell: Cell, halves: int) -> dict[str, Any]:
    starts = {task.number: folder.load(task) for task in grid.starts(cell)}
    finished = {number: result for number, result in starts.items() if result is not None}
    row: dict[str, Any] = {
        **cell._asdict(),
        "starts": len(finished),
        "complete": len(finished) == len(starts),
    }
    row |= stability_columns(list(finished.values()))
    row |= fit_columns(finished)
    parts = [folder.load(task) for task in half_tasks(cell, halves)]
    if parts:
        row |= halves_columns(parts)
    for name in TIMES:
        row[name] = sum(result.figures[name] for result in [*finished.values(), *parts] if result is not None)
    return row


def stability_columns(results: Sequence[Result]) -> dict[str, Any]:
    """Return the paper's dissimilarity of the starts, its standard error and range, and the reproducibility."""
    names = (
        "dissimilarity",
        "dissimilarity_se",
        "dissimilarity_low",
        "dissimilarity_high",
        "matched",
        "reproducibility",
    )
    if len(results) < 2:
        return dict.fromkeys(names, np.nan)
    pairs = pairwise_dissimilarity([result.V for result in results])
    upper = pairs[np.triu_indices(len(pairs), 1)]
    best = min(range(len(results)), key=lambda n: objective_or_inf(results[n]))
    cosines = np.array([match(results[best], other).V for n, other in enumerate(results) if n != best])
    values = (
        upper.mean(),
        jackknife_error(pairs),
        upper.min(),
        upper.max(),
        cosines.mean(),
        (cosines >= MIN_COSINE).mean(axis=0).min(),
    )
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def pairwise_dissimilarity(definitions: Sequence[np.ndarray]) -> np.ndarray:
    pairs = np.zeros((len(definitions), len(definitions)))
    for a, b in combinations(range(len(definitions)), 2):
        pairs[a, b] = pairs[b, a] = metrics.dissimilarity(definitions[a], definitions[b])
    return pairs


def jackknife_error(pairs: np.ndarray) -> float:
    """Return the jackknife standard error of the mean over pairs, which are not independent: one start is left out."""
    n = len(pairs)
    if n < 3:
        return float("nan")
    without = (pairs.sum() - 2 * pairs.sum(axis=1)) / ((n - 1) * (n - 2))
    return float(np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))


def objective_or_inf(result: Result) -> float:
    """Return the key that orders the starts of a cell, as in a fit from several; a start without one comes last."""
    objective = result.figures["objective"]
    return np.inf if objective is None else float(objective)


def fit_columns(finished: dict[int, Result]) -> dict[str, Any]:
    """Return the means over the starts, and the values of the start with the lowest objective."""
    names = ("rmse", "cpi", "cpi_present", "objective")
    row: dict[str, Any] = {}
    for name in names:
        values = [result.figures[name] for result in finished.values() if result.figures[name] is not None]
        row[name] = float(np.mean(values)) if values else np.nan
    best = min(finished, key=lambda number: (objective_or_inf(finished[number]), number), default=None)
    for name in names:
        value = None if best is None else finished[best].figures[name]
        row[f"best_{name}"] = np.nan if value is None else value
    row["best_start"] = -1 if best is None else best
    row["converged"] = sum(result.figures["outcome"] == "converged" for result in finished.values())
    row["iterations"] = (
        float(np.mean([result.figures["iterations"] for result in finished.values()])) if finished else np.nan
    )
    return row


def halves_columns(halves: Sequence[Result | None]) -> dict[str, Any]:
    """Return how well the definitions of disjoint halves match, and the errors of held-out patients."""
    pairs = [
        (a, b) for a, b in zip(halves[::2], halves[1::2], strict=True) if a is not None and b is not None
    ]
    matched = [match(a, b) for a, b in pairs]
    row = replication("split_half_cosine", [found.V for found in matched])
    row |= replication("split_half_cosine_static", [found.F for found in matched if found.F is not None])
    finished = [result for result in halves if result is not None]
    for name in ("held_out_error", "fitted_error"):
        values = [result.figures[name] for result in finished if result.figures[name] is not None]
        row[name] = float(np.mean(values)) if values else np.nan
    return row


def replication(name: str, cosines: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the mean over splits of the mean cosine, and of that of the phenotype with the lowest one."""
    mean = float(np.mean(cosines)) if cosines else np.nan
    lowest = float(np.mean([values.min() for values in cosines])) if cosines else np.nan
    return {name: mean, f"{name}_min": lowest}


def write_table(folder: SelectionFolder, table: "pd.DataFrame") -> None:
    """Write table.csv, whose bits do not depend on interruptions, and the times, which differ, to times.csv."""
    cell = list(Cell._fields)
    folder.write("table.csv", table.drop(columns=list(TIMES)).to_csv(index=False))
    folder.write("times.csv", table[[*cell, "starts", *TIMES]].to_csv(index=False))
