"""The patient step on cohorts larger than memory: courses in memory-mapped files, pages dropped behind the work."""

import hashlib
import os
import re
import secrets
import shutil
from contextlib import AbstractContextManager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np

from phenotaste.core.init import NMF_PATIENTS
from phenotaste.core.kernels.driver import cross_product_gaps
from phenotaste.core.kernels.simd import whole
from phenotaste.core.loop import Mark
from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.engines.cuda import Figures
from phenotaste.engines.threads import (
    PIECE_VISITS,
    REBUILD_PASSES,
    REBUILD_TOL,
    Threads,
    number_of_blocks,
    piece_edges,
)
from phenotaste.errors import InputError
from phenotaste.runs.resources import available_cores
from phenotaste.storage import mapped

PROGRAM = 450 * 10**6  # measured: this program with its libraries and compiled kernels, before any patient
BARE_PROGRAM = 250 * 10**6  # measured: the same before the kernels are loaded, which is when a start is drawn
NMF_ENTRY_BYTES = 70  # measured: for each entry of the patients that an NMF start looks at
SLACK = 64 * 10**6  # the start's sample, and what a disk brings between two looks at the memory
BETWEEN_LOOKS = 128 * 10**6  # measured: up to 100 MB came from the system's cache before anybody could look
PATIENT_BYTES = 64  # weights, norms, offsets and short-lived copies of them
SMALLEST_PIECE = 512  # visits: smaller ones cost more calls than they save memory
AT_ONCE = 3  # pieces of a thread in memory: the last on its way out, the one at work, the next on its way in
CHAPTER_VISITS = 2**20  # courses are checked, and where they are torn rebuilt, by so many visits
COURSES = re.compile(r"courses-[0-9a-f]{16}\.bin")


class Disk:
    """`TASTE(engine=Disk("work", memory="4GB"))`: a fit within so much memory, bit for bit what it is without.

    Parameters
    ----------
    work : folder for the courses, which are about patients: only you can read it. Made if it is not there.
    memory : what the process may hold, such as "4GB"; too little is refused with what is needed.
    checkpoint : `phenotaste.engines.checkpoint.Checkpoint`, to go on after an interruption; its folder must be `work`.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.engines.disk import Disk
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> here = TASTE(rank=4, max_iter=5, random_state=0).fit(cohort)
    >>> there = TASTE(rank=4, max_iter=5, random_state=0, engine=Disk("work", memory="2GB")).fit(cohort)
    >>> bool((there.W_ == here.W_).all())
    True
    """

    def __init__(
        self, work: str | os.PathLike[str], memory: str | int = "4GB", checkpoint: Any = None
    ) -> None:
        self.work, self.memory, self.checkpoint = work, memory, checkpoint

    def around(self) -> AbstractContextManager[None]:
        """What holds from before the cohort is looked at until the model is fitted."""
        memory = mapped.parse_bytes(self.memory)
        return mapped.evict_above(max(memory - BETWEEN_LOOKS, int(0.8 * memory)))

    def room(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An array that needs no memory."""
        return mapped.create_mapped(shape, dtype, self._folder())

    def open(
        self,
        cohort: Any,
        aligned: Any,
        weights: Weights,
        rank: int,
        *,
        exact: bool,
        dtype: str,
        n_jobs: int | None,
    ) -> "OnDisk":
        shard, threads = aligned.shard, n_jobs or available_cores()
        work = Work.of(
            shard.offsets, cohort.visits, shard.static.shape[1], rank, np.dtype(dtype).itemsize, threads
        )
        folder, memory = self._folder(), mapped.parse_bytes(self.memory)
        mapped.evict_all()  # what the cohort's checks brought in does not count
        try:
            work.visits_of_a_piece(memory)
        except InputError:
            remove_if_empty(folder)
            raise
        files = Files(folder, self.checkpoint is not None)
        return OnDisk(files, work, memory, shard, weights, rank, exact=exact, dtype=dtype, n_jobs=threads)

    def _folder(self) -> Path:
        folder = Path(self.work)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or "the system refused").lower()
            raise InputError(
                f"{folder} cannot be used to work in: {reason}; choose another folder."
            ) from None
        return folder


class Work(NamedTuple):
    """The size of a fit, and what it needs in memory and on disk."""

    patients: int
    visits: int
    longest: int  # visits of one patient
    a_visit: float  # bytes: its entries and its courses, now and before
    columns: int  # temporal and static
    rank: int
    itemsize: int
    threads: int

    @classmethod
    def of(
        cls, offsets: Array, entries: Any, n_static: int, rank: int, itemsize: int, threads: int
    ) -> "Work":
        """From the offsets of the patients and their visits as CSR."""
        K, visits = len(offsets) - 1, max(int(offsets[-1]), 1)
        data = len(entries.data) * (entries.data.itemsize + entries.indices.itemsize) + 8 * K * n_static
        longest = int(np.diff(offsets).max(initial=1))
        a_visit = 2 * rank * itemsize + 8 + data / visits
        return cls(K, visits, longest, a_visit, entries.shape[1] + n_static, rank, itemsize, threads)

    def beside_pieces(self) -> int:
        """What a fit holds however small its pieces are."""
        R = whole(self.rank)
        blocks = number_of_blocks(self.visits, self.columns, self.rank)
        sums = blocks * 8 * R * (self.columns + 4 * R + 1)
        desks = self.threads * 8 * R * (8 * self.longest + 24 * R)
        program = max(mapped.resident_bytes(), PROGRAM)
        return program + PATIENT_BYTES * self.patients + sums + desks + SLACK

    def pieces(self, visits: int) -> int:
        """What pieces of so many visits hold."""
        return int(AT_ONCE * self.threads * self.a_visit * visits)

    def least_memory(self) -> int:
        return self.beside_pieces() + self.pieces(max(SMALLEST_PIECE, self.longest))

    def visits_of_a_piece(self, memory: int) -> int:
        """How many visits a thread may have in memory at a time; too little memory is refused."""
        if memory < self.least_memory():
            raise InputError(
                f"{mapped.format_bytes(memory)} of memory is too little for this fit: "
                f"allow it at least {mapped.format_bytes(self.least_memory())}, or use fewer threads."
            )
        room = (memory - self.beside_pieces()) // self.pieces(1)
        return min(room, PIECE_VISITS)

    def disk(self, n_starts: int, *, checkpoints: bool) -> int:
        """Bytes of the files: courses now and before, twice so with checkpoints, once more for the best start."""
        copies = 2 + (2 if checkpoints else 0) + (1 if n_starts > 1 else 0)
        scores = self.patients * 8 * (self.rank + 3) * (2 if n_starts > 1 else 1)
        return copies * self.visits * self.rank * self.itemsize + scores + 8 * self.visits


class Files:
    """Files of courses in the work folder. One goes when its array does, unless a checkpoint has it."""

    def __init__(self, folder: Path, named: bool) -> None:
        self.folder, self.named = folder, named
        self.held: dict[str, int] = {}  # names that checkpoints have, and how many
        self.alive: dict[int, str] = {}  # of arrays in use, by address
        self.closing = False  # the folder goes with its last file

    def new(self, shape: tuple[int, ...], dtype: Any) -> Array:
        name = f"courses-{secrets.token_hex(8)}.bin" if self.named else None
        array = mapped.create_mapped(shape, dtype, self.folder, name)
        return array if name is None else self._known(array, name)

    def again(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array | None:
        """The file of a checkpoint, or None where it is not what it was."""
        path = self.folder / name
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if (
            not COURSES.fullmatch(name)
            or path.is_symlink()
            or not path.is_file()
            or path.stat().st_size != size
        ):
            return None
        self.held.setdefault(name, 1)
        return self._known(mapped.open_mapped(path, shape, dtype), name)

    def sweep(self) -> None:
        """Remove what an earlier process left, unless a checkpoint has it."""
        for path in self.folder.iterdir():
            if COURSES.fullmatch(path.name) and path.name not in {*self.held, *self.alive.values()}:
                path.unlink()

    def name_of(self, array: Array | None) -> str | None:
        return None if array is None else self.alive.get(mapped.data_address(array))

    def is_held(self, array: Array | None) -> bool:
        return self.name_of(array) in self.held

    def hold(self, name: str) -> None:
        self.held[name] = self.held.get(name, 0) + 1

    def release(self, name: str) -> None:
        left = self.held.pop(name, 0) - 1
        if left > 0:
            self.held[name] = left
        elif name not in self.alive.values():
            self._remove(name)

    def _known(self, array: Array, name: str) -> Array:
        if array.base is None:  # no visits at all
            return array
        place = mapped.data_address(array)
        self.alive[place] = name
        finalize(array.base, self._gone, place)
        return array

    def _gone(self, place: int) -> None:
        name = self.alive.pop(place)
        if name not in self.held:
            self._remove(name)

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)
        if self.closing:
            self.close()

    def close(self) -> None:
        self.closing = True
        remove_if_empty(self.folder)


def remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


class OnDisk(Threads):
    """Threads whose courses, scores and losses lie in files; their pages go when the work has passed them."""

    def __init__(
        self, files: Files, work: Work, memory: int, shard: Shard, weights: Weights, rank: int, **options: Any
    ) -> None:
        self.files, self.work, self.memory = files, work, memory
        self.piece_visits = work.visits_of_a_piece(memory)
        self._shape = (int(shard.offsets[-1]), rank), np.dtype(options["dtype"])
        self._lost: Array | None = None  # chapters that could not be restored
        super().__init__(shard, weights, rank, courses=np.zeros((0, rank), options["dtype"]), **options)
        self._of_patients: list[Array] = []  # what `score` writes
        self._spare: list[Array] = []  # room for that
        self._handed_out = True  # there are no courses yet

    def check_start(self, kind: str) -> None:
        """Refuse at once a start that the memory could not hold."""
        sampled = NMF_ENTRY_BYTES * len(self.shard.data) * min(1.0, NMF_PATIENTS / max(self.work.patients, 1))
        if kind == "nmf" and BARE_PROGRAM + sampled > self.memory:
            raise InputError(
                f"The NMF start of this fit needs {mapped.format_bytes(BARE_PROGRAM + sampled)} of memory: "
                'allow it that, or use init="random".'
            )

    def reserve(self, n_starts: int) -> None:
        """Refuse at once what the disk could not hold later."""
        needed = self.work.disk(n_starts, checkpoints=self.files.named)
        free = shutil.disk_usage(self.files.folder).free
        if needed > free:
            raise InputError(
                f"{self.files.folder} has {mapped.format_bytes(free)} left and the courses need "
                f"{mapped.format_bytes(needed)}: free some of the disk, or work elsewhere."
            )
        # A fit that has come to its end shall not fail for want of them.
        K = len(self.shard.offsets) - 1
        self._spare = [self._empty(K, self.rank), self._empty(K, 3), self._empty(K, 3)]

    def step(self, model: Model, reach: float = 0.0) -> Sums:
        kept = self.previous
        if kept is not None and self.files.is_held(kept):
            self.previous = self._room_for_courses()  # a checkpoint needs the old ones as they are
            if reach > 0:
                self._copy(kept, self.previous)
        return super().step(model, reach)

    def score(self, model: Model, W: Array | None = None) -> Scored:
        self._of_patients = []
        try:
            return super().score(model, W)
        finally:
            self._of_patients = []

    def measure(self, model: Model, patients: Scored, counted: Array) -> Figures:
        """What `metrics.rmse` and `metrics.cpi` look at, to the bit, without holding it."""
        weights, courses = self.weights, self.courses
        self.weights, self.courses = Weights(1.0, weights.mu), patients.U
        try:
            visits, static, _ = self.score(model, patients.W).loss.sum(axis=0)
        finally:
            self.weights, self.courses = weights, courses
        gaps, HH, offsets = np.empty(len(counted)), model.H.T @ model.H, self.shard.offsets
        for first, last in pairwise(self._edges(self.piece_visits)):
            rows = slice(offsets[first], offsets[last])
            here = offsets[first : last + 1] - rows.start
            here.flags.writeable = False  # as they are elsewhere, so that nothing is compiled again
            cross_product_gaps(here, patients.U[rows], HH, gaps[first:last])
            mapped.evict(patients.U[rows])
        return Figures(float(visits), float(static), float(gaps[counted].sum()))

    def mark(self) -> Mark:
        """The names of the files, with a checksum for every chapter of them."""
        token: dict[str, Any] = {}
        for role, array in (
            ("courses", self.courses),
            ("previous", None if self._handed_out else self.previous),
        ):
            name = self.files.name_of(array)
            if array is not None and name is not None:
                mapped.flush(array)
                token[role] = {"name": name, "sha256": self._digests(array)}
                self.files.hold(name)
        return Mark(token, {})

    def restore(self, mark: Mark) -> bool:
        self.previous, self._handed_out, chapters = None, False, self._edges(CHAPTER_VISITS)
        self._lost = np.zeros(len(chapters) - 1, bool)
        for role, entry in mark.token.items():
            found = self.files.again(str(entry["name"]), *self._shape)
            if found is None:
                self._lost[:] = True
                continue
            wrong = [
                mine != theirs for mine, theirs in zip(self._digests(found), entry["sha256"], strict=True)
            ]
            self._lost |= np.array(wrong, bool)
            setattr(self, role, found)
        return not self._lost.any()

    def rebuild(self, model: Model) -> None:
        """Lost chapters by projection; the rest of the courses is copied, for a checkpoint may need it as it is."""
        assert self._lost is not None
        lost, starts = self._lost, self._edges(CHAPTER_VISITS)[:-1]
        old = None if lost.all() else self.courses
        self.courses, self.previous, self._handed_out = self._room_for_courses(), None, False
        if old is not None:
            self._copy(old, self.courses)

        def wanted(first: int, last: int) -> bool:
            touched = slice(
                np.searchsorted(starts, first, "right") - 1, np.searchsorted(starts, last, "left")
            )
            return bool(lost[touched].any())

        self._project(model, REBUILD_TOL, REBUILD_PASSES, wanted)

    def release(self, mark: Mark) -> None:
        for entry in mark.token.values():
            self.files.release(str(entry["name"]))

    def sweep(self) -> None:
        """Remove what an earlier process left and no checkpoint has."""
        self.files.sweep()

    def close(self) -> None:
        """Let go of all files but those that somebody still has, or a checkpoint; an empty folder goes too."""
        self.previous = None
        self.courses, self._handed_out = np.zeros((0, self.rank), self._shape[1]), True
        self.files.close()

    def _room_for_courses(self) -> Array:
        return self.files.new(*self._shape)

    def _empty(self, *shape: int) -> Array:
        spare = [n for n, array in enumerate(self._spare) if array.shape == shape]
        array = (
            self._spare.pop(spare[0]) if spare else mapped.create_mapped(shape, np.float64, self.files.folder)
        )
        self._of_patients.append(array)
        return array

    def _ahead(self, first: int, last: int) -> None:
        for part in self._parts(first, last):
            mapped.prefetch(part)

    def _behind(self, first: int, last: int) -> None:
        # Once more for the piece before: what was written then may have reached the disk by now.
        back = int(np.searchsorted(self.shard.offsets, self.shard.offsets[first] - self.piece_visits))
        for part in self._parts(min(back, first), last):
            mapped.evict(part)

    def _parts(self, first: int, last: int) -> list[Array]:
        """All that lies in files of patients first..last."""
        shard = self.shard
        visits = slice(int(shard.offsets[first]), int(shard.offsets[last]))
        entries = slice(int(shard.indptr[visits.start]), int(shard.indptr[visits.stop]))
        found = [shard.data[entries], shard.indices[entries], shard.indptr[visits], shard.static[first:last]]
        found += [array[visits] for array in (self.courses, self.previous) if array is not None]
        return found + [array[first:last] for array in self._of_patients]

    def _copy(self, old: Array, new: Array) -> None:
        offsets = self.shard.offsets
        for first, last in pairwise(self._edges(self.piece_visits)):
            rows = slice(offsets[first], offsets[last])
            new[rows] = old[rows]
            mapped.evict(old[rows])
            mapped.evict(new[rows])

    def _digests(self, array: Array) -> list[str]:
        """SHA-256 of every chapter."""
        offsets = self.shard.offsets

        def digest(first: int, last: int) -> str:
            found = hashlib.sha256()
            for one, other in pairwise(piece_edges(offsets, first, last, self.piece_visits).tolist()):
                part = array[offsets[one] : offsets[other]]
                found.update(part.reshape(-1).view(np.uint8).data)
                mapped.evict(part)
            return found.hexdigest()

        edges = self._edges(CHAPTER_VISITS)
        return list(self._pool.map(digest, edges[:-1], edges[1:]))

    def _edges(self, most: int) -> list[int]:
        offsets = self.shard.offsets
        edges: list[int] = piece_edges(offsets, 0, len(offsets) - 1, most).tolist()
        return edges
