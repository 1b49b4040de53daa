"""Messages that are damaged, stale, replayed or hostile are refused in a sentence, on both sides."""

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

COHORTS = hospitals()


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A federated fit after its first round: everybody has answered the first proposal."""
    root = tmp_path_factory.mktemp("begun")
    init(root / "work", NAMES, Settings(rank=2, max_rounds=3))
    round_of_steps(root, COHORTS)
    combine(root / "work")
    round_of_steps(root, COHORTS)
    return root


@pytest.fixture
def fit(begun, tmp_path):
    shutil.copytree(begun, tmp_path / "fit")
    return tmp_path / "fit"


def post(root):
    return root / "work" / "exchange"


def tampered(path, change=lambda record, arrays: None):
    """The message with something changed and its checksum made anew, as somebody hostile would."""
    found = messages.read(path)
    record = {name: value for name, value in found.record.items() if name not in ("format", "version")}
    arrays = {name: array.copy() for name, array in found.arrays.items()}
    change(record, arrays)
    path.write_bytes(messages.pack(record, arrays))


def refused(call, *words):
    with pytest.raises(InputError) as error:
        call()
    sentence = str(error.value)
    assert sentence.endswith(".")
    assert all(word in sentence for word in words), sentence
    return sentence


def answer(root, site="north", number=1):
    return post(root) / messages.file_name(number, site)


def order(root, number=1):
    return post(root) / messages.file_name(number)


RECORD = {"kind": "sums", "federation": "0" * 32, "round": 3, "sender": "north", "note": "ö"}


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_any_flipped_bit_is_noticed(at, bit):
    content = bytearray(messages.pack(RECORD, {"x": np.arange(5.0)}))
    content[at % len(content)] ^= 1 << bit
    with pytest.raises(InputError):
        messages.unpack(bytes(content), "message")


def test_any_cut_is_noticed_and_what_is_whole_comes_back():
    content = messages.pack(RECORD, {"x": np.arange(5.0), "none": np.zeros((0, 3))})
    for length in range(len(content)):
        with pytest.raises(InputError):
            messages.unpack(content[:length], "message")
    with pytest.raises(InputError):
        messages.unpack(content + b"\0", "message")
    found = messages.unpack(content, "message")
    assert {name: found.record[name] for name in RECORD} == RECORD
    np.testing.assert_array_equal(found.arrays["x"], np.arange(5.0))
    assert found.arrays["none"].shape == (0, 3)
    assert content == messages.pack(RECORD, {"none": np.zeros((0, 3)), "x": np.arange(5.0)})


@pytest.mark.parametrize(
    "head",
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
def test_hostile_headers_are_refused(tmp_path, head):
    path = tmp_path / "message"
    path.write_bytes(len(head).to_bytes(8, "little") + head + b" " * 64)
    refused(lambda: messages.read(path))


def test_a_header_longer_than_the_file_or_than_any_dictionary_is_refused(tmp_path):
    path = tmp_path / "message"
    for length in (2**63, 2**64 - 1, messages.LARGEST_HEAD + 1, 10_000):
        path.write_bytes(length.to_bytes(8, "little") + b"{" * 9_000)
        refused(lambda: messages.read(path), "not a message")


def test_a_sound_message_with_a_header_too_long_is_refused_too():
    content = messages.pack({**RECORD, "note": "x" * messages.LARGEST_HEAD}, {})
    refused(lambda: messages.unpack(content, "message"), "not a message")


def test_the_size_is_looked_at_before_anything_is_read(fit):
    """A file of a terabyte, all hole: reading it would take all memory there is."""
    path = answer(fit)
    os.truncate(path, 2**40)
    began = time.perf_counter()
    refused(lambda: combine(fit / "work"), "bytes where at most")
    refused(lambda: step(path, COHORTS[0], site="north", state=fit / "north"), "bytes where at most")
    assert time.perf_counter() - began < 20
    tampered_size = messages.pack({**RECORD}, {"x": np.zeros(100_000)})
    path.write_bytes(
        tampered_size
    )  # far more than the sums of this fit can have, far less than a message may
    refused(lambda: combine(fit / "work"), "bytes where at most")


def test_what_is_not_a_plain_file_is_refused_at_once(fit):
    path = answer(fit)
    path.unlink()
    os.mkfifo(path)
    refused(lambda: combine(fit / "work"), "not a plain file")
    path.unlink()
    path.symlink_to("/dev/zero")
    refused(lambda: combine(fit / "work"), "not a plain file")
    refused(lambda: combine(fit / "work", [fit / "nothing.safetensors"]), "could not be read")


def test_a_bit_flipped_on_the_way_is_refused_and_the_work_stays_as_it_was(fit):
    path, state = answer(fit), (fit / "work" / "coordinator" / "manifest.json").read_bytes()
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)
    refused(lambda: combine(fit / "work"), "checksum")
    assert (fit / "work" / "coordinator" / "manifest.json").read_bytes() == state
    assert not order(fit, 2).exists()


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
        (lambda r, a: a["UU.0"].__setitem__((0, 1), 1e9), ("products",)),  # not symmetric
        (lambda r, a: a.update({"WW.0": np.array([[1.0, 9.0], [9.0, 1.0]])}), ("products",)),  # not PSD
        (lambda r, a: a.update({"XU.0": 1e6 * a["XU.0"]}), ("do not fit",)),
        (lambda r, a: a.update({"AW.0": 1e6 * a["AW.0"]}), ("do not fit",)),
        (lambda r, a: a.update({"QU.0": 1e6 * a["QU.0"]}), ("do not fit",)),
        (lambda r, a: r.update(patients=99), ("fewer than the 100",)),
        (lambda r, a: r.update(patients=True), ("no site would",)),
        (lambda r, a: r.update(visits="many"), ("no site would",)),
        (lambda r, a: r.update(fresh=1), ("no site would",)),
        (lambda r, a: r.update(noise={"epsilon": 1.0, "delta": 0.1, "loudness": 1.0}), ("no site would",)),
        (lambda r, a: r.pop("noise"), ("no site would",)),
        (lambda r, a: r.update(round=0), ("round 0",)),
        (lambda r, a: r.update(round=2), ("round 2",)),
        (lambda r, a: r.update(answers="0" * 64), ("another message",)),
        (lambda r, a: r.update(kind="figures"), ("another message",)),
        (lambda r, a: r.update(federation="f" * 32), ("another federated fit",)),
        (lambda r, a: r.update(sender="west"), ("not from one of the sites",)),
        (lambda r, a: r.update(sender="../../etc/passwd"), ("checksum",)),
        (lambda r, a: r.update(sender="north\n"), ("checksum",)),
        (lambda r, a: r.update(round=-1), ("checksum",)),
        (lambda r, a: r.update(round=1.0), ("checksum",)),
    ],
)
def test_answers_that_no_site_would_send_are_refused(fit, change, words):
    tampered(answer(fit), change)
    refused(lambda: combine(fit / "work"), *words)


def test_an_answer_that_is_only_written_anew_is_taken(fit):
    """The counterpart: the tests above are refused for what they change, not for having been packed again."""
    tampered(answer(fit))
    assert combine(fit / "work").next == "proposal"


def test_stale_and_replayed_answers_are_refused(fit):
    combine(fit / "work")
    old = [answer(fit, name) for name in NAMES]
    assert combine(fit / "work", old).again  # these very answers: what follows from them is written once more
    round_of_steps(fit, COHORTS[1:], NAMES[1:])
    files = [answer(fit, name, 2) for name in NAMES[1:]]
    refused(lambda: combine(fit / "work", [old[0], *files]), "round 1", "round 2")
    shutil.copy(old[0], answer(fit, "north", 2))  # under the name of a new one
    refused(lambda: combine(fit / "work"), "round 1", "round 2")


def test_two_answers_of_one_site_must_be_the_same(fit):
    copy = fit / "copy.safetensors"
    shutil.copy(answer(fit), copy)
    given_twice = [copy, *(answer(fit, name) for name in NAMES)]
    other = fit / "other.safetensors"
    shutil.copy(copy, other)
    tampered(other, lambda record, arrays: record.update(visits=record["visits"] + 1))
    refused(lambda: combine(fit / "work", [other, *given_twice]), "two different answers", "north")
    assert combine(fit / "work", given_twice).next == "proposal"


def test_an_answer_to_another_fit_of_the_same_sites_is_refused(fit, tmp_path):
    init(tmp_path / "other" / "work", NAMES, Settings(rank=2, max_rounds=3))
    round_of_steps(tmp_path / "other", COHORTS)
    combine(tmp_path / "other" / "work")
    round_of_steps(tmp_path / "other", COHORTS)
    shutil.copy(answer(tmp_path / "other"), answer(fit))
    refused(lambda: combine(fit / "work"), "another federated fit")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r, a: a["V.0"].__setitem__((0, 0), -0.1), ("negative",)),
        (lambda r, a: a.update({"V.0": 2 * a["V.0"]}), ("unit norm",)),
        (lambda r, a: a.update({"V.0": a["V.0"][:-1]}), ("shape",)),
        (lambda r, a: a["F.0"].__setitem__((0, 0), np.nan), ("finite",)),
        (lambda r, a: a.update({"W.0": np.zeros((3, 3))}), ("arrays",)),
        (lambda r, a: r["tasks"].append(dict(r["tasks"][0])), ("no coordinator would",)),
        (lambda r, a: r["tasks"][0].update(start=7), ("no coordinator would",)),
        (lambda r, a: r["tasks"][0].update(reach=3.0), ("no coordinator would",)),
        (lambda r, a: r["tasks"][0].update(last=9), ("no coordinator would",)),
        (lambda r, a: r.update(lam=-1.0), ("no coordinator would",)),
        (lambda r, a: r.update(lam=float("1e300")), ("no coordinator would",)),
        (lambda r, a: r.update(features=["a", "a"]), ("no coordinator would",)),
        (lambda r, a: r.update(features=["x\x1b[2J", *r["features"][1:]]), ("no coordinator would",)),
        (lambda r, a: r.update(kind="closing", tasks=[]), ("no coordinator would",)),
        (lambda r, a: r.update(sites=["../north"]), ("cannot be called",)),
        (lambda r, a: r["settings"].update(rank=10**9), ("rank",)),
        (lambda r, a: r["settings"].update(minimum_patients=1), ("other settings or columns",)),
        (lambda r, a: r["settings"].update(more=1), ("no coordinator would",)),
        (lambda r, a: r["settings"].update(noise=True, patient_size=1.0, n_init=3), ("every start costs",)),
        (lambda r, a: r.update(lam=2 * r["lam"]), ("other settings or columns",)),
        (
            lambda r, a: r.update(features=["only this one", *r["features"][1:]]),
            ("other settings or columns",),
        ),
        (lambda r, a: r.update(federation="f" * 32), ("another", "folder of its own")),
        (lambda r, a: r.update(sites=["south", "east"]), ("not among the sites",)),
        (lambda r, a: r.update(sender="south"), ("answer of a site",)),
        (lambda r, a: a.update({"V.0": np.roll(a["V.0"], 1, axis=0)}), ("has answered round 1",)),
        (lambda r, a: r.update(round=0), ("no coordinator would",)),
        (
            lambda r, a: r.update(round=4),
            ("no coordinator would",),
        ),  # one more than the three rounds agreed on
    ],
)
def test_orders_that_no_coordinator_would_give_are_refused(fit, change, words):
    before = answer(fit).read_bytes()
    tampered(order(fit), change)
    refused(lambda: step(order(fit), COHORTS[0], site="north", state=fit / "north"), *words)
    assert answer(fit).read_bytes() == before


def test_an_older_message_is_not_answered_again(fit):
    combine(fit / "work")
    round_of_steps(fit, COHORTS)
    answer(fit).unlink()
    refused(
        lambda: step(order(fit, 1), COHORTS[0], site="north", state=fit / "north"),
        "round 1",
        "answered round 2",
    )
    assert not answer(fit).exists()


def test_names_of_sites_cannot_lead_elsewhere(tmp_path):
    for name in ("../up", "a/b", ".hidden", "", "a b", "x" * 41, "north\n", "the coordinator"):
        refused(lambda name=name: init(tmp_path / "work", ["south", name], Settings()), "cannot be called")
    refused(lambda: init(tmp_path / "work", ["north", "North"], Settings()), "same name")
    refused(lambda: init(tmp_path / "work", [], Settings()), "no sites")
    assert not (tmp_path / "work").exists()


@given(
    st.sampled_from(
        ["rank", "n_init", "max_rounds", "seed", "lam", "mu", "tol", "weights", "solver", "noise"]
    )
)
def test_settings_are_checked(name):
    wrong = {"weights": "loose", "solver": "magic"}.get(name, -1)
    with pytest.raises(InputError):
        Settings(**{name: wrong})


def test_status_tells_where_things_stand_and_refuses_the_rest(fit):
    found = federated.status(fit / "work")
    assert (found["round"], found["phase"], found["waiting_for"]) == (1, "proposal", [])
    answer(fit, "east").unlink()
    assert federated.status(fit / "work")["waiting_for"] == ["east"]
    assert federated.status(fit / "north")["answered_round"] == 1
    assert federated.status(order(fit))["sender"] == "the coordinator"
    refused(lambda: federated.status(fit), "neither")
    assert json.dumps(found)
