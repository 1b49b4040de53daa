"""The coordinator: start a federated fit, and turn each round's responses into the next request or the model.

`status` reports the progress of a federated fit from its folder, at the coordinator or a site.
"""

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from phenotaste.engines.threads import one_blas_thread
from phenotaste.errors import InputError
from phenotaste.federated import messages, state
from phenotaste.federated.columns import ColumnNames
from phenotaste.federated.export import excluded_rounds, save_model
from phenotaste.federated.requests import JOIN, parse_request
from phenotaste.federated.responses import Response, max_response_bytes, parse_response
from phenotaste.federated.rounds import next_state
from phenotaste.federated.settings import Settings, check_sites
from phenotaste.federated.state import DONE, CoordinatorState, SiteState, load_coordinator, save_coordinator
from phenotaste.storage.atomic import write_file
from phenotaste.storage.locks import exclusive_folder

EXCHANGE, MODEL = "exchange", "model"
RESPONSE_FILE = re.compile(r"round-([0-9]{4,7})\.([A-Za-z0-9][A-Za-z0-9_-]{0,39})\.safetensors")


class CombineReport(NamedTuple):
    """The result of `combine`.

    Examples
    --------
    >>> from phenotaste import federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2, max_rounds=3))
    >>> for site, patients in (("north", cohort[:120]), ("south", cohort[120:])):
    ...     step = federated.step(message, patients, site=site, state=f"state-of-{site}")
    >>> report = federated.combine("work")
    >>> report.round, report.next, report.sites, report.model
    (0, 'step', ('north', 'south'), None)
    """

    round: int  # of the responses
    next: str  # kind of the next request: step or evaluate; or done
    repeated: bool  # these responses had been combined before: the same output was written again
    message: Path | None  # the next request, for the sites
    model: Path | None  # once the fit is done
    sites: tuple[str, ...]
    excluded: tuple[str, ...]
    objective: float | None
    bytes_received: int
    bytes_sent: int  # of the next request, to all sites together


def init(
    work: str | os.PathLike[str],
    sites: Iterable[str],
    settings: Settings | None = None,
    *,
    features: list[str] | None = None,
    static: list[str] | None = None,
    exchange: str | os.PathLike[str] | None = None,
) -> Path:
    """Start a federated fit in the folder `work`; returns the file of the join request, to be sent to all sites.

    `features` and `static` fix the columns in advance; otherwise they are the union of the sites' columns.

    Examples
    --------
    >>> from phenotaste import federated
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2))
    >>> message.as_posix()
    'work/exchange/round-0000.safetensors'
    """
    settings = settings or Settings()
    if settings.noise and features is None:
        raise InputError(
            "With noise, features must be given in advance, since which of them patients have is patient data: "
            "give a public list of codes."
        )
    if settings.noise and static and not settings.static_size > 0:
        raise InputError(
            "With noise, the expected sum of squares of a patient's static features must be given (static_size > 0), "
            "since it may not be computed from the data."
        )
    if features is not None and not (
        messages.are_valid_names(features) and features and messages.are_valid_names(static or [])
    ):
        raise InputError("The list of features has empty, unprintable or repeated names: correct it.")
    folder = Path(work)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} exists already: choose another folder for the coordinator.")
    state = CoordinatorState(
        federation=secrets.token_hex(16),
        settings=settings,
        sites=check_sites(sites),
        round=0,
        phase=JOIN,
        columns=None if features is None else ColumnNames(features, static or []),
        lam=0.0,
        starts=(),
        history=(),
        combined={},
        figures=None,
    )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = state.with_request()
    save_coordinator(folder, state)
    return _write_request(folder, state, exchange)


def _write_request(folder: Path, state: CoordinatorState, exchange: str | os.PathLike[str] | None) -> Path:
    target = Path(exchange) if exchange is not None else folder / EXCHANGE
    target.mkdir(parents=True, exist_ok=True)
    path = target / messages.file_name(state.round)
    write_file(path, state.pending)
    return path


def combine(
    work: str | os.PathLike[str],
    responses: Iterable[str | os.PathLike[str]] = (),
    *,
    exclude: Iterable[str] = (),
    exchange: str | os.PathLike[str] | None = None,
) -> CombineReport:
    """Combine the sites' responses into the next request or, at the end, into the model WORK/model.

    `responses` are files or folders, by default the exchange folder. A missing response is an error unless its site is
    excluded from this round by `exclude`; that is recorded, and the site may return in any later round.

    Examples
    --------
    >>> from phenotaste import TASTE, federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> patients = {"north": cohort[:120], "south": cohort[120:]}
    >>> message = federated.init("work", patients, federated.Settings(rank=2, max_rounds=3))
    >>> model = None
    >>> while model is None:
    ...     for site, own in patients.items():
    ...         step = federated.step("work/exchange", own, site=site, state=f"state-of-{site}")
    ...     model = federated.combine("work").model
    >>> TASTE.load(model).V_.shape
    (20, 2)
    """
    folder = Path(work)
    load_coordinator(folder)  # refuses other folders before one is locked
    in_use = f"{folder} is in use by another process: wait for it to finish."
    with exclusive_folder(folder, in_use), one_blas_thread():
        state = load_coordinator(folder)
        source = Path(exchange) if exchange is not None else folder / EXCHANGE
        files = response_files([Path(path) for path in responses] or [source], state)
        # Killed between saving the state and writing the request: no site can have responded to it.
        unsent = not files and state.history and not (source / messages.file_name(state.round)).exists()
        if state.phase == DONE or unsent or _already_combined(files, state):
            return _write_output(folder, state, exchange, repeated=True)
        collected = _collect_responses(files, state, _check_excluded(exclude, state))
        state = next_state(state, collected)
        save_coordinator(folder, state)
        return _write_output(folder, state, exchange, repeated=False)


def response_files(paths: list[Path], state: CoordinatorState) -> list[Path]:
    """The files among the paths, and from folders those named as responses to the pending request."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            matches = [(name, RESPONSE_FILE.fullmatch(name)) for name in sorted(os.listdir(path))]
            files += [path / name for name, match in matches if match and int(match[1]) == state.round]
        else:
            files.append(path)
    return files


def _already_combined(files: list[Path], state: CoordinatorState) -> bool:
    """Whether these responses were combined last: after a kill, the same command is repeated."""
    if not files or not state.combined:
        return False
    limit = max(state.history[-1]["bytes_received"], max_response_bytes(state.request()))
    received = [messages.read(path, limit) for path in files]
    return all(state.combined.get(message.sender) == message.digest for message in received)


def _check_excluded(names: Iterable[str], state: CoordinatorState) -> tuple[str, ...]:
    excluded = set(names)
    unknown = excluded - set(state.sites)
    if unknown:
        raise InputError(f"{sorted(unknown)[0]!r} is not among the sites: {', '.join(state.sites)}.")
    if excluded == set(state.sites):
        raise InputError("All sites are excluded, so there is nothing to combine: keep at least one.")
    return tuple(site for site in state.sites if site in excluded)


def _collect_responses(
    files: list[Path], state: CoordinatorState, excluded: tuple[str, ...]
) -> list[Response]:
    """One validated response of each site that is not excluded, in the order of the sites."""
    request, digest = state.request(), messages.unpack(state.pending, "The pending request").digest
    by_site: dict[str, Response] = {}
    for path in files:
        response = parse_response(messages.read(path, max_response_bytes(request)), request, digest)
        if response.site in by_site and by_site[response.site].digest != response.digest:
            raise InputError(
                f"There are two different responses of {response.site}: find out which is right, and give that one."
            )
        by_site[response.site] = response
    missing = [site for site in request.sites if site not in by_site and site not in excluded]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} not responded in round {request.round} "
            f"yet: wait, or exclude the site from this round (--exclude {missing[0]})."
        )
    return [by_site[site] for site in request.sites if site in by_site and site not in excluded]


def _write_output(
    folder: Path, state: CoordinatorState, exchange: str | os.PathLike[str] | None, *, repeated: bool
) -> CombineReport:
    """Write what follows from the state: the next request, or the model."""
    entry, done = state.history[-1], state.phase == DONE
    model = save_model(folder / MODEL, state) if done else None
    losses = [start.fit.losses[-1] for start in state.starts if start.fit.losses]
    return CombineReport(
        round=entry["round"],
        next=state.phase,
        repeated=repeated,
        message=None if done else _write_request(folder, state, exchange),
        model=model,
        sites=tuple(entry["sites"]),
        excluded=tuple(entry["excluded"]),
        objective=min(losses) if losses else None,
        bytes_received=entry["bytes_received"],
        bytes_sent=entry["bytes_sent"],
    )


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
    status = {
        "type": "message",
        "kind": message.kind,
        "federation": message.header["federation"],
        "round": message.round,
        "sender": message.sender,
        "bytes": message.size,
    }
    # A site's staff compare the settings with what was agreed, before the first response.
    return status | (
        parse_request(message).settings.as_dict() if message.sender == messages.COORDINATOR else {}
    )


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
