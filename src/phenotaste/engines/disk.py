"""The patient step on cohorts larger than memory: U in memory-mapped files, pages evicted after use."""

import hashlib
import os
import re
import secrets
import shutil
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import DTypeLike

from phenotaste.core.init import NMF_ROWS
from phenotaste.core.kernels.simd import round_up
from phenotaste.core.records import N_TERMS, Array, Model, Scored, Shard, Sums, Weights
from phenotaste.engines.base import REBUILD_ITERATIONS, REBUILD_TOL, Engine, Snapshot
from phenotaste.engines.partition import CHUNK_VISITS, chunk_edges, number_of_blocks
from phenotaste.engines.starts import SAMPLE_PATIENTS
from phenotaste.engines.threads import ThreadSession
from phenotaste.errors import InputError
from phenotaste.runs.resources import available_cores
from phenotaste.storage import mapped

# Bytes, measured.
PROCESS_BYTES = 450 * 10**6  # this program with its libraries and compiled kernels, before any patient
BARE_PROCESS_BYTES = 250 * 10**6  # the same before the kernels are loaded, which is when V is initialised
NMF_ENTRY_BYTES = 70  # for each entry of the patients that an initialisation samples
PATIENT_BYTES = 96  # weights, sizes, offsets and short-lived copies of them
RESERVE_BYTES = 64 * 10**6  # the initialisation's sample, and what is paged in between two memory checks
PAGE_CACHE_BYTES = 128 * 10**6  # up to 100 MB came from the system's cache between two memory checks

MIN_CHUNK_VISITS = 512  # smaller chunks cost more calls than they save memory
CHUNKS_IN_MEMORY = 3  # per thread: one being evicted, one being processed, one being prefetched
CHECKSUM_VISITS = 2**20  # U is verified, and rebuilt where it is damaged, in chunks of this many visits
COURSES_FILE = re.compile(r"courses-[0-9a-f]{16}\.bin")


class DiskEngine(Engine):
    """Threads with a memory limit: U lies in memory-mapped files. The result is the same, to the bit.

    Parameters
    ----------
    work : folder for U, which is patient data: readable by its owner only. Created if it does not exist.
    memory : limit for the resident memory of the process, such as "4GB"; an insufficient limit is refused.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.engines import DiskEngine
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> short = {"rank": 4, "max_iter": 5, "n_init": 1, "random_state": 0}
    >>> in_memory = TASTE(**short).fit(cohort)
    >>> on_disk = TASTE(**short, engine=DiskEngine("work", memory="2GB")).fit(cohort)
    >>> bool((on_disk.W_ == in_memory.W_).all())
    True
    """

    def __init__(self, work: str | os.PathLike[str], memory: str | int = "4GB") -> None:
        self.work, self.memory = work, memory

    def __repr__(self) -> str:
        return f"DiskEngine({os.fspath(self.work)!r}, memory={self.memory!r})"

    def memory_limit(self) -> AbstractContextManager[None]:
        memory = mapped.parse_bytes(self.memory)
        return mapped.evict_above(max(memory - PAGE_CACHE_BYTES, int(0.8 * memory)))

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return mapped.create_mapped(shape, dtype, self._folder())

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
    ) -> "DiskSession":
        threads = n_jobs or available_cores()
        size = FitSize.of(
            shard.offsets,
            shard.data.nbytes + shard.indices.nbytes,
            (n_features, shard.static.shape[1]),
            rank,
            np.dtype(dtype).itemsize,
            threads,
        )
        folder, memory = self._folder(), mapped.parse_bytes(self.memory)
        mapped.evict_all()  # pages that validating the cohort brought in
        try:
            size.check_memory(memory)
        except InputError:
            remove_if_empty(folder)
            raise
        return DiskSession(CoursesFiles(folder), size, memory, shard, weights, np.dtype(dtype), exact)

    def _folder(self) -> Path:
        folder = Path(self.work)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or "the system refused").lower()
            raise InputError(
                f"{folder} cannot be used as work folder: {reason}; choose another one."
            ) from None
        return folder


class FitSize(NamedTuple):
    """The size of a fit, and what it needs in memory and on disk."""

    patients: int
    visits: int
    longest: int  # visits of one patient
    visit_bytes: float  # its entries, and its rows of U and U_prev
    n_features: int
    n_static: int
    rank: int
    itemsize: int
    threads: int

    @classmethod
    def of(
        cls,
        offsets: Array,
        entry_bytes: int,
        columns: tuple[int, int],
        rank: int,
        itemsize: int,
        threads: int,
    ) -> "FitSize":
        """`entry_bytes` are the bytes of all entries, `columns` the numbers of temporal and static features."""
        K, visits = len(offsets) - 1, max(int(offsets[-1]), 1)
        longest = int(np.diff(offsets).max(initial=1))
        visit_bytes = 2 * rank * itemsize + 8 + (entry_bytes + 8 * K * columns[1]) / visits
        return cls(K, visits, longest, visit_bytes, *columns, rank, itemsize, threads)

    def fixed_bytes(self) -> int:
        """Memory that a fit needs whatever the size of its chunks."""
        R, columns = round_up(self.rank), self.n_features + self.n_static
        sums = number_of_blocks(self.visits, columns, self.rank) * 8 * R * (columns + 4 * R + 1)
        scratch = self.threads * 8 * R * (8 * self.longest + 24 * R)
        process = max(mapped.resident_bytes(), PROCESS_BYTES)
        return process + PATIENT_BYTES * self.patients + sums + scratch + RESERVE_BYTES

    def chunk_bytes(self, visits: int) -> int:
        """Memory for chunks of this many visits on all threads."""
        return int(CHUNKS_IN_MEMORY * self.threads * self.visit_bytes * visits)

    def min_memory(self) -> int:
        return self.fixed_bytes() + self.chunk_bytes(max(MIN_CHUNK_VISITS, self.longest))

    def check_memory(self, memory: int) -> None:
        if memory < self.min_memory():
            raise InputError(
                f"{mapped.format_bytes(memory)} of memory is too little for this fit: "
                f"allow it at least {mapped.format_bytes(self.min_memory())}, or use fewer threads."
            )

    def chunk_visits(self, memory: int) -> int:
        """The number of visits that a thread may hold in memory at a time."""
        return min((memory - self.fixed_bytes()) // self.chunk_bytes(1), CHUNK_VISITS)

    def init_bytes(self, init: str, entries: int) -> float:
        """Memory for the sample from which V is initialised, for short fits with its courses."""
        patients, visits = max(self.patients, 1), self.visits
        sampled = {"short_fits": SAMPLE_PATIENTS / patients, "nmf": NMF_ROWS / patients}
        sampled["nmf_visits"] = NMF_ROWS / visits
        share = min(1.0, sampled.get(init, 0.0))
        nmf = NMF_ENTRY_BYTES * share * entries
        if init != "short_fits":
            return BARE_PROCESS_BYTES + nmf
        return PROCESS_BYTES + nmf + share * visits * 2 * self.rank * np.dtype(np.float64).itemsize

    def disk(self, n_init: int, *, checkpoints: bool) -> int:
        """Bytes of files: U and U_prev, both again with checkpoints, and U of the best of several starts."""
        copies = 2 + (2 if checkpoints else 0) + (1 if n_init > 1 else 0)
        scores = self.patients * scored_bytes(self.rank) * (2 if n_init > 1 else 1)
        return copies * self.visits * self.rank * self.itemsize + scores + 8 * self.visits


def scored_bytes(rank: int) -> int:
    """Bytes of a patient's entries in `Scored`, without U."""
    return 8 * (rank + N_TERMS + len(Scored._fields) - 3)


class CoursesFiles:
    """Files of U in the work folder. A file is removed with its array, unless a snapshot holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.named = False  # files keep a name, so that another process can find them
        self._holds: dict[str, int] = {}  # number of snapshots that hold each file
        self._in_use: dict[int, str] = {}  # files of arrays in use, by address
        self._closed = False

    def create(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        name = f"courses-{secrets.token_hex(8)}.bin" if self.named else None
        array = mapped.create_mapped(shape, dtype, self.folder, name)
        return array if name is None else self._register(array, name)

    def reopen(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array | None:
        """The file of a snapshot, or None if it is missing or has another size."""
        path = self.folder / name
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if (
            not COURSES_FILE.fullmatch(name)
            or path.is_symlink()
            or not path.is_file()
            or path.stat().st_size != size
        ):
            return None
        self.hold(name)
        return self._register(mapped.open_mapped(path, shape, dtype), name)

    def remove_stale(self) -> None:
        """Remove files of earlier processes that no snapshot holds."""
        for path in self.folder.iterdir():
            if COURSES_FILE.fullmatch(path.name) and path.name not in {*self._holds, *self._in_use.values()}:
                path.unlink()

    def name_of(self, array: Array | None) -> str | None:
        return None if array is None else self._in_use.get(mapped.data_address(array))

    def is_held(self, array: Array | None) -> bool:
        return self.name_of(array) in self._holds

    def hold(self, name: str) -> None:
        self._holds[name] = self._holds.get(name, 0) + 1

    def release(self, name: str) -> None:
        left = self._holds.pop(name, 0) - 1
        if left > 0:
            self._holds[name] = left
        elif self._closed or name not in self._in_use.values():
            self._remove(name)

    def close(self) -> None:
        """Remove all files that no snapshot holds, and the folder with its last file.

        An array whose file is removed stays usable: the system frees the space when the array is.
        """
        self._closed = True
        for name in {*self._in_use.values()} - {*self._holds}:
            self._remove(name)
        remove_if_empty(self.folder)

    def _register(self, array: Array, name: str) -> Array:
        if array.base is None:  # no visits
            return array
        address = mapped.data_address(array)
        self._in_use[address] = name
        finalize(array.base, self._on_freed, address)
        return array

    def _on_freed(self, address: int) -> None:
        name = self._in_use.pop(address)
        if name not in self._holds:
            self._remove(name)

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        if self._closed:
            remove_if_empty(self.folder)


def remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


class DiskSession(ThreadSession):
    """Threads whose U, scores and losses lie in files; pages are evicted after use."""

    def __init__(
        self,
        files: CoursesFiles,
        size: FitSize,
        memory: int,
        shard: Shard,
        weights: Weights,
        dtype: np.dtype[np.floating],
        exact: bool,
    ) -> None:
        self.files, self.size, self.memory = files, size, memory
        self.chunk_visits = size.chunk_visits(memory)
        self._shape, self._dtype = (int(shard.offsets[-1]), size.rank), dtype
        self._damaged: Array | None = None  # checksum chunks that could not be restored
        no_U = np.zeros((0, size.rank), dtype)
        super().__init__(shard, weights, no_U, size.n_features, exact=exact, n_jobs=size.threads)
        self._score_arrays: list[Array] = []  # that `score` is writing
        self._reserved: list[Array] = []  # files for them, created before the fit
        self._U_returned = True  # there is no U yet

    def check_init_memory(self, init: str) -> None:
        needed = self.size.init_bytes(init, len(self.shard.data))
        if needed > self.memory:
            raise InputError(
                f"The initialisation of this fit needs {mapped.format_bytes(needed)} of memory: allow it that, "
                'or use init="random".'
            )

    def check_disk(self, n_init: int) -> None:
        needed = self.size.disk(n_init, checkpoints=self.files.named)
        free = shutil.disk_usage(self.files.folder).free
        if needed > free:
            raise InputError(
                f"{self.files.folder} has {mapped.format_bytes(free)} left and the courses need "
                f"{mapped.format_bytes(needed)}: free disk space, or choose another work folder."
            )
        # Created now, so that a fit does not fail at its end for want of space.
        K = self.n_patients
        self._reserved = [self._allocate(shape) for shape in ((K, self.rank), (K, N_TERMS), *(5 * [(K,)]))]

    def step(self, model: Model, beta: float = 0.0) -> Sums:
        previous = self.U_prev
        if previous is not None and self.files.is_held(previous):
            self.U_prev = self._new_U()  # a snapshot needs the old file unchanged
            if beta > 0:
                self._copy(previous, self.U_prev)
        return super().step(model, beta)

    def score(self, model: Model, W: Array | None = None) -> Scored:
        self._score_arrays = []
        try:
            return super().score(model, W)
        finally:
            self._score_arrays = []

    def enable_snapshots(self, owner: str) -> None:
        """Files keep their names from here on, so that a later process finds them."""
        self.files.named = True

    def snapshot(self) -> Snapshot:
        """The names of the files, with a checksum of every chunk."""
        token: dict[str, object] = {}
        for role, array in (("U", self.U), ("U_prev", None if self._U_returned else self.U_prev)):
            name = self.files.name_of(array)
            if array is not None and name is not None:
                mapped.flush(array)
                token[role] = {"name": name, "sha256": self._checksums(array)}
                self.files.hold(name)
        return Snapshot(token, {})

    def restore(self, snapshot: Snapshot) -> bool:
        self._damaged = np.zeros(len(self._edges(CHECKSUM_VISITS)) - 1, bool)
        arrays: dict[str, Array] = {}
        for role, name, checksums in file_entries(snapshot):
            array = self.files.reopen(name, self._shape, self._dtype)
            if array is None:
                self._damaged[:] = True
                continue
            changed = [now != then for now, then in zip(self._checksums(array), checksums, strict=True)]
            self._damaged |= np.array(changed, bool)
            arrays[role] = array
        self.U_prev, self._U_returned = arrays.get("U_prev"), False
        self.U = arrays.get("U", self.U)
        return not self._damaged.any()

    def rebuild(self, model: Model) -> None:
        """Project the damaged chunks; the others are copied, since a snapshot may need their file unchanged."""
        assert self._damaged is not None
        damaged, starts = self._damaged, self._edges(CHECKSUM_VISITS)[:-1]
        restored = None if damaged.all() else self.U
        self.U, self.U_prev, self._U_returned = self._new_U(), None, False
        if restored is not None:
            self._copy(restored, self.U)

        def is_damaged(first: int, last: int) -> bool:
            first_chunk = np.searchsorted(starts, first, "right") - 1
            return bool(damaged[first_chunk : np.searchsorted(starts, last, "left")].any())

        self._project(model, REBUILD_TOL, REBUILD_ITERATIONS, is_damaged)

    def discard(self, snapshot: Snapshot) -> None:
        for _, name, _ in file_entries(snapshot):
            self.files.release(name)

    def remove_stale_files(self) -> None:
        self.files.remove_stale()

    def close(self) -> None:
        """Close all files except those that a caller or a snapshot holds; an empty folder is removed."""
        super().close()
        self.U, self.U_prev = np.zeros((0, self.rank), self._dtype), None
        self._U_returned = True
        self._reserved = []
        self.files.close()

    def _new_U(self) -> Array:
        return self.files.create(self._shape, self._dtype)

    def _allocate(self, shape: int | tuple[int, ...]) -> Array:
        shape = shape if isinstance(shape, tuple) else (shape,)
        reserved = [n for n, array in enumerate(self._reserved) if array.shape == shape]
        if reserved:
            array = self._reserved.pop(reserved[0])
        else:
            array = mapped.create_mapped(shape, np.float64, self.files.folder)
        self._score_arrays.append(array)
        return array

    def _prefetch(self, first: int, last: int) -> None:
        for part in self._mapped_parts(first, last):
            mapped.prefetch(part)

    def _evict(self, first: int, last: int) -> None:
        # The previous chunk once more: what was dirty then may have reached the disk by now.
        previous = int(np.searchsorted(self.shard.offsets, self.shard.offsets[first] - self.chunk_visits))
        for part in self._mapped_parts(min(previous, first), last):
            mapped.evict(part)

    def _mapped_parts(self, first: int, last: int) -> list[Array]:
        """Everything of patients first..last that lies in files."""
        shard = self.shard
        visits = slice(int(shard.offsets[first]), int(shard.offsets[last]))
        entries = slice(int(shard.indptr[visits.start]), int(shard.indptr[visits.stop]))
        parts = [shard.data[entries], shard.indices[entries], shard.indptr[visits]]
        parts.append(shard.static[first:last])
        parts += [array[visits] for array in (self.U, self.U_prev) if array is not None]
        return parts + [array[first:last] for array in self._score_arrays]

    def _copy(self, source: Array, target: Array) -> None:
        offsets = self.shard.offsets
        for first, last in pairwise(self._edges(self.chunk_visits)):
            rows = slice(offsets[first], offsets[last])
            target[rows] = source[rows]
            mapped.evict(source[rows])
            mapped.evict(target[rows])

    def _checksums(self, array: Array) -> list[str]:
        """SHA-256 of every checksum chunk."""
        offsets = self.shard.offsets

        def checksum(first: int, last: int) -> str:
            digest = hashlib.sha256()
            for begin, end in pairwise(chunk_edges(offsets, first, last, self.chunk_visits).tolist()):
                part = array[offsets[begin] : offsets[end]]
                digest.update(part.reshape(-1).view(np.uint8).data)
                mapped.evict(part)
            return digest.hexdigest()

        edges = self._edges(CHECKSUM_VISITS)
        return self._on_threads(checksum, edges[:-1], edges[1:])

    def _edges(self, max_visits: int) -> list[int]:
        edges: list[int] = chunk_edges(self.shard.offsets, 0, self.n_patients, max_visits).tolist()
        return edges


def file_entries(snapshot: Snapshot) -> list[tuple[str, str, list[str]]]:
    """Role, file name and checksums of every file that a snapshot names."""
    entries = []
    for role, entry in snapshot.token.items():
        if not isinstance(entry, dict):
            raise InputError("The checkpoint does not name its files: delete it, and start again.")
        entries.append((role, str(entry["name"]), [str(checksum) for checksum in entry["sha256"]]))
    return entries
