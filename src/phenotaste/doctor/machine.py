"""Cores, memory and disk that this process may use: sizes in bytes, None where the system does not tell."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


class Machine(NamedTuple):
    """What there is to compute with."""

    cores: int  # that a fit would use
    cores_there: int
    core_share: float | None  # what a container may use of them
    memory: int | None
    memory_free: int | None
    disk_free: int | None  # in the folder for temporary files


def machine() -> Machine:
    memory, free = memory_of_the_machine()
    limit, used = memory_of_the_container()
    if limit is not None and (memory is None or limit < memory):
        memory = limit
        free = limit - used if used is not None else free
    return Machine(
        cores=cores(),
        cores_there=os.cpu_count() or 1,
        core_share=core_share(),
        memory=memory,
        memory_free=free,
        disk_free=disk_free(),
    )


def cores() -> int:
    """What engines.threads.available_cores says, without loading the engine, which may be what is broken."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(there, int(limit)) if limit.isdigit() and int(limit) > 0 else there


def memory_of_the_machine() -> tuple[int | None, int | None]:
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
    """The folders of this process's control group and of those around it, innermost first; none on other systems."""
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:
        return []
    inside = next((line[3:] for line in lines if line.startswith("0::")), "/").strip("/")
    folders = [CGROUP / inside, *(CGROUP / inside).parents] if inside else [CGROUP]
    return [folder for folder in folders if folder == CGROUP or CGROUP in folder.parents]


def memory_of_the_container() -> tuple[int | None, int | None]:
    """The smallest limit set around this process, and what is taken of it."""
    found: list[tuple[int, int | None]] = []
    for folder in control_groups():
        limit = number(folder / "memory.max")
        if limit is not None:
            found.append((limit, number(folder / "memory.current")))
    return min(found, key=lambda pair: pair[0]) if found else (None, None)


def core_share() -> float | None:
    """Cores' worth of time that the control groups around this process allow."""
    shares = []
    for folder in control_groups():
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            shares.append(int(quota) / int(period))
        except (OSError, ValueError):  # "max" is no number: no limit
            continue
    return min(shares, default=None)


def number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def disk_free() -> int | None:
    try:
        return shutil.disk_usage(tempfile.gettempdir()).free
    except OSError:  # no folder there that can be written to
        return None
