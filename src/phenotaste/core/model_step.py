"""The model step: H, V and F from the patients' sums, and the objective that comes with it for free."""

import numpy as np

from phenotaste.core.kernels.nnls import rows_by_descent, rows_by_pivoting
from phenotaste.core.records import Array, Model, Sums

FAINT = 1e-9  # scores this small beside the largest phenotype's leave their column of F as it is
NOISE = 1e-13  # share of ‖X‖ or ‖A‖ below which a phenotype's part in it is rounding
DESCENT = 200, 1e-9  # sweeps at most, and the gain (as a share of a row's size) that ends them


def model_step(sums: Sums, model: Model, lam: float, *, normalize: bool, exact: bool) -> tuple[Model, float]:
    """Minimise over H, V and F given the patients; returns the model and the objective it reaches.

    With `normalize`, H has unit columns (a constrained minimum in closed form) and V's column norms move to
    the scores: the next patient step solves for those anew, so only F has to be told.
    """
    H = solve_H(sums, model.H, normalize)
    V = without_noise(solve_rows(sums.UU, sums.XU, model.V, exact), model.V, sums.UU, sums.scalars[0])
    F = without_noise(solve_static(sums.WW, sums.AW, model.F, exact), model.F, sums.WW, sums.scalars[1])
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
    return np.where(np.any(sums.QU, axis=0), unit_columns(sums.QU), H)  # a column nobody speaks for stays


def solve_rows(gram: Array, right: Array, warm: Array, exact: bool) -> Array:
    rows = np.array(warm, dtype=np.float64, order="C")
    if exact:
        rows_by_pivoting(gram, right, rows)
    else:
        rows_by_descent(gram, right, rows, *DESCENT)
    return rows


def without_noise(found: Array, before: Array, gram: Array, size: float) -> Array:
    """Columns whose part in data of this size is mere rounding become zero: at unit norm they would pass for real.

    Where nobody's scores could tell either way the column stays as it was, so that it can come back.
    """
    least = NOISE**2 * size / np.maximum(np.diagonal(gram), np.finfo(float).tiny)
    noise, unseen = (np.sum(factor**2, axis=0) <= least for factor in (found, before))
    return np.where(noise, np.where(unseen, before, 0.0), found)


def solve_static(WW: Array, AW: Array, F: Array, exact: bool) -> Array:
    """F, but for phenotypes that hardly anybody has: a score that fades for good would send its column to infinity."""
    sizes = np.diagonal(WW)
    alive = sizes > FAINT**2 * sizes.max(initial=0.0)
    if alive.all():
        return solve_rows(WW, AW, F, exact)
    found = np.array(F, dtype=np.float64)
    rest = AW - F[:, ~alive] @ WW[~alive]
    gram, right = np.ascontiguousarray(WW[np.ix_(alive, alive)]), np.ascontiguousarray(rest[:, alive])
    found[:, alive] = solve_rows(gram, right, F[:, alive], exact)
    return found


def objective(sums: Sums, model: Model, lam: float) -> float:
    """The whole objective from the sums: expanded squares, so no patient has to be looked at again."""
    x2, a2, mu, mu_u2 = sums.scalars
    visits = x2 - 2 * np.sum(sums.XU * model.V) + np.sum(sums.UU * (model.V.T @ model.V))
    static = a2 - 2 * np.sum(sums.AW * model.F) + np.sum(sums.WW * (model.F.T @ model.F))
    unique = mu_u2 - 2 * np.sum(sums.QU * model.H) + mu * np.sum(model.H**2)
    return float(0.5 * (max(visits, 0.0) + lam * max(static, 0.0) + unique))
