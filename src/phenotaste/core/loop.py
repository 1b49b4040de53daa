"""The fit: map the patient step, reduce to the model step, until it stops moving. Who maps is the engine's affair."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

from phenotaste.core.model_step import model_step, unit_columns
from phenotaste.core.projection import BETA_GROWTH, BETA_INIT, BETA_MAX
from phenotaste.core.records import Array, Model, Scored, Sums, Weights


class Mark(NamedTuple):
    """How an engine comes back to the courses it has now: a token that JSON can hold, and arrays kept beside it.

    Engines whose courses are in files name them in the token; engines with courses in memory give the arrays.
    """

    token: dict[str, Any]
    arrays: dict[str, Array]


class Stepper(Protocol):
    """What `fit` needs of an engine: it holds the patients' data and courses, and runs the patient step over them."""

    weights: Weights

    def step(self, model: Model, reach: float) -> Sums:
        """The patient step, from courses extrapolated by `reach` times their last move."""

    def undo(self) -> None:
        """Go back to the courses before the last step."""

    def score(self, model: Model) -> Scored:
        """Scores and losses at the courses as they are."""


class Engine(Stepper, Protocol):
    """What TASTE needs besides: starts, projections, and the way back to a checkpoint."""

    def start(self, model: Model) -> None:
        """Courses from the data and the model by the fixed rule. What an earlier `score` handed out stays as it is."""

    def start_uniform(self, rng: np.random.Generator) -> None:
        """The paper's start, entries uniform: drawn visit by visit in the cohort's order, whoever holds them."""

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        """Courses and scores under a fixed model, each patient iterated on its own until it settles."""

    def mark(self) -> Mark:
        """A way back to the courses as they are and, unless `score` came last, those one step ago.

        Another process can take it, too.
        """

    def restore(self, mark: Mark) -> bool:
        """Go back there. False: some courses are lost or damaged, and `rebuild` has to come next."""

    def rebuild(self, model: Model) -> None:
        """The courses that `restore` did not find as they were, by projection under the model."""

    def release(self, mark: Mark) -> None:
        """Nobody will come back to this mark: what only it needs may go."""


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


class State(NamedTuple):
    """Where a fit stands between two iterations: all it needs to go on, beside the patients' courses."""

    model: Model
    previous: Model  # the model one move ago
    reach: float  # how far the next step extrapolates
    longer: float  # and the one after it, should that succeed
    losses: tuple[float, ...]  # after each iteration
    to_beat: float  # the objective that the next step must not exceed


class Judgement(NamedTuple):
    """What came of a step: the state to go on from, whether the engine has to undo it, and why it is over, if it is."""

    state: State
    undone: bool
    outcome: Outcome | None


def begin(model: Model, *, normalize: bool) -> State:
    """The state before the first iteration."""
    return State(model, model, 0.0, BETA_INIT if normalize else 0.0, (), np.inf)


def begin_again(state: State) -> State:
    """The same where courses were lost and rebuilt: they are not where they were, so the objective may rise once."""
    return state._replace(previous=state.model, reach=0.0, to_beat=np.inf)


def proposal(state: State) -> tuple[Model, float]:
    """The model that the next patient step takes, and how far the courses are to be extrapolated for it."""
    return extrapolate(state.model, state.previous, state.reach), state.reach


def judged(state: State, sums: Sums, lam: float, *, normalize: bool, exact: bool, tol: float) -> Judgement:
    """The model step on the sums of a proposal, taken or refused: the objective never rises."""
    found, loss = model_step(sums, state.model, lam, normalize=normalize, exact=exact)
    if not loss <= state.to_beat and (state.reach > 0 or bool(np.isfinite(loss))):
        # A plain step rises by rounding or by the polar factor's cap only: then there is no way further down.
        outcome = Outcome.CONVERGED if state.reach == 0 and tol > 0 else None
        losses = (*state.losses, state.to_beat)
        return Judgement(state._replace(reach=0.0, longer=state.longer / 2, losses=losses), True, outcome)
    outcome = None
    if not np.isfinite(loss):
        outcome = Outcome.NOT_FINITE
    elif settled(state.to_beat, loss, size_of(sums, lam), tol):
        outcome = Outcome.CONVERGED
    longer = min(state.longer * BETA_GROWTH, BETA_MAX)
    after = State(found, state.model, state.longer, longer, (*state.losses, loss), loss)
    return Judgement(after, False, outcome)


def fit(
    engine: Stepper,
    model: Model | State,
    *,
    normalize: bool,
    exact: bool,
    max_iter: int,
    tol: float,
    callback: Callable[[int, float], object] | None = None,
    keep: Callable[[State], None] | None = None,
) -> Fit:
    """Alternate patient step and model step; `callback(iteration, loss)` may return True to stop.

    With `normalize` the steps set out from extrapolated factors, which saves most of the iterations. The factors
    handed on are always the plain ones: a step that does not lower the objective is undone, and the next one is
    plain and reaches less far afterwards, so the objective never rises. Where even a plain one does not, it is over.

    A fit goes on from the state that `keep` was given after an iteration, if the engine has that iteration's courses.
    """
    state = model if isinstance(model, State) else begin(model, normalize=normalize)
    outcome: Outcome | None = None
    while outcome is None and len(state.losses) < max_iter:
        sums = engine.step(*proposal(state))
        state, undone, outcome = judged(
            state, sums, engine.weights.lam, normalize=normalize, exact=exact, tol=tol
        )
        if undone:
            engine.undo()
        if outcome is Outcome.NOT_FINITE:
            break
        if callback is not None and callback(len(state.losses), state.losses[-1]) is True:
            outcome = Outcome.STOPPED
        if keep is not None and outcome is None:
            keep(state)
    # The closing look solves w and Q once more for the courses and the model that are handed out.
    patients = engine.score(state.model)
    losses = [*state.losses[:-1], float(patients.loss.sum())]
    return Fit(state.model, patients, losses, outcome or Outcome.MAX_ITER)


def extrapolate(model: Model, previous: Model, reach: float) -> Model:
    """The model moved on by `reach` times its last move, non-negative and with unit columns again."""
    if reach == 0.0:
        return model
    H, V, F = (now + reach * (now - before) for now, before in zip(model, previous, strict=True))
    return Model(unit_columns(H), unit_columns(np.maximum(V, 0.0)), np.maximum(F, 0.0))


def size_of(sums: Sums, lam: float) -> float:
    """The objective of a model that explains nothing."""
    return float(0.5 * (sums.scalars[0] + lam * sums.scalars[1]))


def settled(before: float, now: float, size: float, tol: float) -> bool:
    """Whether the objective has stopped improving; after the first step there is nothing to compare with."""
    if tol <= 0 or not np.isfinite(before):
        return False
    return before - now < tol * max(now, 1e-12 * size)
