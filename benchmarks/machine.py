"""The machine of the measurements: processor, memory, versions, commit, and rate of matrix products."""

import os
import platform
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from .data import ROOT

PACKAGES = ("phenotaste", "numpy", "scipy", "numba", "scikit-learn", "tensorly", "matcouply", "parafac2")


def describe() -> dict[str, Any]:
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory_bytes("MemTotal") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "commit": commit(),
        "versions": versions(),
        "load": round(os.getloadavg()[0], 2),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in fields.items()}
    name = facts.get("model name", "unknown")
    if "cpu family" in facts:  # hypervisors often hide the full name
        name += f" (family {facts['cpu family']}, model {facts['model']})"
    return name


def memory_bytes(field: str) -> int:
    """A line of /proc/meminfo; 0 if it is missing."""
    try:
        text = Path("/proc/meminfo").read_text()
        return int(text.split(f"{field}:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return 0


def commit() -> str:
    """The commit, and whether the package differs from it."""
    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + (" with local changes to src" if git("status", "--porcelain", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def gemm_rates(n: int = 2048, repetitions: int = 5) -> dict[str, Any]:
    """Flop rate of one large square product, best of several; single and double precision."""
    rates = {}
    for name, dtype in (("sgemm", np.float32), ("dgemm", np.float64)):
        a = np.random.default_rng(0).random((n, n)).astype(dtype)
        out = np.empty_like(a)
        times = []
        for _ in range(repetitions + 1):
            start = time.perf_counter()
            np.matmul(a, a, out=out)
            times.append(time.perf_counter() - start)
        rates[name] = 2 * n**3 / min(times[1:])
    return rates
