"""The synthetic data of the paper's supplement, "Recovery of true factor matrices"."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from phenotaste.cohort import Cohort
from phenotaste.errors import InputError
from phenotaste.simulate._common import (
    RandomState,
    Truth,
    generator,
)
from phenotaste.validation import check_choice, check_integer, check_number


def recovery(
    noise: float = 0.0,
    noise_scale: Literal["unit", "data"] = "unit",
    q: Literal["partition", "literal"] = "partition",
    n_patients: int = 100,
    n_features: int = 30,
    n_static: int = 20,
    n_visits: int = 100,
    rank: int = 4,
    random_state: RandomState = 0,
) -> tuple[Cohort, Truth]:
    """A cohort that follows the model exactly, with noise on a share of its elements.

    H, V, W and F are uniform on (0, 1), U_k = Q_k H, X_k = U_k diag(W_k) Vᵀ and A = W Fᵀ.

    Parameters
    ----------
    noise : share of the elements of every X_k and of A that receive Gaussian noise.
    noise_scale : "unit" adds N(0, 1); "data" adds noise with the standard deviation of all elements of X to X,
        and with that of A to A. The paper does not specify it. Elements made negative by noise are kept.
    q : "partition" assigns every visit to one of `rank` groups and scales the columns to unit norm, as the
        paper's public demo does; "literal" is the paper's text, a binary Q_k with Q_kᵀQ_k = I, which leaves
        all but `rank` visits empty.

    Examples
    --------
    >>> from phenotaste import simulate
    >>> cohort, truth = simulate.recovery(noise=0.05, n_patients=10, random_state=1)
    >>> cohort.shape, truth.V.shape, truth.U.shape
    ((10, 30), (30, 4), (1000, 4))
    """
    _check(noise, noise_scale, q, n_patients, n_features, n_static, n_visits, rank)
    rng = generator(random_state)
    H = rng.random((rank, rank))
    V = rng.random((n_features, rank))
    W = rng.random((n_patients, rank))
    F = rng.random((n_static, rank))
    draw_q = _partition_q if q == "partition" else _literal_q
    U = np.stack([draw_q(n_visits, rank, rng) @ H for _ in range(n_patients)])
    X = U * W[:, None, :] @ V.T
    A = W @ F.T
    if noise > 0:
        X = _with_noise(X.reshape(n_patients, -1), noise, noise_scale, rng)
        A = _with_noise(A.reshape(1, -1), noise, noise_scale, rng).reshape(n_patients, n_static)
    cohort = Cohort(
        sparse.csr_matrix(X.reshape(n_patients * n_visits, n_features)),
        np.arange(n_patients + 1) * n_visits,
        A,
        allow_negative=noise > 0,
    )
    return cohort, Truth(V=V, F=F, W=W, H=H, U=U.reshape(-1, rank))


def _check(
    noise: float,
    noise_scale: str,
    q: str,
    n_patients: int,
    n_features: int,
    n_static: int,
    n_visits: int,
    rank: int,
) -> None:
    check_number("noise", noise, max=1)
    check_choice("noise_scale", noise_scale, ("unit", "data"))
    check_choice("q", q, ("partition", "literal"))
    sizes = {"n_patients": n_patients, "n_features": n_features, "n_static": n_static, "n_visits": n_visits}
    for name, value in {**sizes, "rank": rank}.items():
        check_integer(name, value, min=1)
    if n_visits < rank:
        raise InputError("n_visits must be at least rank: otherwise no Q_k has orthonormal columns.")


def _partition_q(n_visits: int, rank: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Each visit in one random group, no group empty, columns of unit norm."""
    group = np.concatenate([np.arange(rank), rng.integers(rank, size=n_visits - rank)])
    rng.shuffle(group)
    member = (group[:, None] == np.arange(rank)).astype(np.float64)
    return member / np.sqrt(member.sum(axis=0))


def _literal_q(n_visits: int, rank: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Each column has a one at one visit; all other visits are empty."""
    Q = np.zeros((n_visits, rank))
    Q[rng.choice(n_visits, rank, replace=False), np.arange(rank)] = 1.0
    return Q


def _with_noise(
    rows: NDArray[np.float64], noise: float, noise_scale: str, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Gaussian noise on the same number of randomly drawn elements of every row (a row is one matrix)."""
    n_elements = rows.shape[1]
    n_noisy = round(noise * n_elements)
    scale = rows.std() if noise_scale == "data" else 1.0
    noisy = rows.copy()
    for row in noisy:
        chosen = rng.choice(n_elements, n_noisy, replace=False)
        row[chosen] += rng.normal(0.0, scale, n_noisy)
    return noisy
