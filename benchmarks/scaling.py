"""Cost of an iteration of TASTE as the data, the rank and the threads grow. `python -m benchmarks.scaling -h`."""

import argparse
import math
import os
from datetime import date
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from . import machine, report
from .process import measure

RESERVED_BYTES = 1.5e9  # for everything except the courses, when choosing their precision
MEGA = 1e6


class Point(NamedTuple):
    """One size: how the cohort is simulated and fitted."""

    settings: dict[str, Any]
    rank: int
    threads: int = 1
    iterations: int = 5


class Series(NamedTuple):
    title: str
    expected: str
    grows: str  # the column that the seconds are compared with
    points: list[Point]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: checks the harness")
    parser.add_argument(
        "--only", action="append", choices=("growth", "threads", "large"), help="default: all"
    )
    parser.add_argument("--repetitions", type=int, default=3, help="interleaved rounds of the small sizes")
    parser.add_argument("--out", type=Path, help="folder of the results; default: benchmarks/results")
    options = parser.parse_args()
    options.only = options.only or ["growth", "threads", "large"]
    return options


def main() -> None:
    options = arguments()
    results: dict[str, Any] = {"machine": machine.describe(), "growth": [], "threads": [], "large": []}
    shrink = 10 if options.quick else 1
    with TemporaryDirectory() as folder:
        cohorts = Cohorts(Path(folder))
        if "growth" in options.only:
            results["growth"] = [measure_series(s, options, cohorts) for s in growth(shrink)]
        if "threads" in options.only:
            results["threads"] = measure_series(threads(shrink), options, cohorts)["rows"]
        if "large" in options.only:
            results["large"] = [measure_large(*size, cohorts) for size in large(shrink)]
    results["machine"]["load_at_end"] = machine.describe()["load"]
    out = None if options.quick and options.out is None else options.out or report.RESULTS
    report.publish("scaling", results, page(results), out)


def growth(shrink: int) -> list[Series]:
    """Patients, visits, non-zeros and rank doubled one at a time."""
    n = 2000 // shrink

    def points(name: str, values: list[float], rank: int = 20) -> list[Point]:
        return [Point({"n_patients": n, name: value}, rank) for value in values]

    def ranks(n_patients: int, mean_visits: int) -> list[Point]:
        drawn = {"n_patients": n_patients, "mean_visits": mean_visits, "rank": 10}
        return [Point(drawn, rank) for rank in (5, 10, 20, 40, 80)]

    return [
        Series("Patients", "1", "patients", points("n_patients", [n, 2 * n, 4 * n, 8 * n])),
        Series("Visits", "1", "visits", points("mean_visits", [25, 50, 100, 200])),
        Series("Non-zeros", "at most 1", "nonzeros", points("codes_per_visit", [3, 6, 12, 24])),
        Series("Rank, 400 visits a patient", "at most 2", "rank", ranks(n // 5, 400)),
        Series("Rank, 10 visits a patient", "at most 3", "rank", ranks(2 * n, 10)),
    ]


def threads(shrink: int) -> Series:
    drawn = {"n_patients": 2000 // shrink}
    counts = sorted({1, min(2, os.cpu_count() or 1), os.cpu_count() or 1})
    return Series("Threads", "", "threads", [Point(drawn, 40, threads=n, iterations=10) for n in counts])


def large(shrink: int) -> list[tuple[str, Point]]:
    """The paper's CMS size, and a million patients."""
    scale = shrink**2
    cms = Point({"n_patients": 151_349 // scale, "mean_visits": 50}, 40, threads=2, iterations=2)
    million = Point({"n_patients": 1_000_000 // scale, "mean_visits": 50}, 10, threads=2, iterations=2)
    return [("CMS size", cms), ("a million patients", million)]


class Cohorts:
    """Cohorts on disk, simulated in a separate process so that simulation does not count as memory of a fit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[str, str] = {}

    def path(self, settings: dict[str, Any]) -> str:
        key = repr(sorted(settings.items()))
        if key not in self.paths:
            path = str(self.folder / str(len(self.paths)))
            drawn = measure(job="draw_cohort", path=path, settings=settings)
            if "failed" in drawn:
                raise SystemExit(f"the cohort {key} could not be simulated: {drawn['failed']}")
            self.paths[key] = path
        return self.paths[key]


def measure_point(point: Point, cohorts: Cohorts, dtype: str = "float64") -> dict[str, Any]:
    return measure(
        job="scale",
        path=cohorts.path(point.settings),
        rank=point.rank,
        iterations=point.iterations,
        threads=point.threads,
        n_jobs=point.threads,
        dtype=dtype,
    )


def measure_series(series: Series, options: argparse.Namespace, cohorts: Cohorts) -> dict[str, Any]:
    """All points of a series in turn, repeatedly, so that a busy period does not affect a single one."""
    rounds = [
        [measure_point(point, cohorts) for point in series.points]
        for _ in range(1 if options.quick else options.repetitions)
    ]
    rows = []
    for point, runs in zip(series.points, zip(*rounds, strict=True), strict=True):
        failed = [run for run in runs if "failed" in run]
        seconds = [median(run["seconds"]) for run in runs if "seconds" in run]
        row = failed[0] if failed else {**runs[0], "rounds": seconds, "seconds": median(seconds)}
        rows.append({**row, "rank": point.rank, "threads": point.threads})
    report.progress({"rank": series.points[-1].rank}, series.title, rows[-1])
    return {**series._asdict(), "points": None, "rows": rows}


def measure_large(name: str, point: Point, cohorts: Cohorts) -> dict[str, Any]:
    """float64 courses where they fit, float32 otherwise."""
    n = point.settings["n_patients"] * point.settings["mean_visits"]
    need = (
        n * (2.5 * 8 * point.rank + 5 * 8) + RESERVED_BYTES
    )  # courses, five codes per visit, everything else
    dtype = "float64" if need < (machine.memory_bytes("MemAvailable") or math.inf) else "float32"
    run = measure_point(point, cohorts, dtype)
    report.progress({"rank": point.rank}, name, run)
    if "seconds" in run:
        run["seconds"] = median(run["seconds"])
    return {"name": name, "rank": point.rank, "threads": point.threads, "dtype": dtype, **run}


def page(results: dict[str, Any]) -> str:
    parts = [
        f"# Cost of an iteration, {date.today().isoformat()}",
        report.machine_lines(results["machine"]),
        "TASTE on `simulate.ehr`, every size in its own process, every patient updated once, the first iteration "
        "left out. The exponent is the slope between two rows: seconds ∝ size^exponent.",
    ]
    for series in results["growth"]:
        parts += [f"## {series['title']}", f"Expected exponent: {series['expected']}.", growth_table(series)]
    if results["threads"]:
        parts += ["## Threads, R=40", threads_table(results["threads"])]
    if results["large"]:
        parts += [
            "## Large cohorts",
            "The bar is the CSR input + 2.5 × U + 200 MB.",
            large_table(results["large"]),
        ]
    return "\n\n".join(parts) + "\n"


def growth_table(series: dict[str, Any]) -> str:
    rows, before = [], None
    for row in series["rows"]:
        if "failed" in row:
            rows.append([str(row["rank"]), f"failed: {row['failed']}", *[""] * 6])
            continue
        exponent = ""
        if before:
            grown = math.log(row[series["grows"]] / before[series["grows"]])
            exponent = f"{math.log(row['seconds'] / before['seconds']) / grown:.2f}"
        sizes = [f"{row[name]:,}" for name in ("patients", "visits", "nonzeros")]
        a_visit = row["seconds"] / row["visits"] * 1e9
        bound = f"{row['peak_bytes'] / MEGA:,.0f} of {bar(row) / MEGA:,.0f}"
        rows.append([str(row["rank"]), *sizes, f"{row['seconds']:.3g}", f"{a_visit:,.0f}", exponent, bound])
        before = row
    heads = [
        "R",
        "patients",
        "visits",
        "non-zeros",
        "s an iteration",
        "ns a visit",
        "exponent",
        "peak MB of bar",
    ]
    return report.table(heads, rows)


def threads_table(rows: list[dict[str, Any]]) -> str:
    base = rows[0].get("seconds", math.nan)
    cells = [
        [str(row["threads"]), row["failed"], ""]
        if "failed" in row
        else [str(row["threads"]), f"{row['seconds']:.3g}", f"{base / row['seconds']:.2f}×"]
        for row in rows
    ]
    return report.table(["threads", "s an iteration", "faster than one"], cells)


def large_table(rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        label = [row["name"], str(row["rank"]), str(row["threads"]), row["dtype"]]
        if "failed" in row:
            cells.append([*label, f"failed: {row['failed']}", *[""] * 6])
            continue
        size = [f"{row['patients']:,}", f"{row['visits']:,}"]
        memory = [
            f"{row['before_bytes'] / 1e9:.2f}",
            f"{row['peak_bytes'] / 1e9:.2f}",
            f"{bar(row) / 1e9:.2f}",
        ]
        cells.append([*label, *size, f"{row['seconds']:.3g}", f"{row['first']:.3g}", *memory])
    heads = ["", "R", "threads", "U", "patients", "visits", "s an iteration", "s of start and first"]
    return report.table([*heads, "GB before the fit", "peak GB", "bar GB"], cells)


def bar(row: dict[str, Any]) -> float:
    return row["csr_bytes"] + 2.5 * row["course_bytes"] + 200 * MEGA


if __name__ == "__main__":
    main()
