"""The records that the patient step and the model step hand to each other."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# What compiled loops may do to go faster: fuse and reorder sums. NaN and infinity keep their meaning.
VECTOR = {"contract", "reassoc"}
# How the kernels are compiled. They allocate nothing, and without numba's count of references to every array of every
# record they touch, in atomic steps, the patient step takes a fifth less time.
KERNEL: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
ALLOCATING: dict[str, Any] = {**KERNEL, "_nrt": True}  # for what kernels call that is no such kernel itself


class Shard(NamedTuple):
    """The data of some patients: their visits as CSR rows in order, and their static rows."""

    data: Array  # non-zero values of X
    indices: Array  # their columns
    indptr: Array  # first non-zero of each visit
    offsets: Array  # first visit of each patient, and the number of visits
    static: Array  # A: patients × P, with P = 0 where there are no static features


class Weights(NamedTuple):
    """What the three parts of the objective weigh: λ_eff, and μ_k for each patient."""

    lam: float
    mu: Array


class Model(NamedTuple):
    """What all patients share."""

    H: Array  # R × R; HᵀH is what every U_kᵀU_k should equal
    V: Array  # J × R; temporal definitions
    F: Array  # P × R; static definitions


class Sums(NamedTuple):
    """All that the model step, and the objective, need to know of the patients."""

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
        for mine, theirs in zip(self, other, strict=True):
            mine += theirs


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
