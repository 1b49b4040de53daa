"""The interface of a study: names, options, and what the module of each study defines."""

import importlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from phenotaste.errors import InputError
from phenotaste.validation import check_choice, check_integer, check_number

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MODULES = {
    "recovery": "recovery",
    "speed": "speed",
    "scale": "scale",
    "prediction": "prediction",
    "heart-failure": "heart_failure",
    "icu": "icu",
    "claims": "claims",
}
NAMES = tuple(MODULES)
"""The names of the studies."""

Cell = dict[str, Any]  # the settings of one fit or one split: numbers, strings and booleans
Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """The options of a study; None leaves the choice to the study.

    Examples
    --------
    >>> from phenotaste import studies
    >>> studies.Options(quick=True, splits=2)
    Options(quick=True, seed=0, starts=None, splits=2, size=None, fraction=None, ...)
    """

    quick: bool = False  # a tiny version, to try it out
    seed: int = 0
    starts: int | None = None
    splits: int | None = None
    size: str | None = None  # "laptop" or "paper"
    fraction: float | None = None  # of the paper's number of patients
    largest: int | None = None  # patients
    limit_minutes: float | None = None  # of one cell
    device: str | None = None
    synpuf: str | None = None  # the folder of DE-SynPUF
    data: str | None = None  # the folder of the ICU stays
    methods: str | None = None  # of `comparison.METHODS`, separated by commas
    ranks: str | None = None  # numbers of phenotypes, separated by commas

    def given(self) -> set[str]:
        """Return the names of the options that are set; a study refuses those that it does not have.

        Examples
        --------
        >>> from phenotaste import studies
        >>> studies.Options(quick=True, splits=2).given()
        {'splits'}
        """
        common = {"quick", "seed"}
        return {name for name, value in asdict(self).items() if value is not None} - common


@dataclass(frozen=True)
class CellContext:
    """The environment that a cell runs in, on which its result must not depend."""

    options: Options
    threads: int | None = None  # None: all cores
    folder: Path | None = None  # of its own, kept when the study is interrupted, for intermediate results
    on_progress: Callable[[float], None] = field(default=lambda fraction: None)  # of this cell that is done


class Study(Protocol):
    """The module of a study. Table, figure and page are functions of `results` alone.

    `results` has at least a row for each cell: the cell's settings, what it measured, and `cell`, `cell_seconds`,
    `cell_processor_seconds`, `cores`, `threads`, `processor`, `versions`.

    A study may also define `PARALLEL_CELLS = True` if a cell starts processes itself, at most `CellContext.threads`,
    and `FILES`, names of files that cells write to `CellContext.folder` and that belong to the results.
    """

    NAME: str
    TITLE: str
    QUESTION: str  # one sentence
    TIMED: bool  # whether it measures times, so that cells run one after another
    ACCEPTS: frozenset[str]  # the options that it has, besides quick and seed

    @staticmethod
    def cells(options: Options) -> list[Cell]:
        """Return all cells, always in the same order."""

    @staticmethod
    def run(cell: Cell, context: CellContext) -> Row | list[Row]:
        """Run one cell; apart from times, the result depends on the cell only."""

    @staticmethod
    def cost(cell: Cell) -> float:
        """Return the relative duration of a cell, for the estimate of the time left."""

    @staticmethod
    def table(results: "pd.DataFrame") -> "pd.DataFrame":
        """Return mean and standard deviation over starts or splits, a row for each setting."""

    @staticmethod
    def figure(results: "pd.DataFrame", table: "pd.DataFrame") -> "Figure": ...

    @staticmethod
    def text(results: "pd.DataFrame", table: "pd.DataFrame") -> str:
        """Return the page in Markdown, without its title and question."""


def load(name: str) -> Study:
    if name not in MODULES:
        raise InputError(f"The study {name!r} does not exist: choose one of {', '.join(NAMES)}.")
    return cast(Study, importlib.import_module(f"phenotaste.studies.{MODULES[name]}"))


def check_options(study: Study, options: Options) -> None:
    unknown = sorted(options.given() - study.ACCEPTS)
    if unknown:
        raise InputError(
            f"The study {study.NAME} has no option {' and '.join(name.replace('_', '-') for name in unknown)}: "
            "leave it out."
        )
    for name in ("starts", "splits", "largest"):
        value = getattr(options, name)
        if value is not None:
            check_integer(name, value, min=1)
    for name, maximum in (("fraction", 1.0), ("limit_minutes", float("inf"))):
        value = getattr(options, name)
        if value is not None:
            check_number(name, value, max=maximum, closed="right")
    if options.size is not None:
        check_choice("size", options.size, ("laptop", "paper"))
