"""What a hundred million patients would take on a stated cluster, from the measured cost of one.

    python -m benchmarks.cluster_plan [--patients 100000000] [--machines 32] ...

The cost of a patient is that of the newest page of `benchmarks/disk.py`; the rest is arithmetic. Prints the table of
docs/large.md.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from phenotaste.engines.threads import number_of_blocks

RESULTS = Path(__file__).parent / "results"
GENERATIONS = 3  # of the courses on disk: before, now, and the one being written


class Measured(NamedTuple):
    """One patient, as the benchmark found it."""

    processor_seconds: float  # an iteration on disk, reading and writing included
    visits: float
    data_bytes: float  # of the cohort's folder
    rank: int
    itemsize: int


class Cluster(NamedTuple):
    machines: int = 32
    cores: int = 16  # virtual ones
    disk_bytes_a_second: float = 1.0e9  # to the work folder and back, a machine
    price: float = 1.0  # dollars a machine and hour, assumed: put in yours
    busy: float = 0.8  # the part of the time that cores work


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
    """From the largest cohort of the newest page."""
    path = max(RESULTS.glob("*-disk.json"))
    results: dict[str, Any] = json.loads(path.read_text())
    whole, rank = results["sizes"]["whole"], int(results["options"]["rank"])
    runs = [run["processor_seconds"] / run["patients"] for run in results["runs"] if run["cohort"] == "whole"]
    itemsize = 4 if results["options"]["dtype"] == "float32" else 8
    patients = whole["patients"]
    return Measured(max(runs), whole["visits"] / patients, whole["bytes"] / patients, rank, itemsize)


def lines(one: Measured, cluster: Cluster, patients: int, iterations: int) -> list[tuple[str, str]]:
    """Name and text of every row."""
    visits = patients * one.visits
    data, courses = patients * one.data_bytes, visits * one.rank * one.itemsize
    blocks = number_of_blocks(int(visits), 314, one.rank)
    sums = 8 * one.rank * (314 + 4 * one.rank)
    computing = patients * one.processor_seconds / (cluster.machines * cluster.cores * cluster.busy)
    moving = (data + 3 * courses) / (cluster.machines * cluster.disk_bytes_a_second)
    iteration = max(computing, moving)
    hours = iteration * (iterations + 2) / 3600  # the start and the closing look are passes, too
    return [
        ("patients, visits", f"{patients:,}, {visits:.2e}"),
        ("measured, a patient and iteration", f"{1e6 * one.processor_seconds:.0f} µs of one core"),
        (
            "shards (blocks of at most 2²² visits)",
            f"{blocks:,}, of {blocks_words(patients / blocks)} patients",
        ),
        ("data", size(data)),
        ("courses, one generation; all three", f"{size(courses)}; {size(GENERATIONS * courses)}"),
        ("sums, one shard; all that travel in an iteration", f"{size(sums)}; {size(blocks * sums)}"),
        ("cluster", f"{cluster.machines} machines with {cluster.cores} cores"),
        ("disk, a machine's part", size((data + GENERATIONS * courses) / cluster.machines)),
        ("computing, an iteration", f"{computing:.0f} s with cores busy {cluster.busy:.0%} of the time"),
        (
            "reading and writing, an iteration",
            f"{moving:.0f} s at {size(cluster.disk_bytes_a_second)}/s a machine: {size(data + 3 * courses)}",
        ),
        (f"a fit of {iterations} iterations", f"{hours:.1f} hours: the slower of the two, for they overlap"),
        (
            "cost",
            f"{cluster.machines * hours:.0f} machine hours, ${cluster.machines * hours * cluster.price:.0f} at "
            f"${cluster.price:.2f} an hour",
        ),
    ]


def size(count: float) -> str:
    power = min(int(math.log10(max(count, 1)) // 3), 4)
    return f"{count / 1000**power:.3g} {['B', 'kB', 'MB', 'GB', 'TB'][power]}"


def blocks_words(count: float) -> str:
    return f"some {round(count, -3):,.0f}"


if __name__ == "__main__":
    main()
