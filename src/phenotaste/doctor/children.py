"""What can only be found out by trying, each in a process of its own: a crash or a hang there is an answer here."""

import json
import subprocess
import sys
from typing import Any

SECONDS = 900  # compiling every kernel on a slow, busy machine
BEGIN = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    "from phenotaste.doctor.probes import main; main(sys.argv[2])"
)


def ask(probe: str, seconds: float = SECONDS) -> dict[str, Any]:
    """The record that `probes.main` prints, or one that says how the process ended instead."""
    command = [sys.executable, "-c", BEGIN, json.dumps(sys.path), probe]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"state": "hangs", "error": f"no answer within {seconds:g} seconds"}
    except OSError:
        return {"state": "crashes", "error": "no process could be started"}
    if done.returncode < 0:
        return {"state": "crashes", "error": f"stopped by signal {-done.returncode}"}
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"state": "crashes", "error": f"ended with status {done.returncode}"}
