"""Ctrl-C at random moments of a start, a cohort build, a fit and a report: exit status 130, one line, no files."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from helpers import source_files
from helpers.cli import SIGNALLING, run, succeeded

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(os.name != "posix", reason="signals of POSIX"),
]
SEED, MOMENTS = 20, 12
COMMANDS = {
    "start": ["--version"],
    "cohort": [
        "cohort",
        "tables",
        "--events",
        "events.parquet",
        "--static",
        "static.parquet",
        "--out",
        "new",
    ],
    "fit": [
        "fit",
        "cohort",
        "--rank",
        "4",
        "--tol",
        "0",
        "--max-iter",
        "60",
        "--threads",
        "1",
        "--out",
        "new",
    ],
    "report": ["report", "model", "--cohort", "cohort", "--out", "new.html"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cohort, its model, and tables to build a cohort from."""
    place = tmp_path_factory.mktemp("interrupts")
    succeeded(run("demo", "--patients", 60, "--out", "demo", folder=place))
    for name in ("cohort", "model"):
        shutil.move(place / "demo" / name, place / name)
    shutil.rmtree(place / "demo")
    events, static = source_files.source_tables()
    events.to_parquet(place / "events.parquet")
    static.to_parquet(place / "static.parquet")
    return place


def start(arguments, folder):
    child = subprocess.Popen(
        [sys.executable, "-c", SIGNALLING, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # as in a terminal
    )
    assert child.stdout.read(1) == "x"
    return child


def duration(arguments, folder):
    remove_new(folder)
    began = time.monotonic()
    child = start(arguments, folder)
    _, errors = child.communicate(timeout=300)
    assert child.returncode == 0, errors
    remove_new(folder)
    return time.monotonic() - began


def remove_new(folder):
    for path in folder.glob("new*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_random_moments(name, folder):
    whole = min(duration(COMMANDS[name], folder) for _ in range(2))
    before = sorted(folder.rglob("*"))
    rng = random.Random(f"{name} {SEED}")
    reached = 0
    for moment in range(4 * MOMENTS):  # more of them where the command is over too soon on a busy machine
        if moment >= MOMENTS and reached >= MOMENTS // 3:
            break
        delay = rng.uniform(0.02, whole)
        child = start(COMMANDS[name], folder)
        time.sleep(delay)
        running = child.poll() is None
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=120)
        assert "Traceback" not in errors, (delay, errors)
        # At its very end, with the result complete, Python runs no handlers any more.
        complete = name == "start" or (folder / COMMANDS[name][-1]).exists()
        if running and not (complete and child.returncode in (0, -signal.SIGINT)):
            assert child.returncode == 130, (delay, whole, errors)
            assert "Interrupted" in errors
            reached += 1
        if child.returncode == 130 and not {"new", "new.html"} & {path.name for path in folder.iterdir()}:
            assert sorted(path for path in folder.rglob("*") if ".work" not in str(path)) == before, delay
        remove_new(folder)
    assert reached >= MOMENTS // 3
