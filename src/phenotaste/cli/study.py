"""`phenotaste study`: the paper's experiments, each a command."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phenotaste.cli.options import DeviceChoice, Json, Seed, Threads

if TYPE_CHECKING:
    from phenotaste.studies.run import Finished


class StudyChoice(StrEnum):
    """The names in `studies.NAMES`, here so that `--help` need not load them."""

    RECOVERY = "recovery"
    SPEED = "speed"
    SCALE = "scale"
    PREDICTION = "prediction"
    HEART_FAILURE = "heart-failure"


class SizeChoice(StrEnum):
    LAPTOP = "laptop"
    PAPER = "paper"


def study(
    name: Annotated[StudyChoice, typer.Argument(help="Which question of the paper.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Folder for tables, figure and page.", metavar="DIR", show_default=False)
    ],
    quick: Annotated[bool, typer.Option("--quick", help="A tiny version, to see that it runs.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what DIR holds.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Processes, where no times are taken; as many as cores by default.", show_default=False
        ),
    ] = None,
    threads: Threads = None,
    seed: Seed = 0,
    starts: Annotated[int | None, typer.Option(help="Starts of each setting.", show_default=False)] = None,
    splits: Annotated[
        int | None, typer.Option(help="Splits of the patients (prediction).", show_default=False)
    ] = None,
    size: Annotated[
        SizeChoice | None, typer.Option(help="How much to run (prediction).", show_default=False)
    ] = None,
    fraction: Annotated[
        float | None, typer.Option(help="Part of the paper's patients (speed).", show_default=False)
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option(
            help="Most patients of a fit; iterations are timed on ten times as many (scale).",
            show_default=False,
        ),
    ] = None,
    limit_minutes: Annotated[
        float | None,
        typer.Option(
            help="A fit that takes longer is stopped, and told as such (scale).", show_default=False
        ),
    ] = None,
    device: Annotated[
        DeviceChoice | None, typer.Option(help="Where TASTE is timed (scale).", show_default=False)
    ] = None,
    synpuf: Annotated[
        Path | None,
        typer.Option(
            help="Folder of DE-SynPUF files (speed, prediction).", metavar="DIR", show_default=False
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Run one of the paper's experiments, on data anyone can have.

    Writes results.csv, summary.csv, a figure and a page that puts what was measured beside what the paper says. Each
    finished part is on disk at once: after a break, --resume goes on.

    Example:

        phenotaste study recovery --out recovery

    To see in seconds what comes out:

        phenotaste study recovery --quick --out try
    """
    from phenotaste import studies
    from phenotaste.cli.terminal import print_json, study_progress

    options = studies.Options(
        quick=quick,
        seed=seed,
        starts=starts,
        splits=splits,
        size=size and size.value,
        fraction=fraction,
        largest=largest,
        limit_minutes=limit_minutes,
        device=device and device.value,
        synpuf=None if synpuf is None else str(synpuf.resolve()),
    )
    try:
        with study_progress() as callback:
            found = studies.run(
                name.value, out, options, resume=resume, jobs=jobs, threads=threads, callback=callback
            )
    except KeyboardInterrupt:
        if (out / "results.csv").exists():
            typer.echo(f"{out / 'results.csv'} has what is finished; --resume goes on.", err=True)
        raise
    if json_:
        print_json({"study": name.value, "folder": str(out), "files": found.files, "cells": cells_of(found)})
    else:
        print_study(found, out)


def cells_of(found: "Finished") -> int:
    return int(found.results["cell"].nunique())


def print_study(found: "Finished", out: Path) -> None:
    from phenotaste.cli.terminal import print_list

    lines = [
        ("Cells", f"{cells_of(found):,}"),
        ("Page", str(out / f"{found.name}.md")),
        ("Figure", str(out / f"{found.name}.png")),
        ("Tables", f"{out / 'results.csv'}, {out / 'summary.csv'}"),
    ]
    print_list(f"Study {found.name}", lines, wrap=False)
