"""Noise on a site's sums: how much a patient may move them, how loud it has to be, and what that promises.

One round adds Gaussian noise of standard deviation z · clip to sums that no patient can move by more than clip (in
the norm that the scales below measure), so it is ρ-zCDP with ρ = 1/(2 z²) (Bun and Steinke 2016). ρ adds up over
rounds, and gives (ε, δ) with ε = ρ + 2 √(ρ ln 1/δ), for every δ.
"""

import math
import secrets
from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels import driver
from phenotaste.core.kernels.patient import StepInputs, prepare_model
from phenotaste.core.kernels.scratch import new_thread_scratch
from phenotaste.core.kernels.sums import SumsAccumulator
from phenotaste.core.records import Array, Model, Sums
from phenotaste.engines.threads import NO_LOSS, Threads, one_blas_thread
from phenotaste.errors import InputError
from phenotaste.federated.messages import is_amount, is_whole
from phenotaste.federated.settings import Settings

NEWEST = 0.15  # the least that a round's sums weigh in the running mean of the rounds
COUNTED_LESS = 4.0  # the scalars are only for the objective: they get more noise, and the rest less


class Promise(NamedTuple):
    """What a site promises its patients, over all rounds together."""

    epsilon: float
    delta: float
    rounds: int

    @property
    def loudness(self) -> float:
        """z: the noise's standard deviation as a multiple of what one patient may move the sums by."""
        return math.sqrt(self.rounds / (2 * budget(self.epsilon, self.delta)))

    def spent(self, rounds: int) -> float:
        """ε after so many of the rounds."""
        return epsilon(rounds / (2 * self.loudness**2), self.delta) if rounds else 0.0


def epsilon(rho: float, delta: float) -> float:
    """
    >>> round(epsilon(0.5, 1e-5), 4)
    5.2985
    """
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def budget(epsilon: float, delta: float) -> float:
    """ρ that gives (ε, δ), the other way round.

    >>> round(budget(5.2985, 1e-5), 4)
    0.5
    """
    L = math.log(1 / delta)
    return (math.sqrt(L + epsilon) - math.sqrt(L)) ** 2


def promise(epsilon: float, delta: float, rounds: int) -> Promise:
    if not is_amount(epsilon, 1e6) or epsilon <= 0:
        raise InputError(f"epsilon={epsilon!r} must be a number above 0: 1 promises much, 10 little.")
    if not is_amount(delta, 0.5) or delta <= 0:
        raise InputError(
            f"delta={delta!r} must be a small number above 0, well below one in the number of patients."
        )
    if not is_whole(rounds, 1):
        raise InputError("The number of rounds must be a whole number of at least 1.")
    return Promise(float(epsilon), float(delta), rounds)


def scales(settings: Settings) -> Sums:
    """How large a typical patient's addends are, by the sizes agreed beforehand: nothing of it is from the data.

    With H and V at unit norm, ‖w‖² and ‖U diag(w)‖² are like ‖X_k‖², and U like Q H, whose square adds up to R.
    """
    x, a = settings.patient_size, settings.static_size or 1.0
    mu = settings.mu * x / settings.rank if settings.weights == "relative" else settings.mu
    mu = mu or 1.0
    R = settings.rank
    scalars = COUNTED_LESS * np.array([x, a, mu, mu * R])
    squares, products, pulls = np.array(x), np.array(math.sqrt(x * a)), np.array(mu * math.sqrt(R))
    return Sums(squares, squares, squares, products, pulls, scalars)


def clipped_step(engine: Threads, model: Model, settings: Settings) -> Sums:
    """The patient step, each patient's addends made smaller by one factor where together they exceed the clip.

    One factor for all addends of a patient is a weight of that patient: the sums stay those of a fit.
    """
    shard, rank, sizes = engine.shard, engine.rank, scales(settings)
    prepared = prepare_model(model, engine.weights.lam)
    before, after = engine.courses, np.zeros_like(engine.courses)
    K = len(shard.offsets) - 1
    accumulator = SumsAccumulator(1, len(model.V), len(model.F), rank)
    scratch = new_thread_scratch(int(np.diff(shard.offsets).max(initial=1)), rank)
    inputs = StepInputs(shard, engine.weights, prepared, before, after, np.zeros(K), engine.exact)
    total = Sums.zeros(len(model.V), len(model.F), rank)
    with one_blas_thread():
        for k in range(K):
            driver.step(inputs, np.array([k]), scratch, accumulator.reset(0), NO_LOSS)
            own = accumulator.as_sums(accumulator.buffer[0], prepared.H_inv_T)
            total.add(clipped(own, sizes, settings.clip))
    engine.courses, engine.previous = after, before
    return total


def clipped(own: Sums, sizes: Sums, bound: float) -> Sums:
    length = math.sqrt(sum(float(np.sum((part / size) ** 2)) for part, size in zip(own, sizes, strict=True)))
    # Not finite: nothing of it may be sent.
    factor = min(1.0, bound / length) if length > 0 else 1.0
    return (
        Sums(*(part * factor for part in own))
        if math.isfinite(length)
        else Sums(*(part * 0.0 for part in own))
    )


def with_noise(sums: Sums, settings: Settings, loudness: float) -> Sums:
    """The sums with noise on every number; random numbers nobody can draw again."""
    rng = np.random.default_rng(secrets.randbits(256))

    def noisy(part: Array, size: Array) -> Array:
        return part + rng.standard_normal(part.shape) * (loudness * settings.clip * size)

    found = Sums(*(noisy(part, size) for part, size in zip(sums, scales(settings), strict=True)))
    return found._replace(UU=mirrored(found.UU), WW=mirrored(found.WW))


def mirrored(square: Array) -> Array:
    """The upper triangle, below it the same."""
    return np.triu(square) + np.triu(square, 1).T


def repaired(sums: Sums, floor: Sums) -> Sums:
    """What sums of patients could be: grams without negative directions, and nothing below zero.

    Directions in which the grams are no larger than the noise (`floor`, its standard deviation) are lifted to it: there
    definitions would be noise divided by next to nothing.
    """
    return Sums(
        lifted(sums.UU, float(floor.UU)),
        np.maximum(sums.XU, 0.0),
        lifted(sums.WW, float(floor.WW)),
        np.maximum(sums.AW, 0.0),
        sums.QU,
        np.maximum(sums.scalars, 0.0),
    )


def lifted(gram: Array, floor: float) -> Array:
    sizes, directions = np.linalg.eigh((gram + gram.T) / 2)
    return (directions * np.maximum(sizes, floor * math.sqrt(len(gram)))) @ directions.T
