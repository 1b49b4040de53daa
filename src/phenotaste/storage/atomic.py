"""Write a file or a folder completely or not at all, even if the process is killed or the power fails.

Everything is written under a draft name next to its target, synced to the disk, and then renamed.
"""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from phenotaste.errors import InputError
from phenotaste.storage.locks import FolderLock, remove_unlocked

DRAFT = re.compile(r"\..+\.[0-9a-f]{16}\.partial")


def write_file(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Write a file; with `private`, only its owner can read it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from phenotaste.storage.atomic import write_file
    >>> write_file(Path("notes.txt"), "complete")
    >>> Path("notes.txt").read_text()
    'complete'
    """
    with replace_file(path, private=private) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replace_file(
    path: Path, *, private: bool = False, sync: bool = True, locked: bool = False
) -> Iterator[IO[bytes]]:
    """Yield a file that takes the name `path` if the block succeeds and is removed otherwise.

    Without `sync` the file may be lost, but not left incomplete, if the power fails soon afterwards. With `locked`,
    `remove_stale_drafts` of another process leaves the draft alone; HDF5 has a lock of its own.
    """
    draft = draft_path(path)
    with FolderLock(draft) as lock:
        try:
            with create_file(draft, private=private, sync=sync) as file:
                if locked:
                    lock.acquire(wait=True)
                yield file
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    if sync:
        sync_path(path.parent)


@contextmanager
def create_file(path: Path, *, private: bool = False, sync: bool = True) -> Iterator[IO[bytes]]:
    """Yield a new file, which is synced to the disk when the block ends."""
    mode = 0o600 if private else 0o666
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        yield file
        if sync:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def write_folder(
    path: Path, *, private: bool = False, existing: Literal["refuse", "replace", "merge"] = "refuse"
) -> Iterator[Path]:
    """Yield a folder that takes the name `path` if the block succeeds and is removed otherwise.

    An existing folder that is not empty raises OSError, is replaced as a unit, or receives the files one by one
    ("merge"). With `private`, only the owner can read the folder and the files in it.
    """
    remove_stale_drafts(path)
    draft = draft_path(path)
    draft.mkdir(mode=0o700 if private else 0o777)
    try:
        with FolderLock(draft) as lock:
            lock.acquire(wait=True)
            yield draft
            for file in draft.iterdir() if private else ():
                file.chmod(0o600)
            if existing == "refuse" or not path.exists():
                os.rename(draft, path)
            elif existing == "replace":
                _replace_folder(path, draft)
            else:
                for file in sorted(draft.iterdir()):
                    os.replace(file, path / file.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    sync_path(path.parent)


def _replace_folder(path: Path, draft: Path) -> None:
    old = path.with_name(f".{path.name}.{secrets.token_hex(8)}.replaced")
    os.rename(path, old)
    try:
        os.rename(draft, path)
    except BaseException:
        if not path.exists():
            os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def draft_path(path: Path) -> Path:
    """Return a new hidden name next to `path`, recognised by the functions that remove stale drafts."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def remove_stale_files(folder: Path) -> None:
    """Remove the draft files that killed processes left in a folder; no other process may be writing there."""
    for path in folder.iterdir():
        if DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)


def remove_stale_drafts(path: Path) -> None:
    """Remove the drafts of `path`, files and folders, that killed processes left next to it."""
    drafts = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.partial")
    remove_unlocked(sibling for sibling in list(path.parent.iterdir()) if drafts.fullmatch(sibling.name))


def sync_path(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    if path.is_dir() and os.name != "posix":  # Windows can neither open nor sync a folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_output_file(path: str | os.PathLike[str], inputs: tuple[Path, ...] = ()) -> Path:
    """Resolve the path of a file to write; refuse one that is a folder, inside an input, or not writable."""
    target = Path(os.path.realpath(path))
    if any(target.is_relative_to(folder.resolve()) for folder in inputs):
        raise InputError(f"{path} is inside an input folder: choose another path.")
    if not target.parent.is_dir():
        raise InputError(f"The folder {target.parent} does not exist: create it, or choose another path.")
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is not a file: choose another name.")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"The folder {target.parent} is not writable: choose another path.")
    return target


def check_output_folder(path: str | os.PathLike[str], inputs: tuple[Path, ...] = ()) -> Path:
    """Resolve the path of a folder to write into, which need not exist; refuse it for the same reasons as a file."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_dir():
        raise InputError(f"{path} is a file: choose another name for the folder.")
    check_output_file(target / "file" if target.is_dir() else path, inputs)
    return target
