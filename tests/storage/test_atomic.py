"""Atomic files and folders, locks, and packed files: complete or absent, and refused if a bit has changed."""

import os
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest

from phenotaste.errors import InputError
from phenotaste.storage import encoding, locks
from phenotaste.storage.atomic import (
    remove_stale_drafts,
    remove_stale_files,
    replace_file,
    write_file,
    write_folder,
)
from phenotaste.storage.locks import FolderLock, exclusive_folder, temporary_folder

needs_locks = pytest.mark.skipif(locks.fcntl is None, reason="the platform has no advisory locks")
DRAFT = "0123456789abcdef.partial"

HOLD = """
import sys
from pathlib import Path
from phenotaste.storage.locks import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of a folder."""
    folder = tmp_path / "held"
    folder.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "True\n"
    yield folder, child
    child.kill()
    child.wait()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- files and folders -----------------------------------------------------------------------------------


def test_a_file_that_fails_halfway_leaves_the_old_one(tmp_path):
    write_file(tmp_path / "a", "old")
    with pytest.raises(TypeError), replace_file(tmp_path / "a") as file:
        file.writelines([b"new", "not bytes"])
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_private_files_and_folders_are_readable_by_their_owner_only(tmp_path):
    write_file(tmp_path / "a", b"x", private=True)
    with write_folder(tmp_path / "b", private=True) as folder:
        (folder / "c").write_text("x")
    assert [mode(tmp_path / name) for name in ("a", "b", "b/c")] == [0o600, 0o700, 0o600]


@pytest.mark.parametrize(
    ("existing", "names"), [("replace", ["new"]), ("merge", ["new", "old"]), ("refuse", ["old"])]
)
def test_an_existing_folder_is_replaced_merged_or_refused(tmp_path, existing, names):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_text("old")
    try:
        with write_folder(tmp_path / "a", existing=existing) as folder:
            (folder / "new").write_text("new")
    except OSError:
        assert existing == "refuse"
    assert sorted(os.listdir(tmp_path / "a")) == names
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("existing", ["replace", "merge", "refuse"])
def test_a_folder_that_fails_halfway_leaves_the_old_one(tmp_path, existing):
    (tmp_path / "a").mkdir()
    with pytest.raises(TypeError), write_folder(tmp_path / "a", existing=existing) as folder:
        (folder / "new").write_bytes("not bytes")
    assert os.listdir(tmp_path) == ["a"]
    assert not os.listdir(tmp_path / "a")


def test_a_folder_whose_replacement_fails_is_put_back(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "old").write_text("old")
    with pytest.raises(FileNotFoundError), write_folder(tmp_path / "a", existing="replace") as folder:
        shutil.rmtree(folder)
    assert os.listdir(tmp_path / "a") == ["old"]


def test_stale_drafts_are_removed_and_other_files_are_not(tmp_path):
    for name in (f".a.{DRAFT}", ".a.partial", "a.0123456789abcdef", "a"):
        (tmp_path / name).write_text("x")
    remove_stale_files(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".a.partial", "a", "a.0123456789abcdef"]


@needs_locks
def test_stale_draft_folders_are_removed_unless_their_process_lives(tmp_path, holder):
    for name in (f".a.{DRAFT}", f".b.{DRAFT}"):
        (tmp_path / name).mkdir()
    held, _ = holder
    held.rename(tmp_path / ".a.fedcba9876543210.partial")
    with write_folder(tmp_path / "a"):
        pass
    assert sorted(os.listdir(tmp_path)) == [".a.fedcba9876543210.partial", f".b.{DRAFT}", "a"]


# --- locks -----------------------------------------------------------------------------------------------


@needs_locks
def test_a_draft_that_is_being_written_is_not_removed(tmp_path):
    with replace_file(tmp_path / "page", locked=True) as file:
        file.write(b"half")
        (tmp_path / f".page.{DRAFT}").write_text("left by a killed process")
        remove_stale_drafts(tmp_path / "page")
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == ["page"]


@needs_locks
def test_a_lock_excludes_other_processes_until_they_are_killed(holder):
    folder, child = holder
    assert not FolderLock(folder).acquire()
    with pytest.raises(InputError, match="in use"), exclusive_folder(folder, "in use"):
        pass
    child.kill()
    child.wait()
    with exclusive_folder(folder, "in use"):
        assert not FolderLock(folder).acquire()
    with FolderLock(folder) as lock:
        assert lock.acquire()
        assert lock.acquire()  # it is held already
        assert lock.exclusive


@pytest.mark.parametrize("missing", ["platform", "file system"])
def test_without_locks_nothing_is_excluded_and_nothing_removed(tmp_path, monkeypatch, missing):
    if missing == "platform":
        monkeypatch.setattr(locks, "fcntl", None)
    else:
        pytest.importorskip("fcntl")

        def no_locks(*_):
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(locks.fcntl, "flock", no_locks)
    stale = tmp_path / f".a.{DRAFT}"
    stale.mkdir()
    with (
        exclusive_folder(tmp_path, "in use"),
        exclusive_folder(tmp_path, "in use"),
        write_folder(tmp_path / "a"),
    ):
        pass
    assert stale.exists()


@needs_locks
def test_temporary_folders_are_private_and_those_of_killed_processes_go(tmp_path, monkeypatch, holder):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "work-left").mkdir()
    held, _ = holder
    held.rename(tmp_path / "work-held")
    with temporary_folder("work-") as folder:
        assert mode(folder) == 0o700
        (folder / "patients").write_text("x")
        assert sorted(os.listdir(tmp_path)) == sorted(["work-held", folder.name])
    assert os.listdir(tmp_path) == ["work-held"]


# --- packed files ----------------------------------------------------------------------------------------


def test_packed_records_and_arrays_come_back_and_the_same_content_gives_the_same_bytes():
    record, arrays = (
        {"a": [1, None, "0" * 64]},
        {"x": np.eye(2)[:, ::-1], "n": np.arange(3), "e": np.zeros((0, 4))},
    )
    content = encoding.pack(record, arrays)
    back = encoding.unpack(content)
    assert back.record == record
    assert back.digest == encoding.unpack_record(content)["sha256"]
    assert back.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(back.arrays[name], array)
    assert encoding.pack(record, dict(reversed(arrays.items()))) == content


def test_any_flipped_bit_of_a_packed_file_is_noticed():
    content = encoding.pack({"a": 1}, {"x": np.arange(4.0)})
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(ValueError):
            encoding.unpack(bytes(damaged))
    for size in range(len(content)):
        with pytest.raises(ValueError):
            encoding.unpack(content[:size])


def test_a_record_with_nan_is_refused():
    with pytest.raises(ValueError):
        encoding.pack({"a": float("nan")}, {})
