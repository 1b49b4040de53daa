"""Input that was made to break the command: refused with one sentence, or harmless."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from helpers.cli import SIGNALLING, error_line, refused
from phenotaste import Cohort
from phenotaste.cli import interrupt_again
from phenotaste.errors import InputError, safe

ROWS = [f"p{p},2010-0{month}-01,{code}" for p in range(12) for month, code in ((1, "a"), (2, "b"), (3, "a"))]
OPTIONS = ("--vocabulary", "local", "--kind", "diagnosis", "--out", "COHORT")


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("\n".join(["patient,time,code", *ROWS]) + "\n")
    return path


def test_a_header_without_end_is_not_read_into_memory(call, tmp_path):
    (tmp_path / "events.csv").write_bytes(b"patient,time,code," + b"x" * 3_000_000)
    error_line(call("cohort", "tables", "--events", "events.csv", *OPTIONS), "line of more than")


def test_a_resource_without_end_is_not_read_into_memory(call, tmp_path):
    (tmp_path / "Patient.ndjson").write_bytes(b'{"resourceType": "' + b"x" * 17_000_000)
    error_line(call("cohort", "fhir", ".", "--out", "COHORT"), "line of more than")


def test_a_table_of_groups_without_end_is_not_read_into_memory(call, events, tmp_path):
    (tmp_path / "groups.csv").write_bytes(b"code," * 500_000)
    error_line(
        call("cohort", "tables", "--events", events, "--groups", "groups.csv", *OPTIONS), "line of more"
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes of POSIX")
@pytest.mark.parametrize("option", ["--events", "--static", "--settings", "--labels", "--groups"])
def test_pipes_are_refused(call, events, tmp_path, option):
    os.mkfifo(tmp_path / "pipe.csv")
    given = [] if option == "--events" else ["--events", events]
    result = call("cohort", "tables", *given, option, "pipe.csv", *OPTIONS)
    error_line(result, "pipe.csv")


@pytest.mark.parametrize(
    ("place", "column"), [("p1\0", "patient"), ("a\0", "code"), ("\0", "code"), ("a\0b", "code")]
)
def test_a_text_with_nul_is_refused_and_not_shown(call, events, place, column):
    row = f"{place},2010-01-01,a" if column == "patient" else f"p1,2010-04-01,{place}"
    events.write_text(events.read_text() + row + "\n")
    message = error_line(call("cohort", "tables", "--events", events, *OPTIONS), f"column {column} of", "NUL")
    assert "p1" not in message


ADDRESSES = [
    "postgresql://ann:secret@127.0.0.1:1/cdm",
    "postgresql:/ann:secret@127.0.0.1:1/cdm",
    " postgresql://ann:secret@127.0.0.1:1/cdm",
    "postgresql://ann:sec/secret@127.0.0.1:1/cdm",
    "postgresql://ann:my secret@127.0.0.1:1/cdm",
    "ann:secret@127.0.0.1:1/cdm",
    "host=127.0.0.1 user=ann passwd=secret",
    "host=127.0.0.1 user=ann PASSWORD = 'my secret'",
    "mysql://127.0.0.1/cdm?password=secret",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_message_has_a_password(call, address):
    for command in (
        ("cohort", "omop", address, "--out", "COHORT"),
        ("cohort", "synpuf", address, "--out", "COHORT"),
        ("cohort", "tables", "--events", address, "--out", "COHORT"),
        ("fit", address, "--rank", "2", "--out", "MODEL"),
        ("cohort", "omop", "x", address, "--out", "COHORT"),
    ):
        result = call(*command)
        assert result.returncode in (1, 2)
        assert "secret" not in result.stdout + result.stderr, result.stderr
        assert "Traceback" not in result.stderr


def test_a_password_on_the_command_line_is_warned_of(call):
    warned = call("cohort", "omop", ADDRESSES[0], "--out", "COHORT").stderr
    assert "Note: Other users can see the password" in warned
    assert "PGPASSWORD" in warned
    assert "Note" not in call("cohort", "omop", "postgresql://ann@127.0.0.1:1/cdm", "--out", "COHORT").stderr


def test_names_of_columns_cannot_control_the_terminal(call, tmp_path):
    (tmp_path / "events.csv").write_text("pat\x1b[2J\x1b]0;title\x07,time,code\na,2010-01-01,x\n")
    result = call("cohort", "tables", "--events", "events.csv", *OPTIONS)
    assert "lacks the column patient" in error_line(result)
    assert not set(result.stderr) & set("\x1b\x07")
    other = call("cohort", "tables", "--events", "a\x1b[2J.csv", "extra\x1b[2J", *OPTIONS)
    assert "\x1b" not in other.stderr
    with pytest.raises(InputError) as refusal:
        raise InputError("a\x1b[2J\nb")
    assert str(refusal.value) == "a\ufffd[2J b"
    assert safe("Dx_Gout [54.] é …") == "Dx_Gout [54.] é …"


FORGED = [
    "text",
    [1, 2],
    {"settings": "text"},
    {"thresholds": 5},
    {"thresholds": ["text"]},
    {"learnt": "text"},
    {"learnt": {"measurements": "many"}},
    {"learnt": {"static": 3}},
]


@pytest.mark.parametrize("origin", FORGED, ids=json.dumps)
def test_a_forged_origin_is_refused(call, tmp_path, origin):
    cohort = Cohort(np.eye(4), [0, 2, 4])
    with pytest.raises(InputError, match="origin"):
        Cohort(cohort.visits, cohort.offsets, origin=origin)
    cohort.origin = origin  # as in a manifest that was sealed again
    cohort.save(tmp_path / "forged")
    refused(call("fit", "forged", "--rank", "1", "--out", "MODEL"), "forged", "origin")


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_an_interrupt_within_a_callback_is_not_lost(monkeypatch):
    class Callback:
        def __del__(self):
            raise KeyboardInterrupt

    def drop_and_wait():
        Callback()
        time.sleep(10)

    monkeypatch.setattr(sys, "unraisablehook", interrupt_again)
    # As in a terminal: in the background, or after another test, the signal may be ignored or fatal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            drop_and_wait()
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.2, 0.4])
def test_ctrl_c_while_the_command_starts(delay):
    """From the first statement of `main` on; before that, Python itself prints a traceback."""
    child = subprocess.Popen(
        [sys.executable, "-c", SIGNALLING, "doctor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # as in a terminal
    )
    assert child.stdout.read(1) == "x"
    time.sleep(delay)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    *steps, last = errors.splitlines()
    assert (child.returncode, last) == (130, "Interrupted; no incomplete files were left."), errors
    assert all(step.endswith(" …") for step in steps), errors
