"""Counts as Poisson sums: x_ij ~ Poisson(Σ_r s_ir V_jr), with s, V ≥ 0 and the columns of V adding up to one.

Expectation–maximisation in the sparse entries only: c_ir = Σ_j x_ij s_ir V_jr / m_ij shares every count out among the
phenotypes it may come from, and s_ir = c_ir then raises the likelihood, without a step length. With a regulariser
β(s − p)² + g s, p what is expected of s and g a slope, the next s is the positive root of a quadratic equation.
"""

import numpy as np
from numba import njit

from phenotaste.core.records import VECTOR, Array

SMALLEST_MEAN = 1e-10  # what nothing explains is taken to be this rare: its log must stay a number


@njit(cache=True, nogil=True, fastmath=VECTOR)
def share_out(
    data: Array, indices: Array, indptr: Array, i: int, V: Array, s: Array, c: Array, T: Array
) -> None:
    """c_r = Σ_j x_j s_r V_jr / m_j for visit i; each share is added to T (J × R) too, if that has any rows."""
    R = s.size
    gather = len(T) > 0
    for r in range(R):
        c[r] = 0.0
    for e in range(indptr[i], indptr[i + 1]):
        j = indices[e]
        mean = 0.0
        for r in range(R):
            mean += s[r] * V[j, r]
        if not mean > 0.0:
            continue  # no phenotype knows this feature
        ratio = data[e] / mean
        for r in range(R):
            share = ratio * s[r] * V[j, r]
            c[r] += share
            if gather:
                T[j, r] += share


@njit(cache=True, nogil=True)
def positive_root(A: float, B: float, c: float) -> float:
    """The s ≥ 0 with A s² + B s = c, that is the minimum of ½A s² + B s − c log s."""
    root = np.sqrt(B * B + 4.0 * A * c)
    if B > 0.0:
        return 2.0 * c / (B + root)
    return (root - B) / (2.0 * A)


@njit(cache=True, nogil=True)
def patient_step(
    data: Array,
    indices: Array,
    indptr: Array,
    rows: Array,
    V: Array,
    S: Array,
    expected: Array,
    slope: Array,
    n_first: int,
    beta: float,
    T: Array,
) -> None:
    """Move the visits `rows` of S, which is changed in place, and add their shares to T.

    Row by row beside `rows`: `expected` of each visit, but of the first `n_first` nothing is expected, and `slope`,
    by which each visit changes what is expected later. The slope holds nearby only, hence a second term β(s − s_old)².
    """
    R = V.shape[1]
    c = np.empty(R)
    for k in range(rows.size):
        s = S[rows[k]]
        share_out(data, indices, indptr, rows[k], V, s, c, T)
        if beta == 0.0:
            s[:] = c
            continue
        for r in range(R):
            A, B = 2.0 * beta, 1.0 + slope[k, r] - 2.0 * beta * s[r]
            if k >= n_first:
                A += 2.0 * beta
                B -= 2.0 * beta * expected[k, r]
            s[r] = positive_root(A, B, c[r])


@njit(cache=True, nogil=True)
def project_rows(
    data: Array, indices: Array, indptr: Array, V: Array, S: Array, tol: float, max_iter: int
) -> None:
    """The likeliest S under a fixed V, visit by visit, from equal shares; each visit stops for itself."""
    R = V.shape[1]
    c = np.empty(R)
    nothing = np.empty((0, R))
    for i in range(len(S)):
        s = S[i]
        total = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            total += data[e]
        s[:] = total / R
        for _ in range(max_iter if total > 0.0 else 0):
            share_out(data, indices, indptr, i, V, s, c, nothing)
            moved = 0.0
            for r in range(R):
                moved += abs(c[r] - s[r])
                s[r] = c[r]
            if moved <= tol * total:
                break


@njit(cache=True, nogil=True, fastmath=VECTOR)
def divergences(data: Array, indices: Array, indptr: Array, V: Array, S: Array, out: Array) -> None:
    """Of each visit, Σ_j x log(x/m) − x + m: minus its log likelihood, up to what the data alone decides."""
    R = V.shape[1]
    for i in range(len(S)):
        value = 0.0
        for r in range(R):
            value += S[i, r]
        for e in range(indptr[i], indptr[i + 1]):
            mean = 0.0
            for r in range(R):
                mean += S[i, r] * V[indices[e], r]
            value += data[e] * (np.log(data[e] / max(mean, SMALLEST_MEAN)) - 1.0)
        out[i] = value
