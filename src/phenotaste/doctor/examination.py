"""The findings together: what works, what does not, and one line of advice for each thing that could be better."""

from typing import Any, NamedTuple

from phenotaste.doctor.children import ask
from phenotaste.doctor.packages import Extra, Need, bug_report, core_needs, extras
from phenotaste.runs.resources import Machine, machine

GIB = 2**30
LITTLE_MEMORY, LITTLE_DISK = 2 * GIB, GIB
AGAIN = "pip install --force-reinstall phenotaste"


class Examination(NamedTuple):
    """What `examine` found; `advice` is empty where all is well.

    Examples
    --------
    >>> from phenotaste.doctor import Examination, bug_report
    >>> from phenotaste.runs.resources import machine
    >>> found = Examination(bug_report(), machine(), [], {"state": "no cache"}, {"state": "works"}, [])
    >>> found.works, found.advice[0]
    (False, ('kernels', 'export NUMBA_CACHE_DIR=FOLDER with a folder that can be written to'))
    """

    report: list[tuple[str, str]]
    machine: Machine
    needs: list[Need] | None
    core: dict[str, Any]
    gpu: dict[str, Any]
    extras: list[Extra]

    @property
    def works(self) -> bool:
        """Whether the core does: nothing it needs is missing, and it loads and, where that was tried, fits."""
        return self.core["state"] == "works" and all(need.version for need in self.needs or [])

    @property
    def advice(self) -> list[tuple[str, str]]:
        """What each line is about, and what to do."""
        found = [*about_the_core(self), *about_the_machine(self.machine), *about_the_gpu(self.gpu)]
        for extra in self.extras:
            if not extra.ready:
                purpose = f" for {extra.purpose}" if extra.purpose else ""
                found.append((f"extra {extra.name}", f"{install(extra.needs)}{purpose}"))
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON, as `phenotaste doctor --json` prints it.

        Examples
        --------
        >>> from phenotaste.doctor import Examination, bug_report
        >>> from phenotaste.runs.resources import machine
        >>> found = Examination(bug_report(), machine(), [], {"state": "works"}, {"state": "works"}, [])
        >>> found.as_dict()["works"], found.as_dict()["machine"]["cores"] >= 1
        (True, True)
        """
        return {
            "works": self.works,
            "versions": dict(self.report),
            "machine": self.machine._asdict(),
            "needs": [need._asdict() for need in self.needs or []],
            "core": self.core,
            "gpu": self.gpu,
            "extras": {
                extra.name: {"ready": extra.ready, "needs": [need._asdict() for need in extra.needs]}
                for extra in self.extras
            },
            "advice": [{"about": about, "advice": text} for about, text in self.advice],
        }


def examine(*, quick: bool = False) -> Examination:
    """Look at this installation and this machine. Not `quick`: fit a few patients too, compiling what is not yet.

    Examples
    --------
    >>> from phenotaste import doctor
    >>> doctor.examine(quick=True).works
    True
    """
    return Examination(
        bug_report(), machine(), core_needs(), ask("load" if quick else "core"), ask("gpu"), extras()
    )


def install(needs: list[Need]) -> str:
    """The command that brings what is missing or does not fit. Not `phenotaste[extra]`: that needs an index with it."""
    wanted = " ".join(f'"{need.wanted}"' for need in needs if not need.fits)
    return f"pip install {wanted}"


def about_the_core(found: Examination) -> list[tuple[str, str]]:
    advice = []
    if found.needs is None:
        advice.append(("installation", "pip install -e . in the checkout, so that extras can be looked at"))
    elif not all(need.fits for need in found.needs):
        advice.append(("installation", install(found.needs)))
    state = found.core["state"]
    if state == "no cache":
        advice.append(("kernels", "export NUMBA_CACHE_DIR=FOLDER with a folder that can be written to"))
    elif state != "works" and all(need.fits for need in found.needs or []):
        advice.append(("core", f"{AGAIN} in a new environment; if that does not help, report this"))
    return advice


def about_the_machine(here: Machine) -> list[tuple[str, str]]:
    advice = []
    if here.cpu_quota is not None and here.cpu_quota < here.cores:
        advice.append(
            (
                "cores",
                f"use --threads {max(1, int(here.cpu_quota))}: the container gives no more time than that",
            )
        )
    if here.memory_free is not None and here.memory_free < LITTLE_MEMORY:
        advice.append(
            ("memory", "phenotaste fit COHORT --plan says what a fit will take before it is started")
        )
    if here.disk_free is None or here.disk_free < LITTLE_DISK:
        advice.append(("disk", "export TMPDIR=FOLDER with a folder on a disk with more room"))
    return advice


def about_the_gpu(gpu: dict[str, Any]) -> list[tuple[str, str]]:
    state = gpu["state"]
    if state == "works":
        return []
    if state == "no torch":
        return []  # the extra says so
    if state == "cpu torch":
        return [("GPU", "install a torch built for CUDA, see pytorch.org")] if gpu["driver"] else []
    if state == "no gpu" and not gpu["driver"]:
        return []  # no driver, so most likely no GPU: nothing is wrong
    if state == "no gpu":
        return [
            ("GPU", "nvidia-smi shows the driver's version; install the torch made for it, see pytorch.org")
        ]
    if state == "broken torch":
        return [
            ("torch", 'pip install --force-reinstall "torch>=2.11"; python -c "import torch" shows the error')
        ]
    return [("GPU", "fits on the CPU work without it; nvidia-smi shows whether it is busy or out of memory")]
