"""Scratch space for one patient, so that nothing is allocated in the patient loop."""

from typing import NamedTuple

import numpy as np

from .courses import Sweep, new_sweep
from .nnls import Solve, new_solve
from .polar import Eigen, new_eigen
from .records import Array
from .root import Root, new_root
from .simd import column, matrix


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
    )
