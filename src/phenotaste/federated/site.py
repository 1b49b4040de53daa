"""A site's part: take the patient step over its own patients and answer with their sums. Patients stay there."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from phenotaste.cohort import Cohort
from phenotaste.disclosure import FEWEST
from phenotaste.errors import InputError
from phenotaste.federated import messages, site_state
from phenotaste.federated.orders import Order, agreed, read_order
from phenotaste.federated.settings import SMALLEST_COHORT
from phenotaste.federated.site_state import SiteState
from phenotaste.federated.site_work import Rules, Work, promised
from phenotaste.selection.files import locked, write_file

USUAL_DELTA = 1e-5
ORDER_FILE = re.compile(r"round-([0-9]{4,7})\.safetensors")


class Stepped(NamedTuple):
    """What a step did, for the terminal.

    Examples
    --------
    >>> from phenotaste import federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2, max_rounds=3))
    >>> answered = federated.step(message, cohort[:120], site="north", state="state-of-north")
    >>> answered.site, answered.round, answered.patients, answered.again
    ('north', 0, 120, False)
    """

    answer: Path
    site: str
    round: int
    kind: str
    patients: int
    bytes_received: int
    bytes_sent: int
    again: bool  # the message had been answered before: the same answer was written once more
    hidden: int | None  # columns of too few patients, taken as zero
    unknown: int | None  # columns that the dictionary lacks, left out
    epsilon: float | None  # spent so far, with noise


def step(
    message: str | os.PathLike[str],
    cohort: Cohort | str | os.PathLike[str],
    *,
    site: str,
    state: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    minimum_patients: int = SMALLEST_COHORT,
    fewest: int = FEWEST,
    epsilon: float | None = None,
    delta: float = USUAL_DELTA,
    exact: bool = False,
    threads: int | None = None,
) -> Stepped:
    """Answer the coordinator's message: a file, or the folder in which messages are exchanged.

    `state` is a folder of the site's own, for courses between rounds. The same message is answered with the same bytes,
    however often; after a kill at any moment the step is simply taken again.

    Examples
    --------
    >>> from phenotaste import federated, simulate
    >>> cohort, truth = simulate.ehr(240, n_features=20, rank=2, mean_visits=10, random_state=1)
    >>> message = federated.init("work", ["north", "south"], federated.Settings(rank=2, max_rounds=3))
    >>> federated.step(message, cohort[:120], site="north", state="state-of-north").answer.name
    'round-0000.north.safetensors'
    >>> federated.step(message, cohort[:120], site="north", state="state-of-north").again
    True
    """
    source = newest_order(Path(message))
    found = messages.read(source)
    order = read_order(found)
    target = answer_file(source, order, site, out)
    rules = Rules(site, minimum_patients, fewest, epsilon, delta, exact)
    hidden = unknown = None
    with state_folder(Path(state)) as folder:
        known = site_state.load(folder) if site_state.is_there(folder) else None
        check_turn(order, found, known, rules, folder)
        again = known is not None and known.message == found.digest
        if known is None or not again:
            work = Work(order, found.digest, known, rules, cohort_of(cohort), threads)
            known = work.done()
            # Before anything leaves: noise is never drawn twice for one message.
            site_state.save(folder, known)
            hidden, unknown = work.hidden, work.unknown
        write_file(target, known.reply)
    patients = messages.unpack(known.reply, "The answer").record["patients"]
    spent = None if known.promised is None else promised(known).spent(known.noisy_rounds)
    size = len(known.reply)
    return Stepped(
        target, site, order.round, order.kind, patients, found.size, size, again, hidden, unknown, spent
    )


def cohort_of(cohort: Cohort | str | os.PathLike[str]) -> Cohort:
    return cohort if isinstance(cohort, Cohort) else Cohort.load(cohort)


def newest_order(path: Path) -> Path:
    """The message itself, or the coordinator's newest in a folder."""
    if not path.is_dir():
        return path
    rounds = [int(match[1]) for name in os.listdir(path) if (match := ORDER_FILE.fullmatch(name))]
    if not rounds:
        raise InputError(
            f"{path} holds no message of a coordinator: give the folder in which messages are exchanged."
        )
    return path / messages.file_name(max(rounds))


def answer_file(source: Path, order: Order, site: str, out: str | os.PathLike[str] | None) -> Path:
    if site not in order.sites:
        raise InputError(f"{site!r} is not among the sites that take part: {', '.join(order.sites)}.")
    target = Path(source.parent if out is None else out)
    target = target / messages.file_name(order.round, site) if target.is_dir() else target
    if not target.parent.is_dir():
        raise InputError(f"The folder {target.parent} does not exist: create it, or choose another --out.")
    if target.is_dir() or target.resolve() == source.resolve():
        raise InputError(f"{target} cannot take the answer: choose another --out.")
    return target


@contextmanager
def state_folder(path: Path) -> Iterator[Path]:
    """The site's folder, one step at a time; a first step that is refused leaves none behind."""
    with locked(path, "site's state"):
        try:
            yield path
        finally:
            with suppress(OSError):
                path.rmdir()  # only where it is empty


def check_turn(
    order: Order, message: messages.Message, known: SiteState | None, rules: Rules, folder: Path
) -> None:
    """Whether this message comes next for this site."""
    if known is None:
        return
    if known.federation != order.federation or known.site != rules.site:
        raise InputError(
            f"{folder} is the state of {known.site} in {'this' if known.federation == order.federation else 'another'} "
            "federated fit: give each site and each fit a folder of its own."
        )
    if known.settings != order.settings or known.agreed not in (None, agreed(order)):
        raise InputError(
            f"{message.where} has other settings or columns than those that this site agreed to: ask the coordinator, "
            "and begin a new fit if they are to change."
        )
    if known.message != message.digest and order.round <= known.round:
        raise InputError(
            f"{message.where} is of round {order.round}, and this site has answered round {known.round} already: "
            "take the newest message; an older or a second one of a round is not answered."
        )
    if rules.fewest != known.fewest and rules.fewest != FEWEST:
        raise InputError(
            f"This site began with columns of at least {known.fewest} patients: that cannot change within a fit."
        )
    if rules.epsilon is not None and known.promised != (rules.epsilon, rules.delta):
        raise InputError("This site began with another promise of noise: that cannot change within a fit.")
