"""The methods TASTE is compared with; each module names its paper."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phenotaste.baselines.cntf import CNTF
    from phenotaste.baselines.cohen_plus import CohenPlus
    from phenotaste.baselines.copa import Copa, CopaPlus, CopaStatic
    from phenotaste.baselines.gradient_boosting import RawGradientBoosting
    from phenotaste.baselines.granite import Granite
    from phenotaste.baselines.gru_classifier import GRUClassifier
    from phenotaste.baselines.lda import PatientLDA
    from phenotaste.baselines.limestone import Limestone
    from phenotaste.baselines.marble import Marble
    from phenotaste.baselines.nmf import PatientNMF, VisitNMF
    from phenotaste.baselines.nonnegative_cp import NonnegativeCP
    from phenotaste.baselines.raw_logistic import RawLogistic
    from phenotaste.baselines.spartan import Spartan
    from phenotaste.baselines.sustain import SUSTain
    from phenotaste.baselines.svd import PatientSVD
    from phenotaste.baselines.swotted import SWoTTeD

_MODULES = {
    "CNTF": "cntf",
    "CohenPlus": "cohen_plus",
    "Copa": "copa",
    "CopaPlus": "copa",
    "CopaStatic": "copa",
    "GRUClassifier": "gru_classifier",
    "Granite": "granite",
    "Limestone": "limestone",
    "Marble": "marble",
    "NonnegativeCP": "nonnegative_cp",
    "PatientLDA": "lda",
    "PatientNMF": "nmf",
    "PatientSVD": "svd",
    "RawGradientBoosting": "gradient_boosting",
    "RawLogistic": "raw_logistic",
    "SUSTain": "sustain",
    "SWoTTeD": "swotted",
    "Spartan": "spartan",
    "VisitNMF": "nmf",
}
__all__ = [
    "CNTF",
    "CohenPlus",
    "Copa",
    "CopaPlus",
    "CopaStatic",
    "GRUClassifier",
    "Granite",
    "Limestone",
    "Marble",
    "NonnegativeCP",
    "PatientLDA",
    "PatientNMF",
    "PatientSVD",
    "RawGradientBoosting",
    "RawLogistic",
    "SUSTain",
    "SWoTTeD",
    "Spartan",
    "VisitNMF",
]


def __getattr__(name: str) -> Any:
    """Import a method when it is first used, so that torch is imported only by those that need it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'phenotaste.baselines' has no attribute {name!r}")
    return getattr(importlib.import_module(f"phenotaste.baselines.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
