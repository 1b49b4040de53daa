"""What a fit will need, before it is started: memory from the sizes, time from a sample of the patients."""

import gc
import math
import time
from typing import NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.core.init import init_model
from phenotaste.core.model_step import model_step
from phenotaste.core.records import Model
from phenotaste.engines.disk import Work
from phenotaste.engines.threads import MOST_BLOCKS, SUMS_BYTES, Threads
from phenotaste.errors import InputError
from phenotaste.storage.mapped import format_bytes, resident_bytes
from phenotaste.taste import TASTE

SAMPLE = 12_000  # patients: enough to even out their lengths, and what each block of them costs on its own
STEPS = 5


class Plan(NamedTuple):
    """What one fit is expected to take.

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
    least_memory: int  # bytes that --memory needs at least
    disk: int  # bytes that the courses then take in the work folder, checkpoints included
    seconds_per_iteration: float
    most_seconds: float  # if every start goes on to max_iter

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
                f"at least {format_bytes(self.least_memory)}, and {format_bytes(self.disk)} of disk for the courses",
            ),
            ("An iteration", f"{self.seconds_per_iteration:.3g} s on {self.threads} threads"),
            ("At most", f"{_time_in_words(self.most_seconds)}, if no start converges before max_iter"),
        ]


def _time_in_words(seconds: float) -> str:
    return f"{math.ceil(seconds)} seconds" if seconds < 60 else f"{seconds / 60:.1f} minutes"


def plan(model: TASTE, cohort: Cohort) -> Plan:
    """Time a few patient steps on a sample of the cohort, and add up what the whole of it will hold.

    Examples
    --------
    >>> from phenotaste import TASTE, simulate
    >>> from phenotaste.plan import plan
    >>> found = plan(TASTE(rank=4, n_init=3), simulate.recovery(n_patients=20)[0])
    >>> round(found.most_seconds / found.seconds_per_iteration)  # three starts of at most 200 iterations
    600
    """
    every = max(1, len(cohort) // SAMPLE)
    sample = cohort[np.arange(0, len(cohort), every)] if every > 1 else cohort
    engine, aligned = TASTE(**{**model.get_params(), "engine": None})._prepare(sample)
    if not isinstance(engine, Threads):
        raise InputError('A plan is made by timing the CPU: use device="cpu" for it.')
    rng = np.random.default_rng(0)
    start = init_model("random", aligned.shard, cohort.shape[1], model.rank, model.normalize, rng)
    patients, model_itself = seconds_of_a_step(engine, start)
    seconds = patients * len(cohort) / len(sample) + model_itself
    threads = engine.n_jobs
    del engine, aligned
    gc.collect()
    itemsize = np.dtype(model.dtype).itemsize
    work = Work.of(cohort.offsets, cohort.visits, cohort.n_static, model.rank, itemsize, threads)
    return Plan(
        patients=len(cohort),
        visits=cohort.n_visits,
        nonzeros=int(cohort.visits.nnz),
        threads=threads,
        memory=resident_bytes() + bytes_of_a_fit(model, cohort),
        least_memory=work.least_memory(),
        disk=work.disk(model.n_init, checkpoints=True),
        seconds_per_iteration=seconds,
        most_seconds=seconds * model.max_iter * model.n_init,
    )


def seconds_of_a_step(engine: Threads, model: Model) -> tuple[float, float]:
    """Patient step and model step, medians of a few iterations after two that compile and are unlike later ones.

    Apart, because the second takes as long for any number of patients.
    """
    engine.start(model)
    took = []
    for _ in range(STEPS):
        began = time.perf_counter()
        sums = engine.step(model)
        between = time.perf_counter()
        model, _ = model_step(sums, model, engine.weights.lam, normalize=True, exact=engine.exact)
        took.append((between - began, time.perf_counter() - between))
    patients, model_itself = np.median(took[2:], axis=0)
    return float(patients), float(model_itself)


def bytes_of_a_fit(model: TASTE, cohort: Cohort) -> int:
    """What a fit adds to a loaded cohort: courses twice, once more to keep the best start, scores, losses, sums."""
    courses = cohort.n_visits * model.rank * np.dtype(model.dtype).itemsize
    copies = 2 if model.n_init == 1 else 3
    patients = len(cohort) * 8 * (2 * model.rank + 3 + 2)
    sums = MOST_BLOCKS * 8 * model.rank * (cohort.shape[1] + cohort.n_static + 3 * model.rank)
    return copies * courses + patients + min(sums, SUMS_BYTES)
