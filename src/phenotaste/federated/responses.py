"""Responses of a site: to join its columns, to each step the sums over its patients, to evaluate its figures."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.records import N_SCALARS, N_TERMS, Array, Sums
from phenotaste.errors import InputError
from phenotaste.federated.columns import ColumnNames
from phenotaste.federated.messages import (
    MAX_BYTES,
    MAX_COUNT,
    Message,
    are_valid_names,
    float_array,
    invalid,
    pack,
)
from phenotaste.federated.requests import EVALUATE, JOIN, STEP, Request
from phenotaste.federated.settings import Settings
from phenotaste.validation import is_integer, is_number

RESPONSE_KIND = {JOIN: "columns", STEP: "sums", EVALUATE: "figures"}
HEADER_BYTES = 2**16  # maximum size of a response's header without feature names
ROUNDING = 1e-9
POLAR_ROUNDING = 1e-3  # the polar factor of nearly dependent courses is not exactly orthonormal
COUNTS = ("short", "with_course")  # patients with fewer visits than phenotypes, and with more than one
N_PARTS = (
    N_TERMS + 2
)  # of the objective; then the errors of visits in the data's units and of static features
N_GAPS = 3  # Σ‖UᵀU − HᵀH‖²; the same over present phenotypes, and Σ‖HᵀH‖² over those
MAX_ROUGHNESS = 4.0  # of a course of unit norm: Σ (u_i+1 − u_i)²


class NoiseReport(NamedTuple):
    """The privacy budget of a site and the noise that it implies."""

    epsilon: float
    delta: float
    noise_multiplier: float


class Response(NamedTuple):
    """A validated response; which optional fields are set depends on the request."""

    site: str
    patients: int  # with a history; with noise, all
    visits: int
    digest: str
    size: int
    columns: ColumnNames | None = None
    static_totals: Array | None = None  # Σp and Σp‖a‖²
    sums: dict[int, Sums] | None = None  # by start
    cold_start: bool = False  # the courses did not start from those of the previous round
    noise: NoiseReport | None = None
    figures: dict[str, Any] | None = None


class Sender(NamedTuple):
    """The site's part of every response header."""

    site: str
    patients: int
    visits: int


def pack_response(
    request: Request,
    request_digest: str,
    sender: Sender,
    fields: Mapping[str, Any],
    arrays: Mapping[str, Array],
) -> bytes:
    """Serialise a response, bound by digest to one request and therefore to the models in it."""
    header = {
        "kind": RESPONSE_KIND[request.kind],
        "federation": request.federation,
        "round": request.round,
        "sender": sender.site,
        "request": request_digest,
        "patients": sender.patients,
        "visits": sender.visits,
        **fields,
    }
    return pack(header, arrays)


def sums_arrays(start: int, sums: Sums) -> dict[str, Array]:
    """The sums of one start under the names they have in a response."""
    return {f"{name}.{start}": part for name, part in zip(Sums._fields, sums, strict=True)}


def max_response_bytes(request: Request) -> int:
    """The maximum size of a response, checked before it is read."""
    if request.columns is None or request.kind == JOIN:
        return MAX_BYTES
    J, P, R = len(request.columns.features), len(request.columns.static), request.settings.rank
    numbers = (
        len(request.tasks) * ((3 * R + J + P) * R + N_SCALARS) if request.kind == STEP else J + P + R + 64
    )
    return 8 * numbers + HEADER_BYTES


def parse_response(message: Message, request: Request, request_digest: str) -> Response:
    """Parse and validate a site's response to this request."""
    header = message.header
    if header["federation"] != request.federation:
        raise InputError(
            f"{message.source} belongs to another federated fit: give the responses of this one."
        )
    if message.sender not in request.sites:
        raise InputError(
            f"{message.source} is not from one of the participating sites: {', '.join(request.sites)}."
        )
    if message.round != request.round:
        raise InputError(
            f"{message.source} is of round {message.round}, and responses to round {request.round} are expected: "
            "give the newest responses."
        )
    if message.kind != RESPONSE_KIND[request.kind] or header.get("request") != request_digest:
        raise InputError(
            f"{message.source} responds to another request of round {request.round}: have {message.sender} repeat the "
            "step with the current request."
        )
    try:
        return _parse(message, request)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        raise invalid(message, "has a header that no site writes") from None


def _parse(message: Message, request: Request) -> Response:
    patients, visits = message.header["patients"], message.header["visits"]
    if not all(is_integer(count, max=MAX_COUNT) for count in (patients, visits)):
        raise ValueError("counts")
    if patients < request.settings.min_patients:
        raise InputError(
            f"{message.source}: {message.sender} has fewer than the agreed minimum of "
            f"{request.settings.min_patients} patients; exclude it (--exclude)."
        )
    response = Response(message.sender, patients, visits, message.digest, message.size)
    parse = {JOIN: _parse_columns, STEP: _parse_sums, EVALUATE: _parse_figures}[request.kind]
    return parse(message, request, response)


def _require_arrays(message: Message, names: set[str]) -> None:
    if set(message.arrays) != names:
        raise invalid(message, "holds other arrays than were requested")


def _parse_columns(message: Message, request: Request, response: Response) -> Response:
    if request.settings.noise:
        _require_arrays(message, set())
        return response
    _require_arrays(message, {"static_totals"})
    features, static = message.header["features"], message.header["static"]
    columns = None
    if request.columns is None:
        if not (are_valid_names(features) and are_valid_names(static) and features):
            raise ValueError("names")
        columns = ColumnNames(features, static)
    totals = float_array(message, "static_totals", (2,))
    return response._replace(columns=columns, static_totals=totals)


def _parse_sums(message: Message, request: Request, response: Response) -> Response:
    assert request.columns is not None
    J, P, R = len(request.columns.features), len(request.columns.static), request.settings.rank
    shapes = ((R, R), (J, R), (R, R), (P, R), (R, R), (N_SCALARS,))
    _require_arrays(message, {f"{name}.{task.start}" for task in request.tasks for name in Sums._fields})
    cold_start, noise = message.header["cold_start"], _parse_noise(message, request)
    if not isinstance(cold_start, bool):
        raise ValueError("cold_start")
    sums = {}
    for task in request.tasks:
        sums[task.start] = Sums(
            *(
                float_array(message, f"{name}.{task.start}", shape, signed=noise is not None or name == "QU")
                for name, shape in zip(Sums._fields, shapes, strict=True)
            )
        )
        if noise is None:
            check_sums(message, sums[task.start], request.settings)
    return response._replace(sums=sums, cold_start=cold_start, noise=noise)


def _parse_noise(message: Message, request: Request) -> NoiseReport | None:
    entry = message.header["noise"]
    if entry is None:
        return None
    if not request.settings.noise or not all(is_number(entry[name], max=1e6) for name in NoiseReport._fields):
        raise ValueError("noise")
    return NoiseReport(*(float(entry[name]) for name in NoiseReport._fields))


def check_sums(message: Message, sums: Sums, settings: Settings) -> None:
    """Check what holds for sums over any patients under any model.

    Grams are positive semidefinite, products obey Cauchy–Schwarz, and patients and their courses have unit size.
    """
    for gram in (sums.UU, sums.WW):
        slack = ROUNDING * max(float(np.trace(gram)), np.finfo(float).tiny)
        asymmetry, smallest = np.abs(gram - gram.T).max(), np.linalg.eigvalsh((gram + gram.T) / 2)[0]
        if asymmetry > slack or smallest < -slack * len(gram):
            raise invalid(message, "holds a gram matrix that is not positive semidefinite")
    x2, a2, mu, mu_u2, _ = sums.scalars
    factor = 1 + ROUNDING
    largest = x2 * np.array([settings.mu / settings.rank, settings.mu, MAX_ROUGHNESS * settings.smooth])
    if (
        np.any(sums.scalars[2:] > largest * factor)
        or np.any(np.sum(sums.XU**2, axis=0) > x2 * np.diagonal(sums.UU) * factor)
        or np.any(np.sum(sums.AW**2, axis=0) > a2 * np.diagonal(sums.WW) * factor)
        or np.sum(sums.QU**2) > mu * mu_u2 * (1 + POLAR_ROUNDING)
    ):
        raise invalid(message, "holds sums that are inconsistent with each other")


def _parse_figures(message: Message, request: Request, response: Response) -> Response:
    assert request.columns is not None
    columns = request.columns
    shapes = {
        "parts": (N_PARTS,),
        "gaps": (N_GAPS,),
        "score_totals": (request.settings.rank,),
        "feature_patients": (len(columns.features),),
        "static_patients": (len(columns.static),),
    }
    _require_arrays(message, set(shapes))
    counts = {name: message.header[name] for name in COUNTS}
    if not all(is_integer(count, 0, response.patients) for count in counts.values()):
        raise ValueError("counts")
    arrays = {  # the uniqueness part is a difference and may be negative
        name: float_array(message, name, shape, signed=name == "parts") for name, shape in shapes.items()
    }
    for name in ("feature_patients", "static_patients"):
        if np.any(arrays[name] > response.patients) or np.any(arrays[name] % 1):
            raise ValueError("counts")
    return response._replace(figures={**counts, **arrays})
