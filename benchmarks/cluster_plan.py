"""Estimates the resources of a fit of a hundred million patients on a given cluster from the measured cost of one.

    python -m benchmarks.cluster_plan [--patients 100000000] [--machines 32] ...

The cost of a patient is taken from the newest results of `benchmarks/disk.py`. Prints the table of docs/large.md.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from phenotaste.engines.partition import number_of_blocks

RESULTS = Path(__file__).parent / "results"
GENERATIONS = 3  # of the courses on disk: before, now, and the one being written


class Measured(NamedTuple):
    """The measured cost of one patient."""

    processor_seconds: float  # per iteration on disk, including input and output
    visits: float
    data_bytes: float  # of the cohort folder
    rank: int
    itemsize: int


class Cluster(NamedTuple):
    machines: int = 32
    cores: int = 16  # virtual cores
    disk_bytes_per_second: float = 1.0e9  # between a machine and the work folder
    price: float = 1.0  # dollars per machine and hour, an assumption
    utilisation: float = 0.8  # of the cores, an assumption


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patients", type=int, default=10**8)
    parser.add_argument("--iterations", type=int, default=100)
    for name, default in Cluster()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = vars(parser.parse_args())
    patients, iterations = options.pop("patients"), options.pop("iterations")
    for name, text in lines(newest(), Cluster(**options), patients, iterations):
        print(f"| {name} | {text} |")


def newest() -> Measured:
    """The cost in the largest cohort of the newest results."""
    path = max(RESULTS.glob("*-disk.json"))
    results: dict[str, Any] = json.loads(path.read_text())
    sizes, rank = results["sizes"]["whole"], int(results["options"]["rank"])
    runs = [run["processor_seconds"] / run["patients"] for run in results["runs"] if run["cohort"] == "whole"]
    itemsize = 4 if results["options"]["dtype"] == "float32" else 8
    patients = sizes["patients"]
    return Measured(max(runs), sizes["visits"] / patients, sizes["bytes"] / patients, rank, itemsize)


def lines(one: Measured, cluster: Cluster, patients: int, iterations: int) -> list[tuple[str, str]]:
    """The rows of the table."""
    visits = patients * one.visits
    data, courses = patients * one.data_bytes, visits * one.rank * one.itemsize
    blocks = number_of_blocks(int(visits), 314, one.rank)
    sums = 8 * one.rank * (314 + 4 * one.rank)
    computing = patients * one.processor_seconds / (cluster.machines * cluster.cores * cluster.utilisation)
    transfer = (data + 3 * courses) / (cluster.machines * cluster.disk_bytes_per_second)
    iteration = max(computing, transfer)
    hours = iteration * (iterations + 2) / 3600  # initialisation and the final evaluation are passes as well
    return [
        ("patients, visits", f"{patients:,}, {visits:.2e}"),
        ("measured, per patient and iteration", f"{1e6 * one.processor_seconds:.0f} µs of one core"),
        (
            "shards (blocks of at most 2²² visits)",
            f"{blocks:,} of about {round(patients / blocks, -3):,.0f} patients",
        ),
        ("data", size(data)),
        ("courses, one generation; all three", f"{size(courses)}; {size(GENERATIONS * courses)}"),
        ("sums, one shard; all shards of an iteration", f"{size(sums)}; {size(blocks * sums)}"),
        ("cluster", f"{cluster.machines} machines with {cluster.cores} cores"),
        ("disk per machine", size((data + GENERATIONS * courses) / cluster.machines)),
        (
            "computation per iteration",
            f"{computing:.0f} s at a core utilisation of {cluster.utilisation:.0%}",
        ),
        (
            "input and output per iteration",
            f"{transfer:.0f} s at {size(cluster.disk_bytes_per_second)}/s per machine: {size(data + 3 * courses)}",
        ),
        (f"a fit of {iterations} iterations", f"{hours:.1f} hours: the slower of the two, which overlap"),
        (
            "cost",
            f"{cluster.machines * hours:.0f} machine hours, ${cluster.machines * hours * cluster.price:.0f} at "
            f"${cluster.price:.2f} per hour",
        ),
    ]


def size(count: float) -> str:
    power = min(int(math.log10(max(count, 1)) // 3), 4)
    return f"{count / 1000**power:.3g} {['B', 'kB', 'MB', 'GB', 'TB'][power]}"


if __name__ == "__main__":
    main()
