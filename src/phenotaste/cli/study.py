"""`phenotaste study`: run one of the paper's experiments, or a comparison of all methods."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phenotaste.cli.options import DeviceChoice, Json, Seed, ThreadCount

if TYPE_CHECKING:
    from phenotaste.studies.run import StudyResult


class StudyChoice(StrEnum):
    """The names in `studies.NAMES`, repeated here so that `--help` does not import them."""

    RECOVERY = "recovery"
    SPEED = "speed"
    SCALE = "scale"
    PREDICTION = "prediction"
    HEART_FAILURE = "heart-failure"
    ICU = "icu"
    CLAIMS = "claims"


class SizeChoice(StrEnum):
    LAPTOP = "laptop"
    PAPER = "paper"


def study(
    name: Annotated[StudyChoice, typer.Argument(help="Question of the paper.", show_default=False)],
    out: Annotated[
        Path, typer.Option(help="Folder for tables, figure and page.", metavar="DIR", show_default=False)
    ],
    quick: Annotated[bool, typer.Option("--quick", help="A tiny version, to try it out.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in DIR.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Processes, if no times are measured; the number of cores by default.", show_default=False
        ),
    ] = None,
    threads: ThreadCount = None,
    seed: Seed = 0,
    starts: Annotated[int | None, typer.Option(help="Starts of each setting.", show_default=False)] = None,
    splits: Annotated[
        int | None, typer.Option(help="Splits of the patients (prediction, icu, claims).", show_default=False)
    ] = None,
    size: Annotated[
        SizeChoice | None, typer.Option(help="Size of the study (prediction).", show_default=False)
    ] = None,
    fraction: Annotated[
        float | None,
        typer.Option(help="Fraction of the paper's patients (speed, heart-failure).", show_default=False),
    ] = None,
    largest: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of patients of a fit; iterations are timed on ten times as many (scale).",
            show_default=False,
        ),
    ] = None,
    limit_minutes: Annotated[
        float | None,
        typer.Option(
            help="A fit that takes longer is stopped and reported as such (scale).", show_default=False
        ),
    ] = None,
    device: Annotated[
        DeviceChoice | None,
        typer.Option(
            help="Device on which TASTE is timed (scale), or networks are trained (icu, claims).",
            show_default=False,
        ),
    ] = None,
    synpuf: Annotated[
        Path | None,
        typer.Option(
            help="Folder of DE-SynPUF files (speed, prediction, claims).", metavar="DIR", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the stays of the PhysioNet Challenge 2012 (icu).",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods, separated by commas; by default all without networks (icu, claims).",
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(help="Numbers of phenotypes, separated by commas (icu, claims).", show_default=False),
    ] = None,
    json_: Json = False,
) -> None:
    """Run one of the paper's experiments, or a comparison of all methods, on simulated or public data.

    Writes results.csv, summary.csv, a figure and a page about the measurements. Each finished part is written at
    once: --resume continues an interrupted run.

    Example:

        phenotaste study recovery --out recovery

    A tiny version, in seconds:

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
        data=None if data is None else str(data.resolve()),
        methods=methods,
        ranks=ranks,
    )
    try:
        with study_progress() as callback:
            result = studies.run(
                name.value, out, options, resume=resume, jobs=jobs, threads=threads, callback=callback
            )
    except KeyboardInterrupt:
        if (out / "results.csv").exists():
            typer.echo(
                f"{out / 'results.csv'} has the finished results; --resume continues the run.", err=True
            )
        raise
    if json_:
        print_json({"study": name.value, "folder": str(out), "files": result.files, "cells": n_cells(result)})
    else:
        print_study(result, out)


def n_cells(result: "StudyResult") -> int:
    return int(result.results["cell"].nunique())


def print_study(result: "StudyResult", out: Path) -> None:
    from phenotaste.cli.terminal import print_list

    lines = [
        ("Cells", f"{n_cells(result):,}"),
        ("Page", str(out / f"{result.name}.md")),
        ("Figure", str(out / f"{result.name}.png")),
        ("Tables", f"{out / 'results.csv'}, {out / 'summary.csv'}"),
    ]
    print_list(f"Study {result.name}", lines, wrap=False)
