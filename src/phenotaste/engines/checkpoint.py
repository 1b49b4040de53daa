"""Fits that can be gone on with: where a fit stands is kept on disk, and found again after an interruption.

Two generations are kept. One is complete before it counts, and one that is torn or was changed is noticed: then the
other is used. What is kept besides the model, the courses, is about patients: the folder is its owner's alone.
"""

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from phenotaste.core.loop import Engine, Fit, Mark, Outcome, State, begin_again
from phenotaste.core.records import Array, Model, Scored, Shard
from phenotaste.errors import InputError
from phenotaste.storage import tensors

try:
    import fcntl
except ImportError:  # Windows has no advisory locks: there, two fits in one folder are not kept apart
    fcntl = None  # type: ignore[assignment]

KIND, COURSES_KIND = "fit-checkpoint", "fit-courses"
GENERATIONS = ("a", "b")
CHUNK = 2**24


class Checkpoint:
    """Where a fit is kept on its way, how often, and whether to go on from one that is there.

    Parameters
    ----------
    folder : made when the first checkpoint is written; only you can read it.
    minutes : so long after the last checkpoint, or the beginning, the next is written. Shorter fits write none.
    every : or after every so many iterations.
    resume : go on from the checkpoint in the folder. Without, a folder that has one is refused.
    keep : leave it there after the fit, until `finish` is called.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.engines.checkpoint import Checkpoint
    >>> from phenotaste.engines.threads import InMemory
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> settings = {"rank": 4, "max_iter": 5, "random_state": 0}
    >>> broken_off = InMemory(Checkpoint("kept", every=2, keep=True))
    >>> TASTE(**settings, engine=broken_off, callback=lambda now: now.iteration == 3).fit(cohort).outcome_
    'stopped'
    >>> gone_on = TASTE(**settings, engine=InMemory(Checkpoint("kept", resume=True))).fit(cohort)
    >>> bool((gone_on.W_ == TASTE(**settings).fit(cohort).W_).all())
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

    def is_there(self) -> bool:
        """Whether the folder has a checkpoint to go on from.

        Examples
        --------
        >>> from phenotaste.engines.checkpoint import Checkpoint
        >>> Checkpoint("nothing-yet").is_there()
        False
        """
        return any((Path(self.folder) / f"state-{letter}").is_dir() for letter in GENERATIONS)

    def finish(self) -> None:
        """Remove all that a fit left in the folder, and the folder if it is empty then.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.engines.checkpoint import Checkpoint
        >>> from phenotaste.engines.threads import InMemory
        >>> kept = Checkpoint("kept", every=2, keep=True)
        >>> model = TASTE(rank=4, max_iter=5, engine=InMemory(kept)).fit(simulate.recovery(n_patients=20)[0])
        >>> before = kept.is_there()
        >>> kept.finish()
        >>> before, kept.is_there()
        (True, False)
        """
        folder = Path(self.folder)
        for letter in GENERATIONS:
            forget(folder, letter)
        if folder.is_dir():
            for path in folder.glob(f"courses-{'[0-9a-f]' * 16}.bin"):
                path.unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()


class Kept(NamedTuple):
    """What one generation holds."""

    letter: str
    number: int  # which checkpoint of the fit it is
    start: int
    seeds: Array
    state: State
    mark: dict[str, Any]
    best: Fit | None  # the best start so far, its patients still to be found again
    best_mark: dict[str, Any] | None


class Keeper:
    """Writes a fit's checkpoints, and finds them again."""

    def __init__(self, settings: Checkpoint, engine: Engine, identity: Callable[[], dict[str, Any]]) -> None:
        self.settings, self.engine, self.folder = settings, engine, Path(settings.folder)
        self._identity = identity
        self._identified: dict[str, Any] | None = None  # found when first needed: it reads the whole cohort
        self._seeds: Array = np.zeros(0, np.int64)
        self._number, self._began = 0, time.monotonic()
        self._resumed: tuple[int, State] | None = None
        self._best: tuple[Fit, Mark] | None = None
        self._in_use: list[Mark] = []
        self._lock: int | None = None

    def begin(self, seeds: Array) -> tuple[Array, int, Fit | None]:
        """The seeds of the starts, the start to begin with, and the best of those before it."""
        self._seeds = np.asarray(seeds, np.int64)
        there = self.settings.is_there()
        if there and not self.settings.resume:
            raise InputError(
                f"{self.folder} has the checkpoint of a fit that was interrupted: resume it, or delete the folder."
            )
        if self.folder.is_dir():
            self._take_lock()
        kept = self._find() if there else None
        if kept is None and self.settings.resume:
            warnings.warn(
                f"{self.folder} has no checkpoint that can be used: the fit begins anew.", stacklevel=2
            )
        if kept is None:
            self._sweep()
            return self._seeds, 0, None
        self._seeds, self._number = kept.seeds, kept.number
        self._resumed = kept.start, kept.state
        return kept.seeds, kept.start, None if self._best is None else self._best[0]

    def state_of(self, start: int) -> State | None:
        """Where a start was interrupted, if it was."""
        if self._resumed is None or self._resumed[0] != start:
            return None
        state, self._resumed = self._resumed[1], None
        return state

    def better(self, found: Fit) -> None:
        """A start has ended lower than those before, and others follow."""
        self._best = found, self.engine.mark()

    def look(self, start: int, state: State) -> None:
        """After every iteration: is it time?"""
        every, waited = self.settings.every, time.monotonic() - self._began
        due = len(state.losses) % every == 0 if every else waited >= 60 * self.settings.minutes
        if due:
            self.write(start, state)

    def write(self, start: int, state: State) -> None:
        """A new generation in place of the older one; if that fails the fit goes on, and the user is told."""
        mark = None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            mark = self.engine.mark()
            self._write(start, state, mark)
        except (InputError, OSError) as error:
            if mark is not None:
                self.engine.release(mark)
            warnings.warn(
                f"The checkpoint of iteration {len(state.losses)} could not be written, the fit goes on: {error}",
                stacklevel=2,
            )
        else:
            self._now_in_use(mark)
        self._began = time.monotonic()

    def finish(self) -> None:
        """The fit is done."""
        if not self.settings.keep:
            for mark in self._in_use:
                self.engine.release(mark)
            self.settings.finish()

    def let_go(self) -> None:
        """Whether the fit is done or was interrupted: another may have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- writing -----------------------------------------------------------------------------------------

    def _write(self, start: int, state: State, mark: Mark) -> None:
        letter = GENERATIONS[(self._number + 1) % 2]
        best, best_mark = self._best or (None, None)
        forget(self.folder, letter)
        files = {"now": mark.arrays} | ({"best": best_mark.arrays} if best_mark is not None else {})
        if any(files.values()):
            tensors.write(self.folder / f"kept-{letter}", COURSES_KIND, files, {})
        arrays = {"seeds": self._seeds, "losses": np.array(state.losses)}
        arrays["figures"] = np.array([state.reach, state.longer, state.to_beat])
        arrays |= factors("model", state.model) | factors("previous", state.previous)
        meta = {"number": self._number + 1, "start": start, "mark": mark.token, **self._identify()}
        if best is not None and best_mark is not None:
            arrays |= factors("best", best.model) | {"best.losses": np.array(best.losses)}
            meta |= {"best_outcome": str(best.outcome), "best_mark": best_mark.token}
        tensors.write(self.folder / f"state-{letter}", KIND, {"state": arrays}, meta)
        self._number += 1

    def _now_in_use(self, mark: Mark) -> None:
        """The older generation's courses may go: from its model they could be rebuilt."""
        using = [mark] if self._best is None else [mark, self._best[1]]
        for old in self._in_use:
            if not any(old is other for other in using):
                self.engine.release(old)
        self._in_use = using

    def _identify(self) -> dict[str, Any]:
        if self._identified is None:
            self._identified = self._identity()
        return self._identified

    def _take_lock(self) -> None:
        if fcntl is None or self._lock is not None:
            return
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise InputError(
                f"{self.folder} is in use by another fit: wait for it, or work elsewhere."
            ) from None
        except OSError:
            pass  # some cluster file systems have no locks; one fit a folder is then up to the user

    def _sweep(self) -> None:
        sweep = getattr(self.engine, "sweep", None)
        if sweep is not None:
            sweep()

    # --- reading -----------------------------------------------------------------------------------------

    def _find(self) -> Kept | None:
        """The engine and the best start as the newest sound checkpoint has them; what was lost on the way is told."""
        found = self._generations()
        for kept in found:
            if self._restore(kept):
                if kept is not found[0]:
                    tell(f"The courses of the last checkpoint in {self.folder} are damaged", kept)
                self._sweep()
                return kept
        if not found:
            return None
        kept = found[0]
        self._restore(kept)
        self.engine.rebuild(kept.state.model)
        warnings.warn(
            f"Courses in {self.folder} were lost or damaged and are rebuilt from the model: the fit goes on from "
            f"iteration {len(kept.state.losses)}, and will not be to the bit what it would have been.",
            stacklevel=2,
        )
        self._sweep()
        return kept._replace(state=begin_again(kept.state))

    def _generations(self) -> list[Kept]:
        """All that can be read, the newest first; a checkpoint of another fit is refused."""
        found, damaged = [], False
        for letter in GENERATIONS:
            if not (self.folder / f"state-{letter}").exists():
                continue
            try:
                files, meta = tensors.read(self.folder / f"state-{letter}", KIND, mmap=False)
                kept = read_kept(letter, files["state"], meta)
            except (InputError, KeyError, TypeError, ValueError):
                damaged = True
                continue
            self._check_identity(meta)
            found.append(kept)
        found.sort(key=lambda kept: -kept.number)
        if damaged and found:
            tell(f"A checkpoint in {self.folder} is damaged", found[0])
        return found

    def _check_identity(self, meta: Mapping[str, Any]) -> None:
        mine = self._identify()
        other = sorted(
            name for name, value in mine["settings"].items() if meta["settings"].get(name) != value
        )
        if other:
            raise InputError(
                f"{self.folder} has the checkpoint of a fit with another {other[0]}: give the same settings, "
                "or delete the folder to begin anew."
            )
        if meta["cohort"] != mine["cohort"]:
            raise InputError(
                f"{self.folder} has the checkpoint of a fit of another cohort: give that one, "
                "or delete the folder to begin anew."
            )

    def _restore(self, kept: Kept) -> bool:
        """Whether all courses are as they were."""
        arrays: Mapping[str, Mapping[str, Array]] = {}
        if (self.folder / f"kept-{kept.letter}").exists():
            with suppress(InputError):  # then the engine finds that they are missing
                arrays = tensors.read(self.folder / f"kept-{kept.letter}", COURSES_KIND, mmap=False)[0]
        sound, self._best = True, None
        if kept.best is not None and kept.best_mark is not None:
            mark = Mark(kept.best_mark, dict(arrays.get("best", {})))
            sound = self.engine.restore(mark)
            if not sound:
                self.engine.rebuild(kept.best.model)
            patients = self.engine.score(kept.best.model)
            self._best = kept.best._replace(patients=patients), mark
        mark = Mark(kept.mark, dict(arrays.get("now", {})))
        sound = self.engine.restore(mark) and sound
        self._in_use = [mark] if self._best is None else [mark, self._best[1]]
        return sound


def read_kept(letter: str, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> Kept:
    reach, longer, to_beat = arrays["figures"].tolist()
    losses = tuple(arrays["losses"].tolist())
    model, previous = model_of(arrays, "model"), model_of(arrays, "previous")
    state = State(model, previous, reach, longer, losses, to_beat)
    best = None
    if "best.H" in arrays:
        nobody = Scored(np.zeros((0, 0)), np.zeros((0, 0)), np.zeros((0, 3)))
        ended = arrays["best.losses"].tolist()
        best = Fit(model_of(arrays, "best"), nobody, ended, Outcome(meta["best_outcome"]))
    return Kept(
        letter,
        int(meta["number"]),
        int(meta["start"]),
        arrays["seeds"],
        state,
        dict(meta["mark"]),
        best,
        meta.get("best_mark"),
    )


def factors(name: str, model: Model) -> dict[str, Array]:
    return {f"{name}.{letter}": factor for letter, factor in zip("HVF", model, strict=True)}


def model_of(arrays: Mapping[str, Array], name: str) -> Model:
    return Model(*(arrays[f"{name}.{letter}"] for letter in "HVF"))


def forget(folder: Path, letter: str) -> None:
    """Remove a generation, its state first: without it the rest is not looked at."""
    for name in (f"state-{letter}", f"kept-{letter}"):
        if (folder / name).is_dir() and not (folder / name).is_symlink():
            shutil.rmtree(folder / name)


def tell(what: str, kept: Kept) -> None:
    warnings.warn(
        f"{what}: the fit goes on from another, of iteration {len(kept.state.losses)}.", stacklevel=4
    )


def fingerprint(shard: Shard, *names: Array | None) -> str:
    """SHA-256 of a cohort's data as a fit sees it."""
    found = hashlib.sha256()
    for array in shard:
        found.update(f"{array.dtype} {array.shape};".encode())
        flat = array.reshape(-1).view(np.uint8).data
        for first in range(0, len(flat), CHUNK):
            found.update(flat[first : first + CHUNK])
    for column in names:
        found.update(repr(None if column is None else column.tolist()).encode())
    return found.hexdigest()
