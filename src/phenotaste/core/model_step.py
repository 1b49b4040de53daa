"""The model step: H, V and F from the patients' sums, and the objective, which the sums determine too."""

import numpy as np

from phenotaste.core.kernels.nnls import solve_rows_bpp, solve_rows_cd
from phenotaste.core.records import Array, Model, Sums

MIN_SCORE_RATIO = 1e-9  # a phenotype with smaller scores, relative to the largest, keeps its column of F
NEGLIGIBLE_SHARE = 1e-13  # of ‖X‖ or ‖A‖: a phenotype that explains less is rounding noise
MAX_SWEEPS, SWEEP_TOL = 200, 1e-9  # of coordinate descent, and the relative decrease at which it stops


def model_step(sums: Sums, model: Model, lam: float, *, normalize: bool, exact: bool) -> tuple[Model, float]:
    """Minimise over H, V and F given the patients; returns the model and its objective.

    With `normalize`, H has unit columns (a constrained minimum in closed form) and V's column norms move to
    the scores: the next patient step solves for those anew, so only F has to be rescaled.
    """
    H = solve_H(sums, model.H, normalize)
    V = drop_noise(solve_rows(sums.UU, sums.XU, model.V, exact), model.V, sums.UU, sums.scalars[0])
    F = drop_noise(solve_static(sums.WW, sums.AW, model.F, exact), model.F, sums.WW, sums.scalars[1])
    loss = objective(sums, Model(H, V, F), lam)
    if normalize:
        norms = np.linalg.norm(V, axis=0)
        norms[norms == 0] = 1.0
        V, F = V / norms, F / norms
    return Model(H, V, F), loss


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


def solve_static(WW: Array, AW: Array, F: Array, exact: bool) -> Array:
    """F, except columns of phenotypes with vanishing scores, which would diverge."""
    sizes = np.diagonal(WW)
    alive = sizes > MIN_SCORE_RATIO**2 * sizes.max(initial=0.0)
    if alive.all():
        return solve_rows(WW, AW, F, exact)
    new = np.array(F, dtype=np.float64)
    rest = AW - F[:, ~alive] @ WW[~alive]
    gram, right = np.ascontiguousarray(WW[np.ix_(alive, alive)]), np.ascontiguousarray(rest[:, alive])
    new[:, alive] = solve_rows(gram, right, F[:, alive], exact)
    return new


def objective(sums: Sums, model: Model, lam: float) -> float:
    """The objective from the sums alone, by expanding the squares."""
    x2, a2, mu, mu_u2, rough = sums.scalars
    visits = x2 - 2 * np.sum(sums.XU * model.V) + np.sum(sums.UU * (model.V.T @ model.V))
    static = a2 - 2 * np.sum(sums.AW * model.F) + np.sum(sums.WW * (model.F.T @ model.F))
    unique = mu_u2 - 2 * np.sum(sums.QU * model.H) + mu * np.sum(model.H**2)
    return float(0.5 * (max(visits, 0.0) + lam * max(static, 0.0) + unique + rough))
