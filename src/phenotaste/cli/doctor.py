"""`phenotaste doctor`: what is installed, what this machine has, and what to do about what is missing."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from phenotaste.cli.options import Json

if TYPE_CHECKING:
    from phenotaste.doctor import Examination
    from phenotaste.doctor.packages import Extra
    from phenotaste.runs.resources import Machine

KEPT = {
    "package": "in the package's folder",
    "user": "in the user's cache folder",
    "NUMBA_CACHE_DIR": "in NUMBA_CACHE_DIR",
}
WIDTH = 16


def doctor(
    quick: Annotated[bool, typer.Option("--quick", help="Load the core, but do not try a fit.")] = False,
    json_: Json = False,
) -> None:
    """Examine the installation: versions, cores, memory, GPU, extras.

    Says what is missing and how to get it. Nothing in it names the machine, its users or their folders, so that it can
    go into a bug report as it is. Exit status 0: the core works.

    Example:

        phenotaste doctor
    """
    from phenotaste.doctor import examine

    if not quick:
        typer.echo("Trying a small fit; the very first takes a minute or two, to compile …", err=True)
    found = examine(quick=quick)
    if json_:
        import json

        typer.echo(json.dumps(found.as_dict(), allow_nan=False))
    else:
        print_examination(found)
    if not found.works:
        raise typer.Exit(1)


def print_examination(found: "Examination") -> None:
    """With plain lines: rich, or what it shows, may be what is broken."""
    typer.echo(f"phenotaste {'works' if found.works else 'does not work'} here.")
    print_lines("Versions", found.report)
    print_lines(
        "Machine", [*machine_lines(found.machine), *trial_lines(found.core), ("GPU", gpu_line(found.gpu))]
    )
    missing = [need.told for need in found.needs or [] if not need.version]
    others = [
        f"{need.told}, {need.wanted} is needed"
        for need in found.needs or []
        if need.version and not need.fits
    ]
    if missing or others:
        print_lines("Needed", [("", line) for line in [*missing, *others]])
    if found.extras:
        print_lines("Extras", [(extra.name, extra_line(extra)) for extra in found.extras])
    if found.advice:
        print_lines("Advice", found.advice)


def print_lines(title: str, lines: list[tuple[str, str]]) -> None:
    typer.echo(f"\n{title}")
    for name, text in lines:
        typer.echo(f"  {name:<{WIDTH}}{text}")


def machine_lines(here: "Machine") -> list[tuple[str, str]]:
    cores = f"{here.cores}" + (f" of {here.cores_total}" if here.cores < here.cores_total else "")
    if here.cpu_quota is not None and here.cpu_quota < here.cores:
        cores += f", for {here.cpu_quota:.2g} cores' worth of time"
    memory = f"{size(here.memory)}, {size(here.memory_free)} free"
    return [("Cores", cores), ("Memory", memory), ("Temporary disk", f"{size(here.disk_free)} free")]


def size(amount: int | None) -> str:
    return "unknown" if amount is None else f"{amount / 2**30:.1f} GiB"


def trial_lines(core: dict[str, Any]) -> list[tuple[str, str]]:
    if core["state"] != "works":
        return [("Core", f"{core['state']}: {core['error']}")]
    kernels = core["kernels"]
    place = KEPT[kernels["place"]]
    tried = "seconds" in core
    now = f"compiled just now, kept {place}" if kernels["compiled"] else f"compiled before, kept {place}"
    untried = f"{'some are kept' if kernels['kept'] else 'none yet; they will be kept'} {place}"
    lines = [("Kernels", now if tried else untried)]
    return [*lines, ("A small fit", f"works, {core['seconds']:.1f} s")] if tried else lines


def gpu_line(gpu: dict[str, Any]) -> str:
    state = gpu["state"]
    if state == "works":
        return f"{gpu['name']}, {size(gpu['memory_free'])} of {size(gpu['memory'])} free; a small fit works"
    there = "there is a driver" if gpu.get("driver") else "no driver either"
    sentences = {
        "no torch": f"not looked for: torch is not installed ({there})",
        "cpu torch": f"none: this torch is built for the CPU only ({there})",
        "no gpu": f"none that torch can use ({gpu.get('error')})",
        "broken torch": f"torch is installed but cannot be loaded ({gpu.get('error')})",
    }
    name = gpu.get("name", "torch")
    return sentences.get(state, f"{name} does not work: {state} ({gpu.get('error')})")


def extra_line(extra: "Extra") -> str:
    return ("ready: " if extra.ready else "not ready: ") + ", ".join(
        need.told if need.fits or not need.version else f"{need.told} does not fit" for need in extra.needs
    )
