"""Small files that are there whole or not at all; one fit as a checksummed safetensors file; a folder's lock."""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from phenotaste.errors import InputError

try:
    import fcntl
except (
    ImportError
):  # Windows has no advisory locks: there, two runs at once into one folder are not kept apart
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".safetensors"
BLANK = "0" * 64
DRAFT = re.compile(r"\..+\.[0-9a-f]{16}\.partial")
HEAD_LIMIT = 2**20


class Result(NamedTuple):
    """What is kept of one fit: definitions and figures, nothing about a single patient."""

    V: np.ndarray
    F: np.ndarray | None
    H: np.ndarray
    figures: dict[str, Any]


def write_file(path: Path, content: bytes) -> None:
    """Put a file in place in one step, on the disk for good: a kill at any moment leaves the old one or the new."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder can be neither opened nor synced
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep_drafts(folder: Path) -> None:
    """Remove what killed runs left half-written."""
    for path in folder.iterdir():
        if DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)


def write_result(path: Path, result: Result) -> None:
    arrays = {"V": result.V, "H": result.H} | ({} if result.F is None else {"F": result.F})
    write_file(path, result_bytes(arrays, result.figures))


def result_bytes(arrays: Mapping[str, np.ndarray], figures: Mapping[str, Any]) -> bytes:
    """Safetensors whose header carries the figures and a checksum over the whole file, its own place blank."""
    record = json.dumps({"figures": dict(figures), "sha256": BLANK})
    tensors = {name: np.ascontiguousarray(array, np.float64) for name, array in arrays.items()}
    blank = save_tensors(tensors, {"record": record})
    return blank.replace(BLANK.encode(), hashlib.sha256(blank).hexdigest().encode(), 1)


def read_result(path: Path) -> Result | None:
    """What `write_result` wrote; None where the file is missing, torn or changed in any way."""
    found = read_tensors(path)
    if found is None or not {"V", "H"} <= set(found[0]):
        return None
    arrays, figures = found
    return Result(arrays["V"], arrays.get("F"), arrays["H"], figures)


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Arrays and figures of a file made by `result_bytes`; None where it is not exactly what was written."""
    try:
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        if size > min(HEAD_LIMIT, len(content)):
            return None
        record = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["record"])
        blank = content.replace(record["sha256"].encode(), BLANK.encode(), 1)
        if hashlib.sha256(blank).hexdigest() != record["sha256"]:
            return None
        return load_tensors(content), dict(record["figures"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError):
        return None


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """One run at a time in a folder; the system drops the lock even when the process is killed."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: choose another folder for the {what}.")
    if fcntl is None:
        yield
        return
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{path} is being worked on by another process: wait for it, or choose another folder."
            ) from None
        except OSError:
            pass  # some cluster file systems have no locks; one run at a time is then up to the user
        yield
    finally:
        os.close(handle)
