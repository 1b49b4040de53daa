"""Granite: Poisson CP with columns of A and B that sum to one and are pushed apart where their cosine exceeds a limit.

    minimise  Σ x log(x/m) − x + m  +  N β/2 Σ_modes Σ_{r<s} max(0, cos(a_r, a_s) − θ)²,    m = Σ_r w_r∘a_r∘b_r

with N = Σ x, so that β has no unit. W by expectation–maximisation; A and B by projected gradient with backtracking, in
the metric of the Poisson likelihood: without the penalty, a full step is one of expectation–maximisation.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.cp.descent import descend
from phenotaste.core.kernels.jit import FASTMATH, kernel
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array

PATIENT_STEPS = 3  # of expectation–maximisation in an iteration
SMALL = 1e-3  # of the mean entry: a smaller one can become zero, and zero can become positive
ARMIJO = 1e-4  # a step must decrease the objective by this share of what its gradient promises
HALVINGS = 30


class Penalty(NamedTuple):
    weight: float  # N β
    limit: float  # θ


class State(NamedTuple):
    factors: Factors
    steps: tuple[float, float]  # the last step length of A and of B


def random_start(counts: Counts, R: int, rng: np.random.Generator) -> Factors:
    """Positive random A and B; every patient has equal scores."""
    A, B = (rng.uniform(size=(n, R)) + 0.1 for n in counts.shape[1:])
    return Factors(equal_scores(counts, R), A / A.sum(axis=0), B / B.sum(axis=0))


def equal_scores(counts: Counts, R: int) -> Array:
    """Each patient's total, shared equally."""
    totals = np.bincount(counts.patients, counts.values, len(counts.starts) - 1)
    return np.repeat(totals[:, None] / R, R, axis=1)


def fit(
    counts: Counts, start: Factors, penalty: Penalty, max_iter: int, tol: float
) -> tuple[Factors, list[float], Outcome]:
    """Iterate from `start` until the objective decreases by less than `tol` of itself."""
    x = counts.values
    constant = float(np.sum(x * np.log(x)) - x.sum())
    state, losses, outcome = descend(
        State(start, (1.0, 1.0)), partial(step, counts, penalty, constant), max_iter, tol
    )
    return state.factors, losses, outcome


def step(counts: Counts, penalty: Penalty, constant: float, state: State) -> tuple[State, float]:
    """Update W, A and B once, and return the objective."""
    factors, steps = state.factors, list(state.steps)
    factors = factors._replace(W=factors.W.copy())
    update_patients(counts, factors, PATIENT_STEPS, 0.0)
    for mode in (1, 2):
        factors, steps[mode - 1], value = update_factor(counts, factors, mode, penalty, steps[mode - 1])
    other = penalty.weight * angular(factors.A, penalty.limit)[0]
    return State(factors, (steps[0], steps[1])), constant + factors.W.sum() + value + other


def update_factor(
    counts: Counts, factors: Factors, mode: int, penalty: Penalty, length: float
) -> tuple[Factors, float, float]:
    """One projected gradient step of A or B; returns its length and −Σ x log m plus the penalty of this factor."""
    F = factors[mode]
    ratios = np.zeros(F.shape)
    value, slope = angular(F, penalty.limit)
    old = penalty.weight * value - log_likelihood(counts, factors, mode, ratios)
    gradient = penalty.weight * slope - ratios
    sizes = np.sum(F * ratios, axis=0)  # expected counts of each phenotype
    live = sizes > 0  # a phenotype that no patient has keeps its definition
    metric = np.maximum(F, SMALL / len(F)) / np.where(live, sizes, np.inf)
    length = min(1.0, 2.0 * length)
    for _ in range(HALVINGS):
        G = F.copy()
        for r in np.flatnonzero(live):
            G[:, r] = onto_simplex(F[:, r] - length * metric[:, r] * gradient[:, r], metric[:, r])
        trial = factors._replace(A=G) if mode == 1 else factors._replace(B=G)
        new = penalty.weight * angular(G, penalty.limit)[0]
        new -= log_likelihood(counts, trial, 0, ratios[:0])
        if new <= old + ARMIJO * float(np.sum(gradient * (G - F))):
            return trial, length, new
        length *= 0.5
    return factors, length, old


def angular(F: Array, limit: float) -> tuple[float, Array]:
    """½ Σ_{r<s} max(0, cos(f_r, f_s) − θ)², and its gradient."""
    lengths = np.linalg.norm(F, axis=0)
    unit = F / lengths
    cosines = unit.T @ unit
    excess = np.maximum(cosines - limit, 0.0)
    np.fill_diagonal(excess, 0.0)
    slope = (unit @ excess - unit * np.sum(excess * cosines, axis=0)) / lengths
    return 0.25 * float(np.sum(excess**2)), slope


def onto_simplex(y: Array, metric: Array) -> Array:
    """The f ≥ 0 with Σ f = 1 that minimises Σ (f − y)²/metric: max(0, y − τ metric), with τ from sorted y/metric."""
    y = y - np.max(y / metric) * metric  # the same f; its largest entries keep their digits
    order = np.argsort(-y / metric, kind="stable")
    tau = (np.cumsum(y[order]) - 1.0) / np.cumsum(metric[order])
    last = np.flatnonzero(y[order] > tau * metric[order])[-1]
    f = np.maximum(y - tau[last] * metric, 0.0)
    return f / f.sum()  # rounding errors of many steps must not add up


def update_patients(counts: Counts, factors: Factors, max_iter: int, tol: float) -> None:
    """Expectation–maximisation of W in place, until a step changes less than `tol` of a patient's counts."""
    em_rows(counts.values, counts.a, counts.b, counts.starts, *factors, max_iter, tol)


def project(counts: Counts, A: Array, B: Array, max_iter: int, tol: float) -> Array:
    """The maximum-likelihood scores of patients under A and B, each whatever the others are."""
    factors = Factors(equal_scores(counts, A.shape[1]), A, B)
    update_patients(counts, factors, max_iter, tol)
    return factors.W


def log_likelihood(counts: Counts, factors: Factors, mode: int, ratios: Array) -> float:
    """Σ x log m over the non-zeros; its gradient with respect to A or B is added to `ratios`, unless it has no rows."""
    return float(add_log_means(counts.values, counts.a, counts.b, counts.starts, *factors, mode, ratios))


@kernel(autovectorize=True, allocates=True, fastmath=FASTMATH)
def add_log_means(
    values: Array, a: Array, b: Array, starts: Array, W: Array, A: Array, B: Array, mode: int, ratios: Array
) -> float:
    """m is zero where no phenotype has this pair of codes; Σ x log m is then −∞."""
    R = A.shape[1]
    weighted, shares = np.empty(R), np.empty(R)
    gather = len(ratios) > 0
    total = 0.0
    for k in range(len(starts) - 1):
        e, end = starts[k], starts[k + 1]
        while e < end:
            i = a[e]
            for r in range(R):
                weighted[r] = W[k, r] * A[i, r]
            shares[:] = 0.0
            while e < end and a[e] == i:
                mean = 0.0
                for r in range(R):
                    mean += weighted[r] * B[b[e], r]
                total += values[e] * np.log(mean)
                if gather:
                    ratio = values[e] / mean
                    for r in range(R):
                        if mode == 1:
                            shares[r] += ratio * B[b[e], r]
                        else:
                            ratios[b[e], r] += ratio * weighted[r]
                e += 1
            if gather and mode == 1:
                for r in range(R):
                    ratios[i, r] += shares[r] * W[k, r]
    return total


@kernel(autovectorize=True, allocates=True, fastmath=FASTMATH)
def em_rows(
    values: Array,
    a: Array,
    b: Array,
    starts: Array,
    W: Array,
    A: Array,
    B: Array,
    max_iter: int,
    tol: float,
) -> None:
    """w_r ← w_r Σ x A_ir B_jr / m, patient by patient."""
    R = A.shape[1]
    weighted, shares, c = np.empty(R), np.empty(R), np.empty(R)
    for k in range(len(starts) - 1):
        w = W[k]
        total = np.sum(values[starts[k] : starts[k + 1]])
        for _ in range(max_iter if total > 0.0 else 0):
            c[:] = 0.0
            e, end = starts[k], starts[k + 1]
            while e < end:
                i = a[e]
                for r in range(R):
                    weighted[r] = w[r] * A[i, r]
                shares[:] = 0.0
                while e < end and a[e] == i:
                    mean = 0.0
                    for r in range(R):
                        mean += weighted[r] * B[b[e], r]
                    ratio = values[e] / mean if mean > 0.0 else 0.0  # no phenotype has this pair
                    for r in range(R):
                        shares[r] += ratio * B[b[e], r]
                    e += 1
                for r in range(R):
                    c[r] += weighted[r] * shares[r]
            change = 0.0
            for r in range(R):
                change += abs(c[r] - w[r])
                w[r] = c[r]
            if change <= tol * total:
                break
