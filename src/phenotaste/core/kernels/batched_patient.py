"""The patient step of up to eight patients at a time, for few phenotypes: their R × R algebra goes on in lanes.

Everything with a row for each visit stays as it is in `patient`. A patient's numbers depend on nobody else's, to the
bit, whoever is in the other lanes.
"""

from numba import njit

from phenotaste.core.kernels.batched_inverse_sqrt import (
    congruent,
    into_lanes,
    inverse_roots,
    mirror,
    out_of_lanes,
)
from phenotaste.core.kernels.batched_nnls import score_lanes
from phenotaste.core.kernels.matmul import multiply, multiply_transposed
from phenotaste.core.kernels.patient import (
    Definitions,
    fill,
    finish,
    reach_ahead,
    read_visits,
    right_hand_side,
    short_square,
)
from phenotaste.core.kernels.polar import SMALLEST, explicit_polar
from phenotaste.core.kernels.scratch import Crowd, Desk
from phenotaste.core.kernels.simd import LANES, load, splat, store, whole
from phenotaste.core.records import Array, Shard


@njit(inline="always")
def gather_crowd(
    shard: Shard,
    who: Array,
    first: int,
    count: int,
    model: Definitions,
    courses: Array,
    other: Array,
    reach: Array,
    crowd: Crowd,
) -> None:
    """What the scores and the polar factors need of each patient: B, old courses, their Gram matrix."""
    R, row, side = courses.shape[1], 0, crowd.G.shape[1]
    for s in range(count):
        k = who[first + s]
        start, end = shard.offsets[k], shard.offsets[k + 1]
        old, B = crowd.old[row:], crowd.B[row:]
        crowd.rows[s] = row
        crowd.norms[s] = read_visits(shard, k, model.V, B)
        reach_ahead(courses[start:end], other[start:end], reach[k], old)
        multiply_transposed(old, old, R, end - start, crowd.G[s * side :])
        right_hand_side(old, B, end - start, shard.static[k], model.F, model.lam, crowd.b[s])
        row += whole(end - start)
    for s in range(count, LANES):
        fill(crowd.G[s * side :], R, 0.0)
        fill(crowd.b[s:], 1, 0.0)


@njit(inline="always")
def score_crowd(model: Definitions, R: int, crowd: Crowd, desk: Desk) -> None:
    """w of all, from G and b."""
    width = crowd.G.shape[1]
    into_lanes(crowd.flat_G, 0, R * width, crowd.lanes_G)
    into_lanes(crowd.b, 0, width, crowd.scores.b)
    score_lanes(crowd.lanes_G, model.VV, model.FF, R, width, crowd.scores, desk.passive, desk.solve)
    out_of_lanes(crowd.scores.x, 0, width, crowd.w)


@njit(inline="always")
def aim_crowd(
    shard: Shard, who: Array, first: int, count: int, model: Definitions, crowd: Crowd, desk: Desk
) -> None:
    """T of all patients with as many visits as phenotypes, and (M Mᵀ)^(-1/2) in its place of those with fewer."""
    lanes, R, width = crowd.lanes, desk.passive.size, crowd.G.shape[1]
    congruent(model.upper, crowd.lanes_G, R, width, True, lanes.work, lanes.C)
    for s in range(count):
        k = who[first + s]
        visits = shard.offsets[k + 1] - shard.offsets[k]
        if visits < R:
            old = crowd.old[crowd.rows[s] :]
            short_square(old, visits, R, model.HH, desk.across, desk.right, desk.square)
            for i in range(R):
                for j in range(i + 1):  # beyond its visits, like the first entry, which changes no bound
                    beyond = desk.square[0, 0] if i == j else 0.0
                    lanes.C[i * width + j, s] = desk.square[i, j] if i < visits else beyond
    inverse_roots(R, width, SMALLEST**2, lanes)
    congruent(model.lower, lanes.root, R, width, False, lanes.work, crowd.lanes_T)
    mirror(crowd.lanes_T, R, width)
    out_of_lanes(crowd.lanes_T, 0, R * width, crowd.flat_T)
    for s in range(count):
        k = who[first + s]
        visits = shard.offsets[k + 1] - shard.offsets[k]
        if visits < R:
            for i in range(visits):
                for j in range(i + 1):
                    crowd.T[s * width + i, j] = lanes.root[i * width + j, s]
                    crowd.T[s * width + j, i] = lanes.root[i * width + j, s]


@njit(inline="always")
def pull(s: int, visits: int, mu: float, model: Definitions, crowd: Crowd, desk: Desk) -> None:
    """Where the uniqueness term pulls a patient: μ Q H, as in `patient.aim`."""
    R = desk.passive.size
    width, old = crowd.G.shape[1], crowd.old[crowd.rows[s] :]
    desk.explicit[0] = False
    if mu == 0.0:
        fill(desk.pull, visits, 0.0)
    elif not (model.sound and crowd.lanes.found[s]):
        desk.explicit[0] = True
        explicit_polar(old, visits, mu, model.plain, desk.eigen, desk.Q, desk.pull)
    else:
        T = crowd.T[s * width :]
        f = splat(mu)
        if visits < R:
            multiply(old, model.HH, visits, R, desk.right)
            multiply(T, desk.right, visits, visits, desk.pull)
        else:
            multiply(old, T, visits, R, desk.pull)
        for i in range(visits):
            for j in range(0, desk.pull.shape[1], LANES):
                store(desk.pull, (i, j), f * load(desk.pull, (i, j)))


@njit(inline="always")
def advance_one(
    s: int,
    k: int,
    shard: Shard,
    mu: float,
    model: Definitions,
    other: Array,
    exact: bool,
    crowd: Crowd,
    desk: Desk,
) -> None:
    """The rest of one patient's step, which leaves the same on the desk as `patient.advance`."""
    start, end = shard.offsets[k], shard.offsets[k + 1]
    visits, row = end - start, crowd.rows[s]
    for j in range(0, desk.w.size, LANES):
        store(desk.w, j, load(crowd.w, (s, j)))
    if crowd.norms[s] == 0.0:
        fill(other[start:end], visits, 0.0)
        fill(desk.U, visits, 0.0)
        return
    pull(s, visits, mu, model, crowd, desk)
    finish(crowd.old[row:], crowd.B[row:], visits, mu, exact, model, other[start:end], desk)
