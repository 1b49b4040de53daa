"""Arrays in memory-mapped files, and how much of them stays in memory.

A page that was dropped comes back from its file when it is touched: dropping one never changes a number.
"""

import math
import mmap
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, finalize

import numpy as np

from phenotaste.errors import InputError

PAGE = mmap.ALLOCATIONGRANULARITY
LOOK_EVERY = 0.01  # seconds: a disk brings some 30 MB in that time
LOOK_CLOSELY = 0.002  # where nearly all is held: the system's own cache brings many times as much
NEARLY = 0.8  # of what is allowed
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{unit}I": 1024**power for power, unit in enumerate("KMGT", 1)}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)

_mapped: WeakKeyDictionary[mmap.mmap, int] = WeakKeyDictionary()  # files whose pages may be dropped


class Span(NamedTuple):
    """Where an array lies in a memory-mapped file, in whole pages."""

    map: mmap.mmap
    first: int
    length: int


def bytes_of(size: str | int) -> int:
    """A number of bytes, or a text such as 4GB, 512MiB or 1.5G."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    found = SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None or float(found[1]) <= 0 or found[2].upper() == "I":
        raise InputError(f"{size!r} is no amount of memory: write it like 4GB or 512MB.")
    return int(float(found[1]) * UNITS[found[2].upper()])


def in_words(count: float) -> str:
    """Bytes for a reader, rounded up so that asking for what is written suffices."""
    if count < 10**9:
        return f"{-(-int(count) // 10**6):,} MB"
    return f"{-(-int(count) // 10**7) / 100:,.2f} GB"


def register(array: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Let the pages of the file that an array is mapped from be dropped when memory is short.

    For shared maps only: what was written to a private one is nowhere else.
    """
    span = span_of(array)
    if span is not None and span.map not in _mapped:
        file = os.open(path, os.O_RDONLY)
        _mapped[span.map] = file
        finalize(span.map, os.close, file)


def in_a_file(shape: tuple[int, ...], dtype: Any, folder: Path, name: str | None = None) -> np.ndarray:
    """A new array in a file that only its owner can read; without a name it goes with the array, come what may.

    The room on the disk is taken at once: a mapped file that finds the disk full later ends the process.
    """
    size = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
    try:
        if name is None:
            file, path = tempfile.mkstemp(prefix=".scratch-", dir=folder)
        else:
            path = str(folder / name)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            reserve(file, size)
            array = mapped(path, shape, dtype)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(file)
        if name is None:
            os.unlink(path)
        return array
    except OSError as error:
        reason = (error.strerror or "the system refused").lower()
        raise InputError(
            f"{folder} could not take {in_words(size)} of courses and scores: {reason}; free some of the disk, "
            "or work elsewhere."
        ) from None


def mapped(path: str | Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array in a file that is there already, to be written to."""
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    array = np.memmap(path, dtype, "r+", shape=shape)
    register(array, path)
    return array.view(np.ndarray)


def reserve(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


def span_of(array: np.ndarray) -> Span | None:
    """None for an array in plain memory."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root.base, mmap.mmap):
        return None
    begin = address(array) - address(root)
    first = begin // PAGE * PAGE
    return Span(root.base, first, min(begin + array.nbytes, len(root.base)) - first)


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def drop(array: np.ndarray) -> None:
    """Forget the pages of an array, which must lie in one stretch; what was written to them stays written.

    The system forgets them too, or begins to write them out, and forgets them when told once more.
    """
    span = span_of(array) if array.size else None
    if span is not None and hasattr(mmap, "MADV_DONTNEED"):
        span.map.madvise(mmap.MADV_DONTNEED, span.first, span.length)
        if span.map in _mapped:
            os.posix_fadvise(_mapped[span.map], span.first, span.length, os.POSIX_FADV_DONTNEED)


def fetch(array: np.ndarray) -> None:
    """Begin to read the pages of an array that is about to be used."""
    span = span_of(array) if array.size else None
    if span is not None and span.map in _mapped and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(_mapped[span.map], span.first, span.length, os.POSIX_FADV_WILLNEED)


def flush(array: np.ndarray) -> None:
    """Have a whole mapped array on the disk for good."""
    span = span_of(array)
    if span is not None:
        span.map.flush()


def resident_bytes() -> int:
    """Memory of this process now; 0 where the system does not tell."""
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY)  # in the plainest way: somebody looks often
        try:
            return int(os.read(statm, 200).split()[1]) * mmap.PAGESIZE
        finally:
            os.close(statm)
    except (OSError, ValueError):
        return 0


def drop_all() -> None:
    if hasattr(mmap, "MADV_DONTNEED"):
        for file in list(_mapped):
            with suppress(ValueError):  # closed meanwhile
                file.madvise(mmap.MADV_DONTNEED)


@contextmanager
def ceiling(most: int) -> Iterator[None]:
    """While this lasts, drop all mapped pages whenever the process holds more than `most` bytes.

    Whoever reads a file front to back, the checks of a cohort or a save, need not know that it is larger than memory.
    """
    over = threading.Event()

    def look() -> None:
        pause = LOOK_EVERY
        while not over.wait(pause):
            held = resident_bytes()
            pause = LOOK_EVERY if held < NEARLY * most else LOOK_CLOSELY
            if held > most:
                drop_all()

    looking = threading.Thread(target=look, name="memory ceiling", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
