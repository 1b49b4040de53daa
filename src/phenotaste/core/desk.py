"""Scratch space for one patient, so that nothing is allocated in the patient loop."""

from typing import NamedTuple

import numpy as np

from .courses import Sweep, new_sweep
from .lane_scores import LaneScores, new_lane_scores
from .lanes import Lanes, new_lanes
from .nnls import Solve, new_solve
from .polar import Eigen, new_eigen
from .records import Array
from .root import Root, new_root
from .simd import LANES, column, matrix, whole

FEW = 16  # up to so many phenotypes eight patients are taken at a time


class Crowd(NamedTuple):
    """Room for eight patients; what is said to be flat is another view of the same numbers, a row for each patient."""

    old: Array  # visits × R, one patient after the other
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


def new_crowd(visits: int, R: int) -> Crowd:
    side, rows = whole(R), LANES * whole(visits)
    G, T = matrix(LANES * side, R), matrix(LANES * side, R)
    return Crowd(
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


class Desk(NamedTuple):
    """Scratch space for one patient, allocated once for many; padded to whole vectors."""

    U: Array  # visits × R
    old: Array
    B: Array  # X V
    pull: Array  # μ Q H
    right: Array  # right-hand sides of the courses
    Q: Array  # μ Q, where `explicit` says so
    explicit: Array  # one flag: Q itself was needed
    G: Array  # UᵀU, R × R
    gram: Array
    work: Array
    turned: Array
    target: Array  # T = Hᵀ C^(-1/2) H, so that Q H = U T
    square: Array  # what is taken the root of
    rooted: Array  # its inverse root in the basis in which it is tridiagonal
    across: Array  # U with a row for each phenotype, for short histories
    w: Array  # R
    b: Array
    slopes: Array
    passive: Array
    solve: Solve
    sweep: Sweep
    root: Root
    eigen: Eigen
    crowd: Crowd


def new_desk(visits: int, R: int) -> Desk:
    return Desk(
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        matrix(visits, R),
        np.zeros(1, np.bool_),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        matrix(R, R),
        column(R),
        column(R),
        column(R),
        np.empty(R, np.bool_),
        new_solve(R),
        new_sweep(R),
        new_root(R),
        new_eigen(R),
        new_crowd(visits, R) if R <= FEW else new_crowd(1, 1),
    )
