"""Reading a saved model of whatever method."""

from pathlib import Path
from typing import TYPE_CHECKING

from phenotaste.errors import InputError

if TYPE_CHECKING:
    from phenotaste.factorization import Factorization

FACTORIZATIONS = ("CohenPlus", "Copa", "CopaPlus", "CopaStatic", "Spartan")  # beside TASTE


def load_model(path: Path) -> "Factorization":
    """The model in a folder, TASTE's or that of a baseline with definitions and scores."""
    from phenotaste import TASTE, baselines, model_file

    method = model_file.method_of(path)
    if method == TASTE.__name__:
        return TASTE.load(path)
    if method not in FACTORIZATIONS:
        known = ", ".join(("TASTE", *FACTORIZATIONS))
        raise InputError(
            f"{path} holds a model of {method}, of which no report is made: give one of {known}."
        )
    return getattr(baselines, method).load(path)
