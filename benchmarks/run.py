"""TASTE and its peers: seconds per iteration, seconds to the same fit, peak memory. `python -m benchmarks.run -h`."""

import argparse
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from . import machine, report
from .data import STORED
from .process import measure, parafac2_python

PEERS = ("tensorly", "matcouply")  # with non-negative scores and definitions, as in TASTE
ENOUGH_CORE = 0.95  # a process with a smaller share of its core was disturbed
SAME = 1 + 1e-6  # errors within this factor count as equal


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="500 patients, few iterations: checks the harness"
    )
    parser.add_argument("--data", action="append", choices=("simulated", "stored"), help="default: both")
    parser.add_argument("--rank", type=int, action="append", help="default: 10 and 40; may be repeated")
    parser.add_argument("--patients", type=int, help="default: 2000")
    parser.add_argument("--repetitions", type=int, help="interleaved rounds of timing; default: 3")
    parser.add_argument("--iterations", type=int, help="iterations per round for the peers; default: 6")
    parser.add_argument("--taste-iterations", type=int, help="the same for TASTE; default: 20")
    parser.add_argument("--fit-iterations", type=int, help="of the same-fit part; default: 60; 0 skips it")
    parser.add_argument("--fit-repetitions", type=int, help="runs of the same-fit part; default: 1")
    parser.add_argument("--out", type=Path, help="folder of the results; default: benchmarks/results")
    options = parser.parse_args()
    full = {"patients": 2000, "repetitions": 3, "iterations": 6, "taste_iterations": 20}
    full |= {"fit_iterations": 60, "fit_repetitions": 1}
    quick = {"patients": 500, "repetitions": 1, "iterations": 3, "taste_iterations": 10}
    quick |= {"fit_iterations": 10, "fit_repetitions": 1}
    for name, value in (quick if options.quick else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.rank = options.rank or [10, 40]
    options.data = options.data or ["simulated", "stored"]
    return options


def main() -> None:
    options = arguments()
    python, missing = parafac2_python()
    notes = [missing] if missing else []
    results: dict[str, Any] = {"settings": settings_of(options), "machine": machine.describe(), "cases": []}
    results["machine"] |= measure(job="gemm")
    with TemporaryDirectory() as folder:
        files = data_files(options, Path(folder), notes)
        for name, path in files.items():
            shape = measure(job="describe", path=path, n_patients=options.patients)
            for rank in options.rank:
                case = {"data": name, "shape": shape, "rank": rank}
                common = {"path": path, "n_patients": options.patients, "rank": rank}
                case["iteration"] = time_iterations(options, common, python, results["machine"]["versions"])
                case["same_fit"] = same_fit(options, common)
                results["cases"].append(case)
    results["machine"]["load_at_end"] = machine.describe()["load"]
    results["notes"] = [*notes, *busy(results["cases"])]
    report.publish("peers", results, report.peers(results), folder_for(options))


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name != "out"}


def folder_for(options: argparse.Namespace) -> Path | None:
    """A quick run is only printed, unless a folder is given."""
    if options.out is None and options.quick:
        return None
    return options.out or report.RESULTS


def data_files(options: argparse.Namespace, folder: Path, notes: list[str]) -> dict[str, str]:
    files = {}
    if "simulated" in options.data:
        files["simulate.ehr"] = str(folder / "simulated.npz")
        measure(job="simulate", path=files["simulate.ehr"], n_patients=options.patients)
    if "stored" in options.data:
        if STORED.exists():
            files[STORED.stem] = str(STORED)
        else:
            notes.append(f"{STORED.name} is not here and was left out.")
    return files


def time_iterations(
    options: argparse.Namespace, common: dict[str, Any], python: str | None, versions: dict[str, str]
) -> dict[str, Any]:
    """Rounds of TASTE, tensorly, matcouply, parafac2, TASTE, ...; medians over the rounds."""
    names = ["TASTE", *PEERS, *(["parafac2"] if python else [])]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(options.repetitions):
        for name in names:
            task = {"job": "iterate", "method": name, "errors": False, **common}
            task["iterations"] = options.taste_iterations if name == "TASTE" else options.iterations
            found = measure(python, **task) if name == "parafac2" and python else measure(**task)
            runs[name].append(found)
            if name == "parafac2" and "versions" in found:
                versions[name] = f"{found['versions'][name]} (Python {found['versions']['python']})"
            report.progress(common, f"{name}, iterations", found)
    return {name: summary(found) for name, found in runs.items()}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median over rounds of the median over iterations, without the first, which includes the initialisation."""
    failed = [run["failed"] for run in runs if "failed" in run]
    if failed:
        return {"failed": failed[0]}
    rounds = [median(b - a for a, b in pairwise(run["seconds"])) for run in runs]
    return {
        "seconds": median(rounds),
        "rounds": rounds,
        "start_and_first": median(run["seconds"][0] for run in runs),
        "peak_bytes": max(run["peak_bytes"] for run in runs),
        "core_share": min(run["core_share"] for run in runs),
    }


def busy(cases: list[dict[str, Any]]) -> list[str]:
    """A warning if another process shared the core."""
    shares = [found.get("core_share", 1.0) for case in cases for found in case["iteration"].values()]
    if min(shares, default=1.0) >= ENOUGH_CORE:
        return []
    return [f"The machine was busy: one process had its core for {min(shares):.0%} of the time only."]


def same_fit(options: argparse.Namespace, common: dict[str, Any]) -> dict[str, Any]:
    """Without static features: time of each peer and of TASTE to the larger of their final errors of X."""
    if options.fit_iterations < 1:
        return {}
    task = {"job": "iterate", "errors": True, "iterations": options.fit_iterations, **common}
    found: dict[str, Any] = {name: [] for name in PEERS}
    for _ in range(options.fit_repetitions):
        taste = measure(method="TASTE", **task)
        report.progress(common, "TASTE, to the end", taste)
        for name in PEERS:
            peer = measure(method=name, **task)
            report.progress(common, f"{name}, to the end", peer)
            found[name].append(compare(options, common, taste, peer))
    return {name: middle_of(runs) for name, runs in found.items()}


def compare(
    options: argparse.Namespace, common: dict[str, Any], taste: dict[str, Any], peer: dict[str, Any]
) -> dict[str, Any]:
    for run in (taste, peer):
        if "failed" in run:
            return {"failed": run["failed"]}
    target = SAME * max(taste["final_error"], peer["final_error"])
    at = next((n for n, error in enumerate(peer["errors"]) if error <= target), len(peer["errors"]) - 1)
    reached = measure(
        job="reach",
        target=target,
        iterations=options.fit_iterations,
        repetitions=options.repetitions,
        **common,
    )
    if "failed" in reached:
        return reached
    return {
        "target": target,
        "taste_final": taste["final_error"],
        "peer_final": peer["final_error"],
        "peer_told": peer["errors"][-1],
        "peer_iterations": at + 1,
        "peer_seconds": peer["seconds"][at],
        "taste_iterations": reached["iterations"],
        "taste_seconds": reached["seconds"],
        "ratio": peer["seconds"][at] / reached["seconds"],
        "peer_errors": peer["errors"],
    }


def middle_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median ratio."""
    for run in runs:
        if "failed" in run:
            return run
    return sorted(runs, key=lambda run: run["ratio"])[len(runs) // 2]


if __name__ == "__main__":
    main()
