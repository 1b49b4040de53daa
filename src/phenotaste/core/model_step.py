"""The model step: H, V and F from the patients' sums, and the objective, which the sums determine too."""

import numpy as np

from phenotaste.core.constraints import NO_CONSTRAINTS, Constraints, keep_fixed, solve_in_cones
from phenotaste.core.kernels.nnls import solve_rows_bpp, solve_rows_cd
from phenotaste.core.records import Array, Model, Sums

MIN_SCORE_RATIO = 1e-9  # a phenotype with smaller scores, relative to the largest, keeps its column of F
NEGLIGIBLE_SHARE = 1e-13  # of ‖X‖ or ‖A‖: a phenotype that explains less is rounding noise
MAX_SWEEPS, SWEEP_TOL = 200, 1e-9  # of coordinate descent, and the relative decrease at which it stops


def model_step(
    sums: Sums,
    model: Model,
    lam: float,
    *,
    normalize: bool,
    exact: bool,
    constraints: Constraints = NO_CONSTRAINTS,
) -> tuple[Model, float]:
    """Minimise over H, V and F given the patients; returns the model and its objective.

    With `normalize`, H has unit columns (a constrained minimum in closed form) and V's column norms move to
    the scores: the next patient step solves for those anew, so only F has to be rescaled.

    Columns of V and F without a constraint come first, then those in cones, one by one; each minimises over itself.
    """
    H, rank = solve_H(sums, model.H, normalize), model.V.shape[1]
    free = constraints.free(rank, constraints.V)
    V = drop_noise(solve_columns(sums.UU, sums.XU, model.V, free, exact), model.V, sums.UU, sums.scalars[0])
    V = solve_in_cones(sums.UU, sums.XU, V, constraints.V)
    free = constraints.free(rank, constraints.F) & has_scores(sums.WW)
    F = drop_noise(solve_columns(sums.WW, sums.AW, model.F, free, exact), model.F, sums.WW, sums.scalars[1])
    F = solve_in_cones(sums.WW, sums.AW, F, constraints.F)
    loss = objective(sums, Model(H, V, F), lam)
    if normalize:
        norms = np.linalg.norm(V, axis=0)
        norms[norms == 0] = 1.0
        V, F = V / norms, F / norms
    return keep_fixed(Model(H, V, F), model, constraints.fixed), loss


def unit_columns(M: Array) -> Array:
    norms = np.linalg.norm(M, axis=0)
    return M / np.where(norms > 0, norms, 1.0)


def solve_H(sums: Sums, H: Array, normalize: bool) -> Array:
    if not normalize:
        return sums.QU / sums.scalars[2] if sums.scalars[2] > 0 else H
    return np.where(
        np.any(sums.QU, axis=0), unit_columns(sums.QU), H
    )  # a column to which no patient contributes stays


def solve_rows(gram: Array, right: Array, warm: Array, exact: bool) -> Array:
    rows = np.array(warm, dtype=np.float64, order="C")
    if exact:
        solve_rows_bpp(gram, right, rows)
    else:
        solve_rows_cd(gram, right, rows, MAX_SWEEPS, SWEEP_TOL)
    return rows


def drop_noise(new: Array, old: Array, gram: Array, size: float) -> Array:
    """Set columns to zero that are rounding noise in data of this size: scaled to unit norm they would look real.

    A column stays as it was if the scores do not determine it, so that it can recover.
    """
    floor = NEGLIGIBLE_SHARE**2 * size / np.maximum(np.diagonal(gram), np.finfo(float).tiny)
    noise, undetermined = (np.sum(factor**2, axis=0) <= floor for factor in (new, old))
    return np.where(noise, np.where(undetermined, old, 0.0), new)


def has_scores(WW: Array) -> Array:
    """A mask of the phenotypes whose scores do not vanish: columns of F of the others would diverge."""
    sizes = np.diagonal(WW)
    return np.asarray(sizes > MIN_SCORE_RATIO**2 * sizes.max(initial=0.0))


def solve_columns(gram: Array, right: Array, factor: Array, chosen: Array, exact: bool) -> Array:
    """The factor with the columns in the mask minimised and the others as they are."""
    if chosen.all():
        return solve_rows(gram, right, factor, exact)
    new = np.array(factor, dtype=np.float64)
    if chosen.any():
        rest = right - factor[:, ~chosen] @ gram[~chosen]
        inner = np.ascontiguousarray(gram[np.ix_(chosen, chosen)])
        new[:, chosen] = solve_rows(inner, np.ascontiguousarray(rest[:, chosen]), factor[:, chosen], exact)
    return new


def objective(sums: Sums, model: Model, lam: float) -> float:
    """The objective from the sums alone, by expanding the squares."""
    x2, a2, mu, mu_u2, rough = sums.scalars
    visits = x2 - 2 * np.sum(sums.XU * model.V) + np.sum(sums.UU * (model.V.T @ model.V))
    static = a2 - 2 * np.sum(sums.AW * model.F) + np.sum(sums.WW * (model.F.T @ model.F))
    unique = mu_u2 - 2 * np.sum(sums.QU * model.H) + mu * np.sum(model.H**2)
    return float(0.5 * (max(visits, 0.0) + lam * max(static, 0.0) + unique + rough))
