"""CNTF's alternation: S by minibatches of patients together with the recurrent network, then V."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.core import poisson
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array, Shard

if TYPE_CHECKING:
    from phenotaste.baselines._cntf_networks import Regulariser

EVALUATION_BATCH = 512


class Counts(NamedTuple):
    """Visits divided by `scale`, the mean visit total, so that β has the same meaning on all data."""

    data: Array
    indices: Array
    indptr: Array
    offsets: Array
    scale: float


class FitSettings(NamedTuple):
    beta: float
    batch_size: int
    pretrain: int  # iterations before the network regularises
    max_iter: int
    tol: float


class FitResult(NamedTuple):
    V: Array  # columns sum to one
    S: Array  # visits × R, in the units of the data
    losses: list[float]
    outcome: Outcome


def scaled_counts(shard: Shard, scale: float | None = None) -> Counts:
    """The visits divided by their mean total, or by the `scale` of a fitted model."""
    data = shard.data.astype(np.float64)
    if scale is None:
        scale = float(data.sum() / max(np.count_nonzero(np.diff(shard.indptr)), 1)) or 1.0
    return Counts(data / scale, shard.indices, shard.indptr, shard.offsets, scale)


def fit(
    counts: Counts,
    V: Array,
    regulariser: "Regulariser | None",
    settings: FitSettings,
    rng: np.random.Generator,
    callback: Callable[[int, float], object] | None = None,
) -> FitResult:
    """Alternate from definitions V whose columns sum to one.

    The network is trained from the first iteration and regularises after `pretrain` of them.
    """
    beta, batch_size, pretrain, max_iter, tol = settings
    S = initial_S(counts, V.shape[1])
    errors = None if regulariser is None else regulariser.errors
    losses: list[float] = []
    outcome = Outcome.MAX_ITER
    for iteration in range(1, max_iter + 1):
        T = np.zeros_like(V)
        for rows, expected, gradient, n_first in minibatches(counts, S, regulariser, batch_size, rng):
            weight = beta if iteration > pretrain and regulariser is not None else 0.0
            regularisation = poisson.Regularisation(expected, weight * gradient, n_first, weight)
            poisson.patient_step(poisson.CsrCounts(*counts[:3]), rows, V, S, regularisation, T)
        V = update_V(T, V)
        losses.append(float(patient_losses(counts, V, S, errors, beta).sum()))
        if not np.isfinite(losses[-1]):
            outcome = Outcome.NOT_FINITE
            break
        if callback is not None and callback(iteration, losses[-1]) is True:
            outcome = Outcome.STOPPED
            break
        if iteration > pretrain + 1 and abs(losses[-2] - losses[-1]) < tol * losses[-1]:
            outcome = Outcome.CONVERGED
            break
    return FitResult(V, counts.scale * S, losses, outcome)


def minibatches(
    counts: Counts, S: Array, regulariser: "Regulariser | None", batch_size: int, rng: np.random.Generator
) -> Iterator[tuple[Array, Array, Array, int]]:
    """(visits, their predictions, gradients of later errors, number of first visits); trains the network on each."""
    if regulariser is None:  # visits are then independent: one batch of all
        empty = np.zeros((0, S.shape[1]))
        yield np.arange(len(S)), empty, empty, len(S)
        return
    for rows, per_step in packed_batches(counts.offsets, batch_size, rng):
        expected, gradient = regulariser.train_step(S[rows], per_step)
        yield rows, expected, gradient, int(per_step[0])


def packed_batches(
    offsets: Array, batch_size: int, rng: np.random.Generator | None
) -> Iterator[tuple[Array, Array]]:
    """Packed visits of patients of similar length, and the number of them at each time step."""
    from phenotaste.baselines._recurrent import batches, packed_rows

    lengths = np.diff(offsets)
    for patients in batches(lengths, np.flatnonzero(lengths), batch_size, rng):
        rows, _, per_step = packed_rows(offsets, patients)
        yield rows, per_step


def update_V(T: Array, V: Array) -> Array:
    """The counts attributed to each phenotype, normalised; a phenotype with none keeps its definition."""
    totals = T.sum(axis=0)
    return np.where(totals > 0, T / np.where(totals > 0, totals, 1.0), V)


def initial_S(counts: Counts, rank: int) -> Array:
    """The total of each visit, divided equally among the phenotypes."""
    before = np.concatenate([[0.0], np.cumsum(counts.data)])
    sizes = np.diff(before[counts.indptr])
    return np.repeat(np.maximum(sizes, 0.0)[:, None] / rank, rank, axis=1)


def patient_losses(
    counts: Counts, V: Array, S: Array, errors: Callable[[Array, Array], Array] | None, beta: float
) -> Array:
    """The objective of each patient, patients × 2: minus its log likelihood, and β times its prediction errors.

    `errors` returns the squared prediction errors of packed visits. S is in units of the counts' scale, the objective
    in those of the data.
    """
    likelihood = np.empty(len(S))
    poisson.divergences(poisson.CsrCounts(*counts[:3]), V, S, likelihood)
    squared_errors = np.zeros(len(S))
    if errors is not None:
        for rows, per_step in packed_batches(counts.offsets, EVALUATION_BATCH, None):
            squared_errors[rows] = errors(S[rows], per_step)
    patient = np.repeat(np.arange(len(counts.offsets) - 1), np.diff(counts.offsets))
    sums = [
        np.bincount(patient, part, len(counts.offsets) - 1) for part in (likelihood, beta * squared_errors)
    ]
    return counts.scale * np.column_stack(sums)
