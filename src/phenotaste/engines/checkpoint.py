"""Checkpoints: the state of a fit on disk, from which it resumes after an interruption.

Two generations are kept, so that a process killed while writing one leaves the other. Checksums detect damaged files.
The snapshots of U are patient data: the folder is readable by its owner only.
"""

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.loop import Fit, Outcome, State, restarted_state
from phenotaste.core.records import Array, Model, Scored, Shard
from phenotaste.engines.base import EngineSession, Snapshot
from phenotaste.errors import InputError
from phenotaste.storage import tensors
from phenotaste.storage.locks import FolderLock

STATE_KIND, SNAPSHOT_KIND = "fit-checkpoint", "fit-snapshot"
GENERATIONS = ("a", "b")
HASH_BYTES = 2**24  # hashed at a time


class Checkpoint:
    """Where and how often a fit writes checkpoints, and whether it resumes from one.

    Parameters
    ----------
    folder : created with the first checkpoint, readable by its owner only.
    minutes : time from one checkpoint to the next. Shorter fits write none.
    every : number of iterations from one checkpoint to the next, instead of `minutes`.
    resume : resume from the checkpoint in the folder. Without it, a folder that has one is refused.
    keep : keep the checkpoint after the fit, until `remove` is called.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.engines import Checkpoint
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> settings = {"rank": 4, "max_iter": 5, "random_state": 0}
    >>> interrupted = TASTE(**settings, checkpoint=Checkpoint("checkpoint", every=2, keep=True))
    >>> interrupted.set_params(callback=lambda progress: progress.iteration == 3).fit(cohort).outcome_
    'stopped'
    >>> resumed = TASTE(**settings, checkpoint=Checkpoint("checkpoint", resume=True)).fit(cohort)
    >>> bool((resumed.W_ == TASTE(**settings).fit(cohort).W_).all())
    True
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        minutes: float = 10.0,
        every: int | None = None,
        resume: bool = False,
        keep: bool = False,
    ) -> None:
        self.folder, self.minutes, self.every = folder, minutes, every
        self.resume, self.keep = resume, keep
        self._discard_kept: list[Callable[[], None]] = []  # snapshots of a finished fit that are still kept

    def __repr__(self) -> str:
        return f"Checkpoint({os.fspath(self.folder)!r})"

    def __deepcopy__(self, memo: object) -> "Checkpoint":
        """Settings only: the files of a fit stay with the object that the fit used."""
        return Checkpoint(
            self.folder, minutes=self.minutes, every=self.every, resume=self.resume, keep=self.keep
        )

    def exists(self) -> bool:
        """Whether the folder has a checkpoint to resume from.

        Examples
        --------
        >>> from phenotaste.engines import Checkpoint
        >>> Checkpoint("no-such-folder").exists()
        False
        """
        return any((Path(self.folder) / f"state-{letter}").is_dir() for letter in GENERATIONS)

    def remove(self) -> None:
        """Remove the checkpoint with the snapshots of its fit, and the folder if it is then empty.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.engines import Checkpoint
        >>> checkpoint = Checkpoint("checkpoint", every=2, keep=True)
        >>> model = TASTE(rank=4, max_iter=5, checkpoint=checkpoint).fit(simulate.recovery(n_patients=20)[0])
        >>> existed = checkpoint.exists()
        >>> checkpoint.remove()
        >>> existed, checkpoint.exists()
        (True, False)
        """
        for letter in GENERATIONS:
            remove_generation(Path(self.folder), letter)
        while self._discard_kept:
            self._discard_kept.pop()()
        with suppress(OSError):
            Path(self.folder).rmdir()


class Generation(NamedTuple):
    """The content of one generation."""

    letter: str
    number: int  # counts the checkpoints of a fit
    start: int
    seeds: Array
    state: State
    token: dict[str, object]
    best: Fit | None  # the best start so far; its patients are scored when it is restored
    best_token: dict[str, object] | None


class CheckpointWriter:
    """Writes the checkpoints of one fit, and finds the one to resume from."""

    def __init__(
        self, settings: Checkpoint, session: EngineSession, identity: Callable[[], dict[str, Any]]
    ) -> None:
        self.settings, self.session, self.folder = settings, session, Path(settings.folder)
        self._read_identity = identity
        self._identity: dict[str, Any] | None = (
            None  # of the fit, read when first needed: it hashes the cohort
        )
        self._seeds: Array = np.zeros(0, np.int64)
        self._number, self._last_write = 0, time.monotonic()
        self._resumed: tuple[int, State] | None = None
        self._best: tuple[Fit, Snapshot] | None = None
        self._snapshots: list[Snapshot] = []  # that the generations on disk refer to
        self._lock = FolderLock(self.folder)
        session.enable_snapshots(hashlib.sha256(os.path.realpath(self.folder).encode()).hexdigest())

    def begin(self, seeds: Array) -> tuple[Array, int, Fit | None]:
        """The seeds of the starts, the start to begin with, and the best of those before it."""
        self._seeds = np.asarray(seeds, np.int64)
        exists = self.settings.exists()
        if exists and not self.settings.resume:
            raise InputError(
                f"{self.folder} has the checkpoint of an interrupted fit: resume it, or delete the folder."
            )
        if self.folder.is_dir():
            self._acquire_lock()
        generation = self._restore_newest() if exists else None
        if generation is None and self.settings.resume:
            warnings.warn(
                f"{self.folder} has no usable checkpoint: the fit starts from the beginning.", stacklevel=2
            )
        if generation is None:
            self.session.remove_stale_files()
            return self._seeds, 0, None
        self._seeds, self._number = generation.seeds, generation.number
        self._resumed = generation.start, generation.state
        return generation.seeds, generation.start, None if self._best is None else self._best[0]

    def resumed_state(self, start: int) -> State | None:
        """The state in which a start was interrupted, if it was."""
        if self._resumed is None or self._resumed[0] != start:
            return None
        state, self._resumed = self._resumed[1], None
        return state

    def record_best(self, fit: Fit) -> None:
        """Keep the result of a start that ended lower than all before, while others follow."""
        previous, self._best = self._best, (fit, self.session.snapshot())
        self._discard_unless_written(previous)

    def maybe_write(self, start: int, state: State) -> None:
        """Write a checkpoint if one is due; called after every iteration."""
        every, elapsed = self.settings.every, time.monotonic() - self._last_write
        due = len(state.losses) % every == 0 if every else elapsed >= 60 * self.settings.minutes
        if due:
            self.write(start, state)

    def write(self, start: int, state: State) -> None:
        """Replace the older generation; if that fails the fit continues with a warning."""
        snapshot = None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._acquire_lock()
            snapshot = self.session.snapshot()
            self._write_generation(start, state, snapshot)
        except (InputError, OSError) as error:
            if snapshot is not None:
                self.session.discard(snapshot)
            warnings.warn(
                f"The checkpoint of iteration {len(state.losses)} could not be written, the fit continues: {error}",
                stacklevel=2,
            )
        else:
            self._replace_snapshots(snapshot)
        self._last_write = time.monotonic()

    def complete(self) -> None:
        """The fit is complete: remove its checkpoint, or leave that to `Checkpoint.remove`."""
        self.settings._discard_kept = [partial(self.session.discard, old) for old in self._snapshots]
        if not self.settings.keep:
            self.settings.remove()

    def close(self) -> None:
        """Release the folder, and what no written checkpoint refers to."""
        self._discard_unless_written(self._best)
        self._best = None
        self._lock.release()

    # --- writing -----------------------------------------------------------------------------------------

    def _write_generation(self, start: int, state: State, snapshot: Snapshot) -> None:
        letter = GENERATIONS[(self._number + 1) % 2]
        remove_generation(self.folder, letter)
        files = {"current": snapshot.arrays}
        arrays = {"seeds": self._seeds, "losses": np.array(state.losses)}
        arrays["scalars"] = np.array([state.beta, state.next_beta, state.best_loss])
        arrays |= model_arrays("model", state.model) | model_arrays("model_prev", state.model_prev)
        meta = {"number": self._number + 1, "start": start, "snapshot": snapshot.token, **self._identify()}
        if self._best is not None:
            best, best_snapshot = self._best
            files["best"] = best_snapshot.arrays
            arrays |= model_arrays("best", best.model) | {"best.losses": np.array(best.losses)}
            meta |= {"best_outcome": str(best.outcome), "best_snapshot": best_snapshot.token}
        if any(files.values()):
            tensors.write(self.folder / f"snapshot-{letter}", SNAPSHOT_KIND, files, {})
        tensors.write(self.folder / f"state-{letter}", STATE_KIND, {"state": arrays}, meta)
        self._number += 1

    def _discard_unless_written(self, best: tuple[Fit, Snapshot] | None) -> None:
        if best is not None and not any(best[1] is snapshot for snapshot in self._snapshots):
            self.session.discard(best[1])

    def _replace_snapshots(self, snapshot: Snapshot) -> None:
        """Discard the snapshot of the older generation: its U could be rebuilt from its model."""
        current = [snapshot] if self._best is None else [snapshot, self._best[1]]
        for old in self._snapshots:
            if not any(old is other for other in current):
                self.session.discard(old)
        self._snapshots = current

    def _identify(self) -> dict[str, Any]:
        if self._identity is None:
            self._identity = self._read_identity()
        return self._identity

    def _acquire_lock(self) -> None:
        if not self._lock.acquire():
            raise InputError(f"{self.folder} is in use by another fit: wait for it, or use another folder.")

    # --- reading -----------------------------------------------------------------------------------------

    def _restore_newest(self) -> Generation | None:
        """Restore the session and the best start from the newest intact generation; losses are warned about."""
        generations = self._read_generations()
        damaged: list[Snapshot] = []
        for generation in generations:
            if self._restore(generation):
                if damaged:
                    warn_older(f"The courses of the last checkpoint in {self.folder} are damaged", generation)
                break
            damaged += self._snapshots
        else:
            if not generations:
                return None
            generation = self._rebuild(generations[0])
        for snapshot in damaged:
            self.session.discard(snapshot)
        self.session.remove_stale_files()
        return generation

    def _rebuild(self, generation: Generation) -> Generation:
        """Restore a generation as far as possible, and project the U that it lacks."""
        self._restore(generation)
        self.session.rebuild(generation.state.model)
        warnings.warn(
            f"Courses in {self.folder} were missing or damaged and are rebuilt from the model: the fit resumes from "
            f"iteration {len(generation.state.losses)}, and its result will differ in the last digits.",
            stacklevel=3,
        )
        return generation._replace(state=restarted_state(generation.state))

    def _read_generations(self) -> list[Generation]:
        """All readable generations, the newest first; a checkpoint of another fit is refused."""
        generations, damaged = [], False
        for letter in GENERATIONS:
            if not (self.folder / f"state-{letter}").exists():
                continue
            try:
                files, meta = tensors.read(self.folder / f"state-{letter}", STATE_KIND, mmap=False)
                generation = parse_generation(letter, files["state"], meta)
            except (InputError, KeyError, TypeError, ValueError):
                damaged = True
                continue
            self._check_identity(meta)
            generations.append(generation)
        generations.sort(key=lambda generation: -generation.number)
        if damaged and generations:
            warn_older(f"A checkpoint in {self.folder} is damaged", generations[0])
        return generations

    def _check_identity(self, meta: Mapping[str, Any]) -> None:
        identity = self._identify()
        settings = identity["settings"].items()
        differing = sorted(name for name, value in settings if meta["settings"].get(name) != value)
        if differing:
            raise InputError(
                f"{self.folder} has the checkpoint of a fit with another {differing[0]}: use the same settings, "
                "or delete the folder to start again."
            )
        if meta["cohort"] != identity["cohort"]:
            raise InputError(
                f"{self.folder} has the checkpoint of a fit of another cohort: use that cohort, "
                "or delete the folder to start again."
            )

    def _restore(self, generation: Generation) -> bool:
        """Whether every U is as it was written."""
        arrays: Mapping[str, Mapping[str, Array]] = {}
        if (self.folder / f"snapshot-{generation.letter}").exists():
            with suppress(InputError):  # then the session finds its arrays missing
                path = self.folder / f"snapshot-{generation.letter}"
                arrays = tensors.read(path, SNAPSHOT_KIND, mmap=False)[0]
        intact, self._best = True, None
        if generation.best is not None and generation.best_token is not None:
            snapshot = Snapshot(generation.best_token, dict(arrays.get("best", {})))
            intact = self.session.restore(snapshot)
            if not intact:
                self.session.rebuild(generation.best.model)
            patients = self.session.score(generation.best.model)
            self._best = generation.best._replace(patients=patients), snapshot
        snapshot = Snapshot(generation.token, dict(arrays.get("current", {})))
        intact = self.session.restore(snapshot) and intact
        self._snapshots = [snapshot] if self._best is None else [snapshot, self._best[1]]
        return intact


def parse_generation(letter: str, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> Generation:
    beta, next_beta, best_loss = arrays["scalars"].tolist()
    losses = tuple(arrays["losses"].tolist())
    model, model_prev = model_of(arrays, "model"), model_of(arrays, "model_prev")
    best = None
    if "best.H" in arrays:
        unscored = Scored.allocate(np.zeros((0, 0)), np.zeros((0, 0)))
        best_losses = arrays["best.losses"].tolist()
        best = Fit(model_of(arrays, "best"), unscored, best_losses, Outcome(meta["best_outcome"]))
    return Generation(
        letter,
        int(meta["number"]),
        int(meta["start"]),
        arrays["seeds"],
        State(model, model_prev, beta, next_beta, losses, best_loss),
        dict(meta["snapshot"]),
        best,
        meta.get("best_snapshot"),
    )


def model_arrays(name: str, model: Model) -> dict[str, Array]:
    return {f"{name}.{letter}": factor for letter, factor in zip("HVF", model, strict=True)}


def model_of(arrays: Mapping[str, Array], name: str) -> Model:
    return Model(*(arrays[f"{name}.{letter}"] for letter in "HVF"))


def remove_generation(folder: Path, letter: str) -> None:
    """Remove a generation, its state first: without it the rest is ignored."""
    for name in (f"state-{letter}", f"snapshot-{letter}"):
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)


def warn_older(problem: str, generation: Generation) -> None:
    warnings.warn(
        f"{problem}: the fit resumes from an older one, of iteration {len(generation.state.losses)}.",
        stacklevel=4,
    )


def shard_digest(shard: Shard, *names: Array | None) -> str:
    """SHA-256 of a cohort's data as a fit sees it."""
    digest = hashlib.sha256()
    for array in shard:
        digest.update(f"{array.dtype} {array.shape};".encode())
        flat = array.reshape(-1).view(np.uint8).data
        for first in range(0, len(flat), HASH_BYTES):
            digest.update(flat[first : first + HASH_BYTES])
    for column in names:
        digest.update(repr(None if column is None else column.tolist()).encode())
    return digest.hexdigest()
