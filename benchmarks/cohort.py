"""Fifty million events in Parquet become a saved cohort: seconds and memory. `python -m benchmarks.cohort -h`."""

import argparse
import json
import resource
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import machine, report
from .data import ROOT

VISITS, EVENTS = 20, 50  # per patient
LIMITS = {"seconds": 180, "gigabytes": 6}  # targets for fifty million events on two cores


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cohort", description=__doc__)
    parser.add_argument("--patients", type=int, default=1_000_000, help=f"each with {EVENTS} events")
    parser.add_argument("--quick", action="store_true", help="20,000 patients: checks the harness")
    parser.add_argument(
        "--folder", help="folder for data and work files, 10 GB; default: the temporary folder"
    )
    parser.add_argument("--child", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(build(Path(options.child))))
        return
    patients = 20_000 if options.quick else options.patients
    results: dict[str, Any] = {"machine": machine.describe(), "runs": []}
    with TemporaryDirectory(dir=options.folder) as folder:
        for encounters in (True, False):
            make(Path(folder), patients, encounters)
            results["runs"].append({"encounters": encounters, **measured(folder)})
    results["machine"]["load_at_end"] = machine.describe()["load"]
    report.publish("cohort", results, page(results), None if options.quick else report.RESULTS)


def make(folder: Path, n_patients: int, encounters: bool) -> None:
    """Events with common and rare ICD-9-CM codes, and persons with text ids, unsorted."""
    import duckdb
    import pyarrow as pa

    from phenotaste.build.ccs import icd9_numbers

    con = duckdb.connect(config={"memory_limit": "3GB", "preserve_insertion_order": False, "threads": 2})
    codes = sorted(icd9_numbers())[::3]
    con.register("codes", pa.table({"rank": range(len(codes)), "code": codes}))
    con.execute("CREATE MACRO chance(a, b) AS (hash(a, b) % 1000003) / 1000003.0")
    visit = "'V' || (i * 7919 % $n) || '-' || (i // $n % $visits)" if encounters else "NULL::VARCHAR"
    events = f"""
        SELECT printf('P%08d', i * 7919 % $n) AS patient, {visit} AS visit, code, 'ICD9CM' AS vocabulary,
               'diagnosis' AS kind, TIMESTAMP '2015-01-01'
               + to_days(CAST(2000 * chance(i // $n % $visits, i * 7919 % $n) AS INTEGER)) AS time
        FROM range($rows) AS made(i) JOIN codes
          ON rank = CAST(floor({len(codes)} * pow(chance(i, 1), 3)) AS INTEGER)"""
    values = {"n": n_patients, "visits": VISITS, "rows": n_patients * EVENTS}
    con.execute(f"COPY ({events}) TO '{folder / 'events.parquet'}'", values)
    persons = """
        SELECT printf('P%08d', i) AS patient, DATE '1925-01-01' + to_days(CAST(20000 * chance(i, 2) AS INTEGER)) AS
               birth, ['female', 'male'][1 + i % 2] AS sex, ['white', 'black', 'other'][1 + i % 3] AS race
        FROM range($n) AS made(i)"""
    con.execute(f"COPY ({persons}) TO '{folder / 'persons.parquet'}'", {"n": n_patients})


def measured(folder: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.cohort", "--child", folder]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def build(folder: Path) -> dict[str, Any]:
    """The measurement, in a separate process: from files to the saved folder."""
    begin = time.perf_counter()
    from phenotaste import build
    from phenotaste.build.settings import Groups, Settings
    from phenotaste.sources import tables
    from phenotaste.sources.workspace import Workspace

    def tell(step: str) -> None:
        print(f"{time.perf_counter() - begin:8.1f} s  {peak():.2f} GB  {step}", file=sys.stderr, flush=True)

    settings = Settings(min_visits=5, min_patients=5, groups=Groups(ccs="single"))
    with Workspace(folder, threads=2) as workspace:
        records = tables.read(workspace, folder / "events.parquet", folder / "persons.parquet")
        built = build.cohort(workspace, records, settings, progress=tell)
        built.save(folder / "cohort")
    seconds = time.perf_counter() - begin
    tell("saved")
    used = resource.getrusage(resource.RUSAGE_SELF)
    size = built.cohort.summary()
    return {
        "events": built.quality["events"],
        "patients": size.patients,
        "visits": size.visits,
        "features": size.features,
        "nonzeros": size.nonzeros,
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "gigabytes": peak(),
    }


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def page(results: dict[str, Any]) -> str:
    rows = [
        [
            "encounter" if run["encounters"] else "day",
            *(f"{run[name]:,}" for name in ("events", "patients", "visits", "features", "nonzeros")),
            f"{run['seconds']:.0f}",
            f"{run['cpu_seconds']:.0f}",
            f"{run['gigabytes']:.2f}",
        ]
        for run in results["runs"]
    ]
    heads = ["visit", "events", "patients", "visits", "features", "non-zeros", "s", "CPU s", "peak GB"]
    return (
        "\n\n".join(
            [
                f"# From events to a cohort, {date.today().isoformat()}",
                report.machine_lines(results["machine"]),
                "Simulated events in Parquet to a saved cohort, two threads, CCS single level, at least 5 visits, "
                "features in at least 5 patients; the whole process with its imports. The bar for fifty million events "
                f"is {LIMITS['seconds']} s and {LIMITS['gigabytes']} GB.",
                report.table(heads, rows),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
