"""The status of a federated fit, read from a coordinator's folder, a site's state, or a single message."""

import os
from pathlib import Path
from typing import Any

from phenotaste.errors import InputError
from phenotaste.federated import messages, state
from phenotaste.federated.coordinator import EXCHANGE, MODEL, response_files
from phenotaste.federated.export import excluded_rounds
from phenotaste.federated.state import DONE, CoordinatorState, SiteState


def status(path: str | os.PathLike[str], *, exchange: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Describe a coordinator's folder, a site's state folder, or a message, as JSON can hold it; nothing is changed.

    Examples
    --------
    >>> from phenotaste import federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2, max_rounds=3))
    >>> report = federated.step(message, cohort[:120], site="north", state="state-of-north")
    >>> status = federated.status("work")
    >>> status["phase"], status["waiting_for"]
    ('join', ['south'])
    """
    location = Path(path)
    if location.is_file():
        return _message_status(messages.read(location))
    if state.has_coordinator(location):
        folder = location / EXCHANGE if exchange is None else Path(exchange)
        return _coordinator_status(location, state.load_coordinator(location), folder)
    if state.has_site(location):
        return _site_status(state.load_site(location))
    raise InputError(
        f"{path} is neither a coordinator's folder, nor a site's state, nor a message: give one of these."
    )


def _message_status(message: messages.Message) -> dict[str, Any]:
    return {
        "type": "message",
        "kind": message.kind,
        "federation": message.header["federation"],
        "round": message.round,
        "sender": message.sender,
        "bytes": message.size,
    }


def _site_status(site: SiteState) -> dict[str, Any]:
    status: dict[str, Any] = {
        "type": "site",
        "federation": site.federation,
        "site": site.site,
        "last_round": site.round,
        "starts": len(site.starts),
    }
    if site.budget is not None:
        status |= {
            "epsilon": site.budget.epsilon,
            "delta": site.budget.delta,
            "epsilon_spent": site.budget.spent(site.noisy_rounds),
        }
    return status


def _coordinator_status(folder: Path, current: CoordinatorState, exchange: Path) -> dict[str, Any]:
    waiting = [] if current.phase == DONE else list(current.sites)
    for path in response_files([exchange], current) if exchange.is_dir() and waiting else ():
        site = path.name.split(".")[1]
        waiting = [name for name in waiting if name != site]
    rounds = [entry for entry in current.history if "objective" in entry]
    columns = current.columns
    return {
        "type": "coordinator",
        "federation": current.federation,
        "phase": current.phase,
        "round": current.round,
        "max_rounds": current.settings.max_rounds,
        "sites": list(current.sites),
        "waiting_for": waiting,
        "excluded": excluded_rounds(current),
        "objective": min((value for value in rounds[-1]["objective"] if value is not None), default=None)
        if rounds
        else None,
        "features": None if columns is None else len(columns.features),
        "static_features": None if columns is None else len(columns.static),
        "bytes_received": sum(entry["bytes_received"] for entry in current.history),
        "bytes_sent": sum(entry["bytes_sent"] for entry in current.history),
        "model": str(folder / MODEL) if current.phase == DONE else None,
    }
