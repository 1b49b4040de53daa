"""Cohorts and models on disk: a folder of safetensors files and a checksummed manifest.json.

Nothing is pickled, so loading a folder never runs code. A save that is killed at any moment leaves the old folder
or the new one, never a mixture.
"""

import hashlib
import json
import os
import platform
import re
import secrets
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from phenotaste.errors import InputError
from phenotaste.storage import mapped
from phenotaste.storage.atomic import (
    DRAFT,
    create_file,
    remove_stale_drafts,
    sync_path,
    write_file,
    write_folder,
)
from phenotaste.storage.encoding import (
    BLANK,
    decode_array,
    encode_array,
    is_sealed,
    seal,
    tensor_buffers,
    tensor_views,
)
from phenotaste.storage.locks import FolderLock

Files = Mapping[str, Mapping[str, np.ndarray]]
ExtraFiles = Mapping[str, bytes]

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST = 64 * 2**20
CHUNK = 16 * 2**20

DATA_FILE = re.compile(r"[a-z][a-z0-9_]*(\.[0-9a-f]{16})?\.safetensors")
# A save over an existing folder adds a random token to the names of its files, so that a later save can tell the
# leftovers of a killed one from files that a user put there.
TOKEN_FILE = re.compile(r"[a-z][a-z0-9_]*\.[0-9a-f]{16}\.safetensors")
EXTRA_FILE = re.compile(r"[a-z][a-z0-9_]*\.(csv|json|md|parquet|svg|toml)")


def write(
    path: str | os.PathLike[str],
    kind: str,
    files: Files,
    meta: Mapping[str, Any],
    extra_files: ExtraFiles | None = None,
) -> None:
    """Save arrays and a JSON-able `meta` as the folder `path`, replacing a folder of the same kind.

    `files` maps a file stem to the arrays of that file: {"model": {"V": ...}, "patients": {"W": ...}}.
    `extra_files` are files for people to read, such as {"attrition.csv": b"..."}; `read` does not need them.
    Anything at `path` that is not a saved folder of this kind is left unchanged and refused.

    Examples
    --------
    >>> import os
    >>> import numpy as np
    >>> from phenotaste.storage import tensors
    >>> tensors.write("saved", "example", {"model": {"V": np.eye(2)}}, {"rank": 2})
    >>> sorted(os.listdir("saved"))
    ['manifest.json', 'model.safetensors']
    """
    extra_files = extra_files or {}
    if not all(EXTRA_FILE.fullmatch(name) and name != MANIFEST for name in extra_files):
        raise InputError("an extra file has a name that cannot be used; use lower-case letters.")
    with _refusing(path, "saved"):
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            with write_folder(target, private=True) as draft:
                _fill(draft, kind, files, meta, extra_files)
        elif (target / MANIFEST).is_file():
            remove_stale_drafts(target)
            _write_over(target, kind, files, meta, extra_files)
        else:
            raise InputError(f"{path} exists and was not written by phenotaste; choose another path.")


def read(
    path: str | os.PathLike[str], *kinds: str, mmap: bool = True
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """Load what `write` saved: (file stem -> name -> array, meta); every file's checksum is verified.

    A folder of none of the `kinds` is refused. With `mmap` the arrays are read-only views of the files; text arrays are
    always decoded into memory.

    Examples
    --------
    >>> import numpy as np
    >>> from phenotaste.storage import tensors
    >>> tensors.write("saved", "example", {"model": {"V": np.eye(2)}}, {"rank": 2})
    >>> files, meta = tensors.read("saved", "example", mmap=False)
    >>> files["model"]["V"], meta
    (array([[1., 0.],
           [0., 1.]]), {'rank': 2})
    """
    while True:
        version = _version(Path(path))
        try:
            return _read_once(Path(path), kinds, mmap)
        except InputError:
            # Another process may have replaced the files after this one read their names: then read again.
            if _version(Path(path)) == version:
                raise


# --- writing ---------------------------------------------------------------------------------------------


def _write_over(
    target: Path, kind: str, files: Files, meta: Mapping[str, Any], extra_files: ExtraFiles
) -> None:
    with FolderLock(target) as lock:
        lock.acquire(wait=True)
        old = _read_manifest(target, (kind,))
        listed = [entry["name"] for entry in old["files"].values()] + old["replaced"]
        # Listed in the new manifest too: if this process is killed before it removes them, the next save does.
        replaced = [name for name in listed if os.path.lexists(target / name)]
        current = _fill(target, kind, files, meta, extra_files, f".{secrets.token_hex(8)}", replaced)
        stale = {name for name in os.listdir(target) if TOKEN_FILE.fullmatch(name) or DRAFT.fullmatch(name)}
        _remove(target, (stale | set(replaced) | set(old.get("extra_files", ()))) - current)


def _fill(
    folder: Path,
    kind: str,
    files: Files,
    meta: Mapping[str, Any],
    extra_files: ExtraFiles,
    token: str = "",
    replaced: Iterable[str] = (),
) -> set[str]:
    """Write the data files, then the manifest that lists them, which completes the save; return the file names."""
    names = {stem: f"{stem}{token}.safetensors" for stem in files}
    version = _version(folder)
    try:
        entries = {stem: _write_arrays(folder / names[stem], arrays) for stem, arrays in files.items()}
        sync_path(folder)
        manifest = _manifest_bytes(folder, kind, entries, list(replaced), list(extra_files), meta)
        write_file(folder / MANIFEST, manifest, private=True)
    except BaseException:
        if _version(folder) == version:
            for name in names.values():
                (folder / name).unlink(missing_ok=True)
        raise
    for name, content in extra_files.items():
        write_file(folder / name, content, private=True)
    return {*names.values(), *extra_files}


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Write one safetensors file without copying its arrays and return its entry in the manifest."""
    tensors: dict[str, np.ndarray] = {}
    specs = {}
    for name, array in arrays.items():
        encoded, specs[name] = encode_array(name, array)
        tensors |= encoded
    digest, size = hashlib.sha256(), 0
    with create_file(path, private=True) as file:
        for buffer in tensor_buffers(tensors):
            for begin in range(0, len(buffer), CHUNK):
                chunk = buffer[begin : begin + CHUNK]
                size += file.write(chunk)
                digest.update(chunk)
    return {"name": path.name, "bytes": size, "sha256": digest.hexdigest(), "arrays": specs}


def _manifest_bytes(
    folder: Path,
    kind: str,
    entries: dict[str, Any],
    replaced: list[str],
    extra_files: list[str],
    meta: Mapping[str, Any],
) -> bytes:
    try:
        library = f"phenotaste {metadata.version('phenotaste')}"
    except metadata.PackageNotFoundError:
        library = "phenotaste"
    manifest = {
        "checksum": BLANK,
        "kind": kind,
        "schema_version": SCHEMA_VERSION,
        "library": library,
        "created_with": {"python": platform.python_version(), "numpy": np.__version__},
        "files": entries,
        "replaced": replaced,
        "extra_files": extra_files,
        "meta": dict(meta),
    }
    try:  # numpy scalars are written as Python numbers
        return seal(json.dumps(manifest, indent=1, allow_nan=False, default=np.generic.item).encode())
    except (TypeError, ValueError):
        raise InputError(f"{folder} could not be saved: its settings are not all text and numbers.") from None


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError:
            warnings.warn(
                f"{folder / name} is out of date but could not be removed; delete it.", stacklevel=4
            )


# --- reading ---------------------------------------------------------------------------------------------


def _read_once(
    folder: Path, kinds: Sequence[str], mmap: bool
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    with _refusing(folder, "loaded"):
        if not (folder / MANIFEST).exists():
            raise InputError(
                f"{folder} is not a saved {' or '.join(kinds)}; give the folder that save() or a command made."
            )
        manifest = _read_manifest(folder, kinds)
        arrays = {stem: _read_file(folder, entry, mmap) for stem, entry in manifest["files"].items()}
        return arrays, manifest["meta"]


def _version(folder: Path) -> tuple[int, int] | None:
    """Return what changes with every save into the folder."""
    with suppress(OSError):
        manifest = (folder / MANIFEST).stat()
        return manifest.st_ino, manifest.st_mtime_ns
    return None


def _read_manifest(folder: Path, kinds: Sequence[str]) -> dict[str, Any]:
    path = folder / MANIFEST
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_MANIFEST:
        raise _damaged(path, "is not a manifest")
    raw = path.read_bytes()
    try:
        manifest = json.loads(raw)
        checksum = manifest["checksum"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path, "is not a manifest") from None
    if not is_sealed(raw, checksum):
        raise _damaged(path, "does not match its checksum")
    if manifest.get("kind") not in kinds:
        raise InputError(f"{folder} does not hold a {' or '.join(kinds)}; choose another path.")
    version = manifest.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise InputError(f"{folder} was written by a newer phenotaste; upgrade phenotaste to use it.")
    _check_names(path, manifest)
    return manifest


def _check_names(path: Path, manifest: dict[str, Any]) -> None:
    """Refuse file names that lead out of the folder: what a manifest lists is opened and deleted."""
    try:
        names = [entry["name"] for entry in manifest["files"].values()] + manifest["replaced"]
        valid = all(DATA_FILE.fullmatch(name) for name in names) and isinstance(manifest["meta"], dict)
        extra_files = manifest.get("extra_files", [])
        valid &= all(EXTRA_FILE.fullmatch(name) and name != MANIFEST for name in extra_files)
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise _damaged(path, "lists files that no save writes")


def _read_file(folder: Path, entry: dict[str, Any], mmap: bool) -> dict[str, np.ndarray]:
    path = folder / entry["name"]
    if path.is_symlink() or not path.is_file():
        raise _damaged(path, "is missing")
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != entry.get("bytes"):
            raise _damaged(path, "has another size than when it was saved")
        if hashlib.file_digest(file, "sha256").hexdigest() != entry.get("sha256"):
            raise _damaged(path, "does not match its checksum")
        try:
            with safetensors.safe_open(path, framework="np"):
                pass  # opening validates the header: sizes, overlaps, holes
            file.seek(0)
            data = np.memmap(file, np.uint8, mode="r") if mmap else np.fromfile(file, np.uint8)
            mapped.register(data, path)
            return _decode_all(data, entry["arrays"])
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError, AttributeError):
            raise _damaged(path, "does not hold the arrays that its manifest lists") from None


def _decode_all(data: np.ndarray, specs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of one file; raise ValueError, KeyError or TypeError if file and manifest disagree."""
    tensors = tensor_views(data)
    arrays = {name: decode_array(tensors, name, spec["dtype"], spec["shape"]) for name, spec in specs.items()}
    if tensors:
        raise ValueError("the file holds arrays that the manifest does not list")
    return arrays


# --- messages --------------------------------------------------------------------------------------------


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} {what}; restore the folder from a copy, or delete it and save again.")


@contextmanager
def _refusing(path: str | os.PathLike[str], verb: str) -> Iterator[None]:
    """Convert errors of the system (permissions, full disk, invalid paths) to InputError."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        reason = (error.strerror or "the system refused").lower()
        raise InputError(
            f"{path} could not be {verb}: {reason}; check the path, the disk and your permissions."
        ) from error
    except MemoryError:
        raise InputError(f"{path} could not be {verb}: not enough memory; use a larger machine.") from None
