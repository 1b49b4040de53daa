"""Flexible coupling as Cohen & Bro published it: HALS, dense patients one at a time, explicit Khatri–Rao products.

The baseline for timings. The order of updates and the number of inner iterations are those of the authors' code; the
static matrix is coupled as in the TASTE paper, Q1.
"""

import numpy as np
from scipy import sparse

from phenotaste.core.model_step import unit_columns
from phenotaste.core.records import Array, Model, Shard
from phenotaste.core.reference import polar_factor

COUPLING_ROUNDS = 5  # of H and all Q_k, in one iteration
HALS_SWEEPS = 100
HALS_CHANGE = 1e-6  # stop when a sweep changes X by less than this fraction of the first one


def hals(gram: Array, right: Array, X: Array) -> Array:
    """Hierarchical alternating least squares: minimise ½ tr(X G Xᵀ) − ⟨B, X⟩ over X ≥ 0, column by column."""
    X = X.copy()
    first = 0.0
    for sweep in range(HALS_SWEEPS):
        moved = 0.0
        for r in range(len(gram)):
            if gram[r, r] > 0:
                move = np.maximum((right[:, r] - X @ gram[:, r]) / gram[r, r], -X[:, r])
                X[:, r] += move
                moved += float(move @ move)
        first = moved if sweep == 0 else first
        if moved <= HALS_CHANGE**2 * first:
            break
    return X


def khatri_rao(V: Array, U: Array) -> Array:
    """Column r is v_r ⊗ u_r: one row for each entry of a patient's matrix, feature by feature."""
    return np.einsum("jr,ir->jir", V, U).reshape(-1, U.shape[1])


class Published:
    """The state of the patients and the model, and its iteration."""

    def __init__(self, shard: Shard, model: Model, U: Array, lam: float) -> None:
        n_features = len(model.V)
        self.X = sparse.csr_array((shard.data, shard.indices, shard.indptr), shape=(len(U), n_features))
        self.shard, self.model, self.lam = shard, model, lam
        self.U = np.array(U, np.float64)
        self.W = np.ones((len(shard.offsets) - 1, U.shape[1]))
        self.Q = np.zeros_like(self.U)
        self._couple(np.ones(len(self.W)))
        self._solve_scores()

    def iterate(self, mu: Array) -> tuple[float, float, float]:
        """One iteration with the patients' weights μ_k; returns Σ‖X − X̂‖², Σ‖U − QH‖² and the objective."""
        for _ in range(COUPLING_ROUNDS):
            self.model = self.model._replace(H=self._mean_H(mu))
            self._couple(mu)
        self._solve_definitions()
        self._solve_U(mu)
        self._solve_scores()
        WW = self.W.T @ self.W
        F = hals(WW, self.shard.static.T @ self.W, self.model.F)
        self.model = self.model._replace(F=F)
        return self._parts(mu)

    def rows(self, k: int) -> slice:
        return slice(int(self.shard.offsets[k]), int(self.shard.offsets[k + 1]))

    def _patients(self) -> range:
        return range(len(self.W))

    def _mean_H(self, mu: Array) -> Array:
        total = sum(mu[k] * self.Q[self.rows(k)].T @ self.U[self.rows(k)] for k in self._patients())
        return np.where(np.any(total, axis=0), unit_columns(total), self.model.H)

    def _couple(self, mu: Array) -> None:
        for k in self._patients():
            if mu[k] > 0 and self.U[self.rows(k)].any():
                self.Q[self.rows(k)] = polar_factor(self.U[self.rows(k)], self.model.H)

    def _solve_definitions(self) -> None:
        US = self.U * np.repeat(self.W, np.diff(self.shard.offsets), axis=0)
        V = hals(US.T @ US, self.X.T @ US, self.model.V)
        norms = np.linalg.norm(V, axis=0)
        norms[norms == 0] = 1.0
        self.W = self.W * norms
        self.model = self.model._replace(V=V / norms, F=self.model.F / norms)

    def _solve_U(self, mu: Array) -> None:
        H, V, _ = self.model
        for k in self._patients():
            rows = self.rows(k)
            X = self.X[rows].toarray()
            if not X.any():
                self.U[rows] = 0.0
                continue
            VS = V * self.W[k]
            gram = VS.T @ VS + mu[k] * np.eye(len(H))
            self.U[rows] = hals(gram, X @ VS + mu[k] * self.Q[rows] @ H, self.U[rows])

    def _solve_scores(self) -> None:
        _, V, F = self.model
        static_gram, static_right = self.lam * (F.T @ F), self.lam * (self.shard.static @ F)
        for k in self._patients():
            design = khatri_rao(V, self.U[self.rows(k)])
            target = self.X[self.rows(k)].toarray().T.ravel()
            gram, right = design.T @ design + static_gram, target @ design + static_right[k]
            self.W[k] = hals(gram, right[None, :], self.W[k : k + 1])[0]

    def _parts(self, mu: Array) -> tuple[float, float, float]:
        H, V, F = self.model
        misfit, coupling, weighted = 0.0, 0.0, 0.0
        for k in self._patients():
            U, Q = self.U[self.rows(k)], self.Q[self.rows(k)]
            misfit += float(np.sum((self.X[self.rows(k)].toarray() - U * self.W[k] @ V.T) ** 2))
            gap = float(np.sum(U**2) - 2 * np.sum((Q.T @ U) * H) + np.sum(H**2)) if mu[k] > 0 else 0.0
            coupling, weighted = coupling + gap, weighted + mu[k] * gap
        static = float(np.sum((self.shard.static - self.W @ F.T) ** 2))
        return misfit, coupling, 0.5 * (misfit + self.lam * static + weighted)
