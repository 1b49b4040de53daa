"""Sparse tensors of co-occurrences, patients × A × B, from sparse products; no dense array of this shape exists."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from phenotaste.core.records import Array

PRODUCTS = 2**21  # pairs of codes of a visit that are counted at once, which bounds the temporary memory


class Counts(NamedTuple):
    """Non-zeros of a patients × A × B tensor, ordered by patient, then by A, then by B."""

    values: Array  # float64
    a: Array  # int32, position along A
    b: Array  # int32
    starts: Array  # int64, K + 1: patient k has the non-zeros starts[k]:starts[k + 1]
    shape: tuple[int, int, int]

    @property
    def patients(self) -> Array:
        """The patient of each non-zero."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.starts))


class Factors(NamedTuple):
    """W (K × R), A (n_a × R) and B (n_b × R): the tensor is about Σ_r w_r ∘ a_r ∘ b_r."""

    W: Array
    A: Array
    B: Array


def count_pairs(
    visits: Any, offsets: Array, columns_a: Array, columns_b: Array, products: int = PRODUCTS
) -> Counts:
    """The number of visits of each patient that contain both a feature of A and one of B.

    `visits` (CSR, visits × features) are read as present or absent; patient k has the rows offsets[k]:offsets[k + 1].
    """
    A, B = presence(visits, columns_a), presence(visits, columns_b)
    work = np.concatenate([[0], np.cumsum(np.diff(A.indptr).astype(np.int64) * np.diff(B.indptr))])[offsets]
    edges = block_edges(work, products)
    blocks = [count_block(A, B, offsets[first : last + 1]) for first, last in pairwise(edges.tolist())]
    values, a, b, lengths = (
        np.concatenate([np.zeros(0, dtype), *parts])
        for dtype, parts in zip(DTYPES, zip(*blocks, strict=True) if blocks else [[]] * 4, strict=True)
    )
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Counts(values, a, b, starts, (len(offsets) - 1, len(columns_a), len(columns_b)))


DTYPES = (np.float64, np.int32, np.int32, np.int64)  # of values, a, b and lengths


def presence(visits: Any, columns: Array) -> sparse.csr_array:
    """1 where a visit has one of these columns."""
    chosen = sparse.csr_array(visits)[:, columns]
    chosen.eliminate_zeros()
    return sparse.csr_array((np.ones(chosen.nnz, np.int32), chosen.indices, chosen.indptr), chosen.shape)


def block_edges(starts: Array, size: int) -> Array:
    """Boundaries of blocks of patients with at most `size` elements each, or of one patient with more."""
    edges = [0]
    while edges[-1] < len(starts) - 1:
        reached = int(np.searchsorted(starts, starts[edges[-1]] + size, side="right")) - 1
        edges.append(max(edges[-1] + 1, reached))
    return np.array(edges, np.int64)


def count_block(
    A: sparse.csr_array, B: sparse.csr_array, offsets: Array
) -> tuple[Array, Array, Array, Array]:
    """Values, a, b and the number of non-zeros of each of the patients with these offsets."""
    rows = slice(int(offsets[0]), int(offsets[-1]))
    of_a = A[rows]
    n_visits, n_a = of_a.shape
    visit = np.repeat(np.arange(n_visits), np.diff(of_a.indptr))
    patient = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
    pairs, row = np.unique(patient[visit] * n_a + of_a.indices, return_inverse=True)
    ones = np.ones(len(visit), np.int32)
    counts = sparse.csr_array((ones, (row, visit)), shape=(len(pairs), n_visits)) @ B[rows]
    counts.sort_indices()
    lengths = np.diff(counts.indptr)
    a = np.repeat((pairs % n_a).astype(np.int32), lengths)
    total = np.bincount(pairs // n_a, weights=lengths, minlength=len(offsets) - 1)
    return counts.data.astype(np.float64), a, counts.indices.astype(np.int32), total.astype(np.int64)
