"""A cohort four times larger than the memory limit: seconds per iteration and memory, compared with a fit in memory.

The cohort is one simulated cohort of `simulate.ehr`, repeated. In memory a part of it is fitted, a quarter as a rule,
since the whole would need what large cohorts need; patients are independent, so that its seconds are scaled by their
number. Both are processes of their own, in turn. Pages are dropped behind the work, from the system's cache too: the
bytes that the process read and wrote are those of the disk, and are printed.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from phenotaste import TASTE, Cohort, simulate
from phenotaste.engines.disk import DiskEngine
from phenotaste.storage import mapped

from .machine import describe
from .report import machine_lines, publish, table

RESULTS = Path(__file__).parent / "results"
TILE = 5_000  # patients simulated, then repeated


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memory", default="600MB", help="memory limit of the fit on disk")
    parser.add_argument(
        "--larger", type=float, default=4.0, help="size of the cohort's folder relative to that limit"
    )
    parser.add_argument("--codes-per-visit", type=float, default=4.5, help="4.5 as in the paper's CMS data")
    parser.add_argument("--name", default="disk", help="of the results page")
    parser.add_argument("--rank", type=int, default=40)
    parser.add_argument("--dtype", default="float32", help="of the courses")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--part", type=int, default=4, help="in memory, fit one patient out of this number")
    parser.add_argument(
        "--folder", type=Path, help="folder for cohort and courses, on a disk; default: the temporary folder"
    )
    parser.add_argument("--quick", action="store_true", help="write no page")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.child is not None:
        print(json.dumps(measure(**json.loads(options.child))))
        return
    machine = describe()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        memory = mapped.parse_bytes(options.memory)
        tile, _ = simulate.ehr(TILE, codes_per_visit=options.codes_per_visit, random_state=0)
        sizes = {
            "whole": save(tile, folder / "whole", memory * options.larger),
            "part": save(tile, folder / "part", memory * options.larger / options.part),
        }
        fit = {
            "rank": options.rank,
            "dtype": options.dtype,
            "iterations": options.iterations,
            "work": str(folder / "work"),
        }
        runs: list[dict[str, Any]] = []
        for _ in range(options.rounds):
            for cohort, allowed in (("part", None), ("whole", options.memory), ("part", options.memory)):
                found = run(folder / cohort, allowed, fit)
                runs.append({"cohort": cohort, **found})
                print(describe_run(runs[-1]), flush=True)
    machine["load_at_end"] = round(os.getloadavg()[0], 2)
    settings = {name: str(value) for name, value in vars(options).items() if name not in ("child", "folder")}
    results = {"machine": machine, "sizes": sizes, "runs": runs, "memory": memory, "options": settings}
    publish(options.name, results, page(results), None if options.quick else RESULTS)


def save(tile: Cohort, path: Path, size: float) -> dict[str, Any]:
    """The cohort repeated until it has this number of bytes on disk."""
    tile.save(path)
    times = max(round(size / folder_bytes(path)), 1)
    shutil.rmtree(path)
    X = tile.visits
    step = np.repeat(np.arange(times) * X.nnz, X.shape[0])
    visits = sp.csr_array(
        (
            np.tile(X.data, times),
            np.tile(X.indices, times),
            np.concatenate([[0], np.tile(X.indptr[1:], times) + step]),
        ),
        shape=(X.shape[0] * times, X.shape[1]),
    )
    shift = np.repeat(np.arange(times) * tile.n_visits, len(tile))
    offsets = np.concatenate([[0], np.tile(tile.offsets[1:], times) + shift])
    Cohort(visits, offsets, np.tile(tile.static, (times, 1))).save(path)
    return {"patients": TILE * times, "visits": int(offsets[-1]), "bytes": folder_bytes(path)}


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def run(cohort: Path, memory: str | None, fit: dict[str, Any]) -> dict[str, Any]:
    task = json.dumps({"path": str(cohort), "memory": memory, **fit})
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.disk", "--child", task],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def measure(
    path: str, memory: str | None, rank: int, dtype: str, iterations: int, work: str
) -> dict[str, Any]:
    """One fit, in this process; the first iteration, which may include compilation, is excluded."""
    looks: list[dict[str, float]] = []
    engine = None if memory is None else DiskEngine(work, memory)
    model = TASTE(
        rank,
        dtype=dtype,
        init="random",
        n_init=1,
        max_iter=iterations,
        tol=0,
        random_state=0,
        engine=engine,
        callback=lambda progress: looks.append(look()),
    )
    began = time.perf_counter()
    if engine is None:
        model.fit(Cohort.load(path))
    else:
        with engine.memory_limit():
            model.fit(Cohort.load(path))
    seconds = time.perf_counter() - began
    between = [{name: after[name] - before[name] for name in after} for before, after in pairwise(looks)]
    middle = {name: float(np.median([step[name] for step in between])) for name in between[0]}
    return {
        "memory": memory,
        "patients": len(model.W_),
        "visits": model.n_visits_,
        "fit_seconds": seconds,
        "peak": status("VmHWM"),
        "anonymous": status("RssAnon"),
        **middle,
        "model": hashlib.sha256(
            model.V_.tobytes() + model.H_.tobytes() + model.loss_curve_.tobytes()
        ).hexdigest(),
    }


def look() -> dict[str, float]:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {
        "seconds": time.perf_counter(),
        "processor_seconds": time.process_time(),
        "read": float(counts["read_bytes"]),
        "written": float(counts["write_bytes"]),
    }


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def describe_run(found: dict[str, Any]) -> str:
    where = "in memory" if found["memory"] is None else f"within {found['memory']}"
    return (
        f"{found['patients']:,} patients {where}: {found['seconds']:.2f} s an iteration "
        f"({found['processor_seconds']:.2f} s of processor), peak {mapped.format_bytes(found['peak'])}"
    )


def page(results: dict[str, Any]) -> str:
    runs, memory = results["runs"], results["memory"]
    whole, part = results["sizes"]["whole"], results["sizes"]["part"]
    rows = []
    for cohort, name in (("part", "in memory"), ("part", "on disk"), ("whole", "on disk")):
        those = [r for r in runs if r["cohort"] == cohort and (r["memory"] is None) == (name == "in memory")]
        best = {
            key: np.median([r[key] for r in those])
            for key in ("seconds", "processor_seconds", "read", "written")
        }
        rows.append(
            [
                f"{those[0]['patients']:,} {name}",
                f"{best['seconds']:.2f}",
                f"{1e6 * best['seconds'] / those[0]['patients']:.1f}",
                f"{1e6 * best['processor_seconds'] / those[0]['patients']:.1f}",
                f"{best['read'] / 1e9:.2f}",
                f"{best['written'] / 1e9:.2f}",
                mapped.format_bytes(max(r["peak"] for r in those)),
                mapped.format_bytes(max(r["anonymous"] for r in those)),
            ]
        )
    ratio = float(rows[2][2]) / float(rows[0][2])
    same = len({r["model"] for r in runs if r["cohort"] == "part"}) == 1
    heads = [
        "patients",
        "s an iteration",
        "µs a patient",
        "processor µs",
        "GB read",
        "GB written",
        "peak",
        "anonymous",
    ]
    itemsize = np.dtype(results["options"]["dtype"]).itemsize
    courses = 2 * whole["visits"] * int(results["options"]["rank"]) * itemsize
    busy = (
        max(results["machine"]["load"], results["machine"]["load_at_end"]) > 1.5 * results["machine"]["cores"]
    )
    options, larger = results["options"], (whole["bytes"] / memory, (whole["bytes"] + courses) / memory)
    size = (
        f"{whole['patients']:,} patients with {whole['visits']:,} visits, "
        + f"{options['codes_per_visit']} codes a visit"
    )
    parts = [
        f"# Larger than memory, {date.today()}",
        machine_lines(results["machine"]),
        f"Rank {options['rank']}, courses in {options['dtype']}, {options['iterations']} iterations, medians of "
        f"{options['rounds']} rounds. The cohort has {size}: {mapped.format_bytes(whole['bytes'])} on disk, and "
        f"{mapped.format_bytes(courses)} of courses. The process may hold {mapped.format_bytes(memory)}: the cohort is "
        f"{larger[0]:.1f} times larger, with its courses {larger[1]:.0f} times. In memory {part['patients']:,} of "
        "the patients are fitted.",
        table(heads, rows),
        *(["**Others used the machine meanwhile**: go by the processor time."] if busy else []),
        f"An iteration on disk takes **{ratio:.2f} times** as long a patient as in memory, and "
        f"{float(rows[2][3]) / float(rows[0][3]):.2f} times the processor time. The models of the same patients in "
        f"memory and on disk are {'the same to the bit' if same else 'NOT the same'}. Peak is the most resident "
        "memory of the process, libraries and mapped pages included (`VmHWM`); anonymous is what of it was no file "
        "at the end. GB read and written are those of the disk, not of the system's cache (`/proc/self/io`).",
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
