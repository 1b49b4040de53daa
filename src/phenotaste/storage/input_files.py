"""Files that users give: only regular ones are opened, and lines and small files are read up to a limit."""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, AnyStr

from phenotaste.errors import InputError

MAX_TEXT = 32 * 2**20  # bytes of a settings file or a concept set
MAX_LINE = 2**21  # characters, as in DuckDB's CSV reader


def check_regular(path: str | os.PathLike[str], what: str) -> Path:
    """The path of a regular file; a pipe or a device is refused: opening it may block, and it may have no end.

    Examples
    --------
    >>> from phenotaste.storage.input_files import check_regular
    >>> check_regular("/dev/zero", "the settings")
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: /dev/zero is not a regular file; copy the settings to one.
    """
    file = Path(path)
    if not file.exists():
        raise InputError(f"{file} does not exist; check the path of {what}.")
    if file.is_dir():
        raise InputError(f"{file} is a folder; give the file with {what}.")
    if not file.is_file():
        raise InputError(f"{file} is not a regular file; copy {what} to one.")
    return file


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """The text of a small file in UTF-8."""
    file = check_regular(path, what)
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_TEXT + 1)
    except OSError:
        raise InputError(f"{path} cannot be read; check your permissions.") from None
    if len(content) > MAX_TEXT:
        raise InputError(
            f"{path} is larger than the {MAX_TEXT >> 20} MiB that {what} can have; check the path."
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8; save it as such.") from None


def open_lines(path: Path) -> IO[bytes]:
    """Open a file, gzipped or not, to read its lines."""
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def limited_lines(stream: IO[AnyStr], name: str, limit: int = MAX_LINE) -> Iterator[AnyStr]:
    """The lines of a file; one that is too long is refused before all of it is in memory."""
    while line := stream.readline(limit):
        if len(line) == limit:
            raise InputError(f"{name} has a line of more than {limit:,} characters; check its format.")
        yield line
