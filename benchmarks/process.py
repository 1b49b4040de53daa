"""Run measurements in separate processes with a fixed number of threads."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .data import ROOT

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
PARAFAC2_VENV = ROOT / ".venv" / "parafac2"
PARAFAC2_PINS = Path(__file__).parent / "parafac2.txt"


def measure(python: str = sys.executable, threads: int = 1, **task: Any) -> dict[str, Any]:
    """The result of one task, or {"failed": reason}."""
    environment = {**os.environ, **dict.fromkeys(THREADS, str(threads)), "CI": "true"}  # CI: no progress bars
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "result.json"
        done = subprocess.run(
            [python, "-m", "benchmarks.child", json.dumps(task), str(answer)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode == 0:
            return json.loads(answer.read_text())
    if done.returncode < 0:
        return {"failed": f"ended by signal {-done.returncode}"}
    last = done.stderr.strip().splitlines()[-1:] or [f"ended with code {done.returncode}"]
    return {"failed": last[0]}


def parafac2_python() -> tuple[str | None, str]:
    """A Python with parafac2, created if necessary, or the reason why there is none."""
    ready = PARAFAC2_VENV / "bin" / "python"
    if ready.exists() and runs(str(ready), "import parafac2"):
        return str(ready), ""
    base = next((name for name in candidates() if runs(name, NEW_ENOUGH)), None)
    if base is None:
        return None, "parafac2 was left out: it needs Python 3.13 or newer, and none was found."
    print(f"setting up parafac2 in {PARAFAC2_VENV.relative_to(ROOT)}", flush=True)
    try:
        subprocess.run([base, "-m", "venv", str(PARAFAC2_VENV)], check=True, capture_output=True)
        pip = [str(ready), "-m", "pip", "install", "-q", "-r", str(PARAFAC2_PINS)]
        subprocess.run(pip, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None, "parafac2 was left out: it could not be installed."
    return str(ready), ""


NEW_ENOUGH = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 13))"


def candidates() -> list[str]:
    """Candidate interpreters: this one, those on the path, those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    stored = sorted(pyenv.glob("3.1[3-9]*/bin/python"), reverse=True)
    return [sys.executable, "python3.14", "python3.13", "python3", *map(str, stored)]


def runs(python: str, code: str) -> bool:
    try:
        return subprocess.run([python, "-c", code], capture_output=True).returncode == 0
    except OSError:
        return False
