"""Alternating fit of PARAFAC2 with exact cross-products: Q and w of the patients, then H, then V and F."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from phenotaste.core.loop import Outcome
from phenotaste.core.model_step import has_scores, solve_columns, solve_rows
from phenotaste.core.parafac2.kernels import ModelProducts, Parafac2Sums, model_products
from phenotaste.core.projection import BETA_GROWTH, BETA_INIT, BETA_MAX
from phenotaste.core.records import Array, Model

# Extrapolating from the first iteration on, 3 of 8 random starts ended at a higher minimum than plain steps did; after
# ten plain steps none did, and a quarter of the iterations remained.
PLAIN_ITERATIONS = 10
GRAM_RTOL = 1e-12  # eigenvalues of a Gram matrix below this share of the largest count as zero


class Engine(Protocol):
    """Holds the patients' data, Q and W, and runs the patient step over them."""

    W: Array
    duals: Array

    def step(self, model: ModelProducts) -> Parafac2Sums: ...

    def course_sum(self, H: Array) -> Array: ...


class Updates(Protocol):
    """How H, V and F are computed from their Gram matrices and right-hand sides."""

    scores_carry_size: bool  # V has unit columns and W the scale; otherwise the reverse
    exact: bool  # every update is a minimum given the rest, so that steps may be extrapolated and rejected
    signed: bool  # V and W may be negative

    def H(self, gram: Array, right: Array, H: Array) -> Array: ...

    def V(self, gram: Array, right: Array, V: Array) -> Array: ...

    def F(self, gram: Array, right: Array, F: Array) -> Array: ...

    def rho(self, model: Model, lam: float) -> float:
        """The step size of ADMM for the scores, 0 with other solvers."""

    def penalty(self, V: Array) -> float: ...

    def rescale(self, H: Array, V: Array, F: Array) -> None:
        """Rescale stored state after the columns of H, V and F were multiplied by these."""


class AlternatingLeastSquares:
    """H by least squares; V by least squares or NNLS; F by NNLS. Every update is an exact minimum."""

    scores_carry_size = True
    exact = True

    def __init__(self, nonnegative: bool) -> None:
        self.signed = not nonnegative

    def H(self, gram: Array, right: Array, H: Array) -> Array:
        return least_squares(gram, right, H)

    def V(self, gram: Array, right: Array, V: Array) -> Array:
        return least_squares(gram, right, V) if self.signed else solve_rows(gram, right, V, exact=True)

    def F(self, gram: Array, right: Array, F: Array) -> Array:
        return solve_columns(gram, right, F, has_scores(gram), exact=True)

    def rho(self, model: Model, lam: float) -> float:
        return 0.0

    def penalty(self, V: Array) -> float:
        return 0.0

    def rescale(self, H: Array, V: Array, F: Array) -> None:
        """No state is stored."""


def least_squares(gram: Array, right: Array, warm: Array) -> Array:
    """Rows that minimise ½ x G xᵀ − b xᵀ; a column with a zero diagonal stays as it is."""
    solution = right @ np.linalg.pinv(gram, rcond=GRAM_RTOL, hermitian=True)
    return np.where(np.diagonal(gram) > 0, solution, warm)


class Parafac2Fit(NamedTuple):
    model: Model
    losses: list[float]
    outcome: Outcome


class Factors(NamedTuple):
    """What an iteration starts from: Q follows from it."""

    H: Array
    V: Array
    F: Array
    W: Array


def fit(
    engine: Engine,
    model: Model,
    updates: Updates,
    sizes: tuple[float, float],
    *,
    lam: float,
    max_iter: int,
    tol: float,
    callback: Callable[[int, float], object] | None = None,
) -> Parafac2Fit:
    """Alternate until the relative change of the objective is below `tol`; `sizes` are ‖X‖² and ‖A‖².

    Exact updates start from extrapolated factors, as in `loop.fit`: a step that does not lower the objective is
    rejected and the next one is plain. The engine ends with the Q and W of the returned model, whose V has unit
    columns.
    """
    losses: list[float] = []
    last_total, outcome = np.inf, Outcome.MAX_ITER
    floor = 1e-12 * 0.5 * (sizes[0] + lam * sizes[1])
    current = previous = Factors(*model, engine.W.copy())
    beta, next_beta = 0.0, BETA_INIT if updates.exact else 0.0
    for iteration in range(1, max_iter + 1):
        start = extrapolate(current, previous, beta, updates.signed)
        engine.W = start.W.copy()
        new, loss = one_iteration(engine, Model(*start[:3]), updates, sizes, lam)
        rejected = (
            updates.exact and bool(losses) and not loss <= losses[-1] and (beta > 0 or np.isfinite(loss))
        )
        stuck = rejected and beta == 0  # an exact plain step can rise only by rounding
        if rejected:
            next_beta, beta = next_beta / 2, 0.0
            losses.append(losses[-1])
        else:
            previous, current = current, Factors(*new, engine.W.copy())
            if iteration >= PLAIN_ITERATIONS:
                beta, next_beta = next_beta, min(next_beta * BETA_GROWTH, BETA_MAX)
            losses.append(loss)
        total = losses[-1] + updates.penalty(current.V)
        if not np.isfinite(total):
            outcome = Outcome.NOT_FINITE
            break
        if callback is not None and callback(iteration, losses[-1]) is True:
            outcome = Outcome.STOPPED
            break
        converged = not rejected and abs(last_total - total) < tol * max(losses[-1], floor)
        if tol > 0 and (stuck or converged):
            outcome = Outcome.CONVERGED
            break
        last_total = total
    engine.W = current.W
    model = balance(engine, Model(*current[:3]), updates, scores_carry_size=True)
    engine.step(model_products(*model, lam, updates.rho(model, lam)))
    return Parafac2Fit(model, losses, outcome)


def extrapolate(current: Factors, previous: Factors, beta: float, signed: bool) -> Factors:
    """current + β (current − previous), with non-negative factors clipped at zero."""
    if beta == 0.0:
        return current
    H, V, F, W = (new + beta * (new - old) for new, old in zip(current, previous, strict=True))
    return Factors(H, V, F, W) if signed else Factors(H, np.maximum(V, 0), np.maximum(F, 0), np.maximum(W, 0))


def one_iteration(
    engine: Engine, model: Model, updates: Updates, sizes: tuple[float, float], lam: float
) -> tuple[Model, float]:
    """Q and w, then H, V and F; returns the model with scaled columns, and its objective."""
    sums = engine.step(model_products(*model, lam, updates.rho(model, lam)))
    H = updates.H(sums.WW * (model.V.T @ model.V), sums.QX, model.H)
    XU, gram = engine.course_sum(H), sums.WW * (H.T @ H)
    V = updates.V(gram, XU, model.V)
    F = updates.F(sums.WW_all, sums.AW, model.F)
    visits = sizes[0] - 2 * np.sum(XU * V) + np.sum(gram * (V.T @ V))
    static = sizes[1] - 2 * np.sum(sums.AW * F) + np.sum(sums.WW_all * (F.T @ F))
    loss = float(0.5 * (max(visits, 0.0) + lam * max(static, 0.0)))
    return balance(engine, Model(H, V, F), updates, updates.scores_carry_size), loss


def balance(engine: Engine, model: Model, updates: Updates, scores_carry_size: bool) -> Model:
    """Unit columns for H, and for V or W depending on `scores_carry_size`; their products do not change."""
    h = 1 / norms(model.H)
    if scores_carry_size:
        v = 1 / norms(model.V)
        w = 1 / (h * v)
    else:
        w = 1 / norms(engine.W)
        v = 1 / (h * w)
    engine.W *= w
    engine.duals *= w
    updates.rescale(h, v, 1 / w)
    return Model(model.H * h, model.V * v, model.F / w)


def norms(M: Array) -> Array:
    size = np.linalg.norm(M, axis=0)
    return np.where((size > 0) & np.isfinite(size), size, 1.0)
