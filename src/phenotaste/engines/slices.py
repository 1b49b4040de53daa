"""The patient step of PARAFAC2 with exact cross-products, on the cores of this machine."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from phenotaste.core.parafac2 import kernels
from phenotaste.core.parafac2.kernels import ModelProducts, Parafac2Sums
from phenotaste.core.records import Array, Shard
from phenotaste.engines.threads import block_edges, one_blas_thread
from phenotaste.runs.resources import available_cores

T = TypeVar("T")


class SliceThreads:
    """Patients in fixed blocks on threads, sums added in block order: the bits do not depend on the threads.

    Q (visits × R), W (patients × R) and the scores' duals are the patients' state.
    """

    def __init__(
        self,
        shard: Shard,
        n_features: int,
        rank: int,
        *,
        how: int = kernels.NONNEGATIVE,
        inner: int = 1,
        bases: Array | None = None,
        n_jobs: int | None = None,
    ) -> None:
        visits, K = int(shard.offsets[-1]), len(shard.offsets) - 1
        self.shard, self.n_features, self.rank = shard, n_features, rank
        self._solver = kernels.ScoreSolver(how, inner)
        self.bases = np.zeros((visits, 0)) if bases is None else bases
        self.Q = np.zeros((visits, rank))
        self.W = np.ones((K, rank))
        self.duals = np.zeros((K, rank))
        columns = n_features + shard.static.shape[1]
        self._edges = block_edges(shard, columns, rank) if K else np.array([0, 0])
        self._pool = ThreadPoolExecutor(n_jobs or available_cores())

    def start(self, W: Array | None = None) -> None:
        """Forget the patients; scores begin at one, or at W."""
        self.Q = np.zeros_like(self.Q)
        self.W = np.ones_like(self.W) if W is None else np.array(W, np.float64, order="C")
        self.duals = np.zeros_like(self.duals)

    def step(self, model: ModelProducts) -> Parafac2Sums:
        """Q, then w, of every patient; returns the sums for H and F."""

        def work(first: int, last: int) -> Parafac2Sums:
            slices = kernels.zero_sums(0, len(model.F), self.rank)
            kernels.step(self._patients(), first, last, model, self._solver, slices, self._room(first, last))
            return slices

        total, *rest = self._map(work)
        for part in rest:
            for mine, theirs in zip(total, part, strict=True):
                mine += theirs
        return total

    def course_sum(self, H: Array) -> Array:
        """Σ XᵀQ H diag(w), J × R: what V is found from, once H is."""

        def work(first: int, last: int) -> Array:
            XU = np.zeros((self.n_features, self.rank))
            room = self._room(first, last)
            kernels.add_XU(self.shard, first, last, np.ascontiguousarray(H), self.W, self.Q, XU, room)
            return XU

        total, *rest = self._map(work)
        for part in rest:
            total += part
        return total

    def complete(self) -> None:
        """Fill in the directions that a patient's Q lacks, where the history is long enough to have them."""
        self._map(
            lambda first, last: kernels.complete_Q(
                self.shard, first, last, self.bases, self.Q, self._room(first, last)
            )
        )

    def project(self, model: ModelProducts, tol: float, max_iter: int) -> None:
        """Q and W under a fixed model."""
        self._map(
            lambda first, last: kernels.project(
                self._patients(), first, last, model, self._solver, tol, max_iter, self._room(first, last)
            )
        )

    def _patients(self) -> kernels.Parafac2Patients:
        return kernels.Parafac2Patients(self.shard, self.bases, self.W, self.duals, self.Q)

    def _room(self, first: int, last: int) -> kernels.Parafac2Scratch:
        return kernels.new_scratch(self.shard, first, last, self.rank, self.bases.shape[1])

    def _map(self, work: Callable[[int, int], T]) -> list[T]:
        with one_blas_thread():
            return list(self._pool.map(work, self._edges[:-1].tolist(), self._edges[1:].tolist()))
