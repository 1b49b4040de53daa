"""`phenotaste compare`: what it prints, writes and refuses, in a process of its own and killed."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from phenotaste import comparison, simulate

SMALL = ("--methods", "spartan,nmf,raw", "--ranks", "3", "--halves", "1", "--starts", "1", "--splits", "2")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    cohort = simulate.heart_failure(300, 3)[0]
    cohort.save(folder / "cohort")
    groups = pd.DataFrame(
        {"patient": cohort.patient_ids, "group": np.where(np.arange(300) % 3, "north", "south")}
    )
    groups.sample(frac=1.0, random_state=0).to_csv(folder / "groups.csv", index=False)
    groups.rename(columns={"group": "site"}).to_csv(folder / "unnamed.csv", index=False)
    return folder


def test_from_cohort_to_page(call, place):
    result = call("compare", "cohort", "--out", "out", *SMALL, "--jobs", "1", folder=place)
    assert result.returncode == 0, result.stderr
    for words in (
        "Replication between halves",
        "SPARTan",
        "NMF of patients",
        "comparison.html",
    ):
        assert words in result.stdout
    assert (place / "out" / "comparison.html").exists()


def test_groups_from_a_file_as_json(call, place):
    options = ("--methods", "spartan", "--ranks", "3", "--halves", "0", "--starts", "1", "--splits", "0")
    result = call(
        "compare", "cohort", "--out", "groups", *options, "--jobs", "1", "--between", "groups.csv", "--json",
        folder=place,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)["table"]
    assert 0 < row["groups_V"] < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--methods", "magic"), "does not exist"),
        (("--between", "site"), "no static columns of site"),
        (("--between", "unnamed.csv"), "has no column group"),
        (("--between", "missing.csv"), "missing.csv"),
    ],
)
def test_refusals_are_one_sentence(call, place, options, message):
    result = call("compare", "cohort", "--out", "refused", *options, folder=place)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not (place / "refused").exists()


def test_a_killed_comparison_resumes_to_the_same_table(place):
    """Workers and parent are killed; the comparison is resumed in this process."""
    options = ("--methods", "nmf,svd", "--ranks", "3", "--halves", "6", "--starts", "1", "--splits", "1")
    command = [sys.executable, "-m", "phenotaste.cli", "compare", "cohort", *options, "--jobs", "2", "--out"]
    process = subprocess.Popen(
        [*command, "killed"], cwd=place, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not list((place / "killed" / "fits").glob("*.safetensors")) and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished = len(list((place / "killed" / "fits").glob("*.safetensors")))
    same = {"ranks": 3, "halves": 6, "starts": 1, "splits": 1, "jobs": 1}
    for name, resume in (("killed", True), ("whole", False)):
        comparison.compare(place / "cohort", ["nmf", "svd"], out=place / name, resume=resume, **same)
    assert 0 < finished < len(list((place / "whole" / "fits").iterdir()))
    for name in ("table.csv", "phenotypes.csv", "counterparts.csv"):
        assert (place / "killed" / name).read_bytes() == (place / "whole" / name).read_bytes(), name
