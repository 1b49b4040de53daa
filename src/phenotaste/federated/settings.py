"""What the coordinator fixes at the outset and every site holds it to: settings, the sites' names, the columns."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from phenotaste.errors import InputError
from phenotaste.federated.messages import MOST_ROUNDS, SITE, is_amount, is_whole

SMALLEST_COHORT = 100  # patients: over fewer no site sends sums unless it is told to
MOST_STARTS = 100


@dataclass(frozen=True)
class Settings:
    """The fit that is agreed on; the letters are those of TASTE.

    Examples
    --------
    >>> from phenotaste import federated
    >>> federated.Settings(rank=3).minimum_patients  # over fewer, no site sends sums
    100
    >>> federated.Settings(solver="newton")
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: solver='newton' is not known: choose one of cd, bpp.
    """

    rank: int = 5
    lam: float = 0.1
    mu: float = 1.0
    weights: str = "relative"
    solver: str = "cd"
    seed: int = 0
    n_init: int = 1
    max_rounds: int = 200
    tol: float = 1e-5
    minimum_patients: int = SMALLEST_COHORT
    noise: bool = False
    patient_size: float = (
        0.0  # with noise: what ‖X_k‖² and ‖a_k‖² are taken to be like, since sums may not tell
    )
    static_size: float = 0.0
    clip: float = 0.5  # with noise: how much of that a single patient may move the sums by

    def __post_init__(self) -> None:
        for name, least, most in WHOLE:
            if not is_whole(getattr(self, name), least, most):
                raise InputError(
                    f"{name}={getattr(self, name)!r} must be a whole number from {least} to {most:,}."
                )
        for name in AMOUNTS:
            if not is_amount(getattr(self, name), 1e100):
                raise InputError(f"{name}={getattr(self, name)!r} must be a finite number, zero or more.")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(
                    f"{name}={getattr(self, name)!r} is not known: choose one of {', '.join(known)}."
                )
        if self.noise and not (self.patient_size > 0 and self.clip > 0):
            raise InputError(
                "With noise the size of a patient's data has to be given beforehand, since the data may not tell it: "
                "say what the squares of a patient's visit counts add up to (patient_size), and keep clip above 0."
            )
        if not isinstance(self.noise, bool):
            raise InputError("noise must be yes or no.")
        if self.noise and self.n_init > 1:
            raise InputError(
                "With noise every start costs as much of the promise as the first: use n_init=1."
            )

    @property
    def exact(self) -> bool:
        """Whether the solver is the exact one, "bpp"."""
        return self.solver == "bpp"

    def as_dict(self) -> dict[str, Any]:
        """What messages hold.

        Examples
        --------
        >>> from phenotaste import federated
        >>> federated.Settings(rank=3).as_dict()["rank"]
        3
        """
        return asdict(self)

    @classmethod
    def read(cls, found: Any) -> "Settings":
        """From a message or a file; raises ValueError or InputError where it is not sound.

        Examples
        --------
        >>> from phenotaste import federated
        >>> agreed = federated.Settings(rank=3)
        >>> federated.Settings.read(agreed.as_dict()) == agreed
        True
        """
        if not isinstance(found, Mapping) or set(found) != {field.name for field in fields(cls)}:
            raise ValueError("settings")
        return cls(**found)


WHOLE = (
    ("rank", 1, 10_000),
    ("seed", 0, 2**32 - 1),
    ("n_init", 1, MOST_STARTS),
    ("max_rounds", 1, MOST_ROUNDS - 2),
    ("minimum_patients", 1, 2**53),
)
AMOUNTS = ("lam", "mu", "tol", "patient_size", "static_size", "clip")
CHOICES = {"weights": ("relative", "absolute"), "solver": ("cd", "bpp")}


def checked_sites(names: Any) -> tuple[str, ...]:
    """Names of sites: at least one, all different also where a file system takes a for A."""
    sites = tuple(names)
    for name in sites:
        if not isinstance(name, str) or not SITE.fullmatch(name):
            raise InputError(
                f"A site cannot be called {str(name)[:50]!r}: use up to 40 letters, digits, hyphens and underscores."
            )
    if not sites:
        raise InputError("There are no sites: name those that take part.")
    if len({name.lower() for name in sites}) < len(sites):
        raise InputError("Two sites have the same name: give each its own.")
    return sites


def static_weight(settings: Settings, visits: float, static: float) -> float:
    """λ_eff, from the sums ‖X‖² and ‖A‖² over all sites."""
    if settings.weights == "absolute":
        return settings.lam
    found = settings.lam * visits / static if static > 0 else 0.0
    return found if math.isfinite(found) else 0.0
