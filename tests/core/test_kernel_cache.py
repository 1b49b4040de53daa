"""Where compiled kernels are cached if numba's own folders are not writable."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import phenotaste
from phenotaste.core.kernels.kernel_cache import private_folder

ROOT = os.name == "posix" and os.geteuid() == 0
NOBODY = 65534
# File modes do not limit root unless it drops this capability.
LIMITED = ["setpriv", "--bounding-set=-dac_override"] if ROOT else []
SCRIPT = """
import numba
from phenotaste.core.kernels.kernel_cache import CACHE
from phenotaste.simulate import _ehr  # kernels
print(CACHE, numba.config.CACHE_DIR)
"""


@pytest.fixture(scope="module")
def read_only():
    """A copy of the package that nobody can write to, and two folders: one that everybody can write to, and one not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(
            Path(phenotaste.__file__).parent,
            folder / "lib" / "phenotaste",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        folder.chmod(0o755)
        for mode, inside in ((0o1777, "open"), (0o555, "closed")):
            (folder / inside).mkdir()
            (folder / inside).chmod(mode)
        yield folder
        for path in [path for path in folder.rglob("*") if path.is_dir()]:
            path.chmod(0o755)


def run(read_only, temporary, script=SCRIPT, *arguments):
    """Run a script of a user whose home, and package, are read-only; `temporary` is the only temporary directory."""
    closed = str(read_only / "closed")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_", "COV"))
    }
    environment |= {"HOME": closed, "TMPDIR": str(temporary), "PYTHONPATH": str(read_only / "lib")}
    hide = f"import tempfile; tempfile.tempdir = {str(temporary)!r}\n"  # else /tmp is tried next
    command = [*LIMITED, sys.executable, "-c", hide + script, *arguments]
    return subprocess.run(command, cwd=closed, env=environment, capture_output=True, text=True, timeout=900)


def test_kernels_are_cached_in_a_private_temporary_folder(read_only):
    done = run(read_only, read_only / "open")
    assert done.returncode == 0, done.stderr
    cache, folder = done.stdout.split()
    assert cache == "True"
    assert Path(folder).parent == read_only / "open"
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert done.stderr == ""


def test_without_any_writable_folder_kernels_are_compiled_in_memory(read_only):
    done = run(read_only, read_only / "closed")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "False"
    assert "set NUMBA_CACHE_DIR to a writable folder" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX")
@pytest.mark.parametrize("trap", ["others may write", "a link", "a file", "of another user"])
def test_a_folder_that_others_can_fill_is_not_used(trap, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Path(private_folder())
    assert folder.parent == tmp_path
    folder.rmdir()
    if trap == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    elif trap == "a file":
        folder.touch(mode=0o700)
    else:
        folder.mkdir(mode=0o700)
        if trap == "others may write":
            folder.chmod(0o777)
        elif not ROOT:
            pytest.skip("only root can give a folder away")
        else:
            os.chown(folder, NOBODY, NOBODY)
    assert private_folder() is None


@pytest.mark.attack
def test_a_fit_works_without_any_writable_folder(read_only):
    script = """
from phenotaste import TASTE, simulate
model = TASTE(2, n_init=1, max_iter=3, random_state=0).fit(simulate.recovery(n_patients=20, rank=2)[0])
print(model.outcome_)
"""
    done = run(read_only, read_only / "closed", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["max_iter"]
    assert "Traceback" not in done.stderr
