"""Overhead of a cluster per iteration (checksums, files, messages), compared with threads.

    python -m benchmarks.dask

Worker processes of this machine, one thread each, against as many threads. Processor time is that of all processes
together, so the machine need not be idle for it; seconds are, and only mean something on an idle one.
"""

import argparse
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from phenotaste import TASTE, Cohort
from phenotaste.engines.dask import DaskEngine

from .data import STORED, load, simulate
from .machine import describe
from .report import RESULTS, machine_lines, publish


def main() -> None:
    options = arguments()
    records = load(STORED) if options.patients is None else simulate(options.patients)
    cohort = Cohort(records.visits, records.offsets, records.static)
    results: dict[str, Any] = {
        "machine": describe(),
        "patients": len(cohort),
        "visits": int(cohort.offsets[-1]),
        "runs": [run for rank in options.ranks for run in of_rank(cohort, rank, options)],
    }
    publish("dask", results, page(results), None if options.quick else RESULTS)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[10, 40])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--patients", type=int, help="simulate this number instead of reading the stored ones"
    )
    parser.add_argument("--quick", action="store_true", help="print only")
    return parser.parse_args()


def of_rank(cohort: Cohort, rank: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Threads and clusters interleaved, after a first fit that compiles."""
    from distributed import LocalCluster

    found = []
    for n_workers in options.workers:
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalCluster(
                n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50
            ) as cluster,
        ):
            engine = DaskEngine(cluster, Path(folder) / "work")
            settings: dict[str, Any] = {
                "rank": rank,
                "tol": 0,
                "random_state": 0,
                "init": "random",
                "n_init": 1,
            }
            models = [TASTE(**settings, max_iter=3, engine=each).fit(cohort) for each in (None, engine)]
            assert np.array_equal(models[0].V_, models[1].V_)
            pairs = [
                (
                    timed(settings, cohort, options.iterations, None, n_workers, []),
                    timed(settings, cohort, options.iterations, engine, n_workers, pids(cluster)),
                )
                for _ in range(options.rounds)
            ]
        for name, runs in zip(("threads", "cluster"), zip(*pairs, strict=True), strict=True):
            figures = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            found.append({"rank": rank, "workers": n_workers, "engine": name, **figures})
            print(found[-1], flush=True)
    return found


def timed(
    settings: dict[str, Any], cohort: Cohort, iterations: int, engine: Any, n_jobs: int, workers: list[int]
) -> dict[str, float]:
    """Wall and processor seconds per iteration, without the first and the closing score."""
    ends: list[tuple[float, float]] = []

    def look(progress: Any) -> None:
        ends.append((time.perf_counter(), time.process_time() + sum(map(processor_seconds, workers))))

    TASTE(**settings, max_iter=iterations, engine=engine, n_jobs=n_jobs, callback=look).fit(cohort)
    seconds, processor = np.subtract(ends[-1], ends[0]) / (iterations - 1)
    return {"seconds": float(seconds), "processor": float(processor)}


def pids(cluster: Any) -> list[int]:
    return [nanny.pid for nanny in cluster.workers.values()]


def processor_seconds(pid: int) -> float:
    import psutil

    spent = psutil.Process(pid).cpu_times()
    return float(spent.user + spent.system)


def page(results: dict[str, Any]) -> str:
    lines = [
        "| R | workers | s an iteration, threads | cluster | processor s, threads | cluster | more by |",
        "|---|---|---|---|---|---|---|",
    ]
    runs = results["runs"]
    for plain, cluster in zip(runs[::2], runs[1::2], strict=True):
        more = cluster["processor"] / plain["processor"]
        lines.append(
            f"| {plain['rank']} | {plain['workers']} | {plain['seconds']:.3g} | {cluster['seconds']:.3g} "
            f"| {plain['processor']:.3g} | {cluster['processor']:.3g} | {more:.1f}× |"
        )
    intro = (
        f"{results['patients']:,} patients, {results['visits']:,} visits. Workers are processes of this machine, one "
        "thread each; threads are as many of one process. Processor seconds include this process, the scheduler in it, "
        "and all workers. The model was the same to the bit in every run."
    )
    title = f"# On a Dask cluster, {date.today().isoformat()}"
    return "\n\n".join([title, machine_lines(results["machine"]), intro, "\n".join(lines)]) + "\n"


if __name__ == "__main__":
    main()
