"""Recurrent networks over packed visits and their training; the only module that imports torch.

A batch holds patients of similar length, packed: all first visits, then all second visits, and so on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse
from sklearn.metrics import log_loss, roc_auc_score

from phenotaste.core.records import Array
from phenotaste.errors import InputError

try:
    import torch
except ImportError as error:
    raise InputError(
        "GRUClassifier and CNTF need torch, which is not installed: run pip install 'phenotaste[gpu]'."
    ) from error

nn = torch.nn
MAX_GRADIENT_NORM = 5.0  # clipped, so that one outlying batch cannot derail training
SCORING_BATCH = 512


class Progress(NamedTuple):
    """Passed to a callback after each epoch."""

    epoch: int
    max_epochs: int
    loss: float  # mean over the training patients
    validation_auc: float  # NaN without validation patients


class TrainingSettings(NamedTuple):
    learning_rate: float
    l2: float
    batch_size: int
    max_epochs: int
    patience: int
    balanced: bool


class TrainingResult(NamedTuple):
    losses: list[float]
    aucs: list[float]
    best_epoch: int
    stopped: bool  # by the callback


class Sequences(Protocol):
    """Patients in the form that a network takes."""

    lengths: Array  # visits of each patient, at least one

    def batch(self, patients: Array) -> Any:
        """The inputs of these patients, which are sorted by length, longest first."""


class Labelled(NamedTuple):
    """Patients of `data` to train or validate with."""

    data: Sequences
    case: Array  # of all patients in `data`
    patients: Array  # indices of those to use


class SequenceClassifier(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """A GRU or LSTM over packed visits, and a logistic regression on its last hidden state."""

    def __init__(self, cell: str, width: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.rnn = getattr(nn, cell)(width, hidden, num_layers=layers)
        self.dropout = nn.Dropout(dropout)
        self.logistic = nn.Linear(hidden, 1)

    def forward(self, packed: Any) -> Any:
        _, state = self.rnn(packed)
        last = state[0][-1] if isinstance(state, tuple) else state[-1]
        return self.logistic(self.dropout(last))[:, 0]


def sequence_lengths(offsets: Array) -> Array:
    """Visits of each patient; an empty history counts as one visit without codes."""
    return np.maximum(np.diff(offsets), 1)


def packed_rows(offsets: Array, patients: Array) -> tuple[Array, Array, Array]:
    """Visit and patient (position in `patients`) of each packed row, and the number of rows per time step.

    `patients` are sorted by length, longest first. The visit of an empty history is the row after the last visit,
    a row of zeros.
    """
    lengths = sequence_lengths(offsets)[patients]
    step = np.arange(lengths.max())
    active = step[:, None] < lengths  # time × patients; row-major order is the packed one
    first = np.where(np.diff(offsets)[patients] > 0, offsets[patients], offsets[-1])
    visits = (first + step[:, None])[active]
    owners = np.broadcast_to(np.arange(len(patients)), active.shape)[active]
    return visits, owners, active.sum(axis=1)


def pack(rows: Any, per_step: Array) -> Any:
    return nn.utils.rnn.PackedSequence(rows, torch.from_numpy(per_step))


def with_empty_row(visits: sparse.csr_array) -> sparse.csr_array:
    """The matrix with a row of zeros appended; the entries are shared, not copied."""
    indptr = np.append(visits.indptr, visits.indptr[-1])
    return sparse.csr_array((visits.data, visits.indices, indptr), shape=(len(indptr) - 1, visits.shape[1]))


def batches(lengths: Array, patients: Array, size: int, rng: np.random.Generator | None) -> Iterator[Array]:
    """Patients of similar length together, longest first in each batch; `rng` shuffles ties and batches."""
    if rng is not None:
        patients = rng.permutation(patients)
    patients = patients[np.argsort(-lengths[patients], kind="stable")]
    cut = [patients[start : start + size] for start in range(0, len(patients), size)]
    for index in range(len(cut)) if rng is None else rng.permutation(len(cut)):
        yield cut[index]


def probabilities(network: Any, data: Sequences, patients: Array | None = None) -> Array:
    """P(case) of the given patients, or of all, in their own order."""
    patients = np.arange(len(data.lengths)) if patients is None else patients
    result = np.empty(len(data.lengths))
    network.eval()
    with torch.no_grad(), one_thread(next(network.parameters()).device):
        for members in batches(data.lengths, patients, SCORING_BATCH, None):
            result[members] = torch.sigmoid(network(data.batch(members)).double()).cpu().numpy()
    return result[patients]


def train(
    network: Any,
    training: Labelled,
    validation: Labelled | None,
    settings: TrainingSettings,
    rng: np.random.Generator,
    callback: Callable[[Progress], object] | None = None,
) -> TrainingResult:
    """Fit the network by Adam; keep the weights of the epoch with the best validation AUC, else of the last."""
    weights = class_weights(training) if settings.balanced else np.ones(len(training.case))
    optimiser = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    losses: list[float] = []
    aucs: list[float] = []
    best, best_epoch, best_state, stopped = (-1.0, 0.0), 0, None, False
    for epoch in range(1, settings.max_epochs + 1):
        losses.append(train_epoch(network, optimiser, training, weights, settings, rng))
        score = (float("nan"), 0.0) if validation is None else validation_score(network, validation)
        aucs.append(score[0])
        if validation is None or score > best:
            best, best_epoch = score, epoch
            if validation is not None:
                best_state = {name: value.clone() for name, value in network.state_dict().items()}
        progress = Progress(epoch, settings.max_epochs, losses[-1], aucs[-1])
        stopped = callback is not None and callback(progress) is True
        if stopped or epoch - best_epoch >= settings.patience:
            break
    if best_state is not None:
        network.load_state_dict(best_state)
    return TrainingResult(losses, aucs, best_epoch, stopped)


def train_epoch(
    network: Any,
    optimiser: Any,
    training: Labelled,
    weights: Array,
    settings: TrainingSettings,
    rng: np.random.Generator,
) -> float:
    """One pass over the training patients; returns their mean loss."""
    data, case, patients = training
    device = next(network.parameters()).device
    network.train()
    total = 0.0
    for members in batches(data.lengths, patients, settings.batch_size, rng):
        optimiser.zero_grad()
        logits = network(data.batch(members))
        target, weight = tensor(case[members], device), tensor(weights[members], device)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target, weight)
        (loss + settings.l2 * network.penalised_weights().square().sum()).backward()
        nn.utils.clip_grad_norm_(network.parameters(), MAX_GRADIENT_NORM)
        optimiser.step()
        total += float(loss.detach()) * len(members)
    return total / len(patients)


def validation_score(network: Any, validation: Labelled) -> tuple[float, float]:
    """(AUC, minus the log loss): among epochs with the same AUC the better calibrated one wins."""
    data, case, patients = validation
    p = probabilities(network, data, patients)
    return float(roc_auc_score(case[patients], p)), -float(log_loss(case[patients], p, labels=[0, 1]))


def class_weights(training: Labelled) -> Array:
    """Weights that give both classes the same total, with mean one."""
    share = training.case[training.patients].mean()
    return np.where(training.case, 0.5 / share, 0.5 / (1 - share))


def device_of(name: Any) -> Any:
    """The torch device of that name, if it is available."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"device={name!r} is not known: choose 'cpu' or 'cuda'.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device={name!r} is not available on this machine: choose 'cpu'.")
    return device


@contextmanager
def seeded(seed: int, device: Any) -> Iterator[None]:
    """Seed torch within the block and restore the caller's random state afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), one_thread(device):
        torch.manual_seed(seed)
        yield


@contextmanager
def one_thread(device: Any) -> Iterator[None]:
    """Run torch on one CPU thread: with several, the order of summation and so the last bits vary between runs."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tensor(array: Array, device: Any, dtype: Any = np.float32) -> Any:
    return torch.from_numpy(np.array(array, dtype=dtype)).to(device)


def state_arrays(network: Any, prefix: str) -> dict[str, Array]:
    """The weights of a network as arrays, by name."""
    return {f"{prefix}.{name}": value.detach().cpu().numpy() for name, value in network.state_dict().items()}


def load_state(network: Any, prefix: str, arrays: dict[str, Array]) -> None:
    """Load the weights that `state_arrays` returned; ValueError for a wrong shape or type, or NaN."""
    state = {}
    for name, value in network.state_dict().items():
        array = arrays[f"{prefix}.{name}"]
        if array.shape != tuple(value.shape) or array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError("weights")
        state[name] = torch.from_numpy(array)
    network.load_state_dict(state)
