"""Seconds that a user waits before the first iteration: compiling on a new machine, then starting a process.

    python -m benchmarks.startup

Each measurement is a process of its own; kernels are cached in a temporary folder. The machine should be idle.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 3
CHILD = """
import json, sys, time
began = time.perf_counter()
from phenotaste import TASTE, Cohort
imported = time.perf_counter()
first = []
cohort = Cohort.load(sys.argv[1])
model = TASTE(int(sys.argv[2]), random_state=0, callback=lambda report: first.append(time.perf_counter()))
model.fit(cohort)
done = time.perf_counter()
model.transform(cohort)
print(json.dumps({"import": imported - began, "first iteration": first[0] - began, "fit": done - imported}))
"""
MAKE = """
import sys
from phenotaste import simulate
simulate.ehr(200, n_features=60, n_static=8, mean_visits=12, rank=5, random_state=0)[0].save(sys.argv[1])
"""


def run(script: str, cache: Path, *arguments: str) -> tuple[float, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["NUMBA_CACHE_DIR"] = str(cache)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return time.perf_counter() - began, done.stdout


def measure(rank: int, cohort: Path, folder: Path) -> None:
    for cached in (False, True):
        rows = []
        for n in range(RUNS):
            cache = folder / (f"{rank}-0" if cached else f"{rank}-{n}")
            whole, printed = run(CHILD, cache, str(cohort), str(rank))
            rows.append(json.loads(printed) | {"process": whole})
        best = {name: min(row[name] for row in rows) for name in rows[0]}
        figures = " ".join(f"{best[name]:10.2f}" for name in ("import", "first iteration", "fit", "process"))
        print(f"{rank:11d}  {'cached' if cached else 'compiled':9s} {figures}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cohort = folder / "cohort"
        run(MAKE, folder / "simulation", str(cohort))
        print("phenotypes   kernels       import  iteration        fit    process   (seconds, best of three)")
        for rank in (5, 20):  # eight patients at a time, and one by one
            measure(rank, cohort, folder)


if __name__ == "__main__":
    main()
