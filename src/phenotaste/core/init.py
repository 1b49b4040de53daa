"""Initial values. Only the model is random; the patients' U follow from it and the data."""

import warnings

import numpy as np
from scipy import sparse
from scipy.linalg import block_diag
from scipy.optimize import linear_sum_assignment

from phenotaste.core.constraints import Given
from phenotaste.core.kernels.jit import part
from phenotaste.core.kernels.patient import fill, read_visits
from phenotaste.core.model_step import unit_columns
from phenotaste.core.records import Array, Model, Shard

NMF_ITERATIONS = 60
NMF_ROWS = 20_000  # more make the initialisation slower, not better
ROWS_AT_A_TIME = 2**20  # of which those with entries are counted
FLAT = 1e-6  # a cosine with a smaller norm (it vanishes for r = 2·visits) is replaced by a constant


def init_model(
    kind: str,
    shard: Shard,
    n_features: int,
    rank: int,
    normalize: bool,
    rng: np.random.Generator,
    scale: Array | None = None,
    given: Given | None = None,
) -> Model:
    """The model from which a fit starts: the columns that are given, and new ones up to `rank`.

    `nmf`: V from a short NMF of each patient's sum of visits; `nmf_visits`: of single visits; `random`: V uniform;
    `uniform`: H, V, F uniform, as in the paper. Patients' visits are multiplied by `scale` first.
    """
    P = shard.static.shape[1]
    if kind == "uniform":
        H, V, F = rng.random((rank, rank)), rng.random((n_features, rank)), rng.random((P, rank))
        return Model(unit_columns(H), unit_columns(V), F) if normalize else Model(H, V, F)
    if kind == "random":
        V = rng.random((n_features, rank))
    else:
        rows = sampled_visits if kind == "nmf_visits" else patient_sums
        V = nmf_definitions(rows(shard, n_features, scale, rng), rank, rng)
    # F = 0 lets the visits dominate at first and makes the fit independent of the scale of A.
    model = Model(np.eye(rank), unit_columns(V), np.zeros((P, rank)))
    return model if given is None else follow(given.model, model)


def follow(given: Model, model: Model) -> Model:
    """The given columns, then those of another model without as many that are most similar to the given ones."""
    known = linear_sum_assignment(-unit_columns(given.V).T @ unit_columns(model.V))[1]
    new = np.setdiff1d(np.arange(model.V.shape[1]), known)
    H = block_diag(given.H, np.eye(len(new)))
    return Model(H, np.hstack([given.V, model.V[:, new]]), np.hstack([given.F, model.F[:, new]]))


def nmf_definitions(rows: sparse.csr_array, rank: int, rng: np.random.Generator) -> Array:
    """V of a short NMF, negative values clipped: it is only an initialisation."""
    from sklearn.decomposition import NMF
    from threadpoolctl import threadpool_limits

    rows = rows.astype(np.float64)
    rows.sum_duplicates()
    np.maximum(rows.data, 0.0, out=rows.data)
    rows.eliminate_zeros()
    n_features = rows.shape[1]
    if rows.nnz == 0:
        return rng.random((n_features, rank))
    nmf = NMF(rank, init="random", max_iter=NMF_ITERATIONS, tol=1e-3, random_state=int(rng.integers(2**31)))
    # One BLAS thread, so that the result does not depend on the number of threads.
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # not run to convergence
        nmf.fit(rows)
    V = nmf.components_.T.copy()
    dead = V.sum(axis=0) == 0
    V[:, dead] = rng.random((n_features, int(dead.sum())))
    return V


def patient_sums(
    shard: Shard, n_features: int, scale: Array | None, rng: np.random.Generator
) -> sparse.csr_array:
    """Each patient's visits summed, of at most `NMF_ROWS` patients."""
    bounds = shard.indptr[shard.offsets]
    chosen = sample_rows(bounds, rng)
    return scaled_rows(shard, n_features, bounds, chosen, None if scale is None else scale[chosen])


def sampled_visits(
    shard: Shard, n_features: int, scale: Array | None, rng: np.random.Generator
) -> sparse.csr_array:
    """At most `NMF_ROWS` visits."""
    chosen = sample_rows(shard.indptr, rng)
    patients = np.searchsorted(shard.offsets, chosen, side="right") - 1
    return scaled_rows(shard, n_features, shard.indptr, chosen, None if scale is None else scale[patients])


def sample_rows(bounds: Array, rng: np.random.Generator) -> Array:
    """At most `NMF_ROWS` of the rows that have entries, without an array as long as a cohort that lies in files."""
    firsts = range(0, len(bounds) - 1, ROWS_AT_A_TIME)
    filled = [np.flatnonzero(np.diff(bounds[first : first + ROWS_AT_A_TIME + 1])).size for first in firsts]
    before = np.concatenate([[0], np.cumsum(filled)]).astype(np.int64)
    count = int(before[-1])
    chosen = np.arange(count) if count <= NMF_ROWS else np.sort(rng.choice(count, NMF_ROWS, replace=False))
    parts = [np.zeros(0, np.int64)]
    for first, low, high in zip(firsts, before[:-1], before[1:], strict=True):
        rows = np.flatnonzero(np.diff(bounds[first : first + ROWS_AT_A_TIME + 1]))
        parts.append(first + rows[chosen[np.searchsorted(chosen, low) : np.searchsorted(chosen, high)] - low])
    return np.concatenate(parts)


def scaled_rows(
    shard: Shard, n_features: int, bounds: Array, chosen: Array, scale: Array | None
) -> sparse.csr_array:
    """Some rows of the entries between `bounds`, each multiplied by a number."""
    lengths = bounds[chosen + 1] - bounds[chosen]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.repeat(bounds[chosen] - indptr[:-1], lengths) + np.arange(indptr[-1])
    values = shard.data[entries].astype(np.float64)
    if scale is not None:
        values *= np.repeat(scale, lengths)
    return sparse.csr_array((values, shard.indices[entries], indptr), shape=(len(chosen), n_features))


@part(inline=True)
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


@part(inline=True)
def init_patient(shard: Shard, k: int, scale: float, V: Array, U: Array, B: Array, work: Array) -> None:
    """The initial U of a patient, from the visits and V; B and `work` are scratch."""
    visits, R = U.shape
    if read_visits(shard, k, scale, V, B) == 0.0:
        fill(U, visits, 0.0)
        return
    blend_with_cosines(B, work, visits, R)
    for i in range(visits):
        for r in range(R):
            U[i, r] = work[i, r]
