"""Files of a cluster's work folder: arrays named by their SHA-256, in a shared folder or an object store.

A name never has two contents, so writing a file twice is harmless, and a changed file is always detected.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.records import Array
from phenotaste.errors import InputError
from phenotaste.storage.atomic import replace_file, sync_path
from phenotaste.storage.encoding import tensor_buffers, tensor_views

NAME = re.compile(r"[a-z]+/([0-9a-f]{16}/)?[0-9]{5,}\.([0-9a-f]{64})\.safetensors")
# Seconds between attempts to read: a network file system may show a file of another machine late.
READ_DELAYS = (0.2, 1.0)
# Attempts to remove a folder, and seconds between them: it stays if a file is added between listing and removal.
REMOVALS, REMOVAL_DELAY = 20, 0.05


class DamagedFile(Exception):
    """A file is missing, or does not match its checksum."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem


class WorkFolder(NamedTuple):
    """A folder that client and all workers see, by path or by a URL that fsspec understands."""

    url: str

    @property
    def local(self) -> bool:
        return "://" not in self.url

    def make(self, part: str) -> None:
        """Create a subfolder, readable by its owner only; object stores have no folders."""
        if self.local:
            private_folder(Path(self.url) / part)

    def write(self, stem: str, arrays: Mapping[str, Array], *, reuse: bool = False) -> str:
        """Write arrays atomically as one file; returns its name.

        With `reuse` an existing file of that name is not written again; its checksum is verified when it is read.
        """
        buffers = tensor_buffers(arrays)
        digest = hashlib.sha256()
        for buffer in buffers:
            digest.update(buffer)
        name = f"{stem}.{digest.hexdigest()}.safetensors"
        if not (reuse and self.has(name)):
            (self._write_local if self.local else self._write_remote)(name, buffers)
        return name

    def read(self, name: str) -> dict[str, Array]:
        """The arrays of a file, writable; raises DamagedFile if it is missing or does not match its checksum."""
        match = NAME.fullmatch(name)
        if match is None:
            raise DamagedFile(name, "is not the name of a work file")
        problem = "is missing"
        for delay in (*READ_DELAYS, None):
            with suppress(FileNotFoundError):
                raw = self._fetch(name)
                if hashlib.sha256(raw.data).hexdigest() == match[2]:
                    return tensor_views(raw)
                problem = "does not match its checksum"
            if delay is not None:
                time.sleep(delay)
        raise DamagedFile(name, problem)

    def has(self, name: str) -> bool:
        return (Path(self.url) / name).is_file() if self.local else self._remote().exists(self._at(name))

    def names(self, part: str) -> list[str]:
        """All files of a subfolder."""
        if self.local:
            root = Path(self.url)
            return [path.relative_to(root).as_posix() for path in (root / part).rglob("*") if path.is_file()]
        found, here = self._remote().find(self._at(part)), self._at("").partition("://")[2].strip("/")
        return [path.strip("/").removeprefix(here).strip("/") for path in found]

    def free(self) -> int | None:
        """Free bytes, or None where that is unknown."""
        return shutil.disk_usage(self.url).free if self.local else None

    def fsync(self, names: Iterable[str]) -> None:
        """Flush files to the disk. Not done for every U, which lives for two iterations only."""
        if not self.local:
            return
        for path in {Path(self.url) / part for name in names for part in (name, Path(name).parent)}:
            with suppress(FileNotFoundError):
                sync_path(path)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that cannot be removed stay until the folder is removed."""
        for name in names:
            with suppress(OSError):
                if self.local:
                    (Path(self.url) / name).unlink(missing_ok=True)
                else:
                    self._remote().rm_file(self._at(name))

    def remove_folder(self, part: str) -> None:
        """Remove a subfolder with its files, also those that a late worker adds meanwhile."""
        if self.local:
            folder = Path(self.url) / part
            for _ in range(REMOVALS):
                shutil.rmtree(folder, ignore_errors=True)
                if not folder.exists():
                    return
                time.sleep(REMOVAL_DELAY)
        else:
            with suppress(OSError):
                self._remote().rm(self._at(part), recursive=True)

    def remove_empty(self, *parts: str) -> None:
        """Remove those of the subfolders that are empty."""
        for part in parts if self.local else ():
            with suppress(OSError):
                (Path(self.url) / part).rmdir()

    def _write_local(self, name: str, buffers: list[memoryview]) -> None:
        with replace_file(Path(self.url) / name, private=True, sync=False) as file:
            file.writelines(buffers)

    def _write_remote(self, name: str, buffers: list[memoryview]) -> None:
        """Object stores show an object only when it is complete: no temporary name is needed."""
        self._remote().pipe_file(self._at(name), b"".join(buffers))

    def _fetch(self, name: str) -> Array:
        if self.local:
            return np.fromfile(Path(self.url) / name, np.uint8)
        return np.frombuffer(bytearray(self._remote().cat_file(self._at(name))), np.uint8)

    def _remote(self) -> Any:
        import fsspec

        return fsspec.core.url_to_fs(self.url)[0]

    def _at(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"


def work_folder(path: str | os.PathLike[str]) -> WorkFolder:
    """The folder as every worker finds it: an absolute path, or a URL."""
    text = os.fspath(path)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        return WorkFolder(text)
    local = Path(os.path.abspath(text))
    if local.exists() and not local.is_dir():
        raise InputError(f"{path} is a file: choose a folder for the work files.")
    return WorkFolder(str(local))


def private_folder(path: Path) -> None:
    """Create a folder and its missing parents, readable by the owner only: they will hold patient data."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):  # created by another worker meanwhile
            folder.mkdir(mode=0o700)
