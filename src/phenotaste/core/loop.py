"""The fit: alternate the patient step and the model step until the objective stops decreasing.

The session that holds the patients maps the patient step over them; this loop knows only the sums it returns.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np

from phenotaste.core.constraints import NO_CONSTRAINTS, Constraints, keep_fixed
from phenotaste.core.model_step import model_step, unit_columns
from phenotaste.core.projection import BETA_GROWTH, BETA_INIT, BETA_MAX
from phenotaste.core.records import Model, Scored, Sums, Weights


class PatientSession(Protocol):
    """What `fit` needs of the session that holds the patients."""

    weights: Weights

    def step(self, model: Model, beta: float) -> Sums:
        """Patient step from U extrapolated by `beta` times its last change."""

    def undo(self) -> None:
        """Return to the U before the last step."""

    def score(self, model: Model) -> Scored:
        """Scores and losses at the current U."""


class Outcome(StrEnum):
    """How a fit ended, with advice where the user can act on it."""

    CONVERGED = "converged"
    MAX_ITER = "max_iter"
    STOPPED = "stopped"
    NOT_FINITE = "not_finite"

    @property
    def advice(self) -> str:
        return ADVICE[self]


ADVICE = {
    Outcome.CONVERGED: "The objective stopped improving.",
    Outcome.MAX_ITER: "The objective was still decreasing: raise max_iter, or tol if this is close enough.",
    Outcome.STOPPED: "The callback requested a stop.",
    Outcome.NOT_FINITE: "The objective is not finite: check the data for extreme values.",
}


class Progress(NamedTuple):
    """What a callback receives after each iteration."""

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


class State(NamedTuple):
    """A fit between two iterations: together with the patients' U, all that is needed to resume it."""

    model: Model
    model_prev: Model
    beta: float  # extrapolation of the next step
    next_beta: float  # and of the one after it, if the next step is accepted
    losses: tuple[float, ...]  # after each iteration
    best_loss: float  # the next step must not exceed it


class StepResult(NamedTuple):
    state: State
    rejected: bool  # the session has to undo the step
    outcome: Outcome | None  # set when the fit is over


def initial_state(model: Model, *, normalize: bool) -> State:
    """The state before the first iteration."""
    return State(model, model, 0.0, BETA_INIT if normalize else 0.0, (), np.inf)


def restarted_state(state: State) -> State:
    """The state to resume from when U was lost and rebuilt: the objective may then rise once."""
    return state._replace(model_prev=state.model, beta=0.0, best_loss=np.inf)


def extrapolated(state: State, constraints: Constraints = NO_CONSTRAINTS) -> tuple[Model, float]:
    """The model for the next patient step, and the extrapolation of U in it.

    Cones limit the models that are returned, not those extrapolated on the way.
    """
    model = extrapolate(state.model, state.model_prev, state.beta)
    return keep_fixed(model, state.model, constraints.fixed), state.beta


def apply_step(
    state: State,
    sums: Sums,
    lam: float,
    *,
    normalize: bool,
    exact: bool,
    tol: float,
    constraints: Constraints = NO_CONSTRAINTS,
) -> StepResult:
    """Model step on the sums of an extrapolated patient step, accepted or rejected: the objective never rises."""
    model, loss = model_step(
        sums, state.model, lam, normalize=normalize, exact=exact, constraints=constraints
    )
    if not loss <= state.best_loss and (state.beta > 0 or bool(np.isfinite(loss))):
        # A step without extrapolation rises only by rounding or by the cap on the polar factor: no descent is left.
        outcome = Outcome.CONVERGED if state.beta == 0 and tol > 0 else None
        losses = (*state.losses, state.best_loss)
        return StepResult(
            state._replace(beta=0.0, next_beta=state.next_beta / 2, losses=losses), True, outcome
        )
    outcome = None
    if not np.isfinite(loss):
        outcome = Outcome.NOT_FINITE
    elif converged(state.best_loss, loss, null_loss(sums, lam), tol):
        outcome = Outcome.CONVERGED
    next_beta = min(state.next_beta * BETA_GROWTH, BETA_MAX)
    return StepResult(
        State(model, state.model, state.next_beta, next_beta, (*state.losses, loss), loss), False, outcome
    )


def fit(
    session: PatientSession,
    model: Model | State,
    *,
    normalize: bool,
    exact: bool,
    max_iter: int,
    tol: float,
    callback: Callable[[int, float], object] | None = None,
    on_iteration: Callable[[State], None] | None = None,
    constraints: Constraints = NO_CONSTRAINTS,
) -> Fit:
    """Alternate patient step and model step; `callback(iteration, loss)` may return True to stop.

    With `normalize` the steps start from extrapolated factors, which saves most of the iterations. The factors
    that are returned are never extrapolated: a step that does not decrease the objective is undone, and the next
    one is plain, with a smaller extrapolation afterwards, so the objective never rises. If a plain step does not
    decrease it either, the fit has converged.

    A fit resumes from a State that `on_iteration` received, if the session has the U of that iteration.
    """
    state = model if isinstance(model, State) else initial_state(model, normalize=normalize)
    outcome: Outcome | None = None
    while outcome is None and len(state.losses) < max_iter:
        sums = session.step(*extrapolated(state, constraints))
        state, rejected, outcome = apply_step(
            state,
            sums,
            session.weights.lam,
            normalize=normalize,
            exact=exact,
            tol=tol,
            constraints=constraints,
        )
        if rejected:
            session.undo()
        if outcome is Outcome.NOT_FINITE:
            break
        if callback is not None and callback(len(state.losses), state.losses[-1]) is True:
            outcome = Outcome.STOPPED
        if on_iteration is not None and outcome is None:
            on_iteration(state)
    # The closing pass solves w and Q once more for the U and the model that are returned.
    patients = session.score(state.model)
    losses = [*state.losses[:-1], float(patients.loss.sum())]
    return Fit(state.model, patients, losses, outcome or Outcome.MAX_ITER)


def iterate(
    session: PatientSession, model: Model, iterations: int, constraints: Constraints = NO_CONSTRAINTS
) -> tuple[State, Sums]:
    """Some iterations of a fit with unit columns, at least one; also returns the sums of the last patient step."""
    state = initial_state(model, normalize=True)
    for _ in range(iterations):
        sums = session.step(*extrapolated(state, constraints))
        state, rejected, _ = apply_step(
            state,
            sums,
            session.weights.lam,
            normalize=True,
            exact=False,
            tol=0.0,
            constraints=constraints,
        )
        if rejected:
            session.undo()
    return state, sums


def extrapolate(model: Model, model_prev: Model, beta: float) -> Model:
    """The model plus `beta` times its last change, non-negative and with unit columns again."""
    if beta == 0.0:
        return model
    H, V, F = (now + beta * (now - prev) for now, prev in zip(model, model_prev, strict=True))
    return Model(unit_columns(H), unit_columns(np.maximum(V, 0.0)), np.maximum(F, 0.0))


def null_loss(sums: Sums, lam: float) -> float:
    """The objective of a model that explains nothing."""
    return float(0.5 * (sums.scalars[0] + lam * sums.scalars[1]))


def converged(previous: float, loss: float, null: float, tol: float) -> bool:
    """Whether the relative decrease is below `tol`; the first step has no predecessor to compare with."""
    if tol <= 0 or not np.isfinite(previous):
        return False
    return previous - loss < tol * max(loss, 1e-12 * null)
