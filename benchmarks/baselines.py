"""CPU time per iteration of the baselines, tensorly and TASTE. `python -m benchmarks.baselines -h`."""

import argparse
from datetime import date
from itertools import pairwise
from statistics import median
from typing import Any

from . import machine, report
from .data import STORED
from .process import measure

# Iterations per round: enough for a median, fewer for slow methods.
ITERATIONS = {
    "TASTE": 12,
    "tensorly": 4,
    "Spartan": 16,
    "CopaPlus": 12,
    "CohenPlus on the core": 12,
    "CohenPlus as published": 2,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baselines", description=__doc__)
    parser.add_argument("--rank", type=int, action="append", help="default: 10 and 40; may be repeated")
    parser.add_argument("--patients", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; default: 3")
    parser.add_argument("--quick", action="store_true", help="one round of 200 patients, printed only")
    options = parser.parse_args()
    ranks = options.rank or [10, 40]
    patients, rounds = (200, 1) if options.quick else (options.patients, options.rounds)
    shape = measure(job="describe", path=str(STORED), n_patients=patients)
    results: dict[str, Any] = {"machine": machine.describe(), "shape": shape, "rounds": rounds, "cases": {}}
    for rank in ranks:
        runs: dict[str, list[float]] = {name: [] for name in ITERATIONS}
        for _ in range(rounds):
            for name, iterations in ITERATIONS.items():
                task = {"path": str(STORED), "n_patients": patients, "rank": rank, "iterations": iterations}
                result = measure(job="iterate", method=name, errors=False, clock="cpu", **task)
                report.progress(task, name, result)
                if "failed" not in result:
                    runs[name].append(median(b - a for a, b in pairwise(result["seconds"])))
        results["cases"][rank] = runs
    report.publish("baselines", results, page(results), None if options.quick else report.RESULTS)


def page(results: dict[str, Any]) -> str:
    shape = results["shape"]
    rows = [
        "| R | method | seconds per iteration | relative to TASTE | relative to tensorly |",
        "|---|---|---|---|---|",
    ]
    for rank, runs in results["cases"].items():
        medians = {name: median(times) for name, times in runs.items() if times}
        for name, seconds in medians.items():
            ratios = [
                seconds / medians[other] if other in medians else float("nan")
                for other in ("TASTE", "tensorly")
            ]
            rows.append(f"| {rank} | {name} | {seconds:.3f} | {ratios[0]:.2f} | {ratios[1]:.3f} |")
    parts = [
        f"# Baselines, tensorly and TASTE: CPU time, {date.today().isoformat()}",
        report.machine_lines(results["machine"]),
        f"{shape['patients']} patients, {shape['visits']} visits, {shape['features']} features, {shape['nonzeros']} "
        f"non-zeros, {shape['static']} static features. One thread and one process each, interleaved, median of "
        f"{results['rounds']} rounds, CPU time (the machine need not be idle). Iterations differ in their work: "
        "tensorly's has five inner ones; tensorly and Spartan do not use static features.",
        "\n".join(rows),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
