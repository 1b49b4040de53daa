"""The one place that imports torch: loaded only when a recurrent network is to be fitted or used."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from phenotaste.core.records import Array
from phenotaste.errors import InputError

try:
    import torch
except ImportError as error:
    raise InputError(
        "GRUClassifier and CNTF need torch, which is not installed: run pip install 'phenotaste[gpu]'."
    ) from error

__all__ = ["device_of", "one_thread", "seeded", "state_of", "take_state", "tensor", "torch"]


def device_of(name: Any) -> Any:
    """The device of that name, if this machine has it."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"device={name!r} is not known: choose 'cpu' or 'cuda'.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device={name!r} is not there on this machine: choose 'cpu'.")
    return device


@contextmanager
def seeded(seed: int, device: Any) -> Iterator[None]:
    """Draw from this seed inside, and leave the caller's own stream of random numbers as it was."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), one_thread(device):
        torch.manual_seed(seed)
        yield


@contextmanager
def one_thread(device: Any) -> Iterator[None]:
    """On the CPU, one thread of torch's inside: several add up in an order of chance, and no two runs are the same."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tensor(array: Array, device: Any, dtype: Any = np.float32) -> Any:
    return torch.from_numpy(np.array(array, dtype=dtype)).to(device)


def state_of(network: Any, prefix: str) -> dict[str, Array]:
    """The weights of a network as arrays, by name."""
    return {f"{prefix}.{name}": value.detach().cpu().numpy() for name, value in network.state_dict().items()}


def take_state(network: Any, prefix: str, arrays: dict[str, Array]) -> None:
    """Give a network the weights that `state_of` took; ValueError where they do not fit or are no numbers."""
    state = {}
    for name, value in network.state_dict().items():
        array = arrays[f"{prefix}.{name}"]
        if array.shape != tuple(value.shape) or array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError("weights")
        state[name] = torch.from_numpy(array)
    network.load_state_dict(state)
