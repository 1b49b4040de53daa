"""The network of GRUClassifier: sparse visits as sums of embeddings, read by a GRU."""

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from phenotaste.baselines._recurrent import (
    SequenceClassifier,
    nn,
    pack,
    packed_rows,
    sequence_lengths,
    tensor,
    torch,
    with_empty_row,
)
from phenotaste.core.records import Array
from phenotaste.errors import InputError


class Batch(NamedTuple):
    codes: Any  # the codes of all packed visits, concatenated
    starts: Any  # index of each visit's first code
    owners: Any  # the patient of each visit, by position in the batch
    static: Any  # patients × P, or None
    gaps: Any  # visits × 1, or None
    per_step: Array  # visits at each time step


class VisitSequences:
    """A cohort whose batches are lists of codes; only the static features are dense."""

    def __init__(
        self, visits: sparse.csr_array, offsets: Array, static: Array | None, gaps: Array | None, device: Any
    ) -> None:
        self.lengths = sequence_lengths(offsets)
        self._visits = with_empty_row(positive_entries(visits))
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


class VisitGRU(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """The sum of each visit's code embeddings plus a linear map of the static features, then a GRU."""

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
        self.classifier = SequenceClassifier("GRU", embedding + times, hidden, layers, dropout)

    def forward(self, batch: Batch) -> Any:
        visits = self.codes(batch.codes, batch.starts)
        if self.static is not None:
            visits = visits + self.static(batch.static)[batch.owners]
        if batch.gaps is not None:
            visits = torch.cat([visits, batch.gaps], dim=1)
        return self.classifier(pack(visits, batch.per_step))

    def penalised_weights(self) -> Any:
        return self.classifier.logistic.weight


def positive_entries(visits: sparse.csr_array) -> sparse.csr_array:
    """The matrix without zero and negative entries."""
    if visits.nnz == 0 or visits.data.min() > 0:
        return visits
    visits = sparse.csr_array(visits.multiply(visits > 0))
    visits.eliminate_zeros()
    return visits


def log_gaps(times: Array | None, offsets: Array) -> Array:
    """log(1 + time since the patient's previous visit), in days where times are dates; 0 for a first visit."""
    if times is None:
        raise InputError("times=True needs a cohort with visit times: give visit_times, or set times=False.")
    if times.dtype.kind == "M":
        times = (times - times[:1]) / np.timedelta64(1, "D")
    gaps = np.diff(times.astype(np.float64), prepend=0.0)
    gaps[offsets[:-1][np.diff(offsets) > 0]] = 0.0
    return np.log1p(gaps)
