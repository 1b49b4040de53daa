"""Advisory locks on folders, and temporary folders that are removed once no process holds their lock."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phenotaste.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """An exclusive advisory lock on a folder or file, which the system releases even when the process is killed.

    Where the platform or the file system has no locks, `acquire` succeeds without excluding other processes.
    Leaving a `with` block releases the lock.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste.storage.locks import FolderLock
    >>> with FolderLock(Path(".")) as lock:
    ...     lock.acquire()
    True
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exclusive = False  # whether the system has granted the lock
        self._handle: int | None = None

    def acquire(self, *, wait: bool = False) -> bool:
        """Return False if another process holds the lock; with `wait`, block until it is released."""
        if fcntl is None or self._handle is not None:
            return True
        self._handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.exclusive = True
        except BlockingIOError:
            self.release()
            return False
        except OSError:  # some cluster file systems have no locks
            pass
        return True

    def release(self) -> None:
        """Release the lock; without effect if it is not held."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self.exclusive = None, False

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


@contextmanager
def exclusive_folder(folder: Path, in_use: str) -> Iterator[None]:
    """Create `folder` if necessary and hold its lock; raise InputError(in_use) if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with FolderLock(folder) as lock:
        if not lock.acquire():
            raise InputError(in_use)
        yield


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a temporary folder that only its owner can read and remove it at the end.

    Folders with the same prefix that killed processes left behind are removed first.
    """
    remove_unlocked(Path(tempfile.gettempdir()).glob(f"{prefix}*"))
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with FolderLock(folder) as lock:
            lock.acquire()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_unlocked(paths: Iterable[Path]) -> None:
    """Remove this user's folders and files that no process holds a lock on: their process was killed."""
    if fcntl is None:
        return
    for path in paths:
        with suppress(OSError):
            kind = path.lstat()
            if not (stat.S_ISDIR(kind.st_mode) or stat.S_ISREG(kind.st_mode)) or kind.st_uid != os.getuid():
                continue
            with FolderLock(path) as lock:
                if lock.acquire() and lock.exclusive:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
