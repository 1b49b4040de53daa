"""The state that coordinator and sites keep between rounds, each in a folder of its own."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from phenotaste.core.loop import Outcome, State, extrapolated
from phenotaste.core.records import Array, Model, Sums
from phenotaste.errors import InputError
from phenotaste.federated.columns import ColumnNames
from phenotaste.federated.messages import FEDERATION_ID, MAX_COUNT, unpack
from phenotaste.federated.privacy import PrivacyBudget
from phenotaste.federated.requests import (
    EVALUATE,
    JOIN,
    STEP,
    Request,
    Task,
    pack_request,
    parse_columns,
    parse_request,
)
from phenotaste.federated.settings import Settings, check_sites
from phenotaste.storage import tensors
from phenotaste.storage.encoding import DIGEST
from phenotaste.validation import is_integer

DONE = "done"
COORDINATOR_KIND, COORDINATOR_FOLDER = "federated-coordinator", "coordinator"
SITE_KIND, SITE_FOLDER = "federated-site", "site"

Files = dict[str, dict[str, Array]]
T = TypeVar("T")


class StartState(NamedTuple):
    """One start, at the coordinator."""

    fit: State
    last_round: int = 0  # the round of its last step
    undone: bool = False
    outcome: str | None = None  # once it has ended
    mean: Sums | None = None  # with noise: the running mean of the sums over rounds


class CoordinatorState(NamedTuple):
    """Everything that the coordinator needs for the next round."""

    federation: str
    settings: Settings
    sites: tuple[str, ...]
    round: int  # of the pending request
    phase: str  # kind of the pending request, or "done"
    columns: ColumnNames | None
    lam: float
    starts: tuple[StartState, ...]
    history: tuple[dict[str, Any], ...]  # one entry per combined round
    combined: dict[str, str]  # digests of the responses that led here, by site
    figures: dict[str, Any] | None  # of the finished model
    pending: bytes = (
        b""  # the pending request: stored, since recomputed on another CPU its last bits might differ
    )

    @property
    def best(self) -> int:
        """The start with the lowest objective."""
        losses = [start.fit.losses[-1] for start in self.starts]
        return int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))

    def request(self) -> Request:
        """The pending request, parsed."""
        return parse_request(unpack(self.pending, "The pending request"))

    def with_request(self) -> "CoordinatorState":
        """This state with the request of its round and phase."""
        return self._replace(pending=b"" if self.phase == DONE else pack_request(self._next_request()))

    def _next_request(self) -> Request:
        tasks: tuple[Task, ...] = ()
        if self.phase == STEP:
            tasks = tuple(
                Task(number, *extrapolated(start.fit), start.last_round, start.undone)
                for number, start in enumerate(self.starts)
                if start.outcome is None
            )
        elif self.phase == EVALUATE:
            start = self.starts[self.best]
            tasks = (Task(self.best, start.fit.model, 0.0, start.last_round, start.undone),)
        return Request(
            self.phase,
            self.federation,
            self.round,
            self.sites,
            self.settings,
            self.columns,
            self.lam,
            tasks,
        )


class StartCourses(NamedTuple):
    """One start at a site: its courses after and before its last step."""

    round: int  # of that step
    courses: Array
    previous: Array
    V: Array  # of the last request, with which the next one is compared


class SiteState(NamedTuple):
    """Everything that a site needs for the next round; the courses are about patients."""

    federation: str
    site: str
    settings: Settings
    columns: str | None  # their digest, once they are known
    lam: float | None  # λ̃, from the first step on
    cohort: str  # digest: the difference of sums over two cohorts would disclose who joined or left
    min_cell_size: int
    epsilon_delta: tuple[float, float] | None  # None: exact sums
    noisy_rounds: int
    round: int  # of the last request with a response
    request: str  # its digest
    response: bytes
    starts: dict[int, StartCourses]

    @property
    def budget(self) -> PrivacyBudget | None:
        """The privacy budget, where the site adds noise."""
        if self.epsilon_delta is None:
            return None
        return PrivacyBudget(*self.epsilon_delta, self.settings.max_rounds)


def has_coordinator(folder: Path) -> bool:
    return (folder / COORDINATOR_FOLDER / tensors.MANIFEST).exists()


def has_site(folder: Path) -> bool:
    return (folder / SITE_FOLDER / tensors.MANIFEST).exists()


def save_coordinator(folder: Path, state: CoordinatorState) -> None:
    """Replace the stored state atomically."""
    columns = state.columns
    meta = {
        "federation": state.federation,
        "settings": state.settings.as_dict(),
        "sites": list(state.sites),
        "round": state.round,
        "phase": state.phase,
        "features": None if columns is None else columns.features,
        "static": None if columns is None else columns.static,
        "lam": state.lam,
        "starts": [
            {"last_round": start.last_round, "undone": start.undone, "outcome": start.outcome}
            for start in state.starts
        ],
        "history": list(state.history),
        "combined": state.combined,
    }
    files: Files = {"request": {"content": np.frombuffer(state.pending, np.uint8)}}
    files |= {f"start_{n}": _start_arrays(start) for n, start in enumerate(state.starts)}
    if state.figures is not None:
        files["figures"] = {name: np.asarray(value, np.float64) for name, value in state.figures.items()}
    tensors.write(folder / COORDINATOR_FOLDER, COORDINATOR_KIND, files, meta)


def _start_arrays(start: StartState) -> dict[str, Array]:
    fit = start.fit
    arrays = {f"model.{name}": factor for name, factor in zip(Model._fields, fit.model, strict=True)}
    arrays |= {
        f"model_prev.{name}": factor for name, factor in zip(Model._fields, fit.model_prev, strict=True)
    }
    arrays["losses"] = np.array(fit.losses, np.float64)
    arrays["scalars"] = np.array(
        [fit.beta, fit.next_beta, fit.best_loss]
    )  # not in JSON: the last may be infinite
    if start.mean is not None:
        arrays |= {f"mean.{name}": part for name, part in zip(Sums._fields, start.mean, strict=True)}
    return arrays


def load_coordinator(folder: Path) -> CoordinatorState:
    """Load and validate the coordinator's state."""
    return _load(
        folder / COORDINATOR_FOLDER,
        COORDINATOR_KIND,
        _parse_coordinator,
        f"{folder} is not the folder of a federated fit's coordinator: give the one that init created.",
    )


def _load(path: Path, kind: str, parse: Callable[[Files, dict[str, Any]], T], message: str) -> T:
    files, meta = tensors.read(path, kind, mmap=False)  # steps overwrite the courses
    try:
        return parse(files, meta)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(message) from None


def _parse_coordinator(files: Files, meta: dict[str, Any]) -> CoordinatorState:
    if not FEDERATION_ID.fullmatch(meta["federation"]) or not is_integer(meta["round"], max=MAX_COUNT):
        raise ValueError("round")
    if meta["phase"] not in (JOIN, STEP, EVALUATE, DONE):
        raise ValueError("phase")
    starts = tuple(_parse_start(files[f"start_{n}"], entry) for n, entry in enumerate(meta["starts"]))
    return CoordinatorState(
        federation=meta["federation"],
        settings=Settings.from_dict(meta["settings"]),
        sites=check_sites(meta["sites"]),
        round=meta["round"],
        phase=meta["phase"],
        columns=parse_columns(meta["features"], meta["static"]),
        lam=float(meta["lam"]),
        starts=starts,
        history=tuple(meta["history"]),
        combined=dict(meta["combined"]),
        figures=dict(files["figures"]) if "figures" in files else None,
        pending=files["request"]["content"].tobytes(),
    )


def _parse_start(arrays: dict[str, Array], entry: dict[str, Any]) -> StartState:
    beta, next_beta, best_loss = arrays["scalars"].tolist()
    model, model_prev = (
        Model(*(arrays[f"{which}.{name}"] for name in Model._fields)) for which in ("model", "model_prev")
    )
    fit = State(model, model_prev, beta, next_beta, tuple(arrays["losses"].tolist()), best_loss)
    mean = None
    if "mean.UU" in arrays:
        mean = Sums(*(arrays[f"mean.{name}"] for name in Sums._fields))
    outcome = None if entry["outcome"] is None else str(Outcome(entry["outcome"]))
    return StartState(fit, entry["last_round"], entry["undone"], outcome, mean)


def save_site(folder: Path, state: SiteState) -> None:
    """Replace the stored state atomically, in a folder that only its owner can read."""
    meta = {
        "federation": state.federation,
        "site": state.site,
        "settings": state.settings.as_dict(),
        "columns": state.columns,
        "lam": state.lam,
        "cohort": state.cohort,
        "min_cell_size": state.min_cell_size,
        "epsilon_delta": state.epsilon_delta,
        "noisy_rounds": state.noisy_rounds,
        "round": state.round,
        "request": state.request,
        "starts": {str(number): start.round for number, start in state.starts.items()},
    }
    courses = {f"courses.{number}": start.courses for number, start in state.starts.items()}
    courses |= {f"previous.{number}": start.previous for number, start in state.starts.items()}
    courses |= {f"V.{number}": start.V for number, start in state.starts.items()}
    files = {"response": {"content": np.frombuffer(state.response, np.uint8)}, "courses": courses}
    os.chmod(folder, 0o700)
    tensors.write(folder / SITE_FOLDER, SITE_KIND, files, meta)


def load_site(folder: Path) -> SiteState:
    """Load and validate a site's state."""
    return _load(
        folder / SITE_FOLDER,
        SITE_KIND,
        _parse_site,
        f"{folder} is not the state of a site in a federated fit: give the folder of its earlier steps, or a new one.",
    )


def _parse_site(files: Files, meta: dict[str, Any]) -> SiteState:
    if not FEDERATION_ID.fullmatch(meta["federation"]) or not DIGEST.fullmatch(meta["request"]):
        raise ValueError("digest")
    if not all(is_integer(meta[name], max=MAX_COUNT) for name in ("min_cell_size", "noisy_rounds", "round")):
        raise ValueError("round")
    budget, courses = meta["epsilon_delta"], files["courses"]
    return SiteState(
        federation=meta["federation"],
        site=meta["site"],
        settings=Settings.from_dict(meta["settings"]),
        columns=meta["columns"],
        lam=None if meta["lam"] is None else float(meta["lam"]),
        cohort=meta["cohort"],
        min_cell_size=meta["min_cell_size"],
        epsilon_delta=None if budget is None else (float(budget[0]), float(budget[1])),
        noisy_rounds=meta["noisy_rounds"],
        round=meta["round"],
        request=meta["request"],
        response=files["response"]["content"].tobytes(),
        starts={
            int(number): StartCourses(
                int(last),
                courses[f"courses.{number}"],
                courses[f"previous.{number}"],
                courses[f"V.{number}"],
            )
            for number, last in meta["starts"].items()
        },
    )
