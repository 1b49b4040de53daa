"""The two LSTMs of CNTF: one predicts the next visit (the regulariser), one the label."""

from typing import Any, NamedTuple

import numpy as np

from phenotaste.baselines._recurrent import (
    MAX_GRADIENT_NORM,
    SequenceClassifier,
    nn,
    one_thread,
    pack,
    packed_rows,
    sequence_lengths,
    tensor,
    torch,
)
from phenotaste.core.records import Array


class NextVisitLSTM(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """An LSTM over the visits so far, and a non-negative prediction of the next one."""

    def __init__(self, rank: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(rank, hidden, num_layers=layers)
        self.decoder = nn.Linear(hidden, rank)

    def forward(self, visits: Any, per_step: Array) -> Any:
        """The prediction of each packed visit that has a previous one."""
        hidden = self.rnn(pack(visits, per_step))[0].data
        previous = torch.from_numpy(previous_rows(per_step)).to(visits.device)
        return nn.functional.softplus(self.decoder(hidden[previous]))


class Regulariser:
    """The network during the fit: predicts visits, and differentiates its error with respect to them."""

    def __init__(self, network: NextVisitLSTM, learning_rate: float, device: Any) -> None:
        self.network = network.to(device)
        self._device = device
        self._optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate)

    def train_step(self, visits: Array, per_step: Array) -> tuple[Array, Array]:
        """One step of Adam; returns the predictions before it, and d Σ(s − expected)² / ds through the network's input.

        Both are zero for visits without a prediction: first visits, and every visit in a batch of single ones.
        """
        n_first = int(per_step[0])
        expected, gradient = np.zeros_like(visits), np.zeros_like(visits)
        if len(visits) == n_first:
            return expected, gradient
        inputs = tensor(visits, self._device).requires_grad_()
        predicted = self.network(inputs, per_step)
        error = (tensor(visits[n_first:], self._device) - predicted).square().sum()
        self._optimiser.zero_grad()
        error.backward()
        expected[n_first:] = predicted.detach().cpu().numpy()
        gradient[:] = inputs.grad.cpu().numpy()
        for weight in self.network.parameters():
            weight.grad /= len(visits) - n_first
        nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRADIENT_NORM)
        self._optimiser.step()
        return expected, gradient

    def errors(self, visits: Array, per_step: Array) -> Array:
        return prediction_errors(self.network, visits, per_step)


def prediction_errors(network: NextVisitLSTM, visits: Array, per_step: Array) -> Array:
    """Squared error of the prediction of each packed visit; zero for first visits."""
    errors = np.zeros(len(visits))
    n_first = int(per_step[0])
    if len(visits) > n_first:
        device = next(network.parameters()).device
        with torch.no_grad(), one_thread(device):
            predicted = network(tensor(visits, device), per_step).double().cpu().numpy()
        errors[n_first:] = np.square(visits[n_first:] - predicted).sum(axis=1)
    return errors


def previous_rows(per_step: Array) -> Array:
    """The packed row of the previous visit, for each packed visit that has one."""
    later = np.arange(per_step[0], per_step.sum())
    return later - np.repeat(per_step[:-1], per_step[1:])


class Batch(NamedTuple):
    visits: Any  # packed visits × R
    per_step: Array  # visits at each time step


class CourseSequences:
    """Patients as visits × R; an empty history is one visit of zeros."""

    def __init__(self, S: Array, offsets: Array, device: Any) -> None:
        self.lengths = sequence_lengths(offsets)
        self._S = np.vstack([S, np.zeros((1, S.shape[1]))])
        self._offsets, self._device = offsets, device

    def batch(self, patients: Array) -> Batch:
        rows, _, per_step = packed_rows(self._offsets, patients)
        return Batch(tensor(self._S[rows], self._device), per_step)


class CourseLSTM(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """Predicts the label from the courses of the phenotypes."""

    def __init__(self, rank: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.classifier = SequenceClassifier("LSTM", rank, hidden, layers, dropout)

    def forward(self, batch: Batch) -> Any:
        return self.classifier(pack(batch.visits, batch.per_step))

    def penalised_weights(self) -> Any:
        return self.classifier.logistic.weight
