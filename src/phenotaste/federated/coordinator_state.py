"""What the coordinator keeps between rounds: where each start stands, what was agreed, and who took part when."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.loop import Outcome, State, proposal
from phenotaste.core.records import Array, Model, Sums
from phenotaste.errors import InputError
from phenotaste.federated.columns import Dictionary
from phenotaste.federated.messages import FEDERATION, is_whole, unpack
from phenotaste.federated.orders import (
    CLOSING,
    INVITATION,
    PROPOSAL,
    Order,
    Task,
    order_bytes,
    read_dictionary,
    read_order,
)
from phenotaste.federated.settings import Settings, checked_sites
from phenotaste.storage import tensors

KIND, STATE = "federated-coordinator", "coordinator"
DONE = "done"


class Fitting(NamedTuple):
    """One start."""

    state: State
    last: int = 0  # the round of its last step
    undone: bool = False
    outcome: str | None = None  # how it ended, once it has
    average: Sums | None = None  # with noise: the sums of the rounds so far, the newest weighing most


class CoordinatorState(NamedTuple):
    federation: str
    settings: Settings
    sites: tuple[str, ...]
    round: int  # of the message that is out
    phase: str  # the kind of that message, or done
    dictionary: Dictionary | None
    lam: float
    starts: tuple[Fitting, ...]
    history: tuple[dict[str, Any], ...]  # an entry for each round that was combined
    combined: dict[str, str]  # digests of the answers that led here
    figures: dict[str, Any] | None  # of the finished model
    message: bytes = b""  # the one that is out: kept, for computed anew elsewhere its last bits might differ

    @property
    def best(self) -> int:
        """The start with the lowest objective."""
        ends = [fitting.state.losses[-1] for fitting in self.starts]
        return int(np.argmin(np.where(np.isfinite(ends), ends, np.inf)))

    def order(self) -> Order:
        """What the message that is out asks for."""
        return read_order(unpack(self.message, "The message that is out"))

    def with_message(self) -> "CoordinatorState":
        """The same with the message that goes out next."""
        return self._replace(message=b"" if self.phase == DONE else order_bytes(self._next_order()))

    def _next_order(self) -> Order:
        chosen: tuple[Task, ...] = ()
        if self.phase == PROPOSAL:
            chosen = tuple(
                Task(number, *proposal(fitting.state), fitting.last, fitting.undone)
                for number, fitting in enumerate(self.starts)
                if fitting.outcome is None
            )
        elif self.phase == CLOSING:
            fitting = self.starts[self.best]
            chosen = (Task(self.best, fitting.state.model, 0.0, fitting.last, fitting.undone),)
        return Order(
            self.phase,
            self.federation,
            self.round,
            self.sites,
            self.settings,
            self.dictionary,
            self.lam,
            chosen,
        )


def is_there(path: Path) -> bool:
    return (path / STATE / tensors.MANIFEST).exists()


def save(path: Path, state: CoordinatorState) -> None:
    dictionary = state.dictionary
    meta = {
        "federation": state.federation,
        "settings": state.settings.as_dict(),
        "sites": list(state.sites),
        "round": state.round,
        "phase": state.phase,
        "features": None if dictionary is None else dictionary.features,
        "static": None if dictionary is None else dictionary.static,
        "lam": state.lam,
        "starts": [
            {"last": fitting.last, "undone": fitting.undone, "outcome": fitting.outcome}
            for fitting in state.starts
        ],
        "history": list(state.history),
        "combined": state.combined,
    }
    files: dict[str, dict[str, Array]] = {"message": {"content": np.frombuffer(state.message, np.uint8)}}
    files |= {f"start_{n}": arrays_of(fitting) for n, fitting in enumerate(state.starts)}
    if state.figures is not None:
        files["figures"] = {name: np.asarray(value, np.float64) for name, value in state.figures.items()}
    tensors.write(path / STATE, KIND, files, meta)


def arrays_of(fitting: Fitting) -> dict[str, Array]:
    state = fitting.state
    found = {f"model.{name}": factor for name, factor in zip(Model._fields, state.model, strict=True)}
    found |= {f"previous.{name}": factor for name, factor in zip(Model._fields, state.previous, strict=True)}
    found["losses"] = np.array(state.losses, np.float64)
    found["scalars"] = np.array([state.reach, state.longer, state.to_beat])  # the last may be infinite
    if fitting.average is not None:
        found |= {f"average.{name}": part for name, part in zip(Sums._fields, fitting.average, strict=True)}
    return found


def load(path: Path) -> CoordinatorState:
    files, meta = tensors.read(path / STATE, KIND, mmap=False)
    try:
        return understood(files, meta)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(
            f"{path} is not the folder of a federated fit's coordinator: give the one that init made."
        ) from None


def understood(files: dict[str, dict[str, Array]], meta: dict[str, Any]) -> CoordinatorState:
    if not FEDERATION.fullmatch(meta["federation"]) or not is_whole(meta["round"]):
        raise ValueError("numbers")
    if meta["phase"] not in (INVITATION, PROPOSAL, CLOSING, DONE):
        raise ValueError("phase")
    starts = tuple(fitting_of(files[f"start_{number}"], entry) for number, entry in enumerate(meta["starts"]))
    return CoordinatorState(
        meta["federation"],
        Settings.read(meta["settings"]),
        checked_sites(meta["sites"]),
        meta["round"],
        meta["phase"],
        read_dictionary(meta["features"], meta["static"]),
        float(meta["lam"]),
        starts,
        tuple(meta["history"]),
        dict(meta["combined"]),
        dict(files["figures"]) if "figures" in files else None,
        files["message"]["content"].tobytes(),
    )


def fitting_of(arrays: dict[str, Array], entry: dict[str, Any]) -> Fitting:
    reach, longer, to_beat = arrays["scalars"].tolist()
    model, previous = (
        Model(*(arrays[f"{which}.{name}"] for name in Model._fields)) for which in ("model", "previous")
    )
    state = State(model, previous, reach, longer, tuple(arrays["losses"].tolist()), to_beat)
    average = None
    if "average.UU" in arrays:
        average = Sums(*(arrays[f"average.{name}"] for name in Sums._fields))
    outcome = None if entry["outcome"] is None else str(Outcome(entry["outcome"]))
    return Fitting(state, entry["last"], entry["undone"], outcome, average)
