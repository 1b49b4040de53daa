"""Non-negative CP by least squares: minimise ‖T − Σ_r w_r∘a_r∘b_r‖² over W, A, B ≥ 0.

Given the other two, each factor is the exact solution of non-negative least squares with one Gram matrix for all rows
(Kim & Park 2008), so the error never increases. Columns of A and B have length one, W carries the size.
"""

from functools import partial

import numpy as np

from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.cp.descent import descend
from phenotaste.core.cp.mttkrp import mttkrp, other_grams, squared_error
from phenotaste.core.kernels.nnls import solve_rows_bpp
from phenotaste.core.loop import Outcome
from phenotaste.core.records import Array


def random_start(shape: tuple[int, int, int], R: int, rng: np.random.Generator) -> Factors:
    """Positive random A and B with unit columns, and W = 0: the first update of W does not depend on W."""
    A, B = (unit(rng.uniform(size=(n, R)) + 0.1)[0] for n in shape[1:])
    return Factors(np.zeros((shape[0], R)), A, B)


def fit(counts: Counts, start: Factors, max_iter: int, tol: float) -> tuple[Factors, list[float], Outcome]:
    """Iterate from `start` until the error decreases by less than `tol` of itself."""
    size = float(np.sum(counts.values**2))
    return descend(start, partial(step, counts, size), max_iter, tol)


def step(counts: Counts, size: float, factors: Factors) -> tuple[Factors, float]:
    """Update W, A and B once, and return the error; size is ‖T‖²."""
    factors = factors._replace(W=project(counts, factors))
    for mode in (1, 2):
        product, gram = mttkrp(counts, factors, mode), other_grams(factors, mode)
        F = factors[mode].copy()
        solve_rows_bpp(gram, product, F)
        error = squared_error(size, product, gram, F)
        factors = normalised(factors, mode, F)
    return factors, error


def project(counts: Counts, factors: Factors) -> Array:
    """The scores of patients under A and B, each the exact minimum whatever the other patients are."""
    W = np.zeros((len(counts.starts) - 1, factors.A.shape[1]))
    solve_rows_bpp(other_grams(factors, 0), mttkrp(counts, factors._replace(W=W), 0), W)
    return W


def normalised(factors: Factors, mode: int, F: Array) -> Factors:
    """Replace A or B by F with unit columns and scale W; a column of zeros leaves the definition, and W becomes 0."""
    columns, lengths = unit(F)
    kept = np.where(lengths > 0, columns, factors[mode])
    scaled = factors.W * lengths
    return factors._replace(W=scaled, A=kept) if mode == 1 else factors._replace(W=scaled, B=kept)


def unit(F: Array) -> tuple[Array, Array]:
    """Columns divided by their length, and the lengths; zeros stay zeros."""
    lengths = np.linalg.norm(F, axis=0)
    return F / np.where(lengths > 0, lengths, 1.0), lengths
