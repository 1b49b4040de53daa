"""The input of every method: one .npz file, read identically by all. Needs only numpy and scipy."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT.parent / "shared" / "bench" / "ehr_K2000.npz"


class Records(NamedTuple):
    """All visits stacked; patient k's are the rows offsets[k]:offsets[k + 1]."""

    visits: sparse.csr_array
    offsets: np.ndarray
    static: np.ndarray

    @property
    def n_patients(self) -> int:
        return len(self.offsets) - 1

    def dense(self) -> list[np.ndarray]:
        """One float64 matrix per patient, as tensorly and matcouply require."""
        visits = self.visits.astype(np.float64)
        return [visits[a:b].toarray() for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]

    def head(self, n_patients: int) -> "Records":
        n = min(n_patients, self.n_patients)
        return Records(self.visits[: self.offsets[n]], self.offsets[: n + 1], self.static[:n])


def load(path: str | Path) -> Records:
    with np.load(path) as file:
        shape = tuple(int(n) for n in file["shape"])
        visits = sparse.csr_array((file["data"], file["indices"], file["indptr"]), shape)
        return Records(visits, file["row_offsets"], file["A"])


def save(records: Records, path: str | Path) -> None:
    X = records.visits
    np.savez(
        path,
        data=X.data,
        indices=X.indices,
        indptr=X.indptr,
        shape=X.shape,
        row_offsets=records.offsets,
        A=records.static,
    )


def simulate(n_patients: int) -> Records:
    from phenotaste import simulate

    cohort, _ = simulate.ehr(n_patients, random_state=0)
    return Records(cohort.visits, cohort.offsets, cohort.static)


def padded(records: Records, rank: int) -> Records:
    """Empty visits added to histories shorter than `rank`."""
    counts = np.diff(records.offsets)
    missing = np.maximum(rank - counts, 0)
    codes = np.diff(records.visits.indptr)
    ends = np.repeat(records.offsets[1:], missing)  # empty visits are inserted after the patient's last
    indptr = np.concatenate([[0], np.cumsum(np.insert(codes, ends, 0))])
    offsets = np.concatenate([[0], np.cumsum(counts + missing)])
    X = records.visits
    visits = sparse.csr_array((X.data, X.indices, indptr), (offsets[-1], X.shape[1]))
    return Records(visits, offsets, records.static)


def x_error(records: Records, courses: list[np.ndarray], W: np.ndarray, V: np.ndarray) -> float:
    """‖X − U diag(w) Vᵀ‖ / ‖X‖ over all patients, from the residuals themselves."""
    X, offsets, missed = records.visits, records.offsets, 0.0
    for k, U in enumerate(courses):
        visits = X[offsets[k] : offsets[k + 1]].toarray()
        missed += float(np.sum((visits - (U * W[k]) @ V.T) ** 2))
    return float(np.sqrt(missed / np.sum(X.data.astype(np.float64) ** 2)))
