"""One measurement in a process of its own: python -m benchmarks.child TASK RESULT_FILE, the task as JSON."""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from . import data, machine, methods


def simulate(path: str, n_patients: int) -> dict[str, Any]:
    data.save(data.simulate(n_patients), path)
    return {}


def describe(path: str, n_patients: int) -> dict[str, Any]:
    """The shape of the data that every method receives."""
    records = data.load(path).head(n_patients)
    visits = np.diff(records.offsets)
    return {
        "patients": records.n_patients,
        "visits": int(visits.sum()),
        "features": records.visits.shape[1],
        "nonzeros": int(records.visits.nnz),
        "static": records.static.shape[1],
        "shortest": int(visits.min()),
        "longest": int(visits.max()),
    }


def iterate(
    method: str, path: str, n_patients: int, rank: int, iterations: int, errors: bool, clock: str = "wall"
) -> dict[str, Any]:
    """Time iterations of one method; `errors` requests the error of X after each."""
    if clock == "cpu":
        methods.CLOCK = time.process_time
    records = data.load(path).head(n_patients)
    run = methods.METHODS[method](records, rank, iterations, errors=errors)
    return {**run._asdict(), "versions": machine.versions()}


def reach(
    path: str, n_patients: int, rank: int, iterations: int, target: float, repetitions: int
) -> dict[str, Any]:
    """The number of iterations TASTE needs for an error of X, by bisection, and the time of that fit."""
    records = data.load(path).head(n_patients)
    cohort = methods.taste_cohort(records, static=False)
    methods.warm_up(cohort, rank, {})

    def fit(n: int) -> tuple[float, float]:
        start = time.perf_counter()
        model = methods.taste_model(rank, n, None, {}).fit(cohort)
        return time.perf_counter() - start, methods.taste_error(records, model)

    low, high = 0, iterations  # after `low` not reached, after `high` reached
    while high - low > 1:
        middle = (low + high) // 2
        if fit(middle)[1] <= target:
            high = middle
        else:
            low = middle
    runs = [fit(high) for _ in range(repetitions)]
    return {"iterations": high, "seconds": median(run[0] for run in runs), "error": runs[0][1]}


def draw_cohort(path: str, settings: dict[str, Any]) -> dict[str, Any]:
    from phenotaste import simulate

    simulate.ehr(**settings)[0].save(path)
    return {}


def scale(path: str, rank: int, iterations: int, n_jobs: int, dtype: str) -> dict[str, Any]:
    """Iterations of TASTE on a saved cohort; the first is excluded, since it includes the initialisation."""
    from phenotaste import TASTE, Cohort

    cohort = Cohort.load(path)
    stamps: list[float] = []
    model = TASTE(
        rank,
        max_iter=iterations + 1,
        n_init=1,
        tol=0,
        dtype=dtype,
        n_jobs=n_jobs,
        random_state=methods.SEED,
        callback=lambda _: stamps.append(time.perf_counter()),
        **methods.EVERY_PATIENT_ONCE,
    )
    model.fit(cohort[: methods.WARM_UP_PATIENTS])
    stamps.clear()
    before = peak_bytes()
    start = time.perf_counter()
    model.fit(cohort)
    X = cohort.visits
    return {
        "seconds": np.diff(stamps).tolist(),
        "first": stamps[0] - start,
        "fit_seconds": time.perf_counter() - start,
        "patients": cohort.n_patients,
        "visits": cohort.n_visits,
        "nonzeros": int(X.nnz),
        "csr_bytes": X.data.nbytes + X.indices.nbytes + X.indptr.nbytes,
        "course_bytes": model.U_.nbytes,
        "before_bytes": before,  # interpreter, libraries, compiled code and the loaded data
    }


def peak_bytes() -> int:
    """Peak memory of this process. ru_maxrss is the fallback: on Linux it includes the peak of the parent."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "simulate": simulate,
    "describe": describe,
    "iterate": iterate,
    "reach": reach,
    "draw_cohort": draw_cohort,
    "scale": scale,
    "gemm": machine.gemm_rates,
}


def main(task: dict[str, Any], answer: Path) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    result = JOBS[task.pop("job")](**task)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)
    answer.write_text(json.dumps({**result, "peak_bytes": peak_bytes(), "core_share": share}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
