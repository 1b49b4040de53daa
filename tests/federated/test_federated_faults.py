"""Sites that come late, lose their state, are killed in the middle, or should not send anything at all."""

import json
import os
import random
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


def begin(root, **settings):
    init(root / "work", NAMES, Settings(**{"rank": 2, "max_rounds": 6, "tol": 0.0, **settings}))
    return root / "work" / "exchange"


def test_the_same_message_gets_the_same_bytes_and_the_same_answers_the_same_message(tmp_path):
    post = begin(tmp_path)
    for number in range(3):
        first = [done.answer.read_bytes() for done in round_of_steps(tmp_path, COHORTS)]
        again = round_of_steps(tmp_path, COHORTS)
        assert all(done.again for done in again)
        assert [done.answer.read_bytes() for done in again] == first
        files = [post / messages.file_name(number, name) for name in NAMES]
        following = combine(tmp_path / "work", files).message
        content = following.read_bytes()
        following.unlink()
        repeated = combine(tmp_path / "work", files)
        assert repeated.again
        assert repeated.message.read_bytes() == content


def test_a_late_site_is_waited_for_or_left_out_and_may_come_back(tmp_path):
    begin(tmp_path, max_rounds=30)
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work")
    for number in range(1, 31):
        late = 3 <= number <= 5
        round_of_steps(tmp_path, COHORTS[:2] if late else COHORTS)
        if late:
            with pytest.raises(InputError, match="east has not answered round"):
                combine(tmp_path / "work")
        done = combine(tmp_path / "work", without=["east"] if late else [])
        assert done.left_out == (("east",) if late else ())
    assert status(tmp_path / "work")["left_out"] == {"east": [3, 4, 5]}
    round_of_steps(tmp_path, COHORTS)
    model = combine(tmp_path / "work").model
    history = json.loads((model / "federation.json").read_text())
    assert history["left_out"] == {"east": [3, 4, 5]}
    fitted = TASTE.load(model)
    patients = [entry["patients"] for entry in history["rounds"]]
    assert patients[4] == patients[2] - len(COHORTS[2])
    assert fitted.n_patients_ == sum(map(len, COHORTS))
    # It ends where a fit without the gap ends, though not on the same way.
    static = fitted.static_names_in_.tolist()
    whole = TASTE(2, init="random", max_iter=60, tol=0.0, random_state=0)
    whole.fit(pooled(COHORTS, fitted.feature_names_in_.tolist(), static))
    assert fitted.loss_curve_[-1] == pytest.approx(whole.loss_curve_[-1], rel=2e-3)
    falls = np.diff(fitted.loss_curve_[7:])
    assert (falls <= 1e-9 * fitted.loss_curve_[-1]).all()  # once all are back, it never rises again


def test_an_answer_that_comes_after_the_round_does_no_harm(tmp_path):
    post = begin(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work")
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work", without=["east"])  # east has answered, but its file did not arrive
    round_of_steps(tmp_path, COHORTS)
    with pytest.raises(InputError, match="of round 1"):
        combine(tmp_path / "work", [post / messages.file_name(1, "east"), post])
    assert combine(tmp_path / "work").sites == NAMES


def test_everybody_or_an_unknown_site_cannot_be_left_out(tmp_path):
    begin(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    with pytest.raises(InputError, match="nothing to combine"):
        combine(tmp_path / "work", without=NAMES)
    with pytest.raises(InputError, match="not among the sites"):
        combine(tmp_path / "work", without=["west"])


def test_a_site_that_lost_its_state_or_missed_the_beginning_starts_its_courses_anew(tmp_path):
    post = begin(tmp_path)
    round_of_steps(tmp_path, COHORTS[:2])
    combine(tmp_path / "work", without=["east"])  # the dictionary is agreed on without it
    losses = []
    for number in range(1, 7):
        if number == 4:
            for path in sorted((tmp_path / "north").rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        round_of_steps(tmp_path, COHORTS)
        fresh = messages.read(post / messages.file_name(number, "north")).record["fresh"]
        assert fresh == (number == 4)
        losses.append(combine(tmp_path / "work").objective)
    assert not any(entry for entry in status_history(tmp_path) if 4 in entry.get("undone", ()))
    assert all(np.isfinite(losses))
    round_of_steps(tmp_path, COHORTS)
    fitted = TASTE.load(combine(tmp_path / "work").model)
    assert "own" not in fitted.feature_names_in_  # the code that only east has
    assert fitted.n_patients_ == sum(map(len, COHORTS))


def status_history(root):
    return json.loads((root / "work" / "coordinator" / "manifest.json").read_text())["meta"]["history"]


def test_a_site_that_lost_its_state_before_the_closing_look_projects(tmp_path):
    begin(tmp_path, max_rounds=3)
    for _ in range(4):
        round_of_steps(tmp_path, COHORTS)
        combine(tmp_path / "work")
    for path in sorted((tmp_path / "north").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    round_of_steps(tmp_path, COHORTS)
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
def test_who_cannot_take_part_sends_nothing(tmp_path, cohort, words):
    post = begin(tmp_path)
    with pytest.raises(InputError, match=words):
        step(post, cohort, site="north", state=tmp_path / "north")
    assert not (tmp_path / "north").exists()
    assert len(list(post.iterdir())) == 1


def test_a_site_may_ask_for_more_patients_than_the_coordinator_but_not_for_fewer_unasked(tmp_path):
    post = begin(tmp_path, minimum_patients=20)
    few = COHORTS[0][:60]
    with pytest.raises(InputError, match="fewer than 100 patients"):
        step(post, few, site="north", state=tmp_path / "north")
    assert step(post, few, site="north", state=tmp_path / "north", minimum_patients=50).patients == 60
    with pytest.raises(InputError, match="fewer than 500 patients"):
        step(post, COHORTS[1], site="south", state=tmp_path / "south", minimum_patients=500)


def test_other_patients_in_a_later_round_are_refused(tmp_path):
    """The difference of two sums would be the sums of those who came or went."""
    begin(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work")
    with pytest.raises(InputError, match="not the cohort"):
        step(tmp_path / "work" / "exchange", COHORTS[0][1:], site="north", state=tmp_path / "north")
    with pytest.raises(InputError, match="cannot change"):
        step(tmp_path / "work" / "exchange", COHORTS[0], site="north", state=tmp_path / "north", fewest=1)
    with pytest.raises(InputError, match="folder of its own"):
        step(tmp_path / "work" / "exchange", COHORTS[0], site="south", state=tmp_path / "north")


def test_a_damaged_state_is_refused_and_one_that_is_not_ours_is_left_alone(tmp_path):
    post = begin(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    combine(tmp_path / "work")
    reply = next((tmp_path / "north" / "site").glob("reply*"))
    content = bytearray(reply.read_bytes())
    content[-1] ^= 1
    reply.write_bytes(content)
    with pytest.raises(InputError, match="checksum"):
        step(post, COHORTS[0], site="north", state=tmp_path / "north")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "site").write_text("mine")
    with pytest.raises(InputError):
        step(post, COHORTS[0], site="north", state=tmp_path / "letters")
    assert (tmp_path / "letters" / "site").read_text() == "mine"
    with pytest.raises(InputError, match="exists already"):
        init(tmp_path / "work", NAMES)
    with pytest.raises(InputError):
        combine(tmp_path / "letters")


def test_two_steps_at_once_are_kept_apart(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    post = begin(tmp_path)
    (tmp_path / "north").mkdir()
    handle = os.open(tmp_path / "north", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(InputError, match="another process"):
            step(post, COHORTS[0], site="north", state=tmp_path / "north")
    finally:
        os.close(handle)
    assert step(post, COHORTS[0], site="north", state=tmp_path / "north").round == 0


WHOLE_FIT = """
from phenotaste.federated import combine, step
print("ready", flush=True)
while True:
    for name in {names}:
        step("work/exchange", "cohort-" + name, site=name, state=name)
    if combine("work").next == "done":
        break
"""


def killed(tmp_path, after):
    """A process that would go on to the end, killed so many seconds after it begins to work."""
    process = subprocess.Popen(
        [sys.executable, "-c", WHOLE_FIT.format(names=NAMES)], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"ready\n"
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kills_at_any_moment_change_nothing(tmp_path, kills):
    for name, c in zip(NAMES, COHORTS, strict=True):
        c.save(tmp_path / f"cohort-{name}")
    chance = random.Random(kills)
    begin(tmp_path, max_rounds=12)
    hit = sum(killed(tmp_path, chance.random()) for _ in range(kills))
    assert hit
    mine, theirs = (TASTE.load(finished(root)) for root in (tmp_path, begun_again(tmp_path / "calm")))
    np.testing.assert_array_equal(mine.V_, theirs.V_)
    np.testing.assert_array_equal(mine.loss_curve_, theirs.loss_curve_)
    assert mine.rmse_ == theirs.rmse_


def begun_again(root):
    begin(root, max_rounds=12)
    return root


def finished(root):
    while True:
        round_of_steps(root, COHORTS)
        done = combine(root / "work")
        if done.next == "done":
            return done.model


def test_a_kill_before_the_message_is_written_is_mended_by_the_same_command(tmp_path):
    """The one moment between keeping the state and writing the message, made by hand."""
    post = begin(tmp_path)
    round_of_steps(tmp_path, COHORTS)
    done = combine(tmp_path / "work")
    content = done.message.read_bytes()
    done.message.unlink()
    assert combine(tmp_path / "work").again
    assert (post / "round-0001.safetensors").read_bytes() == content
    with pytest.raises(InputError, match="not answered round 1"):
        combine(tmp_path / "work")
