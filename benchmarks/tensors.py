"""Methods on patients × A × B tensors: seconds an iteration and memory. `python -m benchmarks.tensors -h`."""

import argparse
import importlib
import json
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from . import machine, report
from .child import peak_bytes
from .data import ROOT

FEATURES, VISITS, CODES = 300, 5, 10  # of each kind; of each patient; of each visit, both kinds together
LIMIT = 10.0  # seconds an iteration on two cores
BUSY = "**Others used the machine meanwhile**: go by the processor time, that of all threads together."


class Method(NamedTuple):
    """A method, its settings, and what it calls once at the end of each iteration."""

    module: str
    settings: dict[str, Any]
    called: str  # a function of `module`, or a method of a class in it


ONE_START = {"n_init": 1, "tol": 0.0}
POISSON = {**ONE_START, "kkt_tol": 0.0}
METHODS = {
    "Limestone": Method("phenotaste.core.cp.apr", POISSON, "Passes.divergence"),
    "Marble": Method("phenotaste.core.cp.apr", POISSON, "Passes.divergence"),
    "NonnegativeCP": Method("phenotaste.core.cp.nonnegative", ONE_START, "step"),
    "SUSTain": Method("phenotaste.core.cp.sustain", ONE_START, "step"),
    "Granite": Method("phenotaste.core.cp.granite", ONE_START, "step"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tensors", description=__doc__)
    parser.add_argument("--patients", type=int, default=100_000, help="with 100 co-occurrences each")
    parser.add_argument("--rank", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--method", action="append", choices=tuple(METHODS), help="default: all")
    parser.add_argument("--quick", action="store_true", help="2,000 patients: checks the harness")
    parser.add_argument("--child", nargs=2, metavar=("METHOD", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*options.child, options.rank, options.iterations)))
        return
    results: dict[str, Any] = {"machine": machine.describe(), "rank": options.rank, "methods": {}}
    with TemporaryDirectory() as folder:
        draw(2_000 if options.quick else options.patients, Path(folder) / "cohort")
        for method in options.method or METHODS:
            results["methods"][method] = found = in_a_process(method, folder, options)
            print(f"  {method}: {found['seconds']:.2f} s an iteration", file=sys.stderr, flush=True)
    results["machine"]["load_at_end"] = machine.describe()["load"]
    report.publish("tensors", results, page(results), None if options.quick else report.RESULTS)


def draw(n_patients: int, path: Path) -> None:
    """A cohort whose tensor has about 100 non-zeros for each patient; common features are drawn more often."""
    from scipy import sparse

    from phenotaste import Cohort

    rng = np.random.default_rng(0)
    n_visits = n_patients * VISITS
    lengths = rng.binomial(2 * CODES, 0.5, n_visits)
    rows = np.repeat(np.arange(n_visits), lengths)
    columns = (2 * FEATURES * rng.beta(0.9, 1.1, len(rows))).astype(np.int64)
    order = rng.permutation(2 * FEATURES)  # so that both kinds have common features
    visits = sparse.csr_array(
        sparse.coo_array((np.ones(len(rows)), (rows, order[columns])), (n_visits, 2 * FEATURES))
    )
    visits.data[:] = 1.0
    names = [f"{kind}_{j}" for kind in ("Dx", "Rx") for j in range(FEATURES)]
    Cohort(visits, np.arange(n_patients + 1) * VISITS, feature_names=names).save(path)


def in_a_process(method: str, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.tensors", "--child", method, folder]
    command += ["--rank", str(options.rank), "--iterations", str(options.iterations)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def measure(name: str, folder: str, rank: int, iterations: int) -> dict[str, Any]:
    """One fit in this process; the times between the ends of iterations, without the first."""
    from phenotaste import Cohort, baselines

    cohort = Cohort.load(Path(folder) / "cohort")
    method = METHODS[name]
    settings = {**method.settings, "max_iter": iterations, "random_state": 0}
    getattr(baselines, name)(rank, **settings).fit(cohort[:200])  # compiles
    stamps = stamp_calls(method)
    before, counted, cpu = peak_bytes(), count_pairs_of(cohort), time.process_time()
    begin = time.perf_counter()
    getattr(baselines, name)(rank, **settings).fit(cohort)
    seconds = time.perf_counter() - begin
    wall, processor = (np.diff([stamp[n] for stamp in stamps[-iterations:]]) for n in (0, 1))
    return {
        **counted,
        "seconds": median(wall.tolist()),
        "processor_seconds": median(processor.tolist()),
        "fit_seconds": seconds,
        "fit_processor_seconds": time.process_time() - cpu,
        "before_bytes": before,
        "peak_bytes": peak_bytes(),
    }


def stamp_calls(method: Method) -> list[tuple[float, float]]:
    """The list of clock times, wall and processor, that each end of an iteration appends to."""
    owner: Any = importlib.import_module(method.module)
    *path, last = method.called.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, last)
    stamps: list[tuple[float, float]] = []

    def stamped(*arguments: Any, **more: Any) -> Any:
        result = original(*arguments, **more)
        stamps.append((time.perf_counter(), time.process_time()))
        return result

    setattr(owner, last, stamped)
    return stamps


def count_pairs_of(cohort: Any) -> dict[str, Any]:
    """The size of the tensor, and the seconds that counting takes."""
    from phenotaste.core.cp.counts import count_pairs

    columns = np.arange(2 * FEATURES)
    begin = time.perf_counter()
    counts = count_pairs(cohort.visits, cohort.offsets, columns[:FEATURES], columns[FEATURES:])
    return {
        "count_seconds": time.perf_counter() - begin,
        "shape": counts.shape,
        "nonzeros": len(counts.values),
        "count_bytes": sum(array.nbytes for array in counts[:4]),
    }


def page(results: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{found['seconds']:.2f}",
            f"{found['processor_seconds']:.2f}",
            f"{found['fit_seconds']:.1f}",
            f"{found['fit_processor_seconds']:.1f}",
            f"{found['count_seconds']:.1f}",
            f"{found['before_bytes'] / 1e6:,.0f}",
            f"{found['peak_bytes'] / 1e6:,.0f}",
        ]
        for name, found in results["methods"].items()
    ]
    first = next(iter(results["methods"].values()))
    heads = ["method", "s an iteration", "CPU s", "s a fit", "CPU s", "s to count", "MB before", "peak MB"]
    shape = " × ".join(f"{n:,}" for n in first["shape"])
    dense = np.prod([float(n) for n in first["shape"]]) * 8 / 1e9
    return (
        "\n\n".join(
            [
                f"# Tensors of patients × A × B, {date.today().isoformat()}",
                report.machine_lines(results["machine"]),
                f"{shape}, {first['nonzeros']:,} non-zeros ({first['count_bytes'] / 1e6:,.0f} MB; {dense:,.0f} GB if "
                f"it were dense), R={results['rank']}, one start, each method in its own process, Limestone and Marble "
                "on all cores, the others on one. An iteration updates each factor once, of Limestone and Marble up to "
                "ten times; figures are medians without the first. A fit counts the co-occurrences, iterates (Marble: "
                "after 20 of Limestone's iterations, SUSTain: after 20 of NonnegativeCP's) and solves the scores. "
                f"The bar is {LIMIT:g} s an iteration on two cores.",
                report.table(heads, rows),
                *(
                    [BUSY]
                    if results["machine"].get("load_at_end", 0) > 1.5 * results["machine"]["cores"]
                    else []
                ),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
