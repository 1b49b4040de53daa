"""Fits that are killed or interrupted and resumed: real processes, real signals."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from helpers.cli import succeeded
from helpers.cohorts import cohort
from phenotaste import TASTE

ITERATIONS = 120
FITTED = ("H_", "V_", "F_", "loss_curve_", "rmse_", "cpi_", "score_totals_")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a cohort and the model that an uninterrupted fit finds."""
    folder = tmp_path_factory.mktemp("killed")
    c = cohort(5, n_patients=200, visits=(5, 30), n_features=12)
    c.save(folder / "cohort")
    TASTE(5, n_init=2, max_iter=ITERATIONS // 2, tol=0, random_state=0).fit(c).save(folder / "whole")
    return folder


def arguments(out, *more):
    settings = ["--rank", "5", "--tol", "0", "--n-init", "2", "--max-iter", str(ITERATIONS // 2)]
    return ["fit", "cohort", "--out", out, *settings, "--checkpoint-every", "1", *more]


def begin(place, out, *more):
    return subprocess.Popen(
        [sys.executable, "-m", "phenotaste.cli", *arguments(out, *more)],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TERM": "dumb"},
    )


def wait_for_a_checkpoint(child, work, since=0.0):
    """Until one is there that this process wrote."""
    for _ in range(60_000):
        if any(path.stat().st_mtime > since for path in work.glob("state-*/manifest.json")):
            return
        assert child.poll() is None, child.stderr.read()
        time.sleep(0.005)
    raise AssertionError("no checkpoint in five minutes")


def kill_somewhere(place, out, chance, *more):
    """Begin, or go on, and kill -9 at a random moment after the next checkpoint; False: it was done already."""
    began = time.time()
    child = begin(place, out, *more)
    try:
        wait_for_a_checkpoint(child, place / f"{out}.work", began)
        time.sleep(chance.uniform(0, 0.5))
        done = child.poll() is not None
    finally:
        child.kill()
        child.wait()
    return not done


def assert_whole(place, out):
    one, other = TASTE.load(place / out), TASTE.load(place / "whole")
    for name in FITTED:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("more", [(), ("--memory", "2GB")], ids=["memory", "disk"])
def test_a_killed_and_resumed_fit_gives_the_same_model(place, call, more):
    out = "killed-once" + "".join(more[:1])
    assert kill_somewhere(place, out, random.Random(len(more)), *more)
    assert not (place / out).exists()
    resumed = succeeded(call(*arguments(out, "--resume", *more), folder=place))
    assert "begins anew" not in resumed.stderr
    assert_whole(place, out)
    assert not (place / f"{out}.work").exists()


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--memory", "2GB")], ids=["memory", "disk"])
@pytest.mark.parametrize("seed", range(3))
def test_a_repeatedly_killed_fit_gives_the_same_model(place, more, seed):
    out, chance = f"killed-{seed}" + "".join(more[:1]), random.Random(seed)
    killed = [kill_somewhere(place, out, chance, *more)]
    killed += [kill_somewhere(place, out, chance, "--resume", *more) for _ in range(4) if killed[-1]]
    assert sum(killed) >= 3
    child = begin(place, out, "--resume", "--overwrite", *more)
    _, stderr = child.communicate(timeout=600)
    assert child.returncode == 0, stderr
    assert_whole(place, out)


def test_an_interrupted_fit_prints_how_to_resume(place, call):
    for _ in range(5):  # on a busy machine the fit may be over before the signal is sent
        shutil.rmtree(place / "stopped", ignore_errors=True)
        child = begin(place, "stopped")
        wait_for_a_checkpoint(child, place / "stopped.work")
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=600)
        if child.returncode != 0:
            break
    assert child.returncode == 130
    assert "stopped.work" in stderr
    assert "--resume" in stderr
    refused = call(*arguments("stopped"), folder=place)
    assert refused.returncode == 1
    assert "resume it, or delete the folder" in refused.stderr
    resumed = call(*arguments("stopped", "--resume", "--work", "elsewhere"), folder=place)
    assert "Note: elsewhere has no usable checkpoint" in succeeded(resumed).stderr
    assert_whole(place, "stopped")
