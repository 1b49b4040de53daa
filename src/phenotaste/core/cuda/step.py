"""The patient step on a GPU: pieces of a cohort as tensors, and what is taken from the kernels' results.

Courses are float32, all R × R algebra and every sum is float64. Nothing here imports torch until it is called.
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.cuda.compile import POLES, Shape
from phenotaste.core.kernels.inverse_sqrt import poles
from phenotaste.core.records import Array, Model, Shard, Sums, Weights

SPREAD = 1e14  # eigenvalues of C from the cap (1e-7 of the largest singular value, squared) to the largest
SOUND = 1e-5  # singular values of H are kept above this share of its largest, so that it can be inverted
STRETCH = 1024  # entries of one feature that one block adds up
PIECE_VISITS = 16_000_000  # in fewer visits, blocks that drew short patients wait for the others too often
PIECE_ENTRIES = 2**30

DATA = ("data", "indices", "indptr", "offsets", "norms", "mu", "A")
MODEL = ("VQ", "V", "VV", "F", "FF", "H", "HT", "HH", "poles")
STATE = ("U", "other", "scaled", "W", "passive", "sums", "spare", "desks", "loss")
POINTERS = (*DATA, *MODEL, *STATE)  # in the kernel's order


class Task(ctypes.Structure):
    """The kernel's argument."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_double) for name in ("lam", "reach", "tol", "hh")),
        *((name, ctypes.c_int) for name in ("patients", "n_static", "max_iter")),
    )


class Patients(NamedTuple):
    """The data of a piece of the cohort, on the device or on its way there."""

    data: Any
    indices: Any
    indptr: Any
    offsets: Any
    norms: Any
    mu: Any
    static: Any


class Turned(NamedTuple):
    """The entries of a piece by feature: what XᵀU is added up from."""

    rows: Any
    values: Any
    stretch: Any
    features: Any


class Courses(NamedTuple):
    """What a piece keeps from one step to the next."""

    now: Any  # visits × R
    other: Any  # before the last step
    passive: Any  # which scores were positive, a bit for each


class Room(NamedTuple):
    """Scratch space on the device, for one piece at a time."""

    scaled: Any  # visits × R
    W: Any  # patients × R
    sums: Any  # blocks × SUMS
    spare: Any  # blocks × R²
    found: Any  # stretches × R
    desks: Any


class Shared(NamedTuple):
    """A model on the device, with the products every patient needs."""

    VQ: Any  # V in float32, rows padded to a multiple of four
    V: Any
    VV: Any
    F: Any
    FF: Any  # λ FᵀF
    H: Any  # singular values kept away from zero
    HT: Any
    HH: Any  # of H as it is
    poles: Any
    hh: float
    lift: Array  # H^(-T), so that QᵀU = H^(-T) (QH)ᵀU
    lam: float


def scale_of(data: Array) -> float:
    """A power of two near the size of the data: divided by it, the data suit float32 whatever their unit."""
    largest = max(float(data.max(initial=0.0)), -float(data.min(initial=0.0)))
    return float(2.0 ** round(np.log2(largest))) if largest > 0 else 1.0


def piece_edges(shard: Shard, most_visits: int = PIECE_VISITS) -> Array:
    """Patients cut into pieces of at most so many visits, or one patient."""
    edges, K = [0], len(shard.offsets) - 1
    pieces = -(-int(shard.offsets[-1]) // most_visits)
    most_visits = -(-int(shard.offsets[-1]) // max(1, pieces))  # pieces of one size
    starts = shard.indptr[shard.offsets]
    while edges[-1] < K:
        first = edges[-1]
        by_visits = np.searchsorted(shard.offsets, shard.offsets[first] + most_visits, side="right") - 1
        by_entries = np.searchsorted(starts, starts[first] + PIECE_ENTRIES, side="right") - 1
        edges.append(int(max(first + 1, min(by_visits, by_entries, K))))
    return np.array(edges)


def cut(shard: Shard, weights: Weights, norms: Array, first: int, last: int, scale: float) -> Patients:
    """Patients first..last in the kernel's terms, as CPU tensors: data as they are, the rest in units of `scale`."""
    import torch

    v0, v1 = int(shard.offsets[first]), int(shard.offsets[last])
    n0, n1 = int(shard.indptr[v0]), int(shard.indptr[v1])
    return Patients(
        data=torch.from_numpy(shard.data[n0:n1].astype(np.float32, copy=True)),
        indices=torch.from_numpy(shard.indices[n0:n1].astype(np.int32, copy=True)),
        indptr=torch.from_numpy((shard.indptr[v0 : v1 + 1] - n0).astype(np.int32)),
        offsets=torch.from_numpy((shard.offsets[first : last + 1] - v0).astype(np.int32)),
        norms=torch.from_numpy(norms[first:last] / scale**2),
        mu=torch.from_numpy(weights.mu[first:last] / scale**2),
        static=torch.from_numpy(np.array(shard.static[first:last], np.float64)),
    )


def turn(patients: Patients, n_features: int) -> Turned:
    """The same entries sorted by feature, visits in order, and cut into stretches."""
    import torch

    device = patients.data.device
    keys, order = torch.sort(patients.indices, stable=True)
    counts = torch.diff(patients.indptr)
    rows = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32, device=device), counts)
    ends = (
        torch.searchsorted(keys, torch.arange(n_features + 1, dtype=torch.int32, device=device)).cpu().numpy()
    )
    stretches = -(-np.diff(ends) // STRETCH)
    features = np.concatenate([[0], np.cumsum(stretches)])
    inside = np.arange(features[-1]) - np.repeat(features[:-1], stretches)
    starts = np.append(np.repeat(ends[:-1], stretches) + STRETCH * inside, ends[-1])
    # A stretch ends where the next one begins, also across features: those without entries have none.
    return Turned(
        rows[order],
        patients.data[order],
        torch.from_numpy(starts.astype(np.int32)).to(device),
        torch.from_numpy(features.astype(np.int32)).to(device),
    )


def share(model: Model, lam: float, scale: float, device: Any) -> Shared:
    """The model for data in units of `scale`: the scores are in them too, so F is not."""
    import torch

    def put(M: Array) -> Any:
        return torch.from_numpy(np.ascontiguousarray(M, np.float64)).to(device)

    H, V, F = (np.asarray(factor, np.float64) for factor in model)
    F, lam = F * scale, lam / scale**2
    sound = invertible(H)
    return Shared(
        VQ=put(np.pad(V, ((0, 0), (0, -V.shape[1] % 4)))).float(),
        V=put(V),
        VV=put(V.T @ V),
        F=put(F),
        FF=put(lam * (F.T @ F)),
        H=put(sound),
        HT=put(sound.T),
        HH=put(H.T @ H),
        poles=put(np.concatenate(poles(POLES, SPREAD))),
        hh=float(np.sum(H**2)),
        lift=np.linalg.inv(sound.T) if np.isfinite(sound).all() else np.full_like(H, np.nan),
        lam=lam,
    )


def invertible(H: Array) -> Array:
    """H with its singular values kept above a hundred-thousandth of the largest: QᵀU is found by its inverse."""
    if not np.isfinite(H).all():
        return H
    left, sizes, right = np.linalg.svd(H)
    least = SOUND * sizes[0] if sizes[0] > 0 else 1.0
    return H if sizes[-1] > least else (left * np.maximum(sizes, least)) @ right


def room_for(launcher: Any, visits: int, patients: int, stretches: int, device: Any) -> Room:
    import torch

    shape: Shape = launcher.shape
    R, blocks = shape.rank, launcher.blocks

    def empty(*size: int, dtype: Any = torch.float64) -> Any:
        return torch.empty(size, dtype=dtype, device=device)

    return Room(
        scaled=empty(visits, R, dtype=torch.float32),
        W=empty(patients, R),
        sums=empty(blocks, shape.sums),
        spare=empty(blocks, R * R),
        found=empty(stretches, R),
        desks=launcher.desks,
    )


def new_courses(visits: int, patients: int, rank: int, device: Any) -> Courses:
    import torch

    return Courses(
        torch.zeros((visits, rank), dtype=torch.float32, device=device),
        torch.zeros((visits, rank), dtype=torch.float32, device=device),
        torch.full((patients, -(-rank // 32)), -1, dtype=torch.int32, device=device),
    )


def run(
    launcher: Any,
    mode: str,
    patients: Patients,
    shared: Shared,
    courses: Courses,
    room: Room,
    *,
    reach: float = 0.0,
    tol: float = 0.0,
    max_iter: int = 0,
    loss: Any = None,
) -> None:
    """One launch over all patients of a piece."""
    tensors = patients._asdict() | shared._asdict() | room._asdict()
    tensors |= {"A": patients.static, "loss": room.W if loss is None else loss}
    tensors |= {"U": courses.now, "other": courses.other, "passive": courses.passive}
    task = Task(
        *(ctypes.c_void_p(tensors[name].data_ptr()) for name in POINTERS),
        shared.lam,
        reach,
        tol,
        shared.hh,
        len(patients.norms),
        patients.static.shape[1],
        max_iter,
    )
    launcher.patients(mode, task)


def take_sums(
    launcher: Any, patients: Patients, turned: Turned, shared: Shared, room: Room, n_features: int
) -> list[Any]:
    """What a step adds to the sums, as tensors in the units of the data: UU, pulls, Σμ‖U‖², XU, WW, AW."""
    import torch

    R, K = launcher.shape.rank, len(patients.norms)
    blocks = min(launcher.blocks, max(1, K))
    sums = room.sums[:blocks].sum(0)
    W = room.W[:K]
    XU = torch.zeros((n_features, R), dtype=torch.float64, device=W.device)
    stretches = len(turned.stretch) - 1
    if stretches:
        launcher.gather([turned.stretch, turned.rows, turned.values, room.scaled, room.found], stretches)
        launcher.combine([turned.features, room.found, XU], n_features)
    square = R * R
    return [
        sums[:square].reshape(R, R),
        sums[square : 2 * square].reshape(R, R),
        sums[2 * square :],
        XU,
        W.T @ W,
        patients.static.T @ W,
    ]


def as_sums(parts: list[Array], shared: Shared, scale: float, size: tuple[float, float, float]) -> Sums:
    """The pieces' parts, added up, in the units of the cohort; `size` is Σ‖X‖², Σ‖a‖² and Σμ."""
    UU, pulls, energy, XU, WW, AW = parts
    square = scale**2
    scalars = np.array([*size, square * float(energy[0])])
    return Sums(square * UU, square * XU, square * WW, scale * AW, square * (shared.lift @ pulls), scalars)
