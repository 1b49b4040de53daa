"""What is to be fitted: the grid of ranks and weights, the starts of each cell, and the seed of every single fit."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from phenotaste.errors import InputError

START, BOOTSTRAP, HALF = "start", "bootstrap", "half"
STREAMS = {START: 0, BOOTSTRAP: 1, HALF: 2}  # part of every seed: never renumber
NAME = re.compile(r"(start|bootstrap|half)-r(\d+)-l([0-9.e+-]+)-m([0-9.e+-]+)-(\d+)")
MOST_RANKS = 10_000


class Cell(NamedTuple):
    """One point of the grid."""

    rank: int
    lam: float
    mu: float


class Task(NamedTuple):
    """One fit: start `number` of a cell, or a fit of its bootstrap resample or half `number`."""

    kind: str
    rank: int
    lam: float
    mu: float
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}-r{self.rank}-l{self.lam!r}-m{self.mu!r}-{self.number}"

    @property
    def cell(self) -> Cell:
        return Cell(self.rank, self.lam, self.mu)

    @property
    def cost(self) -> float:
        """How long it takes, in a unit of its own: an iteration has a part that does not grow with the rank."""
        return (4.0 + self.rank) * (
            1.5 if self.kind == HALF else 1.0
        )  # half the patients, but projections too


def task_named(name: str) -> Task | None:
    """The task that wrote a file of this name; None where none did."""
    found = NAME.fullmatch(name)
    if found is None:
        return None
    try:
        return Task(found[1], int(found[2]), float(found[3]), float(found[4]), int(found[5]))
    except ValueError:
        return None


@dataclass(frozen=True)
class Grid:
    """Ranks × weights of static features × weights of uniqueness, each cell fitted from `n_init` starts."""

    ranks: tuple[int, ...]
    lams: tuple[float, ...]
    mus: tuple[float, ...]
    n_init: int

    @property
    def cells(self) -> list[Cell]:
        return [Cell(rank, lam, mu) for rank in self.ranks for lam in self.lams for mu in self.mus]

    def starts(self, cell: Cell) -> list[Task]:
        return [Task(START, *cell, number) for number in range(self.n_init)]

    def tasks(self) -> Iterator[Task]:
        for cell in self.cells:
            yield from self.starts(cell)

    def holds(self, other: "Grid") -> bool:
        """Whether every fit of the other grid is one of this grid."""
        axes = ((self.ranks, other.ranks), (self.lams, other.lams), (self.mus, other.mus))
        return self.n_init >= other.n_init and all(set(mine) >= set(theirs) for mine, theirs in axes)


def checked_grid(ranks: Any, lams: Any, mus: Any, n_init: Any) -> Grid:
    """The grid in rising order and without repeats, or a refusal."""
    if isinstance(n_init, bool) or not isinstance(n_init, Integral) or n_init < 2:
        raise InputError(
            f"n_init={n_init!r} is too few: stability compares pairs of starts, so give at least 2 (10 is usual)."
        )
    return Grid(checked_ranks(ranks), checked_weights(lams, "lams"), checked_weights(mus, "mus"), int(n_init))


def checked_ranks(ranks: Any) -> tuple[int, ...]:
    found = values_of(ranks, "ranks")
    for rank in found:
        if isinstance(rank, bool) or not isinstance(rank, Integral) or rank < 1:
            raise InputError(f"ranks holds {rank!r}: every rank must be a whole number of at least 1.")
    return tuple(sorted({int(rank) for rank in found}))


def checked_weights(values: Any, name: str) -> tuple[float, ...]:
    found = values_of(values, name)
    for value in found:
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            raise InputError(f"{name} holds {value!r}: every weight must be a finite number, zero or more.")
    return tuple(sorted({abs(float(value)) for value in found}))  # abs: −0.0 is 0.0


def values_of(values: Any, name: str) -> list[Any]:
    """A number or several, as a list that is not empty."""
    if isinstance(values, Real):
        values = [values]
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a number or several: give for example {name}=[3, 4, 5].")
    found = list(values)
    if not found:
        raise InputError(f"{name} is empty, so the grid has no cell: give at least one value.")
    if len(found) > MOST_RANKS:
        raise InputError(f"{name} has {len(found):,} values: at most {MOST_RANKS:,} are taken.")
    return found


@dataclass(frozen=True)
class Fitting:
    """What all fits of a selection have in common."""

    init: str = "mixed"
    weights: str = "relative"
    normalize: bool = True
    solver: str = "cd"
    max_iter: int = 200
    tol: float = 1e-4
    dtype: str = "float64"
    random_state: int = 0

    def init_of(self, task: Task) -> str:
        """How this fit starts; "mixed" takes turns, since starts of one kind may all miss the same thing."""
        return self.init if self.init != "mixed" else ("nmf", "random")[task.number % 2]

    def seed(self, task: Task) -> int:
        """The `random_state` of this fit.

        Neither weights nor the rest of the grid are in it: a cell keeps its bits when the grid grows, and cells
        that differ in weights only set out from the same places.
        """
        return self.number_from(STREAMS[task.kind], task.rank, task.number)

    def rng(self, task: Task) -> np.random.Generator:
        """Which patients a bootstrap or a half holds: the same for every rank, so that ranks can be compared.

        Halves come in pairs, 2s and 2s + 1, that share out the patients."""
        draw = task.number // 2 if task.kind == HALF else task.number
        return np.random.default_rng([self.random_state, 1000 + STREAMS[task.kind], draw])

    def number_from(self, *key: int) -> int:
        return int(np.random.SeedSequence([self.random_state, *key]).generate_state(1)[0])


def checked_count(value: Any, name: str, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name}={value!r} must be a whole number of at least {least}.")
    return int(value)


def checked_seed(random_state: Any) -> int:
    if isinstance(random_state, bool) or not isinstance(random_state, Integral) or random_state < 0:
        raise InputError(
            f"random_state={random_state!r} must be a whole number, zero or more: a selection that is continued "
            "later has to draw the same starts again."
        )
    return int(random_state)
