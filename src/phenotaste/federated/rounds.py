"""The round at the coordinator: the next state from the current one and the sites' responses, without file access."""

from typing import Any

import numpy as np

from phenotaste.core import loop
from phenotaste.core.kernels.sums import tree_reduce
from phenotaste.core.records import Sums
from phenotaste.errors import InputError
from phenotaste.federated import privacy
from phenotaste.federated.columns import merge_columns, static_weight
from phenotaste.federated.export import total_figures
from phenotaste.federated.requests import EVALUATE, JOIN, STEP, starting_models
from phenotaste.federated.responses import Response
from phenotaste.federated.settings import Settings
from phenotaste.federated.state import DONE, CoordinatorState, StartState
from phenotaste.storage.encoding import json_value


def next_state(state: CoordinatorState, responses: list[Response]) -> CoordinatorState:
    """The state after a round, with the next request."""
    present = [response.site for response in responses]
    entry: dict[str, Any] = {
        "round": state.round,
        "kind": state.phase,
        "sites": present,
        "excluded": [site for site in state.sites if site not in present],
        "patients": sum(response.patients for response in responses),
        "visits": sum(response.visits for response in responses),
        "bytes_received": sum(response.size for response in responses),
    }
    if state.phase == JOIN:
        after = first_step(state, responses)
    elif state.phase == STEP:
        after = model_steps(state, responses, entry)
    else:
        after = state._replace(phase=DONE, figures=total_figures(responses))
    after = after._replace(round=state.round + 1).with_request()
    entry["bytes_sent"] = len(after.pending) * len(state.sites)
    return after._replace(
        history=(*state.history, entry), combined={response.site: response.digest for response in responses}
    )


def first_step(state: CoordinatorState, responses: list[Response]) -> CoordinatorState:
    """Columns, λ̃ and starting models. Only the models are random, so that no random state has to be shared."""
    settings, columns = state.settings, state.columns
    if columns is None:
        columns = merge_columns({r.site: r.columns for r in responses if r.columns is not None})
    if settings.noise:
        influence, static_size = 1.0, settings.static_size
    else:
        totals = [response.static_totals for response in responses if response.static_totals is not None]
        influence, static_size = np.sum(totals, axis=0).tolist()
    starts = [loop.initial_state(model, normalize=True) for model in starting_models(settings, columns)]
    if settings.noise:  # no step is undone there, so none may extrapolate
        starts = [fit._replace(next_beta=0.0) for fit in starts]
    return state._replace(
        phase=STEP,
        columns=columns,
        lam=static_weight(settings.lam, influence, static_size),
        starts=tuple(StartState(fit) for fit in starts),
    )


def model_steps(
    state: CoordinatorState, responses: list[Response], entry: dict[str, Any]
) -> CoordinatorState:
    """The model step of every unfinished start; adds objectives, undone starts and noise to the history entry."""
    last = state.history[-1]
    sites_changed = last["kind"] == STEP and last["sites"] != [response.site for response in responses]
    # The objective is then of other patients or courses, and cannot be compared with the last one.
    incomparable = sites_changed or any(response.cold_start for response in responses)
    starts, tasks = list(state.starts), state.request().tasks
    for task in tasks:
        start, total = starts[task.start], total_sums(responses, task.start)
        if state.settings.noise:
            starts[task.start] = noisy_model_step(state, start, responses, total)
        else:
            starts[task.start] = model_step(state, start, total, incomparable)
    entry["objective"] = [json_value(start.fit.losses[-1]) for start in starts]
    entry["undone"] = [task.start for task in tasks if starts[task.start].undone]
    noise = {response.site: response.noise._asdict() for response in responses if response.noise is not None}
    if noise:
        entry["noise"] = noise
    if any(start.outcome is None for start in starts):
        return state._replace(starts=tuple(starts))
    if not any(np.isfinite(start.fit.losses[-1]) for start in starts):
        raise InputError("The objective is not finite: have the sites check their data for extreme values.")
    if state.settings.noise:
        return state._replace(starts=tuple(starts), phase=DONE, figures=total_figures(responses))
    return state._replace(starts=tuple(starts), phase=EVALUATE)


def total_sums(responses: list[Response], start: int) -> Sums:
    """The sites' sums added in the order of the sites."""
    parts = [response.sums[start] for response in responses if response.sums is not None]
    return tree_reduce(parts, lambda left, right: Sums(*(a + b for a, b in zip(left, right, strict=True))))


def model_step(state: CoordinatorState, start: StartState, total: Sums, incomparable: bool) -> StartState:
    settings = state.settings
    fit = start.fit._replace(best_loss=np.inf) if incomparable else start.fit
    after, undone, outcome = loop.apply_step(
        fit, total, state.lam, normalize=True, exact=False, tol=settings.tol
    )
    return StartState(after, state.round, undone, _outcome(after, outcome, settings))


def noisy_model_step(
    state: CoordinatorState, start: StartState, responses: list[Response], total: Sums
) -> StartState:
    """The model step on noisy sums: on their running mean over the rounds, in which the noise partly cancels."""
    settings, rounds = state.settings, len(start.fit.losses)
    weight = max(1.0 / (rounds + 1), privacy.MIN_NEW_WEIGHT)
    mean = total
    if start.mean is not None:
        mean = Sums(*((1 - weight) * old + weight * new for old, new in zip(start.mean, total, strict=True)))
    z = np.sqrt(sum(r.noise.noise_multiplier**2 for r in responses if r.noise is not None))
    noise = Sums(*(scale * settings.clip * z for scale in privacy.addend_scales(settings)))
    after, _, outcome = loop.apply_step(
        start.fit._replace(best_loss=np.inf),
        privacy.project_sums(mean, noise),
        state.lam,
        normalize=True,
        exact=False,
        tol=0.0,
    )
    return StartState(after, state.round, False, _outcome(after, outcome, settings), mean)


def _outcome(fit: loop.State, outcome: loop.Outcome | None, settings: Settings) -> str | None:
    if outcome is None and len(fit.losses) >= settings.max_rounds:
        outcome = loop.Outcome.MAX_ITER
    return None if outcome is None else str(outcome)
