"""Options that commands share, and the words options accept: here, so that `--help` need not load the estimator."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

CohortFolder = Annotated[
    Path, typer.Argument(help="Folder of a saved cohort.", metavar="COHORT", show_default=False)
]
ModelFolder = Annotated[
    Path, typer.Argument(help="Folder of a saved model.", metavar="MODEL", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
ReviewFile = Annotated[
    Path | None,
    typer.Option(
        help="The review.json that a report page saved: names, merges, rejections.", show_default=False
    ),
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.", min=0, max=2**32 - 1)]
Threads = Annotated[
    int | None, typer.Option(help="Threads to use; all cores by default.", min=1, show_default=False)
]


class WeightsChoice(StrEnum):
    RELATIVE = "relative"
    ABSOLUTE = "absolute"


class SolverChoice(StrEnum):
    CD = "cd"
    BPP = "bpp"


class InitChoice(StrEnum):
    NMF = "nmf"
    RANDOM = "random"
    UNIFORM = "uniform"


class DeviceChoice(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"
    AUTO = "auto"


class DtypeChoice(StrEnum):
    FLOAT64 = "float64"
    FLOAT32 = "float32"
