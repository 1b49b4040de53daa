"""Checks that only a trial can answer: import the core and fit a few patients, on the CPU or on a GPU.

Each probe runs in a process of its own, so that a crash or a hang is a result like any other. Results go into bug
reports, and an error message may hold a path with a user name; so an error is reported by its type, with its first
sentence only where that holds no path.
"""

import json
import os
import subprocess
import sys
import time
import warnings
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

TIMEOUT = 900.0  # seconds: compiling every kernel on a slow, busy machine
SCRIPT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    "from phenotaste.doctor.probes import main; main(sys.argv[2])"
)

Result = dict[str, Any]


def run_probe(name: str, timeout: float = TIMEOUT) -> Result:
    """Run a probe in a child process; returns its result, or how the process ended."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(sys.path), name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"state": "hangs", "error": f"no result within {timeout:g} seconds"}
    except OSError:
        return {"state": "crashes", "error": "no process could be started"}
    if done.returncode < 0:
        return {"state": "crashes", "error": f"killed by signal {-done.returncode}"}
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"state": "crashes", "error": f"exit status {done.returncode}"}


def main(name: str) -> None:
    """Print a probe's result, in the child process."""
    print(json.dumps(PROBES[name]()))


def probe_core() -> Result:
    """Fit a few patients on the CPU."""
    result = probe_import()
    if result["state"] != "works":
        return result
    return {**result, **trial_fit("cpu"), "kernels": kernel_cache()}


def probe_import() -> Result:
    """Import everything that a fit imports."""
    try:
        from phenotaste import taste  # noqa: F401
    except ModuleNotFoundError as error:
        return {"state": "missing", "error": f"the module {error.name} is missing"}
    except Exception as error:  # an ImportError, an AttributeError of a package that is too old …
        return {"state": "broken", "error": describe_error(error)}
    return {"state": "works", "kernels": kernel_cache()}


def trial_fit(device: str) -> Result:
    """Fit a small simulated cohort and check that the objective decreases."""
    from phenotaste import TASTE, simulate

    try:
        cohort, _ = simulate.recovery(n_patients=20, n_features=8, n_static=5, n_visits=6, rank=2)
        start = time.perf_counter()
        model = TASTE(2, n_init=1, max_iter=5, tol=0, random_state=0, device=device).fit(cohort)
        seconds = time.perf_counter() - start
        losses = model.loss_curve_
        decreases = len(losses) == 5 and all(
            after <= before * (1 + 1e-5) for before, after in pairwise(losses)
        )
    except Exception as error:
        return {"state": "broken", "error": describe_error(error)}
    if not decreases:
        return {"state": "wrong", "error": "the objective does not decrease"}
    return {"state": "works", "seconds": seconds}


def kernel_cache() -> Result:
    """The location of the kernel cache, and how many kernels were loaded from it and how many compiled."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("phenotaste.core.")]
    dispatchers = {
        id(value): value for module in modules for value in vars(module).values() if is_cached(value)
    }
    stats = [dispatcher.stats for dispatcher in dispatchers.values()]
    folders = {str(stat.cache_path) for stat in stats}
    return {
        "location": cache_location(folders),
        "cached": any(next(Path(folder).glob("*.nbc"), None) for folder in folders if folder),
        "loaded": sum(sum(stat.cache_hits.values()) for stat in stats),
        "compiled": sum(sum(stat.cache_misses.values()) for stat in stats),
    }


def is_cached(value: Any) -> bool:
    return getattr(getattr(value, "stats", None), "cache_path", None) is not None


def cache_location(folders: set[str]) -> str:
    """The kind of the cache folder, not its path."""
    from phenotaste.core.kernels import kernel_cache

    if not kernel_cache.CACHE:
        return "memory"
    if any(kernel_cache.FOLDER in folder for folder in folders):
        return "temporary"
    if os.environ.get("NUMBA_CACHE_DIR"):
        return "NUMBA_CACHE_DIR"
    return "package" if all(folder.endswith("__pycache__") for folder in folders) else "user"


def probe_gpu() -> Result:
    """Check whether torch finds a GPU, and whether a fit on it works."""
    driver = Path("/proc/driver/nvidia/version").exists()
    if find_spec("torch") is None:
        return {"state": "no torch", "driver": driver}
    try:
        import torch
    except Exception as error:
        return {"state": "broken torch", "error": describe_error(error), "driver": driver}
    if torch.version.cuda is None:
        return {"state": "cpu torch", "driver": driver}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        return {"state": "no gpu", "driver": driver, "error": why_no_gpu(torch, caught)}
    free, total = torch.cuda.mem_get_info()
    facts = {"name": torch.cuda.get_device_name(), "memory": total, "memory_free": free, "driver": driver}
    return {**trial_fit("cuda"), **facts, "devices": torch.cuda.device_count(), "cuda": torch.version.cuda}


def why_no_gpu(torch: Any, caught: list[warnings.WarningMessage]) -> str:
    """The error of initialising CUDA or, where there is none, the first warning of the availability check."""
    try:
        torch.cuda.init()
    except Exception as error:
        return describe_error(error)
    return describe_error(Warning(str(caught[0].message))) if caught else "torch finds none"


def describe_error(error: BaseException) -> str:
    """The type of an error, and its first sentence unless that holds a path."""
    lines = str(error).strip().splitlines()
    sentence = lines[0].split(". ")[0].strip().rstrip(".") if lines else ""
    kind = type(error).__name__
    return f"{kind}: {sentence}" if sentence and not any(mark in sentence for mark in "/\\@") else kind


PROBES = {"core": probe_core, "import": probe_import, "gpu": probe_gpu}
