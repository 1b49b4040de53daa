"""Folders on disk: what goes in comes out, what is damaged is refused, and a killed save harms nothing."""

import hashlib
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers.tensor_folders import PATIENT, manifest_of, names_in, number_in, save, state, tidy
from phenotaste.errors import InputError
from phenotaste.storage import tensors

TESTS = str(Path(__file__).parents[1])


def seal(path, manifest):
    """Write a manifest with a valid checksum, as a forger would."""
    manifest["checksum"] = "0" * 64
    text = json.dumps(manifest)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (path / "manifest.json").write_text(text.replace("0" * 64, checksum))


def reseal_file(path, stem="model"):
    """Make the manifest agree with a data file that was tampered with."""
    manifest = manifest_of(path)
    entry = manifest["files"][stem]
    raw = (path / entry["name"]).read_bytes()
    entry["bytes"], entry["sha256"] = len(raw), hashlib.sha256(raw).hexdigest()
    seal(path, manifest)


def refused(path, kind="model", **options):
    """The sentence with which reading is refused."""
    with pytest.raises(InputError) as caught:
        tensors.read(path, kind, **options)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert PATIENT not in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "saved"
    save(path, 1)
    return path


# --- round trips -----------------------------------------------------------------------------------------

numbers = hnp.boolean_dtypes() | hnp.integer_dtypes(endianness="?") | hnp.floating_dtypes(endianness="?")
clocks = hnp.datetime64_dtypes(endianness="?") | hnp.timedelta64_dtypes(endianness="?")
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
any_array = hnp.arrays(numbers | clocks | hnp.unicode_string_dtypes(max_len=5), shapes)
quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(
    arrays=st.dictionaries(
        st.from_regex(r"[A-Za-z][A-Za-z0-9_.]{0,8}", fullmatch=True), any_array, max_size=4
    ),
    mmap=st.booleans(),
)
def test_arrays_round_trip(tmp_path, arrays, mmap):
    tensors.write(tmp_path / "x", "thing", {"some": arrays, "more": {}}, {})
    back, _ = tensors.read(tmp_path / "x", "thing", mmap=mmap)
    assert back["more"] == {}
    assert back["some"].keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(back["some"][name], array)
        if array.dtype.kind == "U":
            assert back["some"][name].dtype.kind == "U"
        else:
            assert back["some"][name].dtype == array.dtype.newbyteorder("=")


@quick
@given(st.lists(st.text(), max_size=8))
@example(["\ud800", "ends in nul\0", ""])
def test_object_strings_round_trip(tmp_path, texts):
    array = np.array(texts, dtype=object)
    tensors.write(tmp_path / "x", "thing", {"a": {"texts": array}}, {})
    back = tensors.read(tmp_path / "x", "thing")[0]["a"]["texts"]
    assert back.dtype == object
    assert back.tolist() == texts


def test_fortran_order_and_slices_are_stored_by_value(tmp_path):
    array = np.asfortranarray(np.arange(24.0).reshape(4, 6))[::2, 1:]
    tensors.write(tmp_path / "x", "thing", {"a": {"array": array}}, {})
    np.testing.assert_array_equal(tensors.read(tmp_path / "x", "thing")[0]["a"]["array"], array)


def test_meta_comes_back_with_numpy_scalars_as_numbers(tmp_path):
    meta = {"rank": np.int64(5), "lam": np.float64(0.1), "ok": np.bool_(True), "none": None, "text": "é"}
    tensors.write(tmp_path / "x", "thing", {}, meta)
    back = tensors.read(tmp_path / "x", "thing")[1]
    assert back == {"rank": 5, "lam": 0.1, "ok": True, "none": None, "text": "é"}


@pytest.mark.parametrize("meta", [{"a": object()}, {"a": float("nan")}, {"a": {1, 2}}])
def test_meta_that_json_cannot_hold_is_refused(tmp_path, meta):
    with pytest.raises(InputError, match="text and numbers"):
        tensors.write(tmp_path / "x", "thing", {"a": {"b": np.zeros(3)}}, meta)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "array", [np.zeros(2, complex), np.array([b"x"]), np.array([1, "a"], object), np.zeros(2, "i4,f8")]
)
def test_arrays_that_would_need_pickle_are_refused(tmp_path, array):
    with pytest.raises(InputError, match="'thing'"):
        tensors.write(tmp_path / "x", "kind", {"a": {"thing": array}}, {})
    assert not list(tmp_path.iterdir())


def test_the_safetensors_library_reads_our_files(folder):
    loaded = safetensors.numpy.load_file(folder / "model.safetensors")
    np.testing.assert_array_equal(loaded["V"], state(1)[0]["model"]["V"])
    assert (folder / "patients.safetensors").exists()


def test_mapped_arrays_are_aligned_read_only_views_and_copies_are_not(tmp_path):
    arrays = {"flags": np.ones(3, bool), "x": np.arange(5.0), "n": np.arange(7, dtype=np.int32)}
    tensors.write(tmp_path / "x", "thing", {"a": arrays}, {})
    for array in tensors.read(tmp_path / "x", "thing")[0]["a"].values():
        assert isinstance(array, np.memmap)
        assert array.flags.aligned
        assert not array.flags.writeable
    for array in tensors.read(tmp_path / "x", "thing", mmap=False)[0]["a"].values():
        assert not isinstance(array, np.memmap)
        assert array.flags.writeable


def test_only_the_owner_may_read(folder):
    save(folder, 3)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


def test_the_manifest_names_no_patient(folder):
    assert PATIENT not in (folder / "manifest.json").read_text()
    assert manifest_of(folder)["schema_version"] == tensors.SCHEMA_VERSION
    assert manifest_of(folder)["library"].startswith("phenotaste ")


# --- saving over -----------------------------------------------------------------------------------------


def test_saving_over_leaves_only_the_new_files(folder):
    for number in (2, 3, 4):
        save(folder, number)
        assert number_in(folder) == number
        assert tidy(folder)


def test_saving_over_what_is_mapped(folder):
    arrays, meta = tensors.read(folder, "model")
    arrays["model"]["V"] = arrays["model"]["V"][::-1]
    tensors.write(folder, "model", arrays, meta)
    assert number_in(folder) == 1
    np.testing.assert_array_equal(arrays["patients"]["W"], state(1)[0]["patients"]["W"])


def test_a_user_s_own_files_in_the_folder_stay(folder):
    for name in ("notes.txt", "other.safetensors", "model.backup.safetensors"):
        (folder / name).write_text("mine")
    save(folder, 2)
    save(folder, 4)
    assert {"notes.txt", "other.safetensors", "model.backup.safetensors"} <= names_in(folder)


def test_extra_files_come_and_go_with_the_save(tmp_path):
    path = tmp_path / "made"
    arrays = {"a": {"x": np.arange(3)}}
    tensors.write(path, "cohort", arrays, {}, {"attrition.csv": b"old", "quality.json": b"{}"})
    (path / "notes.md").write_text("mine")
    tensors.write(path, "cohort", arrays, {}, {"attrition.csv": b"new"})
    assert (path / "attrition.csv").read_bytes() == b"new"
    assert (path / "attrition.csv").stat().st_mode & 0o077 == 0
    assert (path / "notes.md").read_text() == "mine"
    assert sorted(file.suffix for file in path.iterdir()) == [".csv", ".json", ".md", ".safetensors"]
    tensors.write(path, "cohort", arrays, {})
    assert not (path / "attrition.csv").exists()


@pytest.mark.parametrize("name", ["manifest.json", "../up.csv", "sub/a.csv", "a.exe", "A.csv"])
def test_names_of_extra_files_cannot_lead_elsewhere(tmp_path, name):
    with pytest.raises(InputError, match="name that cannot be used"):
        tensors.write(tmp_path / "made", "cohort", {"a": {"x": np.arange(3)}}, {}, {name: b""})
    assert not any(tmp_path.iterdir())


def test_leftovers_of_killed_saves_are_removed(folder, tmp_path):
    (folder / "patients.0123456789abcdef.safetensors").write_text("loser")
    (folder / ".manifest.json.0123456789abcdef.partial").write_text("loser")
    beside = tmp_path / ".saved.0123456789abcdef.partial"
    beside.mkdir()
    (beside / "patients.safetensors").write_text("loser")
    save(folder, 2)
    assert tidy(folder)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        ("file", "was not written by phenotaste"),
        ("folder", "was not written by phenotaste"),
        ("other kind", "does not hold a model"),
        ("other manifest", "is not a manifest"),
    ],
)
def test_foreign_files_are_never_overwritten(tmp_path, make, sentence):
    path = tmp_path / "saved"
    if make == "file":
        path.write_text("mine")
    elif make == "folder":
        path.mkdir()
        (path / "mine.txt").write_text("mine")
    elif make == "other kind":
        tensors.write(path, "cohort", {}, {})
    else:
        path.mkdir()
        (path / "manifest.json").write_text('{"name": "a web app"}')
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(InputError, match=sentence):
        save(path, 1)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_empty_folders_links_and_missing_parents_are_accepted(tmp_path):
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", 1)
    save(tmp_path / "a" / "b" / "c", 2)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "c")
    save(tmp_path / "link", 4)
    assert (tmp_path / "link").is_symlink()
    assert [number_in(tmp_path / p) for p in ("empty", "a/b/c", "link")] == [1, 4, 4]


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("target", ["old", "new"])
def test_a_full_disk_is_a_sentence_and_leaves_the_old_folder(tmp_path, monkeypatch, step, target):
    save(tmp_path / "old", 1)
    calls = []

    def fsync(handle):
        calls.append(handle)
        if len(calls) == step + 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InputError, match="no space left on device"):
        save(tmp_path / target, 3)
    monkeypatch.undo()
    # The last sync comes after the switch: the new folder is then in place.
    assert number_in(tmp_path / "old") == (3 if target == "old" and step == 4 else 1)
    if step < 4:
        assert tidy(tmp_path / "old")
        assert not (tmp_path / "new").exists()


def test_concurrent_saves_are_serialised(folder):
    def repeat(first):
        for number in range(first, first + 30, 2):
            save(folder, number)

    threads = [threading.Thread(target=repeat, args=(first,)) for first in (100, 201, 300)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        number_in(folder)
    assert number_in(folder) in (128, 229, 328)
    assert tidy(folder)


# --- refusals --------------------------------------------------------------------------------------------


def test_missing_paths_and_other_folders_are_refused(tmp_path):
    assert "not a saved model" in refused(tmp_path / "nowhere")
    assert "not a saved model" in refused(tmp_path)
    (tmp_path / "file").write_text("x")
    assert "not a saved model" in refused(tmp_path / "file")


def test_another_kind_is_refused(folder):
    assert "does not hold a cohort" in refused(folder, "cohort")


def test_a_newer_schema_is_refused(folder):
    manifest = manifest_of(folder)
    seal(folder, manifest)
    assert number_in(folder) == 1  # the forger's tool works
    manifest["schema_version"] = tensors.SCHEMA_VERSION + 1
    seal(folder, manifest)
    assert "upgrade" in refused(folder)
    with pytest.raises(InputError, match="upgrade"):
        save(folder, 2)


def test_any_flipped_bit_of_the_manifest_is_noticed(folder):
    path = folder / "manifest.json"
    raw = path.read_bytes()
    for position in range(len(raw)):
        damaged = bytearray(raw)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        refused(folder)
    for position, byte in enumerate(raw):
        if chr(byte).isalpha():  # a letter's case is the flip that JSON itself might not notice
            path.write_bytes(raw[:position] + bytes([byte ^ 32]) + raw[position + 1 :])
            refused(folder)


@pytest.mark.parametrize("mmap", [True, False])
def test_any_flipped_bit_of_the_data_is_noticed(folder, mmap):
    path = folder / "patients.safetensors"
    raw = path.read_bytes()
    for position in [*range(0, len(raw), 97), len(raw) - 1]:
        damaged = bytearray(raw)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        assert "checksum" in refused(folder, mmap=mmap)


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_truncated_files_are_refused(folder, name, keep):
    raw = (folder / name).read_bytes()
    (folder / name).write_bytes(raw[:keep])
    sentence = refused(folder)
    assert name == "manifest.json" or "another size" in sentence


def test_a_missing_file_is_refused(folder):
    (folder / "patients.safetensors").unlink()
    assert "is missing" in refused(folder)


@pytest.mark.parametrize("garbage", [b"", b"null", b"[]", b"{}", b'{"checksum": 3}', b"\xff", b"[" * 100_000])
def test_garbage_manifests_are_refused(folder, garbage):
    (folder / "manifest.json").write_bytes(garbage)
    refused(folder)


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "manifest.json", "a/b.safetensors", "", 3, None, ["x"]]
)
@pytest.mark.parametrize("where", ["files", "replaced", "extra_files"])
def test_names_that_lead_elsewhere_are_neither_opened_nor_deleted(tmp_path, name, where):
    save(tmp_path / "model", 2)
    victim = tmp_path / "model.safetensors"
    shutil.copy(tmp_path / "model" / "model.safetensors", victim)
    manifest = manifest_of(tmp_path / "model")
    if where == "files":
        manifest["files"]["model"]["name"] = name
    else:
        manifest[where] = [name]
    seal(tmp_path / "model", manifest)
    assert "no save writes" in refused(tmp_path / "model")
    with pytest.raises(InputError):
        save(tmp_path / "model", 4)
    assert victim.exists()


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_links_are_not_followed(folder, tmp_path, name):
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    refused(folder)


def spec_edits():
    yield "no arrays", lambda arrays: arrays.clear()
    yield "absent array", lambda arrays: arrays.update(ghost=arrays["V"])
    yield "unlisted array", lambda arrays: arrays.pop("V")
    yield "other dtype", lambda arrays: arrays["V"].update(dtype="float64")
    yield "object dtype", lambda arrays: arrays["V"].update(dtype="object")
    yield "clock over text", lambda arrays: arrays["names"].update(dtype="datetime64[s]")
    yield "other shape", lambda arrays: arrays["V"].update(shape=[10])
    yield "negative shape", lambda arrays: arrays["names"].update(shape=[-2, -1])
    yield "open shape", lambda arrays: arrays["names"].update(shape=[-1])
    yield "huge shape", lambda arrays: arrays["names"].update(shape=[2**70])
    yield "no shape", lambda arrays: arrays["V"].pop("shape")
    yield "shape of text", lambda arrays: arrays["names"].update(shape="ab")
    yield "not a spec", lambda arrays: arrays.update(V=None)


@pytest.mark.parametrize(("what", "edit"), list(spec_edits()), ids=[what for what, _ in spec_edits()])
def test_a_manifest_that_lists_other_arrays_is_refused(folder, what, edit):
    manifest = manifest_of(folder)
    edit(manifest["files"]["model"]["arrays"])
    seal(folder, manifest)
    assert "does not hold the arrays" in refused(folder)


def header_edits():
    yield "beyond the file", lambda header: header["V"].update(data_offsets=[0, 10**12])
    yield "negative", lambda header: header["V"].update(data_offsets=[-8, 8])
    yield "overlap", lambda header: header["V"].update(data_offsets=header["names:offsets"]["data_offsets"])
    yield "wrong shape", lambda header: header["V"].update(shape=[10**6])
    yield "unknown dtype", lambda header: header["V"].update(dtype="F8_E4M3")
    yield "no dtype", lambda header: header["V"].pop("dtype")
    yield (
        "extra tensor",
        lambda header: header.update(W={"dtype": "I8", "shape": [0], "data_offsets": [0, 0]}),
    )
    yield "emptied", lambda header: header.clear()


@pytest.mark.parametrize(("what", "edit"), list(header_edits()), ids=[what for what, _ in header_edits()])
@pytest.mark.parametrize("mmap", [True, False])
def test_forged_headers_are_refused(folder, what, edit, mmap):
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    reseal_file(folder)
    assert "does not hold the arrays" in refused(folder, mmap=mmap)


def test_bytes_that_belong_to_no_array_are_refused(folder):
    with open(folder / "model.safetensors", "ab") as file:
        file.write(bytes(8))
    reseal_file(folder)
    assert "does not hold the arrays" in refused(folder)


@pytest.mark.parametrize("offsets", [[1, 2, 3], [0, 3, 2], [0, -1, 13], [0, 1, 2**62], [0, 13], [0, 1]])
def test_forged_text_offsets_are_refused(tmp_path, offsets):
    path = tmp_path / "saved"
    save(path, 2)
    file = path / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    tensors["names:offsets"] = np.array(offsets, np.int64)
    safetensors.numpy.save_file(tensors, file)
    reseal_file(path)
    refused(path)


def test_text_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "saved"
    save(path, 2)
    raw = (path / "model.safetensors").read_bytes()
    assert raw.count(PATIENT.encode()) == 1
    (path / "model.safetensors").write_bytes(raw.replace(PATIENT.encode(), b"\xff" * len(PATIENT)))
    reseal_file(path)
    refused(path)


# --- killed saves ----------------------------------------------------------------------------------------

SAVE_FOREVER = """
import sys
sys.path.insert(0, {tests!r})
from helpers.tensor_folders import save
number = int(sys.argv[2])
while True:
    save(sys.argv[1] + "/old", number, size=50_000)
    save(f"{{sys.argv[1]}}/new{{number}}", number, size=50_000)
    print(number, flush=True)
    number += 1
"""


def kill_one(root, first, seed):
    """Save in another process, kill it at a random moment; returns the last number it is known to have saved."""
    code = SAVE_FOREVER.format(tests=TESTS)
    child = subprocess.Popen([sys.executable, "-c", code, str(root), str(first)], stdout=subprocess.PIPE)
    child.stdout.readline()
    time.sleep(random.Random(seed).uniform(0, 0.05))
    child.send_signal(signal.SIGKILL)
    rest = child.stdout.read().split()
    child.wait()
    return int(rest[-1]) if rest else first


def check_after_kill(root, last):
    assert number_in(root / "old") in (last, last + 1)
    for path in root.glob("new*"):
        assert number_in(path) == int(path.name[3:])
    save(root / "old", 2)
    save(root / f"new{last + 1}", last + 1)
    assert tidy(root / "old")
    for path in root.glob("new*"):
        shutil.rmtree(path)


def test_a_killed_save_leaves_the_old_folder_or_the_new_one(tmp_path):
    for attempt in range(15):
        last = kill_one(tmp_path, 100 * attempt + 100, seed=attempt)
        check_after_kill(tmp_path, last)


@pytest.mark.slow
def test_hundreds_of_killed_saves(tmp_path):
    for attempt in range(400):
        last = kill_one(tmp_path, 100 * attempt + 100, seed=1000 + attempt)
        check_after_kill(tmp_path, last)


DIE_AT_EVERY_STEP = """
import os, shutil, sys
sys.path.insert(0, {tests!r})
from helpers.tensor_folders import number_in, save, tidy
root, target = sys.argv[1:]
steps = 0

def die_at(limit):
    def hook(event, args):
        global steps
        if event == "open" or event.startswith(("os.", "fcntl.", "shutil.")):
            steps += 1
            if steps == limit:
                os._exit(9)
    sys.addaudithook(hook)

limit, code = 0, 9
while code:
    limit += 1
    shutil.rmtree(root, ignore_errors=True)
    save(root + "/old", 1)
    child = os.fork()
    if not child:
        die_at(limit)
        save(f"{{root}}/{{target}}", 3)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert number_in(root + "/old") in (1, 3)
    if os.path.exists(f"{{root}}/{{target}}"):
        assert number_in(f"{{root}}/{{target}}") in (1, 3)
    save(f"{{root}}/{{target}}", 2)
    assert number_in(f"{{root}}/{{target}}") == 2
    assert tidy(f"{{root}}/{{target}}"), limit
print(limit)
"""


@pytest.mark.parametrize("target", ["old", "new"])
def test_dying_before_any_system_call_leaves_the_old_folder_or_the_new_one(tmp_path, target):
    code = DIE_AT_EVERY_STEP.format(tests=TESTS)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "root"), target], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10
