"""A site: run the patient step over its own patients and respond with their sums. Records never leave the site."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from phenotaste.cohort import Cohort
from phenotaste.disclosure import MIN_CELL_SIZE
from phenotaste.errors import InputError
from phenotaste.federated import messages
from phenotaste.federated.requests import JOIN, Request, columns_digest, parse_request
from phenotaste.federated.settings import MIN_PATIENTS
from phenotaste.federated.site_round import SitePolicy, SiteRound
from phenotaste.federated.state import SiteState, has_site, load_site, save_site
from phenotaste.storage.atomic import write_file
from phenotaste.storage.locks import exclusive_folder

DEFAULT_DELTA = 1e-5
REQUEST_FILE = re.compile(r"round-([0-9]{4,7})\.safetensors")


class StepReport(NamedTuple):
    """The result of `step`.

    Examples
    --------
    >>> from phenotaste import federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2, max_rounds=3))
    >>> report = federated.step(message, cohort[:120], site="north", state="state-of-north")
    >>> report.site, report.round, report.patients, report.repeated
    ('north', 0, 120, False)
    """

    response: Path
    site: str
    round: int
    kind: str  # of the request: join, step or evaluate
    patients: int
    bytes_received: int
    bytes_sent: int
    repeated: bool  # the request had a response already: the same bytes were written again
    suppressed: int | None  # columns of too few patients, set to zero
    unknown: int | None  # columns that are not among the model's, dropped
    epsilon: float | None  # spent so far, with noise


def step(
    message: str | os.PathLike[str],
    cohort: Cohort | str | os.PathLike[str],
    *,
    site: str,
    state: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    min_patients: int = MIN_PATIENTS,
    min_cell_size: int = MIN_CELL_SIZE,
    epsilon: float | None = None,
    delta: float = DEFAULT_DELTA,
    exact: bool = False,
    rejoin: bool = False,
    threads: int | None = None,
) -> StepReport:
    """Respond to the coordinator's request, given as a file or as the exchange folder.

    `state` is a private folder of the site, for the courses between rounds. Repeated calls with the same request write
    the same bytes; after a kill at any moment, call it again.

    A model that no fit would send is refused. With `rejoin` it is not compared with earlier rounds: for a site that
    joins late, was left out of rounds or lost its state.

    Examples
    --------
    >>> from phenotaste import federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2, max_rounds=3))
    >>> federated.step(message, cohort[:120], site="north", state="state-of-north").response.name
    'round-0000.north.safetensors'
    >>> federated.step(message, cohort[:120], site="north", state="state-of-north").repeated
    True
    """
    source = _newest_request(Path(message))
    received = messages.read(source)
    request = parse_request(received)
    target = _response_path(source, request, site, out)
    policy = SitePolicy(site, min_patients, min_cell_size, epsilon, delta, exact, rejoin)
    suppressed = unknown = None
    with _locked_state(Path(state)) as folder:
        current = load_site(folder) if has_site(folder) else None
        if current is not None:
            _check_sequence(request, received, current, policy, folder)
        elif request.kind != JOIN and not rejoin:
            raise InputError(
                f"{folder} has no state of this fit, which is in round {request.round}: give the folder of the earlier "
                "rounds, or --rejoin if this site joins late or lost its state."
            )
        repeated = current is not None and current.request == received.digest
        if current is None or not repeated:
            work = SiteRound(request, received.digest, current, policy, _load_cohort(cohort), threads)
            current = work.run()
            # Saved before anything is sent: noise is never drawn twice for one request.
            save_site(folder, current)
            suppressed, unknown = work.n_suppressed, work.n_unknown
        write_file(target, current.response)
    return StepReport(
        response=target,
        site=site,
        round=request.round,
        kind=request.kind,
        patients=messages.unpack(current.response, "The response").header["patients"],
        bytes_received=received.size,
        bytes_sent=len(current.response),
        repeated=repeated,
        suppressed=suppressed,
        unknown=unknown,
        epsilon=None if current.budget is None else current.budget.spent(current.noisy_rounds),
    )


def _load_cohort(cohort: Cohort | str | os.PathLike[str]) -> Cohort:
    loaded = cohort if isinstance(cohort, Cohort) else Cohort.load(cohort)
    if loaded.groups is not None:
        raise InputError(
            "The cohort has several rows for a patient, and disclosure control counts rows: build it with "
            "--label-rows first."
        )
    return loaded


def _newest_request(path: Path) -> Path:
    """The file itself, or the coordinator's newest request in a folder."""
    if not path.is_dir():
        return path
    rounds = [int(match[1]) for name in os.listdir(path) if (match := REQUEST_FILE.fullmatch(name))]
    if not rounds:
        raise InputError(f"{path} holds no request of a coordinator: give the exchange folder.")
    return path / messages.file_name(max(rounds))


def _response_path(source: Path, request: Request, site: str, out: str | os.PathLike[str] | None) -> Path:
    if site not in request.sites:
        raise InputError(f"{site!r} is not among the participating sites: {', '.join(request.sites)}.")
    target = Path(source.parent if out is None else out)
    target = target / messages.file_name(request.round, site) if target.is_dir() else target
    if not target.parent.is_dir():
        raise InputError(f"The folder {target.parent} does not exist: create it, or choose another --out.")
    if target.is_dir() or target.resolve() == source.resolve():
        raise InputError(f"The response cannot be written to {target}: choose another --out.")
    return target


@contextmanager
def _locked_state(path: Path) -> Iterator[Path]:
    """The site's folder, locked; a first step that is refused leaves no folder behind."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: choose another folder for the site's state.")
    with exclusive_folder(
        path, f"{path} is in use by another process: wait for it, or choose another folder."
    ):
        try:
            yield path
        finally:
            with suppress(OSError):
                path.rmdir()  # fails unless it is empty


def _check_sequence(
    request: Request, message: messages.Message, state: SiteState, policy: SitePolicy, folder: Path
) -> None:
    """Check that the request continues this site's fit under the same conditions."""
    if state.federation != request.federation or state.site != policy.site:
        fit = "this" if state.federation == request.federation else "another"
        raise InputError(
            f"{folder} is the state of {state.site} in {fit} federated fit: give each site and each fit a folder of "
            "its own."
        )
    if (
        state.settings != request.settings
        or state.columns not in (None, columns_digest(request))
        or state.lam not in (None, request.lam)
    ):
        raise InputError(
            f"{message.source} has other settings or columns than this site agreed to: ask the coordinator, and start "
            "a new fit if they are to change."
        )
    if state.request != message.digest and request.round <= state.round:
        raise InputError(
            f"{message.source} is of round {request.round}, and this site has responded to round {state.round} "
            "already: use the newest request; older ones, and a second one of a round, get no response."
        )
    if policy.min_cell_size != state.min_cell_size and policy.min_cell_size != MIN_CELL_SIZE:
        raise InputError(
            f"This site started with min_cell_size={state.min_cell_size}, which cannot change within a fit."
        )
    if policy.epsilon is not None and state.epsilon_delta != (policy.epsilon, policy.delta):
        raise InputError("This site started with another epsilon or delta, which cannot change within a fit.")
