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

MIN_NEW_WEIGHT = 0.15  # minimum weight of a round's sums in the running mean over rounds
SCALAR_SCALE = 4.0  # the scalars only enter the objective: they get more noise, and the other sums less


@dataclass(frozen=True)
class PrivacyBudget:
    """(ε, δ)-differential privacy of one site over all rounds together."""

    epsilon: float
    delta: float
    rounds: int

    def __post_init__(self) -> None:
        if not is_number(self.epsilon, max=1e6, closed="right"):
            raise InputError(
                f"epsilon={self.epsilon!r} must be a number above 0: 1 is strong privacy, 10 weak."
            )
        if not is_number(self.delta, max=0.5, closed="right"):
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
    return (math.sqrt(L + epsilon) - math.sqrt(L)) ** 2


def addend_scales(settings: Settings) -> Sums:
    """The typical size of one patient's addends, from the agreed sizes alone: no data enters.

    With H and V at unit norm, ‖w‖² and ‖U diag(w)‖² are of the order of ‖X_k‖², and ‖U‖² ≈ ‖Q H‖² = R.
    """
    x, a = settings.patient_size, settings.static_size or 1.0
    mu = settings.mu * x / settings.rank if settings.weights == "relative" else settings.mu
    mu = mu or 1.0
    R = settings.rank
    scalars = SCALAR_SCALE * np.array([x, a, mu, mu * R])
    squares, products, mu_QU = np.array(x), np.array(math.sqrt(x * a)), np.array(mu * math.sqrt(R))
    return Sums(squares, squares, squares, products, mu_QU, scalars)


def clipping(settings: Settings) -> Callable[[Sums], Sums]:
    """The function that clips one patient's addends.

    One factor for all addends of a patient is a weight of that patient, so the result is still a sum over patients.
    """
    return partial(clip, scales=addend_scales(settings), bound=settings.clip)


def clip(addends: Sums, scales: Sums, bound: float) -> Sums:
    """One patient's addends scaled to a norm of at most `bound`; all zero where the norm is not finite."""
    norm = math.sqrt(
        sum(float(np.sum((part / scale) ** 2)) for part, scale in zip(addends, scales, strict=True))
    )
    if not math.isfinite(norm):
        return Sums(*(np.zeros_like(part) for part in addends))
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
