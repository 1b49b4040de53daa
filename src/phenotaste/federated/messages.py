"""What coordinator and sites send each other: one small safetensors file with a checked header, and no code in it.

A file is looked at from the outside in: kind of file, size, header, checksum, and only then what it says.
"""

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from phenotaste.core.records import Array
from phenotaste.errors import InputError

FORMAT, VERSION = "phenotaste-federated", 1
SUFFIX = ".safetensors"
LARGEST = 256 * 2**20  # of any message; who knows what it must hold says less
LARGEST_HEAD = 16 * 2**20  # names of features are in it
BLANK = "0" * 64
DIGEST = re.compile(r"[0-9a-f]{64}")
FEDERATION = re.compile(r"[0-9a-f]{32}")
SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")  # a site's name becomes part of file names
MOST_ROUNDS = 1_000_000
COORDINATOR = "the coordinator"  # no site can be called that


class Message(NamedTuple):
    """A message whose checksum holds; what is in it is still to be checked by whoever it is for."""

    record: dict[str, Any]
    arrays: dict[str, Array]
    digest: str  # by which an answer names the message it answers
    size: int
    where: str  # for sentences

    @property
    def kind(self) -> str:
        return str(self.record["kind"])

    @property
    def round(self) -> int:
        return int(self.record["round"])

    @property
    def sender(self) -> str:
        return str(self.record["sender"])


def pack(record: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """The file's bytes: the same for the same content, with a SHA-256 over all of them, its own place blank."""
    whole = {
        "sha256": BLANK,
        "format": FORMAT,
        "version": VERSION,
        **record,
    }  # the first place that looks like one
    head = json.dumps(whole, allow_nan=False)
    tensors = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    blank = save_tensors(tensors, {"record": head})  # one entry: the order of several is left to chance
    return blank.replace(BLANK.encode(), hashlib.sha256(blank).hexdigest().encode(), 1)


def read(path: str | os.PathLike[str], limit: int = LARGEST) -> Message:
    """A message from its file, of at most `limit` bytes."""
    return unpack(read_bytes(Path(path), limit), str(path))


def read_bytes(path: Path, limit: int) -> bytes:
    """A plain file's content; its size is looked at before anything of it is read."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        reason = (error.strerror or "the system refused").lower()
        raise InputError(f"{path} could not be read: {reason}; check the path and your rights.") from None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path} is not a plain file: give the message itself.")
        if found.st_size > limit:
            raise InputError(
                f"{path} has {found.st_size:,} bytes where at most {limit:,} belong: it is not what was asked for, "
                "have it sent again."
            )
        return file.read(limit)


def unpack(content: bytes, where: str) -> Message:
    """The message in these bytes; damaged or foreign ones are refused."""
    try:
        length = int.from_bytes(content[:8], "little")
        if not 0 < length <= min(LARGEST_HEAD, len(content) - 8):
            raise ValueError("header")
        record = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["record"])
        if record["format"] != FORMAT:
            raise ValueError("format")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{where} is not a message of a federated fit, or is cut short: have it sent again."
        ) from None
    if record.get("version") != VERSION:
        raise InputError(
            f"{where} was written by another version of phenotaste: use the same one everywhere."
        )
    try:
        digest = record.pop("sha256")
        at = content.find(digest.encode()) if DIGEST.fullmatch(digest) else -1
        if not 8 <= at < 8 + length:
            raise ValueError("checksum")
        blank = content[:at] + BLANK.encode() + content[at + len(BLANK) :]
        if hashlib.sha256(blank).hexdigest() != digest:
            raise ValueError("checksum")
        arrays = load_tensors(content)
        sound_head(record)
    except (ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError):
        raise InputError(
            f"{where} does not match its checksum: it was damaged on the way, have it sent again."
        ) from None
    return Message(record, arrays, digest, len(content), where)


def sound_head(record: dict[str, Any]) -> None:
    """Raise ValueError where what every message has is not as it must be."""
    sender = record["sender"]
    if sender != COORDINATOR and not SITE.fullmatch(sender):
        raise ValueError("sender")
    if not FEDERATION.fullmatch(record["federation"]) or not isinstance(record["kind"], str):
        raise ValueError("federation")
    if not is_whole(record["round"], 0, MOST_ROUNDS):
        raise ValueError("round")


def is_whole(value: Any, least: int = 0, most: int = 2**53) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_amount(value: Any, most: float = math.inf) -> bool:
    """A finite number of zero or more."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 <= value <= most
        and value < math.inf
    )


def are_names(values: Any) -> bool:
    """Texts, all different, each something a person could have written."""
    return (
        isinstance(values, list)
        and all(isinstance(name, str) and 0 < len(name) <= 1000 and name.isprintable() for name in values)
        and len(set(values)) == len(values)
    )


def numbers(message: Message, name: str, shape: tuple[int, ...], *, signed: bool = False) -> Array:
    """An array of a message: float64, of this shape, finite, and not negative unless `signed`."""
    array = message.arrays.get(name)
    if array is None or array.dtype != np.float64 or array.shape != shape:
        found = "is missing" if array is None else f"is {array.dtype.name} of shape {array.shape}"
        raise InputError(
            f"{message.where}: {name} {found} and must be float64 of shape {shape}; have it sent again."
        )
    if not np.isfinite(array).all():
        raise InputError(
            f"{message.where}: {name} holds what is not a finite number; look for the cause at {message.sender}."
        )
    if not signed and array.min(initial=0.0) < 0:
        raise InputError(
            f"{message.where}: {name} has negative entries, which sums of patients cannot have; "
            f"look for the cause at {message.sender}."
        )
    return array


def odd(message: Message, what: str) -> InputError:
    """For what a sound sender would not have written."""
    return InputError(f"{message.where} {what}: it is not from a sound run of phenotaste, do not use it.")


def file_name(number: int, site: str | None = None) -> str:
    """The usual name of a round's message, or of a site's answer to it."""
    return f"round-{number:04d}{'' if site is None else f'.{site}'}{SUFFIX}"
