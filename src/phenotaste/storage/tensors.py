"""Cohorts and models on disk: a folder of safetensors files and a checksummed manifest.json.

Knows arrays and manifests only. Nothing is pickled, so loading a folder never runs code; a save that is
killed at any moment leaves the old folder or the new one, never a mixture.
"""

import hashlib
import json
import math
import os
import platform
import re
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors

from phenotaste.errors import InputError
from phenotaste.storage import mapped

try:
    import fcntl
except (
    ImportError
):  # Windows has no advisory locks: there, two saves at once to one folder are not kept apart
    fcntl = None  # type: ignore[assignment]

Files = Mapping[str, Mapping[str, np.ndarray]]
Beside = Mapping[str, bytes]

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
MANIFEST_LIMIT = 64 * 2**20
CHUNK = 16 * 2**20
BLANK_CHECKSUM = "0" * 64

ARRAY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
DATA_FILE = re.compile(r"[a-z][a-z0-9_]*(\.[0-9a-f]{16})?\.safetensors")
# What a save over an existing folder writes carries a random token, so that leftovers can be told from
# files which a user put there.
TOKENED = re.compile(r"[a-z][a-z0-9_]*\.[0-9a-f]{16}\.(safetensors|json)")
BESIDE_FILE = re.compile(r"[a-z][a-z0-9_]*\.(csv|json|md|parquet|svg|toml)")
CLOCK = re.compile(r"(datetime64|timedelta64)(\[\d*(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")

DTYPE_CODES = {"bool": "BOOL"} | {
    f"{word}{bits}": f"{word[0].upper()}{bits}"
    for word in ("int", "uint", "float")
    for bits in (8, 16, 32, 64)
}
DTYPES = {code: name for name, code in DTYPE_CODES.items()}


def write(
    path: str | os.PathLike[str],
    kind: str,
    files: Files,
    meta: Mapping[str, Any],
    beside: Beside | None = None,
) -> None:
    """Save arrays and a JSON-able `meta` as the folder `path`, replacing a folder of the same kind.

    `files` maps a file stem to the arrays of that file: {"model": {"V": ...}, "patients": {"W": ...}}.
    `beside` are files for people to look at, such as {"attrition.csv": b"..."}; `read` does not need them.
    Anything at `path` that is not a saved folder of this kind is left alone and refused.

    Examples
    --------
    >>> import os
    >>> import numpy as np
    >>> from phenotaste import store
    >>> store.write("saved", "example", {"model": {"V": np.eye(2)}}, {"made": "by hand"})
    >>> sorted(os.listdir("saved"))
    ['manifest.json', 'model.safetensors']
    """
    beside = beside or {}
    if not all(BESIDE_FILE.fullmatch(name) and name != MANIFEST for name in beside):
        raise InputError("a file beside the arrays has a name that cannot be used; use small letters.")
    with _refusing(path, "saved"):
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep_abandoned(target)
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            _write_new(target, kind, files, meta, beside)
        elif (target / MANIFEST).is_file():
            _write_over(target, kind, files, meta, beside)
        else:
            raise InputError(f"{path} exists and was not written by phenotaste; choose another path.")


def read(
    path: str | os.PathLike[str], kind: str, *, mmap: bool = True
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    """Load what `write` saved: (file stem -> name -> array, meta); every file's checksum is verified.

    With `mmap` the arrays are read-only views of the files; text arrays are always decoded into memory.

    Examples
    --------
    >>> import numpy as np
    >>> from phenotaste import store
    >>> store.write("saved", "example", {"model": {"V": np.eye(2)}}, {"made": "by hand"})
    >>> files, meta = store.read("saved", "example", mmap=False)
    >>> files["model"]["V"], meta
    (array([[1., 0.],
           [0., 1.]]), {'made': 'by hand'})
    """
    while True:
        version = _version(Path(path))
        try:
            return _read_once(Path(path), kind, mmap)
        except InputError:
            # A save in another process may have replaced the files after we read which they are: then look again.
            if _version(Path(path)) == version:
                raise


# --- writing ---------------------------------------------------------------------------------------------


def _write_new(target: Path, kind: str, files: Files, meta: Mapping[str, Any], beside: Beside) -> None:
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    partial.mkdir(mode=0o700)
    try:
        with _locked(partial):
            _fill(partial, kind, files, meta, beside)
            _put_beside(partial, beside)
            os.rename(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync_folder(target.parent)


def _write_over(target: Path, kind: str, files: Files, meta: Mapping[str, Any], beside: Beside) -> None:
    with _locked(target):
        old = _read_manifest(target, kind)
        listed = [entry["name"] for entry in old["files"].values()] + old["replaced"]
        # Named in the new manifest too: should this process be killed before removing them, the next save will.
        replaced = [name for name in listed if os.path.lexists(target / name)]
        current = _fill(target, kind, files, meta, beside, f".{secrets.token_hex(8)}", replaced)
        _put_beside(target, beside)
        leftovers = {name for name in os.listdir(target) if TOKENED.fullmatch(name)}
        _remove(target, (leftovers | set(replaced) | set(old.get("beside", ()))) - current - set(beside))


def _fill(
    folder: Path,
    kind: str,
    files: Files,
    meta: Mapping[str, Any],
    beside: Iterable[str],
    token: str = "",
    replaced: Iterable[str] = (),
) -> set[str]:
    """Write the data files, then put the manifest that names them in place: that one step is the save."""
    draft = folder / f"manifest.{secrets.token_hex(8)}.json"
    names = {stem: f"{stem}{token}.safetensors" for stem in files}
    try:
        entries = {stem: _write_arrays(folder / names[stem], arrays) for stem, arrays in files.items()}
        with _create(draft) as file:
            file.write(_manifest_bytes(folder, kind, entries, list(replaced), list(beside), meta))
        _sync_folder(folder)
    except BaseException:
        for name in [*names.values(), draft.name]:
            (folder / name).unlink(missing_ok=True)
        raise
    os.replace(draft, folder / MANIFEST)
    _sync_folder(folder)
    return set(names.values())


def _put_beside(folder: Path, beside: Beside) -> None:
    """Each file whole or not at all; a draft that a killed save leaves is swept like any other leftover."""
    for name, content in beside.items():
        draft = folder / f"beside.{secrets.token_hex(8)}.json"
        with _create(draft) as file:
            file.write(content)
        os.replace(draft, folder / name)
    _sync_folder(folder)


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """One safetensors file, streamed so that no array is copied; returns its entry in the manifest."""
    tensors: dict[str, np.ndarray] = {}
    specs = {}
    for name, array in arrays.items():
        parts, specs[name] = _encode(name, array)
        tensors |= parts
    # Widest items first: then every tensor starts on a multiple of its item size, as memory-mapping wants.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header, end = {}, 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        code = DTYPE_CODES[tensor.dtype.name]
        header[name] = {"dtype": code, "shape": tensor.shape, "data_offsets": (begin, end)}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    digest, size = hashlib.sha256(), 0
    with _create(path) as file:
        for block in _blocks([len(head).to_bytes(8, "little"), head, *(tensor for _, tensor in ordered)]):
            size += file.write(block)
            digest.update(block)
    return {"name": path.name, "bytes": size, "sha256": digest.hexdigest(), "arrays": specs}


def _blocks(pieces: Iterable[bytes | np.ndarray]) -> Iterator[memoryview]:
    for piece in pieces:
        view = memoryview(piece) if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8).data
        for begin in range(0, len(view), CHUNK):
            yield view[begin : begin + CHUNK]


@contextmanager
def _create(path: Path) -> Iterator[IO[bytes]]:
    """A new file that only its owner can read, on the disk for good when the block ends."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _manifest_bytes(
    folder: Path,
    kind: str,
    entries: dict[str, Any],
    replaced: list[str],
    beside: list[str],
    meta: Mapping[str, Any],
) -> bytes:
    try:
        library = f"phenotaste {metadata.version('phenotaste')}"
    except metadata.PackageNotFoundError:
        library = "phenotaste"
    manifest = {
        "kind": kind,
        "schema_version": SCHEMA_VERSION,
        "library": library,
        "created_with": {"python": platform.python_version(), "numpy": np.__version__},
        "files": entries,
        "replaced": replaced,
        "beside": beside,
        "meta": dict(meta),
        "checksum": BLANK_CHECKSUM,
    }
    try:  # a numpy scalar is written as the number it is
        text = json.dumps(manifest, indent=1, allow_nan=False, default=np.generic.item)
    except (TypeError, ValueError):
        raise InputError(f"{folder} could not be saved: its settings are not all text and numbers.") from None
    # The checksum covers the very bytes of the file, its own place blank.
    head, _, tail = text.rpartition(BLANK_CHECKSUM)
    return f"{head}{hashlib.sha256(text.encode()).hexdigest()}{tail}".encode()


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError:
            warnings.warn(
                f"{folder / name} is out of date but could not be removed; delete it.", stacklevel=4
            )


def _sweep_abandoned(target: Path) -> None:
    """Remove the hidden folders that killed first saves of this target left beside it."""
    ours = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{16}\.partial")
    for sibling in target.parent.iterdir():
        if ours.fullmatch(sibling.name) and sibling.is_dir() and not sibling.is_symlink():
            with suppress(FileNotFoundError), _locked(sibling, wait=False) as free:
                if free:
                    shutil.rmtree(sibling, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the folder's advisory lock, which the system drops even when the process is killed."""
    if fcntl is None:
        yield True
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        free = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        except OSError:
            pass  # some cluster file systems have no locks; one save at a time is then up to the user
        yield free
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    if fcntl is None:  # Windows can neither open nor sync a folder
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading ---------------------------------------------------------------------------------------------


def _read_once(
    folder: Path, kind: str, mmap: bool
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
    with _refusing(folder, "loaded"):
        if not (folder / MANIFEST).exists():
            raise InputError(
                f"{folder} is not a saved {kind}; give the folder that save() or a command made."
            )
        manifest = _read_manifest(folder, kind)
        arrays = {stem: _read_file(folder, entry, mmap) for stem, entry in manifest["files"].items()}
        return arrays, manifest["meta"]


def _version(folder: Path) -> tuple[int, int] | None:
    """What changes with every save into the folder."""
    with suppress(OSError):
        manifest = (folder / MANIFEST).stat()
        return manifest.st_ino, manifest.st_mtime_ns
    return None


def _read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    path = folder / MANIFEST
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MANIFEST_LIMIT:
        raise _damaged(path, "is not a manifest")
    raw = path.read_bytes()
    try:
        manifest = json.loads(raw)
        checksum = manifest["checksum"]
        blanked = raw.replace(checksum.encode(), BLANK_CHECKSUM.encode(), 1)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged(path, "cannot be understood") from None
    if hashlib.sha256(blanked).hexdigest() != checksum:
        raise _damaged(path, "does not match its checksum")
    if manifest.get("kind") != kind:
        raise InputError(f"{folder} does not hold a {kind}; choose another path.")
    version = manifest.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise InputError(f"{folder} was written by a newer phenotaste; upgrade phenotaste to use it.")
    _check_names(path, manifest)
    return manifest


def _check_names(path: Path, manifest: dict[str, Any]) -> None:
    """Names come from a file, and are opened and deleted: let none lead out of the folder."""
    try:
        names = [entry["name"] for entry in manifest["files"].values()] + manifest["replaced"]
        sound = all(DATA_FILE.fullmatch(name) for name in names) and isinstance(manifest["meta"], dict)
        beside = manifest.get("beside", [])
        sound &= all(BESIDE_FILE.fullmatch(name) and name != MANIFEST for name in beside)
    except (KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise _damaged(path, "lists what no save would write")


def _read_file(folder: Path, entry: dict[str, Any], mmap: bool) -> dict[str, np.ndarray]:
    path = folder / entry["name"]
    if path.is_symlink() or not path.is_file():
        raise _damaged(path, "is missing")
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != entry.get("bytes"):
            raise _damaged(path, "is not as long as it was when saved")
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
    """The arrays of one file; raises ValueError, KeyError or TypeError where file and manifest disagree."""
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:start].tobytes())
    tensors = {name: _tensor(data[start:], info) for name, info in header.items() if name != "__metadata__"}
    arrays = {name: _decode(tensors, name, spec["dtype"], spec["shape"]) for name, spec in specs.items()}
    if tensors:
        raise ValueError("the file holds more than the manifest lists")
    return arrays


def _tensor(data: np.ndarray, info: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(DTYPES[info["dtype"]])
    begin, end = info["data_offsets"]
    tensor = data[begin:end].view(dtype).reshape(info["shape"])
    if not 0 <= begin <= end <= len(data) or not tensor.flags.aligned:
        raise ValueError("the tensor lies outside the file, or askew")
    return tensor


# --- arrays as tensors -----------------------------------------------------------------------------------


def _encode(name: str, array: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """An array as tensors of plain numbers, and what the manifest must say to turn them back."""
    if not ARRAY_NAME.fullmatch(name):
        raise InputError(f"array name {name!r} cannot be stored; use letters, digits, dots and underscores.")
    array = np.asarray(array)
    dtype, shape = array.dtype.name, list(array.shape)
    if array.dtype.kind in "UO":
        dtype = "text" if array.dtype.kind == "U" else "object"
        return _encode_text(name, array), {"dtype": dtype, "shape": shape}
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(shape)
    if array.dtype.kind in "mM":
        return {name: array.view(np.int64)}, {"dtype": dtype, "shape": shape}
    if dtype not in DTYPE_CODES:
        raise InputError(f"array {name!r} has dtype {dtype}, which cannot be stored; convert it to numbers.")
    return {name: array}, {"dtype": dtype, "shape": shape}


def _encode_text(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    texts = array.ravel().tolist()
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"array {name!r} holds objects that are not text; convert it to text or numbers.")
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return {name: np.frombuffer(b"".join(encoded), np.uint8), f"{name}:offsets": offsets}


def _decode(tensors: dict[str, np.ndarray], name: str, dtype: str, shape: list[int]) -> np.ndarray:
    tensor = tensors.pop(name)
    if dtype in ("text", "object"):
        return _decode_text(tensor, tensors.pop(f"{name}:offsets"), dtype, shape)
    if CLOCK.fullmatch(dtype) and tensor.dtype == np.int64:
        tensor = tensor.view(dtype)
    if tensor.dtype.name != dtype or list(tensor.shape) != shape:
        raise ValueError("the manifest gives another dtype or shape")
    return tensor


def _decode_text(encoded: np.ndarray, offsets: np.ndarray, dtype: str, shape: list[int]) -> np.ndarray:
    if encoded.dtype != np.uint8 or offsets.dtype != np.int64 or len(offsets) != math.prod(shape) + 1:
        raise ValueError("the text is not laid out as text")
    blob, bounds = encoded.tobytes(), offsets.tolist()
    if bounds[0] != 0 or bounds[-1] != len(blob) or any(end < begin for begin, end in pairwise(bounds)):
        raise ValueError("the text's offsets do not fit it")
    texts = [blob[begin:end].decode("utf-8", "surrogatepass") for begin, end in pairwise(bounds)]
    return np.array(texts, dtype=str if dtype == "text" else object).reshape(shape)


# --- sentences -------------------------------------------------------------------------------------------


def _damaged(path: Path, what: str) -> InputError:
    return InputError(f"{path} {what}; restore the folder from a copy, or delete it and save again.")


@contextmanager
def _refusing(path: str | os.PathLike[str], verb: str) -> Iterator[None]:
    """Turn the system's refusals (permissions, full disk, odd paths) into one sentence."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        reason = (error.strerror or "the system refused").lower()
        raise InputError(
            f"{path} could not be {verb}: {reason}; check the path, the disk and your rights."
        ) from error
    except MemoryError:
        raise InputError(f"{path} could not be {verb}: not enough memory; use a larger machine.") from None
