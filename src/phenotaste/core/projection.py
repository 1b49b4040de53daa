"""Patients under a fixed model: the patient step again and again, for each of them until its loss stops falling."""

import numpy as np
from numba import njit

from phenotaste.core.kernels.driver import start, step
from phenotaste.core.kernels.patient import Definitions
from phenotaste.core.kernels.scratch import Place
from phenotaste.core.kernels.sums import Tallies
from phenotaste.core.records import Array, Shard, Weights

FIRST_REACH, REACH_GROWTH, LONGEST_REACH = 0.5, 1.05, 0.99  # extrapolation: see `loop.fit`


def project(
    shard: Shard,
    first: int,
    last: int,
    weights: Weights,
    model: Definitions,
    courses: Array,
    exact: bool,
    tol: float,
    max_iter: int,
    place: Place,
) -> None:
    """Courses of patients first..last: start, then patient steps until each patient settles."""
    part, rows = cut(shard, first, last), slice(int(shard.offsets[first]), int(shard.offsets[last]))
    here = courses[rows]
    there = np.zeros_like(here)
    weights = Weights(weights.lam, weights.mu[first:last])
    K = last - first
    who, loss, before = np.arange(K), np.empty((K, 2)), np.full(K, np.inf)
    reach, longer = np.zeros(K), np.full(K, FIRST_REACH)
    no_tally = Tallies(1, 0, 0, len(model.plain)).emptied(0)
    start(part, 0, K, model.V, here, place.alone.B, place.desk.U)
    for _ in range(max_iter):
        step(part, who, weights, model, here, there, reach, exact, place, no_tally, loss)
        who = who[: settle(part.offsets, who, loss, before, reach, longer, tol, here, there)]
        if not who.size:
            break


def cut(shard: Shard, first: int, last: int) -> Shard:
    """Patients first..last as a shard of their own; nothing large is copied."""
    offsets = shard.offsets[first : last + 1]
    visits = shard.indptr[offsets[0] : offsets[-1] + 1]
    offsets = offsets - offsets[0]
    # An array that may be written to is another type than one that may not: everything would be compiled again.
    offsets.flags.writeable = shard.offsets.flags.writeable
    return Shard(shard.data, shard.indices, visits, offsets, shard.static[first:last])


@njit(cache=True, nogil=True)
def settle(
    offsets: Array,
    who: Array,
    loss: Array,
    before: Array,
    reach: Array,
    longer: Array,
    tol: float,
    here: Array,
    there: Array,
) -> int:
    """Take or refuse the step just made, patient by patient, reaching ahead as `loop.fit` does.

    Those who go on are moved to the front of `who`; returns how many they are.
    """
    left = 0
    for n in range(who.size):
        k = who[n]
        now, norm = loss[k, 0], loss[k, 1]
        if norm == 0.0:
            continue  # U is zero already
        if now > before[k] and reach[k] > 0.0:  # reached too far: stay here and take a plain step
            longer[k], reach[k] = longer[k] / 2, 0.0
        else:
            for i in range(offsets[k], offsets[k + 1]):
                for r in range(here.shape[1]):
                    here[i, r], there[i, r] = there[i, r], here[i, r]
            if before[k] - now < tol * max(now, 1e-12 * norm):
                continue
            reach[k], before[k] = longer[k], now
            longer[k] = min(longer[k] * REACH_GROWTH, LONGEST_REACH)
        who[left] = k
        left += 1
    return left
