"""Writing one file so that a reader finds the old one or the new one, never half of either."""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from phenotaste.errors import InputError
from phenotaste.storage.atomic import replace_file, write_folder


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


def replacing(path: str | os.PathLike[str], *, private: bool = False) -> AbstractContextManager[IO[bytes]]:
    """Open a file that takes the name `path` if the block succeeds; with `private` only its owner can read it."""
    return replace_file(check_file(path), private=private)


def filling(path: str | os.PathLike[str], *, private: bool = False) -> AbstractContextManager[Path]:
    """Open a folder whose files go to the folder `path` if the block succeeds; with `private` they are the owner's."""
    return write_folder(check_folder(path), private=private, existing="merge")
