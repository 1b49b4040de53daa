"""Alternating fit of PARAFAC2 with exact cross-products: Q and w of the patients, then H, then V and F."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from phenotaste.core.loop import Outcome
from phenotaste.core.model_step import solve_rows, solve_static
from phenotaste.core.parafac2.kernels import ModelProducts, Parafac2Sums, model_products
from phenotaste.core.projection import BETA_GROWTH, BETA_INIT, BETA_MAX
from phenotaste.core.records import Array, Model

# Extrapolated from the very first iteration on, 3 of 8 random starts ended at a higher minimum than plain steps did;
# after ten plain ones none did, and a quarter of the iterations remained.
PLAIN_FIRST = 10
SINGULAR = 1e-12  # eigenvalues of a Gram matrix below this share of the largest carry nothing


class Engine(Protocol):
    """Holds the patients' data, Q and W, and runs the patient step over them."""

    W: Array
    duals: Array

    def step(self, model: ModelProducts) -> Parafac2Sums: ...

    def course_sum(self, H: Array) -> Array: ...


class Updates(Protocol):
    """How H, V and F follow from their Gram matrices and right-hand sides."""

    scores_carry_size: bool  # V has unit columns and W the size; otherwise W has, and V carries it
    exact: bool  # every update is a minimum given the rest, so that steps may be extrapolated and undone
    signed: bool  # V and W may be negative

    def H(self, gram: Array, right: Array, H: Array) -> Array: ...

    def V(self, gram: Array, right: Array, V: Array) -> Array: ...

    def F(self, gram: Array, right: Array, F: Array) -> Array: ...

    def rho(self, model: Model, lam: float) -> float:
        """The step size of the scores' ADMM, 0 where they are solved otherwise."""

    def penalty(self, V: Array) -> float: ...

    def rescale(self, H: Array, V: Array, F: Array) -> None:
        """Columns were multiplied by these: whatever is remembered of them must follow."""


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
        return solve_static(gram, right, F, exact=True)

    def rho(self, model: Model, lam: float) -> float:
        return 0.0

    def penalty(self, V: Array) -> float:
        return 0.0

    def rescale(self, H: Array, V: Array, F: Array) -> None:
        """Nothing is remembered."""


def least_squares(gram: Array, right: Array, warm: Array) -> Array:
    """Rows that minimise ½ x G xᵀ − b xᵀ; a column that nobody has anything of stays as it is."""
    found = right @ np.linalg.pinv(gram, rcond=SINGULAR, hermitian=True)
    return np.where(np.diagonal(gram) > 0, found, warm)


class Found(NamedTuple):
    model: Model
    losses: list[float]
    outcome: Outcome


class State(NamedTuple):
    """All that an iteration goes on from: Q follows from it."""

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
) -> Found:
    """Alternate until the objective moves by less than `tol` of itself; `sizes` are ‖X‖² and ‖A‖².

    Exact updates set out from extrapolated factors, as in `loop.fit`: a step that does not lower the objective is
    undone and the next one is plain. The engine ends with the Q and W that belong to the model handed out, whose V has
    unit columns.
    """
    losses: list[float] = []
    before, outcome = np.inf, Outcome.MAX_ITER
    least = 1e-12 * 0.5 * (sizes[0] + lam * sizes[1])
    now = previous = State(*model, engine.W.copy())
    reach, longer = 0.0, BETA_INIT if updates.exact else 0.0
    for iteration in range(1, max_iter + 1):
        setting_out = extrapolate(now, previous, reach, updates.signed)
        engine.W = setting_out.W.copy()
        found, loss = one_iteration(engine, Model(*setting_out[:3]), updates, sizes, lam)
        undone = (
            updates.exact and bool(losses) and not loss <= losses[-1] and (reach > 0 or np.isfinite(loss))
        )
        stuck = undone and reach == 0  # an exact plain step rises by rounding only
        if undone:
            longer, reach = longer / 2, 0.0
            losses.append(losses[-1])
        else:
            previous, now = now, State(*found, engine.W.copy())
            if iteration >= PLAIN_FIRST:
                reach, longer = longer, min(longer * BETA_GROWTH, BETA_MAX)
            losses.append(loss)
        total = losses[-1] + updates.penalty(now.V)
        if not np.isfinite(total):
            outcome = Outcome.NOT_FINITE
            break
        if callback is not None and callback(iteration, losses[-1]) is True:
            outcome = Outcome.STOPPED
            break
        settled = not undone and abs(before - total) < tol * max(losses[-1], least)
        if tol > 0 and (stuck or settled):
            outcome = Outcome.CONVERGED
            break
        before = total
    engine.W = now.W
    model = balance(engine, Model(*now[:3]), updates, scores_carry_size=True)
    engine.step(model_products(*model, lam, updates.rho(model, lam)))
    return Found(model, losses, outcome)


def extrapolate(now: State, previous: State, reach: float, signed: bool) -> State:
    """The factors moved on by `reach` times their last move; those that may not be negative stay so."""
    if reach == 0.0:
        return now
    H, V, F, W = (mine + reach * (mine - before) for mine, before in zip(now, previous, strict=True))
    return State(H, V, F, W) if signed else State(H, np.maximum(V, 0), np.maximum(F, 0), np.maximum(W, 0))


def one_iteration(
    engine: Engine, model: Model, updates: Updates, sizes: tuple[float, float], lam: float
) -> tuple[Model, float]:
    """Q and w, then H, V and F; the model with its columns scaled, and the objective it reaches."""
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
    """Unit columns for H, and for V or W as `scores_carry_size` says; the products stay as they are."""
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
