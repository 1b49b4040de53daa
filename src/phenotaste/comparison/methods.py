"""The methods that can be compared: how each is made, and what it needs of a cohort."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

from phenotaste import baselines
from phenotaste.baselines.swotted import VARIABLE, interpreter
from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.taste import TASTE

Needs = Literal["static", "kinds", "torch", "labels", "swotted"]
EXTERNAL = ("swotted",)  # run in an environment of their own
Modes = tuple[Any, Any]  # two kinds of codes, each as a prefix or as a list of names
MODES: Modes = ("Dx_", "Rx_")


class Method(NamedTuple):
    """How a method is made; `class_name` is TASTE or one of `baselines`."""

    label: str
    class_name: str
    settings: Mapping[str, Any] = {}
    needs: tuple[Needs, ...] = ()
    courses: bool = False  # whether it has a course of each phenotype
    ranked: bool = True  # whether it has phenotypes; a classifier has none
    threaded: bool = False  # whether it has n_jobs
    random: bool = True  # whether it draws random numbers


METHODS = {
    "taste": Method("TASTE", "TASTE", courses=True, threaded=True),
    "taste-paper": Method(
        "TASTE, paper's objective", "TASTE", {"objective": "paper"}, courses=True, threaded=True
    ),
    "copa": Method("COPA", "Copa", courses=True, threaded=True),
    "copa-plus": Method(
        "COPA+", "CopaPlus", {"weights": "relative"}, ("static",), courses=True, threaded=True
    ),
    "copa-static": Method("COPA with static", "CopaStatic", {}, ("static",), courses=True, threaded=True),
    "spartan": Method("SPARTan", "Spartan", courses=True, threaded=True),
    "cohen-plus": Method(
        "Cohen+", "CohenPlus", {"weights": "relative"}, ("static",), courses=True, threaded=True
    ),
    "nmf": Method("NMF of patients", "PatientNMF"),
    "nmf-kl": Method("NMF of patients, KL", "PatientNMF", {"loss": "kullback-leibler"}),
    "visit-nmf": Method("NMF of visits", "VisitNMF"),
    "lda": Method("LDA", "PatientLDA"),
    "svd": Method("Truncated SVD", "PatientSVD", random=False),
    "limestone": Method("Limestone", "Limestone", {}, ("kinds",)),
    "marble": Method("Marble", "Marble", {}, ("kinds",)),
    "granite": Method("Granite", "Granite", {}, ("kinds",)),
    "sustain": Method("SUSTain", "SUSTain", {}, ("kinds",)),
    "cp": Method("Non-negative CP", "NonnegativeCP", {}, ("kinds",)),
    "swotted": Method("SWoTTeD", "SWoTTeD", {}, ("swotted",)),
    "cntf": Method("CNTF", "CNTF", {}, ("torch", "labels")),
    "raw": Method("Codes alone", "RawLogistic", {"static": False}, ("labels",), ranked=False),
    "raw-static": Method(
        "Codes and static", "RawLogistic", {"static": True}, ("labels", "static"), ranked=False
    ),
    "boosting": Method("Gradient boosting", "RawGradientBoosting", {}, ("labels",), ranked=False),
    "gru": Method("GRU", "GRUClassifier", {}, ("labels", "torch"), ranked=False),
}
"""All methods by name. The default of `compare` is those that the cohort allows, without those that take minutes."""


@dataclass(frozen=True)
class MethodSettings:
    """What fits of all methods have in common."""

    modes: Modes = MODES
    threads: int | None = None
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # settings by method


def make(name: str, rank: int | None, seed: int, settings: MethodSettings) -> Any:
    """Return the estimator of a method, with its own defaults where `settings` has nothing else."""
    method = METHODS[name]
    chosen: dict[str, Any] = dict(method.settings)
    if method.random:
        chosen["random_state"] = seed
    if method.threaded:
        chosen["n_jobs"] = settings.threads
    if "kinds" in method.needs:
        chosen["modes"] = settings.modes
    chosen |= settings.extra.get(name, {})
    cls: Any = TASTE if method.class_name == "TASTE" else getattr(baselines, method.class_name)
    return cls(rank, **chosen) if method.ranked else cls(**chosen)


def lacking(name: str, cohort: Cohort, settings: MethodSettings) -> str | None:
    """Say what a method needs that the cohort or the environment does not have; None if it has all."""
    needs = METHODS[name].needs
    if "static" in needs and (cohort.static is None or not cohort.static.shape[1]):
        return "the cohort has no static features"
    if "labels" in needs and cohort.labels is None:
        return "the cohort has no labels"
    if "kinds" in needs and not has_modes(cohort, settings.modes):
        return "the cohort does not have two kinds of codes"
    if "torch" in needs and find_spec("torch") is None:
        return "torch is not installed"
    if "swotted" in needs and interpreter() is None:
        return f"{VARIABLE} does not name a Python interpreter with swotted"
    return None


def has_modes(cohort: Cohort, modes: Modes) -> bool:
    """Whether each of two kinds of codes, given by prefix or by name, has a feature."""
    names = [] if cohort.feature_names is None else [str(name) for name in cohort.feature_names]
    return all(
        any(name.startswith(mode) for name in names) if isinstance(mode, str) else set(mode) & set(names)
        for mode in modes
    )


def default_methods(cohort: Cohort, settings: MethodSettings) -> list[str]:
    """All methods that the cohort allows, without those that take minutes."""
    allowed = [name for name in METHODS if lacking(name, cohort, settings) is None]
    return [name for name in allowed if name not in EXTERNAL and "torch" not in METHODS[name].needs]


def checked_methods(names: Iterable[str] | str | None, cohort: Cohort, settings: MethodSettings) -> list[str]:
    """Return the methods in the order of `METHODS`; refuse unknown ones and those that the cohort does not allow."""
    if names is None:
        return default_methods(cohort, settings)
    chosen = [names] if isinstance(names, str) else list(names)
    for name in chosen:
        if name not in METHODS:
            raise InputError(f"The method {name!r} does not exist: choose among {', '.join(METHODS)}.")
        missing = lacking(name, cohort, settings)
        if missing is not None:
            raise InputError(f"{name} cannot be compared: {missing}; leave it out.")
    if not chosen:
        raise InputError("No method is given: name at least one.")
    return [name for name in METHODS if name in chosen]
