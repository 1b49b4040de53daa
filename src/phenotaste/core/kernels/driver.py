"""The patient step over many patients, compiled: one visit to memory for each of them.

Each function works on some patients of a shard and releases the interpreter lock. There is one way to take the step
only, for fits and for projections, since every function that has it inside takes ten seconds to compile.
"""

import numpy as np
from numba import njit

from phenotaste.core.init import begin
from phenotaste.core.kernels.batched_patient import advance_one, aim_crowd, gather_crowd, score_crowd
from phenotaste.core.kernels.losses import loss_after, losses
from phenotaste.core.kernels.matmul import multiply_transposed
from phenotaste.core.kernels.patient import Definitions, advance, fetch, read_visits, solve_scores
from phenotaste.core.kernels.scratch import FEW, Alone, Crowd, Desk, Place
from phenotaste.core.kernels.simd import LANES
from phenotaste.core.kernels.sums import Tally, add
from phenotaste.core.records import KERNEL, Array, Shard, Weights


@njit(**KERNEL)
def start(shard: Shard, first: int, last: int, V: Array, courses: Array, B: Array, U: Array) -> None:
    """The starting courses, from the patients' visits and V; B and U are scratch for one patient."""
    for k in range(first, last):
        begin(shard, k, V, courses[shard.offsets[k] : shard.offsets[k + 1]], B, U)


def step(
    shard: Shard,
    who: Array,
    weights: Weights,
    model: Definitions,
    courses: Array,
    other: Array,
    reach: Array,
    exact: bool,
    place: Place,
    tally: Tally,
    loss: Array,
) -> None:
    """The patient step of the patients in `who`: `other` has the courses before these and gets the new ones.

    Addends go into `tally`; or, where `loss` has a row for every patient, each patient's loss and ‖X‖² go there.
    """
    before = (shard, who, weights, model, courses, other, reach, exact, place.desk)
    if courses.shape[1] <= FEW:
        step_in_crowds(*before, place.crowd, tally, loss)
    else:
        step_one_by_one(*before, place.alone, tally, loss)


@njit(**KERNEL)
def step_one_by_one(
    shard: Shard,
    who: Array,
    weights: Weights,
    model: Definitions,
    courses: Array,
    other: Array,
    reach: Array,
    exact: bool,
    desk: Desk,
    alone: Alone,
    tally: Tally,
    loss: Array,
) -> None:
    """`step` for any number of phenotypes."""
    for k in who:
        mu, U = weights.mu[k], courses[shard.offsets[k] : shard.offsets[k + 1]]
        new = other[shard.offsets[k] : shard.offsets[k + 1]]
        norm = advance(shard, k, mu, model, U, new, reach[k], exact, desk, alone)
        if loss.size == 0:
            add(shard, k, mu, norm, desk, tally)
        else:
            loss[k, 0], loss[k, 1] = loss_after(shard, k, mu, norm, alone.B, model, desk), norm


@njit(**KERNEL)
def step_in_crowds(
    shard: Shard,
    who: Array,
    weights: Weights,
    model: Definitions,
    courses: Array,
    other: Array,
    reach: Array,
    exact: bool,
    desk: Desk,
    crowd: Crowd,
    tally: Tally,
    loss: Array,
) -> None:
    """The same for few phenotypes, eight patients at a time."""
    R = courses.shape[1]
    for first in range(0, who.size, LANES):
        count = min(LANES, who.size - first)
        gather_crowd(shard, who, first, count, model, courses, other, reach, crowd)
        score_crowd(model, R, crowd, desk)
        aim_crowd(shard, who, first, count, model, crowd, desk)
        for s in range(count):
            k = who[first + s]
            mu, norm = weights.mu[k], crowd.norms[s]
            advance_one(s, k, shard, mu, model, other, exact, crowd, desk)
            if loss.size == 0:
                add(shard, k, mu, norm, desk, tally)
            else:
                B = crowd.B[crowd.rows[s] :]
                loss[k, 0], loss[k, 1] = loss_after(shard, k, mu, norm, B, model, desk), norm


@njit(cache=True, nogil=True)
def score(
    shard: Shard,
    first: int,
    last: int,
    weights: Weights,
    model: Definitions,
    courses: Array,
    W: Array,
    solve: bool,
    loss: Array,
    desk: Desk,
    alone: Alone,
) -> None:
    """Losses with the courses fixed, at the best scores (`solve`, written to W) or at those in W."""
    R = courses.shape[1]
    for k in range(first, last):
        now = courses[shard.offsets[k] : shard.offsets[k + 1]]
        norm = read_visits(shard, k, model.V, alone.B)
        fetch(now, desk.U)
        if solve:
            solve_scores(desk.U, len(now), shard.static[k], model, desk, alone)
            for r in range(R):
                W[k, r] = desk.w[r]
        else:
            multiply_transposed(desk.U, desk.U, R, len(now), desk.G)
            for r in range(R):
                desk.w[r] = W[k, r]
        losses(shard, k, weights.mu[k], norm, alone.B, model, desk, loss[k])


@njit(cache=True, nogil=True)
def patient_norms(shard: Shard) -> Array:
    """‖X_k‖² of every patient, each added up on its own."""
    norms = np.zeros(shard.offsets.size - 1)
    for k in range(norms.size):
        for n in range(shard.indptr[shard.offsets[k]], shard.indptr[shard.offsets[k + 1]]):
            norms[k] += np.float64(shard.data[n]) ** 2
    return norms


@njit(cache=True, nogil=True)
def cross_product_gaps(offsets: Array, courses: Array, HH: Array, gaps: Array) -> None:
    """‖U_kᵀU_k − HᵀH‖² for every patient."""
    R = HH.shape[0]
    G = np.empty((R, R))
    for k in range(gaps.size):
        for r in range(R):
            for s in range(R):
                G[r, s] = -HH[r, s]
        for i in range(offsets[k], offsets[k + 1]):
            for r in range(R):
                for s in range(R):
                    G[r, s] += np.float64(courses[i, r]) * np.float64(courses[i, s])
        gaps[k] = 0.0
        for r in range(R):
            for s in range(R):
                gaps[k] += G[r, s] * G[r, s]
