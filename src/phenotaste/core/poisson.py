"""Poisson factorisation of counts: x_ij ~ Poisson(Σ_r s_ir V_jr), with s, V ≥ 0 and columns of V that sum to one.

Expectation–maximisation over the non-zeros: c_ir = Σ_j x_ij s_ir V_jr / m_ij distributes every count over the
phenotypes, and s_ir = c_ir then raises the likelihood without a step size. With a regulariser β(s − p)² + g s, where p
is a prediction of s and g a gradient, the next s is the positive root of a quadratic equation.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.jit import FASTMATH, kernel, part
from phenotaste.core.records import Array

MIN_MEAN = 1e-10  # lower bound of the mean, so that its logarithm is finite


class CsrCounts(NamedTuple):
    """Visits × features in CSR format."""

    data: Array
    indices: Array
    indptr: Array


class Regularisation(NamedTuple):
    """The regulariser of a batch of visits, row by row."""

    expected: Array  # predictions of s; the first `n_first` visits have none
    gradient: Array  # of the loss of later predictions
    n_first: int
    beta: float


@part(fastmath=FASTMATH)
def distribute(counts: CsrCounts, i: int, V: Array, s: Array, c: Array, T: Array) -> None:
    """c_r = Σ_j x_j s_r V_jr / m_j for visit i; each share is also added to T (J × R), unless T has no rows."""
    data, indices, indptr = counts.data, counts.indices, counts.indptr
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
            continue  # no phenotype has this feature
        ratio = data[e] / mean
        for r in range(R):
            share = ratio * s[r] * V[j, r]
            c[r] += share
            if gather:
                T[j, r] += share


@part
def positive_root(A: float, B: float, c: float) -> float:
    """The s ≥ 0 with A s² + B s = c, that is the minimum of ½A s² + B s − c log s."""
    root = max(np.sqrt(B * B + 4.0 * A * c), 2.0 * np.sqrt(A) * np.sqrt(c))  # the squares may underflow
    if B > 0.0:
        return 2.0 * c / (B + root)
    return (root - B) / (2.0 * A)


@kernel(autovectorize=True, allocates=True)
def patient_step(
    counts: CsrCounts, rows: Array, V: Array, S: Array, regularisation: Regularisation, T: Array
) -> None:
    """Update the visits `rows` of S in place, and add their shares to T.

    The gradient is valid only locally, hence a proximal term β(s − s_old)².
    """
    expected, gradient = regularisation.expected, regularisation.gradient
    beta, n_first = regularisation.beta, regularisation.n_first
    R = V.shape[1]
    c = np.empty(R)
    for k in range(rows.size):
        s = S[rows[k]]
        distribute(counts, rows[k], V, s, c, T)
        if beta == 0.0:
            s[:] = c
            continue
        for r in range(R):
            A, B = 2.0 * beta, 1.0 + gradient[k, r] - 2.0 * beta * s[r]
            if k >= n_first:
                A += 2.0 * beta
                B -= 2.0 * beta * expected[k, r]
            s[r] = positive_root(A, B, c[r])


@kernel(autovectorize=True, allocates=True)
def project_rows(counts: CsrCounts, V: Array, S: Array, tol: float, max_iter: int) -> None:
    """The maximum-likelihood S under a fixed V, from equal shares; each visit is iterated until it converges."""
    R = V.shape[1]
    c = np.empty(R)
    no_T = np.empty((0, R))
    for i in range(len(S)):
        s = S[i]
        total = 0.0
        for e in range(counts.indptr[i], counts.indptr[i + 1]):
            total += counts.data[e]
        s[:] = total / R
        for _ in range(max_iter if total > 0.0 else 0):
            distribute(counts, i, V, s, c, no_T)
            change = 0.0
            for r in range(R):
                change += abs(c[r] - s[r])
                s[r] = c[r]
            if change <= tol * total:
                break


@kernel(autovectorize=True, fastmath=FASTMATH)
def divergences(counts: CsrCounts, V: Array, S: Array, out: Array) -> None:
    """Σ_j x log(x/m) − x + m of each visit: its negative log likelihood, up to a constant of the data."""
    data, indices, indptr = counts.data, counts.indices, counts.indptr
    R = V.shape[1]
    for i in range(len(S)):
        value = 0.0
        for r in range(R):
            value += S[i, r]
        for e in range(indptr[i], indptr[i + 1]):
            mean = 0.0
            for r in range(R):
                mean += S[i, r] * V[indices[e], r]
            value += data[e] * (np.log(data[e] / max(mean, MIN_MEAN)) - 1.0)
        out[i] = value
