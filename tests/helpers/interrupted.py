"""For tests of interrupted fits: an exception after some iterations, a small disk, damaged files."""

import os
import subprocess
from contextlib import contextmanager, suppress

import pytest


class StoppedError(Exception):
    """Raised in the middle of a fit."""


class StopAfter:
    """A callback that counts iterations and raises after a given number of them."""

    def __init__(self, iterations=10**9):
        self.left, self.seen = iterations, 0

    def __call__(self, progress):
        self.seen += 1
        if self.seen == self.left:
            raise StoppedError


@contextmanager
def small_disk(folder, size):
    """A real file system of `size` bytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting is not permitted on this system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(disk):
    """Write until the disk is full."""
    with suppress(OSError), open(disk / "filler", "wb", 0) as file:
        while True:
            file.write(bytes(4096))


def flip_a_bit(path, position=0.5):
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(int(size * position))
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
