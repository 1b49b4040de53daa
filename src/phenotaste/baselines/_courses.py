"""Courses of phenotypes as sequences, and the LSTM that predicts from them."""

from typing import Any, NamedTuple

import numpy as np

from phenotaste.baselines._recurrent import Reader, at_least_one, pack, packed_rows
from phenotaste.baselines._torch import tensor, torch
from phenotaste.core.records import Array

nn = torch.nn


class Batch(NamedTuple):
    visits: Any  # packed visits × R
    per_step: Array  # visits at each time step


class Courses:
    """Patients as visits × R; an empty history is one visit without anything."""

    def __init__(self, S: Array, offsets: Array, device: Any) -> None:
        self.lengths = at_least_one(offsets)
        self._S = np.vstack([S, np.zeros((1, S.shape[1]))])
        self._offsets, self._device = offsets, device

    def batch(self, patients: Array) -> Batch:
        rows, _, per_step = packed_rows(self._offsets, patients)
        return Batch(tensor(self._S[rows], self._device), per_step)


class CourseReader(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def __init__(self, rank: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.reader = Reader("LSTM", rank, hidden, layers, dropout)

    def forward(self, batch: Batch) -> Any:
        return self.reader(pack(batch.visits, batch.per_step))

    def penalised(self) -> Any:
        return self.reader.logistic.weight
