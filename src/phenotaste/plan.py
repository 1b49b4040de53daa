"""The memory and time that a fit will take: memory from the sizes, time from a sample of the patients."""

import gc
import math
import time
from typing import NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.model_step import model_step
from phenotaste.core.records import Model
from phenotaste.engines.cuda import CudaEngine
from phenotaste.engines.disk import PATIENT_BYTES, FitSize, scored_bytes
from phenotaste.engines.partition import MAX_BLOCKS, SUMS_BYTES
from phenotaste.engines.threads import ThreadEngine, ThreadSession
from phenotaste.errors import InputError
from phenotaste.storage.mapped import format_bytes, resident_bytes
from phenotaste.taste import TASTE, open_fit

SAMPLE = 12_000  # patients: enough to average their lengths and the fixed costs of a block
STEPS = 5


class Plan(NamedTuple):
    """The expected cost of one fit.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.plan import plan
    >>> found = plan(TASTE(rank=4), simulate.recovery(n_patients=20)[0])
    >>> found.patients, found.visits, found.nonzeros
    (20, 2000, 60000)
    """

    patients: int
    visits: int
    nonzeros: int
    threads: int
    memory: int  # bytes at the peak, the program itself included
    min_memory: int  # bytes, the smallest --memory
    disk: int  # bytes of the courses in the work folder with --memory, checkpoints included
    seconds_per_iteration: float
    max_seconds: float  # if every start runs to max_iter

    def lines(self) -> list[tuple[str, str]]:
        """Label and text of each line, as `phenotaste fit --plan` prints them.

        Examples
        --------
        >>> from phenotaste import TASTE, simulate
        >>> from phenotaste.plan import plan
        >>> plan(TASTE(rank=4), simulate.recovery(n_patients=20)[0]).lines()[0]
        ('Patients', '20 with 2,000 visits, 60,000 entries')
        """
        return [
            ("Patients", f"{self.patients:,} with {self.visits:,} visits, {self.nonzeros:,} entries"),
            ("Memory", f"{self.memory / 2**30:.2f} GiB at the peak"),
            (
                "With --memory",
                f"at least {format_bytes(self.min_memory)}, and {format_bytes(self.disk)} of disk for the courses",
            ),
            ("An iteration", f"{self.seconds_per_iteration:.3g} s on {self.threads} threads"),
            ("At most", f"{_format_seconds(self.max_seconds)}, if no start converges before max_iter"),
        ]


def _format_seconds(seconds: float) -> str:
    return f"{math.ceil(seconds)} seconds" if seconds < 60 else f"{seconds / 60:.1f} minutes"


def plan(model: TASTE, cohort: Cohort) -> Plan:
    """Time a few patient steps on a sample of the cohort, and add up the memory for all of it.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.plan import plan
    >>> found = plan(TASTE(rank=4, n_init=3), simulate.recovery(n_patients=20)[0])
    >>> round(found.max_seconds / found.seconds_per_iteration)  # three starts of at most 200 iterations
    600
    """
    every = max(1, len(cohort) // SAMPLE)
    sample = cohort[np.arange(0, len(cohort), every)] if every > 1 else cohort
    if isinstance(model._engine(), CudaEngine):
        raise InputError('A plan times the CPU: use device="cpu" for it.')
    session, aligned, start = open_fit(model, sample, ThreadEngine())
    with session:
        assert isinstance(session, ThreadSession)
        patient_seconds, model_seconds = time_steps(session, start)
        threads = session.n_jobs
    seconds = patient_seconds * len(cohort) / len(sample) + model_seconds
    del session, aligned
    gc.collect()
    visits, n_starts = cohort.visits, model._n_starts()
    size = FitSize.of(
        cohort.offsets,
        visits.data.nbytes + visits.indices.nbytes,
        (cohort.n_features, cohort.n_static),
        model.rank,
        np.dtype(model.dtype).itemsize,
        threads,
    )
    return Plan(
        patients=len(cohort),
        visits=cohort.n_visits,
        nonzeros=int(cohort.visits.nnz),
        threads=threads,
        memory=resident_bytes() + fit_bytes(model, cohort),
        min_memory=size.min_memory(),
        disk=size.disk(n_starts, checkpoints=True),
        seconds_per_iteration=seconds,
        max_seconds=seconds * model.max_iter * n_starts,
    )


def time_steps(session: ThreadSession, model: Model) -> tuple[float, float]:
    """Seconds of a patient step and of a model step: medians after two iterations that compile and are untypical.

    They are timed separately, because the model step does not depend on the number of patients.
    """
    seconds, weights = [], session.weights
    for _ in range(STEPS):
        began = time.perf_counter()
        sums = session.step(model)
        between = time.perf_counter()
        model, _ = model_step(sums, model, weights.lam, normalize=weights.unit, exact=session.exact)
        seconds.append((between - began, time.perf_counter() - between))
    patient_seconds, model_seconds = np.median(seconds[2:], axis=0)
    return float(patient_seconds), float(model_seconds)


def fit_bytes(model: TASTE, cohort: Cohort) -> int:
    """Bytes that a fit adds to a loaded cohort: U twice, scores, losses and weights, sums, and the best start."""
    courses = cohort.n_visits * model.rank * np.dtype(model.dtype).itemsize
    scored = len(cohort) * scored_bytes(model.rank)
    best = courses + scored if model._n_starts() > 1 else 0
    sums = MAX_BLOCKS * 8 * model.rank * (cohort.shape[1] + cohort.n_static + 3 * model.rank)
    return 2 * courses + scored + best + len(cohort) * PATIENT_BYTES + min(sums, SUMS_BYTES)
