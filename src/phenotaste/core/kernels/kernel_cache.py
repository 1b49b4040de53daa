"""Whether compiled kernels are cached, and where: in a folder of numba, in a private temporary folder, or not at all.

numba caches next to the package, in the user's cache folder, or in NUMBA_CACHE_DIR, and raises an error where none of
them is writable, as in a container with a read-only file system.
"""

import os
import stat
import tempfile
import warnings

import numba

FOLDER = "phenotaste-kernels"


def use_cache() -> bool:
    """Whether a folder for kernels is available; if only the private one is, numba is set to use it."""
    try:
        numba.njit(cache=True)(private_folder)  # never compiled: numba looks for a folder when it decorates
        return True
    except RuntimeError:
        folder = private_folder()
    if folder is None:
        warnings.warn(
            "No folder is writable for compiled kernels: every start compiles them again, for about 20 seconds; "
            "set NUMBA_CACHE_DIR to a writable folder of yours.",
            stacklevel=2,
        )
        return False
    numba.config.CACHE_DIR = folder  # type: ignore[attr-defined]
    return True


def private_folder() -> str | None:
    """A folder in the temporary directory that nobody else can write to; None where there is none.

    A cached kernel is code: a folder that somebody else created under this name is not used.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    try:
        folder = os.path.join(tempfile.gettempdir(), f"{FOLDER}-{user}")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError:
        return None
    if os.name == "posix" and (found.st_uid != user or found.st_mode & 0o077):
        return None
    return folder if stat.S_ISDIR(found.st_mode) and os.access(folder, os.W_OK | os.X_OK) else None


CACHE = use_cache()
