"""Sparse visits as sums of embeddings, and the network that reads them."""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from phenotaste.baselines._recurrent import Reader, at_least_one, pack, packed_rows, with_empty_row
from phenotaste.baselines._torch import tensor, torch
from phenotaste.core.records import Array
from phenotaste.errors import InputError

nn = torch.nn


class Batch(NamedTuple):
    codes: Any  # the codes of all packed visits, one after another
    starts: Any  # where each visit's begin
    owners: Any  # the patient of each visit, by position in the batch
    static: Any  # patients × P, or None
    gaps: Any  # visits × 1, or None
    per_step: Array  # visits at each time step


class Visits:
    """A cohort whose batches are lists of codes: nothing is ever made dense but the static features."""

    def __init__(
        self, visits: sparse.csr_array, offsets: Array, static: Array | None, gaps: Array | None, device: Any
    ) -> None:
        self.lengths = at_least_one(offsets)
        self._visits = with_empty_row(present(visits))
        self._offsets, self._static, self._device = offsets, static, device
        self._gaps = None if gaps is None else np.append(gaps, 0.0)

    def batch(self, patients: Array) -> Batch:
        rows, owners, per_step = packed_rows(self._offsets, patients)
        codes = self._visits[rows]
        return Batch(
            tensor(codes.indices, self._device, np.int64),
            tensor(codes.indptr[:-1], self._device, np.int64),
            tensor(owners, self._device, np.int64),
            None if self._static is None else tensor(self._static[patients], self._device),
            None if self._gaps is None else tensor(self._gaps[rows, None], self._device),
            per_step,
        )


class VisitReader(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Multi-hot visits times an embedding matrix, the static features' part added to each, then a GRU."""

    def __init__(
        self,
        n_features: int,
        n_static: int,
        times: bool,
        embedding: int,
        hidden: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.codes = nn.EmbeddingBag(n_features, embedding, mode="sum")
        nn.init.uniform_(self.codes.weight, -0.1, 0.1)
        self.static = nn.Linear(n_static, embedding, bias=False) if n_static else None
        self.reader = Reader("GRU", embedding + times, hidden, layers, dropout)

    def forward(self, batch: Batch) -> Any:
        visits = self.codes(batch.codes, batch.starts)
        if self.static is not None:
            visits = visits + self.static(batch.static)[batch.owners]
        if batch.gaps is not None:
            visits = torch.cat([visits, batch.gaps], dim=1)
        return self.reader(pack(visits, batch.per_step))

    def penalised(self) -> Any:
        return self.reader.logistic.weight


def present(visits: sparse.csr_array) -> sparse.csr_array:
    """One-hot: the positive entries, whatever their size."""
    if visits.nnz == 0 or visits.data.min() > 0:
        return visits
    visits = sparse.csr_array(visits.multiply(visits > 0))
    visits.eliminate_zeros()
    return visits


def log_gaps(times: Array | None, offsets: Array) -> Array:
    """log(1 + time since the patient's visit before), in days where times are dates; 0 for a first visit."""
    if times is None:
        raise InputError("times=True needs a cohort with visit times: give visit_times, or set times=False.")
    if times.dtype.kind == "M":
        times = (times - times[:1]) / np.timedelta64(1, "D")
    gaps = np.diff(times.astype(np.float64), prepend=0.0)
    gaps[offsets[:-1][np.diff(offsets) > 0]] = 0.0
    return np.log1p(gaps)
