"""What the coordinator asks of the sites: an invitation, then a proposal a round, and a closing look at the end."""

import hashlib
import json
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.records import Array, Model
from phenotaste.errors import InputError
from phenotaste.federated.columns import Dictionary
from phenotaste.federated.messages import (
    COORDINATOR,
    Message,
    are_names,
    is_amount,
    is_whole,
    numbers,
    odd,
    pack,
)
from phenotaste.federated.settings import Settings, checked_sites

INVITATION, PROPOSAL, CLOSING = "invitation", "proposal", "closing"
UNIT = 1e-9  # how far from one a column's norm may be


class Task(NamedTuple):
    """One start's model, and from where its courses set out."""

    start: int
    model: Model
    reach: float  # how far courses and model are extrapolated
    last: int  # the round in which this start was stepped last; 0: never
    undo: bool  # that step did not lower the objective: go back before it


class Order(NamedTuple):
    kind: str
    federation: str
    round: int
    sites: tuple[str, ...]
    settings: Settings
    dictionary: Dictionary | None = None  # None in an invitation: the sites shall say what they have
    lam: float = 0.0  # λ_eff
    tasks: tuple[Task, ...] = ()


def agreed(order: Order) -> str | None:
    """What may not change once a first proposal has said it: the columns and λ."""
    if order.kind == INVITATION or order.dictionary is None:
        return None
    told = json.dumps([order.dictionary.features, order.dictionary.static, order.lam])
    return hashlib.sha256(told.encode()).hexdigest()


def order_bytes(order: Order) -> bytes:
    record = {
        "kind": order.kind,
        "federation": order.federation,
        "round": order.round,
        "sender": COORDINATOR,
        "sites": list(order.sites),
        "settings": order.settings.as_dict(),
        "features": None if order.dictionary is None else order.dictionary.features,
        "static": None if order.dictionary is None else order.dictionary.static,
        "lam": order.lam,
        "tasks": [
            {"start": task.start, "reach": task.reach, "last": task.last, "undo": task.undo}
            for task in order.tasks
        ],
    }
    arrays = {
        f"{name}.{task.start}": factor
        for task in order.tasks
        for name, factor in zip(Model._fields, task.model, strict=True)
    }
    return pack(record, arrays)


def read_order(message: Message) -> Order:
    """A message of the coordinator, every part of it checked: kernels will index by what it says."""
    if message.sender != COORDINATOR:
        raise InputError(f"{message.where} is an answer of a site: give the coordinator's message.")
    try:
        order = understood(message)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise odd(message, "says what no coordinator would") from None
    if set(message.arrays) != {f"{name}.{task.start}" for task in order.tasks for name in Model._fields}:
        raise odd(message, "holds other arrays than it lists")
    return order


def understood(message: Message) -> Order:
    record = message.record
    settings, sites = Settings.read(record["settings"]), checked_sites(record["sites"])
    dictionary = read_dictionary(record["features"], record["static"])
    kind = message.kind
    if kind not in (INVITATION, PROPOSAL, CLOSING) or not is_amount(record["lam"], 1e100):
        raise ValueError("kind")
    # One closing look after the last round, and no message beyond: nobody is asked more often than agreed.
    if message.round > settings.max_rounds + (kind == CLOSING):
        raise ValueError("rounds")
    if kind == CLOSING and settings.noise:  # its figures would be exact
        raise ValueError("closing")
    if (kind == INVITATION) != (message.round == 0) or (dictionary is None and kind != INVITATION):
        raise ValueError("round")
    tasks = record["tasks"]
    count = {INVITATION: (0, 0), PROPOSAL: (1, settings.n_init), CLOSING: (1, 1)}[kind]
    if not isinstance(tasks, list) or not count[0] <= len(tasks) <= count[1]:
        raise ValueError("tasks")
    if len({task["start"] for task in tasks}) < len(tasks):
        raise ValueError("starts")
    found = tuple(read_task(message, task, settings, dictionary or Dictionary([], [])) for task in tasks)
    return Order(
        kind, record["federation"], message.round, sites, settings, dictionary, float(record["lam"]), found
    )


def read_dictionary(features: Any, static: Any) -> Dictionary | None:
    if features is None and static is None:
        return None
    if not are_names(features) or not are_names(static) or not features:
        raise ValueError("names")
    return Dictionary(features, static)


def read_task(message: Message, task: dict[str, Any], settings: Settings, names: Dictionary) -> Task:
    start, reach, R = task["start"], task["reach"], settings.rank
    if not is_whole(start, 0, settings.n_init - 1) or not is_amount(reach, 1.0):
        raise ValueError("start")
    if not is_whole(task["last"], 0, message.round - 1) or not isinstance(task["undo"], bool):
        raise ValueError("last")
    model = Model(
        numbers(message, f"H.{start}", (R, R), signed=True),
        numbers(message, f"V.{start}", (len(names.features), R)),
        numbers(message, f"F.{start}", (len(names.static), R)),
    )
    if not (at_unit_norm(model.H) and at_unit_norm(model.V)):
        raise odd(message, "has definitions that are not at unit norm")
    return Task(start, model, float(reach), task["last"], task["undo"])


def at_unit_norm(factor: Array) -> bool:
    norms = np.linalg.norm(factor, axis=0)
    return bool(np.all((np.abs(norms - 1) < UNIT) | (norms == 0)))
