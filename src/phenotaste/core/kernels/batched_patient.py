"""The patient step of up to eight patients at a time, for small ranks: their R × R algebra runs in SIMD lanes.

Operations with a row per visit are those of `patient`. A patient's result does not depend, to the bit, on the patients
in the other lanes.
"""

from phenotaste.core.kernels.batched_inverse_sqrt import (
    congruent,
    inverse_sqrt_lanes,
    mirror,
    pack_lanes,
    unpack_lanes,
)
from phenotaste.core.kernels.batched_nnls import solve_lanes
from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.matmul import multiply, multiply_transposed
from phenotaste.core.kernels.patient import (
    PreparedModel,
    StepInputs,
    extrapolate_U,
    fill,
    read_visits,
    right_hand_side,
    solve_and_store_U,
    wide_gram,
)
from phenotaste.core.kernels.polar import SIGMA_FLOOR, polar_eigh
from phenotaste.core.kernels.scratch import BatchScratch, PatientScratch
from phenotaste.core.kernels.simd import LANES, load, round_up, splat, store
from phenotaste.core.records import Array, Shard


@part(inline=True)
def load_batch(inputs: StepInputs, active: Array, first: int, count: int, batch: BatchScratch) -> None:
    """What the scores and the polar factors need of each patient: B, U_start and its Gram matrix."""
    shard, weights, model = inputs.shard, inputs.weights, inputs.model
    R, row, side = inputs.U.shape[1], 0, batch.G.shape[1]
    for s in range(count):
        k = active[first + s]
        start, end = shard.offsets[k], shard.offsets[k + 1]
        U_start, B = batch.U_start[row:], batch.B[row:]
        batch.rows[s] = row
        batch.norms[s] = read_visits(shard, k, weights.scale[k], model.V, B)
        extrapolate_U(inputs.U[start:end], inputs.U_prev[start:end], inputs.beta[k], weights.unit, U_start)
        multiply_transposed(U_start, U_start, R, end - start, batch.G[s * side :])
        right_hand_side(U_start, B, end - start, shard.static[k], model.F, model.lam, batch.b[s])
        row += round_up(end - start)
    for s in range(count, LANES):
        fill(batch.G[s * side :], R, 0.0)
        fill(batch.b[s:], 1, 0.0)


@part(inline=True)
def solve_scores_batch(model: PreparedModel, R: int, batch: BatchScratch, scratch: PatientScratch) -> None:
    """w of all patients, from G and b."""
    width = batch.G.shape[1]
    pack_lanes(batch.G_flat, 0, R * width, batch.G_lanes)
    pack_lanes(batch.b, 0, width, batch.nnls.b)
    solve_lanes(batch.G_lanes, model.VV, model.FF, R, width, batch.nnls, scratch.passive, scratch.nnls)
    unpack_lanes(batch.nnls.x, 0, width, batch.w)


@part(inline=True)
def polar_targets_batch(
    shard: Shard,
    active: Array,
    first: int,
    count: int,
    model: PreparedModel,
    batch: BatchScratch,
    scratch: PatientScratch,
) -> None:
    """T of patients with at least R visits; for those with fewer, (M Mᵀ)^(-1/2) is stored in its place."""
    lanes, R, width = batch.inv_sqrt, scratch.passive.size, batch.G.shape[1]
    congruent(model.H_upper, batch.G_lanes, R, width, True, lanes.work, lanes.C)
    for s in range(count):
        k = active[first + s]
        visits = shard.offsets[k + 1] - shard.offsets[k]
        if visits < R:
            U_start = batch.U_start[batch.rows[s] :]
            wide_gram(U_start, visits, R, model.HH, scratch.U_T, scratch.rhs, scratch.square)
            for i in range(R):
                for j in range(i + 1):  # padding equals the first entry, which changes no bound
                    beyond = scratch.square[0, 0] if i == j else 0.0
                    lanes.C[i * width + j, s] = scratch.square[i, j] if i < visits else beyond
    inverse_sqrt_lanes(R, width, SIGMA_FLOOR**2, lanes)
    congruent(model.H_lower, lanes.inv_sqrt, R, width, False, lanes.work, batch.T_lanes)
    mirror(batch.T_lanes, R, width)
    unpack_lanes(batch.T_lanes, 0, R * width, batch.T_flat)
    for s in range(count):
        k = active[first + s]
        visits = shard.offsets[k + 1] - shard.offsets[k]
        if visits < R:
            for i in range(visits):
                for j in range(i + 1):
                    batch.T[s * width + i, j] = lanes.inv_sqrt[i * width + j, s]
                    batch.T[s * width + j, i] = lanes.inv_sqrt[i * width + j, s]


@part(inline=True)
def polar_target_lane(
    s: int, visits: int, mu: float, model: PreparedModel, batch: BatchScratch, scratch: PatientScratch
) -> None:
    """μ Q H of the patient in lane s, as in `patient.polar_target`."""
    R = scratch.passive.size
    width, U_start = batch.G.shape[1], batch.U_start[batch.rows[s] :]
    scratch.has_Q[0] = False
    if mu == 0.0:
        fill(scratch.mu_QH, visits, 0.0)
    elif not (model.well_conditioned and batch.inv_sqrt.valid[s]):
        scratch.has_Q[0] = True
        polar_eigh(U_start, visits, mu, model.H_unpadded, scratch.eigh, scratch.mu_Q, scratch.mu_QH)
    else:
        T = batch.T[s * width :]
        f = splat(mu)
        if visits < R:
            multiply(U_start, model.HH, visits, R, scratch.rhs)
            multiply(T, scratch.rhs, visits, visits, scratch.mu_QH)
        else:
            multiply(U_start, T, visits, R, scratch.mu_QH)
        for i in range(visits):
            for j in range(0, scratch.mu_QH.shape[1], LANES):
                store(scratch.mu_QH, (i, j), f * load(scratch.mu_QH, (i, j)))


@part(inline=True)
def finish_one(inputs: StepInputs, s: int, k: int, batch: BatchScratch, scratch: PatientScratch) -> None:
    """Complete the step of patient k in lane s; leaves in `scratch` what `patient.patient_step` leaves there."""
    start, end = inputs.shard.offsets[k], inputs.shard.offsets[k + 1]
    visits, row = end - start, batch.rows[s]
    for j in range(0, scratch.w.size, LANES):
        store(scratch.w, j, load(batch.w, (s, j)))
    if batch.norms[s] == 0.0:
        fill(inputs.U_prev[start:end], visits, 0.0)
        return
    polar_target_lane(s, visits, inputs.weights.mu[k], inputs.model, batch, scratch)
    solve_and_store_U(inputs, k, batch.U_start[row:], batch.B[row:], scratch)
