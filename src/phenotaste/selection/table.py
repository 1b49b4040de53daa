"""From finished fits to a row for each cell of the grid: stability, fit, uniqueness, time."""

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from phenotaste import metrics
from phenotaste.engines.threads import one_blas_thread
from phenotaste.selection.files import Result
from phenotaste.selection.folder import Folder
from phenotaste.selection.grid import HALF, Cell, Grid, Task
from phenotaste.selection.matching import FOUND, matched

if TYPE_CHECKING:
    import pandas as pd

TIMES = ("seconds", "processor_seconds")


def table_of(folder: Folder, grid: Grid, holdout: int = 0) -> "pd.DataFrame":
    """One row for each cell, in the order of the grid; cells without two finished starts have no stability."""
    import pandas as pd

    with one_blas_thread():  # the bits must not depend on how many there are
        return pd.DataFrame([row_of(folder, grid, cell, holdout) for cell in grid.cells])


def row_of(folder: Folder, grid: Grid, cell: Cell, holdout: int) -> dict[str, Any]:
    starts = {task.number: folder.result(task) for task in grid.starts(cell)}
    finished = {number: result for number, result in starts.items() if result is not None}
    row: dict[str, Any] = {
        **cell._asdict(),
        "starts": len(finished),
        "complete": len(finished) == len(starts),
    }
    row |= stability(list(finished.values()))
    row |= figures(finished)
    if holdout:
        halves = [folder.result(Task(HALF, *cell, number)) for number in range(2 * holdout)]
        row |= unseen(halves)
    for name in TIMES:
        row[name] = sum(result.figures[name] for result in finished.values())
    return row


def stability(results: Sequence[Result]) -> dict[str, Any]:
    """How alike the starts of a cell are: the paper's dissimilarity with its spread, and how all phenotypes fare."""
    names = (
        "dissimilarity",
        "dissimilarity_se",
        "dissimilarity_low",
        "dissimilarity_high",
        "matched",
        "found_again",
    )
    if len(results) < 2:
        return dict.fromkeys(names, np.nan)
    pairs = pairwise_dissimilarity([result.V for result in results])
    upper = pairs[np.triu_indices(len(pairs), 1)]
    best = min(range(len(results)), key=lambda n: order_of(results[n]))
    cosines = np.array([matched(results[best], other).V for n, other in enumerate(results) if n != best])
    values = (
        upper.mean(),
        jackknife_error(pairs),
        upper.min(),
        upper.max(),
        cosines.mean(),
        (cosines >= FOUND).mean(axis=0).min(),
    )
    return {name: float(value) for name, value in zip(names, values, strict=True)}


def pairwise_dissimilarity(definitions: Sequence[np.ndarray]) -> np.ndarray:
    found = np.zeros((len(definitions), len(definitions)))
    for a, b in combinations(range(len(definitions)), 2):
        found[a, b] = found[b, a] = metrics.dissimilarity(definitions[a], definitions[b])
    return found


def jackknife_error(pairs: np.ndarray) -> float:
    """Standard error of the mean over pairs, by leaving out one start at a time: pairs are not independent."""
    n = len(pairs)
    if n < 3:
        return float("nan")
    without = (pairs.sum() - 2 * pairs.sum(axis=1)) / ((n - 1) * (n - 2))
    return float(np.sqrt((n - 1) / n * np.sum((without - without.mean()) ** 2)))


def order_of(result: Result) -> float:
    """Starts of one cell from best to worst, as the paper has it: by RMSE; a start without one comes last."""
    rmse = result.figures["rmse"]
    return np.inf if rmse is None else float(rmse)


def figures(finished: dict[int, Result]) -> dict[str, Any]:
    """Means over the starts, and those of the start with the lowest RMSE."""
    names = ("rmse", "cpi", "objective")
    row: dict[str, Any] = {}
    for name in names:
        values = [result.figures[name] for result in finished.values() if result.figures[name] is not None]
        row[name] = float(np.mean(values)) if values else np.nan
    best = min(finished, key=lambda number: (order_of(finished[number]), number), default=None)
    for name in names:
        value = None if best is None else finished[best].figures[name]
        row[f"best_{name}"] = np.nan if value is None else value
    row["best_start"] = -1 if best is None else best
    row["converged"] = sum(result.figures["outcome"] == "converged" for result in finished.values())
    row["iterations"] = (
        float(np.mean([result.figures["iterations"] for result in finished.values()])) if finished else np.nan
    )
    return row


def unseen(halves: Sequence[Result | None]) -> dict[str, Any]:
    """Hold-out: error on patients not fitted, on those fitted, and how alike two disjoint halves' definitions are."""
    there = [result for result in halves if result is not None]
    row: dict[str, Any] = {}
    for name in ("unseen_error", "seen_error"):
        values = [result.figures[name] for result in there if result.figures[name] is not None]
        row[name] = float(np.mean(values)) if values else np.nan
    pairs = [
        (a, b) for a, b in zip(halves[::2], halves[1::2], strict=True) if a is not None and b is not None
    ]
    cosines = [matched(a, b).V for a, b in pairs]
    row["halves_alike"] = float(np.mean(cosines)) if cosines else np.nan
    row["halves_least"] = float(np.mean([found.min() for found in cosines])) if cosines else np.nan
    return row


def write_table(folder: Folder, table: "pd.DataFrame") -> None:
    """table.csv, the same bit for bit however often the run was broken; times differ, so they are in times.csv."""
    cell = list(Cell._fields)
    folder.put("table.csv", table.drop(columns=list(TIMES)).to_csv(index=False))
    folder.put("times.csv", table[[*cell, "starts", *TIMES]].to_csv(index=False))
