"""Kernels and their parts: what is compiled, what Python may call, and when cached code is used."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import phenotaste
from helpers.kernels import compiled
from phenotaste.core.kernels import jit, nnls

SCRIPT = """
import numpy as np
from phenotaste.core.kernels import nnls
X = np.ones((1, 3))
nnls.solve_rows_cd(np.eye(3), np.full((1, 3), 2.0), X, 5, 0.0)
print(X.sum(), sum(nnls.cd_each_row.stats.cache_misses.values()))
"""


@jit.part
def plus_one(x):
    return x + 1.0


@jit.part(inline=True)
def plus_two(x):
    return plus_one(plus_one(x))


@jit.kernel
def plus_four(x, out):
    out[0] = plus_two(plus_two(x))


def test_parts_are_compiled_into_kernels():
    out = np.zeros(1)
    plus_four(1.0, out)
    assert out[0] == 5.0
    assert compiled(plus_two)(1.0) == 3.0


def test_a_listener_hears_of_each_kernel_that_is_compiled(monkeypatch):
    monkeypatch.setattr(jit, "CACHE", False)
    calls = []
    with jit.on_compile(lambda: calls.append(1)):
        new = jit.kernel(lambda x: plus_two(x) + x)
        assert new(1.0) == new(1.0) == 4.0
        assert len(calls) == 1
        assert new(1) == 4  # for another type
    assert len(calls) == 2
    new(np.float32(1.0))
    assert len(calls) == 2


def test_a_part_is_not_called_from_python():
    with pytest.raises(TypeError, match="not callable"):
        plus_one(1.0)


def test_division_by_zero_raises_nothing():
    ratio = compiled(jit.part(lambda x, y: x / y))
    assert ratio(1.0, 0.0) == np.inf
    assert np.isnan(ratio(0.0, 0.0))


def test_a_kernel_is_compiled_again_when_a_part_in_another_file_changes(tmp_path):
    package = tmp_path / "phenotaste"
    shutil.copytree(Path(phenotaste.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))

    def run():
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        total, misses = done.stdout.split()
        return float(total), int(misses)

    assert run() == (6.0, 1)
    assert run() == (6.0, 0)
    simd = package / "core" / "kernels" / "simd.py"  # nnls.py itself stays as it is
    text = simd.read_text(encoding="utf-8")
    assert "LANES = 8" in text
    simd.write_text(text + "\n# another version\n", encoding="utf-8")
    assert run() == (6.0, 1)


def test_cached_files_are_found_by_their_key(tmp_path):
    files = jit.KernelFiles(tmp_path / "cache", "kernel-1.py311")
    files.save(("int64", "x86"), b"one")
    files.save(("float64", "x86"), b"two")
    files.save(("int64", "x86"), b"three")
    assert files.load(("int64", "x86")) == b"three"
    assert files.load(("float64", "x86")) == b"two"
    assert files.load(("float32", "x86")) is None
    assert len(list((tmp_path / "cache").iterdir())) == 2
    files.flush()
    assert files.load(("int64", "x86")) is None


def test_cached_files_of_other_source_are_removed_and_never_read(tmp_path, monkeypatch):
    files, other = jit.KernelFiles(tmp_path, "kernel-1.py311"), jit.KernelFiles(tmp_path, "kernel-12.py311")
    files.save("types", "old")
    other.save("types", "old")
    monkeypatch.setattr(jit, "source_digest", lambda: "another")
    assert files.load("types") is None
    files.save("types", "new")
    assert files.load("types") == "new"
    assert len(list(tmp_path.glob("kernel-1.*"))) == len(list(tmp_path.glob("kernel-12.*"))) == 1


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x05"])
def test_a_damaged_cached_file_is_compiled_again(tmp_path, content):
    files = jit.KernelFiles(tmp_path, "kernel-1.py311")
    files.save("types", "code")
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert files.load("types") is None


def test_a_file_of_another_key_under_the_same_name_is_not_used(tmp_path):
    files = jit.KernelFiles(tmp_path, "kernel-1.py311")
    for key in ("one", "other"):
        files.save(key, key)
    files._path("one").write_bytes(files._path("other").read_bytes())
    assert files.load("one") is None


def test_parts_have_names_of_their_own_in_each_kernel(monkeypatch):
    """Else a process would run the copy that was loaded first, although each kernel optimises its own."""
    monkeypatch.setattr(jit, "CACHE", False)
    solve = nnls.solve_passive

    def twice(G, b, passive, x, L, kept):
        solve(G, b, passive, x, L, kept)
        solve(G, x, passive, b, L, kept)

    arrays = np.eye(2), np.ones(2), np.ones(2, bool), np.zeros(2), np.zeros((2, 2)), np.zeros(2, np.int64)
    copies = []
    for kernel in (jit.kernel(twice), jit.kernel(autovectorize=True, fastmath=jit.FASTMATH)(twice)):
        kernel(*arrays)
        (code,) = kernel.inspect_llvm().values()
        defined = set(re.findall(r'^define [^@]*@"?([^"(]+)', code, re.MULTILINE))
        copies.append({name for name in defined if "solve_passive" in name})
    assert all(copies)  # not inlined
    assert not copies[0] & copies[1]
