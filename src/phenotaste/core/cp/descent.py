"""Repeat a step that cannot increase a loss, until it hardly decreases it."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from phenotaste.core.loop import Outcome

State = TypeVar("State")


def descend(
    state: State, step: Callable[[State], tuple[State, float]], max_iter: int, tol: float
) -> tuple[State, list[float], Outcome]:
    """The last state, the loss after each step, and how it ended; `tol` is a relative decrease."""
    losses: list[float] = []
    for _ in range(max_iter):
        state, loss = step(state)
        losses.append(loss)
        if not np.isfinite(loss):
            return state, losses, Outcome.NOT_FINITE
        if len(losses) > 1 and losses[-2] - loss <= tol * losses[-2]:
            return state, losses, Outcome.CONVERGED
    return state, losses, Outcome.MAX_ITER
