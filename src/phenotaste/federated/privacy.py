"""Differential privacy of a site's sums: clipping of patients, Gaussian noise, and the accounting of the budget.

One round adds Gaussian noise of standard deviation z · clip to sums whose sensitivity to one patient is at most clip
(in the norm weighted by `addend_scales`), so it is ρ-zCDP with ρ = 1/(2 z²) (Bun and Steinke 2016). ρ adds up over
rounds, and implies (ε, δ)-differential privacy with ε = ρ + 2 √(ρ ln 1/δ), for every δ.
"""

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from phenotaste.core.records import Array, Sums
from phenotaste.errors import InputError
from phenotaste.federated.settings import Settings
from phenotaste.validation import check_integer, is_number

MAX_ADDEND = 1e100  # relative to its scale; squares of larger ones could overflow
MIN_NEW_WEIGHT = 0.15  # minimum weight of a round's sums in the running mean over rounds
# The scale of each sum relative to the bound of one patient's addend. Less where an addend is far below its bound as
# a rule, and where noise harms most (XU, from which V is solved); more where the sum of all patients is far above the
# noise (QU). The scalars only enter the objective. Chosen on simulated records; any choice is equally private.
RELATIVE_SCALES = {"UU": 0.5, "XU": 0.3, "WW": 0.8, "AW": 1.0, "QU": 3.0, "scalars": 10.0}


@dataclass(frozen=True)
class PrivacyBudget:
    """(ε, δ)-differential privacy of one site over all rounds together."""

    epsilon: float
    delta: float
    rounds: int

    def __post_init__(self) -> None:
        if not is_number(self.epsilon, min=1e-6, max=1e6):
            raise InputError(
                f"epsilon={self.epsilon!r} must be a number of at least 1e-06: 1 is strong privacy, 10 weak."
            )
        if not is_number(self.delta, min=1e-100, max=0.5):
            raise InputError(
                f"delta={self.delta!r} must be above 0 and well below one divided by the number of patients."
            )
        check_integer("rounds", self.rounds, min=1)

    @property
    def noise_multiplier(self) -> float:
        """z: the standard deviation of the noise relative to the bound on one patient's contribution."""
        return math.sqrt(self.rounds / (2 * rho_from_epsilon(self.epsilon, self.delta)))

    def spent(self, rounds: int) -> float:
        """ε after this number of rounds."""
        return epsilon_from_rho(rounds / (2 * self.noise_multiplier**2), self.delta) if rounds else 0.0


def epsilon_from_rho(rho: float, delta: float) -> float:
    """ε of ρ-zCDP at this δ.

    >>> round(epsilon_from_rho(0.5, 1e-5), 4)
    5.2985
    """
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def rho_from_epsilon(epsilon: float, delta: float) -> float:
    """The inverse of `epsilon_from_rho`.

    >>> round(rho_from_epsilon(5.2985, 1e-5), 4)
    0.5
    """
    L = math.log(1 / delta)
    return (
        epsilon / (math.sqrt(L + epsilon) + math.sqrt(L))
    ) ** 2  # the difference of the roots, without cancellation


def addend_bounds(settings: Settings) -> Sums:
    """Bounds on the norms of one patient's addends, from the settings alone: no data enters.

    Every patient has ‖X_k‖ = 1, and U_k and V have unit columns. Hence ‖w‖ ≤ 1 up to the small part that the static
    features have in w, and 1 bounds ‖(wwᵀ)∘(UᵀU)‖, ‖XᵀU diag(w)‖ and ‖wwᵀ‖, ‖a‖ bounds ‖a wᵀ‖, and √R bounds ‖QᵀU‖.
    The expected ‖a‖² and roughness of courses are no bounds: what exceeds them is clipped.
    """
    R, a, mu, smooth = settings.rank, settings.static_size or 1.0, settings.mu or 1.0, settings.smooth or 1.0
    one, static, unique = np.array(1.0), np.array(math.sqrt(a)), np.array(mu / math.sqrt(R))
    return Sums(one, one, one, static, unique, np.array([1.0, a, mu / R, mu, smooth]))


def addend_scales(settings: Settings) -> Sums:
    """The scales in which a patient's addends are clipped, and noise is drawn."""
    bounds = addend_bounds(settings)._asdict()
    return Sums(**{name: RELATIVE_SCALES[name] * bound for name, bound in bounds.items()})


def clipping(settings: Settings) -> Callable[[Sums], Sums]:
    """The function that clips one patient's addends.

    One factor for all addends of a patient is a weight of that patient, so the result is still a sum over patients.
    """
    return partial(clip, scales=addend_scales(settings), bound=settings.clip)


def clip(addends: Sums, scales: Sums, bound: float) -> Sums:
    """One patient's addends scaled to a norm of at most `bound`; all zero where one is not finite or enormous.

    Zeros are written, not multiplied: infinity times zero is NaN, which would show the patient in spite of all noise.
    """
    parts = [np.divide(part, scale) for part, scale in zip(addends, scales, strict=True)]
    if not all(np.all(np.abs(part) <= MAX_ADDEND) for part in parts):  # NaN compares as False
        return Sums(*(np.zeros_like(part) for part in addends))
    norm = math.sqrt(sum(float(np.sum(part**2)) for part in parts))
    factor = min(1.0, bound / norm) if norm > 0 else 1.0
    return Sums(*(part * factor for part in addends))


def add_noise(sums: Sums, settings: Settings, noise_multiplier: float) -> Sums:
    """The sums with Gaussian noise on every entry, drawn from a seed that is not stored."""
    rng = np.random.default_rng(secrets.randbits(256))
    noisy = Sums(
        *(
            part + rng.standard_normal(part.shape) * (noise_multiplier * settings.clip * scale)
            for part, scale in zip(sums, addend_scales(settings), strict=True)
        )
    )
    return noisy._replace(UU=symmetric(noisy.UU), WW=symmetric(noisy.WW))


def symmetric(square: Array) -> Array:
    """The upper triangle, mirrored below the diagonal."""
    return np.triu(square) + np.triu(square, 1).T


def project_sums(sums: Sums, noise: Sums) -> Sums:
    """Noisy sums made feasible: positive definite grams, non-negative products and scalars.

    Eigenvalues of the grams below the standard deviation of the noise are raised to it: in these directions the model
    step would divide noise by nearly zero.
    """
    return Sums(
        raise_eigenvalues(sums.UU, float(noise.UU)),
        np.maximum(sums.XU, 0.0),
        raise_eigenvalues(sums.WW, float(noise.WW)),
        np.maximum(sums.AW, 0.0),
        sums.QU,
        np.maximum(sums.scalars, 0.0),
    )


def raise_eigenvalues(gram: Array, floor: float) -> Array:
    """The gram with eigenvalues of at least `floor` · √R."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    return (vectors * np.maximum(values, floor * math.sqrt(len(gram)))) @ vectors.T
