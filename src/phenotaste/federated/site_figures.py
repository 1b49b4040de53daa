"""The closing look at a site: how well the model fits its patients, and for the report how many have what."""

from typing import Any

import numpy as np

from phenotaste.cohort.align import patients_having
from phenotaste.core.kernels.driver import cross_product_gaps
from phenotaste.core.records import Array, Scored
from phenotaste.federated.columns import Data
from phenotaste.federated.orders import Task


def figures_of(
    data: Data, task: Task, scored: Scored, static: float, fewest: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Counts and sums at the end; `static` is the static facts' part of the objective at weight one."""
    H, K, full = task.model.H, len(data.norms), data.norms > 0
    gaps = np.empty(K)
    cross_product_gaps(data.shard.offsets, scored.U, H.T @ H, gaps)
    temporal, static_having = patients_having(data.shard, len(task.model.V))
    short = (np.diff(data.shard.offsets) < len(H)) & full
    empty = not_few(int(np.sum(~full)), fewest)
    counts = {"short": not_few(int(short.sum()), fewest), "empty": empty, "counted": K - empty}
    arrays = {
        "parts": np.array([*scored.loss.sum(axis=0), static]),
        "gaps": np.array([gaps[full].sum()]),
        "score_totals": scored.W.sum(axis=0),
        "feature_patients": all_but_few(temporal, K, fewest),
        "static_patients": all_but_few(static_having, K, fewest),
    }
    return counts, arrays


def not_few(count: int, fewest: int) -> int:
    """A count that may be told; zero where it is of too few patients."""
    return count if count >= fewest else 0


def all_but_few(counts: Array, patients: int, fewest: int) -> Array:
    """How many have each feature; all where only a few have not."""
    return np.where((counts > 0) & (patients - counts < fewest), patients, counts).astype(np.float64)
