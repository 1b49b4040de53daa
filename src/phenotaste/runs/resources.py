"""Cores, memory, disk and processor time of this process; sizes are in bytes, None where the system does not say."""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

MEMINFO = Path("/proc/meminfo")
OWN_STATUS = Path("/proc/self/status")
OWN_PEAK = Path("/proc/self/clear_refs")  # "5" resets the peak
CPUINFO = Path("/proc/cpuinfo")
CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


class Machine(NamedTuple):
    """The resources available to this process."""

    cores: int  # a fit uses by default
    cores_total: int
    cpu_quota: float | None  # cores' worth of processor time that the control group allows
    memory: int | None
    memory_free: int | None
    disk_free: int | None  # in the folder for temporary files


def machine() -> Machine:
    memory, free = memory_figures()
    return Machine(
        cores=available_cores(),
        cores_total=os.cpu_count() or 1,
        cpu_quota=cpu_quota(),
        memory=memory,
        memory_free=free,
        disk_free=free_disk(),
    )


def affinity_cores() -> int:
    """The cores that the scheduler may run this process on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_cores() -> int:
    """The cores this process may use, limited by OMP_NUM_THREADS, which joblib sets for its workers."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    cores = affinity_cores()
    return min(cores, int(limit)) if limit.isdigit() and int(limit) > 0 else cores


def free_memory() -> float:
    """Bytes that can still be allocated; infinity where the system does not say."""
    free = memory_figures()[1]
    return float("inf") if free is None else float(free)


def memory_figures() -> tuple[int | None, int | None]:
    """Total and free memory: of the control group where it sets a lower limit, else of the system."""
    total, free = system_memory()
    limit, used = cgroup_memory()
    if limit is None or (total is not None and limit >= total):
        return total, free
    return limit, limit - used if used is not None else free


def system_memory() -> tuple[int | None, int | None]:
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
        total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        return total, free
    except (OSError, KeyError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None
    except (AttributeError, OSError, ValueError):
        return None, None


def control_groups() -> list[Path]:
    """The folder of this process's control group and those of its ancestors, innermost first; empty without cgroups."""
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:
        return []
    group = next((line[3:] for line in lines if line.startswith("0::")), "/").strip("/")
    folders = [CGROUP / group, *(CGROUP / group).parents] if group else [CGROUP]
    return [folder for folder in folders if folder == CGROUP or CGROUP in folder.parents]


def cgroup_memory() -> tuple[int | None, int | None]:
    """The lowest memory limit of the control groups, and how much of it is in use."""
    limits: list[tuple[int, int | None]] = []
    for folder in control_groups():
        limit = read_integer(folder / "memory.max")
        if limit is not None:
            limits.append((limit, read_integer(folder / "memory.current")))
    return min(limits, key=lambda pair: pair[0]) if limits else (None, None)


def cpu_quota() -> float | None:
    """Cores' worth of processor time that the control groups allow; None without a limit."""
    quotas = []
    for folder in control_groups():
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append(int(quota) / int(period))
        except (OSError, ValueError):  # "max" means no limit
            continue
    return min(quotas, default=None)


def read_integer(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def free_disk() -> int | None:
    try:
        return shutil.disk_usage(tempfile.gettempdir()).free
    except OSError:  # no writable folder for temporary files
        return None


def processor_name() -> str:
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return facts.get("model name", platform.machine())


def processor_seconds() -> float:
    """Processor time of this process and of the child processes it has waited for."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def load_average() -> float:
    """The system's load over the last minute; NaN where the system has none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else float("nan")


def reset_peak_memory() -> int | None:
    """Reset the peak of this process's memory, and return what it uses; None where the system cannot."""
    try:
        OWN_PEAK.write_text("5")
    except OSError:
        return None
    return own_memory("VmRSS")


def peak_memory() -> int | None:
    """The peak of this process's memory since it was reset."""
    return own_memory("VmHWM")


def own_memory(name: str) -> int | None:
    try:
        lines = OWN_STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


@contextmanager
def timed() -> Iterator[dict[str, Any]]:
    """Measure the block: the record that is yielded has its `seconds` and `processor_seconds` afterwards.

    Examples
    --------
    >>> from phenotaste.runs.resources import timed
    >>> with timed() as taken:
    ...     total = sum(range(1000))
    >>> sorted(taken)
    ['processor_seconds', 'seconds']
    """
    taken: dict[str, Any] = {}
    wall, used = time.perf_counter(), processor_seconds()
    try:
        yield taken
    finally:
        taken["seconds"] = time.perf_counter() - wall
        taken["processor_seconds"] = processor_seconds() - used
