"""Where a federated fit stands, as seen from a coordinator's folder, a site's state, or a single message."""

import os
from pathlib import Path
from typing import Any

from phenotaste.errors import InputError
from phenotaste.federated import coordinator_state, messages, site_state
from phenotaste.federated.coordinator import EXCHANGE, MODEL, answer_files
from phenotaste.federated.coordinator_state import DONE, CoordinatorState
from phenotaste.federated.site_work import promised


def status(path: str | os.PathLike[str], *, exchange: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """What JSON can hold about the coordinator's folder, a site's state folder, or a message; nothing is changed.

    Examples
    --------
    >>> from phenotaste import federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2, max_rounds=3))
    >>> answered = federated.step(message, cohort[:120], site="north", state="state-of-north")
    >>> found = federated.status("work")
    >>> found["phase"], found["waiting_for"]
    ('invitation', ['south'])
    """
    place = Path(path)
    if place.is_file():
        return of_message(messages.read(place))
    if coordinator_state.is_there(place):
        state = coordinator_state.load(place)
        return of_coordinator(place, state, place / EXCHANGE if exchange is None else Path(exchange))
    if site_state.is_there(place):
        return of_site(site_state.load(place))
    raise InputError(
        f"{path} is neither a coordinator's folder, nor a site's state, nor a message: give one of these."
    )


def of_message(message: messages.Message) -> dict[str, Any]:
    return {
        "what": "message",
        "kind": message.kind,
        "federation": message.record["federation"],
        "round": message.round,
        "sender": message.sender,
        "bytes": message.size,
    }


def of_site(state: site_state.SiteState) -> dict[str, Any]:
    found: dict[str, Any] = {
        "what": "site",
        "federation": state.federation,
        "site": state.site,
        "answered_round": state.round,
        "starts": len(state.starts),
    }
    if state.promised is not None:
        promise = promised(state)
        found |= {
            "epsilon": promise.epsilon,
            "delta": promise.delta,
            "epsilon_spent": promise.spent(state.noisy_rounds),
        }
    return found


def of_coordinator(folder: Path, state: CoordinatorState, exchange: Path) -> dict[str, Any]:
    waiting = [] if state.phase == DONE else list(state.sites)
    for path in answer_files([exchange], state) if exchange.is_dir() and waiting else ():
        site = path.name.split(".")[1]
        waiting = [name for name in waiting if name != site]
    rounds = [entry for entry in state.history if "objective" in entry]
    absent = {
        site: [entry["round"] for entry in state.history if site in entry["left_out"]] for site in state.sites
    }
    return {
        "what": "coordinator",
        "federation": state.federation,
        "phase": state.phase,
        "round": state.round,
        "max_rounds": state.settings.max_rounds,
        "sites": list(state.sites),
        "waiting_for": waiting,
        "left_out": {site: missed for site, missed in absent.items() if missed},
        "objective": min((value for value in rounds[-1]["objective"] if value is not None), default=None)
        if rounds
        else None,
        "features": None if state.dictionary is None else len(state.dictionary.features),
        "static_features": None if state.dictionary is None else len(state.dictionary.static),
        "bytes_received": sum(entry["bytes_received"] for entry in state.history),
        "bytes_sent": sum(entry["bytes_sent"] for entry in state.history),
        "model": str(folder / MODEL) if state.phase == DONE else None,
    }
