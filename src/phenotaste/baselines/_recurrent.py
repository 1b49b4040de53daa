"""A recurrent network that reads a patient's visits in order and ends in one logit, and how it is trained.

Batches hold patients of similar length, packed: row by row the visits of all of them, first visits first.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse
from sklearn.metrics import log_loss, roc_auc_score

from phenotaste.baselines._torch import one_thread, tensor, torch
from phenotaste.core.records import Array

nn = torch.nn
LARGEST_GRADIENT = 5.0  # a single odd batch must not throw the network off
SCORING_BATCH = 512


class Progress(NamedTuple):
    """What a callback is told after each epoch."""

    epoch: int
    max_epochs: int
    loss: float  # mean over the training patients
    validation_auc: float  # NaN where nobody is held out


class Training(NamedTuple):
    """How to train, in words."""

    learning_rate: float
    l2: float
    batch_size: int
    max_epochs: int
    patience: int
    balanced: bool


class Trained(NamedTuple):
    losses: list[float]
    aucs: list[float]
    best_epoch: int
    stopped: bool  # by the callback


class Sequences(Protocol):
    """Patients as a network takes them."""

    lengths: Array  # visits of each patient, at least one

    def batch(self, patients: Array) -> Any:
        """The inputs of these patients, who come longest first."""


class Reader(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A GRU or LSTM over packed visits; its last hidden state decides."""

    def __init__(self, cell: str, width: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.rnn = getattr(nn, cell)(width, hidden, num_layers=layers)
        self.dropout = nn.Dropout(dropout)
        self.logistic = nn.Linear(hidden, 1)

    def forward(self, packed: Any) -> Any:
        _, state = self.rnn(packed)
        last = state[0][-1] if isinstance(state, tuple) else state[-1]
        return self.logistic(self.dropout(last))[:, 0]


def at_least_one(offsets: Array) -> Array:
    """Lengths of histories; an empty one counts as a single visit without codes."""
    return np.maximum(np.diff(offsets), 1)


def packed_rows(offsets: Array, patients: Array) -> tuple[Array, Array, Array]:
    """For patients longest first: visit and patient (by position) of each packed row, and rows a time step.

    The visit of an empty history is the one after the last, a row of zeros.
    """
    lengths = at_least_one(offsets)[patients]
    step = np.arange(lengths.max())
    there = step[:, None] < lengths  # time × patients; row-major order is the packed one
    first = np.where(np.diff(offsets)[patients] > 0, offsets[patients], offsets[-1])
    visits = (first + step[:, None])[there]
    owners = np.broadcast_to(np.arange(len(patients)), there.shape)[there]
    return visits, owners, there.sum(axis=1)


def pack(rows: Any, per_step: Array) -> Any:
    return nn.utils.rnn.PackedSequence(rows, torch.from_numpy(per_step))


def with_empty_row(visits: sparse.csr_array) -> sparse.csr_array:
    """The matrix with a row of zeros at its end; the entries are shared, not copied."""
    indptr = np.append(visits.indptr, visits.indptr[-1])
    return sparse.csr_array((visits.data, visits.indices, indptr), shape=(len(indptr) - 1, visits.shape[1]))


def batches(lengths: Array, patients: Array, size: int, rng: np.random.Generator | None) -> Iterator[Array]:
    """Patients of similar length together, longest first in each batch; with `rng` in an order of its own."""
    if rng is not None:
        patients = rng.permutation(patients)
    patients = patients[np.argsort(-lengths[patients], kind="stable")]
    cut = [patients[start : start + size] for start in range(0, len(patients), size)]
    for index in range(len(cut)) if rng is None else rng.permutation(len(cut)):
        yield cut[index]


def probabilities(network: Any, data: Sequences, patients: Array | None = None) -> Array:
    """P(case) of the patients given, or of all, in their own order."""
    patients = np.arange(len(data.lengths)) if patients is None else patients
    found = np.empty(len(data.lengths))
    network.eval()
    with torch.no_grad(), one_thread(next(network.parameters()).device):
        for members in batches(data.lengths, patients, SCORING_BATCH, None):
            found[members] = torch.sigmoid(network(data.batch(members)).double()).cpu().numpy()
    return found[patients]


def train(
    network: Any,
    data: Sequences,
    case: Array,
    patients: Array,
    held_out: tuple[Sequences, Array, Array] | None,
    how: Training,
    rng: np.random.Generator,
    callback: Callable[[Progress], object] | None = None,
) -> Trained:
    """Fit the network by Adam, and keep the weights of the epoch with the best validation AUC.

    `held_out` is (data, case, patients) of the validation part; without it the last epoch's weights are kept.
    """
    device = next(network.parameters()).device
    weights = class_weights(case, patients) if how.balanced else np.ones(len(case))
    optimiser = torch.optim.Adam(network.parameters(), lr=how.learning_rate)
    losses: list[float] = []
    aucs: list[float] = []
    best, best_epoch, kept, stopped = (-1.0, 0.0), 0, None, False
    for epoch in range(1, how.max_epochs + 1):
        losses.append(one_epoch(network, data, case, weights, patients, how, optimiser, rng, device))
        score = (float("nan"), 0.0) if held_out is None else validate(network, *held_out)
        aucs.append(score[0])
        if held_out is None or score > best:
            best, best_epoch = score, epoch
            if held_out is not None:
                kept = {name: value.clone() for name, value in network.state_dict().items()}
        progress = Progress(epoch, how.max_epochs, losses[-1], aucs[-1])
        stopped = callback is not None and callback(progress) is True
        if stopped or epoch - best_epoch >= how.patience:
            break
    if kept is not None:
        network.load_state_dict(kept)
    return Trained(losses, aucs, best_epoch, stopped)


def one_epoch(
    network: Any,
    data: Sequences,
    case: Array,
    weights: Array,
    patients: Array,
    how: Training,
    optimiser: Any,
    rng: np.random.Generator,
    device: Any,
) -> float:
    network.train()
    total = 0.0
    for members in batches(data.lengths, patients, how.batch_size, rng):
        optimiser.zero_grad()
        logits = network(data.batch(members))
        target, weight = tensor(case[members], device), tensor(weights[members], device)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target, weight)
        (loss + how.l2 * network.penalised().square().sum()).backward()
        nn.utils.clip_grad_norm_(network.parameters(), LARGEST_GRADIENT)
        optimiser.step()
        total += float(loss.detach()) * len(members)
    return total / len(patients)


def validate(network: Any, data: Sequences, case: Array, patients: Array) -> tuple[float, float]:
    """(AUC, minus the log loss): of two epochs with the same AUC the better calibrated one is kept."""
    found = probabilities(network, data, patients)
    return float(roc_auc_score(case[patients], found)), -float(log_loss(case[patients], found, labels=[0, 1]))


def class_weights(case: Array, patients: Array) -> Array:
    """Weights by which both classes count the same, one on average."""
    cases = case[patients].mean()
    return np.where(case, 0.5 / cases, 0.5 / (1 - cases))
