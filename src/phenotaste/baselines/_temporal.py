"""The recurrent network that expects a patient's next visit from those before: CNTF's regulariser."""

from typing import Any

import numpy as np

from phenotaste.baselines._recurrent import LARGEST_GRADIENT, pack
from phenotaste.baselines._torch import one_thread, tensor, torch
from phenotaste.core.records import Array

nn = torch.nn


class Expectation(nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    """An LSTM over the visits so far; what it expects of the next one is never negative."""

    def __init__(self, rank: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(rank, hidden, num_layers=layers)
        self.decoder = nn.Linear(hidden, rank)

    def forward(self, visits: Any, per_step: Array) -> Any:
        """What is expected of each packed visit that has one before it."""
        read = self.rnn(pack(visits, per_step))[0].data
        before = torch.from_numpy(visits_before(per_step)).to(visits.device)
        return nn.functional.softplus(self.decoder(read[before]))


class Regulariser:
    """The network while it learns: says what it expects, and how each visit bears on what comes later."""

    def __init__(self, network: Expectation, learning_rate: float, device: Any) -> None:
        self.network = network.to(device)
        self._device = device
        self._optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate)

    def learn(self, visits: Array, per_step: Array) -> tuple[Array, Array]:
        """One step of Adam; what was expected before it, and d Σ(s − expected)² / ds through the network's input."""
        later = int(per_step[0])
        expected, slope = np.zeros_like(visits), np.zeros_like(visits)
        if len(visits) == later:  # one visit each: nothing follows anything
            return expected, slope
        seen = tensor(visits, self._device).requires_grad_()
        found = self.network(seen, per_step)
        error = (tensor(visits[later:], self._device) - found).square().sum()
        self._optimiser.zero_grad()
        error.backward()
        expected[later:] = found.detach().cpu().numpy()
        slope[:] = seen.grad.cpu().numpy()
        for weight in self.network.parameters():
            weight.grad /= len(visits) - later
        nn.utils.clip_grad_norm_(self.network.parameters(), LARGEST_GRADIENT)
        self._optimiser.step()
        return expected, slope

    def errors(self, visits: Array, per_step: Array) -> Array:
        return surprise(self.network, visits, per_step)


def surprise(network: Expectation, visits: Array, per_step: Array) -> Array:
    """Squared distance of each packed visit from what was expected of it; of first visits nothing was."""
    out = np.zeros(len(visits))
    first = int(per_step[0])
    if len(visits) > first:
        device = next(network.parameters()).device
        with torch.no_grad(), one_thread(device):
            found = network(tensor(visits, device), per_step).double().cpu().numpy()
        out[first:] = np.square(visits[first:] - found).sum(axis=1)
    return out


def visits_before(per_step: Array) -> Array:
    """Where the visit before stands, for each packed visit that has one."""
    later = np.arange(per_step[0], per_step.sum())
    return later - np.repeat(per_step[:-1], per_step[1:])
