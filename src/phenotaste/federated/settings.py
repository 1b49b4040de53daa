"""The settings that the coordinator fixes in the first request and every site compares later requests with."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from phenotaste.errors import InputError
from phenotaste.federated.messages import MAX_COUNT, MAX_ROUNDS, SITE_NAME
from phenotaste.validation import check_choice, check_integer, check_number

MIN_PATIENTS = 100  # a site sends no sums over fewer patients unless its own policy allows it

INTEGERS = (
    ("rank", 1, 10_000),
    ("seed", 0, 2**32 - 1),
    ("n_init", 1, 100),
    ("max_rounds", 1, MAX_ROUNDS - 2),
    ("min_patients", 1, MAX_COUNT),
)
NONNEGATIVE = ("lam", "mu", "tol", "patient_size", "static_size", "clip")
CHOICES = {"weights": ("relative", "absolute"), "solver": ("cd", "bpp")}


@dataclass(frozen=True)
class Settings:
    """Settings of a federated fit; those that TASTE has too mean the same.

    Examples
    --------
    >>> from phenotaste import federated
    >>> federated.Settings(rank=3).min_patients  # a site sends no sums over fewer
    100
    >>> federated.Settings(solver="newton")
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: solver='newton' must be one of 'cd', 'bpp'.
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
    min_patients: int = MIN_PATIENTS
    noise: bool = False
    # With noise: the expected ‖X_k‖² and ‖a_k‖² of a patient, which may not be computed from the data,
    patient_size: float = 0.0
    static_size: float = 0.0
    clip: float = 0.5  # and the bound on one patient's contribution, relative to them

    def __post_init__(self) -> None:
        for name, low, high in INTEGERS:
            check_integer(name, getattr(self, name), min=low, max=high)
        for name in NONNEGATIVE:
            check_number(name, getattr(self, name), max=1e100)
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if not isinstance(self.noise, bool):
            raise InputError(f"noise={self.noise!r} must be True or False.")
        if self.noise and not (self.patient_size > 0 and self.clip > 0):
            raise InputError(
                "With noise, the expected sum of squares of a patient's visit counts must be given (patient_size > 0), "
                "since it may not be computed from the data; clip must be above 0, too."
            )
        if self.noise and self.n_init > 1:
            raise InputError(
                "With noise, every start consumes the privacy budget as much as the first: use n_init=1."
            )

    @property
    def exact(self) -> bool:
        """Whether the solver is the exact one, "bpp"."""
        return self.solver == "bpp"

    def as_dict(self) -> dict[str, Any]:
        """The settings as a dictionary that JSON can hold.

        Examples
        --------
        >>> from phenotaste import federated
        >>> federated.Settings(rank=3).as_dict()["rank"]
        3
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> "Settings":
        """The settings in a message or a file; raises ValueError or InputError where they are invalid.

        Examples
        --------
        >>> from phenotaste import federated
        >>> settings = federated.Settings(rank=3)
        >>> federated.Settings.from_dict(settings.as_dict()) == settings
        True
        """
        if not isinstance(values, Mapping) or set(values) != {field.name for field in fields(cls)}:
            raise ValueError("settings")
        return cls(**values)


def check_sites(names: Any) -> tuple[str, ...]:
    """Validate site names: at least one, and distinct also on case-insensitive file systems."""
    sites = tuple(names)
    for name in sites:
        if not isinstance(name, str) or not SITE_NAME.fullmatch(name):
            raise InputError(
                f"{str(name)[:50]!r} is not a valid site name: use up to 40 letters, digits, hyphens and underscores."
            )
    if not sites:
        raise InputError("There are no sites: name those that take part.")
    if len({name.lower() for name in sites}) < len(sites):
        raise InputError("Two sites have the same name: give each a different one.")
    return sites
