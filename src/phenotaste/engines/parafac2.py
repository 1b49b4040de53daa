"""The patient step of PARAFAC2 with exact cross-products, on threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from phenotaste.core.parafac2 import kernels
from phenotaste.core.parafac2.kernels import ModelProducts, Parafac2Sums, ScoreSolver
from phenotaste.core.records import Array, Shard
from phenotaste.engines.partition import block_edges
from phenotaste.engines.threads import one_blas_thread
from phenotaste.runs.resources import available_cores

T = TypeVar("T")
NNLS = ScoreSolver(kernels.NONNEGATIVE, admm_steps=1)


class Parafac2Threads:
    """Runs fixed blocks of patients on threads and adds their sums in block order: results do not depend on n_jobs.

    Q (visits × R), W (patients × R) and the dual variables of W (patients × R) are the state of the patients.
    """

    def __init__(
        self,
        shard: Shard,
        n_features: int,
        rank: int,
        *,
        score_solver: ScoreSolver = NNLS,
        bases: Array | None = None,
        n_jobs: int | None = None,
    ) -> None:
        visits, K = int(shard.offsets[-1]), len(shard.offsets) - 1
        self.shard, self.n_features, self.rank = shard, n_features, rank
        self.score_solver = score_solver
        self.bases = np.zeros((visits, 0)) if bases is None else bases
        self.Q = np.zeros((visits, rank))
        self.W = np.ones((K, rank))
        self.duals = np.zeros((K, rank))
        columns = n_features + shard.static.shape[1]
        self._edges = block_edges(shard, columns, rank) if K else np.array([0, 0])
        self._pool = ThreadPoolExecutor(n_jobs or available_cores())

    def reset(self, W: Array | None = None) -> None:
        """Reset the state of the patients; the scores start at W, by default at one."""
        self.Q = np.zeros_like(self.Q)
        self.W = np.ones_like(self.W) if W is None else np.array(W, np.float64, order="C")
        self.duals = np.zeros_like(self.duals)

    def step(self, model: ModelProducts) -> Parafac2Sums:
        """Update Q, then w, of every patient; returns the sums that H and F are solved from."""

        def work(first: int, last: int) -> Parafac2Sums:
            sums = kernels.zero_sums(0, len(model.F), self.rank)
            scratch = self._scratch(first, last)
            kernels.step(self._patients(), first, last, model, self.score_solver, sums, scratch)
            return sums

        total, *rest = self._map(work)
        for block in rest:
            for accumulator, addend in zip(total, block, strict=True):
                accumulator += addend
        return total

    def course_sum(self, H: Array) -> Array:
        """Σ XᵀQ H diag(w), J × R: the right-hand side of V, given H."""

        def work(first: int, last: int) -> Array:
            XU = np.zeros((self.n_features, self.rank))
            scratch = self._scratch(first, last)
            kernels.add_XU(self.shard, first, last, np.ascontiguousarray(H), self.W, self.Q, XU, scratch)
            return XU

        total, *rest = self._map(work)
        for block in rest:
            total += block
        return total

    def complete(self) -> None:
        """Complete the columns of Q that are zero to orthonormal ones, for histories of at least R visits."""
        self._map(
            lambda first, last: kernels.complete_Q(
                self.shard, first, last, self.bases, self.Q, self._scratch(first, last)
            )
        )

    def project(self, model: ModelProducts, tol: float, max_iter: int) -> None:
        """Solve Q and W under a fixed model."""
        self._map(
            lambda first, last: kernels.project(
                self._patients(),
                first,
                last,
                model,
                self.score_solver,
                tol,
                max_iter,
                self._scratch(first, last),
            )
        )

    def _patients(self) -> kernels.Parafac2Patients:
        return kernels.Parafac2Patients(self.shard, self.bases, self.W, self.duals, self.Q)

    def _scratch(self, first: int, last: int) -> kernels.Parafac2Scratch:
        return kernels.new_scratch(self.shard, first, last, self.rank, self.bases.shape[1])

    def _map(self, work: Callable[[int, int], T]) -> list[T]:
        with one_blas_thread():
            return list(self._pool.map(work, self._edges[:-1].tolist(), self._edges[1:].tolist()))
