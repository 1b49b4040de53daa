"""Initial values. Only the model is random; the patients' U follow from it and the data."""

import warnings

import numpy as np
from numba import njit
from scipy import sparse

from phenotaste.core.kernels.patient import fill, read_visits
from phenotaste.core.model_step import unit_columns
from phenotaste.core.records import Array, Model, Shard

NMF_ITERATIONS = 60
NMF_PATIENTS = 20_000  # more patients make the initialisation slower, not better
FLAT = 1e-6  # a cosine with a smaller norm (it vanishes for r = 2·visits) is replaced by a constant


def init_model(
    kind: str, shard: Shard, n_features: int, rank: int, normalize: bool, rng: np.random.Generator
) -> Model:
    """`nmf`: V from a short NMF of visit totals; `random`: V uniform; `uniform`: H, V, F uniform, as in the paper."""
    P = shard.static.shape[1]
    if kind == "uniform":
        H, V, F = rng.random((rank, rank)), rng.random((n_features, rank)), rng.random((P, rank))
        return Model(unit_columns(H), unit_columns(V), F) if normalize else Model(H, V, F)
    V = rng.random((n_features, rank)) if kind == "random" else nmf_definitions(shard, n_features, rank, rng)
    # F = 0 lets the visits dominate at first and makes the fit independent of the scale of A.
    return Model(np.eye(rank), unit_columns(V), np.zeros((P, rank)))


def nmf_definitions(shard: Shard, n_features: int, rank: int, rng: np.random.Generator) -> Array:
    from sklearn.decomposition import NMF
    from threadpoolctl import threadpool_limits

    totals = visit_totals(shard, n_features, rng)
    if totals.nnz == 0:
        return rng.random((n_features, rank))
    nmf = NMF(rank, init="random", max_iter=NMF_ITERATIONS, tol=1e-3, random_state=int(rng.integers(2**31)))
    # One BLAS thread, so that the result does not depend on the number of threads.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # not run to convergence
        nmf.fit(totals)
    V = nmf.components_.T.copy()
    dead = V.sum(axis=0) == 0
    V[:, dead] = rng.random((n_features, int(dead.sum())))
    return V


def visit_totals(shard: Shard, n_features: int, rng: np.random.Generator) -> sparse.csr_array:
    """Each patient's visits summed, negative values clipped: it is only an initialisation."""
    bounds = shard.indptr[shard.offsets]
    totals = sparse.csr_array((shard.data, shard.indices, bounds), shape=(len(bounds) - 1, n_features))
    if totals.shape[0] > NMF_PATIENTS:
        totals = totals[np.sort(rng.choice(totals.shape[0], NMF_PATIENTS, replace=False))]
    totals = totals.astype(np.float64)
    totals.sum_duplicates()
    np.maximum(totals.data, 0.0, out=totals.data)
    totals.eliminate_zeros()
    return totals


@njit(inline="always")
def blend_with_cosines(B: Array, U: Array, visits: int, R: int) -> None:
    """Deterministic initial U: the phenotype's share of each visit, plus cosines that keep full column rank."""
    for r in range(R):
        norm_b, norm_e = 0.0, 0.0
        for i in range(visits):
            U[i, r] = 1.0 + np.cos(np.pi * r * (i + 0.5) / visits)
            norm_b += max(B[i, r], 0.0) ** 2
            norm_e += U[i, r] ** 2
        norm_b, norm_e = np.sqrt(norm_b), np.sqrt(norm_e)
        norm = 0.0
        for i in range(visits):
            share = max(B[i, r], 0.0) / norm_b if norm_b > 0.0 else 0.0
            cosine = U[i, r] / norm_e if norm_e > FLAT else visits**-0.5
            U[i, r] = 0.9 * share + 0.1 * cosine
            norm += U[i, r] ** 2
        norm = np.sqrt(norm)
        for i in range(visits):
            U[i, r] /= norm


@njit(inline="always")
def init_patient(shard: Shard, k: int, V: Array, U: Array, B: Array, work: Array) -> None:
    """The initial U of a patient, from the visits and V; B and `work` are scratch."""
    visits, R = U.shape
    if read_visits(shard, k, V, B) == 0.0:
        fill(U, visits, 0.0)
        return
    blend_with_cosines(B, work, visits, R)
    for i in range(visits):
        for r in range(R):
            U[i, r] = work[i, r]
