"""The patient step on a GPU: the cohort in chunks, kept on the device or streamed to it from host memory."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.cuda import step as kernel
from phenotaste.core.cuda.compile import Launcher
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.engines.base import REBUILD_ITERATIONS, REBUILD_TOL, Engine, EngineSession, Snapshot
from phenotaste.engines.partition import has_history
from phenotaste.errors import InputError

MEMORY_VARIABLE = "PHENOTASTE_DEVICE_MEMORY"  # GiB of the device that may be used
PAPER_MESSAGE = 'objective="paper" runs on the CPU only: use device="cpu".'
MAX_RANK = 256
MEMORY_SHARE = 0.92  # of the device's free memory: the rest is left to other allocations
CHUNKS_IN_FLIGHT = 3  # on the device while streaming: one being uploaded, one computed, one downloaded
TRANSFER_THREADS = 4  # that prepare or download chunks
BUFFER_ITEMS = 2**22  # of a page-locked download buffer
SORT_BYTES = 40  # per entry, while a chunk is sorted by feature
MAX_BLOCKS = 2200  # of threads at a time, on the largest devices


def cuda_available() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


class CudaEngine(Engine):
    """One CUDA GPU: U in float32, the default objective only. `TASTE(device="cuda")` is short for it.

    Cohorts larger than the device's memory are streamed through it; PHENOTASTE_DEVICE_MEMORY limits the GiB it uses.

    Examples
    --------
    >>> from phenotaste.engines import CudaEngine
    >>> CudaEngine()
    CudaEngine()
    """

    def __repr__(self) -> str:
        return "CudaEngine()"

    def open(
        self,
        shard: Shard,
        weights: Weights,
        rank: int,
        n_features: int,
        *,
        exact: bool = False,
        dtype: str = "float64",
        n_jobs: int | None = None,
    ) -> "CudaSession":
        """A session over the patients; U is float32 whatever `dtype` is, and `n_jobs` is ignored."""
        check_cuda(rank, unit=weights.unit)
        return CudaSession(shard, weights, rank, n_features)


def check_cuda(rank: int, *, unit: bool) -> None:
    """Refuse what the GPU cannot do, with what to do instead."""
    if not unit:
        raise InputError(PAPER_MESSAGE)
    if find_spec("torch") is None:
        raise InputError(
            'device="cuda" needs torch, which is not installed: install phenotaste[gpu], or use device="cpu".'
        )
    if not cuda_available():
        raise InputError(
            'device="cuda" needs a CUDA GPU, and torch finds none: use device="cpu", '
            "or check the driver and that torch was built for CUDA."
        )
    if rank > MAX_RANK:
        raise InputError(f'rank={rank} exceeds the maximum of the GPU ({MAX_RANK}): use device="cpu".')


class Chunk(NamedTuple):
    """Patients first..last: their position in the cohort, and their data and U where these are kept."""

    first: int
    last: int
    visits: slice
    patients: kernel.ChunkData
    features: kernel.FeatureMajor | None  # only of chunks that stay on the device
    state: kernel.ChunkState

    def swapped(self) -> "Chunk":
        """U and U_prev exchanged."""
        U, U_prev, passive = self.state
        return self._replace(state=kernel.ChunkState(U_prev, U, passive))


class CudaSession(EngineSession):
    """U in float32 on the GPU, or in host memory where the device's does not suffice.

    No patient's result depends on other patients, and sums are added in a fixed order.
    """

    def __init__(
        self,
        shard: Shard,
        weights: Weights,
        rank: int,
        n_features: int,
        *,
        device: str = "cuda",
        launcher: Any = None,
        memory: float | None = None,
    ) -> None:
        import torch

        self.shard, self.weights, self.rank, self.n_features = shard, weights, rank, n_features
        self.device = torch.device(device)
        self.launcher = launcher or Launcher(rank)
        influence = weights.influence * has_history(shard)
        self.static_size = float(influence @ np.einsum("kp,kp->k", shard.static, shard.static))
        self.mu_sum = float(influence @ weights.mu)
        self.n_patients, self.n_visits = len(shard.offsets) - 1, int(shard.offsets[-1])
        self._scored_last = False
        allowed = memory if memory is not None else self._free_memory()
        self.bytes_needed = resident_bytes(shard, rank)
        self.streaming = self.bytes_needed > allowed
        max_visits = streamed_visits(shard, rank, allowed) if self.streaming else kernel.CHUNK_VISITS
        edges = kernel.chunk_edges(shard, max_visits)
        # Chunks are placed in the background: initialising the model takes seconds too.
        pool = ThreadPoolExecutor(TRANSFER_THREADS)
        self._placed: list[Chunk] = []
        self._pending = [pool.submit(self._place, *ends) for ends in pairwise(edges.tolist())]
        pool.shutdown(wait=False)
        visits, patients = int(np.diff(shard.offsets[edges]).max()), int(np.diff(edges).max())
        entries = int(np.diff(shard.indptr[shard.offsets[edges]]).max())
        segments = entries // kernel.SEGMENT + n_features
        self.scratch = kernel.new_device_scratch(
            self.launcher, visits, patients, segments, longest_history(shard), self.device
        )

    @property
    def chunks(self) -> list[Chunk]:
        """All chunks, once they are placed."""
        import torch

        if self._pending:
            try:
                self._placed, self._pending = [chunk.result() for chunk in self._pending], []
            except torch.OutOfMemoryError:
                raise InputError(
                    f"The GPU ran out of memory, of which {self.bytes_needed / 2**30:.1f} GiB are needed: free some of "
                    f"it, or set {MEMORY_VARIABLE} to the GiB it may use, and the patients are streamed through it."
                ) from None
        return self._placed

    def init_U(self, model: Model) -> None:
        device_model = self._upload_model(model)
        self._scored_last = False
        for chunk in self._pass(read=False):
            chunk.state.passive.fill_(-1)
            self._launch("init", chunk, device_model)

    def init_U_uniform(self, rng: np.random.Generator) -> None:
        raise InputError(PAPER_MESSAGE)

    def step(self, model: Model, beta: float = 0.0) -> Sums:
        device_model = self._upload_model(model)
        self._scored_last = False
        total: list[Any] = []
        for chunk in self._pass(read_prev=beta > 0, by_feature=True, swap=True):
            self._launch("step", chunk, device_model, beta=beta)
            assert chunk.features is not None
            parts = kernel.reduce_sums(
                self.launcher, chunk.patients, chunk.features, self.scratch, self.n_features
            )
            total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
        parts = [part.cpu().numpy() for part in total]
        return kernel.assemble_sums(parts, device_model, self.static_size, self.mu_sum)

    def undo(self) -> None:
        self._placed = [chunk.swapped() for chunk in self.chunks]

    def score(self, model: Model) -> Scored:
        import torch

        device_model, K = self._upload_model(model), self.n_patients
        scored = Scored.allocate(np.empty((self.n_visits, self.rank), np.float32), np.empty((K, self.rank)))
        for chunk in self._pass(read_prev=False):
            size = (chunk.last - chunk.first, kernel.N_SCORED)
            results = torch.empty(size, dtype=torch.float64, device=self.device)
            self._launch("score", chunk, device_model, scored=results)
            W, patients = self.scratch.W[: size[0]], chunk.patients
            static_error = 0.5 * ((patients.static - W @ device_model.F.T) ** 2).sum(1) * (patients.norms > 0)
            rows = slice(chunk.first, chunk.last)
            visits, unique, rough, gaps, present_gaps, present_sizes = results.T
            terms = [visits, device_model.lam * static_error, unique, rough]
            loss = patients.influence[:, None] * torch.stack(terms, 1)
            found = (W, loss, visits, static_error, gaps, present_gaps, present_sizes)
            for target, tensor in zip(scored[1:], found, strict=True):
                target[rows] = tensor.cpu().numpy()
            download(chunk.state.U, scored.U[chunk.visits])
        self._scored_last = True
        return scored

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        self._project(model, tol, max_iter)
        return self.score(model)

    def enable_snapshots(self, owner: str) -> None:
        """Nothing to prepare: the arrays are the snapshot."""

    def snapshot(self) -> Snapshot:
        """Copies of the arrays in host memory."""
        arrays = {
            "U": np.empty((self.n_visits, self.rank), np.float32),
            "passive": np.empty((self.n_patients, -(-self.rank // 32)), np.int32),
        }
        if not self._scored_last:
            arrays["U_prev"] = np.empty_like(arrays["U"])
        for chunk in self.chunks:
            for name, rows, tensor in state_parts(chunk):
                if name in arrays:
                    download(tensor, arrays[name][rows])
        return Snapshot({}, arrays)

    def restore(self, snapshot: Snapshot) -> bool:
        import torch

        shapes = {"U": (self.n_visits, self.rank), "passive": (self.n_patients, -(-self.rank // 32))}
        if any(getattr(snapshot.arrays.get(name), "shape", None) != shape for name, shape in shapes.items()):
            return False
        for chunk in self.chunks:
            for name, rows, tensor in state_parts(chunk):
                if name in snapshot.arrays:
                    tensor.copy_(torch.from_numpy(np.array(snapshot.arrays[name][rows])))
        self._scored_last = False
        return True

    def rebuild(self, model: Model) -> None:
        self._project(model, REBUILD_TOL, REBUILD_ITERATIONS)

    def _project(self, model: Model, tol: float, max_iter: int) -> None:
        device_model = self._upload_model(model)
        self._scored_last = False
        for chunk in self._pass(read=False):
            chunk.state.passive.fill_(-1)
            self._launch("project", chunk, device_model, tol=tol, max_iter=max_iter)

    def _upload_model(self, model: Model) -> kernel.DeviceModel:
        return kernel.upload_model(model, self.weights, self.device)

    def _launch(self, mode: str, chunk: Chunk, model: kernel.DeviceModel, **options: Any) -> None:
        settings = kernel.LaunchOptions(**options)
        kernel.launch(self.launcher, mode, chunk.patients, model, chunk.state, self.scratch, settings)

    def _free_memory(self) -> float:
        import torch

        setting = os.environ.get(MEMORY_VARIABLE, "")
        if setting:
            return parse_gib(setting) * 2**30
        if self.device.type != "cuda":
            return float("inf")
        torch.cuda.empty_cache()
        return MEMORY_SHARE * torch.cuda.mem_get_info(self.device)[0]

    def _place(self, first: int, last: int) -> Chunk:
        """A chunk where it is kept: on the device, or in page-locked memory that the device can copy from."""
        patients = kernel.slice_chunk(self.shard, self.weights, first, last)
        visits = slice(int(self.shard.offsets[first]), int(self.shard.offsets[last]))
        home = "cpu" if self.streaming else self.device
        state = kernel.new_chunk_state(visits.stop - visits.start, last - first, self.rank, home)
        if self.streaming:
            return Chunk(first, last, visits, self._pin(patients), None, self._pin(state))
        patients = kernel.ChunkData(*(part.to(self.device) for part in patients))
        return Chunk(first, last, visits, patients, kernel.feature_major(patients, self.n_features), state)

    def _pin(self, parts: Any) -> Any:
        return type(parts)(*(part.pin_memory() for part in parts)) if self.device.type == "cuda" else parts

    def _pass(
        self, *, read: bool = True, read_prev: bool = True, by_feature: bool = False, swap: bool = False
    ) -> Iterator[Chunk]:
        """Every chunk on the device, in order; changes to its state are kept, with U and U_prev swapped on request.

        `read` and `read_prev` say whether the contents of U and U_prev are needed.
        """
        if not self.streaming:
            yield from self.chunks
        else:
            yield from self._stream(read, read_prev and read, by_feature, swap)
        if swap:
            self._placed = [chunk.swapped() for chunk in self.chunks]

    def _stream(self, read: bool, read_prev: bool, by_feature: bool, swap: bool) -> Iterator[Chunk]:
        """Chunks in turn: while one is computed, the next is uploaded and the previous one downloaded."""
        uploads, downloads = CopyStream(self.device), CopyStream(self.device)
        pending: list[Callable[[], None]] = []
        following = self._upload(self.chunks[0], read, read_prev, uploads) if self.chunks else None
        for n, home in enumerate(self.chunks):
            assert following is not None
            uploads.wait_for_copies()
            chunk = following
            if len(pending) >= CHUNKS_IN_FLIGHT - 1:
                pending.pop(0)()
            following = (
                self._upload(self.chunks[n + 1], read, read_prev, uploads)
                if n + 1 < len(self.chunks)
                else None
            )
            if by_feature:
                chunk = chunk._replace(features=kernel.feature_major(chunk.patients, self.n_features))
            yield chunk
            downloads.wait_for_compute()
            with downloads.active():
                changed = (home.state.U_prev, chunk.state.U_prev) if swap else (home.state.U, chunk.state.U)
                for target, source in (changed, (home.state.passive, chunk.state.passive)):
                    target.copy_(source, non_blocking=True)
                    downloads.hold(source)
            pending.append(downloads.synchronizer())
        for synchronize in pending:
            synchronize()

    def _upload(self, home: Chunk, read: bool, read_prev: bool, stream: "CopyStream") -> Chunk:
        import torch

        def upload(part: Any, copy: bool = True) -> Any:
            tensor = torch.empty(part.shape, dtype=part.dtype, device=self.device)
            if copy:
                tensor.copy_(part, non_blocking=True)
            return tensor

        with stream.active():
            patients = kernel.ChunkData(*(upload(part) for part in home.patients))
            U, U_prev, passive = home.state
            state = kernel.ChunkState(upload(U, read), upload(U_prev, read_prev), upload(passive))
        stream.hand_over(*patients, *state)
        return home._replace(patients=patients, state=state)


def state_parts(chunk: Chunk) -> list[tuple[str, slice, Any]]:
    """Name, rows in the cohort and tensor of what a chunk keeps from one step to the next."""
    patients = slice(chunk.first, chunk.last)
    U, U_prev, passive = chunk.state
    return [("U", chunk.visits, U), ("U_prev", chunk.visits, U_prev), ("passive", patients, passive)]


class CopyStream:
    """A CUDA stream for copies, concurrent with the one that computes; stream operations are no-ops on the CPU."""

    def __init__(self, device: Any) -> None:
        import torch

        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def active(self) -> AbstractContextManager[object]:
        import torch

        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def wait_for_copies(self) -> None:
        """Computation from here on waits for the copies so far."""
        import torch

        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def wait_for_compute(self) -> None:
        """Copies from here on wait for the computation so far."""
        import torch

        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())

    def hold(self, tensor: Any) -> None:
        """The tensor's memory is not given to others before these copies are done."""
        if self.stream is not None:
            tensor.record_stream(self.stream)

    def hand_over(self, *tensors: Any) -> None:
        """Copied here, used by what computes."""
        import torch

        if self.stream is not None:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream())

    def synchronizer(self) -> Callable[[], None]:
        """A call that waits until everything copied so far is there."""
        import torch

        if self.stream is None:
            return lambda: None
        event = torch.cuda.Event()
        event.record(self.stream)
        return event.synchronize


def download(source: Any, target: Array) -> None:
    """Copy from the device into pageable memory through page-locked buffers: several times faster than directly."""
    import torch

    if source.device.type != "cuda":
        torch.from_numpy(target).copy_(source)
        return
    rows = max(1, BUFFER_ITEMS // max(1, target.shape[1]))

    def copy(first: int) -> None:
        part = source[first : first + rows]
        buffer = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        buffer.copy_(part)
        target[first : first + rows] = buffer.numpy()

    with ThreadPoolExecutor(TRANSFER_THREADS) as pool:
        list(pool.map(copy, range(0, len(target), rows)))


def parse_gib(setting: str) -> float:
    try:
        return float(setting)
    except ValueError:
        raise InputError(f"{MEMORY_VARIABLE} must be a number of GiB: set it to one, or unset it.") from None


def visit_bytes(shard: Shard, rank: int) -> float:
    """Bytes on the device per visit, with its entries and static features, while it is processed."""
    visits, K = max(1, int(shard.offsets[-1])), len(shard.offsets) - 1
    entries = len(shard.data) / visits
    patients = K / visits * 8 * (5 * rank + shard.static.shape[1] + 16)
    return 12 * rank + 8 + entries * (16 + SORT_BYTES) + patients


def resident_bytes(shard: Shard, rank: int) -> int:
    """Bytes for all patients on the device at once, with scratch for one chunk."""
    visits, K = int(shard.offsets[-1]), len(shard.offsets) - 1
    patients = K * 8 * (shard.static.shape[1] + rank // 32 + 5)
    scratch = min(visits, kernel.CHUNK_VISITS) * visit_bytes(shard, rank)
    return int(visits * (8 * rank + 8) + 16 * len(shard.data) + patients + scratch) + base_bytes(shard, rank)


def longest_history(shard: Shard) -> int:
    return int(np.diff(shard.offsets).max(initial=1))


def base_bytes(shard: Shard, rank: int) -> int:
    """Bytes that the thread blocks need, whatever the number of patients."""
    return 2**26 + MAX_BLOCKS * (16 * rank**2 + 4 * (kernel.GROUP + 1) * longest_history(shard))


def streamed_visits(shard: Shard, rank: int, allowed: float) -> int:
    """The maximum number of visits of a streamed chunk; refused if not even the longest history fits."""
    each = (CHUNKS_IN_FLIGHT + 1) * visit_bytes(shard, rank)
    longest, base = longest_history(shard), base_bytes(shard, rank)
    max_visits = int(min((allowed - base) / each, kernel.CHUNK_VISITS))
    if max_visits < longest:
        needed = (base + longest * each) / 2**30
        raise InputError(
            f"The GPU has {allowed / 2**30:.2f} GiB free and at least {needed:.2f} GiB are needed: free some of it, "
            'fit fewer phenotypes, or use device="cpu".'
        )
    return max_visits
