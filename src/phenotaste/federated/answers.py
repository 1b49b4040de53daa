"""What a site answers: first its columns, then the sums of its patients round by round, at the end figures."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.records import Array, Sums
from phenotaste.errors import InputError
from phenotaste.federated.columns import Dictionary
from phenotaste.federated.messages import LARGEST, Message, are_names, is_amount, is_whole, numbers, odd, pack
from phenotaste.federated.orders import CLOSING, INVITATION, PROPOSAL, Order

ANSWERS = {INVITATION: "columns", PROPOSAL: "sums", CLOSING: "figures"}
HEAD_ROOM = 2**16  # what an answer's header takes at most, where no names are in it
ROUNDING, POLAR_ROUNDING = 1e-9, 1e-3  # a polar factor of nearly dependent courses is not quite orthonormal
COUNTS = ("short", "empty", "counted")
PARTS = 4  # of the objective: visits, static facts, uniqueness, and static facts at weight one


class Noise(NamedTuple):
    epsilon: float
    delta: float
    loudness: float


class Answer(NamedTuple):
    """A site's answer, checked; which of the rest there is depends on what was asked."""

    site: str
    patients: int
    visits: int
    digest: str
    size: int
    columns: Dictionary | None = None
    sizes: Array | None = None  # ‖X‖², ‖A‖²
    sums: dict[int, Sums] | None = None  # of each start
    fresh: bool = False  # the courses did not set out from those of the round before
    noise: Noise | None = None
    figures: dict[str, Any] | None = None


def answer_bytes(
    order: Order,
    digest: str,
    site: str,
    patients: int,
    visits: int,
    more: Mapping[str, Any],
    arrays: Mapping[str, Array],
) -> bytes:
    """An answer names the very message it answers, and so the models in it."""
    record = {
        "kind": ANSWERS[order.kind],
        "federation": order.federation,
        "round": order.round,
        "sender": site,
        "answers": digest,
        "patients": patients,
        "visits": visits,
        **more,
    }
    return pack(record, arrays)


def sums_arrays(start: int, sums: Sums) -> dict[str, Array]:
    return {f"{name}.{start}": part for name, part in zip(Sums._fields, sums, strict=True)}


def most_bytes(order: Order) -> int:
    """What an answer can have at most: looked at before it is read."""
    if order.dictionary is None or order.kind == INVITATION:
        return LARGEST
    J, P, R = len(order.dictionary.features), len(order.dictionary.static), order.settings.rank
    rows = len(order.tasks) * ((3 * R + J + P) * R + 4) if order.kind == PROPOSAL else J + P + R + 64
    return 8 * rows + HEAD_ROOM


def read_answer(message: Message, order: Order, digest: str) -> Answer:
    """A site's answer to this order, every part of it checked."""
    record = message.record
    if record["federation"] != order.federation:
        raise InputError(f"{message.where} belongs to another federated fit: give the answers to this one.")
    if message.sender not in order.sites:
        raise InputError(
            f"{message.where} is not from one of the sites that take part: {', '.join(order.sites)}."
        )
    if message.round != order.round:
        raise InputError(
            f"{message.where} is of round {message.round}, and answers to round {order.round} are waited for: "
            "give the newest answers."
        )
    if message.kind != ANSWERS[order.kind] or record.get("answers") != digest:
        raise InputError(
            f"{message.where} answers another message of round {order.round}: have {message.sender} take the step "
            "again with the message of now."
        )
    try:
        return understood(message, order)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise odd(message, "says what no site would") from None


def understood(message: Message, order: Order) -> Answer:
    record = message.record
    patients, visits = record["patients"], record["visits"]
    if not is_whole(patients) or not is_whole(visits):
        raise ValueError("counts")
    if patients < order.settings.minimum_patients:
        raise InputError(
            f"{message.where} is of {message.sender}, which has fewer than the {order.settings.minimum_patients} "
            "patients agreed on: leave it out (--without)."
        )
    answer = Answer(message.sender, patients, visits, message.digest, message.size)
    if order.kind == INVITATION:
        return read_columns(message, order, answer)
    return (
        read_sums(message, order, answer) if order.kind == PROPOSAL else read_figures(message, order, answer)
    )


def only(message: Message, names: set[str]) -> None:
    if set(message.arrays) != names:
        raise odd(message, "holds other arrays than were asked for")


def read_columns(message: Message, order: Order, answer: Answer) -> Answer:
    if order.settings.noise:
        only(message, set())
        return answer
    only(message, {"sizes"})
    features, static = message.record["features"], message.record["static"]
    if order.dictionary is None and not (are_names(features) and are_names(static) and features):
        raise ValueError("names")
    names = None if order.dictionary is not None else Dictionary(features, static)
    return answer._replace(columns=names, sizes=numbers(message, "sizes", (2,)))


def read_sums(message: Message, order: Order, answer: Answer) -> Answer:
    assert order.dictionary is not None
    J, P, R = len(order.dictionary.features), len(order.dictionary.static), order.settings.rank
    shapes = ((R, R), (J, R), (R, R), (P, R), (R, R), (4,))
    only(message, {f"{name}.{task.start}" for task in order.tasks for name in Sums._fields})
    fresh, noise = message.record["fresh"], read_noise(message, order)
    if not isinstance(fresh, bool):
        raise ValueError("fresh")
    sums = {}
    for task in order.tasks:
        sums[task.start] = Sums(
            *(
                numbers(message, f"{name}.{task.start}", shape, signed=noise is not None or name == "QU")
                for name, shape in zip(Sums._fields, shapes, strict=True)
            )
        )
        if noise is None:
            check_sums(message, sums[task.start])
    return answer._replace(sums=sums, fresh=fresh, noise=noise)


def read_noise(message: Message, order: Order) -> Noise | None:
    found = message.record["noise"]
    if found is None:
        return None
    if not order.settings.noise or not all(is_amount(found[name], 1e6) for name in Noise._fields):
        raise ValueError("noise")
    return Noise(*(float(found[name]) for name in Noise._fields))


def check_sums(message: Message, sums: Sums) -> None:
    """What holds for sums over any patients, whatever the model: grams without negative directions, Cauchy–Schwarz."""
    for gram in (sums.UU, sums.WW):
        slack = ROUNDING * max(float(np.trace(gram)), np.finfo(float).tiny)
        if np.abs(gram - gram.T).max() > slack or np.linalg.eigvalsh((gram + gram.T) / 2)[0] < -slack * len(
            gram
        ):
            raise odd(message, "holds products of scores that are not those of any patients")
    x2, a2, mu, mu_u2 = sums.scalars
    room = 1 + ROUNDING
    if (
        np.any(np.sum(sums.XU**2, axis=0) > x2 * np.diagonal(sums.UU) * room)
        or np.any(np.sum(sums.AW**2, axis=0) > a2 * np.diagonal(sums.WW) * room)
        or np.sum(sums.QU**2) > mu * mu_u2 * (1 + POLAR_ROUNDING)
    ):
        raise odd(message, "holds sums that do not fit each other")


def read_figures(message: Message, order: Order, answer: Answer) -> Answer:
    assert order.dictionary is not None
    names = order.dictionary
    only(message, {"parts", "gaps", "score_totals", "feature_patients", "static_patients"})
    counts = {name: message.record[name] for name in COUNTS}
    if not all(is_whole(count, 0, answer.patients) for count in counts.values()):
        raise ValueError("counts")
    arrays = {
        "parts": numbers(message, "parts", (PARTS,), signed=True),  # the uniqueness term is a difference
        "gaps": numbers(message, "gaps", (1,)),
        "score_totals": numbers(message, "score_totals", (order.settings.rank,)),
        "feature_patients": numbers(message, "feature_patients", (len(names.features),)),
        "static_patients": numbers(message, "static_patients", (len(names.static),)),
    }
    for name in ("feature_patients", "static_patients"):
        if np.any(arrays[name] > answer.patients) or np.any(arrays[name] % 1):
            raise ValueError("counts")
    return answer._replace(figures={**counts, **arrays})
