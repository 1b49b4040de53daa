"""One patient's terms of the objective, expanded to avoid a dense residual except where cancellation requires it."""

import numpy as np

from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.matmul import multiply_transposed
from phenotaste.core.kernels.patient import PreparedModel, StepInputs
from phenotaste.core.kernels.polar import nuclear_norm
from phenotaste.core.kernels.scratch import PatientScratch
from phenotaste.core.kernels.unit_columns import roughness
from phenotaste.core.records import Array, Scored, Shard, Weights

CANCELLATION_LIMIT = 1e-3  # below this share of ‖X‖² the expanded loss is inaccurate: compute the residual


@part(inline=True)
def step_loss(inputs: StepInputs, k: int, norm: float, B: Array, scratch: PatientScratch) -> float:
    """A patient's own loss after the patient step: the new U with the w and Q it was solved for."""
    shard, weights, model = inputs.shard, inputs.weights, inputs.model
    if norm == 0.0:
        return 0.0
    first = shard.offsets[k]
    visits = shard.offsets[k + 1] - first
    U, R, mu = scratch.U, scratch.passive.size, weights.mu[k]
    multiply_transposed(U, U, R, visits, scratch.G)
    loss = expanded_loss(norm, visits, B, U, scratch.G, scratch.w, R, model.VV)
    for r in range(R):
        loss += mu * (scratch.G[r, r] + model.HH[r, r])
        for i in range(visits):
            loss -= 2.0 * U[i, r] * scratch.mu_QH[i, r]
    if weights.tau > 0.0:
        loss += weights.tau * roughness(U, visits)
    return 0.5 * loss + model.lam * static_error(shard.static[k], model.F, scratch.w)


@part
def expanded_loss(
    norm: float, visits: int, B: Array, U: Array, G: Array, w: Array, R: int, VV: Array
) -> float:
    """‖X − U diag(w) Vᵀ‖² as ‖X‖² − 2 wᵀ colsum(U∘B) + wᵀ((UᵀU)∘VᵀV)w."""
    loss = norm
    for i in range(visits):
        for r in range(R):
            loss -= 2.0 * w[r] * U[i, r] * B[i, r]
    for r in range(R):
        for s in range(R):
            loss += w[r] * w[s] * G[r, s] * VV[r, s]
    return loss


@part
def static_error(a: Array, F: Array, w: Array) -> float:
    """½‖a − F w‖²."""
    loss = 0.0
    for p in range(a.size):
        value = a[p]
        for r in range(w.size):
            value -= F[p, r] * w[r]
        loss += value * value
    return 0.5 * loss


@part
def cross_product_gap(G: Array, HH: Array, R: int) -> float:
    """‖G − HᵀH‖²."""
    gap = 0.0
    for r in range(R):
        for s in range(R):
            gap += (G[r, s] - HH[r, s]) ** 2
    return gap


@part(inline=True, allocates=True)
def residual(shard: Shard, k: int, scale: float, n_features: int, V: Array, U: Array, w: Array) -> float:
    """‖X_k − U diag(w) Vᵀ‖², entry by entry, with X_k multiplied by `scale`."""
    first, last = shard.offsets[k], shard.offsets[k + 1]
    row = np.empty(n_features)
    loss = 0.0
    for i in range(first, last):
        for j in range(n_features):
            value = 0.0
            for r in range(w.size):
                value += U[i - first, r] * w[r] * V[j, r]
            row[j] = -value
        for n in range(shard.indptr[i], shard.indptr[i + 1]):
            row[shard.indices[n]] += scale * np.float64(shard.data[n])
        for j in range(n_features):
            loss += row[j] * row[j]
    return loss


@part
def present_gap(G: Array, HH: Array, w: Array, R: int, out: Array, size: Array, k: int) -> None:
    """‖G − HᵀH‖² and ‖HᵀH‖² over pairs of different phenotypes that have a score."""
    gap, total = 0.0, 0.0
    for r in range(R):
        for s in range(r):
            if w[r] > 0.0 and w[s] > 0.0:
                gap += 2.0 * (G[r, s] - HH[r, s]) ** 2
                total += 2.0 * HH[r, s] ** 2
    out[k], size[k] = gap, total


@part(inline=True)
def no_losses(k: int, scored: Scored) -> None:
    """A patient without a history."""
    for r in range(scored.W.shape[1]):
        scored.W[k, r] = 0.0
    for n in range(scored.loss.shape[1]):
        scored.loss[k, n] = 0.0
    scored.visit_error[k] = 0.0
    scored.static_error[k] = 0.0
    scored.cp_gap[k] = 0.0
    scored.present_gap[k] = 0.0
    scored.present_size[k] = 0.0


@part(inline=True, allocates=True)
def losses(
    shard: Shard,
    k: int,
    weights: Weights,
    norm: float,
    B: Array,
    model: PreparedModel,
    scratch: PatientScratch,
    scored: Scored,
) -> None:
    """A patient's losses, with the best Q, and cross-product gaps, for the U, G and w in `scratch`."""
    first = shard.offsets[k]
    visits = shard.offsets[k + 1] - first
    R, mu, influence = scratch.passive.size, weights.mu[k], weights.influence[k]
    fit = expanded_loss(norm, visits, B, scratch.U, scratch.G, scratch.w, R, model.VV)
    if fit < CANCELLATION_LIMIT * norm:
        fit = residual(shard, k, weights.scale[k], model.V.shape[0], model.V, scratch.U, scratch.w)
    scored.visit_error[k] = 0.5 * fit
    scored.static_error[k] = static_error(shard.static[k], model.F, scratch.w)
    scored.cp_gap[k] = cross_product_gap(scratch.G, model.HH, R)
    scored.present_gap[k] = 0.0
    scored.present_size[k] = 0.0
    if visits >= R:
        present_gap(scratch.G, model.HH, scratch.w, R, scored.present_gap, scored.present_size, k)
    loss = scored.loss[k]
    loss[0] = influence * scored.visit_error[k]
    loss[1] = influence * model.lam * scored.static_error[k]
    loss[2] = 0.0
    loss[3] = 0.0
    if weights.tau > 0.0:
        loss[3] = 0.5 * influence * weights.tau * roughness(scratch.U, visits)
    if mu > 0.0:
        M, size = np.empty((visits, R)), 0.0
        for r in range(R):
            size += scratch.G[r, r] + model.HH[r, r]
            for i in range(visits):
                value = 0.0
                for s in range(R):
                    value += scratch.U[i, s] * model.H_unpadded[r, s]
                M[i, r] = value
        loss[2] = 0.5 * influence * mu * (size - 2.0 * nuclear_norm(M, scratch.eigh))
