"""Runs SWoTTeD in an interpreter of its own: `python _swotted_process.py REQUEST.npz RESPONSE.npz`.

That environment has swotted, torch and numpy, and not this package. Arrays come and go as npz files without pickle.
With `windows` in the request, patients are scored under them, else they are fitted.
"""

import logging
import sys
import warnings
from typing import Any

import numpy as np


def main(request: str, response: str) -> None:
    import torch
    from omegaconf import OmegaConf
    from swotted import swottedModule

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with np.load(request, allow_pickle=False) as arrays:
        asked = {name: arrays[name] for name in arrays.files}
    patients = histories(asked)
    module = swottedModule(OmegaConf.create(configuration(asked)))
    found = fit(module, patients, asked) if "windows" not in asked else score(module, patients, asked)
    np.savez(response, **found)


def histories(asked: dict[str, Any]) -> list[Any]:
    """Features × visits of each patient, with empty visits behind a history that is shorter than the window."""
    import torch

    dense = torch.zeros((int(asked["offsets"][-1]), int(asked["n_features"])))
    rows = np.repeat(np.arange(len(dense)), np.diff(asked["indptr"]))
    dense[rows, asked["indices"].astype(np.int64)] = 1.0
    parts = torch.tensor_split(dense.T, torch.from_numpy(asked["offsets"][1:-1].astype(np.int64)), dim=1)
    window = int(asked["window"])
    return [torch.nn.functional.pad(part, (0, max(0, window - part.shape[1]))) for part in parts]


def configuration(asked: dict[str, Any]) -> dict[str, Any]:
    steps = {"batch_size": 50, "nepochs": int(asked["epochs"]), "lr": float(asked["learning_rate"])}
    model = {
        "rank": int(asked["rank"]),
        "N": int(asked["n_features"]),
        "twl": int(asked["window"]),
        "sparsity": float(asked["sparsity"]),
        "non_succession": float(asked["non_succession"]),
        "metric": "Bernoulli",
    }
    return {"model": model, "training": steps, "predict": {name: steps[name] for name in ("nepochs", "lr")}}


def fit(module: Any, patients: list[Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The windows of the phenotypes, phenotypes × features × visits; their activity in the patients; the loss."""
    import torch
    from swotted import swottedTrainer
    from torch.utils.data import DataLoader

    torch.manual_seed(int(asked["seed"]))
    module.Ph.data = torch.rand(module.Ph.shape)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = swottedTrainer(
        max_epochs=int(asked["epochs"]), enable_model_summary=False, accelerator="cpu", **quiet
    )
    pairs = [(history, k) for k, history in enumerate(patients)]
    trainer.fit(module, DataLoader(pairs, batch_size=50, shuffle=False, collate_fn=list))
    with torch.no_grad():
        loss = module.model(patients, module.Wk, module.Ph)
    totals = np.array([activity.detach().numpy().sum(axis=1) for activity in module.Wk], np.float64)
    return {"windows": module.Ph.detach().numpy().astype(np.float64), "totals": totals, "loss": float(loss)}


def score(module: Any, patients: list[Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The sum of each phenotype's activity over the visits; each patient on their own, from the same start."""
    import torch

    module.Ph.data = torch.from_numpy(asked["windows"].astype(np.float32))
    totals = np.zeros((len(patients), module.rank))
    for k, history in enumerate(patients):
        torch.manual_seed(0)
        totals[k] = module([history])[0].detach().numpy().sum(axis=1)
    return {"totals": totals}


if __name__ == "__main__":
    main(*sys.argv[1:])
