"""Patients under a fixed model: patient steps, for each patient until its loss converges."""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.driver import init_U, step
from phenotaste.core.kernels.jit import kernel
from phenotaste.core.kernels.patient import PreparedModel, StepInputs
from phenotaste.core.kernels.scratch import ThreadScratch
from phenotaste.core.kernels.sums import SumsAccumulator
from phenotaste.core.records import Array, Shard, Weights

BETA_INIT, BETA_GROWTH, BETA_MAX = 0.5, 1.05, 0.99  # extrapolation: see `loop.fit`


class ProjectOptions(NamedTuple):
    """How each patient's U is solved and when its iteration stops."""

    exact: bool
    tol: float
    max_iter: int


def project(
    shard: Shard,
    weights: Weights,
    model: PreparedModel,
    U: Array,
    first: int,
    last: int,
    options: ProjectOptions,
    scratch: ThreadScratch,
) -> None:
    """U of patients first..last under a fixed model: initialise, then patient steps until each patient converges."""
    K, visits = last - first, slice(int(shard.offsets[first]), int(shard.offsets[last]))
    part = slice_shard(shard, first, last)
    state = PatientState(np.zeros(K), np.full(K, BETA_INIT), np.full(K, np.inf), np.empty((K, 2)))
    part_weights = weights.of_patients(first, last)
    U_prev = np.zeros_like(U[visits])
    inputs = StepInputs(part, part_weights, model, U[visits], U_prev, state.beta, options.exact)
    no_sums = SumsAccumulator(1, 0, 0, len(model.H_unpadded)).reset(0)
    init_U(part, part_weights.scale, 0, K, model.V, inputs.U, scratch.single.B, scratch.patient.U)
    active = np.arange(K)
    for _ in range(options.max_iter):
        step(inputs, active, scratch, no_sums, state.loss)
        active = active[: accept_steps(part.offsets, active, state, options.tol, inputs.U, U_prev)]
        if not active.size:
            break


class PatientState(NamedTuple):
    """Where the iteration of each patient stands."""

    beta: Array  # extrapolation of the next step
    next_beta: Array  # and of the one after it, if that step lowers the loss
    best_loss: Array  # so far
    loss: Array  # patients × 2: loss of the step just made, and ‖X‖²


def slice_shard(shard: Shard, first: int, last: int) -> Shard:
    """Patients first..last as a shard of their own, without copying their visits."""
    offsets = shard.offsets[first : last + 1]
    indptr = shard.indptr[offsets[0] : offsets[-1] + 1]
    offsets = offsets - offsets[0]
    # Numba types read-only arrays differently: keep the flag, or every kernel is compiled a second time.
    offsets.flags.writeable = shard.offsets.flags.writeable
    return Shard(shard.data, shard.indices, indptr, offsets, shard.static[first:last])


@kernel
def accept_steps(
    offsets: Array, active: Array, state: PatientState, tol: float, U: Array, U_prev: Array
) -> int:
    """Accept or reject the step just made, patient by patient, with extrapolation as in `loop.fit`.

    Patients that have not converged are moved to the front of `active`; returns their number.
    """
    beta, next_beta, best_loss = state.beta, state.next_beta, state.best_loss
    left = 0
    for n in range(active.size):
        k = active[n]
        loss, norm = state.loss[k, 0], state.loss[k, 1]
        if norm == 0.0:
            continue  # U is zero already
        if loss > best_loss[k] and beta[k] > 0.0:  # extrapolated too far: keep U and take a plain step next
            next_beta[k], beta[k] = next_beta[k] / 2, 0.0
        else:
            for i in range(offsets[k], offsets[k + 1]):
                for r in range(U.shape[1]):
                    U[i, r], U_prev[i, r] = U_prev[i, r], U[i, r]
            if best_loss[k] - loss < tol * max(loss, 1e-12 * norm):
                continue
            beta[k], best_loss[k] = next_beta[k], loss
            next_beta[k] = min(next_beta[k] * BETA_GROWTH, BETA_MAX)
        active[left] = k
        left += 1
    return left
