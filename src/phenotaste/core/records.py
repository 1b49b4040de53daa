"""Records shared by the patient step and the model step."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Shard(NamedTuple):
    """The data of some patients: their visits as consecutive CSR rows, and their static rows."""

    data: Array  # non-zero values of X
    indices: Array  # their columns
    indptr: Array  # first non-zero of each visit
    offsets: Array  # first visit of each patient, and the number of visits
    static: Array  # A: patients × P, with P = 0 without static features


class Weights(NamedTuple):
    """Weights of the terms of the objective: λ_eff, and μ_k of each patient."""

    lam: float
    mu: Array


class Model(NamedTuple):
    """The factors that all patients share."""

    H: Array  # R × R; every U_kᵀU_k should equal HᵀH
    V: Array  # J × R; temporal definitions
    F: Array  # P × R; static definitions


class Sums(NamedTuple):
    """The sums over patients from which the model step and the objective are computed."""

    UU: Array  # Σ (w wᵀ)∘(UᵀU), R × R
    XU: Array  # Σ Xᵀ U diag(w), J × R
    WW: Array  # Σ w wᵀ, R × R
    AW: Array  # Σ a wᵀ, P × R
    QU: Array  # Σ μ QᵀU, R × R
    scalars: Array  # Σ‖X‖², Σ‖a‖², Σ μ, Σ μ‖U‖², in that order

    @classmethod
    def zeros(cls, n_features: int, n_static: int, rank: int) -> "Sums":
        square = (rank, rank)
        return cls(
            np.zeros(square),
            np.zeros((n_features, rank)),
            np.zeros(square),
            np.zeros((n_static, rank)),
            np.zeros(square),
            np.zeros(4),
        )

    def add(self, other: "Sums") -> None:
        for total, part in zip(self, other, strict=True):
            total += part


class Scored(NamedTuple):
    """Patients under a given model, with all that the objective, RMSE and CPI are computed from."""

    U: Array  # visits × R
    W: Array  # patients × R
    loss: Array  # patients × 3: ½‖X − U diag(w) Vᵀ‖², λ/2 ‖a − F w‖², the uniqueness term
    static_error: Array  # patients: ½‖a − F w‖²
    cp_gap: Array  # patients: ‖UᵀU − HᵀH‖²

    @classmethod
    def unscored(cls, U: Array, W: Array) -> "Scored":
        """U and W whose losses are not known."""
        K = len(W)
        return cls(U, W, np.zeros((K, 3)), np.zeros(K), np.zeros(K))
