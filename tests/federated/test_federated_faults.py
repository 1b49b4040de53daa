"""Sites that are late, lose their state, are killed, or must not send anything."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from helpers.hospitals import NAMES, hospitals, pooled, round_of_steps
from phenotaste import TASTE, Cohort
from phenotaste.errors import InputError
from phenotaste.federated import Settings, combine, init, messages, status, step

COHORTS = hospitals()


def start(root, **settings):
    init(root / "work", NAMES, Settings(**{"rank": 2, "n_init": 1, "max_rounds": 6, "tol": 0.0, **settings}))
    return root / "work" / "exchange"


def test_repeated_steps_and_combines_write_the_same_bytes(tmp_path):
    post = start(tmp_path)
    for number in range(3):
        first = [done.response.read_bytes() for done in round_of_steps(tmp_path, COHORTS)]
        again = round_of_steps(tmp_path, COHORTS)
        assert all(done.repeated for done in again)
        assert [done.response.read_bytes() for done in again] == first
        files = [post / messages.file_name(number, name) for name in NAMES]
        request = combine(tmp_path / "work", files).message
        content = request.read_bytes()
        request.unlink()
        repeated = combine(tmp_path / "work", files)
        assert repeated.repeated
        assert repeated.message.read_bytes() == content


def test_a_late_site_is_required_or_excluded_and_may_return(tmp_path):
    start(tmp_path, max_rounds=30)
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work")
    for number in range(1, 31):
        late = 3 <= number <= 5
        round_of_steps(tmp_path, COHORTS[:2] if late else COHORTS)
        if late:
            with pytest.raises(InputError, match="east has not responded in round"):
                combine(tmp_path / "work")
        done = combine(tmp_path / "work", exclude=["east"] if late else [])
        assert done.excluded == (("east",) if late else ())
    assert status(tmp_path / "work")["excluded"] == {"east": [3, 4, 5]}
    round_of_steps(tmp_path, COHORTS)
    model = combine(tmp_path / "work").model
    history = json.loads((model / "federation.json").read_text())
    assert history["excluded"] == {"east": [3, 4, 5]}
    fitted = TASTE.load(model)
    patients = [entry["patients"] for entry in history["rounds"]]
    assert patients[4] == patients[2] - len(COHORTS[2])
    assert fitted.n_patients_ == sum(map(len, COHORTS))
    # It ends where a fit without the gap ends, though on another path.
    static = fitted.static_names_in_.tolist()
    complete = TASTE(2, init="random", max_iter=60, tol=0.0, random_state=0)
    complete.fit(pooled(COHORTS, fitted.feature_names_in_.tolist(), static))
    assert fitted.loss_curve_[-1] == pytest.approx(complete.loss_curve_[-1], rel=2e-3)
    changes = np.diff(fitted.loss_curve_[7:])
    assert (changes <= 1e-9 * fitted.loss_curve_[-1]).all()  # once all have returned, it never rises


def test_a_response_of_an_earlier_round_is_refused_or_ignored(tmp_path):
    post = start(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work")
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work", exclude=["east"])  # east has responded, but its file did not arrive
    round_of_steps(tmp_path, COHORTS)
    with pytest.raises(InputError, match="of round 1"):
        combine(tmp_path / "work", [post / messages.file_name(1, "east"), post])
    assert combine(tmp_path / "work").sites == NAMES


def test_all_sites_or_an_unknown_one_cannot_be_excluded(tmp_path):
    start(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    with pytest.raises(InputError, match="nothing to combine"):
        combine(tmp_path / "work", exclude=NAMES)
    with pytest.raises(InputError, match="not among the sites"):
        combine(tmp_path / "work", exclude=["west"])


def test_a_site_that_lost_its_state_or_missed_the_join_restarts_its_courses(tmp_path):
    post = start(tmp_path)
    round_of_steps(tmp_path, COHORTS[:2])
    combine(tmp_path / "work", exclude=["east"])  # the columns are fixed without it
    losses = []
    for number in range(1, 7):
        if number == 4:
            shutil.rmtree(tmp_path / "north")
        if number in (1, 4):
            with pytest.raises(InputError, match=f"no state of this fit, which is in round {number}"):
                round_of_steps(tmp_path, COHORTS)
        round_of_steps(tmp_path, COHORTS, rejoin=number in (1, 4))
        cold_start = messages.read(post / messages.file_name(number, "north")).header["cold_start"]
        assert cold_start == (number == 4)
        losses.append(combine(tmp_path / "work").objective)
    assert not any(entry for entry in status_history(tmp_path) if 4 in entry.get("undone", ()))
    assert all(np.isfinite(losses))
    round_of_steps(tmp_path, COHORTS)
    fitted = TASTE.load(combine(tmp_path / "work").model)
    assert "own" not in fitted.feature_names_in_  # the code that only east has
    assert fitted.n_patients_ == sum(map(len, COHORTS))


def status_history(root):
    return json.loads((root / "work" / "coordinator" / "manifest.json").read_text())["meta"]["history"]


def test_a_site_that_lost_its_state_before_the_evaluation_projects(tmp_path):
    start(tmp_path, max_rounds=3)
    for _ in range(4):
        round_of_steps(tmp_path, COHORTS)
        combine(tmp_path / "work")
    shutil.rmtree(tmp_path / "north")
    round_of_steps(tmp_path, COHORTS, rejoin=True)
    fitted = TASTE.load(combine(tmp_path / "work").model)
    assert 0 < fitted.rmse_ < np.inf


@pytest.mark.parametrize(
    ("cohort", "words"),
    [
        (COHORTS[0][:99], "fewer than 100 patients"),
        (Cohort(COHORTS[0].visits, COHORTS[0].offsets, COHORTS[0].static), "no names"),
        (
            Cohort(
                COHORTS[0].visits,
                COHORTS[0].offsets,
                feature_names=COHORTS[0].feature_names,
                allow_negative=True,
            ),
            "negative",
        ),
    ],
)
def test_a_site_that_cannot_take_part_sends_nothing(tmp_path, cohort, words):
    post = start(tmp_path)
    with pytest.raises(InputError, match=words):
        step(post, cohort, site="north", state=tmp_path / "north")
    assert not (tmp_path / "north").exists()
    assert len(list(post.iterdir())) == 1


def test_the_larger_minimum_of_site_and_coordinator_applies(tmp_path):
    post = start(tmp_path, min_patients=20)
    few = COHORTS[0][:60]
    with pytest.raises(InputError, match="fewer than 100 patients"):
        step(post, few, site="north", state=tmp_path / "north")
    assert step(post, few, site="north", state=tmp_path / "north", min_patients=50).patients == 60
    with pytest.raises(InputError, match="fewer than 500 patients"):
        step(post, COHORTS[1], site="south", state=tmp_path / "south", min_patients=500)


def test_another_cohort_in_a_later_round_is_refused(tmp_path):
    """The difference of two sums would be the sums of the patients who were added or removed."""
    start(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work")
    with pytest.raises(InputError, match="not the cohort of the earlier rounds"):
        step(tmp_path / "work" / "exchange", COHORTS[0][1:], site="north", state=tmp_path / "north")
    with pytest.raises(InputError, match="cannot change"):
        step(
            tmp_path / "work" / "exchange",
            COHORTS[0],
            site="north",
            state=tmp_path / "north",
            min_cell_size=1,
        )
    with pytest.raises(InputError, match="folder of its own"):
        step(tmp_path / "work" / "exchange", COHORTS[0], site="south", state=tmp_path / "north")


def test_a_damaged_state_is_refused_and_a_foreign_folder_is_not_changed(tmp_path):
    post = start(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work")
    response = next((tmp_path / "north" / "site").glob("response*"))
    content = bytearray(response.read_bytes())
    content[-1] ^= 1
    response.write_bytes(content)
    with pytest.raises(InputError, match="checksum"):
        step(post, COHORTS[0], site="north", state=tmp_path / "north")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "site").write_text("unrelated")
    with pytest.raises(InputError):
        step(post, COHORTS[0], site="north", state=tmp_path / "foreign")
    assert (tmp_path / "foreign" / "site").read_text() == "unrelated"
    with pytest.raises(InputError, match="exists already"):
        init(tmp_path / "work", NAMES)
    with pytest.raises(InputError):
        combine(tmp_path / "foreign")


def test_concurrent_steps_are_refused(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    post = start(tmp_path)
    (tmp_path / "north").mkdir()
    handle = os.open(tmp_path / "north", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(InputError, match="another process"):
            step(post, COHORTS[0], site="north", state=tmp_path / "north")
    finally:
        os.close(handle)
    assert step(post, COHORTS[0], site="north", state=tmp_path / "north").round == 0


FIT_SCRIPT = """
from phenotaste.federated import combine, step
print("ready", flush=True)
while True:
    for name in {names}:
        step("work/exchange", "cohort-" + name, site=name, state=name)
    if combine("work").next == "done":
        break
"""


def kill_fit(tmp_path, seconds):
    """Run the fit in a process and kill it after this number of seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", FIT_SCRIPT.format(names=NAMES)], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_do_not_change_the_result(tmp_path, kills):
    for name, c in zip(NAMES, COHORTS, strict=True):
        c.save(tmp_path / f"cohort-{name}")
    rng = random.Random(kills)
    start(tmp_path, max_rounds=12)
    killed = sum(kill_fit(tmp_path, rng.random()) for _ in range(kills))
    assert killed
    start(tmp_path / "undisturbed", max_rounds=12)
    actual, expected = (TASTE.load(finish(root)) for root in (tmp_path, tmp_path / "undisturbed"))
    np.testing.assert_array_equal(actual.V_, expected.V_)
    np.testing.assert_array_equal(actual.loss_curve_, expected.loss_curve_)
    assert actual.rmse_ == expected.rmse_


def finish(root):
    while True:
        round_of_steps(root, COHORTS)
        done = combine(root / "work")
        if done.next == "done":
            return done.model


def test_after_a_kill_before_the_request_is_written_combine_writes_it(tmp_path):
    """Simulates a kill between saving the state and writing the request."""
    post = start(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    done = combine(tmp_path / "work")
    content = done.message.read_bytes()
    done.message.unlink()
    assert combine(tmp_path / "work").repeated
    assert (post / "round-0001.safetensors").read_bytes() == content
    with pytest.raises(InputError, match="not responded in round 1"):
        combine(tmp_path / "work")
