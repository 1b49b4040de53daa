"""Temporal and static tensor factorisation (TASTE) of health records."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phenotaste import baselines, metrics, prediction, selection, simulate
    from phenotaste.cohort import Cohort
    from phenotaste.errors import InputError
    from phenotaste.taste import TASTE

__version__ = "0.2.0"
__all__ = ["TASTE", "Cohort", "InputError", "baselines", "metrics", "prediction", "selection", "simulate"]

_HOMES = {"Cohort": "phenotaste.cohort", "TASTE": "phenotaste.taste", "InputError": "phenotaste.errors"}


def __getattr__(name: str) -> Any:
    """Names are loaded when first used, so that `import phenotaste` stays quick."""
    if name not in __all__:
        raise AttributeError(f"module 'phenotaste' has no attribute {name!r}")
    home = importlib.import_module(_HOMES.get(name, f"phenotaste.{name}"))
    return getattr(home, name) if name in _HOMES else home


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
