"""The GPU's kernel source as plain C++ with one thread, so that it runs where there is no GPU."""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from phenotaste.core.cuda.compile import MODES, SOURCE, Shape

TILE, MAX_VISITS = 3, 8  # so small that short histories take every path


@cache
def library(rank, mode):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler here to read the GPU's kernel with")
    out = Path(tempfile.mkdtemp()) / f"kernel_{rank}_{mode}.so"
    options = {"R": rank, "NT": 1, "TILE": TILE, "MODE": mode, "MAX_VISITS": MAX_VISITS}
    flags = [f"-D{name}={value}" for name, value in options.items()]
    command = [
        compiler,
        "-O2",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-x",
        "c++",
        *flags,
        str(SOURCE),
        "-o",
        str(out),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(out))


class HostLauncher:
    """What `Launcher` is on a GPU."""

    blocks = 1

    def __init__(self, rank):
        import torch

        self.shape = Shape(rank, 1, TILE)
        self.global_scratch = torch.empty(0)

    def patients(self, mode, task):
        run = library(self.shape.rank, MODES[mode]).patients
        run.argtypes = [type(task)]
        run(task)

    def gather(self, arguments, segments):
        pointers = [ctypes.c_void_p(a.data_ptr()) for a in arguments]
        library(self.shape.rank, MODES["step"]).gather(*pointers, ctypes.c_int(segments))

    def combine(self, arguments, features):
        pointers = [ctypes.c_void_p(a.data_ptr()) for a in arguments]
        library(self.shape.rank, MODES["step"]).combine(*pointers, ctypes.c_int(features))
