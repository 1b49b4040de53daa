"""Records shared by the patient step and the model step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

N_SCALARS = 5  # of `Sums`
N_TERMS = 4  # of the objective


class Shard(NamedTuple):
    """The data of some patients: their visits as consecutive CSR rows, and their static rows."""

    data: Array  # non-zero values of X
    indices: Array  # their columns
    indptr: Array  # first non-zero of each visit
    offsets: Array  # first visit of each patient, and the number of visits
    static: Array  # A: patients × P, with P = 0 without static features


class Weights(NamedTuple):
    """What the objective adds up: the weight of each term and of each patient, and the constraint on U."""

    lam: float  # of the static features
    tau: float  # of the smoothness of the courses
    unit: bool  # unit columns of every U_k
    mu: Array  # patients: of the uniqueness term
    scale: Array  # patients: their visits are multiplied by it
    influence: Array  # patients: their terms are multiplied by it

    @classmethod
    def absolute(cls, lam: float, mu: Array, influence: Array | None = None) -> "Weights":
        """The data as they are, and free scales of U; by default every patient counts once."""
        ones = np.ones(len(mu))
        # Kernels are compiled for each type: of an integer μ, all of them once more, in half a minute.
        mu = np.asarray(mu, np.float64)
        return cls(float(lam), 0.0, False, mu, ones, ones if influence is None else influence)

    def of_patients(self, first: int, last: int) -> "Weights":
        """The weights of patients first..last."""
        mu, scale, influence = (part[first:last] for part in self[3:])
        return Weights(self.lam, self.tau, self.unit, mu, scale, influence)


class Model(NamedTuple):
    """The factors that all patients share."""

    H: Array  # R × R; every U_kᵀU_k should equal HᵀH
    V: Array  # J × R; temporal definitions
    F: Array  # P × R; static definitions


class Sums(NamedTuple):
    """The sums over patients from which the model step and the objective are computed.

    X is multiplied by the patient's `scale`, every addend by the patient's `influence`.
    """

    UU: Array  # Σ (w wᵀ)∘(UᵀU), R × R
    XU: Array  # Σ Xᵀ U diag(w), J × R
    WW: Array  # Σ w wᵀ, R × R
    AW: Array  # Σ a wᵀ, P × R
    QU: Array  # Σ μ QᵀU, R × R
    scalars: Array  # Σ‖X‖², Σ‖a‖², Σ μ, Σ μ‖U‖², Σ τ tr(UᵀLU), in that order

    @classmethod
    def zeros(cls, n_features: int, n_static: int, rank: int) -> "Sums":
        square = (rank, rank)
        return cls(
            np.zeros(square),
            np.zeros((n_features, rank)),
            np.zeros(square),
            np.zeros((n_static, rank)),
            np.zeros(square),
            np.zeros(N_SCALARS),
        )

    def add(self, other: "Sums") -> None:
        for total, part in zip(self, other, strict=True):
            total += part


class Scored(NamedTuple):
    """Patients under a given model, with all that the objective, RMSE and CPI are computed from."""

    U: Array  # visits × R
    W: Array  # patients × R
    loss: Array  # patients × 4: the terms of the objective for visits, static features, uniqueness and smoothness
    visit_error: Array  # patients: ½‖X − U diag(w) Vᵀ‖², with X multiplied by `scale`
    static_error: Array  # patients: ½‖a − F w‖²
    cp_gap: Array  # patients: ‖UᵀU − HᵀH‖²
    present_gap: (
        Array  # the same over pairs of different phenotypes that the patient has, if there are R visits
    )
    present_size: Array  # and ‖HᵀH‖² over the same pairs

    @classmethod
    def allocate(cls, U: Array, W: Array, allocate: Callable[..., Array] = np.zeros) -> "Scored":
        """U and W with arrays for what is to be found of them."""
        K = len(W)
        return cls(U, W, allocate((K, N_TERMS)), *(allocate(K) for _ in range(5)))
