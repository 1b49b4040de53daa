"""Arrays in memory-mapped files, and a limit on how much of them stays resident.

An evicted page is read again from its file when it is accessed: evicting one never changes a value.
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
POLL_INTERVAL = 0.01  # seconds; a disk delivers about 30 MB in that time
SHORT_POLL_INTERVAL = 0.002  # near the limit: the page cache delivers many times as much
NEAR_LIMIT = 0.8  # of the limit
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{unit}I": 1024**power for power, unit in enumerate("KMGT", 1)}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)

_mapped: WeakKeyDictionary[mmap.mmap, int] = WeakKeyDictionary()  # file descriptors of the evictable maps


class PageRange(NamedTuple):
    """The pages of a memory-mapped file that hold an array."""

    map: mmap.mmap
    first: int
    length: int


def parse_bytes(size: str | int) -> int:
    """Return a number of bytes given as an integer or as text such as 4GB, 512MiB or 1.5G."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None or float(match[1]) <= 0 or match[2].upper() == "I":
        raise InputError(f"{size!r} is not an amount of memory; write it like 4GB or 512MB.")
    return int(float(match[1]) * UNITS[match[2].upper()])


def format_bytes(count: float) -> str:
    """Format a number of bytes, rounded up so that the amount printed is never too small."""
    if count < 10**9:
        return f"{-(-int(count) // 10**6):,} MB"
    return f"{-(-int(count) // 10**7) / 100:,.2f} GB"


def register(array: np.ndarray, path: str | os.PathLike[str]) -> None:
    """Allow the pages of the file that an array is mapped from to be evicted.

    For shared maps only: evicting a private map would lose what was written to it.
    """
    pages = page_range(array)
    if pages is not None and pages.map not in _mapped:
        file = os.open(path, os.O_RDONLY)
        _mapped[pages.map] = file
        finalize(pages.map, os.close, file)


def create_mapped(shape: tuple[int, ...], dtype: Any, folder: Path, name: str | None = None) -> np.ndarray:
    """Create an array in a new file that only its owner can read; without a name the file is already unlinked.

    The disk space is allocated at once: a mapped file that hits a full disk later kills the process.
    """
    size = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
    try:
        if name is None:
            file, path = tempfile.mkstemp(prefix=".scratch-", dir=folder)
        else:
            path = str(folder / name)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _allocate(file, size)
            array = open_mapped(path, shape, dtype)
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
            f"{format_bytes(size)} could not be allocated in {folder}: {reason}; free disk space or choose "
            "another folder."
        ) from None


def open_mapped(path: str | Path, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Map an existing file as a writable array."""
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    array = np.memmap(path, dtype, "r+", shape=shape)
    register(array, path)
    return array.view(np.ndarray)


def _allocate(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


def page_range(array: np.ndarray) -> PageRange | None:
    """Return the pages that hold an array, None for an array that is not mapped from a file."""
    root: Any = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root.base, mmap.mmap):
        return None
    begin = data_address(array) - data_address(root)
    first = begin // PAGE * PAGE
    return PageRange(root.base, first, min(begin + array.nbytes, len(root.base)) - first)


def data_address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def evict(array: np.ndarray) -> None:
    """Release the pages of a contiguous array; what was written to them is kept.

    Clean pages leave the page cache too; for dirty pages write-back begins, and a second call releases them.
    """
    pages = page_range(array) if array.size else None
    if pages is not None and hasattr(mmap, "MADV_DONTNEED"):
        pages.map.madvise(mmap.MADV_DONTNEED, pages.first, pages.length)
        if pages.map in _mapped:
            os.posix_fadvise(_mapped[pages.map], pages.first, pages.length, os.POSIX_FADV_DONTNEED)


def prefetch(array: np.ndarray) -> None:
    """Start reading the pages of an array that is about to be used."""
    pages = page_range(array) if array.size else None
    if pages is not None and pages.map in _mapped and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(_mapped[pages.map], pages.first, pages.length, os.POSIX_FADV_WILLNEED)


def flush(array: np.ndarray) -> None:
    """Write the file that an array is mapped from to the disk."""
    pages = page_range(array)
    if pages is not None:
        pages.map.flush()


def resident_bytes() -> int:
    """Return the resident memory of this process, 0 where the system does not report it."""
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY)  # unbuffered: this is polled
        try:
            return int(os.read(statm, 200).split()[1]) * mmap.PAGESIZE
        finally:
            os.close(statm)
    except (OSError, ValueError):
        return 0


def evict_all() -> None:
    """Release the pages of all registered maps."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for file in list(_mapped):
            with suppress(ValueError):  # closed meanwhile
                file.madvise(mmap.MADV_DONTNEED)


@contextmanager
def evict_above(limit: int) -> Iterator[None]:
    """Evict all mapped pages whenever the resident memory exceeds `limit` bytes, until the block ends.

    Code that reads a file sequentially, such as cohort checks or a save, need not handle files larger than memory.
    """
    done = threading.Event()

    def poll() -> None:
        interval = POLL_INTERVAL
        while not done.wait(interval):
            resident = resident_bytes()
            interval = POLL_INTERVAL if resident < NEAR_LIMIT * limit else SHORT_POLL_INTERVAL
            if resident > limit:
                evict_all()

    thread = threading.Thread(target=poll, name="memory limit", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
