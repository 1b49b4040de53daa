"""Requests from the coordinator to the sites: join, then one step per round, and evaluate at the end."""

import hashlib
import json
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_random_state

from phenotaste.core.init import init_model
from phenotaste.core.records import Array, Model, Shard
from phenotaste.errors import InputError
from phenotaste.federated.columns import ColumnNames
from phenotaste.federated.messages import (
    COORDINATOR,
    Message,
    are_valid_names,
    float_array,
    invalid,
    pack,
)
from phenotaste.federated.settings import Settings, check_sites
from phenotaste.validation import is_integer, is_number

JOIN, STEP, EVALUATE = "join", "step", "evaluate"
NORM_TOL = 1e-9  # allowed deviation of a column's norm from one


class Task(NamedTuple):
    """The model of one start, and the courses from which its patient step starts."""

    start: int
    model: Model
    beta: float  # extrapolation of courses and model
    last_round: int  # in which this start was last stepped; 0: never
    undo: bool  # that step did not lower the objective: return to the courses before it


class Request(NamedTuple):
    """A parsed request of the coordinator."""

    kind: str
    federation: str
    round: int
    sites: tuple[str, ...]
    settings: Settings
    columns: ColumnNames | None = None  # None in a join request that asks the sites for theirs
    lam: float = 0.0  # λ_eff
    tasks: tuple[Task, ...] = ()


def columns_digest(request: Request) -> str | None:
    """A digest of the columns, which may not change once they are known."""
    if request.columns is None:
        return None
    return hashlib.sha256(json.dumps(request.columns).encode()).hexdigest()


def pack_request(request: Request) -> bytes:
    """Serialise a request."""
    columns = request.columns
    header = {
        "kind": request.kind,
        "federation": request.federation,
        "round": request.round,
        "sender": COORDINATOR,
        "sites": list(request.sites),
        "settings": request.settings.as_dict(),
        "features": None if columns is None else columns.features,
        "static": None if columns is None else columns.static,
        "lam": request.lam,
        "tasks": [
            {"start": task.start, "beta": task.beta, "last_round": task.last_round, "undo": task.undo}
            for task in request.tasks
        ],
    }
    arrays = {
        f"{name}.{task.start}": factor
        for task in request.tasks
        for name, factor in zip(Model._fields, task.model, strict=True)
    }
    return pack(header, arrays)


def parse_request(message: Message) -> Request:
    """Parse and validate a message of the coordinator completely: kernels use its numbers as indices."""
    if message.sender != COORDINATOR:
        raise InputError(f"{message.source} is the response of a site: give the coordinator's request.")
    try:
        request = _parse(message)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise invalid(message, "has a header that no coordinator writes") from None
    if set(message.arrays) != {f"{name}.{task.start}" for task in request.tasks for name in Model._fields}:
        raise invalid(message, "holds other arrays than its header lists")
    return request


def _parse(message: Message) -> Request:
    header, kind = message.header, message.kind
    settings, sites = Settings.from_dict(header["settings"]), check_sites(header["sites"])
    columns = parse_columns(header["features"], header["static"])
    if kind not in (JOIN, STEP, EVALUATE) or not is_number(header["lam"], max=1e100):
        raise ValueError("kind")
    # One evaluation after the last round and no request beyond it: a site replies no more often than agreed.
    if message.round > settings.max_rounds + (kind == EVALUATE):
        raise ValueError("round")
    if kind == EVALUATE and settings.noise:  # its figures would be exact
        raise ValueError("kind")
    if (kind == JOIN) != (message.round == 0) or (columns is None and kind != JOIN):
        raise ValueError("round")
    entries = header["tasks"]
    low, high = {JOIN: (0, 0), STEP: (1, settings.n_starts), EVALUATE: (1, 1)}[kind]
    if not isinstance(entries, list) or not low <= len(entries) <= high:
        raise ValueError("tasks")
    if len({entry["start"] for entry in entries}) < len(entries):
        raise ValueError("start")
    tasks = tuple(_parse_task(message, entry, settings, columns or ColumnNames([], [])) for entry in entries)
    return Request(
        kind, header["federation"], message.round, sites, settings, columns, float(header["lam"]), tasks
    )


def parse_columns(features: Any, static: Any) -> ColumnNames | None:
    """Validate column names from a header; None where both lists are None."""
    if features is None and static is None:
        return None
    if not are_valid_names(features) or not are_valid_names(static) or not features:
        raise ValueError("names")
    return ColumnNames(features, static)


def _parse_task(message: Message, entry: dict[str, Any], settings: Settings, columns: ColumnNames) -> Task:
    start, beta, R = entry["start"], entry["beta"], settings.rank
    if not is_integer(start, 0, settings.n_starts - 1) or not is_number(beta, max=1.0):
        raise ValueError("start")
    if not is_integer(entry["last_round"], 0, message.round - 1) or not isinstance(entry["undo"], bool):
        raise ValueError("last_round")
    model = Model(
        float_array(message, f"H.{start}", (R, R), signed=True),
        float_array(message, f"V.{start}", (len(columns.features), R)),
        float_array(message, f"F.{start}", (len(columns.static), R)),
    )
    if not (has_unit_columns(model.H) and has_unit_columns(model.V)):
        raise invalid(message, "has definitions that are not at unit norm")
    return Task(start, model, float(beta), entry["last_round"], entry["undo"])


def has_unit_columns(factor: Array) -> bool:
    """Whether every column has norm one or zero."""
    norms = np.linalg.norm(factor, axis=0)
    return bool(np.all((np.abs(norms - 1) < NORM_TOL) | (norms == 0)))


def starting_models(settings: Settings, columns: ColumnNames) -> list[Model]:
    """Those of TASTE(init="random") with the same seed: an NMF start would need patients, or rounds of its own."""
    no_patients = Shard(
        np.zeros(0),
        np.zeros(0, np.int32),
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
        np.zeros((0, len(columns.static))),
    )
    seeds = check_random_state(settings.seed).randint(2**31, size=settings.n_starts)
    return [
        init_model(
            "random", no_patients, len(columns.features), settings.rank, True, np.random.default_rng(seed)
        )
        for seed in seeds
    ]
