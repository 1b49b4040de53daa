"""What a study is: the names of all, the options they take, and what the module of each one offers."""

import importlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from phenotaste.errors import InputError
from phenotaste.selection.grid import checked_count

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

HOMES = {
    "recovery": "recovery",
    "speed": "speed",
    "scale": "scale",
    "prediction": "prediction",
    "heart-failure": "heart_failure",
}
NAMES = tuple(HOMES)
"""The studies that there are."""

Cell = dict[str, Any]  # one fit or one split: plain numbers, words and truth values that say all of it
Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What a reader may ask of a study; what is None is the study's own choice.

    Examples
    --------
    >>> from phenotaste import studies
    >>> studies.Options(quick=True, splits=2)
    Options(quick=True, seed=0, starts=None, splits=2, size=None, fraction=None, ...)
    """

    quick: bool = False  # a tiny version, to see that it runs
    seed: int = 0
    starts: int | None = None
    splits: int | None = None
    size: str | None = None  # "laptop" or "paper"
    fraction: float | None = None  # of the paper's number of patients
    largest: int | None = None  # patients
    limit_minutes: float | None = None  # for one cell
    device: str | None = None
    synpuf: str | None = None  # folder of DE-SynPUF

    def given(self) -> set[str]:
        """The options that are not left to the study; it refuses those that it has no use for.

        Examples
        --------
        >>> from phenotaste import studies
        >>> studies.Options(quick=True, splits=2).given()
        {'splits'}
        """
        always = {"quick", "seed"}
        return {name for name, value in asdict(self).items() if value is not None} - always


@dataclass(frozen=True)
class Work:
    """What a cell is given to work with, none of which may change what it finds."""

    options: Options
    threads: int | None = None  # None: all cores
    folder: Path | None = None  # its own, kept over breaks, for what a long cell has got so far
    told: Callable[[float], None] = field(default=lambda share: None)  # how much of this cell is done, 0 to 1


class Study(Protocol):
    """The module of a study. Everything it says of results, it says from `results`: no figure is typed by hand.

    `results` has a row for each cell (or several, where a cell finds several things): the cell's own words, what it
    found, and `cell`, `cell_seconds`, `cell_processor_seconds`, `cores`, `threads`, `processor`, `versions`.

    A study may also say `WIDE = True`, when a cell shares out its work by itself and `Work.threads` is how many
    processes it may have, and `FILES`, names of files that cells leave in `Work.folder` for the reader.
    """

    NAME: str
    TITLE: str
    QUESTION: str  # one sentence
    TIMED: bool  # a study that takes times runs one cell after the other
    ACCEPTS: frozenset[str]  # the options it knows, of those that are None otherwise

    @staticmethod
    def cells(options: Options) -> list[Cell]:
        """All that is to be done, always in the same order."""

    @staticmethod
    def run(cell: Cell, work: Work) -> Row | list[Row]:
        """Do one: a pure function of the cell (but for times), whoever runs it."""

    @staticmethod
    def cost(cell: Cell) -> float:
        """How long it takes beside the others; only the time left is told by it."""

    @staticmethod
    def table(results: "pd.DataFrame") -> "pd.DataFrame":
        """One row for each setting, with mean and standard deviation over starts or splits."""

    @staticmethod
    def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure": ...

    @staticmethod
    def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
        """The page, in Markdown, below its title and question."""


def load(name: str) -> Study:
    if name not in HOMES:
        raise InputError(f"There is no study {name!r}: choose one of {', '.join(NAMES)}.")
    return cast(Study, importlib.import_module(f"phenotaste.studies.{HOMES[name]}"))


def check_options(study: Study, options: Options) -> None:
    unknown = sorted(options.given() - study.ACCEPTS)
    if unknown:
        raise InputError(
            f"The study {study.NAME} has no use for {' and '.join(name.replace('_', '-') for name in unknown)}: "
            "leave it out."
        )
    for name in ("starts", "splits", "largest"):
        value = getattr(options, name)
        if value is not None:
            checked_count(value, name, 1)
    for name, most in (("fraction", 1.0), ("limit_minutes", float("inf"))):
        value = getattr(options, name)
        if value is not None and not 0 < value <= most:
            raise InputError(f"{name}={value!r} must be above 0{' and at most 1' if most == 1 else ''}.")
    if options.size not in (None, "laptop", "paper"):
        raise InputError(f"size={options.size!r} must be 'laptop' or 'paper'.")
