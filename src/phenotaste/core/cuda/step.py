"""The patient step on a GPU: chunks of a cohort as tensors, kernel launches, and the reduction of their results.

Courses are float32, all R × R algebra and every sum is float64. Torch is imported only when a function is called.
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.cuda.compile import GROUP, POLES, Shape
from phenotaste.core.kernels.inverse_sqrt import zolotarev_poles
from phenotaste.core.kernels.jit import kernel
from phenotaste.core.kernels.patient import MIN_SINGULAR_RATIO
from phenotaste.core.records import Array, Model, Shard, Sums, Weights

CONDITION_LIMIT = 1e14  # of C = MᵀM: SIGMA_RTOL of `polar`, squared
SEGMENT = 1024  # entries of one feature that one block sums
CHUNK_VISITS = 16_000_000  # with fewer, blocks with short patients wait too often for the others
CHUNK_ENTRIES = 2**30

N_SCORED = 6  # numbers per patient that "score" finds

DATA = ("data", "indices", "indptr", "offsets", "norms", "mu", "influence", "A")
MODEL = ("VQ", "V", "VV", "F", "FF", "H", "HT", "HH", "poles")
STATE = ("U", "U_prev", "scaled", "W", "passive", "sums", "spare", "global_scratch", "scored")
POINTERS = (*DATA, *MODEL, *STATE)  # in the order of the kernel's struct


class Task(ctypes.Structure):
    """The kernel's argument."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_double) for name in ("lam", "tau", "beta", "tol", "hh")),
        *((name, ctypes.c_int) for name in ("patients", "n_static", "max_iter", "spare_length")),
    )


class ChunkData(NamedTuple):
    """The data of a chunk of patients, on the device or in host memory."""

    data: Any  # multiplied by the patient's `scale`
    indices: Any
    indptr: Any
    offsets: Any
    norms: Any  # ‖X_k‖² of the data as rounded here, so that losses are those of the same data
    mu: Any
    influence: Any
    static: Any


class FeatureMajor(NamedTuple):
    """The entries of a chunk sorted by feature, for XᵀU."""

    rows: Any
    values: Any
    segments: Any  # first entry of each segment
    features: Any  # first segment of each feature


class ChunkState(NamedTuple):
    """What a chunk keeps between steps."""

    U: Any  # visits × R
    U_prev: Any  # U before the last step
    passive: Any  # one bit per score: whether it was positive


class DeviceScratch(NamedTuple):
    """Scratch on the device, for one chunk at a time."""

    scaled: Any  # visits × R
    W: Any  # patients × R
    sums: Any  # blocks × SUMS
    spare: Any  # blocks × numbers for the longest history
    partial: Any  # segments × R
    global_scratch: Any


class DeviceModel(NamedTuple):
    """A model on the device, with the products every patient needs."""

    VQ: Any  # V in float32, rows padded to a multiple of four
    V: Any
    VV: Any
    F: Any
    FF: Any  # λ FᵀF
    H: Any  # with singular values bounded below
    HT: Any
    HH: Any  # HᵀH of the original H
    poles: Any
    hh: float
    H_inv_T: Array  # H^(-T), so that QᵀU = H^(-T) (QH)ᵀU
    lam: float
    tau: float


def chunk_edges(shard: Shard, max_visits: int = CHUNK_VISITS) -> Array:
    """Patients in chunks of at most this number of visits, or one patient."""
    edges, K = [0], len(shard.offsets) - 1
    chunks = -(-int(shard.offsets[-1]) // max_visits)
    max_visits = -(-int(shard.offsets[-1]) // max(1, chunks))  # chunks of equal size
    starts = shard.indptr[shard.offsets]
    while edges[-1] < K:
        first = edges[-1]
        by_visits = np.searchsorted(shard.offsets, shard.offsets[first] + max_visits, side="right") - 1
        by_entries = np.searchsorted(starts, starts[first] + CHUNK_ENTRIES, side="right") - 1
        edges.append(int(max(first + 1, min(by_visits, by_entries, K))))
    return np.array(edges)


def slice_chunk(shard: Shard, weights: Weights, first: int, last: int) -> ChunkData:
    """Patients first..last as CPU tensors of the kernel's types, scaled."""
    import torch

    v0, v1 = int(shard.offsets[first]), int(shard.offsets[last])
    n0, n1 = int(shard.indptr[v0]), int(shard.indptr[v1])
    data, norms = np.empty(n1 - n0, np.float32), np.zeros(last - first)
    starts = shard.indptr[shard.offsets[first : last + 1]] - n0
    scale_patients(shard.data[n0:n1], starts, weights.scale[first:last], data, norms)
    arrays = {
        "data": data,
        "indices": shard.indices[n0:n1].astype(np.int32, copy=True),
        "indptr": (shard.indptr[v0 : v1 + 1] - n0).astype(np.int32),
        "offsets": (shard.offsets[first : last + 1] - v0).astype(np.int32),
        "norms": norms,
        "mu": np.array(weights.mu[first:last], np.float64),
        "influence": np.array(weights.influence[first:last], np.float64),
        "static": np.array(shard.static[first:last], np.float64),
    }
    return ChunkData(**{name: torch.from_numpy(array) for name, array in arrays.items()})


@kernel
def scale_patients(data: Array, starts: Array, scale: Array, out: Array, norms: Array) -> None:
    """Every patient's entries times `scale`, in the precision of `out`, and the sum of their squares."""
    for k in range(norms.size):
        for n in range(starts[k], starts[k + 1]):
            out[n] = scale[k] * np.float64(data[n])
            norms[k] += np.float64(out[n]) ** 2


def feature_major(patients: ChunkData, n_features: int) -> FeatureMajor:
    """The same entries sorted by feature, visits in order, and cut into segments."""
    import torch

    device = patients.data.device
    keys, order = torch.sort(patients.indices, stable=True)
    counts = torch.diff(patients.indptr)
    rows = torch.repeat_interleave(torch.arange(len(counts), dtype=torch.int32, device=device), counts)
    ends = (
        torch.searchsorted(keys, torch.arange(n_features + 1, dtype=torch.int32, device=device)).cpu().numpy()
    )
    segments = -(-np.diff(ends) // SEGMENT)
    features = np.concatenate([[0], np.cumsum(segments)])
    inside = np.arange(features[-1]) - np.repeat(features[:-1], segments)
    starts = np.append(np.repeat(ends[:-1], segments) + SEGMENT * inside, ends[-1])
    # A segment ends where the next one starts, also across features; features without entries have no segment.
    return FeatureMajor(
        rows[order],
        patients.data[order],
        torch.from_numpy(starts.astype(np.int32)).to(device),
        torch.from_numpy(features.astype(np.int32)).to(device),
    )


def upload_model(model: Model, weights: Weights, device: Any) -> DeviceModel:
    """The model on the device, with the weights that all patients share."""
    import torch

    def put(M: Array) -> Any:
        return torch.from_numpy(np.ascontiguousarray(M, np.float64)).to(device)

    H, V, F = (np.asarray(factor, np.float64) for factor in model)
    H_clipped = clip_singular_values(H)
    return DeviceModel(
        VQ=put(np.pad(V, ((0, 0), (0, -V.shape[1] % 4)))).float(),
        V=put(V),
        VV=put(V.T @ V),
        F=put(F),
        FF=put(weights.lam * (F.T @ F)),
        H=put(H_clipped),
        HT=put(H_clipped.T),
        HH=put(H.T @ H),
        poles=put(np.concatenate(zolotarev_poles(POLES, CONDITION_LIMIT))),
        hh=float(np.sum(H**2)),
        H_inv_T=np.linalg.inv(H_clipped.T) if np.isfinite(H_clipped).all() else np.full_like(H, np.nan),
        lam=weights.lam,
        tau=weights.tau,
    )


def clip_singular_values(H: Array) -> Array:
    """H with singular values of at least MIN_SINGULAR_RATIO times the largest, so that it can be inverted."""
    if not np.isfinite(H).all():
        return H
    left, sizes, right = np.linalg.svd(H)
    floor = MIN_SINGULAR_RATIO * sizes[0] if sizes[0] > 0 else 1.0
    return H if sizes[-1] > floor else (left * np.maximum(sizes, floor)) @ right


def new_device_scratch(
    launcher: Any, visits: int, patients: int, segments: int, longest: int, device: Any
) -> DeviceScratch:
    """Scratch for chunks of at most these sizes."""
    import torch

    shape: Shape = launcher.shape
    R, blocks = shape.rank, launcher.blocks

    def empty(*size: int, dtype: Any = torch.float64) -> Any:
        return torch.empty(size, dtype=dtype, device=device)

    return DeviceScratch(
        scaled=empty(visits, R, dtype=torch.float32),
        W=empty(patients, R),
        sums=empty(blocks, shape.sums),
        spare=empty(blocks, (GROUP + 1) * longest, dtype=torch.float32),
        partial=empty(segments, R),
        global_scratch=launcher.global_scratch,
    )


def new_chunk_state(visits: int, patients: int, rank: int, device: Any) -> ChunkState:
    import torch

    return ChunkState(
        torch.zeros((visits, rank), dtype=torch.float32, device=device),
        torch.zeros((visits, rank), dtype=torch.float32, device=device),
        torch.full((patients, -(-rank // 32)), -1, dtype=torch.int32, device=device),
    )


class LaunchOptions(NamedTuple):
    """What the modes of the kernel need besides tensors of the chunk."""

    beta: float = 0.0  # extrapolation of a step
    tol: float = 0.0  # of a projection
    max_iter: int = 0  # of a projection
    scored: Any = None  # patients × N_SCORED, written by "score"


def launch(
    launcher: Any,
    mode: str,
    patients: ChunkData,
    model: DeviceModel,
    state: ChunkState,
    scratch: DeviceScratch,
    options: LaunchOptions,
) -> None:
    """Run the kernel on all patients of a chunk."""
    tensors = patients._asdict() | model._asdict() | scratch._asdict()
    tensors |= {"A": patients.static, "scored": scratch.W if options.scored is None else options.scored}
    tensors |= {"U": state.U, "U_prev": state.U_prev, "passive": state.passive}
    task = Task(
        *(ctypes.c_void_p(tensors[name].data_ptr()) for name in POINTERS),
        model.lam,
        model.tau,
        options.beta,
        options.tol,
        model.hh,
        len(patients.norms),
        patients.static.shape[1],
        options.max_iter,
        scratch.spare.shape[1],
    )
    launcher.patients(mode, task)


def reduce_sums(
    launcher: Any,
    patients: ChunkData,
    features: FeatureMajor,
    scratch: DeviceScratch,
    n_features: int,
) -> list[Any]:
    """The sums of a chunk after a step, as tensors: UU, QHU, XU, WW, AW, and Σpμ‖U‖², Σpτ tr(UᵀLU), Σp‖X‖²."""
    import torch

    R, K = launcher.shape.rank, len(patients.norms)
    blocks = min(launcher.blocks, max(1, K))
    sums = scratch.sums[:blocks].sum(0)
    W = scratch.W[:K]
    XU = torch.zeros((n_features, R), dtype=torch.float64, device=W.device)
    segments = len(features.segments) - 1
    if segments:
        launcher.gather(
            [features.segments, features.rows, features.values, scratch.scaled, scratch.partial], segments
        )
        launcher.combine([features.features, scratch.partial, XU], n_features)
    square = R * R
    weighted = patients.influence[:, None] * W
    return [
        sums[:square].reshape(R, R),
        sums[square : 2 * square].reshape(R, R),
        XU,
        W.T @ weighted,
        patients.static.T @ weighted,
        torch.cat([sums[2 * square :], (patients.influence * patients.norms).sum()[None]]),
    ]


def assemble_sums(parts: list[Array], model: DeviceModel, static_size: float, mu: float) -> Sums:
    """`Sums` from the total of all chunks; `static_size` is Σp‖a‖² of patients with a history, and `mu` is Σpμ."""
    UU, QHU, XU, WW, AW, (energy, rough, size) = parts
    return Sums(
        UU, XU, WW, AW, model.H_inv_T @ QHU, np.array([size, static_size, mu, energy, rough], np.float64)
    )
