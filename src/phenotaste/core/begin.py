"""The courses a patient begins with, from the visits and the model: no chance in it, so nothing has to be shared."""

import numpy as np
from numba import njit

from .patient import fill, read_visits
from .records import Array, Shard

FLAT = 1e-6  # a cosine that vanishes at every visit (r = 2·visits) is replaced by a constant


@njit(inline="always")
def start_courses(B: Array, U: Array, visits: int, R: int) -> None:
    """A start that needs no chance: the phenotype's share of each visit, plus cosines to keep full rank."""
    for r in range(R):
        norm_b, norm_e = 0.0, 0.0
        for i in range(visits):
            U[i, r] = 1.0 + np.cos(np.pi * r * (i + 0.5) / visits)
            norm_b += max(B[i, r], 0.0) ** 2
            norm_e += U[i, r] ** 2
        norm_b, norm_e = np.sqrt(norm_b), np.sqrt(norm_e)
        norm = 0.0
        for i in range(visits):
            share = max(B[i, r], 0.0) / norm_b if norm_b > 0.0 else 0.0
            wave = U[i, r] / norm_e if norm_e > FLAT else visits**-0.5
            U[i, r] = 0.9 * share + 0.1 * wave
            norm += U[i, r] ** 2
        norm = np.sqrt(norm)
        for i in range(visits):
            U[i, r] /= norm


@njit(inline="always")
def begin(shard: Shard, k: int, V: Array, courses: Array, B: Array, U: Array) -> None:
    """The starting courses of a patient, from the visits and the model; B and U are scratch."""
    visits, R = courses.shape
    if read_visits(shard, k, V, B) == 0.0:
        fill(courses, visits, 0.0)
        return
    start_courses(B, U, visits, R)
    for i in range(visits):
        for r in range(R):
            courses[i, r] = U[i, r]
