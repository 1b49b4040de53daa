"""The fit: map the patient step, reduce to the model step, until it stops moving. Who maps is the engine's affair."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np

from .model import model_step, unit_columns
from .projection import FIRST_REACH, LONGEST_REACH, REACH_GROWTH
from .records import Model, Scored, Sums, Weights


class Engine(Protocol):
    """Holds the patients' data and courses, and runs the patient step over them."""

    weights: Weights

    def step(self, model: Model, reach: float) -> Sums:
        """The patient step, from courses extrapolated by `reach` times their last move."""

    def undo(self) -> None:
        """Go back to the courses before the last step."""

    def score(self, model: Model) -> Scored: ...


class Outcome(StrEnum):
    """How a fit ended, with advice where there is something to do."""

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    STOPPED = "stopped"
    NOT_FINITE = "not_finite"

    @property
    def advice(self) -> str:
        return ADVICE[self]


ADVICE = {
    Outcome.CONVERGED: "The objective stopped improving.",
    Outcome.MAX_ITER: "The objective was still falling: raise max_iter, or tol if this is close enough.",
    Outcome.STOPPED: "The callback asked to stop.",
    Outcome.NOT_FINITE: "The objective is not a finite number: look for extreme values in the data.",
}


class Progress(NamedTuple):
    """What a callback is told after each iteration."""

    start: int
    n_starts: int
    iteration: int
    max_iter: int
    loss: float


class Fit(NamedTuple):
    model: Model
    patients: Scored
    losses: list[float]
    outcome: Outcome


def fit(
    engine: Engine,
    model: Model,
    *,
    normalize: bool,
    exact: bool,
    max_iter: int,
    tol: float,
    callback: Callable[[int, float], object] | None = None,
) -> Fit:
    """Alternate patient step and model step; `callback(iteration, loss)` may return True to stop.

    With `normalize` the steps set out from extrapolated factors, which saves most of the iterations. The factors
    handed on are always the plain ones: a step that does not lower the objective is undone, and the next one is
    plain and reaches less far afterwards, so the objective never rises. Where even a plain one does not, it is over.
    """
    losses: list[float] = []
    outcome = Outcome.MAX_ITER
    previous = model
    reach, longer = 0.0, FIRST_REACH if normalize else 0.0
    for iteration in range(1, max_iter + 1):
        sums = engine.step(extrapolate(model, previous, reach), reach)
        found, loss = model_step(sums, model, engine.weights.lam, normalize=normalize, exact=exact)
        undone = bool(losses) and not loss <= losses[-1] and (reach > 0 or bool(np.isfinite(loss)))
        stuck = undone and reach == 0  # a plain step rises by rounding or by the polar factor's cap only
        if undone:
            engine.undo()
            longer, reach = longer / 2, 0.0
            losses.append(losses[-1])
        else:
            previous, model = model, found
            reach, longer = longer, min(longer * REACH_GROWTH, LONGEST_REACH)
            losses.append(loss)
        if not np.isfinite(losses[-1]):
            outcome = Outcome.NOT_FINITE
            break
        if callback is not None and callback(iteration, losses[-1]) is True:
            outcome = Outcome.STOPPED
            break
        if stuck and tol > 0:
            outcome = Outcome.CONVERGED
            break
        if iteration > 1 and not undone and settled(losses, size_of(sums, engine.weights.lam), tol):
            outcome = Outcome.CONVERGED
            break
    # The closing look solves w and Q once more for the courses and the model that are handed out.
    patients = engine.score(model)
    losses[-1] = float(patients.loss.sum())
    return Fit(model, patients, losses, outcome)


def extrapolate(model: Model, previous: Model, reach: float) -> Model:
    """The model moved on by `reach` times its last move, non-negative and with unit columns again."""
    if reach == 0.0:
        return model
    H, V, F = (now + reach * (now - before) for now, before in zip(model, previous, strict=True))
    return Model(unit_columns(H), unit_columns(np.maximum(V, 0.0)), np.maximum(F, 0.0))


def size_of(sums: Sums, lam: float) -> float:
    """The objective of a model that explains nothing."""
    return float(0.5 * (sums.scalars[0] + lam * sums.scalars[1]))


def settled(losses: list[float], size: float, tol: float) -> bool:
    if tol <= 0:
        return False
    return losses[-2] - losses[-1] < tol * max(losses[-1], 1e-12 * size)
