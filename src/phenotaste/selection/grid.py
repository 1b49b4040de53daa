"""The grid of a selection: ranks and weights, the fits of each cell, and the seed of every fit."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from phenotaste.errors import InputError
from phenotaste.taste import N_STARTS, TASTE
from phenotaste.validation import is_integer, is_number

START, BOOTSTRAP, HALF = "start", "bootstrap", "half"
STREAMS = {START: 0, BOOTSTRAP: 1, HALF: 2}  # part of every seed: never renumber
MAX_VALUES = 10_000  # along an axis of the grid


class Cell(NamedTuple):
    """One point of the grid."""

    rank: int
    lam: float
    mu: float
    smooth: float


class Task(NamedTuple):
    """One fit: start `number` of a cell, or the fit of its bootstrap sample or half `number`."""

    kind: str
    rank: int
    lam: float
    mu: float
    smooth: float
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}-r{self.rank}-l{self.lam!r}-m{self.mu!r}-s{self.smooth!r}-{self.number}"

    @property
    def cell(self) -> Cell:
        return Cell(self.rank, self.lam, self.mu, self.smooth)

    @property
    def cost(self) -> float:
        """Relative duration: part of an iteration does not depend on the rank, and halves are projected as well."""
        fits = {START: 1.0, BOOTSTRAP: N_STARTS, HALF: 0.5 * N_STARTS + 0.5}
        return (4.0 + self.rank) * fits[self.kind]


@dataclass(frozen=True)
class Grid:
    """Ranks × weights of static features, uniqueness and smoothness, each cell fitted from `n_init` starts."""

    ranks: tuple[int, ...]
    lams: tuple[float, ...]
    mus: tuple[float, ...]
    smooths: tuple[float, ...]
    n_init: int

    @property
    def weights(self) -> tuple[tuple[float, ...], ...]:
        return self.lams, self.mus, self.smooths

    @property
    def cells(self) -> list[Cell]:
        return [Cell(rank, *weights) for rank in self.ranks for weights in product(*self.weights)]

    def starts(self, cell: Cell) -> list[Task]:
        return [Task(START, *cell, number) for number in range(self.n_init)]

    def tasks(self, halves: int = 0) -> Iterator[Task]:
        for cell in self.cells:
            yield from self.starts(cell)
            yield from half_tasks(cell, halves)

    def contains(self, other: "Grid") -> bool:
        """Whether every fit of the other grid is one of this grid."""
        axes = zip((self.ranks, *self.weights), (other.ranks, *other.weights), strict=True)
        return self.n_init >= other.n_init and all(set(values) >= set(others) for values, others in axes)


def half_tasks(cell: Cell, halves: int) -> list[Task]:
    """The fits of both halves of every split of the patients: 2s and 2s + 1 are a partition."""
    return [Task(HALF, *cell, number) for number in range(2 * halves)]


@dataclass(frozen=True)
class FitSettings:
    """What all fits of a selection have in common."""

    init: str = "short_fits"
    objective: str = "relative"
    balance: float = 0.5
    max_iter: int = 200
    tol: float = 1e-5
    dtype: str = "float64"
    random_state: int = 0

    def seed(self, task: Task) -> int:
        """The `random_state` of this fit.

        It depends neither on the weights nor on the rest of the grid: a cell keeps its bits when the grid is extended,
        and cells that differ only in weights have the same starting points.
        """
        key = [self.random_state, STREAMS[task.kind], task.rank, task.number]
        return int(np.random.SeedSequence(key).generate_state(1)[0])

    def rng(self, task: Task) -> np.random.Generator:
        """Draws the patients of a bootstrap sample or a half: the same for every rank, so that ranks compare."""
        draw = task.number // 2 if task.kind == HALF else task.number
        return np.random.default_rng([self.random_state, 1000 + STREAMS[task.kind], draw])


def checked_grid(
    ranks: Any, lams: Any, mus: Any, n_init: Any, smooths: Any = None, objective: Any = None
) -> Grid:
    """Return the grid in increasing order and without repeats, or raise InputError."""
    if not is_integer(n_init, min=2):
        raise InputError(
            f"n_init={n_init!r} is too few: stability compares pairs of starts, so give at least 2 (10 is usual)."
        )
    weights = checked_weights(lams, "lams"), checked_weights(mus, "mus"), checked_smooths(smooths, objective)
    return Grid(checked_ranks(ranks), *weights, int(n_init))


def checked_smooths(smooths: Any, objective: Any) -> tuple[float, ...]:
    """Return the weights of smoothness: by default TASTE's, and none with the paper's objective, which lacks it."""
    if smooths is None:
        return (0.0,) if objective == "paper" else (TASTE().smooth,)
    values = checked_weights(smooths, "smooths")
    if objective == "paper" and values != (0.0,):
        raise InputError('objective="paper" has no smoothness: leave smooths out.')
    return values


def checked_ranks(ranks: Any) -> tuple[int, ...]:
    values = as_list(ranks, "ranks")
    for rank in values:
        if not is_integer(rank, min=1):
            raise InputError(f"ranks contains {rank!r}: every rank must be an integer of at least 1.")
    return tuple(sorted({int(rank) for rank in values}))


def checked_weights(weights: Any, name: str) -> tuple[float, ...]:
    values = as_list(weights, name)
    for value in values:
        if not is_number(value):
            raise InputError(
                f"{name} contains {value!r}: every weight must be a finite number, zero or more."
            )
    return tuple(sorted({abs(float(value)) for value in values}))  # abs: −0.0 is 0.0


def as_list(values: Any, name: str) -> list[Any]:
    """Return one number or several as a list that is not empty."""
    if isinstance(values, Real):
        values = [values]
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InputError(f"{name} must be a number or several: give for example {name}=[3, 4, 5].")
    items = list(values)
    if not items:
        raise InputError(f"{name} is empty, so the grid has no cell: give at least one value.")
    if len(items) > MAX_VALUES:
        raise InputError(f"{name} has {len(items):,} values: give at most {MAX_VALUES:,}.")
    return items
