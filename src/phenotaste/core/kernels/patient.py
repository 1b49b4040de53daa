"""The patient step for one patient, compiled: R × R algebra, no dense residual, nothing allocated.

The formulas are those of `reference`, which is written to be read; the symbols are defined in `records`. A patient's
result does not depend, to the bit, on other patients.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.coordinate_descent import cd_rows
from phenotaste.core.kernels.inverse_sqrt import inverse_sqrt_rational
from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.matmul import multiply, multiply_transposed
from phenotaste.core.kernels.nnls import NNLSScratch, bpp, cd_sweeps
from phenotaste.core.kernels.polar import SIGMA_FLOOR, polar_eigh
from phenotaste.core.kernels.scratch import PatientScratch, SingleScratch
from phenotaste.core.kernels.simd import (
    LANES,
    aligned_matrix,
    fma,
    load,
    masked_load,
    positive_part,
    round_up,
    splat,
    sqrt,
    store,
    transpose,
    where_greater,
)
from phenotaste.core.kernels.sums import square_sum
from phenotaste.core.kernels.tridiagonal import change_basis
from phenotaste.core.kernels.unit_columns import unit_columns_step
from phenotaste.core.records import Array, Model, Shard, Weights

WARM_START_SWEEPS = 4  # of coordinate descent, which predict the positive scores before `bpp`
MIN_SINGULAR_RATIO = 1e-5  # of H, smallest to largest: below this H is not inverted


class PreparedModel(NamedTuple):
    """A model with the products that every patient needs; matrices zero-padded, except the last two."""

    H: Array
    HT: Array  # Hᵀ
    HH: Array  # HᵀH
    V: Array
    F: Array
    VV: Array  # VᵀV
    FF: Array  # λ FᵀF
    lam: float
    well_conditioned: bool  # whether H can be inverted
    H_upper: Array  # upper triangular, with the same HᵀH as H
    H_lower: Array  # its transpose
    H_inv_T: Array  # R × R: H^(-T), so that QᵀU = H^(-T) (QH)ᵀU
    H_unpadded: Array  # R × R


def prepare_model(model: Model, lam: float) -> PreparedModel:
    H, V, F = (np.ascontiguousarray(factor, dtype=np.float64) for factor in model)
    finite = bool(np.isfinite(H).all())
    singular = np.linalg.svd(H, compute_uv=False) if finite else np.zeros(1)
    upper: Array = np.asarray(np.linalg.qr(H, mode="r")) if finite else np.zeros_like(H)
    well_conditioned = bool(singular[-1] > MIN_SINGULAR_RATIO * singular[0])
    H_inv_T = np.linalg.inv(H.T) if well_conditioned else np.zeros_like(H)
    return PreparedModel(
        H=padded(H),
        HT=padded(H.T),
        HH=padded(H.T @ H),
        V=padded(V),
        F=padded(F),
        VV=padded(V.T @ V),
        FF=padded(lam * (F.T @ F)),
        lam=float(lam),
        well_conditioned=well_conditioned,
        H_upper=padded(upper),
        H_lower=padded(upper.T),
        H_inv_T=np.ascontiguousarray(H_inv_T),
        H_unpadded=H,
    )


class StepInputs(NamedTuple):
    """What a patient step reads. `U_prev` also receives the result: rows are read before they are overwritten."""

    shard: Shard
    weights: Weights
    model: PreparedModel
    U: Array  # visits × R
    U_prev: Array  # U one step ago
    beta: Array  # patients: the step starts from max(0, U + β (U − U_prev)), with unit columns if they are constrained
    exact: bool  # without unit columns: U by NNLS instead of coordinate descent


def padded(M: Array) -> Array:
    out = aligned_matrix(*M.shape)
    out[: M.shape[0], : M.shape[1]] = M
    return out


@part
def read_visits(shard: Shard, k: int, scale: float, V: Array, B: Array) -> float:
    """B = X_k V from the non-zeros alone, with X_k multiplied by `scale`; returns ‖X_k‖²."""
    start, end = shard.offsets[k], shard.offsets[k + 1]
    for i in range(start, end):
        first, last = shard.indptr[i], shard.indptr[i + 1]
        for j in range(0, B.shape[1], 2 * LANES):
            j2 = min(j + LANES, B.shape[1] - LANES)
            x = splat(0.0)
            y = x
            for n in range(first, last):
                value, feature = splat(scale * np.float64(shard.data[n])), shard.indices[n]
                x, y = fma(value, load(V, (feature, j)), x), fma(value, load(V, (feature, j2)), y)
            store(B, (i - start, j), x)
            store(B, (i - start, j2), y)
    return square_sum(shard.data, shard.indptr[start], shard.indptr[end], scale)


@part
def load_padded(stored: Array, U: Array) -> None:
    """The stored U of a patient, padded and in float64."""
    visits, R = stored.shape
    for i in range(visits):
        for j in range(0, U.shape[1], LANES):
            store(U, (i, j), masked_load(stored, (i, j), R - j))


@part(inline=True)
def fill(M: Array, rows: int, value: float) -> None:
    """Fill the first rows. (A slice would cost a second of compilation, for its error messages.)"""
    for i in range(rows):
        for j in range(M.shape[1]):
            M[i, j] = value


@part(inline=True)
def extrapolate_U(U: Array, U_prev: Array, beta: float, unit: bool, out: Array) -> None:
    """max(0, U + β (U − U_prev)), padded and in float64, and with `unit` scaled back to unit or zero columns."""
    visits, R = U.shape
    f, one, zero = splat(beta), splat(1.0), splat(0.0)
    for j in range(0, out.shape[1], LANES):
        squares = zero
        for i in range(visits):
            u = masked_load(U, (i, j), R - j)
            if beta > 0.0:
                u = positive_part(fma(f, u - masked_load(U_prev, (i, j), R - j), u))
                squares = fma(u, u, squares)
            store(out, (i, j), u)
        if unit and beta > 0.0:
            g = one / sqrt(where_greater(squares, zero, squares, one))
            for i in range(visits):
                store(out, (i, j), g * load(out, (i, j)))


@part(inline=True)
def right_hand_side(U: Array, B: Array, visits: int, a: Array, F: Array, lam: float, out: Array) -> None:
    """colsum(U∘B) + λFᵀa."""
    for j in range(0, U.shape[1], LANES):
        b = splat(0.0)
        for i in range(visits):
            b = fma(load(U, (i, j)), load(B, (i, j)), b)
        for p in range(a.size):
            b = fma(splat(lam * a[p]), load(F, (p, j)), b)
        store(out, j, b)


@part(inline=True)
def solve_scores(
    U: Array, visits: int, a: Array, model: PreparedModel, scratch: PatientScratch, single: SingleScratch
) -> None:
    """w: NNLS with Gram G∘VᵀV + λFᵀF and right-hand side colsum(U∘B) + λFᵀa; leaves G = UᵀU."""
    multiply_transposed(U, U, scratch.passive.size, visits, scratch.G)
    right_hand_side(U, single.B, visits, a, model.F, model.lam, single.b)
    for j in range(0, U.shape[1], LANES):
        for r in range(scratch.passive.size):
            entries = fma(load(scratch.G, (r, j)), load(model.VV, (r, j)), load(model.FF, (r, j)))
            store(scratch.gram, (r, j), entries)
    warm_started_bpp(scratch.gram, single.b, single.gradient, scratch.w, scratch.passive, scratch.nnls)


@part
def warm_started_bpp(
    gram: Array, b: Array, gradient: Array, w: Array, passive: Array, scratch: NNLSScratch
) -> None:
    """NNLS from zero: coordinate descent predicts the passive set, then `bpp` solves exactly."""
    for j in range(0, gram.shape[1], LANES):
        store(gradient, j, splat(0.0) - load(b, j))
        store(w, j, splat(0.0))
    R = passive.size
    x = w[:R]
    cd_sweeps(gram, gradient, x, WARM_START_SWEEPS)
    for r in range(R):
        passive[r] = x[r] > 0.0
    bpp(gram, b[:R], x, passive, scratch)


@part(inline=True)
def polar_target(
    U: Array, visits: int, mu: float, model: PreparedModel, scratch: PatientScratch, single: SingleScratch
) -> None:
    """μ Q H, the target of the uniqueness term; Q itself only where C is nearly singular."""
    R = model.H_unpadded.shape[0]
    scratch.has_Q[0] = False
    if mu == 0.0:
        fill(scratch.mu_QH, visits, 0.0)
        return
    if visits < R:
        done = model.well_conditioned and polar_target_wide(U, visits, R, model, scratch, single)
    else:
        done = model.well_conditioned and polar_target_tall(U, visits, R, model, scratch, single)
    if done:
        f = splat(mu)
        for i in range(visits):
            for j in range(0, U.shape[1], LANES):
                store(scratch.mu_QH, (i, j), f * load(scratch.mu_QH, (i, j)))
        return
    scratch.has_Q[0] = True
    polar_eigh(U, visits, mu, model.H_unpadded, scratch.eigh, scratch.mu_Q, scratch.mu_QH)


@part(inline=True)
def clear_rows(square: Array, n: int) -> None:
    """Zero the padding rows after the first n."""
    for i in range(n, round_up(n)):
        for j in range(0, round_up(n), LANES):
            store(square, (i, j), splat(0.0))


@part(inline=True)
def polar_target_tall(
    U: Array, visits: int, R: int, model: PreparedModel, scratch: PatientScratch, single: SingleScratch
) -> bool:
    """Q H = U T with T = Hᵀ C^(-1/2) H and C = H (UᵀU) Hᵀ; False if C is nearly singular."""
    multiply(model.H, scratch.G, R, R, single.work)
    multiply(single.work, model.HT, R, R, scratch.square)
    clear_rows(scratch.square, R)
    if not inverse_sqrt_rational(scratch.square, R, SIGMA_FLOOR**2, single.inv_sqrt, single.C_inv_sqrt):
        return False
    for r in range(R):
        for j in range(0, U.shape[1], LANES):
            store(single.H_rotated, (r, j), load(model.H, (r, j)))
    change_basis(single.H_rotated, R, single.inv_sqrt.reduction, False)
    multiply(single.C_inv_sqrt, single.H_rotated, R, R, single.work)
    multiply_transposed(single.H_rotated, single.work, R, R, single.T)
    multiply(U, single.T, visits, R, scratch.mu_QH)
    return True


@part
def wide_gram(U: Array, visits: int, R: int, HH: Array, U_T: Array, U_HH: Array, out: Array) -> None:
    """M Mᵀ with M = U Hᵀ; also leaves Uᵀ and U HᵀH."""
    for i in range(visits, round_up(visits)):
        for j in range(0, U.shape[1], LANES):
            store(U, (i, j), splat(0.0))
    for i in range(0, visits, LANES):
        for j in range(0, U.shape[1], LANES):
            transpose(U, (i, j), U_T, (j, i))
    multiply(U, HH, visits, R, U_HH)
    multiply(U_HH, U_T, visits, R, out)


@part(inline=True)
def polar_target_wide(
    U: Array, visits: int, R: int, model: PreparedModel, scratch: PatientScratch, single: SingleScratch
) -> bool:
    """Q H = (M Mᵀ)^(-1/2) M H with M = U Hᵀ, for fewer visits than phenotypes: M Mᵀ is then smaller than C."""
    wide_gram(U, visits, R, model.HH, scratch.U_T, scratch.rhs, scratch.square)
    clear_rows(scratch.square, visits)
    if not inverse_sqrt_rational(scratch.square, visits, SIGMA_FLOOR**2, single.inv_sqrt, single.C_inv_sqrt):
        return False
    change_basis(scratch.rhs, visits, single.inv_sqrt.reduction, False)
    multiply(single.C_inv_sqrt, scratch.rhs, visits, visits, scratch.mu_QH)
    change_basis(scratch.mu_QH, visits, single.inv_sqrt.reduction, True)
    return True


@part(inline=True)
def solve_U(
    inputs: StepInputs, k: int, U_start: Array, B: Array, visits: int, scratch: PatientScratch
) -> None:
    """U: NNLS rows with Gram (w wᵀ)∘VᵀV + μI and right-hand sides B∘w + μ Q H, or unit columns."""
    U, w, rhs = scratch.U, scratch.w, scratch.rhs
    weights, model = inputs.weights, inputs.model
    mu = weights.mu[k]
    for i in range(visits):
        for j in range(0, U.shape[1], LANES):
            store(rhs, (i, j), fma(load(B, (i, j)), load(w, j), load(scratch.mu_QH, (i, j))))
    if weights.unit:
        unit_columns_step(U_start, rhs, visits, w, model.VV, weights.tau, scratch.columns, U)
        return
    if not inputs.exact:
        cd_rows(U_start, rhs, visits, w, model.VV, mu, scratch.cd, U)
        return
    R = scratch.passive.size
    for r in range(R):
        for s in range(R):
            scratch.gram[r, s] = w[r] * w[s] * model.VV[r, s]
        scratch.gram[r, r] += mu
    for i in range(visits):
        for r in range(R):
            scratch.passive[r] = U_start[i, r] > 0.0
        bpp(scratch.gram, rhs[i, :R], U[i, :R], scratch.passive, scratch.nnls)


@part(inline=True)
def solve_and_store_U(inputs: StepInputs, k: int, U_start: Array, B: Array, scratch: PatientScratch) -> None:
    """The new U of patient k, from the scores and μ Q H in `scratch`, stored in `inputs.U_prev`."""
    stored = inputs.U_prev[inputs.shard.offsets[k] : inputs.shard.offsets[k + 1]]
    solve_U(inputs, k, U_start, B, len(stored), scratch)
    for i in range(stored.shape[0]):
        for r in range(stored.shape[1]):
            stored[i, r] = scratch.U[i, r]
    if stored.itemsize < scratch.U.itemsize:  # the sums are those of U as stored, in float32 too
        load_padded(stored, scratch.U)


@part(inline=True)
def patient_step(inputs: StepInputs, k: int, scratch: PatientScratch, single: SingleScratch) -> float:
    """One patient step: w, then Q, then U; nothing without a history.

    Returns ‖X_k‖². U, w and μ Q H stay in `scratch`, U_start and B in `single`, for the sums and the loss.
    """
    shard, weights, model = inputs.shard, inputs.weights, inputs.model
    start, end = shard.offsets[k], shard.offsets[k + 1]
    visits = end - start
    norm = read_visits(shard, k, weights.scale[k], model.V, single.B)
    if norm == 0.0:
        fill(inputs.U_prev[start:end], visits, 0.0)
        return norm
    extrapolate_U(inputs.U[start:end], inputs.U_prev[start:end], inputs.beta[k], weights.unit, single.U_start)
    solve_scores(single.U_start, visits, shard.static[k], model, scratch, single)
    polar_target(single.U_start, visits, weights.mu[k], model, scratch, single)
    solve_and_store_U(inputs, k, single.U_start, single.B, scratch)
    return norm
