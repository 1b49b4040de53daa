"""All methods behind one signature. Each is called as documented and timed from the call."""

import re
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .data import Records, padded, x_error

SEED = 0
WARM_UP_PATIENTS = 50
CLOCK: Callable[[], float] = time.perf_counter  # or processor time, on a machine that is not idle
# Settings of TASTE under which an iteration updates every patient exactly once; none are needed.
EVERY_PATIENT_ONCE: dict[str, Any] = {}
# Settings under which the visits' term is the squared error that the other tools minimise.
SQUARED_ERROR: dict[str, Any] = {"smooth": 0.0, "balance": 1.0}


class Run(NamedTuple):
    seconds: list[float]  # from the call to the end of each iteration
    errors: list[float]  # relative error of X after each iteration, if the method reports it
    final_error: float  # the final error, recomputed from the returned factors
    fit_seconds: float  # of the complete call


class Stamps:
    """A replacement of stdout that records the time of each line about an iteration, and the error in it."""

    def __init__(self, pattern: str) -> None:
        self.pattern = re.compile(pattern)
        self.times: list[float] = []
        self.errors: list[float] = []

    def write(self, text: str) -> int:
        found = self.pattern.match(text)
        if found:
            self.times.append(CLOCK())
            if found.group(1):
                self.errors.append(float(found.group(1)))
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""


def taste(records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    """TASTE; with `errors` without static features and for the squared error, otherwise with static features."""
    cohort = taste_cohort(records, static=not errors)
    settings = SQUARED_ERROR if errors else EVERY_PATIENT_ONCE
    warm_up(cohort, rank, settings)
    stamps: list[float] = []
    start = CLOCK()
    model = taste_model(rank, iterations, lambda _: stamps.append(CLOCK()), settings).fit(cohort)
    fit_seconds = CLOCK() - start
    return Run([t - start for t in stamps], [], taste_error(records, model), fit_seconds)


def taste_model(rank: int, iterations: int, callback: Callable[..., Any] | None, settings: dict) -> Any:
    from phenotaste import TASTE

    once = {"n_init": 1, "max_iter": iterations, "tol": 0, "n_jobs": 1, "random_state": SEED}
    return TASTE(rank, callback=callback, **once, **settings)


def taste_cohort(records: Records, *, static: bool) -> Any:
    from phenotaste import Cohort

    return Cohort(records.visits, records.offsets, records.static if static else None)


def warm_up(cohort: Any, rank: int, settings: dict) -> None:
    """Compile, or read the compiled code from disk, before the clock starts."""
    taste_model(rank, 3, lambda _: None, settings).fit(cohort[:WARM_UP_PATIENTS])


def taste_error(records: Records, model: Any) -> float:
    return x_error(records, np.split(model.U_, model.offsets_[1:-1]), model.W_, model.V_)


def tensorly(records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    """The error is part of every iteration: its line search needs it."""
    from tensorly.decomposition import parafac2

    slices = records.dense()
    stamps = Stamps(r"PARAFAC2 reconstruction error=([-+.\deE]+)")
    start = CLOCK()
    with redirect_stdout(stamps), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights, (A, B, C), projections = parafac2(
            slices, rank, iterations, nn_modes=[0, 2], tol=1e-300, random_state=SEED, verbose=True
        )
    fit_seconds = CLOCK() - start
    final = x_error(records, [P @ (B * weights) for P in projections], A, C)
    return Run([t - start for t in stamps.times], stamps.errors, final, fit_seconds)


def matcouply(records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    from matcouply.decomposition import parafac2_aoadmm

    matrices = records.dense()
    stamps = Stamps(r"Coupled matrix factorization iteration=\d+(?:, reconstruction error=([-+.\deE]+))?")
    start = CLOCK()
    with redirect_stdout(stamps), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = parafac2_aoadmm(
            matrices,
            rank,
            n_iter_max=iterations,
            non_negative=True,
            tol=None,
            absolute_tol=None,
            return_errors=errors,
            random_state=SEED,
            verbose=1,
        )
    fit_seconds = CLOCK() - start
    weights, (A, B, C) = found[0] if errors else found
    scores = A if weights is None else A * weights
    return Run([t - start for t in stamps.times], stamps.errors, x_error(records, B, scores, C), fit_seconds)


def parafac2(records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    """Sparse and unconstrained. It rejects histories shorter than the rank, so those are padded with empty visits."""
    import anndata
    from parafac2 import parafac2_nd

    records = padded(records, rank)
    owners = np.repeat(np.arange(records.n_patients), np.diff(records.offsets))
    table = anndata.AnnData(records.visits.astype(np.float64))
    table.obs["condition_unique_idxs"] = owners
    table.var["means"] = 0.0
    times: list[float] = []
    curve: list[float] = []

    def note(_: int, error: float, factors: object) -> None:
        times.append(CLOCK())
        curve.append(float(np.sqrt(error)))

    start = CLOCK()
    (weights, (A, B, C), projections), _ = parafac2_nd(
        table, rank, iterations, tol=0, random_state=SEED, callback=note, backend="cpu"
    )
    fit_seconds = CLOCK() - start
    final = x_error(records, [P @ (B * weights) for P in projections], A, C)
    return Run([t - start for t in times], curve, final, fit_seconds)


def baseline(make: Callable[..., Any], records: Records, iterations: int, *, static: bool) -> Run:
    """One of the package's own baselines, timed by its callback."""
    cohort = taste_cohort(records, static=static)
    stamps: list[float] = []
    common = {"tol": 0, "n_jobs": 1, "random_state": SEED, "callback": lambda _: stamps.append(CLOCK())}
    make(max_iter=1, **common).fit(cohort[:WARM_UP_PATIENTS])
    stamps.clear()
    start = CLOCK()
    model = make(max_iter=iterations, **common).fit(cohort)
    fit_seconds = CLOCK() - start
    return Run([t - start for t in stamps], [], taste_error(records, model), fit_seconds)


def spartan(records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    from phenotaste.baselines import Spartan

    return baseline(partial(Spartan, rank), records, iterations, static=False)


def copa_plus(records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    from phenotaste.baselines import CopaPlus

    return baseline(partial(CopaPlus, rank), records, iterations, static=True)


def cohen_plus(algorithm: str, records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    from phenotaste.baselines import CohenPlus

    return baseline(partial(CohenPlus, rank, algorithm=algorithm), records, iterations, static=True)


METHODS: dict[str, Callable[..., Run]] = {
    "TASTE": taste,
    "tensorly": tensorly,
    "matcouply": matcouply,
    "parafac2": parafac2,
    "Spartan": spartan,
    "CopaPlus": copa_plus,
    "CohenPlus on the core": partial(cohen_plus, "core"),
    "CohenPlus as published": partial(cohen_plus, "published"),
}
