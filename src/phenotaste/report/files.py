"""Writing one file so that a reader finds the old one or the new one, never half of either."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from phenotaste.errors import InputError


def check_file(path: str | os.PathLike[str], inputs: tuple[Path, ...] = ()) -> Path:
    """Where a file can be written: its folder is there, and it is neither a folder nor part of an input."""
    target = Path(os.path.realpath(path))
    if any(target.is_relative_to(folder.resolve()) for folder in inputs):
        raise InputError(f"{path} lies within a folder that is read here: choose another place for it.")
    if not target.parent.is_dir():
        raise InputError(f"The folder {target.parent} does not exist: create it, or choose another place.")
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is not a file: choose another name.")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"The folder {target.parent} cannot be written to: choose another place.")
    return target


def check_folder(path: str | os.PathLike[str], inputs: tuple[Path, ...] = ()) -> Path:
    """Where files can be written: a folder, or a name for one, which is no part of an input."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        check_file(target / "file", inputs)
    elif target.exists():
        raise InputError(f"{path} is a file: choose another name for the folder.")
    else:
        check_file(path, inputs)
    return target


@contextmanager
def replacing(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the name `path` when the block ends well, and is removed otherwise.

    With `private` only its owner can read it.
    """
    target = check_file(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    mode = 0o600 if private else 0o666
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


@contextmanager
def filling(path: str | os.PathLike[str], *, private: bool = False) -> Iterator[Path]:
    """A folder to write files into, which go to the folder `path` when the block ends well, and are removed otherwise.

    With `private` only their owner can read them.
    """
    target = check_folder(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    draft.mkdir(mode=0o700 if private else 0o777)
    try:
        yield draft
        for file in draft.iterdir() if private else ():
            file.chmod(0o600)
        if not target.exists():
            os.rename(draft, target)
        else:
            for file in sorted(draft.iterdir()):
                os.replace(file, target / file.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
