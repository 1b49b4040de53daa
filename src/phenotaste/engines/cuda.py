"""The patient step on a GPU: the cohort in pieces, kept on the device or streamed to it from this machine's memory."""

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
from phenotaste.core.kernels.driver import patient_norms
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.errors import InputError

MEMORY_SETTING = "PHENOTASTE_DEVICE_MEMORY"  # GiB of the device that may be used
MOST_RANK = 256
SHARE = 0.92  # of the device's free memory: the rest is left to what others allocate
IN_FLIGHT = 3  # pieces on the device at once while streaming: one coming, one worked on, one going
AT_ONCE = 4  # threads that prepare pieces, or fetch them
CHUNK = 2**22  # numbers in a buffer on their way back
SORTING = 40  # bytes an entry while a piece is turned


def cuda_available() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def need_cuda(rank: int, exact: bool) -> None:
    """Refuse what the GPU cannot do, with what to do instead."""
    if find_spec("torch") is None:
        raise InputError(
            'device="cuda" needs torch, which is not installed: install phenotaste[gpu], or use device="cpu".'
        )
    if not cuda_available():
        raise InputError(
            'device="cuda" needs a CUDA GPU, and torch finds none: use device="cpu", '
            "or check the driver and that torch was built for CUDA."
        )
    if exact:
        raise InputError('solver="bpp" runs on the CPU only: use solver="cd" with device="cuda".')
    if rank > MOST_RANK:
        raise InputError(f'rank={rank} is more than the GPU takes ({MOST_RANK}): use device="cpu".')


class Piece(NamedTuple):
    """Some of the patients: where they are in the cohort, and their data where they live."""

    first: int
    last: int
    visits: slice
    patients: kernel.ChunkData
    turned: kernel.FeatureMajor | None  # only where the piece stays on the device
    courses: kernel.ChunkState


class Figures(NamedTuple):
    """What a fit reports of the whole cohort beside its losses, from the last look at all patients."""

    visits: float  # ½‖X − U diag(w) Vᵀ‖²
    static: float  # ½‖A − W Fᵀ‖²
    gaps: float  # Σ ‖UᵀU − HᵀH‖² of patients with a history


class Device:
    """All courses in float32 on the GPU, or in this machine's memory where the GPU's does not suffice.

    A patient's numbers depend on nobody else's, and the sums are added up in a fixed order.
    """

    def __init__(
        self,
        shard: Shard,
        weights: Weights,
        rank: int,
        *,
        n_features: int,
        device: str = "cuda",
        launcher: Any = None,
        memory: float | None = None,
    ) -> None:
        import torch

        self.shard, self.weights, self.rank, self.n_features = shard, weights, rank, n_features
        self.device = torch.device(device)
        self.launcher = launcher or Launcher(rank)
        self.scale = kernel.data_scale(shard.data)
        # Norms of the data as the device has them, so that losses are those of the same data.
        rounded = shard._replace(data=in_units(shard.data, self.scale))
        self.norms = patient_norms(rounded) * self.scale**2
        self.size = (float(self.norms.sum()), float(np.sum(shard.static**2)), float(weights.mu.sum()))
        self.figures: Figures | None = None
        allowed = memory if memory is not None else self._free()
        self.bytes_needed = bytes_resident(shard, rank)
        self.streaming = self.bytes_needed > allowed
        most = visits_of_a_piece(shard, rank, allowed) if self.streaming else kernel.CHUNK_VISITS
        edges = kernel.chunk_edges(shard, most)
        # The pieces are put in place beside whatever comes next: the model that a fit starts from takes seconds too.
        pool = ThreadPoolExecutor(AT_ONCE)
        self._placed: list[Piece] = []
        self._coming = [pool.submit(self._place, rounded, *edge) for edge in pairwise(edges.tolist())]
        pool.shutdown(wait=False)
        visits, patients = int(np.diff(shard.offsets[edges]).max()), int(np.diff(edges).max())
        entries = int(np.diff(shard.indptr[shard.offsets[edges]]).max())
        stretches = entries // kernel.SEGMENT + n_features
        self.room = kernel.new_device_scratch(self.launcher, visits, patients, stretches, self.device)
        self.patients, self.visits = len(shard.offsets) - 1, int(shard.offsets[-1])

    @property
    def pieces(self) -> list[Piece]:
        """All patients, once they are in place."""
        import torch

        if self._coming:
            try:
                self._placed, self._coming = [piece.result() for piece in self._coming], []
            except torch.OutOfMemoryError:
                raise InputError(
                    f"The GPU ran out of memory, of which {self.bytes_needed / 2**30:.1f} GiB are needed: free some of "
                    f"it, or set {MEMORY_SETTING} to the GiB it may use, and the patients are streamed through it."
                ) from None
        return self._placed

    def start(self, model: Model) -> None:
        shared = self._share(model)
        for piece in self._pass(read=False):
            piece.courses.passive.fill_(-1)
            self._run("init", piece, shared)

    def start_uniform(self, rng: np.random.Generator) -> None:
        """The paper's start: every entry of U uniform; patients without history stay at zero."""
        import torch

        bounds = self.shard.indptr[self.shard.offsets]
        for piece in self._pass(read=False):
            piece.courses.passive.fill_(-1)
            offsets = self.shard.offsets[piece.first : piece.last + 1]
            U = rng.random((offsets[-1] - offsets[0], self.rank), dtype=np.float32)
            nothing = np.diff(bounds[piece.first : piece.last + 1]) == 0
            U[np.repeat(nothing, np.diff(offsets))] = 0.0
            piece.courses.U.copy_(torch.from_numpy(U))

    def step(self, model: Model, reach: float = 0.0) -> Sums:
        """The patient step over all patients, from courses extrapolated by `reach` times their last move."""
        shared = self._share(model)
        total: list[Any] = []
        for piece in self._pass(before=reach > 0, turned=True, swap=True):
            self._run("step", piece, shared, beta=reach)
            assert piece.turned is not None
            parts = kernel.reduce_sums(
                self.launcher, piece.patients, piece.turned, shared, self.room, self.n_features
            )
            total = [mine + theirs for mine, theirs in zip(total, parts, strict=True)] if total else parts
        return kernel.assemble_sums([part.cpu().numpy() for part in total], shared, self.scale, self.size)

    def undo(self) -> None:
        """Back to the courses before the last step."""
        self._placed = [swapped(piece) for piece in self.pieces]

    def score(self, model: Model) -> Scored:
        """Scores and losses at the courses as they are; leaves the cohort's figures."""
        import torch

        shared = self._share(model)
        U = np.empty((self.visits, self.rank), np.float32)
        W, loss = np.empty((self.patients, self.rank)), np.empty((self.patients, 3))
        gaps, static = 0.0, 0.0
        for piece in self._pass(before=False):
            K = piece.last - piece.first
            found = torch.empty((K, 3), dtype=torch.float64, device=self.device)
            self._run("score", piece, shared, loss=found)
            scores = self.room.W[:K]
            apart = 0.5 * ((piece.patients.static - scores @ shared.F.T) ** 2).sum(1)
            here = slice(piece.first, piece.last)
            W[here] = scores.cpu().numpy() * self.scale
            losses = found.cpu().numpy()
            loss[here, 0], loss[here, 2] = losses[:, 0], losses[:, 1]
            loss[here, 1] = (shared.lam * apart).cpu().numpy()
            gaps += float(losses[self.norms[here] > 0, 2].sum())
            static += float(apart.sum())
            download(piece.courses.U, U[piece.visits])
        loss *= self.scale**2
        self.figures = Figures(float(loss[:, 0].sum()), static, gaps)
        return Scored(U, W, loss)

    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        """Courses and scores under a fixed model, each patient iterated on its own until it settles."""
        shared = self._share(model)
        for piece in self._pass(read=False):
            piece.courses.passive.fill_(-1)
            self._run("project", piece, shared, tol=tol, max_iter=max_iter)
        return self.score(model)

    def _share(self, model: Model) -> kernel.DeviceModel:
        return kernel.upload_model(model, self.weights.lam, self.scale, self.device)

    def _run(self, mode: str, piece: Piece, shared: kernel.DeviceModel, **more: Any) -> None:
        kernel.launch(self.launcher, mode, piece.patients, shared, piece.courses, self.room, **more)

    def _free(self) -> float:
        import torch

        setting = os.environ.get(MEMORY_SETTING, "")
        if setting:
            return gib_of(setting) * 2**30
        if self.device.type != "cuda":
            return float("inf")
        torch.cuda.empty_cache()
        return SHARE * torch.cuda.mem_get_info(self.device)[0]

    def _place(self, rounded: Shard, first: int, last: int) -> Piece:
        """A piece where it will live: on the device, or in page-locked memory that the device can copy from."""
        patients = kernel.slice_chunk(rounded, self.weights, self.norms, first, last, self.scale)
        visits = slice(int(self.shard.offsets[first]), int(self.shard.offsets[last]))
        home = "cpu" if self.streaming else self.device
        courses = kernel.new_chunk_state(visits.stop - visits.start, last - first, self.rank, home)
        if self.streaming:
            return Piece(first, last, visits, self._pinned(patients), None, self._pinned(courses))
        patients = kernel.ChunkData(*(part.to(self.device) for part in patients))
        return Piece(first, last, visits, patients, kernel.feature_major(patients, self.n_features), courses)

    def _pinned(self, parts: Any) -> Any:
        return type(parts)(*(part.pin_memory() for part in parts)) if self.device.type == "cuda" else parts

    def _pass(
        self, *, read: bool = True, before: bool = True, turned: bool = False, swap: bool = False
    ) -> Iterator[Piece]:
        """Every piece on the device, in order; what is done to its courses there is kept, swapped where they move.

        `read` and `before` say whether the courses now and before are needed as they were.
        """
        if not self.streaming:
            yield from self.pieces
        else:
            yield from self._stream(read, before and read, turned, swap)
        if swap:
            self._placed = [swapped(piece) for piece in self.pieces]

    def _stream(self, read: bool, before: bool, turned: bool, swap: bool) -> Iterator[Piece]:
        """Pieces in turn: while one is worked on, the next is on its way in and the one before on its way out."""
        coming, going = Side(self.device), Side(self.device)
        waiting: list[Callable[[], None]] = []
        upcoming = self._upload(self.pieces[0], read, before, coming) if self.pieces else None
        for n, home in enumerate(self.pieces):
            assert upcoming is not None
            coming.join()
            piece = upcoming
            if len(waiting) >= IN_FLIGHT - 1:
                waiting.pop(0)()
            upcoming = (
                self._upload(self.pieces[n + 1], read, before, coming) if n + 1 < len(self.pieces) else None
            )
            if turned:
                piece = piece._replace(turned=kernel.feature_major(piece.patients, self.n_features))
            yield piece
            going.follow()
            with going.beside():
                moved = (
                    (home.courses.U_prev, piece.courses.U_prev) if swap else (home.courses.U, piece.courses.U)
                )
                for to, of in (moved, (home.courses.passive, piece.courses.passive)):
                    to.copy_(of, non_blocking=True)
                    going.hold(of)
            waiting.append(going.mark())
        for done in waiting:
            done()

    def _upload(self, home: Piece, read: bool, before: bool, side: "Side") -> Piece:
        import torch

        def fetch(part: Any, wanted: bool = True) -> Any:
            there = torch.empty(part.shape, dtype=part.dtype, device=self.device)
            if wanted:
                there.copy_(part, non_blocking=True)
            return there

        with side.beside():
            patients = kernel.ChunkData(*(fetch(part) for part in home.patients))
            now, other, passive = home.courses
            courses = kernel.ChunkState(fetch(now, read), fetch(other, before), fetch(passive))
        side.hand_over(*patients, *courses)
        return home._replace(patients=patients, courses=courses)


class Side:
    """A stream of copies beside the one that computes; on the CPU, where tests run, nothing is beside anything."""

    def __init__(self, device: Any) -> None:
        import torch

        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def beside(self) -> AbstractContextManager[object]:
        import torch

        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def join(self) -> None:
        """What is computed from here on sees what was copied."""
        import torch

        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)

    def follow(self) -> None:
        """What is copied from here on sees what was computed."""
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

    def mark(self) -> Callable[[], None]:
        """A call that waits until everything copied so far is there."""
        import torch

        if self.stream is None:
            return lambda: None
        event = torch.cuda.Event()
        event.record(self.stream)
        return event.synchronize


def download(source: Any, target: Array) -> None:
    """From the device into ordinary memory, by way of page-locked buffers: several times as fast as directly."""
    import torch

    if source.device.type != "cuda":
        torch.from_numpy(target).copy_(source)
        return
    rows = max(1, CHUNK // max(1, target.shape[1]))

    def fetch(first: int) -> None:
        part = source[first : first + rows]
        buffer = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        buffer.copy_(part)
        target[first : first + rows] = buffer.numpy()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(fetch, range(0, len(target), rows)))


def swapped(piece: Piece) -> Piece:
    now, other, passive = piece.courses
    return piece._replace(courses=kernel.ChunkState(other, now, passive))


def in_units(data: Array, scale: float) -> Array:
    if scale == 1.0 and data.dtype == np.float32:
        return data
    return np.multiply(data, 1 / scale, dtype=data.dtype).astype(np.float32, copy=False)


def gib_of(setting: str) -> float:
    try:
        return float(setting)
    except ValueError:
        raise InputError(f"{MEMORY_SETTING} must be a number of GiB: set it to one, or unset it.") from None


def bytes_of_visits(shard: Shard, rank: int) -> float:
    """Bytes on the device for each visit, entries and static features included, while it is worked on."""
    visits, K = max(1, int(shard.offsets[-1])), len(shard.offsets) - 1
    entries = len(shard.data) / visits
    patients = K / visits * 8 * (5 * rank + shard.static.shape[1] + 8)
    return 12 * rank + 4 + entries * (16 + SORTING) + patients


def bytes_resident(shard: Shard, rank: int) -> int:
    """Bytes for all patients on the device at once, with one piece's room to work in."""
    visits, K = int(shard.offsets[-1]), len(shard.offsets) - 1
    patients = K * 8 * (shard.static.shape[1] + rank // 32 + 4)
    at_work = min(visits, kernel.CHUNK_VISITS) * bytes_of_visits(shard, rank)
    return int(visits * (8 * rank + 4) + 16 * len(shard.data) + patients + at_work) + base_bytes(rank)


def base_bytes(rank: int) -> int:
    """What the blocks take for themselves, whatever the cohort."""
    return 2**26 + 2200 * 8 * 3 * rank**2


def visits_of_a_piece(shard: Shard, rank: int, allowed: float) -> int:
    """How many visits a streamed piece may have; refuses where not even the longest history fits."""
    each = (IN_FLIGHT + 1) * bytes_of_visits(shard, rank)
    longest = int(np.diff(shard.offsets).max(initial=1))
    most = int(min((allowed - base_bytes(rank)) / each, kernel.CHUNK_VISITS))
    if most < longest:
        needed = (base_bytes(rank) + longest * each) / 2**30
        raise InputError(
            f"The GPU has {allowed / 2**30:.2f} GiB to give and at least {needed:.2f} GiB are needed: free some of it, "
            'fit fewer phenotypes, or use device="cpu".'
        )
    return most
