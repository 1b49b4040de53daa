"""Scratch space, so that nothing is allocated in the patient loop."""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.batched_inverse_sqrt import Lanes, new_lanes
from phenotaste.core.kernels.batched_nnls import LaneScores, new_lane_scores
from phenotaste.core.kernels.coordinate_descent import Sweep, new_sweep
from phenotaste.core.kernels.inverse_sqrt import Root, new_root
from phenotaste.core.kernels.nnls import Solve, new_solve
from phenotaste.core.kernels.polar import Eigen, new_eigen
from phenotaste.core.kernels.simd import LANES, column, matrix, whole
from phenotaste.core.records import Array

FEW = 16  # up to so many phenotypes eight patients are taken at a time


class BatchScratch(NamedTuple):
    """Room for eight patients; what is said to be flat is another view of the same numbers, a row for each patient."""

    U_start: Array  # visits × R, one patient after the other
    B: Array
    rows: Array  # where each begins in these
    norms: Array  # ‖X‖²
    G: Array  # UᵀU, R × R
    flat_G: Array
    T: Array  # T = Hᵀ C^(-1/2) H, R × R
    flat_T: Array
    b: Array  # right-hand sides of the scores, a row for each patient
    w: Array  # scores
    lanes_G: Array
    lanes_T: Array
    lanes: Lanes
    scores: LaneScores


def new_batch_scratch(visits: int, R: int) -> BatchScratch:
    side, rows = whole(R), LANES * whole(visits)
    G, T = matrix(LANES * side, R), matrix(LANES * side, R)
    return BatchScratch(
        matrix(rows, R),
        matrix(rows, R),
        np.zeros(LANES, np.int64),
        np.zeros(LANES),
        G,
        G.reshape(LANES, -1),
        T,
        T.reshape(LANES, -1),
        matrix(LANES, R),
        matrix(LANES, R),
        matrix(side * side, LANES),
        matrix(side * side, LANES),
        new_lanes(R),
        new_lane_scores(R),
    )


class PatientScratch(NamedTuple):
    """Room for one patient at the end of the step; padded to whole vectors."""

    U: Array  # visits × R
    mu_QH: Array  # μ Q H
    right: Array  # right-hand sides of the courses
    Q: Array  # μ Q, where `explicit` says so
    explicit: Array  # one flag: Q itself was needed
    G: Array  # UᵀU, R × R
    gram: Array
    square: Array  # what is taken the root of
    across: Array  # U with a row for each phenotype, for short histories
    w: Array  # R
    passive: Array
    solve: Solve
    sweep: Sweep
    eigen: Eigen


class SingleScratch(NamedTuple):
    """Room for one patient on the way there, where patients are taken one by one."""

    U_start: Array  # visits × R
    B: Array  # X V
    work: Array  # R × R
    turned: Array
    target: Array  # T = Hᵀ C^(-1/2) H, so that Q H = U T
    rooted: Array  # the inverse root in the basis in which its square is tridiagonal
    b: Array  # R
    slopes: Array
    root: Root


class ThreadScratch(NamedTuple):
    """All the room one thread needs. In three parts, since records take long to compile, the larger the longer."""

    patient: PatientScratch
    single: SingleScratch
    batch: BatchScratch


def new_thread_scratch(visits: int, R: int) -> ThreadScratch:
    patient = PatientScratch(
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        np.zeros(1, np.bool_),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        column(R),
        np.empty(R, np.bool_),
        new_solve(R),
        new_sweep(R),
        new_eigen(R),
    )
    single = SingleScratch(
        matrix(visits, R),
        matrix(visits, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        column(R),
        column(R),
        new_root(R),
    )
    return ThreadScratch(
        patient, single, new_batch_scratch(visits, R) if R <= FEW else new_batch_scratch(1, 1)
    )
