"""CNTF's alternation: patients by minibatches, the recurrent network with them, then the definitions."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phenotaste.core import poisson
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array, Shard

if TYPE_CHECKING:
    from phenotaste.baselines._temporal import Regulariser

EVALUATION_BATCH = 512


class Counts(NamedTuple):
    """Visits in units of `scale`, the mean size of a visit, so that the regulariser means the same on all data."""

    data: Array
    indices: Array
    indptr: Array
    offsets: Array
    scale: float


class Fitted(NamedTuple):
    V: Array  # columns add up to one
    S: Array  # visits × R, in the data's own units
    losses: list[float]
    outcome: Outcome


def counts_of(shard: Shard, scale: float | None = None) -> Counts:
    """The visits by their mean size, or by that of the cohort a model was fitted on."""
    data = shard.data.astype(np.float64)
    if scale is None:
        scale = float(data.sum() / max(np.count_nonzero(np.diff(shard.indptr)), 1)) or 1.0
    return Counts(data / scale, shard.indices, shard.indptr, shard.offsets, scale)


def fit(
    counts: Counts,
    V: Array,
    regulariser: "Regulariser | None",
    *,
    beta: float,
    batch_size: int,
    pretrain: int,
    max_iter: int,
    tol: float,
    rng: np.random.Generator,
    callback: Callable[[int, float], object] | None = None,
) -> Fitted:
    """From definitions V whose columns add up to one; the network learns from the start and regularises after
    `pretrain` iterations."""
    S = equal_shares(counts, V.shape[1])
    errors = None if regulariser is None else regulariser.errors
    losses: list[float] = []
    outcome = Outcome.MAX_ITER
    for iteration in range(1, max_iter + 1):
        T = np.zeros_like(V)
        for rows, expected, slope, n_first in steps(counts, S, regulariser, batch_size, rng):
            weight = beta if iteration > pretrain and regulariser is not None else 0.0
            poisson.patient_step(*counts[:3], rows, V, S, expected, weight * slope, n_first, weight, T)
        V = definitions(T, V)
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
    return Fitted(V, counts.scale * S, losses, outcome)


def steps(
    counts: Counts, S: Array, regulariser: "Regulariser | None", batch_size: int, rng: np.random.Generator
) -> Iterator[tuple[Array, Array, Array, int]]:
    """Minibatches: which visits, what is expected of them, how they bear on later ones, how many are first ones."""
    if regulariser is None:  # visits then have nothing to do with each other
        nothing = np.zeros((0, S.shape[1]))
        yield np.arange(len(S)), nothing, nothing, len(S)
        return
    for rows, per_step in packed(counts.offsets, batch_size, rng):
        expected, slope = regulariser.learn(S[rows], per_step)
        yield rows, expected, slope, int(per_step[0])


def packed(offsets: Array, batch_size: int, rng: np.random.Generator | None) -> Iterator[tuple[Array, Array]]:
    """The visits of patients of similar length, and how many there are at each time step."""
    from phenotaste.baselines._recurrent import batches, packed_rows

    lengths = np.diff(offsets)
    for patients in batches(lengths, np.flatnonzero(lengths), batch_size, rng):
        rows, _, per_step = packed_rows(offsets, patients)
        yield rows, per_step


def definitions(T: Array, V: Array) -> Array:
    """What the counts shared out to each phenotype consist of; a phenotype without any stays as it is."""
    totals = T.sum(axis=0)
    return np.where(totals > 0, T / np.where(totals > 0, totals, 1.0), V)


def equal_shares(counts: Counts, rank: int) -> Array:
    before = np.concatenate([[0.0], np.cumsum(counts.data)])
    sizes = np.diff(before[counts.indptr])
    return np.repeat(np.maximum(sizes, 0.0)[:, None] / rank, rank, axis=1)


def patient_losses(
    counts: Counts, V: Array, S: Array, errors: Callable[[Array, Array], Array] | None, beta: float
) -> Array:
    """The objective of each patient, patients × 2: minus its log likelihood, and β times its surprises.

    `errors` says how far packed visits are from what was expected. S is in units of the counts' scale, the objective
    in those of the data.
    """
    likelihood = np.empty(len(S))
    poisson.divergences(*counts[:3], V, S, likelihood)
    surprise = np.zeros(len(S))
    if errors is not None:
        for rows, per_step in packed(counts.offsets, EVALUATION_BATCH, None):
            surprise[rows] = errors(S[rows], per_step)
    patient = np.repeat(np.arange(len(counts.offsets) - 1), np.diff(counts.offsets))
    sums = [np.bincount(patient, part, len(counts.offsets) - 1) for part in (likelihood, beta * surprise)]
    return counts.scale * np.column_stack(sums)
