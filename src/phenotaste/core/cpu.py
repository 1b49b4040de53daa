"""The patient step over many patients, compiled: one visit to memory for each of them.

Each function works on patients first..last of a shard and releases the interpreter lock.
"""

import numpy as np
from numba import njit

from .patient import (
    Definitions,
    Desk,
    Tally,
    add,
    advance,
    begin,
    fetch,
    loss_after,
    losses,
    read_visits,
    solve_scores,
)
from .products import multiply_transposed
from .records import Array, Shard, Weights

FIRST_REACH, REACH_GROWTH, LONGEST_REACH = 0.5, 1.05, 0.99  # extrapolation: see `loop.fit`


@njit(cache=True, nogil=True)
def start(shard: Shard, first: int, last: int, model: Definitions, courses: Array, desk: Desk) -> None:
    """The starting courses, from the patients' visits and the model."""
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
    other: Array,
    reach: float,
    exact: bool,
    desk: Desk,
    tally: Tally,
) -> None:
    """The patient step: `other` has the courses before these and gets the new ones, addends go into `tally`."""
    for k in range(first, last):
        mu, U = weights.mu[k], courses[shard.offsets[k] : shard.offsets[k + 1]]
        new = other[shard.offsets[k] : shard.offsets[k + 1]]
        norm = advance(shard, k, mu, model, U, new, reach, exact, desk)
        add(shard, k, mu, norm, desk, tally)


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
) -> None:
    """Losses with the courses fixed, at the best scores (`solve`, written to W) or at those in W."""
    R = courses.shape[1]
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


@njit(inline="always")
def settle(
    shard: Shard,
    k: int,
    mu: float,
    model: Definitions,
    U: Array,
    other: Array,
    exact: bool,
    tol: float,
    max_iter: int,
    desk: Desk,
) -> None:
    """Patient steps for one patient until its loss stops falling, reaching ahead as `loop.fit` does."""
    before, reach, longer = np.inf, 0.0, FIRST_REACH
    here, there, moved = U, other, False
    for _ in range(max_iter):
        norm = advance(shard, k, mu, model, here, there, reach, exact, desk)
        if norm == 0.0:
            break  # U is zero already
        loss = loss_after(shard, k, mu, norm, model, desk)
        if loss > before and reach > 0.0:  # reached too far: stay here and take a plain step
            longer, reach = longer / 2, 0.0
            continue
        here, there, moved = there, here, not moved
        if before - loss < tol * max(loss, 1e-12 * norm):
            break
        reach = longer
        longer = min(longer * REACH_GROWTH, LONGEST_REACH)
        before = loss
    if moved:
        U[:] = here


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
    desk: Desk,
) -> None:
    """Courses under a fixed model: start, then patient steps until each patient settles."""
    other = np.empty((desk.U.shape[0], courses.shape[1]), courses.dtype)
    for k in range(first, last):
        U = courses[shard.offsets[k] : shard.offsets[k + 1]]
        begin(shard, k, model, U, desk)
        settle(shard, k, weights.mu[k], model, U, other[: len(U)], exact, tol, max_iter, desk)


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
