"""Damaged, stale, replayed and hostile messages are refused with one sentence, on both sides."""

import json
import os
import shutil
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.hospitals import NAMES, hospitals, round_of_steps
from phenotaste import federated
from phenotaste.errors import InputError
from phenotaste.federated import Settings, messages
from phenotaste.federated.coordinator import combine, init
from phenotaste.federated.site import step
from phenotaste.storage import encoding

COHORTS = hospitals()


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A federated fit in round 1: all sites have responded to the first step request."""
    root = tmp_path_factory.mktemp("started")
    init(root / "work", NAMES, Settings(rank=2, n_init=1, max_rounds=3))
    round_of_steps(root, COHORTS)
    combine(root / "work")
    round_of_steps(root, COHORTS)
    return root


@pytest.fixture
def fit(started, tmp_path):
    shutil.copytree(started, tmp_path / "fit")
    return tmp_path / "fit"


def post(root):
    return root / "work" / "exchange"


def tamper(path, change=lambda header, arrays: None):
    """Change a message and recompute its checksum, as an attacker would."""
    message = messages.read(path)
    header = {name: value for name, value in message.header.items() if name not in ("format", "version")}
    arrays = {name: array.copy() for name, array in message.arrays.items()}
    change(header, arrays)
    path.write_bytes(messages.pack(header, arrays))


def refused(call, *words):
    with pytest.raises(InputError) as error:
        call()
    sentence = str(error.value)
    assert sentence.endswith(".")
    assert all(word in sentence for word in words), sentence
    return sentence


def response_file(root, site="north", number=1):
    return post(root) / messages.file_name(number, site)


def request_file(root, number=1):
    return post(root) / messages.file_name(number)


HEADER = {"kind": "sums", "federation": "0" * 32, "round": 3, "sender": "north", "note": "ö"}


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_any_flipped_bit_is_detected(position, bit):
    content = bytearray(messages.pack(HEADER, {"x": np.arange(5.0)}))
    content[position % len(content)] ^= 1 << bit
    with pytest.raises(InputError):
        messages.unpack(bytes(content), "message")


def test_any_truncation_is_detected_and_intact_messages_round_trip():
    content = messages.pack(HEADER, {"x": np.arange(5.0), "none": np.zeros((0, 3))})
    for length in range(len(content)):
        with pytest.raises(InputError):
            messages.unpack(content[:length], "message")
    with pytest.raises(InputError):
        messages.unpack(content + b"\0", "message")
    message = messages.unpack(content, "message")
    assert {name: message.header[name] for name in HEADER} == HEADER
    np.testing.assert_array_equal(message.arrays["x"], np.arange(5.0))
    assert message.arrays["none"].shape == (0, 3)
    assert content == messages.pack(HEADER, {"none": np.zeros((0, 3)), "x": np.arange(5.0)})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"__metadata__": 3}',
        b'{"__metadata__": {"record": "[[[["}}',
        b'{"__metadata__": {"record": "' + b"[" * 100_000 + b'"}}',
        b'{"__metadata__": {"record": "{\\"format\\": \\"phenotaste-federated\\", \\"version\\": 1}"}}',
        b'{"__metadata__": {"record": "{\\"format\\": \\"phenotaste-federated\\", \\"version\\": 9}"}}',
    ],
)
def test_hostile_headers_are_refused(tmp_path, text):
    path = tmp_path / "message"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b" " * 64)
    refused(lambda: messages.read(path))


def test_a_header_longer_than_the_file_or_the_limit_is_refused(tmp_path):
    path = tmp_path / "message"
    for length in (2**63, 2**64 - 1, encoding.MAX_HEADER + 1, 10_000):
        path.write_bytes(length.to_bytes(8, "little") + b"{" * 9_000)
        refused(lambda: messages.read(path), "not a message")


def test_a_valid_message_with_a_header_over_the_limit_is_refused():
    content = messages.pack({**HEADER, "note": "x" * encoding.MAX_HEADER}, {})
    refused(lambda: messages.unpack(content, "message"), "not a message")


def test_the_size_is_checked_before_anything_is_read(fit):
    """A sparse file of a terabyte: reading it would exhaust the memory."""
    path = response_file(fit)
    os.truncate(path, 2**40)
    start = time.perf_counter()
    refused(lambda: combine(fit / "work"), "bytes, more than the maximum")
    refused(lambda: step(path, COHORTS[0], site="north", state=fit / "north"), "bytes, more than the maximum")
    assert time.perf_counter() - start < 20
    # Far more than the sums of this fit can have, far less than the limit of any message.
    path.write_bytes(messages.pack(HEADER, {"x": np.zeros(100_000)}))
    refused(lambda: combine(fit / "work"), "bytes, more than the maximum")


def test_special_files_are_refused(fit):
    path = response_file(fit)
    path.unlink()
    os.mkfifo(path)
    refused(lambda: combine(fit / "work"), "not a regular file")
    path.unlink()
    path.symlink_to("/dev/zero")
    refused(lambda: combine(fit / "work"), "not a regular file")
    refused(lambda: combine(fit / "work", [fit / "nothing.safetensors"]), "could not be read")


def test_a_bit_flipped_in_transit_is_refused_and_the_state_is_unchanged(fit):
    path, state = response_file(fit), (fit / "work" / "coordinator" / "manifest.json").read_bytes()
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    refused(lambda: combine(fit / "work"), "checksum")
    assert (fit / "work" / "coordinator" / "manifest.json").read_bytes() == state
    assert not request_file(fit, 2).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r, a: a.update({"XU.0": a["XU.0"][1:]}), ("shape",)),
        (lambda r, a: a.update({"XU.0": a["XU.0"].astype(np.float32)}), ("float64",)),
        (lambda r, a: a.pop("WW.0"), ("arrays",)),
        (lambda r, a: a.update({"W": np.zeros((9, 2))}), ("arrays",)),
        (lambda r, a: a["XU.0"].__setitem__((0, 0), np.nan), ("finite",)),
        (lambda r, a: a["QU.0"].__setitem__((0, 0), np.inf), ("finite",)),
        (lambda r, a: a["AW.0"].__setitem__((0, 0), -1.0), ("negative",)),
        (lambda r, a: a["UU.0"].__setitem__((0, 1), 1e9), ("semidefinite",)),  # not symmetric
        (lambda r, a: a.update({"WW.0": np.array([[1.0, 9.0], [9.0, 1.0]])}), ("semidefinite",)),  # not PSD
        (lambda r, a: a.update({"XU.0": 1e6 * a["XU.0"]}), ("inconsistent",)),
        (lambda r, a: a.update({"AW.0": 1e6 * a["AW.0"]}), ("inconsistent",)),
        (lambda r, a: a.update({"QU.0": 1e6 * a["QU.0"]}), ("inconsistent",)),
        *(
            (lambda r, a, n=n: a["scalars.0"].__setitem__(n, 1e3 * a["scalars.0"][n]), ("inconsistent",))
            for n in (2, 3, 4)
        ),
        (lambda r, a: r.update(patients=99), ("minimum of 100",)),
        (lambda r, a: r.update(patients=True), ("no site writes",)),
        (lambda r, a: r.update(visits="many"), ("no site writes",)),
        (lambda r, a: r.update(cold_start=1), ("no site writes",)),
        (
            lambda r, a: r.update(noise={"epsilon": 1.0, "delta": 0.1, "noise_multiplier": 1.0}),
            ("no site writes",),
        ),
        (lambda r, a: r.pop("noise"), ("no site writes",)),
        (lambda r, a: r.update(round=0), ("round 0",)),
        (lambda r, a: r.update(round=2), ("round 2",)),
        (lambda r, a: r.update(request="0" * 64), ("another request",)),
        (lambda r, a: r.update(kind="figures"), ("another request",)),
        (lambda r, a: r.update(federation="f" * 32), ("another federated fit",)),
        (lambda r, a: r.update(sender="west"), ("not from one of the participating sites",)),
        (lambda r, a: r.update(sender="../../etc/passwd"), ("checksum",)),
        (lambda r, a: r.update(sender="north\n"), ("checksum",)),
        (lambda r, a: r.update(round=-1), ("checksum",)),
        (lambda r, a: r.update(round=1.0), ("checksum",)),
    ],
)
def test_invalid_responses_are_refused(fit, change, words):
    tamper(response_file(fit), change)
    refused(lambda: combine(fit / "work"), *words)


def test_an_unchanged_response_packed_again_is_accepted(fit):
    """Control: the responses above are refused for what was changed, not for having been packed again."""
    tamper(response_file(fit))
    assert combine(fit / "work").next == "step"


def test_stale_and_replayed_responses_are_refused(fit):
    combine(fit / "work")
    old = [response_file(fit, name) for name in NAMES]
    assert combine(fit / "work", old).repeated  # the same responses: the output is written again
    round_of_steps(fit, COHORTS[1:], NAMES[1:])
    files = [response_file(fit, name, 2) for name in NAMES[1:]]
    refused(lambda: combine(fit / "work", [old[0], *files]), "round 1", "round 2")
    shutil.copy(old[0], response_file(fit, "north", 2))  # under the name of a current one
    refused(lambda: combine(fit / "work"), "round 1", "round 2")


def test_two_responses_of_one_site_must_be_equal(fit):
    copy = fit / "copy.safetensors"
    shutil.copy(response_file(fit), copy)
    files = [copy, *(response_file(fit, name) for name in NAMES)]
    other = fit / "other.safetensors"
    shutil.copy(copy, other)
    tamper(other, lambda header, arrays: header.update(visits=header["visits"] + 1))
    refused(lambda: combine(fit / "work", [other, *files]), "two different responses", "north")
    assert combine(fit / "work", files).next == "step"


def test_a_response_to_another_fit_of_the_same_sites_is_refused(fit, tmp_path):
    init(tmp_path / "other" / "work", NAMES, Settings(rank=2, max_rounds=3))
    round_of_steps(tmp_path / "other", COHORTS)
    combine(tmp_path / "other" / "work")
    round_of_steps(tmp_path / "other", COHORTS)
    shutil.copy(response_file(tmp_path / "other"), response_file(fit))
    refused(lambda: combine(fit / "work"), "another federated fit")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r, a: a["V.0"].__setitem__((0, 0), -0.1), ("negative",)),
        (lambda r, a: a.update({"V.0": 2 * a["V.0"]}), ("unit norm",)),
        (lambda r, a: a.update({"V.0": a["V.0"][:-1]}), ("shape",)),
        (lambda r, a: a["F.0"].__setitem__((0, 0), np.nan), ("finite",)),
        (lambda r, a: a.update({"W.0": np.zeros((3, 3))}), ("arrays",)),
        (lambda r, a: r["tasks"].append(dict(r["tasks"][0])), ("no coordinator writes",)),
        (lambda r, a: r["tasks"][0].update(start=7), ("no coordinator writes",)),
        (lambda r, a: r["tasks"][0].update(beta=3.0), ("no coordinator writes",)),
        (lambda r, a: r["tasks"][0].update(last_round=9), ("no coordinator writes",)),
        (lambda r, a: r.update(lam=-1.0), ("no coordinator writes",)),
        (lambda r, a: r.update(lam=float("1e300")), ("no coordinator writes",)),
        (lambda r, a: r.update(features=["a", "a"]), ("no coordinator writes",)),
        (lambda r, a: r.update(features=["x\x1b[2J", *r["features"][1:]]), ("no coordinator writes",)),
        (lambda r, a: r.update(kind="evaluate", tasks=[]), ("no coordinator writes",)),
        (lambda r, a: r.update(sites=["../north"]), ("not a valid site name",)),
        (lambda r, a: r["settings"].update(rank=10**9), ("rank",)),
        (lambda r, a: r["settings"].update(min_patients=1), ("other settings or columns",)),
        (lambda r, a: r["settings"].update(more=1), ("no coordinator writes",)),
        (
            lambda r, a: r["settings"].update(noise=True, n_init=3),
            ("every start consumes",),
        ),
        (lambda r, a: r.update(lam=2 * r["lam"]), ("other settings or columns",)),
        (
            lambda r, a: r.update(features=["only this one", *r["features"][1:]]),
            ("other settings or columns",),
        ),
        (lambda r, a: r.update(federation="f" * 32), ("another", "folder of its own")),
        (lambda r, a: r.update(sites=["south", "east"]), ("not among the participating sites",)),
        (lambda r, a: r.update(sender="south"), ("response of a site",)),
        (lambda r, a: a.update({"V.0": np.roll(a["V.0"], 1, axis=0)}), ("has responded to round 1",)),
        (lambda r, a: r.update(round=0), ("no coordinator writes",)),
        (
            lambda r, a: r.update(round=4),  # one more than the three agreed rounds
            ("no coordinator writes",),
        ),
    ],
)
def test_invalid_requests_are_refused(fit, change, words):
    before = response_file(fit).read_bytes()
    tamper(request_file(fit), change)
    refused(lambda: step(request_file(fit), COHORTS[0], site="north", state=fit / "north"), *words)
    assert response_file(fit).read_bytes() == before


def test_an_older_request_gets_no_response(fit):
    combine(fit / "work")
    round_of_steps(fit, COHORTS)
    response_file(fit).unlink()
    refused(
        lambda: step(request_file(fit, 1), COHORTS[0], site="north", state=fit / "north"),
        "round 1",
        "responded to round 2",
    )
    assert not response_file(fit).exists()


def test_site_names_cannot_be_paths(tmp_path):
    for name in ("../up", "a/b", ".hidden", "", "a b", "x" * 41, "north\n", "the coordinator"):
        refused(
            lambda name=name: init(tmp_path / "work", ["south", name], Settings()), "not a valid site name"
        )
    refused(lambda: init(tmp_path / "work", ["north", "North"], Settings()), "same name")
    refused(lambda: init(tmp_path / "work", [], Settings()), "no sites")
    assert not (tmp_path / "work").exists()


@given(
    st.sampled_from(
        [
            "rank",
            "n_init",
            "max_rounds",
            "seed",
            "lam",
            "mu",
            "smooth",
            "balance",
            "tol",
            "static_size",
            "noise",
        ]
    )
)
def test_settings_are_checked(name):
    with pytest.raises(InputError):
        Settings(**{name: -1})


def test_status_of_coordinator_site_and_message(fit):
    current = federated.status(fit / "work")
    assert (current["round"], current["phase"], current["waiting_for"]) == (1, "step", [])
    response_file(fit, "east").unlink()
    assert federated.status(fit / "work")["waiting_for"] == ["east"]
    assert federated.status(fit / "north")["last_round"] == 1
    assert federated.status(request_file(fit))["sender"] == "the coordinator"
    refused(lambda: federated.status(fit), "neither")
    assert json.dumps(current)
