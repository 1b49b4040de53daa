"""The methods TASTE is compared with, one a file; each names the paper it comes from."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phenotaste.baselines.cntf import CNTF
    from phenotaste.baselines.cohen_plus import CohenPlus
    from phenotaste.baselines.copa import Copa
    from phenotaste.baselines.copa_plus import CopaPlus
    from phenotaste.baselines.copa_static import CopaStatic
    from phenotaste.baselines.gru_classifier import GRUClassifier
    from phenotaste.baselines.raw_logistic import RawLogistic
    from phenotaste.baselines.spartan import Spartan

_HOMES = {
    "CNTF": "cntf",
    "CohenPlus": "cohen_plus",
    "Copa": "copa",
    "CopaPlus": "copa_plus",
    "CopaStatic": "copa_static",
    "GRUClassifier": "gru_classifier",
    "RawLogistic": "raw_logistic",
    "Spartan": "spartan",
}
__all__ = ["CNTF", "CohenPlus", "Copa", "CopaPlus", "CopaStatic", "GRUClassifier", "RawLogistic", "Spartan"]


def __getattr__(name: str) -> Any:
    """Names are loaded when first used: torch is imported only by the two models that need it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'phenotaste.baselines' has no attribute {name!r}")
    return getattr(importlib.import_module(f"phenotaste.baselines.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
