"""From one round to the next: the state that follows from the sites' answers. Nothing here touches a file."""

from typing import Any

import numpy as np
from sklearn.utils.validation import check_random_state

from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.kernels.sums import tree_reduce
from phenotaste.core.records import Model, Shard, Sums
from phenotaste.errors import InputError
from phenotaste.federated import noise
from phenotaste.federated.answers import Answer
from phenotaste.federated.columns import Dictionary, unite
from phenotaste.federated.coordinator_state import DONE, CoordinatorState, Fitting
from phenotaste.federated.finished import figures_of
from phenotaste.federated.orders import CLOSING, INVITATION, PROPOSAL
from phenotaste.federated.settings import Settings, static_weight
from phenotaste.model_file import plain


def following(state: CoordinatorState, answers: list[Answer]) -> CoordinatorState:
    """The state after a round."""
    entry: dict[str, Any] = {
        "round": state.round,
        "asked": state.phase,
        "sites": [answer.site for answer in answers],
        "left_out": [site for site in state.sites if site not in {answer.site for answer in answers}],
        "patients": sum(answer.patients for answer in answers),
        "visits": sum(answer.visits for answer in answers),
        "bytes_received": sum(answer.size for answer in answers),
    }
    if state.phase == INVITATION:
        after = agreed(state, answers)
    elif state.phase == PROPOSAL:
        after = advanced(state, answers, entry)
    else:
        after = state._replace(phase=DONE, figures=figures_of(state, answers))
    after = after._replace(round=state.round + 1).with_message()
    entry["bytes_sent"] = len(after.message) * len(state.sites)
    return after._replace(
        history=(*state.history, entry), combined={answer.site: answer.digest for answer in answers}
    )


def agreed(state: CoordinatorState, answers: list[Answer]) -> CoordinatorState:
    """Columns, λ_eff and the starting models; chance is in the models only, so nothing more has to be shared."""
    settings, dictionary = state.settings, state.dictionary
    if dictionary is None:
        dictionary = unite({answer.site: answer.columns for answer in answers if answer.columns is not None})
    if settings.noise:
        visits, facts = settings.patient_size, settings.static_size
    else:
        visits, facts = np.sum(
            [answer.sizes for answer in answers if answer.sizes is not None], axis=0
        ).tolist()
    lam = static_weight(settings, visits, facts)
    starts = tuple(
        Fitting(loop.begin(model, normalize=True)) for model in starting_models(settings, dictionary)
    )
    if settings.noise:  # a step is never undone there, so none may reach ahead
        starts = tuple(fitting._replace(state=fitting.state._replace(longer=0.0)) for fitting in starts)
    return state._replace(phase=PROPOSAL, dictionary=dictionary, lam=lam, starts=starts)


def starting_models(settings: Settings, dictionary: Dictionary) -> list[Model]:
    """Those of TASTE(init="random") with the same seed: the NMF start would need patients, or rounds of its own."""
    nobody = Shard(
        np.zeros(0),
        np.zeros(0, np.int32),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        np.zeros((0, len(dictionary.static))),
    )
    seeds = check_random_state(settings.seed).randint(2**31, size=settings.n_init)
    return [
        init_model(
            "random", nobody, len(dictionary.features), settings.rank, True, np.random.default_rng(seed)
        )
        for seed in seeds
    ]


def advanced(state: CoordinatorState, answers: list[Answer], entry: dict[str, Any]) -> CoordinatorState:
    """The model step of every start that is not finished."""
    before = state.history[-1]
    others = before["asked"] == PROPOSAL and before["sites"] != [answer.site for answer in answers]
    anew = others or any(answer.fresh for answer in answers)  # the objective is of other patients or courses
    starts, asked = list(state.starts), state.order().tasks
    for task in asked:
        fitting, total = starts[task.start], total_sums(answers, task.start)
        if state.settings.noise:
            starts[task.start] = advanced_with_noise(state, fitting, answers, total)
        else:
            starts[task.start] = advanced_start(state, fitting, total, anew)
    entry["objective"] = [plain(fitting.state.losses[-1]) for fitting in starts]
    entry["undone"] = [task.start for task in asked if starts[task.start].undone]
    noises = {answer.site: answer.noise._asdict() for answer in answers if answer.noise is not None}
    if noises:
        entry["noise"] = noises
    if any(fitting.outcome is None for fitting in starts):
        return state._replace(starts=tuple(starts))
    if not any(np.isfinite(fitting.state.losses[-1]) for fitting in starts):
        raise InputError(
            "The objective is not a finite number: have the sites look for extreme values in their data."
        )
    phase = DONE if state.settings.noise else CLOSING
    after = state._replace(starts=tuple(starts), phase=phase)
    return after._replace(figures=figures_of(after, answers)) if phase == DONE else after


def total_sums(answers: list[Answer], start: int) -> Sums:
    """The sites' sums added in the order of the sites."""
    parts = [answer.sums[start] for answer in answers if answer.sums is not None]
    return tree_reduce(parts, lambda mine, theirs: Sums(*(a + b for a, b in zip(mine, theirs, strict=True))))


def advanced_start(state: CoordinatorState, fitting: Fitting, total: Sums, anew: bool) -> Fitting:
    settings = state.settings
    now = fitting.state._replace(to_beat=np.inf) if anew else fitting.state
    after, undone, outcome = loop.judged(
        now, total, state.lam, normalize=True, exact=settings.exact, tol=settings.tol
    )
    if outcome is None and len(after.losses) >= settings.max_rounds:
        outcome = loop.Outcome.MAX_ITER
    return Fitting(after, state.round, undone, None if outcome is None else str(outcome))


def advanced_with_noise(
    state: CoordinatorState, fitting: Fitting, answers: list[Answer], total: Sums
) -> Fitting:
    """The model step on sums with noise: on a running mean over the rounds, whose noise partly cancels."""
    settings, count = state.settings, len(fitting.state.losses)
    share = max(1.0 / (count + 1), noise.NEWEST)
    mean = total
    if fitting.average is not None:
        mean = Sums(
            *((1 - share) * old + share * new for old, new in zip(fitting.average, total, strict=True))
        )
    loud = np.sqrt(sum(answer.noise.loudness**2 for answer in answers if answer.noise is not None))
    floor = Sums(*(size * settings.clip * loud for size in noise.scales(settings)))
    now = fitting.state._replace(to_beat=np.inf)
    after, _, outcome = loop.judged(
        now, noise.repaired(mean, floor), state.lam, normalize=True, exact=settings.exact, tol=0.0
    )
    if outcome is None and len(after.losses) >= settings.max_rounds:
        outcome = loop.Outcome.MAX_ITER
    return Fitting(after, state.round, False, None if outcome is None else str(outcome), mean)
