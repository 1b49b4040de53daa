"""For tests of fits that end before they are done: the same model twice, an end on demand, a disk that is full."""

import os
import subprocess
from contextlib import contextmanager, suppress

import numpy as np
import pytest

FITTED = (
    "H_",
    "V_",
    "F_",
    "W_",
    "U_",
    "loss_curve_",
    "lam_eff_",
    "mu_k_",
    "rmse_",
    "cpi_",
    "n_iter_",
    "outcome_",
)


def assert_same(one, other):
    """To the bit."""
    for name in FITTED:
        mine, theirs = getattr(one, name), getattr(other, name)
        assert np.array_equal(mine, theirs) or (mine != mine and theirs != theirs), name


class EndedError(Exception):
    """Raised in the middle of a fit."""


class After:
    """A callback that ends the fit after so many iterations, and counts them."""

    def __init__(self, iterations=10**9):
        self.left, self.seen = iterations, 0

    def __call__(self, progress):
        self.seen += 1
        if self.seen == self.left:
            raise EndedError


@contextmanager
def small_disk(folder, size):
    """A real file system of so many bytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this system lets nobody mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(disk):
    """Until there is no byte left."""
    with suppress(OSError), open(disk / "filler", "wb", 0) as file:
        while True:
            file.write(bytes(4096))


def flip_a_bit(path, place=0.5):
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(int(size * place))
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
