"""The patient step over many patients, compiled: each patient's data is read from memory once.

Each function processes some patients of a shard and releases the interpreter lock. Fits and projections share one
function per kind of step, since each function that inlines the step takes ten seconds to compile.
"""

import numpy as np

from phenotaste.core.init import init_patient
from phenotaste.core.kernels.batched_patient import (
    finish_one,
    load_batch,
    polar_targets_batch,
    solve_scores_batch,
)
from phenotaste.core.kernels.jit import kernel
from phenotaste.core.kernels.losses import cross_product_gap, losses, no_losses, step_loss
from phenotaste.core.kernels.matmul import multiply_transposed
from phenotaste.core.kernels.patient import (
    PreparedModel,
    StepInputs,
    load_padded,
    patient_step,
    read_visits,
    solve_scores,
)
from phenotaste.core.kernels.scratch import (
    BATCH_MAX_RANK,
    BatchScratch,
    PatientScratch,
    SingleScratch,
    ThreadScratch,
)
from phenotaste.core.kernels.simd import LANES, aligned_matrix
from phenotaste.core.kernels.sums import BlockSums, add_patient
from phenotaste.core.records import Array, Scored, Shard, Weights


@kernel
def init_U(
    shard: Shard, scale: Array, first: int, last: int, V: Array, U: Array, B: Array, work: Array
) -> None:
    """Initial U of patients first..last, from their visits and V; B and `work` are scratch for one patient."""
    for k in range(first, last):
        init_patient(shard, k, scale[k], V, U[shard.offsets[k] : shard.offsets[k + 1]], B, work)


def step(inputs: StepInputs, active: Array, scratch: ThreadScratch, sums: BlockSums, loss: Array) -> None:
    """The patient step of the patients in `active`; `inputs.U_prev` is overwritten with the new U.

    The patients are added to `sums`; or, where `loss` has a row per patient, it receives each one's loss and ‖X‖².
    """
    if inputs.U.shape[1] <= BATCH_MAX_RANK:
        step_batched(inputs, active, scratch.patient, scratch.batch, sums, loss)
    else:
        step_single(inputs, active, scratch.patient, scratch.single, sums, loss)


@kernel
def step_single(
    inputs: StepInputs,
    active: Array,
    scratch: PatientScratch,
    single: SingleScratch,
    sums: BlockSums,
    loss: Array,
) -> None:
    """`step` one patient at a time, for any rank."""
    for k in active:
        norm = patient_step(inputs, k, scratch, single)
        if loss.size == 0:
            add_patient(inputs.shard, k, inputs.weights, norm, scratch, sums)
        else:
            loss[k, 0], loss[k, 1] = step_loss(inputs, k, norm, single.B, scratch), norm


@kernel
def step_batched(
    inputs: StepInputs,
    active: Array,
    scratch: PatientScratch,
    batch: BatchScratch,
    sums: BlockSums,
    loss: Array,
) -> None:
    """`step` eight patients at a time, for small ranks."""
    shard, model = inputs.shard, inputs.model
    for first in range(0, active.size, LANES):
        count = min(LANES, active.size - first)
        load_batch(inputs, active, first, count, batch)
        solve_scores_batch(model, inputs.U.shape[1], batch, scratch)
        polar_targets_batch(shard, active, first, count, model, batch, scratch)
        for s in range(count):
            k, norm = active[first + s], batch.norms[s]
            finish_one(inputs, s, k, batch, scratch)
            if loss.size == 0:
                add_patient(shard, k, inputs.weights, norm, scratch, sums)
            else:
                loss[k, 0], loss[k, 1] = step_loss(inputs, k, norm, batch.B[batch.rows[s] :], scratch), norm


@kernel(allocates=True)
def score(
    shard: Shard,
    weights: Weights,
    model: PreparedModel,
    scored: Scored,
    active: Array,
    solve: bool,
    scratch: PatientScratch,
    single: SingleScratch,
) -> None:
    """Losses and gaps of the patients in `active` at their U, with the best W (`solve`) or the one in `scored`.

    With `solve`, patients without a history have no part in the objective: their scores and losses are zero.
    """
    R = scored.U.shape[1]
    for k in active:
        U = scored.U[shard.offsets[k] : shard.offsets[k + 1]]
        norm = read_visits(shard, k, weights.scale[k], model.V, single.B)
        if solve and norm == 0.0:
            no_losses(k, scored)
            continue
        load_padded(U, scratch.U)
        if solve:
            solve_scores(scratch.U, len(U), shard.static[k], model, scratch, single)
            for r in range(R):
                scored.W[k, r] = scratch.w[r]
        else:
            multiply_transposed(scratch.U, scratch.U, R, len(U), scratch.G)
            for r in range(R):
                scratch.w[r] = scored.W[k, r]
        losses(shard, k, weights, norm, single.B, model, scratch, scored)


def patient_sizes(shard: Shard) -> Array:
    """‖X_k‖ of every patient, each computed relative to its largest value, whose square may overflow."""
    sizes = np.zeros(shard.offsets.size - 1)
    fill_sizes(shard, sizes)
    return sizes


@kernel
def fill_sizes(shard: Shard, sizes: Array) -> None:
    for k in range(sizes.size):
        first, last = shard.indptr[shard.offsets[k]], shard.indptr[shard.offsets[k + 1]]
        largest, total = 0.0, 0.0
        for n in range(first, last):
            largest = max(largest, abs(np.float64(shard.data[n])))
        if largest == 0.0:
            continue
        for n in range(first, last):
            total += (np.float64(shard.data[n]) / largest) ** 2
        sizes[k] = largest * np.sqrt(total)


def cross_product_gaps(offsets: Array, U: Array, H: Array) -> Array:
    """‖U_kᵀU_k − HᵀH‖² of every patient, to the bit as `score` has it."""
    gaps, R = np.empty(len(offsets) - 1), len(H)
    longest = int(np.diff(offsets).max(initial=1))
    fill_gaps(offsets, U, aligned_matrix(longest, R), aligned_matrix(R, R), H.T @ H, gaps)
    return gaps


@kernel
def fill_gaps(offsets: Array, U: Array, padded: Array, G: Array, HH: Array, gaps: Array) -> None:
    R = HH.shape[0]
    for k in range(gaps.size):
        stored = U[offsets[k] : offsets[k + 1]]
        load_padded(stored, padded)
        multiply_transposed(padded, padded, R, len(stored), G)
        gaps[k] = cross_product_gap(G, HH, R)
