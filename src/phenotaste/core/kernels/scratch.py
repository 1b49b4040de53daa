"""Scratch arrays, allocated once per thread so that the loop over patients allocates nothing."""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.batched_inverse_sqrt import (
    BatchedInvSqrtScratch,
    new_batched_inv_sqrt_scratch,
)
from phenotaste.core.kernels.batched_nnls import BatchedNNLSScratch, new_batched_nnls_scratch
from phenotaste.core.kernels.coordinate_descent import CDScratch, new_cd_scratch
from phenotaste.core.kernels.inverse_sqrt import InvSqrtScratch, new_inv_sqrt_scratch
from phenotaste.core.kernels.nnls import NNLSScratch, new_nnls_scratch
from phenotaste.core.kernels.polar import EighScratch, new_eigh_scratch
from phenotaste.core.kernels.simd import LANES, aligned_matrix, aligned_vector, round_up
from phenotaste.core.kernels.unit_columns import ColumnScratch, new_column_scratch
from phenotaste.core.records import Array

BATCH_MAX_RANK = 16  # up to this rank, eight patients are processed at a time


class BatchScratch(NamedTuple):
    """For eight patients. A `_flat` array is a view of the same memory with one row per patient."""

    U_start: Array  # visits × R, one patient after the other
    B: Array  # X V, likewise
    rows: Array  # first row of each patient in these
    norms: Array  # ‖X‖²
    G: Array  # UᵀU, R × R
    G_flat: Array
    T: Array  # T = Hᵀ C^(-1/2) H, R × R
    T_flat: Array
    b: Array  # right-hand sides of the scores, one row per patient
    w: Array  # scores
    G_lanes: Array
    T_lanes: Array
    inv_sqrt: BatchedInvSqrtScratch
    nnls: BatchedNNLSScratch


def new_batch_scratch(visits: int, R: int) -> BatchScratch:
    side, rows = round_up(R), LANES * round_up(visits)
    G, T = aligned_matrix(LANES * side, R), aligned_matrix(LANES * side, R)
    return BatchScratch(
        U_start=aligned_matrix(rows, R),
        B=aligned_matrix(rows, R),
        rows=np.zeros(LANES, np.int64),
        norms=np.zeros(LANES),
        G=G,
        G_flat=G.reshape(LANES, -1),
        T=T,
        T_flat=T.reshape(LANES, -1),
        b=aligned_matrix(LANES, R),
        w=aligned_matrix(LANES, R),
        G_lanes=aligned_matrix(side * side, LANES),
        T_lanes=aligned_matrix(side * side, LANES),
        inv_sqrt=new_batched_inv_sqrt_scratch(R),
        nnls=new_batched_nnls_scratch(R),
    )


class PatientScratch(NamedTuple):
    """For one patient at the end of the step; zero-padded."""

    U: Array  # visits × R
    mu_QH: Array  # μ Q H
    rhs: Array  # right-hand sides of U
    mu_Q: Array  # μ Q, valid if `has_Q`
    has_Q: Array  # one flag: Q was computed explicitly
    G: Array  # UᵀU, R × R
    gram: Array
    square: Array  # the matrix whose inverse square root is taken
    U_T: Array  # Uᵀ, for histories shorter than R
    w: Array  # R
    passive: Array
    nnls: NNLSScratch
    cd: CDScratch
    columns: ColumnScratch
    eigh: EighScratch


class SingleScratch(NamedTuple):
    """For the rest of the step, where patients are processed one by one."""

    U_start: Array  # visits × R
    B: Array  # X V
    work: Array  # R × R
    H_rotated: Array  # H in the basis in which C is tridiagonal
    T: Array  # T = Hᵀ C^(-1/2) H, so that Q H = U T
    C_inv_sqrt: Array  # C^(-1/2) in the basis in which C is tridiagonal
    b: Array  # R
    gradient: Array
    inv_sqrt: InvSqrtScratch


class ThreadScratch(NamedTuple):
    """All the scratch of one thread, in three records: numba's compile time grows with the size of a record."""

    patient: PatientScratch
    single: SingleScratch
    batch: BatchScratch


def new_thread_scratch(visits: int, R: int) -> ThreadScratch:
    patient = PatientScratch(
        U=aligned_matrix(visits, R),
        mu_QH=aligned_matrix(visits, R),
        rhs=aligned_matrix(visits, R),
        mu_Q=aligned_matrix(visits, R),
        has_Q=np.zeros(1, np.bool_),
        G=aligned_matrix(R, R),
        gram=aligned_matrix(R, R),
        square=aligned_matrix(R, R),
        U_T=aligned_matrix(R, R),
        w=aligned_vector(R),
        passive=np.empty(R, np.bool_),
        nnls=new_nnls_scratch(R),
        cd=new_cd_scratch(R),
        columns=new_column_scratch(visits, R),
        eigh=new_eigh_scratch(R),
    )
    single = SingleScratch(
        U_start=aligned_matrix(visits, R),
        B=aligned_matrix(visits, R),
        work=aligned_matrix(R, R),
        H_rotated=aligned_matrix(R, R),
        T=aligned_matrix(R, R),
        C_inv_sqrt=aligned_matrix(R, R),
        b=aligned_vector(R),
        gradient=aligned_vector(R),
        inv_sqrt=new_inv_sqrt_scratch(R),
    )
    batch = new_batch_scratch(visits, R) if R <= BATCH_MAX_RANK else new_batch_scratch(1, 1)
    return ThreadScratch(patient, single, batch)
