"""Alternating fit of PARAFAC2 with exact cross-products: Q and w of the patients, then H, then V and F."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from .loop import Outcome
from .model import solve_rows, solve_static
from .parafac2 import Shared, Slices, share
from .records import Array, Model

SINGULAR = 1e-12  # eigenvalues of a Gram matrix below this share of the largest carry nothing


class Engine(Protocol):
    """Holds the patients' data, Q and W, and runs the patient step over them."""

    W: Array
    duals: Array

    def step(self, shared: Shared) -> Slices: ...

    def course_sum(self, H: Array) -> Array: ...


class Updates(Protocol):
    """How H, V and F follow from their Gram matrices and right-hand sides."""

    scores_carry_size: bool  # V has unit columns and W the size; otherwise W has, and V carries it

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

    def __init__(self, nonnegative: bool) -> None:
        self.nonnegative = nonnegative

    def H(self, gram: Array, right: Array, H: Array) -> Array:
        return least_squares(gram, right, H)

    def V(self, gram: Array, right: Array, V: Array) -> Array:
        return solve_rows(gram, right, V, exact=True) if self.nonnegative else least_squares(gram, right, V)

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

    The engine ends with the Q and W that belong to the model handed out, whose V has unit columns.
    """
    losses: list[float] = []
    before, outcome = np.inf, Outcome.MAX_ITER
    least = 1e-12 * 0.5 * (sizes[0] + lam * sizes[1])
    for iteration in range(1, max_iter + 1):
        model, loss = one_iteration(engine, model, updates, sizes, lam)
        losses.append(loss)
        total = loss + updates.penalty(model.V)
        if not np.isfinite(total):
            outcome = Outcome.NOT_FINITE
            break
        if callback is not None and callback(iteration, loss) is True:
            outcome = Outcome.STOPPED
            break
        if tol > 0 and abs(before - total) < tol * max(loss, least):
            outcome = Outcome.CONVERGED
            break
        before = total
    model = balance(engine, model, updates, scores_carry_size=True)
    engine.step(share(*model, lam, updates.rho(model, lam)))
    return Found(model, losses, outcome)


def one_iteration(
    engine: Engine, model: Model, updates: Updates, sizes: tuple[float, float], lam: float
) -> tuple[Model, float]:
    """Q and w, then H, V and F; the model with its columns scaled, and the objective it reaches."""
    slices = engine.step(share(*model, lam, updates.rho(model, lam)))
    H = updates.H(slices.WW * (model.V.T @ model.V), slices.QX, model.H)
    XU, gram = engine.course_sum(H), slices.WW * (H.T @ H)
    V = updates.V(gram, XU, model.V)
    F = updates.F(slices.WW_all, slices.AW, model.F)
    visits = sizes[0] - 2 * np.sum(XU * V) + np.sum(gram * (V.T @ V))
    static = sizes[1] - 2 * np.sum(slices.AW * F) + np.sum(slices.WW_all * (F.T @ F))
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
