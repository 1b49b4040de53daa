"""The engine interface: an `Engine` holds settings, and opens an `EngineSession` over the patients of one fit."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike

from phenotaste.core.records import Array, Model, Scored, Shard, Sums, Weights
from phenotaste.errors import InputError

# U that a checkpoint has lost is projected again: measured, the objective is back after about fifty iterations.
REBUILD_TOL, REBUILD_ITERATIONS = 1e-6, 60


class Snapshot(NamedTuple):
    """The U of a session at one iteration: the names of its files in a token that JSON can hold, or the arrays."""

    token: dict[str, object]
    arrays: dict[str, Array]


class EngineSession(ABC):
    """The patients of one fit or projection: their data, their U, and the patient step over them.

    Every session finds the same bits, whatever it runs on; only CUDA works in float32. A session is a context
    manager: leaving it releases threads, files and connections.
    """

    weights: Weights

    @abstractmethod
    def init_U(self, model: Model) -> None:
        """Deterministic initial U from the data and the model; arrays that `score` returned stay unchanged."""

    @abstractmethod
    def init_U_uniform(self, rng: np.random.Generator) -> None:
        """The paper's initial U, entries uniform, drawn visit by visit in the cohort's order."""

    @abstractmethod
    def step(self, model: Model, beta: float = 0.0) -> Sums:
        """Patient step from U extrapolated by `beta` times its last change."""

    @abstractmethod
    def undo(self) -> None:
        """Return to the U before the last step."""

    @abstractmethod
    def score(self, model: Model) -> Scored:
        """Scores, losses and cross-product gaps of every patient at the current U."""

    @abstractmethod
    def project(self, model: Model, tol: float, max_iter: int) -> Scored:
        """U and scores under a fixed model, each patient iterated until it converges."""

    def check_init_memory(self, init: str) -> None:
        """Refuse an initialisation that would not fit into the memory limit."""

    def check_disk(self, n_init: int) -> None:
        """Refuse a fit whose files would not fit on the disk."""

    def enable_snapshots(self, owner: str) -> None:
        """Prepare for snapshots that this process, or a later one with the same `owner`, may restore."""
        raise InputError(
            f"{type(self).__name__} cannot resume a fit: leave out the checkpoint, or use another engine."
        )

    def snapshot(self) -> Snapshot:
        """The current U and, unless `score` came last, the U before the last step."""
        raise NotImplementedError

    def restore(self, snapshot: Snapshot) -> bool:
        """Return to a snapshot. False if some U is missing or damaged: then `rebuild` has to follow."""
        raise NotImplementedError

    def rebuild(self, model: Model) -> None:
        """Replace the U that `restore` found missing or damaged by its projection under the model."""
        raise NotImplementedError

    def discard(self, snapshot: Snapshot) -> None:
        """Free what only this snapshot needs; also possible after `close`."""

    def remove_stale_files(self) -> None:
        """Remove files of earlier processes that no snapshot needs."""

    def close(self) -> None:
        """Release threads, connections and the files that no snapshot needs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Engine(ABC):
    """Where the patient step runs: the argument of `TASTE(engine=...)`. Settings only, cheap to copy and print."""

    @abstractmethod
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
    ) -> EngineSession:
        """A session over these patients.

        Parameters
        ----------
        shard : the patients' data, in the order of the model's columns.
        weights : λ_eff, and μ_k of every patient.
        rank, n_features : the numbers of phenotypes and of temporal features.
        exact : solve for scores by block principal pivoting instead of coordinate descent.
        dtype : precision of U.
        n_jobs : number of threads, all cores by default.
        """

    def memory_limit(self) -> AbstractContextManager[None]:
        """Holds from before the cohort is read until the model is fitted."""
        return nullcontext()

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """An uninitialised array as long as the cohort."""
        return np.empty(shape, dtype)
