"""The trials themselves, run by `children.ask`: load the core and fit a few patients, on the CPU or on a GPU.

What they print goes into bug reports. A message may hold a path with a user's name in it, so of an error only its kind
is told, and its first sentence where that holds no path.
"""

import json
import os
import sys
import time
import warnings
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def main(probe: str) -> None:
    print(json.dumps(PROBES[probe]()))


def core() -> Answer:
    """Fit a few patients, and say where the kernels came from."""
    found = load()
    return {**found, **fitted("cpu"), "kernels": kernels()} if found["state"] == "works" else found


def load() -> Answer:
    """Import what a fit imports."""
    try:
        from phenotaste import taste  # noqa: F401
    except ModuleNotFoundError as error:
        return {"state": "missing", "error": f"the module {error.name} is missing"}
    except RuntimeError as error:
        if "no locator available" in str(error):  # numba's words for: no folder that can be written to
            return {"state": "no cache", "error": "there is no folder to keep compiled kernels in"}
        return {"state": "broken", "error": told(error)}
    except Exception as error:  # an ImportError, an AttributeError of a package that is too old …
        return {"state": "broken", "error": told(error)}
    return {"state": "works", "kernels": kernels()}


def fitted(device: str) -> Answer:
    from phenotaste import TASTE, simulate

    try:
        cohort, _ = simulate.recovery(n_patients=20, n_features=8, n_static=5, n_visits=6, rank=2)
        began = time.perf_counter()
        model = TASTE(2, max_iter=5, tol=0, random_state=0, device=device).fit(cohort)
        seconds = time.perf_counter() - began
        losses = model.loss_curve_
        sound = len(losses) == 5 and all(after <= before * (1 + 1e-5) for before, after in pairwise(losses))
    except Exception as error:
        return {"state": "broken", "error": told(error)}
    if not sound:
        return {"state": "wrong", "error": "the objective does not fall"}
    return {"state": "works", "seconds": seconds}


def kernels() -> Answer:
    """Where compiled kernels are kept, how many were read from there and how many had to be compiled."""
    loaded = [module for name, module in list(sys.modules.items()) if name.startswith("phenotaste.core.")]
    dispatchers = {id(each): each for module in loaded for each in vars(module).values() if is_cached(each)}
    stats = [each.stats for each in dispatchers.values()]
    folders = {str(each.cache_path) for each in stats}
    return {
        "place": place(folders),
        "kept": any(next(Path(folder).glob("*.nbi"), None) for folder in folders if folder),
        "read": sum(sum(each.cache_hits.values()) for each in stats),
        "compiled": sum(sum(each.cache_misses.values()) for each in stats),
    }


def is_cached(value: Any) -> bool:
    return getattr(getattr(value, "stats", None), "cache_path", None) is not None


def place(folders: set[str]) -> str:
    """Which kind of folder that is; never which folder."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return "NUMBA_CACHE_DIR"
    return "package" if all(folder.endswith("__pycache__") for folder in folders) else "user"


def gpu() -> Answer:
    """Whether torch sees a GPU, and whether a fit on it works."""
    driver = Path("/proc/driver/nvidia/version").exists()
    if find_spec("torch") is None:
        return {"state": "no torch", "driver": driver}
    try:
        import torch
    except Exception as error:
        return {"state": "broken torch", "error": told(error), "driver": driver}
    if torch.version.cuda is None:
        return {"state": "cpu torch", "driver": driver}
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    if not there:
        return {"state": "no gpu", "driver": driver, "error": why_no_gpu(torch, notes)}
    free, total = torch.cuda.mem_get_info()
    facts = {"name": torch.cuda.get_device_name(), "memory": total, "memory_free": free, "driver": driver}
    return {**fitted("cuda"), **facts, "devices": torch.cuda.device_count(), "cuda": torch.version.cuda}


def why_no_gpu(torch: Any, notes: list[warnings.WarningMessage]) -> str:
    """torch says why when it is made to start; what it noted on the way is second best."""
    try:
        torch.cuda.init()
    except Exception as error:
        return told(error)
    return told(Warning(str(notes[0].message))) if notes else "torch finds none"


def told(error: BaseException) -> str:
    """The kind of an error, and its first sentence unless that holds a path."""
    lines = str(error).strip().splitlines()
    sentence = lines[0].split(". ")[0].strip().rstrip(".") if lines else ""
    kind = type(error).__name__
    return f"{kind}: {sentence}" if sentence and not any(mark in sentence for mark in "/\\@") else kind


PROBES = {"core": core, "load": load, "gpu": gpu}
