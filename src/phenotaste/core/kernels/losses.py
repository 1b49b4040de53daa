"""What one patient adds to the objective, from what is on the scratch: no dense residual but where digits run out."""

import numpy as np
from numba import njit

from phenotaste.core.kernels.matmul import multiply_transposed
from phenotaste.core.kernels.patient import PreparedModel
from phenotaste.core.kernels.polar import nuclear_norm
from phenotaste.core.kernels.scratch import PatientScratch
from phenotaste.core.records import KERNEL, Array, Shard

CANCELLED = 1e-3  # below this share of ‖X‖² the expanded loss has lost digits: take the residual itself


@njit(inline="always")
def loss_after(
    shard: Shard, k: int, mu: float, norm: float, B: Array, model: PreparedModel, scratch: PatientScratch
) -> float:
    """A patient's whole loss after `advance`: the new U with the w and Q it was solved for."""
    visits = shard.offsets[k + 1] - shard.offsets[k]
    U, R = scratch.U, scratch.passive.size
    multiply_transposed(U, U, R, visits, scratch.G)
    loss = expanded_loss(norm, visits, B, U, scratch.G, scratch.w, R, model.VV)
    for r in range(R):
        loss += mu * (scratch.G[r, r] + model.HH[r, r])
        for i in range(visits):
            loss -= 2.0 * U[i, r] * scratch.mu_QH[i, r]
    return 0.5 * loss + static_loss(shard.static[k], model.F, model.lam, scratch.w)


@njit(**KERNEL)
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


@njit(**KERNEL)
def static_loss(a: Array, F: Array, lam: float, w: Array) -> float:
    """λ/2 ‖a − F w‖²."""
    loss = 0.0
    for p in range(a.size):
        value = a[p]
        for r in range(w.size):
            value -= F[p, r] * w[r]
        loss += value * value
    return 0.5 * lam * loss


@njit(inline="always")
def residual(shard: Shard, k: int, n_features: int, V: Array, U: Array, w: Array) -> float:
    """‖X_k − U diag(w) Vᵀ‖², entry by entry."""
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
            row[shard.indices[n]] += shard.data[n]
        for j in range(n_features):
            loss += row[j] * row[j]
    return loss


@njit(inline="always")
def losses(
    shard: Shard,
    k: int,
    mu: float,
    norm: float,
    B: Array,
    model: PreparedModel,
    scratch: PatientScratch,
    loss: Array,
) -> None:
    """The three parts of a patient's loss, with the best Q, for the U, B, G and w that are on the scratch."""
    visits = shard.offsets[k + 1] - shard.offsets[k]
    R = scratch.passive.size
    fit = expanded_loss(norm, visits, B, scratch.U, scratch.G, scratch.w, R, model.VV)
    if fit < CANCELLED * norm:
        fit = residual(shard, k, model.V.shape[0], model.V, scratch.U, scratch.w)
    loss[0] = 0.5 * fit
    loss[1] = static_loss(shard.static[k], model.F, model.lam, scratch.w)
    loss[2] = 0.0
    if mu > 0.0:
        M, size = np.empty((visits, R)), 0.0
        for r in range(R):
            size += scratch.G[r, r] + model.HH[r, r]
            for i in range(visits):
                value = 0.0
                for s in range(R):
                    value += scratch.U[i, s] * model.plain[r, s]
                M[i, r] = value
        loss[2] = 0.5 * mu * (size - 2.0 * nuclear_norm(M, scratch.eigen))
