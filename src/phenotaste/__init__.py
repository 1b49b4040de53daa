"""Temporal and static tensor factorisation (TASTE) of health records."""

TYPE_CHECKING = (
    False  # not from typing: the command starts here, and catches Ctrl-C only once this is imported
)
if TYPE_CHECKING:
    from typing import Any

    from phenotaste import baselines, metrics, prediction, selection, simulate
    from phenotaste.cohort import Cohort
    from phenotaste.courses import course_features
    from phenotaste.errors import InputError
    from phenotaste.taste import TASTE

__version__ = "0.2.0"
__all__ = [
    "TASTE",
    "Cohort",
    "InputError",
    "baselines",
    "course_features",
    "metrics",
    "prediction",
    "selection",
    "simulate",
]

_HOMES = {
    "Cohort": "phenotaste.cohort",
    "InputError": "phenotaste.errors",
    "TASTE": "phenotaste.taste",
    "course_features": "phenotaste.courses",
}


def __getattr__(name: str) -> "Any":
    """Names are loaded when first used, so that `import phenotaste` stays quick."""
    if name not in __all__:
        raise AttributeError(f"module 'phenotaste' has no attribute {name!r}")
    from importlib import import_module

    home = import_module(_HOMES.get(name, f"phenotaste.{name}"))
    return getattr(home, name) if name in _HOMES else home


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
