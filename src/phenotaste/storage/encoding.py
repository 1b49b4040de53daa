"""Arrays as safetensors bytes, and records and arrays in one checksummed bytes object.

The checksum lies inside the content that it covers: it is the SHA-256 of the content with 64 zeros in its place.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import safetensors
from safetensors.numpy import load as load_tensors

from phenotaste.errors import InputError

MAX_HEADER = 16 * 2**20  # bytes of the JSON header of a packed file
BLANK = "0" * 64
DIGEST = re.compile(r"[0-9a-f]{64}")
ARRAY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
CLOCK = re.compile(r"(datetime64|timedelta64)(\[\d*(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
DTYPE_CODES = {"bool": "BOOL"} | {
    f"{word}{bits}": f"{word[0].upper()}{bits}"
    for word in ("int", "uint", "float")
    for bits in (8, 16, 32, 64)
}
DTYPES = {code: name for name, code in DTYPE_CODES.items()}


class Unpacked(NamedTuple):
    """The content of a packed file whose checksum matches."""

    record: dict[str, Any]
    arrays: dict[str, np.ndarray]
    digest: str


# --- records and arrays in one bytes object ----------------------------------------------------------------


def pack(record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return safetensors bytes whose header carries a JSON record and a checksum of all bytes.

    The same content always gives the same bytes. NaN in the record raises ValueError.

    Examples
    --------
    >>> import numpy as np
    >>> from phenotaste.storage.encoding import pack, unpack
    >>> content = pack({"rank": 2}, {"V": np.eye(2)})
    >>> unpack(content).record
    {'rank': 2}
    """
    header = json.dumps({"sha256": BLANK, **record}, allow_nan=False)
    return seal(b"".join(tensor_buffers(arrays, {"record": header})))


def unpack(content: bytes) -> Unpacked:
    """Return what `pack` was given; raise ValueError for any other bytes."""
    record = unpack_record(content)
    digest = record.pop("sha256", None)
    if not is_sealed(content, digest):
        raise ValueError("the content does not match its checksum")
    try:
        return Unpacked(record, load_tensors(content), str(digest))
    except (KeyError, TypeError, AttributeError, safetensors.SafetensorError):
        raise ValueError("the content is not safetensors") from None


def unpack_record(content: bytes) -> dict[str, Any]:
    """Return the record in the header, with the checksum that it states but without checking it."""
    length = int.from_bytes(content[:8], "little")
    if not 0 < length <= min(MAX_HEADER, len(content) - 8):
        raise ValueError("the header is longer than the content")
    try:
        return dict(json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["record"]))
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("the header has no record") from None


def seal(content: bytes) -> bytes:
    """Replace the first blank checksum in the content by the SHA-256 of the content."""
    return content.replace(BLANK.encode(), hashlib.sha256(content).hexdigest().encode(), 1)


def is_sealed(content: bytes, checksum: object) -> bool:
    """Return whether `checksum` is the one that `seal` put into the content."""
    if not isinstance(checksum, str) or not DIGEST.fullmatch(checksum):
        return False
    blank = content.replace(checksum.encode(), BLANK.encode(), 1)
    return hashlib.sha256(blank).hexdigest() == checksum


def json_value(value: Any) -> Any:
    """Return a value, or all values of a dictionary or list, as JSON can hold them: NaN and infinity become None."""
    if isinstance(value, Mapping):
        return {name: json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(part) for part in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- the safetensors format --------------------------------------------------------------------------------


def tensor_buffers(
    tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> list[memoryview]:
    """Return the buffers that make up a safetensors file, without copying contiguous arrays.

    The widest items come first, so that every tensor is aligned in a memory map.
    """
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    buffers, end = [], 0
    for name, array in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        begin, end = end, end + array.nbytes
        code = DTYPE_CODES[array.dtype.name]
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": (begin, end)}
        buffers.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [memoryview(len(text).to_bytes(8, "little")), memoryview(text), *buffers]


def tensor_views(data: np.ndarray) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file as views of its bytes.

    Raises ValueError, KeyError or TypeError if the header does not fit the data.
    """
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:start].tobytes())
    return {name: _view(data[start:], info) for name, info in header.items() if name != "__metadata__"}


def _view(data: np.ndarray, info: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(DTYPES[info["dtype"]])
    begin, end = info["data_offsets"]
    tensor = data[begin:end].view(dtype).reshape(info["shape"])
    if not 0 <= begin <= end <= len(data) or not tensor.flags.aligned:
        raise ValueError("the tensor lies outside the file or is unaligned")
    return tensor


# --- arrays of text and times as tensors of numbers --------------------------------------------------------


def encode_array(name: str, array: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return an array as tensors of plain numbers, and the dtype and shape that `decode_array` needs."""
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


def decode_array(tensors: dict[str, np.ndarray], name: str, dtype: str, shape: list[int]) -> np.ndarray:
    """Take the tensors of one array out of `tensors`; raise ValueError or KeyError where they do not fit."""
    tensor = tensors.pop(name)
    if dtype in ("text", "object"):
        return _decode_text(tensor, tensors.pop(f"{name}:offsets"), dtype, shape)
    if CLOCK.fullmatch(dtype) and tensor.dtype == np.int64:
        tensor = tensor.view(dtype)
    if tensor.dtype.name != dtype or list(tensor.shape) != shape:
        raise ValueError("the array has another dtype or shape")
    return tensor


def _decode_text(encoded: np.ndarray, offsets: np.ndarray, dtype: str, shape: list[int]) -> np.ndarray:
    if encoded.dtype != np.uint8 or offsets.dtype != np.int64 or len(offsets) != math.prod(shape) + 1:
        raise ValueError("the tensors do not hold text")
    blob, bounds = encoded.tobytes(), offsets.tolist()
    if bounds[0] != 0 or bounds[-1] != len(blob) or any(end < begin for begin, end in pairwise(bounds)):
        raise ValueError("the offsets of the text do not fit it")
    texts = [blob[begin:end].decode("utf-8", "surrogatepass") for begin, end in pairwise(bounds)]
    return np.array(texts, dtype=str if dtype == "text" else object).reshape(shape)
