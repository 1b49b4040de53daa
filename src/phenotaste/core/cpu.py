"""The patient step over many patients, compiled: one visit to memory for each of them.

Each function works on patients first..last of a shard and releases the interpreter lock.
"""

import numpy as np
from numba import njit

from .patient import (
    Definitions,
    Desk,
    add,
    advance,
    begin,
    fetch,
    hand_over,
    loss_after,
    losses,
    new_desk,
    new_tally,
    read_visits,
    solve_scores,
)
from .products import multiply_transposed
from .records import Array, Shard, Sums, Weights

FIRST_REACH, REACH_GROWTH, LONGEST_REACH = 0.5, 1.05, 0.99  # extrapolation: see `loop.fit`


@njit(cache=True, nogil=True)
def desk_for(shard: Shard, first: int, last: int, R: int) -> Desk:
    visits = 1
    for k in range(first, last):
        visits = max(visits, shard.offsets[k + 1] - shard.offsets[k])
    return new_desk(visits, R)


@njit(cache=True, nogil=True)
def start(shard: Shard, first: int, last: int, model: Definitions, courses: Array) -> None:
    """The starting courses, from the patients' visits and the model."""
    desk = desk_for(shard, first, last, courses.shape[1])
    for k in range(first, last):
        begin(shard, k, model, courses[shard.offsets[k] : shard.offsets[k + 1]], desk)


@njit(cache=True, nogil=True)
def step(
    shard: Shard,
    first: int,
    last: int,
    weights: Weights,
    model: Definitions,
    courses: Array,
    previous: Array,
    reach: float,
    exact: bool,
    sums: Sums,
) -> None:
    """The patient step: `courses` and `previous` updated in place, addends into `sums`."""
    R = courses.shape[1]
    desk = desk_for(shard, first, last, R)
    tally = new_tally(sums.XU.shape[0], sums.AW.shape[0], R)
    for k in range(first, last):
        mu, U = weights.mu[k], courses[shard.offsets[k] : shard.offsets[k + 1]]
        before = previous[shard.offsets[k] : shard.offsets[k + 1]]
        norm = advance(shard, k, mu, model, U, before, reach, exact, desk)
        add(shard, k, mu, norm, desk, tally)
    hand_over(tally, model.lift, sums)


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
) -> None:
    """Losses with the courses fixed, at the best scores (`solve`, written to W) or at those in W."""
    R = courses.shape[1]
    desk = desk_for(shard, first, last, R)
    for k in range(first, last):
        now = courses[shard.offsets[k] : shard.offsets[k + 1]]
        norm = read_visits(shard, k, model.V, desk.B)
        fetch(now, desk.U)
        if solve:
            solve_scores(desk.U, len(now), shard.static[k], model, desk)
            W[k] = desk.w[:R]
        else:
            multiply_transposed(desk.U, desk.U, R, len(now), desk.G)
            desk.w[:R] = W[k]
        losses(shard, k, weights.mu[k], norm, model, desk, loss[k])


@njit(cache=True, nogil=True)
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
) -> None:
    """Courses under a fixed model: start, then patient steps until each patient settles."""
    desk = desk_for(shard, first, last, courses.shape[1])
    previous = np.empty((desk.U.shape[0], courses.shape[1]), courses.dtype)
    for k in range(first, last):
        U = courses[shard.offsets[k] : shard.offsets[k + 1]]
        begin(shard, k, model, U, desk)
        settle(shard, k, weights.mu[k], model, U, previous[: len(U)], exact, tol, max_iter, desk)


@njit(cache=True, nogil=True)
def settle(
    shard: Shard,
    k: int,
    mu: float,
    model: Definitions,
    U: Array,
    previous: Array,
    exact: bool,
    tol: float,
    max_iter: int,
    desk: Desk,
) -> None:
    """Patient steps for one patient until its loss stops falling, reaching ahead as `loop.fit` does."""
    before, reach, longer = np.inf, 0.0, FIRST_REACH
    for _ in range(max_iter):
        norm = advance(shard, k, mu, model, U, previous, reach, exact, desk)
        if norm == 0.0:
            return
        loss = loss_after(shard, k, mu, norm, model, desk)
        if loss > before and reach > 0.0:  # reached too far: go back and take a plain step
            U[:] = previous
            longer, reach = longer / 2, 0.0
            continue
        if before - loss < tol * max(loss, 1e-12 * norm):
            return
        reach = longer
        longer = min(longer * REACH_GROWTH, LONGEST_REACH)
        before = loss


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
        G[:] = -HH
        for i in range(offsets[k], offsets[k + 1]):
            for r in range(R):
                for s in range(R):
                    G[r, s] += np.float64(courses[i, r]) * np.float64(courses[i, s])
        gaps[k] = np.sum(G * G)
