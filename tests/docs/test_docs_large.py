"""The plan in docs/large.md agrees with the measured figures."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_plan_agrees_with_the_measured_figures():
    command = [sys.executable, "-m", "benchmarks.cluster_plan"]
    printed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert len(printed.splitlines()) >= 10
    assert printed in (ROOT / "docs" / "large.md").read_text()


def test_more_machines_take_less_time_and_slower_disks_more():
    def hours(*more):
        command = [sys.executable, "-m", "benchmarks.cluster_plan", *more]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
        row = next(line for line in done.stdout.splitlines() if "iterations" in line)
        return float(row.split("|")[2].split()[0])

    assert hours("--machines", "64") < hours() < hours("--disk-bytes-per-second", "5e8")
