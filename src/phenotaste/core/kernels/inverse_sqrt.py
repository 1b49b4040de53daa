"""f(C) = C^(-1/2) without eigenvectors: C = P T Pᵀ, and x^(-1/2) ≈ Σ w_p / (x + s_p), exact to rounding on an interval.

The sum is Zolotarev's, as a quadrature by Hale, Higham & Trefethen (2008): N poles on the negative axis, positive
weights, an error that falls like exp(−2π²N / (log κ + 3)) on eigenvalues from 1/κ to 1. All inverses (T + s_p)⁻¹ are
computed together, one pole per lane, and only positive numbers are added. That is four times as fast as rotating
eigenvectors. Matrices too ill-conditioned for the largest number of poles are left to `polar`.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ellipkm1

from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.simd import (
    LANES,
    aligned_matrix,
    aligned_vector,
    fma,
    load,
    minimum,
    splat,
    store,
)
from phenotaste.core.kernels.tridiagonal import Reduction, new_reduction, to_tridiagonal
from phenotaste.core.records import Array

POLES = (16, 24, 32, 40)
CONDITION_LIMITS = (3e3, 8e5, 2e8, 4e10)  # κ up to which that number of poles has a relative error of 3e-12


def jacobi(u: Array, rest: float) -> tuple[Array, Array, Array]:
    """sn, cn and dn of parameter 1 − rest, by Landen's transformation (Bulirsch 1965); scipy's would round 1 − rest."""
    scales, a, square = [], 1.0, rest
    while True:
        root = np.sqrt(square)
        scales.append((a, root))
        mean = (a + root) / 2
        if abs(a - root) <= 1e-9 * a:
            break
        a, square = mean, a * root
    sine, cosine = np.sin(mean * u), np.cos(mean * u)
    dn, c = np.ones_like(u), mean * cosine / sine
    ratio = cosine / sine
    for scale, root in reversed(scales):
        ratio, c = c * ratio, c * dn
        dn, ratio = (root + ratio) / (scale + ratio), c / scale
    sn = np.sign(sine) / np.sqrt(c**2 + 1)
    return sn, c * sn, dn


def zolotarev_poles(count: int, condition: float) -> tuple[Array, Array]:
    """s and w of the sum with `count` poles, for eigenvalues from 1/condition to 1."""
    quarter = ellipkm1(1 / condition)
    sn, cn, dn = jacobi((np.arange(count) + 0.5) * quarter / count, 1 / condition)
    return (sn / cn) ** 2 / condition, 2 * quarter / (np.pi * count * np.sqrt(condition)) * dn / cn**2


def pole_tables() -> tuple[Array, Array, Array]:
    """Shifts and weights, one row per number of poles, and the smallest eigenvalue each is valid for."""
    shifts, weights = np.zeros((len(POLES), max(POLES))), np.zeros((len(POLES), max(POLES)))
    least = np.ones(LANES)
    for row, (count, condition) in enumerate(zip(POLES, CONDITION_LIMITS, strict=True)):
        shifts[row, :count], weights[row, :count] = zolotarev_poles(count, condition)
        least[row] = 1 / condition
    return shifts, weights, least


SHIFTS, WEIGHTS, EIG_MIN = pole_tables()
UNIT = np.eye(LANES)


class InvSqrtScratch(NamedTuple):
    """Scratch for one inverse square root of up to R × R."""

    reduction: Reduction
    ratios: Array  # R × poles
    diagonals: Array  # R × poles
    min_pivots: Array


def new_inv_sqrt_scratch(R: int) -> InvSqrtScratch:
    return InvSqrtScratch(
        new_reduction(R), aligned_matrix(R, max(POLES)), aligned_matrix(R, max(POLES)), aligned_vector(LANES)
    )


@part
def inverse_sqrt_rational(C: Array, n: int, floor: float, scratch: InvSqrtScratch, out: Array) -> bool:
    """f(T) for the first n rows of C, with P left in `scratch.reduction`; False if an eigenvalue may be below `floor`.

    C is overwritten, and its padding beyond the first n rows and columns must be zero. False also for a condition
    number beyond `CONDITION_LIMITS`, and for NaN or infinity.
    """
    to_tridiagonal(C, n, scratch.reduction)
    d, e = scratch.reduction.diagonal, scratch.reduction.off_diagonal
    eig_max = d[0]  # no eigenvalue is above this (Gershgorin)
    for i in range(n):
        radius = (abs(e[i - 1]) if i > 0 else 0.0) + (abs(e[i]) if i < n - 1 else 0.0)
        eig_max = max(eig_max, d[i] + radius)
    table = select_poles(d, e, n, eig_max, floor, scratch.min_pivots)
    if table < 0:
        return False
    resolvents(d, e, n, eig_max, table, scratch)
    sum_resolvents(n, POLES[table], scratch, out)
    return True


@part(inline=True)
def select_poles(d: Array, e: Array, n: int, eig_max: float, floor: float, min_pivots: Array) -> int:
    """The first table whose interval contains all eigenvalues of T (T minus its lower end has pivots > 0); else −1."""
    end = splat(eig_max) * load(EIG_MIN, 0)
    pivot = splat(d[n - 1]) - end
    least = pivot
    for i in range(n - 2, -1, -1):
        pivot = splat(d[i]) - end - splat(e[i] * e[i]) / pivot
        least = minimum(least, pivot)
    store(min_pivots, 0, least)
    for table in range(len(POLES)):
        if min_pivots[table] > 0.0 and eig_max * EIG_MIN[table] >= floor:
            return table
    return -1


@part(inline=True)
def resolvents(d: Array, e: Array, n: int, eig_max: float, table: int, scratch: InvSqrtScratch) -> None:
    """Generators of w (T + s)⁻¹: its diagonal, and the ratio of each entry to the one left of it.

    From the pivots γ of T + s, last row first: ratio_i = −e_(i−1)/γ_i and g_ii = 1/γ_i + ratio_i² g_(i−1)(i−1).
    """
    ratios, diagonals = scratch.ratios, scratch.diagonals
    one = splat(1.0)
    for p in range(0, POLES[table], LANES):
        shift = splat(eig_max) * load(SHIFTS, (table, p))
        weight = splat(np.sqrt(eig_max)) * load(WEIGHTS, (table, p))
        inverse = one / (splat(d[n - 1]) + shift)
        for i in range(n - 2, -1, -1):
            ratio = splat(-e[i]) * inverse
            store(ratios, (i + 1, p), ratio)
            store(diagonals, (i + 1, p), inverse)
            inverse = one / fma(splat(e[i]), ratio, splat(d[i]) + shift)
        entry = weight * inverse
        store(diagonals, (0, p), entry)
        store(ratios, (0, p), splat(0.0))
        for i in range(1, n):
            ratio = load(ratios, (i, p))
            entry = fma(ratio * ratio, entry, weight * load(diagonals, (i, p)))
            store(diagonals, (i, p), entry)


@part(inline=True)
def sum_resolvents(n: int, count: int, scratch: InvSqrtScratch, out: Array) -> None:
    """Σ_p w_p (T + s_p)⁻¹: eight columns of eight resolvents at a time, row by row from the diagonal down."""
    ratio, diagonal = scratch.ratios, scratch.diagonals
    for i in range(0, n, LANES):
        for p in range(0, count, LANES):
            c0 = splat(0.0)
            c1, c2, c3, c4, c5, c6, c7 = c0, c0, c0, c0, c0, c0, c0
            for j in range(i, n):
                c0, c1 = c0 * splat(ratio[j, p]), c1 * splat(ratio[j, p + 1])
                c2, c3 = c2 * splat(ratio[j, p + 2]), c3 * splat(ratio[j, p + 3])
                c4, c5 = c4 * splat(ratio[j, p + 4]), c5 * splat(ratio[j, p + 5])
                c6, c7 = c6 * splat(ratio[j, p + 6]), c7 * splat(ratio[j, p + 7])
                if j < i + LANES:  # column j starts here
                    one = load(UNIT, (j - i, 0))
                    c0 = fma(one, splat(diagonal[j, p]), c0)
                    c1 = fma(one, splat(diagonal[j, p + 1]), c1)
                    c2 = fma(one, splat(diagonal[j, p + 2]), c2)
                    c3 = fma(one, splat(diagonal[j, p + 3]), c3)
                    c4 = fma(one, splat(diagonal[j, p + 4]), c4)
                    c5 = fma(one, splat(diagonal[j, p + 5]), c5)
                    c6 = fma(one, splat(diagonal[j, p + 6]), c6)
                    c7 = fma(one, splat(diagonal[j, p + 7]), c7)
                entries = ((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7))
                store(out, (j, i), entries if p == 0 else entries + load(out, (j, i)))
    for i in range(n):
        for j in range(i):
            out[j, i] = out[i, j]
