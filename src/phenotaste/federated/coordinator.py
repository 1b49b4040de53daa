"""The coordinator's part: begin a federated fit, and make each round's answers into the next message or the model."""

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from phenotaste.engines.threads import one_blas_thread
from phenotaste.errors import InputError
from phenotaste.federated import coordinator_state, messages
from phenotaste.federated.answers import Answer, most_bytes, read_answer
from phenotaste.federated.columns import Dictionary
from phenotaste.federated.coordinator_state import DONE, CoordinatorState
from phenotaste.federated.finished import save_model
from phenotaste.federated.orders import INVITATION
from phenotaste.federated.rounds import following
from phenotaste.federated.settings import Settings, checked_sites
from phenotaste.selection.files import locked, write_file

EXCHANGE, MODEL = "exchange", "model"
ANSWER_FILE = re.compile(r"round-([0-9]{4,7})\.([A-Za-z0-9][A-Za-z0-9_-]{0,39})\.safetensors")


class Combined(NamedTuple):
    """What came of a round, for the terminal.

    Examples
    --------
    >>> from phenotaste import federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2, max_rounds=3))
    >>> for site, patients in (("north", cohort[:120]), ("south", cohort[120:])):
    ...     answered = federated.step(message, patients, site=site, state=f"state-of-{site}")
    >>> found = federated.combine("work")
    >>> found.round, found.next, found.sites, found.model
    (0, 'proposal', ('north', 'south'), None)
    """

    round: int  # of the answers
    next: str  # proposal, closing or done
    again: bool  # it had been combined before: what follows was written once more
    message: Path | None  # the next one, for the sites
    model: Path | None  # at the end
    sites: tuple[str, ...]
    left_out: tuple[str, ...]
    objective: float | None
    bytes_received: int
    bytes_sent: int  # of the next message, to all sites together


def init(
    work: str | os.PathLike[str],
    sites: Iterable[str],
    settings: Settings | None = None,
    *,
    features: list[str] | None = None,
    static: list[str] | None = None,
    exchange: str | os.PathLike[str] | None = None,
) -> Path:
    """Begin a federated fit in the folder `work`; returns the invitation to be sent to all sites.

    `features` and `static` give the columns beforehand; otherwise the sites say which they have.

    Examples
    --------
    >>> from phenotaste import federated
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2))
    >>> message.as_posix()
    'work/exchange/round-0000.safetensors'
    """
    chosen = settings or Settings()
    if chosen.noise and features is None:
        raise InputError(
            "With noise the features have to be given beforehand, since which of them patients have is about patients: "
            "give a list of codes that is public."
        )
    if features is not None and not (
        messages.are_names(features) and features and messages.are_names(static or [])
    ):
        raise InputError("The list of features has empty, unreadable or repeated names: correct it.")
    folder = Path(work)
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(f"{folder} exists already: choose another folder for the coordinator.")
    dictionary = None if features is None else Dictionary(features, static or [])
    state = CoordinatorState(
        secrets.token_hex(16), chosen, checked_sites(sites), 0, INVITATION, dictionary, 0.0, (), (), {}, None
    )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = state.with_message()
    coordinator_state.save(folder, state)
    return send(folder, state, exchange)


def send(folder: Path, state: CoordinatorState, exchange: str | os.PathLike[str] | None) -> Path:
    """Write the message that is out, whole or not at all."""
    target = Path(exchange) if exchange is not None else folder / EXCHANGE
    target.mkdir(parents=True, exist_ok=True)
    path = target / messages.file_name(state.round)
    write_file(path, state.message)
    return path


def combine(
    work: str | os.PathLike[str],
    answers: Iterable[str | os.PathLike[str]] = (),
    *,
    without: Iterable[str] = (),
    exchange: str | os.PathLike[str] | None = None,
) -> Combined:
    """Make the sites' answers into the next message, or at the end into the model WORK/model.

    `answers` are files or folders; without any, the folder in which messages are exchanged is looked at. A site that
    has not answered is waited for, or left out by `without`; that is recorded, and it may come back in any round.

    Examples
    --------
    >>> from phenotaste import TASTE, federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> patients = {"north": cohort[:120], "south": cohort[120:]}
    >>> message = federated.init("work", patients, federated.Settings(rank=2, max_rounds=3))
    >>> model = None
    >>> while model is None:
    ...     for site, own in patients.items():
    ...         answered = federated.step("work/exchange", own, site=site, state=f"state-of-{site}")
    ...     model = federated.combine("work").model
    >>> TASTE.load(model).V_.shape
    (20, 2)
    """
    folder = Path(work)
    coordinator_state.load(folder)  # refuses what is none before it is locked
    with locked(folder, "coordinator's work"), one_blas_thread():
        state = coordinator_state.load(folder)
        place = Path(exchange) if exchange is not None else folder / EXCHANGE
        files = answer_files([Path(answer) for answer in answers] or [place], state)
        # Killed between keeping the state and writing the message: nobody can have answered it.
        unsent = not files and state.history and not (place / messages.file_name(state.round)).exists()
        if state.phase == DONE or unsent or repeated(files, state):
            return emitted(folder, state, exchange, again=True)
        found = gathered(files, state, left_out(without, state))
        after = following(state, found)
        coordinator_state.save(folder, after)
        return emitted(folder, after, exchange, again=False)


def answer_files(given: list[Path], state: CoordinatorState) -> list[Path]:
    """Files as they are; of a folder those that are named as answers to the message that is out."""
    files: list[Path] = []
    for path in given:
        if path.is_dir():
            named = [(name, ANSWER_FILE.fullmatch(name)) for name in sorted(os.listdir(path))]
            files += [path / name for name, match in named if match and int(match[1]) == state.round]
        else:
            files.append(path)
    return files


def repeated(files: list[Path], state: CoordinatorState) -> bool:
    """Whether these are the answers that were combined last: after a kill the same command is given once more."""
    if not files or not state.combined:
        return False
    most = max(state.history[-1]["bytes_received"], most_bytes(state.order()))
    found = [messages.read(path, most) for path in files]
    return all(state.combined.get(message.sender) == message.digest for message in found)


def left_out(names: Iterable[str], state: CoordinatorState) -> tuple[str, ...]:
    wanted = set(names)
    unknown = wanted - set(state.sites)
    if unknown:
        raise InputError(f"{sorted(unknown)[0]!r} is not among the sites: {', '.join(state.sites)}.")
    if wanted == set(state.sites):
        raise InputError("Without any site there is nothing to combine: wait for one at least.")
    return tuple(site for site in state.sites if site in wanted)


def gathered(files: list[Path], state: CoordinatorState, without: tuple[str, ...]) -> list[Answer]:
    """One checked answer of each site that is not left out, in the order of the sites."""
    order, digest = state.order(), messages.unpack(state.message, "The message that is out").digest
    found: dict[str, Answer] = {}
    for path in files:
        answer = read_answer(messages.read(path, most_bytes(order)), order, digest)
        if answer.site in found and found[answer.site].digest != answer.digest:
            raise InputError(
                f"There are two different answers of {answer.site}: find out which is right, and give that one."
            )
        found[answer.site] = answer
    missing = [site for site in order.sites if site not in found and site not in without]
    if missing:
        raise InputError(
            f"{' and '.join(missing)} {'has' if len(missing) == 1 else 'have'} not answered round {order.round} yet: "
            f"wait, or go on without (--without {missing[0]})."
        )
    return [found[site] for site in order.sites if site in found and site not in without]


def emitted(
    folder: Path, state: CoordinatorState, exchange: str | os.PathLike[str] | None, *, again: bool
) -> Combined:
    """Write what follows from the state: the next message, or the model."""
    entry = state.history[-1]
    model = save_model(folder / MODEL, state) if state.phase == DONE else None
    losses = [fitting.state.losses[-1] for fitting in state.starts if fitting.state.losses]
    return Combined(
        entry["round"],
        state.phase,
        again,
        None if state.phase == DONE else send(folder, state, exchange),
        model,
        tuple(entry["sites"]),
        tuple(entry["left_out"]),
        min(losses) if losses else None,
        entry["bytes_received"],
        entry["bytes_sent"],
    )
