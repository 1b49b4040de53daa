"""What times were taken on: cores, processor and versions; nothing that names the machine."""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from phenotaste.engines.threads import available_cores
from phenotaste.studies.study import Row

PACKAGES = ("phenotaste", "numpy", "scipy", "numba", "scikit-learn")


def describe(threads: int | None) -> Row:
    return {
        "cores": cores(),
        "threads": available_cores() if threads is None else threads,
        "processor": processor(),
        "versions": versions(),
    }


def cores() -> int:
    """Those this process may use; a worker that is told to use one thread has no fewer of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return facts.get("model name", platform.machine())


def versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


@contextmanager
def timed() -> Iterator[Row]:
    """Seconds on the clock and of this process's threads, in the record that is handed out, once the block is over."""
    taken: Row = {}
    wall, used = time.perf_counter(), processor_seconds()
    try:
        yield taken
    finally:
        taken["seconds"] = time.perf_counter() - wall
        taken["processor_seconds"] = processor_seconds() - used


def processor_seconds() -> float:
    """Of this process and of those it started and has waited for."""
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system


def load() -> float:
    """How many processes wanted to run, the minute before; times taken beside others are to be read with it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else float("nan")
