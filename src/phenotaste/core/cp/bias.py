"""CP-APR with a rank-one bias, strictly positive, and a threshold on A and B that grows during the fit.

J. C. Ho, J. Ghosh, J. Sun: "Marble: high-throughput phenotyping from electronic health records via sparse nonnegative
tensor factorization", KDD 2014. x ~ Poisson(Σ_r w_r ∘ a_r ∘ b_r + u ∘ c ∘ d); signal and bias alternate in each factor.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.cp.apr import (
    AprOptions,
    Passes,
    cp_apr,
    normalise,
    padded,
    random_start,
    settled,
    unpadded,
    update_factor,
    zero_small,
)
from phenotaste.core.cp.counts import Factors
from phenotaste.core.loop import Outcome

MIN_BIAS = 1e-6  # of an entry of the bias, as a part of the mean entry: it is strictly positive
WARM_UP = 20  # iterations without a bias at first; from random entries a bias often takes a phenotype
START_SHARE = 0.5  # of the counts of each patient in the first bias
NO_LOSS = 1e-9  # divergences below this part of the counts are rounding
GROWN = 0.999  # a threshold of this part of the final one is replaced by the final one


class BiasFit(NamedTuple):
    factors: Factors  # R columns of the signal and, last, the bias; A and B have columns that sum to one
    losses: list[float]  # Kullback–Leibler divergence after each iteration
    outcome: Outcome


def warm_start(passes: Passes, rank: int, options: AprOptions, rng: np.random.Generator) -> Factors:
    """The signal after a few iterations of CP-APR from random entries, and the margins of the tensor as bias."""
    counts = passes.counts
    start = random_start(counts.shape, rank, rng)
    W, A, B = cp_apr(passes, start, options._replace(max_iter=WARM_UP)).factors
    margins = [
        np.bincount(position, counts.values, n)
        for position, n in zip((counts.patients, counts.a, counts.b), counts.shape, strict=True)
    ]
    total = counts.values.sum()
    return Factors(
        np.column_stack([(1.0 - START_SHARE) * W, START_SHARE * margins[0]]),
        np.column_stack([A, margins[1] / total]),
        np.column_stack([B, margins[2] / total]),
    )


def fit(passes: Passes, start: Factors, threshold: float, options: AprOptions) -> BiasFit:
    """Alternate signal and bias in each of the three factors; `start` has the bias in its last column, positive.

    The entries below the threshold are zero from then on. As the threshold grows, the divergence may rise.
    """
    factors = Factors(*(padded(factor) for factor in start))
    weights = np.prod([normalise(factor) for factor in factors], axis=0)
    R = start.W.shape[1] - 1
    losses: list[float] = []
    grown = 0.0
    outcome = Outcome.MAX_ITER
    while outcome is Outcome.MAX_ITER and len(losses) < options.max_iter:
        updates = 0
        for mode, factor in enumerate(factors):
            factor *= weights
            updates += update_signal(passes, factors, mode, R, grown * threshold, options)
            updates += update_bias(passes, factors, mode, R, len(start[mode]), options)
            weights = normalise(factor)
        losses.append(passes.divergence(factors._replace(B=factors.B * weights)))
        if not np.isfinite(losses[-1]):
            outcome = Outcome.NOT_FINITE
        elif grown == 1.0 and (updates == 0 or settled(losses, options.loss_tol)):
            outcome = Outcome.CONVERGED
        grown = next_grown(grown, losses, NO_LOSS * passes.counts.values.sum())
    W, A, B = unpadded(factors, weights, start)
    for factor in (A, B):
        factor[:, :R] = zero_small(factor[:, :R], threshold)
    return BiasFit(Factors(W, A, B), losses, outcome)


def update_signal(
    passes: Passes, factors: Factors, mode: int, R: int, threshold: float, options: AprOptions
) -> int:
    """The signal of one factor, in A and B without entries below the threshold; returns the number of updates."""
    updates = update_factor(passes, factors, mode, options, slice(0, R), keep_zeros=True)[2]
    if mode > 0 and threshold > 0.0:
        signal = factors[mode][:, :R]
        sizes = signal.sum(axis=0)
        signal[:] = zero_small(signal / np.where(sizes > 0, sizes, 1.0), threshold) * sizes
    return updates


def update_bias(passes: Passes, factors: Factors, mode: int, R: int, n: int, options: AprOptions) -> int:
    """The bias of one factor, of which all n entries remain positive; returns the number of updates."""
    updates = update_factor(passes, factors, mode, options, slice(R, R + 1))[2]
    bias = factors[mode][:n, R]
    np.maximum(bias, MIN_BIAS * bias.mean(), out=bias)
    return updates


def next_grown(grown: float, losses: list[float], no_loss: float) -> float:
    """The part of the final threshold in the next iteration: the less the divergence changes, the closer to 1."""
    if len(losses) < 2:
        return 0.0
    still = 1.0 - min(1.0, abs(losses[-2] - losses[-1]) / max(losses[-2], no_loss))
    grown = max(grown, 0.5 * grown + 0.5 * still)
    return 1.0 if grown > GROWN else grown
