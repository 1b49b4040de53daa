"""The settings that the coordinator fixes in the first request and every site compares later requests with."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from phenotaste.errors import InputError
from phenotaste.federated.messages import MAX_COUNT, SITE_NAME
from phenotaste.validation import check_integer, check_number

MIN_PATIENTS = 100  # a site sends no sums over fewer patients unless its own policy allows it

INTEGERS = (
    ("rank", 1, 10_000),
    ("seed", 0, 2**32 - 1),
    ("max_rounds", 1, 1000),  # every round discloses more
    ("min_patients", 1, MAX_COUNT),
)
# Without the uniqueness term courses follow single visits; static features that outweigh visits would select patients.
NUMBERS = (
    ("lam", 0.0, 1.0),
    ("mu", 0.01, 100.0),
    ("smooth", 0.0, 100.0),
    ("tol", 0.0, 1.0),
    ("static_size", 0.0, 1e6),
    ("clip", 1e-6, 1e6),  # far from where noise would overflow or vanish by rounding
)
MAX_STARTS, N_STARTS = 20, 4
BALANCE = 0.5


@dataclass(frozen=True)
class Settings:
    """Settings of a federated fit, with the default objective of TASTE; those that TASTE has too mean the same.

    Examples
    --------
    >>> from phenotaste import federated
    >>> federated.Settings(rank=3).min_patients  # a site sends no sums over fewer
    100
    >>> federated.Settings(rank=3).n_starts, federated.Settings(rank=3, noise=True).n_starts
    (4, 1)
    >>> federated.Settings(rank=0)
    Traceback (most recent call last):
        ...
    phenotaste.errors.InputError: rank=0 must be an integer from 1 to 10,000.
    """

    rank: int = 5
    lam: float = 0.01
    mu: float = 1.0
    smooth: float = 0.3
    balance: float | None = None  # 0.5, or 0 with noise: every patient counts the same
    seed: int = 0
    n_init: int | None = None  # 4, or 1 with noise
    max_rounds: int = 200
    tol: float = 1e-5
    min_patients: int = MIN_PATIENTS
    noise: bool = False
    # With noise: the expected ‖a_k‖² of a patient, which may not be computed from the data,
    static_size: float = 0.0
    clip: float = 1.0  # and the bound on one patient's contribution, relative to its expected size

    def __post_init__(self) -> None:
        for name, low, high in INTEGERS:
            check_integer(name, getattr(self, name), min=low, max=high)
        for name, least, most in NUMBERS:
            check_number(name, getattr(self, name), min=least, max=most)
        if self.balance is not None:
            check_number("balance", self.balance, max=2.0)
        if self.n_init is not None:
            check_integer("n_init", self.n_init, min=1, max=MAX_STARTS)
        if not isinstance(self.noise, bool):
            raise InputError(f"noise={self.noise!r} must be True or False.")
        if 0 < self.static_size < 1e-6:
            raise InputError(f"static_size={self.static_size!r} must be 0 or at least 1e-06.")
        if self.noise and self.influence_power > 0:
            raise InputError("With noise, no patient may count more than another: use balance=0.")
        if self.noise and self.n_starts > 1:
            raise InputError(
                "With noise, every start consumes the privacy budget as much as the first: use n_init=1."
            )

    @property
    def influence_power(self) -> float:
        """`balance`, or its default."""
        if self.balance is not None:
            return self.balance
        return 0.0 if self.noise else BALANCE

    @property
    def n_starts(self) -> int:
        """`n_init`, or its default."""
        if self.n_init is not None:
            return self.n_init
        return 1 if self.noise else N_STARTS

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
