"""Selections that are killed, interrupted and go on: real processes, real signals."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from phenotaste import TASTE, InputError, selection, simulate
from phenotaste.runs import workers
from phenotaste.selection.grid import Task
from phenotaste.storage.encoding import unpack

MODULE = "phenotaste.selection.execution"
COMMAND = [sys.executable, "-m", "phenotaste.cli", "select"]
SAME = (
    "table.csv",
    "evidence.csv",
    "reproducibility.csv",
    "selection.md",
    "figures/stability.png",
    "figures/starts.pdf",
)

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc"),
    pytest.mark.filterwarnings("ignore:The choice is at the edge"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    simulate.ehr(150, n_features=60, mean_visits=25, rank=3, random_state=1)[0].save(folder / "cohort")
    return folder


def start(place, out, *options, cohort="cohort"):
    command = [*COMMAND, cohort, "--out", out, "--jobs", "2", *map(str, options)]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(folder):
    return len(list((folder / "fits").glob("[!.]*"))) if (folder / "fits").is_dir() else 0


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def children(pid):
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(status.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(status.parent.name))
        except (OSError, ValueError):
            continue
    return found


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_killed_five_times_at_random_the_result_is_the_same(place):
    """kill -9: no worker outlives it, nothing on disk is corrupt, and going on ends as if nothing had been."""
    # Fits slow enough that no machine finishes the grid between two kills.
    simulate.ehr(500, mean_visits=40, rank=3, random_state=1)[0].save(place / "larger")
    grid = ("--ranks", "2:6", "--n-init", 6, "--bootstraps", 4, "--halves", 1)
    whole = start(place, "whole", *grid, cohort="larger")
    assert whole.wait(timeout=600) == 0, whole.stderr.read()
    total, chance = finished(place / "whole"), random.Random(os.environ.get("PYTEST_SEED", 0))
    for _ in range(5):
        process = start(place, "broken", *grid, "--resume", cohort="larger")
        goal = finished(place / "broken") + chance.randint(1, total // 8)
        wait_for(lambda goal=goal: finished(place / "broken") >= goal)
        time.sleep(chance.uniform(0, 0.1))
        workers = children(process.pid)
        process.kill()
        process.wait()
        assert len(workers) == 2
        wait_for(lambda workers=workers: not any(map(running, workers)), seconds=10)
        kept = list((place / "broken" / "fits").glob("[!.]*"))
        assert 0 < len(kept) < total
        assert all(unpack(path.read_bytes()).arrays for path in kept)
    last = start(place, "broken", *grid, "--resume", cohort="larger")
    assert last.wait(timeout=600) == 0, last.stderr.read()
    for name in SAME:
        assert (place / "broken" / name).read_bytes() == (place / "whole" / name).read_bytes(), name
    models = [TASTE.load(place / run / "best") for run in ("whole", "broken")]
    assert (models[0].V_ == models[1].V_).all()
    assert not list((place / "broken").rglob("*.partial"))


def test_ctrl_c_leaves_a_table_and_no_worker(place):
    grid = ("--ranks", "2:9", "--n-init", 8, "--halves", 0)
    process = start(place, "interrupted", *grid)
    wait_for(lambda: finished(place / "interrupted") >= 6)
    workers = children(process.pid)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in said
    assert "--resume continues the run" in said
    wait_for(lambda: not any(map(running, workers)), seconds=10)
    partial = pd.read_csv(place / "interrupted" / "table.csv")
    assert partial["rank"].tolist() == list(range(2, 10))
    assert 6 <= partial["starts"].sum() < 64
    assert partial["dissimilarity"].notna().any()
    assert not partial["complete"].all()


def test_a_worker_that_is_killed_is_replaced(place, tmp_path):
    """Its fit is done by another one; who keeps losing workers is told what to do."""
    cohort = place / "cohort"
    killed = []

    def kill_one(progress):
        if not killed:
            killed.append(children(os.getpid())[0])
            os.kill(killed[0], signal.SIGKILL)

    few = {"ranks": [2, 3], "n_init": 2, "halves": 0, "init": "random"}
    found = selection.select(cohort, **few, jobs=2, callback=kill_one)
    whole = selection.select(cohort, **few, jobs=1)
    assert killed
    assert found.table["complete"].all()
    assert (found.best.V_ == whole.best.V_).all()
    setup = {"cohort": "nowhere", "digest": "", "folder": str(tmp_path), "settings": {}, "threads": 1}
    tasks = [Task("start", 2, 0.1, 1.0, 0.3, number) for number in range(2)]
    with pytest.raises(InputError, match="nowhere is not a saved cohort"):
        workers.run_workers(MODULE, setup, tasks, jobs=1, threads=1, on_done=print)
    with pytest.raises(InputError, match="3 worker processes ended before their work was done"):
        workers.check_crashes(3)


def test_a_cohort_that_changes_during_the_run_is_detected(place, tmp_path):
    setup = {"cohort": str(place / "cohort"), "digest": "of another", "folder": str(tmp_path)}
    with pytest.raises(InputError, match="was changed during the selection"):
        workers.run_workers(
            MODULE,
            setup | {"settings": {}, "threads": 1},
            [Task("start", 2, 0.1, 1.0, 0.3, 0)],
            jobs=1,
            threads=1,
            on_done=print,
        )
