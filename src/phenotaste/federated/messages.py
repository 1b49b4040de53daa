"""The messages that coordinator and sites exchange: one small safetensors file each, with a checked header and no code.

A file is checked from the outside in: file type, size, header, checksum, and only then its content.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.storage import encoding
from phenotaste.validation import is_integer

FORMAT, VERSION = "phenotaste-federated", 2
SUFFIX = ".safetensors"
MAX_BYTES = 256 * 2**20  # of any message; a reader that knows what to expect sets a lower limit
FEDERATION_ID = re.compile(r"[0-9a-f]{32}")
SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")  # becomes part of file names
MAX_ROUNDS = 1_000_000
MAX_COUNT = 2**53  # of patients and visits
COORDINATOR = "the coordinator"  # not a valid site name


class Message(NamedTuple):
    """A message with a valid checksum; its content is still unchecked."""

    header: dict[str, Any]
    arrays: dict[str, Array]
    digest: str  # by which a response names the request it replies to
    size: int
    source: str  # file name, for error messages

    @property
    def kind(self) -> str:
        return str(self.header["kind"])

    @property
    def round(self) -> int:
        return int(self.header["round"])

    @property
    def sender(self) -> str:
        return str(self.header["sender"])


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Serialise a message, the same bytes for the same content."""
    return encoding.pack({"format": FORMAT, "version": VERSION, **header}, arrays)


def read(path: str | os.PathLike[str], limit: int = MAX_BYTES) -> Message:
    """Read a message from its file, of at most `limit` bytes."""
    return unpack(read_bytes(Path(path), limit), str(path))


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a regular file; its size is checked before any content is read."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise InputError(f"{path} could not be read: {reason}; check the path and its permissions.") from None
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"{path} is not a regular file: give the message file itself.")
        if info.st_size > limit:
            raise InputError(
                f"{path} has {info.st_size:,} bytes, more than the maximum of {limit:,} for the expected message: "
                "have it sent again."
            )
        return file.read(limit)


def unpack(content: bytes, source: str) -> Message:
    """Parse a message; damaged and foreign files are refused."""
    try:
        header = encoding.unpack_record(content)
    except ValueError:
        header = {}
    if header.get("format") != FORMAT:
        raise InputError(
            f"{source} is not a message of a federated fit, or is truncated: have it sent again."
        )
    if header.get("version") != VERSION:
        raise InputError(
            f"{source} was written by another version of phenotaste: use the same version at every site."
        )
    try:
        header, arrays, digest = encoding.unpack(content)
        check_header(header)
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{source} does not match its checksum: it was damaged in transit, have it sent again."
        ) from None
    return Message(header, arrays, digest, len(content), source)


def check_header(header: dict[str, Any]) -> None:
    """Raise ValueError where a field that every message has is invalid."""
    sender = header["sender"]
    if sender != COORDINATOR and not SITE_NAME.fullmatch(sender):
        raise ValueError("sender")
    if not FEDERATION_ID.fullmatch(header["federation"]) or not isinstance(header["kind"], str):
        raise ValueError("federation")
    if not is_integer(header["round"], 0, MAX_ROUNDS):
        raise ValueError("round")


def are_valid_names(values: Any) -> bool:
    """Whether `values` is a list of distinct, printable, non-empty strings of at most 1,000 characters."""
    return (
        isinstance(values, list)
        and all(isinstance(name, str) and 0 < len(name) <= 1000 and name.isprintable() for name in values)
        and len(set(values)) == len(values)
    )


def float_array(message: Message, name: str, shape: tuple[int, ...], *, signed: bool = False) -> Array:
    """An array of the message, checked: float64, of this shape, finite, and non-negative unless `signed`."""
    array = message.arrays.get(name)
    if array is None or array.dtype != np.float64 or array.shape != shape:
        actual = "is missing" if array is None else f"is {array.dtype.name} of shape {array.shape}"
        raise InputError(
            f"{message.source}: {name} {actual} and must be float64 of shape {shape}; have it sent again."
        )
    if not np.isfinite(array).all():
        raise InputError(
            f"{message.source}: {name} has entries that are not finite; find the cause at {message.sender}."
        )
    if not signed and array.min(initial=0.0) < 0:
        raise InputError(
            f"{message.source}: {name} has negative entries, which sums over patients cannot have; "
            f"find the cause at {message.sender}."
        )
    return array


def invalid(message: Message, problem: str) -> InputError:
    """The error for content that a correct sender would not have written."""
    return InputError(
        f"{message.source} {problem}: it was not written by a correct run of phenotaste, do not use it."
    )


def file_name(number: int, site: str | None = None) -> str:
    """The default file name of a round's request, or of a site's response to it."""
    return f"round-{number:04d}{'' if site is None else f'.{site}'}{SUFFIX}"
