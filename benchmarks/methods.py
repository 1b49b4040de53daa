"""The four methods behind one signature. Each is called as its own documentation says and timed from its call on."""

import re
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any, NamedTuple

import numpy as np

from .data import Records, padded, x_error

SEED = 0
WARM_UP_PATIENTS = 50
# Settings of TASTE under which an iteration updates every patient exactly once; none are needed so far.
EVERY_PATIENT_ONCE: dict[str, Any] = {}


class Run(NamedTuple):
    seconds: list[float]  # from the call to the end of each iteration
    errors: list[float]  # relative error of X after each iteration, where the method tells
    final_error: float  # the same at the end, recomputed from the factors handed out
    fit_seconds: float  # the whole call


class Stamps:
    """A stand-in for stdout that notes when a line about an iteration is printed, and the error in it."""

    def __init__(self, pattern: str) -> None:
        self.pattern = re.compile(pattern)
        self.times: list[float] = []
        self.errors: list[float] = []

    def write(self, text: str) -> int:
        found = self.pattern.match(text)
        if found:
            self.times.append(time.perf_counter())
            if found.group(1):
                self.errors.append(float(found.group(1)))
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


def taste(records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    """TASTE; with `errors` static-free and as it comes, otherwise with static features, every patient once."""
    cohort = taste_cohort(records, static=not errors)
    settings = {} if errors else EVERY_PATIENT_ONCE
    warm_up(cohort, rank, settings)
    stamps: list[float] = []
    start = time.perf_counter()
    model = taste_model(rank, iterations, lambda _: stamps.append(time.perf_counter()), settings).fit(cohort)
    fit_seconds = time.perf_counter() - start
    return Run([t - start for t in stamps], [], taste_error(records, model), fit_seconds)


def taste_model(rank: int, iterations: int, callback: Callable[..., Any] | None, settings: dict) -> Any:
    from phenotaste import TASTE

    return TASTE(rank, max_iter=iterations, tol=0, n_jobs=1, random_state=SEED, callback=callback, **settings)


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
    start = time.perf_counter()
    with redirect_stdout(stamps), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights, (A, B, C), projections = parafac2(
            slices, rank, iterations, nn_modes=[0, 2], tol=1e-300, random_state=SEED, verbose=True
        )
    fit_seconds = time.perf_counter() - start
    final = x_error(records, [P @ (B * weights) for P in projections], A, C)
    return Run([t - start for t in stamps.times], stamps.errors, final, fit_seconds)


def matcouply(records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    from matcouply.decomposition import parafac2_aoadmm

    matrices = records.dense()
    stamps = Stamps(r"Coupled matrix factorization iteration=\d+(?:, reconstruction error=([-+.\deE]+))?")
    start = time.perf_counter()
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
    fit_seconds = time.perf_counter() - start
    weights, (A, B, C) = found[0] if errors else found
    scores = A if weights is None else A * weights
    return Run([t - start for t in stamps.times], stamps.errors, x_error(records, B, scores, C), fit_seconds)


def parafac2(records: Records, rank: int, iterations: int, *, errors: bool) -> Run:
    """Sparse and unconstrained. It refuses histories shorter than the rank, so those get empty visits."""
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
        times.append(time.perf_counter())
        curve.append(float(np.sqrt(error)))

    start = time.perf_counter()
    (weights, (A, B, C), projections), _ = parafac2_nd(
        table, rank, iterations, tol=0, random_state=SEED, callback=note, backend="cpu"
    )
    fit_seconds = time.perf_counter() - start
    final = x_error(records, [P @ (B * weights) for P in projections], A, C)
    return Run([t - start for t in times], curve, final, fit_seconds)


METHODS: dict[str, Callable[..., Run]] = {
    "TASTE": taste,
    "tensorly": tensorly,
    "matcouply": matcouply,
    "parafac2": parafac2,
}
