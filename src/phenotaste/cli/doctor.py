"""`phenotaste doctor`: check the installation and the machine, with advice for each problem."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.options import Json

if TYPE_CHECKING:
    from phenotaste.doctor import DoctorReport
    from phenotaste.doctor.packages import Extra
    from phenotaste.runs.resources import Machine

CACHE_LOCATIONS = {
    "package": "in the package's folder",
    "user": "in the user's cache folder",
    "NUMBA_CACHE_DIR": "in NUMBA_CACHE_DIR",
    "temporary": "in a private folder of the temporary directory",
    "memory": "nowhere, for want of a writable folder",
}
WIDTH = 16


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Import the core, but do not run a fit.")] = False,
    json_: Json = False,
) -> None:
    """Check the installation: versions, cores, memory, GPU, extras.

    Lists what is missing and how to get it. The output names neither the machine nor its users nor their folders, and
    can go into a bug report as it is. Exit status 0: the core works.

    Example:

        phenotaste doctor
    """
    from phenotaste.doctor import examine

    if not quick:
        typer.echo("Running a small fit; the first compiles for about 20 seconds …", err=True)
    report = examine(quick=quick)
    if json_:
        import json

        typer.echo(json.dumps(report.as_dict(), allow_nan=False))
    else:
        print_report(report)
    if not report.works:
        raise typer.Exit(1)


def print_report(report: "DoctorReport") -> None:
    """Print plain lines: rich, or a package it needs, may be what is broken."""
    typer.echo(f"phenotaste {'works' if report.works else 'does not work'} here.")
    print_section("Versions", report.versions)
    print_section(
        "Machine",
        [*machine_lines(report.machine), *core_lines(report.core), ("GPU", gpu_line(report.gpu))],
    )
    requirements = report.requirements or []
    missing = [str(need) for need in requirements if not need.version]
    outdated = [
        f"{need}, {need.specifier} is required"
        for need in requirements
        if need.version and not need.satisfied
    ]
    if missing or outdated:
        print_section("Required", [("", line) for line in [*missing, *outdated]])
    if report.extras:
        print_section("Extras", [(extra.name, extra_line(extra)) for extra in report.extras])
    if report.advice:
        print_section("Advice", report.advice)


def print_section(title: str, lines: list[tuple[str, str]]) -> None:
    typer.echo(f"\n{title}")
    for name, text in lines:
        typer.echo(f"  {name:<{WIDTH}}{text}")


def machine_lines(machine: "Machine") -> list[tuple[str, str]]:
    cores = str(machine.cores)
    if machine.cores < machine.cores_total:
        cores += f" of {machine.cores_total}"
    if machine.cpu_quota is not None and machine.cpu_quota < machine.cores:
        cores += f", limited to the CPU time of {machine.cpu_quota:.2g} cores"
    memory = f"{format_bytes(machine.memory)}, {format_bytes(machine.memory_free)} free"
    disk = f"{format_bytes(machine.disk_free)} free"
    return [("Cores", cores), ("Memory", memory), ("Temporary disk", disk)]


def format_bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def core_lines(core: dict[str, Any]) -> list[tuple[str, str]]:
    if core["state"] != "works":
        return [("Core", f"{core['state']}: {core['error']}")]
    kernels = core["kernels"]
    location = CACHE_LOCATIONS[kernels["location"]]
    if "seconds" not in core:
        cached = "some are cached" if kernels["cached"] else "none compiled yet; they will be cached"
        return [("Kernels", f"{cached} {location}")]
    compiled = "compiled just now" if kernels["compiled"] else "compiled before"
    return [
        ("Kernels", f"{compiled}, cached {location}"),
        ("A small fit", f"works, {core['seconds']:.1f} s"),
    ]


def gpu_line(gpu: dict[str, Any]) -> str:
    state = gpu["state"]
    if state == "works":
        free, total = format_bytes(gpu["memory_free"]), format_bytes(gpu["memory"])
        return f"{gpu['name']}, {free} of {total} free; a small fit works"
    driver = "a driver is installed" if gpu.get("driver") else "no driver either"
    sentences = {
        "no torch": f"not checked: torch is not installed ({driver})",
        "cpu torch": f"none: this torch is built for the CPU only ({driver})",
        "no gpu": f"none that torch can use ({gpu.get('error')})",
        "broken torch": f"torch is installed but cannot be imported ({gpu.get('error')})",
    }
    name = gpu.get("name", "torch")
    return sentences.get(state, f"{name} does not work: {state} ({gpu.get('error')})")


def extra_line(extra: "Extra") -> str:
    return ("ready: " if extra.ready else "not ready: ") + ", ".join(
        str(need) if need.satisfied or not need.version else f"{need} does not satisfy {need.specifier}"
        for need in extra.requirements
    )
