"""Files of a cluster's work folder: arrays under a name that is their SHA-256, in a shared folder or an object store.

A name never stands for two contents, so writing twice is harmless and a file that has changed is always noticed.
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
# Seconds between two looks: a file from another machine may show late on a network file system.
LOOKS = (0.2, 1.0)


class Damaged(Exception):
    """A file is not there, or not what was written; holds its name."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, what)
        self.name, self.what = name, what


class Folder(NamedTuple):
    """A folder that client and workers all see, by path or by a URL that fsspec understands."""

    url: str

    @property
    def local(self) -> bool:
        return "://" not in self.url

    def make(self, part: str) -> None:
        """A part of the folder, for its owner alone. Object stores have no folders, and rights of their own."""
        if self.local:
            private_folder(Path(self.url) / part)

    def write(self, stem: str, arrays: Mapping[str, Array], *, reuse: bool = False) -> str:
        """Arrays as one file; returns its name. Whoever looks finds all of it or nothing.

        With `reuse` a file of that name is taken for what it says it is, until somebody reads it.
        """
        pieces = tensor_buffers(arrays)
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        name = f"{stem}.{digest.hexdigest()}.safetensors"
        if not (reuse and self.has(name)):
            (self._write_local if self.local else self._write_remote)(name, pieces)
        return name

    def read(self, name: str) -> dict[str, Array]:
        """The arrays of a file, which may be written to; raises Damaged where it is not what was written."""
        found = NAME.fullmatch(name)
        if found is None:
            raise Damaged(name, "is not the name of a work file")
        what = "is missing"
        for pause in (*LOOKS, None):
            with suppress(FileNotFoundError):
                raw = self._fetch(name)
                if hashlib.sha256(raw.data).hexdigest() == found[2]:
                    return tensor_views(raw)
                what = "does not match its checksum"
            if pause is not None:
                time.sleep(pause)
        raise Damaged(name, what)

    def has(self, name: str) -> bool:
        return (Path(self.url) / name).is_file() if self.local else self._remote().exists(self._at(name))

    def names(self, part: str) -> list[str]:
        """All files of a part."""
        if self.local:
            root = Path(self.url)
            return [path.relative_to(root).as_posix() for path in (root / part).rglob("*") if path.is_file()]
        found, here = self._remote().find(self._at(part)), self._at("").partition("://")[2].strip("/")
        return [path.strip("/").removeprefix(here).strip("/") for path in found]

    def free(self) -> int | None:
        """Bytes that are left, where anybody can tell."""
        return shutil.disk_usage(self.url).free if self.local else None

    def settle(self, names: Iterable[str]) -> None:
        """See that files are on the disk for good. Courses live for two iterations only: not worth it for each."""
        if not self.local:
            return
        for path in {Path(self.url) / part for name in names for part in (name, Path(name).parent)}:
            with suppress(FileNotFoundError):
                sync_path(path)

    def remove(self, names: Iterable[str]) -> None:
        """Away with files that nobody needs; what cannot be removed stays until the folder goes."""
        for name in names:
            with suppress(OSError):
                if self.local:
                    (Path(self.url) / name).unlink(missing_ok=True)
                else:
                    self._remote().rm_file(self._at(name))

    def remove_folder(self, part: str) -> None:
        """Away with one part of the folder and all that is in it."""
        if self.local:
            shutil.rmtree(Path(self.url) / part, ignore_errors=True)
        else:
            with suppress(OSError):
                self._remote().rm(self._at(part), recursive=True)

    def tidy(self, *parts: str) -> None:
        """Away with parts that have nothing in them."""
        for part in parts if self.local else ():
            with suppress(OSError):
                (Path(self.url) / part).rmdir()

    def _write_local(self, name: str, pieces: list[memoryview]) -> None:
        with replace_file(Path(self.url) / name, private=True, sync=False) as file:
            file.writelines(pieces)

    def _write_remote(self, name: str, pieces: list[memoryview]) -> None:
        """Object stores show an object when all of it has arrived: no other name is needed first."""
        self._remote().pipe_file(self._at(name), b"".join(pieces))

    def _fetch(self, name: str) -> Array:
        if self.local:
            return np.fromfile(Path(self.url) / name, np.uint8)
        return np.frombuffer(bytearray(self._remote().cat_file(self._at(name))), np.uint8)

    def _remote(self) -> Any:
        import fsspec

        return fsspec.core.url_to_fs(self.url)[0]

    def _at(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"


def folder_of(place: str | os.PathLike[str]) -> Folder:
    """The folder by the name under which every worker finds it: an absolute path, or a URL."""
    text = os.fspath(place)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        return Folder(text)
    path = Path(os.path.abspath(text))
    if path.exists() and not path.is_dir():
        raise InputError(f"{place} is a file: choose a folder for the work files.")
    return Folder(str(path))


def private_folder(path: Path) -> None:
    """Folders that are made here are their owner's alone: what goes in is about patients."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):  # another worker was quicker
            folder.mkdir(mode=0o700)
