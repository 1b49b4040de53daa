"""The fits of a comparison, and the seed of each."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from phenotaste.comparison.methods import METHODS, MODES, MethodSettings, Modes

START, HALF, GROUP, SPLIT = "start", "half", "group", "split"
STREAMS = {START: 0, HALF: 1, GROUP: 2, SPLIT: 3}  # part of every seed: never renumber
DRAW = 100  # likewise: of the draws of halves
# Rough durations relative to NMF of patients, for the estimate of the time left.
DURATIONS = {"taste": 8.0, "taste-paper": 2.0, "boosting": 2.0, "gru": 40.0, "cntf": 60.0}
DURATIONS |= dict.fromkeys(("copa", "copa-plus", "copa-static", "spartan", "cohen-plus"), 3.0)
DURATIONS |= dict.fromkeys(("limestone", "marble", "granite", "sustain", "cp"), 6.0)


class Task(NamedTuple):
    """One fit: of all patients, of a half of them, of a group of them, or of the training patients of a split."""

    kind: str
    method: str
    rank: int | None
    number: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.method}-{'' if self.rank is None else f'r{self.rank}-'}{self.number}"

    @property
    def cost(self) -> float:
        parts = {START: 1.0, HALF: 0.5, GROUP: 0.5, SPLIT: 0.8}
        return parts[self.kind] * DURATIONS.get(self.method, 1.0) * (4.0 + (self.rank or 6))


@dataclass(frozen=True)
class Plan:
    """What is compared, and how often."""

    methods: tuple[str, ...]
    ranks: tuple[int, ...]
    halves: int
    starts: int
    splits: int
    groups: tuple[str, ...] = ()

    def cells(self) -> list[tuple[str, int | None]]:
        """All methods with each number of phenotypes; classifiers once."""
        return [
            (name, rank)
            for name in self.methods
            for rank in (self.ranks if METHODS[name].ranked else (None,))
        ]

    def tasks(self) -> list[Task]:
        """All fits. Split by split and half by half, so that an interrupted run has something of every method."""
        numbers = {START: self.starts, HALF: 2 * self.halves, GROUP: len(self.groups), SPLIT: self.splits}
        return [
            Task(kind, method, rank, number)
            for kind, count in numbers.items()
            for number in range(count)
            for method, rank in self.cells()
            if rank is not None or kind == SPLIT
        ]


@dataclass(frozen=True)
class FitSettings:
    """What all fits have in common."""

    random_state: int = 0
    trusted: bool = False
    modes: Modes = MODES
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def methods(self, threads: int | None) -> MethodSettings:
        return MethodSettings(self.modes, threads, self.extra)

    def seed(self, task: Task) -> int:
        """The `random_state` of a fit: the same for all methods, and for both halves of a split another."""
        key = [self.random_state, STREAMS[task.kind], task.rank or 0, task.number]
        return int(np.random.SeedSequence(key).generate_state(1)[0])

    def half_order(self, number: int, n_persons: int) -> np.ndarray:
        """The patients in the order in which they are cut into halves, the same for all methods."""
        return np.random.default_rng([self.random_state, DRAW, number // 2]).permutation(n_persons)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def half_pairs(halves: int) -> Sequence[tuple[int, int]]:
    """Numbers of the tasks of both halves of each repetition."""
    return [(2 * n, 2 * n + 1) for n in range(halves)]
