"""The combined results: what works, what does not, and one line of advice for each problem."""

from typing import Any, NamedTuple

from phenotaste.doctor.packages import Extra, Requirement, bug_report, core_requirements, extras
from phenotaste.doctor.probes import run_probe
from phenotaste.runs.resources import Machine, machine

GIB = 2**30
LOW_MEMORY, LOW_DISK = 2 * GIB, GIB
REINSTALL = "pip install --force-reinstall phenotaste"

Advice = list[tuple[str, str]]  # subject and what to do


class DoctorReport(NamedTuple):
    """The result of `examine`; `advice` is empty where nothing is wrong.

    Examples
    --------
    >>> from phenotaste.doctor import DoctorReport, bug_report
    >>> from phenotaste.runs.resources import machine
    >>> works = {"state": "works"}
    >>> kernels = {"location": "memory"}
    >>> report = DoctorReport(bug_report(), machine(), [], works | {"kernels": kernels}, works, [])
    >>> report.works, report.advice[0]
    (True, ('kernels', 'export NUMBA_CACHE_DIR=FOLDER with a writable folder'))
    """

    versions: list[tuple[str, str]]
    machine: Machine
    requirements: list[Requirement] | None
    core: dict[str, Any]
    gpu: dict[str, Any]
    extras: list[Extra]

    @property
    def works(self) -> bool:
        """Whether no required package is missing and the core imports and, where that was tried, fits."""
        return self.core["state"] == "works" and all(need.version for need in self.requirements or [])

    @property
    def advice(self) -> Advice:
        """The subject of each problem, and what to do."""
        lines = [*core_advice(self), *machine_advice(self.machine), *gpu_advice(self.gpu)]
        for extra in self.extras:
            if not extra.ready:
                purpose = f" for {extra.purpose}" if extra.purpose else ""
                lines.append((f"extra {extra.name}", f"{install_command(extra.requirements)}{purpose}"))
        return lines

    def as_dict(self) -> dict[str, Any]:
        """The report as `phenotaste doctor --json` prints it.

        Examples
        --------
        >>> from phenotaste.doctor import DoctorReport, bug_report
        >>> from phenotaste.runs.resources import machine
        >>> works = {"state": "works"}
        >>> report = DoctorReport(bug_report(), machine(), [], works, works, []).as_dict()
        >>> report["works"], report["machine"]["cores"] >= 1
        (True, True)
        """
        return {
            "works": self.works,
            "versions": dict(self.versions),
            "machine": self.machine._asdict(),
            "requirements": [need._asdict() for need in self.requirements or []],
            "core": self.core,
            "gpu": self.gpu,
            "extras": {
                extra.name: {
                    "ready": extra.ready,
                    "requirements": [need._asdict() for need in extra.requirements],
                }
                for extra in self.extras
            },
            "advice": [{"subject": subject, "advice": text} for subject, text in self.advice],
        }


def examine(*, quick: bool = False) -> DoctorReport:
    """Check this installation and this machine. Unless `quick`, fit a few patients, too, which may compile kernels.

    Examples
    --------
    >>> from phenotaste import doctor
    >>> doctor.examine(quick=True).works
    True
    """
    return DoctorReport(
        versions=bug_report(),
        machine=machine(),
        requirements=core_requirements(),
        core=run_probe("import" if quick else "core"),
        gpu=run_probe("gpu"),
        extras=extras(),
    )


def install_command(requirements: list[Requirement]) -> str:
    """Install what is missing or too old. Not `phenotaste[extra]`: that needs an index which has phenotaste."""
    specifiers = " ".join(f'"{need.specifier}"' for need in requirements if not need.satisfied)
    return f"pip install {specifiers}"


def core_advice(report: DoctorReport) -> Advice:
    advice = []
    satisfied = all(need.satisfied for need in report.requirements or [])
    if report.requirements is None:
        advice.append(("installation", "pip install -e . in the checkout, so that extras can be checked"))
    elif not satisfied:
        advice.append(("installation", install_command(report.requirements)))
    state = report.core["state"]
    if report.core.get("kernels", {}).get("location") == "memory":
        advice.append(("kernels", "export NUMBA_CACHE_DIR=FOLDER with a writable folder"))
    if state != "works" and satisfied:
        advice.append(("core", f"{REINSTALL} in a new environment; if that does not help, report this"))
    return advice


def machine_advice(machine: Machine) -> Advice:
    advice = []
    quota = machine.cpu_quota
    if quota is not None and quota < machine.cores:
        advice.append(("cores", f"use --threads {max(1, int(quota))}: the container allows no more CPU time"))
    if machine.memory_free is not None and machine.memory_free < LOW_MEMORY:
        advice.append(("memory", "phenotaste fit COHORT --plan estimates the memory of a fit"))
    if machine.disk_free is None or machine.disk_free < LOW_DISK:
        advice.append(("disk", "export TMPDIR=FOLDER with a folder on a disk with more free space"))
    return advice


def gpu_advice(gpu: dict[str, Any]) -> Advice:
    state = gpu["state"]
    if state in ("works", "no torch"):  # without torch, the extra has its own advice
        return []
    if state in ("cpu torch", "no gpu") and not gpu["driver"]:
        return []  # without a driver there is most likely no GPU
    advice = {
        "cpu torch": ("GPU", "install a torch built for CUDA, see pytorch.org"),
        "no gpu": (
            "GPU",
            "nvidia-smi shows the driver's version; install the torch built for it, see pytorch.org",
        ),
        "broken torch": (
            "torch",
            'pip install --force-reinstall "torch>=2.11"; python -c "import torch" shows the error',
        ),
    }
    other = ("GPU", "fits on the CPU work without it; nvidia-smi shows whether it is busy or out of memory")
    return [advice.get(state, other)]
