"""CP decomposition of sparse counts by alternating Poisson regression (CP-APR) with multiplicative updates.

E. C. Chi, T. G. Kolda: "On tensors, sparsity, and nonnegative factorizations", SIAM J. Matrix Anal. Appl. 2012.
The model is x ~ Poisson(Σ_r λ_r w_r ∘ a_r ∘ b_r) with columns that sum to one. `reference` is the readable version.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.cp.counts import Counts, Factors, block_edges
from phenotaste.core.kernels.jit import kernel, part
from phenotaste.core.kernels.simd import (
    LANES,
    aligned_matrix,
    aligned_vector,
    fma,
    lane_sum,
    load,
    splat,
    store,
)
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array

MAX_BLOCKS = 32  # of patients; they do not depend on the number of threads, so that no bit of a sum does
MIN_BLOCK = 2**14  # non-zeros
MIN_MEAN = 1e-10  # lower bound of a mean in the likelihood, so that its logarithm is finite

Mapper = Callable[[Callable[..., Any], Iterable[Any]], Iterable[Any]]


class AprOptions(NamedTuple):
    """The settings of Chi & Kolda with their defaults, and `loss_tol`, which is ours."""

    max_iter: int = 1000
    tol: float = 1e-4  # of the violation of the KKT conditions
    max_inner: int = 10  # updates of a factor in an iteration
    kappa: float = 0.01  # added to entries that are zero although the gradient would raise them
    kappa_tol: float = 1e-10  # entries below it are zero in this sense
    kappa_above: float = 1.0  # and multipliers above it would raise them
    epsilon: float = 1e-10  # lower bound of a mean that is divided by
    loss_tol: float = 0.0  # the fit also ends when the divergence changes by less than this part of itself


class AprFit(NamedTuple):
    factors: Factors  # A and B with columns that sum to one
    losses: list[float]  # Kullback–Leibler divergence after each iteration
    violations: list[float]  # largest violation of the KKT conditions in each iteration
    outcome: Outcome


class Scratch(NamedTuple):
    """Rows of one thread."""

    left: Array  # w ∘ A_a
    inner: Array  # Σ_b x/m B_b


class Stop(NamedTuple):
    """When the projection of a patient ends."""

    tol: float  # change of the expected counts, as a part of the patient's counts
    max_iter: int


# --- one pass over the non-zeros -----------------------------------------------------------------------------


@part(inline=True)
def mean_of(left: Array, B: Array, b: int) -> float:
    """Σ_r left_r B_br."""
    total = splat(0.0)
    for r in range(0, left.size, LANES):
        total = fma(load(left, r), load(B, (b, r)), total)
    return lane_sum(total)


@part
def pass_patient(
    counts: Counts, k: int, factors: Factors, mode: int, epsilon: float, scratch: Scratch, out: Array
) -> None:
    """Add Σ x/m · (product of the other two factors) over the non-zeros of patient k to the rows of `out`.

    All non-zeros with the same a share w ∘ A_a.
    """
    W, A, B = factors
    left, inner = scratch.left, scratch.inner
    e, end = counts.starts[k], counts.starts[k + 1]
    while e < end:
        a = counts.a[e]
        for r in range(0, left.size, LANES):
            store(left, r, load(W, (k, r)) * load(A, (a, r)))
            store(inner, r, splat(0.0))
        while e < end and counts.a[e] == a:
            b = counts.b[e]
            ratio = splat(counts.values[e] / max(mean_of(left, B, b), epsilon))
            if mode == 2:
                for r in range(0, left.size, LANES):
                    store(out, (b, r), fma(ratio, load(left, r), load(out, (b, r))))
            else:
                for r in range(0, left.size, LANES):
                    store(inner, r, fma(ratio, load(B, (b, r)), load(inner, r)))
            e += 1
        if mode == 0:
            for r in range(0, left.size, LANES):
                store(out, (k, r), fma(load(A, (a, r)), load(inner, r), load(out, (k, r))))
        elif mode == 1:
            for r in range(0, left.size, LANES):
                store(out, (a, r), fma(load(W, (k, r)), load(inner, r), load(out, (a, r))))


@kernel
def pass_block(
    counts: Counts,
    factors: Factors,
    mode: int,
    first: int,
    last: int,
    epsilon: float,
    scratch: Scratch,
    out: Array,
) -> None:
    """`pass_patient` of patients first..last."""
    for k in range(first, last):
        pass_patient(counts, k, factors, mode, epsilon, scratch, out)


@kernel
def divergence_block(counts: Counts, factors: Factors, first: int, last: int, scratch: Scratch) -> float:
    """Σ x log(x/m) − x over the non-zeros of patients first..last."""
    W, A, B = factors
    left = scratch.left
    total = 0.0
    for k in range(first, last):
        for e in range(counts.starts[k], counts.starts[k + 1]):
            if e == counts.starts[k] or counts.a[e] != counts.a[e - 1]:
                for r in range(0, left.size, LANES):
                    store(left, r, load(W, (k, r)) * load(A, (counts.a[e], r)))
            x = counts.values[e]
            total += x * (np.log(x / max(mean_of(left, B, counts.b[e]), MIN_MEAN)) - 1.0)
    return total


@kernel
def project_block(
    counts: Counts,
    factors: Factors,
    mass: Array,
    first: int,
    last: int,
    stop: Stop,
    scratch: Scratch,
    out: Array,
) -> None:
    """The maximum-likelihood W of patients first..last, from equal shares; each is iterated until it converges.

    `mass` is Σ A_r Σ B_r; the score of a phenotype without mass is zero. `out` is scratch of the shape of W.
    """
    W = factors.W
    for k in range(first, last):
        total = 0.0
        for e in range(counts.starts[k], counts.starts[k + 1]):
            total += counts.values[e]
        for r in range(mass.size):
            W[k, r] = total / mass[r] if mass[r] > 0.0 else 0.0
        for _ in range(stop.max_iter if total > 0.0 else 0):
            for r in range(mass.size):
                out[k, r] = 0.0
            pass_patient(counts, k, factors, 0, MIN_MEAN, scratch, out)
            change = 0.0
            for r in range(mass.size):
                if mass[r] > 0.0:
                    now = W[k, r] * out[k, r] / mass[r]
                    change += abs(now - W[k, r]) * mass[r]
                    W[k, r] = now
            if change <= stop.tol * total:
                break


# --- passes over all patients --------------------------------------------------------------------------------


class Passes:
    """Passes over all non-zeros in blocks of patients, on the threads of `run`; factors are padded.

    Parameters
    ----------
    run : like the built-in map; it may call in parallel.
    """

    def __init__(self, counts: Counts, run: Mapper = map) -> None:
        # Each block has its own sums over A and B, which are to need no more memory than its non-zeros.
        size = max(MIN_BLOCK, -(-len(counts.values) // MAX_BLOCKS), 4 * max(counts.shape[1:]))
        self.counts, self.run = counts, run
        self.blocks = list(pairwise(block_edges(counts.starts, size).tolist()))

    def multipliers(self, factors: Factors, mode: int, epsilon: float) -> Array:
        """Σ x/m · (product of the other two factors): what the update of this factor multiplies it by."""
        total = aligned_matrix(*factors[mode].shape)
        # Patients have rows of their own; the others are added up block by block.
        parts = [total if mode == 0 else np.zeros_like(total) for _ in self.blocks]
        counts, width = self.counts, total.shape[1]
        self._each(
            lambda i: pass_block(counts, factors, mode, *self.blocks[i], epsilon, scratch_of(width), parts[i])
        )
        for part_of_total in parts if mode > 0 else []:
            total += part_of_total
        return total

    def divergence(self, factors: Factors) -> float:
        """Σ x log(x/m) − x + m over the whole tensor: the negative log likelihood, up to a constant of the data."""
        counts, width = self.counts, factors.W.shape[1]
        parts = self._each(lambda i: divergence_block(counts, factors, *self.blocks[i], scratch_of(width)))
        mass = np.prod([factor.sum(axis=0) for factor in factors], axis=0).sum()
        return float(sum(parts) + mass)

    def project(self, A: Array, B: Array, stop: Stop) -> Array:
        """Maximum-likelihood scores under unpadded A and B; those of a patient do not depend on the others."""
        K, R = self.counts.shape[0], A.shape[1]
        mass = A.sum(axis=0) * B.sum(axis=0)
        factors = Factors(aligned_matrix(K, R), padded(A), padded(B))
        out = np.zeros_like(factors.W)
        counts, width = self.counts, out.shape[1]
        self._each(
            lambda i: project_block(counts, factors, mass, *self.blocks[i], stop, scratch_of(width), out)
        )
        return np.ascontiguousarray(factors.W[:K, :R])

    def _each(self, task: Callable[[int], Any]) -> list[Any]:
        return list(self.run(task, range(len(self.blocks))))


def scratch_of(width: int) -> Scratch:
    return Scratch(aligned_vector(width), aligned_vector(width))


def padded(matrix: Array) -> Array:
    """The matrix with both sides padded with zeros, for vectors of eight."""
    out = aligned_matrix(*matrix.shape)
    out[: matrix.shape[0], : matrix.shape[1]] = matrix
    return out


def normalise(factor: Array) -> Array:
    """Divide columns by their sums in place, and return the sums; columns of zeros remain."""
    sums = factor.sum(axis=0)
    factor /= np.where(sums > 0, sums, 1.0)
    return sums


def zero_small(factor: Array, threshold: float) -> Array:
    """Columns that sum to one, without entries below the threshold; the largest entry of a column always remains."""
    kept = np.where((factor >= threshold) | (factor == factor.max(axis=0)), factor, 0.0)
    normalise(kept)
    return kept


# --- the fit -------------------------------------------------------------------------------------------------


def random_start(shape: tuple[int, int, int], rank: int, rng: np.random.Generator) -> Factors:
    """Entries uniform in (0, 1), as in Chi & Kolda."""
    W, A, B = (rng.random((n, rank)) for n in shape)
    return Factors(W, A, B)


def cp_apr(passes: Passes, start: Factors, options: AprOptions) -> AprFit:
    """CP-APR from a start of any scale; the divergence does not rise except when zeros are lifted by `kappa`."""
    factors = Factors(*(padded(factor) for factor in start))
    weights = np.prod([normalise(factor) for factor in factors], axis=0)
    multipliers: list[Array | None] = [None, None, None]
    losses: list[float] = []
    violations: list[float] = []
    outcome = Outcome.MAX_ITER
    while outcome is Outcome.MAX_ITER and len(losses) < options.max_iter:
        worst = []
        converged = True
        for mode, factor in enumerate(factors):
            lift_zeros(factor, multipliers[mode], options)
            factor *= weights
            multipliers[mode], violation, updates = update_factor(passes, factors, mode, options)
            weights = normalise(factor)
            worst.append(violation)
            converged &= updates == 0
        losses.append(passes.divergence(factors._replace(B=factors.B * weights)))
        violations.append(max(worst))
        if not np.isfinite(losses[-1]):
            outcome = Outcome.NOT_FINITE
        elif converged or settled(losses, options.loss_tol):
            outcome = Outcome.CONVERGED
    return AprFit(unpadded(factors, weights, start), losses, violations, outcome)


def settled(losses: list[float], tol: float) -> bool:
    """Whether the last iteration changed the divergence by less than this part of it."""
    return tol > 0.0 and len(losses) > 1 and abs(losses[-2] - losses[-1]) < tol * abs(losses[-1])


def lift_zeros(factor: Array, multiplier: Array | None, options: AprOptions) -> None:
    """Raise entries that are zero although the likelihood would rise with them; updates alone never would."""
    if multiplier is not None:
        factor[(multiplier > options.kappa_above) & (factor < options.kappa_tol)] += options.kappa


def update_factor(
    passes: Passes,
    factors: Factors,
    mode: int,
    options: AprOptions,
    columns: slice = slice(None),
    keep_zeros: bool = False,
) -> tuple[Array, float, int]:
    """Multiplicative updates of columns of one factor in place until they satisfy the KKT conditions.

    Returns the last multipliers, the violation that they show, and the number of updates. With `keep_zeros` entries
    of zero are fixed and violate nothing.
    """
    factor = factors[mode][:, columns]
    for update in range(options.max_inner):
        multiplier = passes.multipliers(factors, mode, options.epsilon)[:, columns]
        gaps = np.abs(np.minimum(factor, 1.0 - multiplier))
        violation = float(gaps.max(initial=0.0, where=factor > 0 if keep_zeros else True))
        if violation < options.tol:
            return multiplier, violation, update
        factor *= multiplier
    return multiplier, violation, options.max_inner


def unpadded(factors: Factors, weights: Array, start: Factors) -> Factors:
    """The factors without padding, W with the weights."""
    (K, R), n_a, n_b = start.W.shape, len(start.A), len(start.B)
    return Factors((factors.W * weights)[:K, :R], factors.A[:n_a, :R].copy(), factors.B[:n_b, :R].copy())
