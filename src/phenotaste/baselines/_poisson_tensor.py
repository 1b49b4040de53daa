"""What the methods with a Poisson likelihood of the tensor share: threads, the settings of the fit, and projection."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

from phenotaste.baselines._tensor import TensorModel
from phenotaste.core.cp.apr import AprOptions, Passes, Stop
from phenotaste.core.cp.counts import Counts
from phenotaste.core.records import Array
from phenotaste.runs.resources import available_cores
from phenotaste.validation import check_integer, check_number

PROJECTION = Stop(tol=1e-8, max_iter=1000)


class PoissonTensorModel(TensorModel):
    """A TensorModel with A_ and B_ whose columns sum to one, so that scores are expected co-occurrences."""

    _amounts: ClassVar[tuple[str, ...]] = ("tol", "kkt_tol")

    threshold: float
    max_iter: int
    tol: float
    kkt_tol: float
    n_jobs: Any

    def _check_settings(self) -> None:
        super()._check_settings()
        check_number("threshold", self.threshold, max=1, closed="left")
        if self.n_jobs is not None:
            check_integer("n_jobs", self.n_jobs, min=1)

    def _options(self) -> AprOptions:
        return AprOptions(max_iter=self.max_iter, tol=self.kkt_tol, loss_tol=self.tol)

    @contextmanager
    def _passes(self, counts: Counts) -> Iterator[Passes]:
        with ThreadPoolExecutor(self.n_jobs or available_cores()) as pool:
            yield Passes(counts, pool.map)

    def _project(self, counts: Counts, A: Array, B: Array) -> Array:
        with self._passes(counts) as passes:
            return passes.project(A, B, PROJECTION)
