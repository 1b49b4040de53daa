"""PARAFAC2 with exact cross-products, X_k ≈ Q_k H diag(w_k) Vᵀ, patient by patient, compiled.

    ½ Σ (‖X_k‖² − 2⟨Q_k, X_k V diag(w_k) Hᵀ⟩ + ‖H diag(w_k) Vᵀ‖²)  with ‖Q_k‖₂ ≤ 1,  + λ/2 ‖A − W Fᵀ‖²

For orthonormal Q_k that is ½‖X_k − Q_k H diag(w_k) Vᵀ‖². This form is also valid for patients with fewer visits, or
fewer distinct ones, than phenotypes, who cannot have an orthonormal Q_k: they are treated as if followed by empty
visits. Each block has its exact minimum, so alternating never raises it. `parafac2.reference` is the same in numpy.

Only non-zeros of X are read. Smooth courses have Q_k = P_k Z_k, with P_k an orthonormal basis of the smooth functions
at the patient's visits; everything else is unchanged with P_kᵀX_kV in place of X_kV.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.core.kernels.jit import kernel, part
from phenotaste.core.kernels.nnls import NNLSScratch, bpp, new_nnls_scratch
from phenotaste.core.kernels.polar import EighScratch, inverse_sqrt_eigh, new_eigh_scratch, polar_wide
from phenotaste.core.records import Array, Shard

PURIFICATIONS = 4  # enough for eigenvalues of 0.9 and 0.1: each one squares the error
COMPLETE_TOL = 1e-6  # a Q_k with ‖Q_k‖² above R minus this has full column rank
NONNEGATIVE, UNCONSTRAINED, ADMM = 0, 1, 2  # methods for the scores: NNLS, least squares, ADMM


class ModelProducts(NamedTuple):
    """A model with the products that every patient needs."""

    H: Array
    V: Array
    F: Array
    gram: Array  # (HᵀH)∘(VᵀV) + λFᵀF, the Gram matrix of every patient's scores
    static_gram: Array  # λFᵀF, that of patients without history
    inverse: Array  # (gram + ρI)⁻¹
    rho: float
    lam: float


class Parafac2Patients(NamedTuple):
    """The patients' data and their state, which a step updates in place."""

    shard: Shard
    bases: Array  # visits × smooth functions; no columns without a smoothness constraint
    W: Array  # patients × R
    duals: Array  # patients × R: scaled duals of W, for ADMM
    Q: Array  # visits × R


class ScoreSolver(NamedTuple):
    """How scores are solved."""

    method: int  # NONNEGATIVE, UNCONSTRAINED or ADMM
    admm_steps: int


class Parafac2Sums(NamedTuple):
    """The sums over patients from which H, V and F are updated."""

    QX: Array  # Σ Qᵀ X V diag(w), R × R
    XU: Array  # Σ Xᵀ Q H diag(w), J × R
    WW: Array  # Σ w wᵀ over patients with history
    WW_all: Array  # Σ w wᵀ
    AW: Array  # Σ a wᵀ, P × R


class Parafac2Scratch(NamedTuple):
    """Scratch for one patient, reused for many."""

    B: Array  # X V, visits × R
    smooth: Array  # PᵀX V
    scaled: Array  # B diag(w), scaled to unit size
    Z: Array  # Q in the basis P
    square: Array  # R × R
    polar: Array
    work: Array
    QB: Array  # QᵀX V
    L: Array  # Q = B L
    b: Array  # R
    t: Array
    s: Array
    passive: Array
    nnls: NNLSScratch
    eigh: EighScratch


def model_products(H: Array, V: Array, F: Array, lam: float, rho: float = 0.0) -> ModelProducts:
    H, V, F = (np.ascontiguousarray(factor, dtype=np.float64) for factor in (H, V, F))
    static_gram = lam * (F.T @ F)
    gram = (H.T @ H) * (V.T @ V) + static_gram
    inverse = np.linalg.pinv(gram + rho * np.eye(len(gram)), rcond=1e-12, hermitian=True)
    return ModelProducts(H, V, F, gram, static_gram, np.ascontiguousarray(inverse), float(rho), float(lam))


def zero_sums(n_features: int, n_static: int, rank: int) -> Parafac2Sums:
    square = (rank, rank)
    return Parafac2Sums(
        np.zeros(square),
        np.zeros((n_features, rank)),
        np.zeros(square),
        np.zeros(square),
        np.zeros((n_static, rank)),
    )


def new_scratch(shard: Shard, first: int, last: int, R: int, smooth: int) -> Parafac2Scratch:
    visits = int(np.diff(shard.offsets[first : last + 1]).max(initial=1))
    rows = max(visits, smooth)
    return Parafac2Scratch(
        np.empty((visits, R)),
        np.empty((smooth, R)),
        np.empty((rows, R)),
        np.empty((rows, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty(R),
        np.empty(R),
        np.empty(R),
        np.empty(R, np.bool_),
        new_nnls_scratch(R),
        new_eigh_scratch(R),
    )


@part(allocates=True, fastmath={"contract"})
def read_visits(shard: Shard, k: int, V: Array, B: Array) -> float:
    """B = X_k V from the non-zeros alone; returns ‖X_k‖²."""
    start = shard.offsets[k]
    norm = 0.0
    for i in range(B.shape[0]):
        row = B[i]
        for r in range(row.size):
            row[r] = 0.0
        for n in range(shard.indptr[start + i], shard.indptr[start + i + 1]):
            value = np.float64(shard.data[n])
            norm += value * value
            definition = V[shard.indices[n]]
            for r in range(row.size):
                row[r] += value * definition[r]
    return norm


@part(allocates=True, fastmath={"contract"})
def solve_Q(B: Array, norm: float, w: Array, H: Array, Q: Array, scratch: Parafac2Scratch) -> None:
    """Q, the polar factor of M = B diag(w) Hᵀ, and QᵀB into `scratch.QB`.

    M is scaled to about unit size first: its polar factor does not change, and SIGMA_FLOOR then does not depend on
    the units of X. With at least as many rows as phenotypes everything except Q comes from BᵀB.
    """
    rows, R = B.shape
    size = 0.0
    for r in range(R):
        size += w[r] * w[r]
    size = np.sqrt(size * norm)
    for r in range(R):
        scratch.s[r] = w[r] / size if size > 0.0 else 0.0
    if rows < R:
        scaled = scratch.scaled[:rows]
        for i in range(rows):
            for r in range(R):
                scaled[i, r] = B[i, r] * scratch.s[r]
        polar_wide(scaled, H, scratch.eigh, Q)
        np.dot(Q.T, B, scratch.QB)
        return
    np.dot(B.T, B, scratch.square)
    for r in range(R):
        for q in range(R):
            scratch.work[r, q] = scratch.s[r] * H[q, r]  # diag(s) Hᵀ
    np.dot(scratch.square, scratch.work, scratch.polar)
    np.dot(scratch.work.T, scratch.polar, scratch.QB)  # C = MᵀM
    inverse_sqrt_eigh(scratch.QB, scratch.eigh, scratch.polar)
    np.dot(scratch.work, scratch.polar, scratch.L)  # Q = B L
    np.dot(B, scratch.L, Q)
    np.dot(scratch.L.T, scratch.square, scratch.QB)


@part(allocates=True, fastmath={"contract"})
def right_hand_side(a: Array, model: ModelProducts, seen: bool, scratch: Parafac2Scratch) -> None:
    """diag(Hᵀ Qᵀ X V) + λFᵀa into `scratch.b`; a patient without history has only the second term."""
    R = scratch.b.size
    for r in range(R):
        scratch.b[r] = 0.0
    if seen:
        for q in range(R):
            for r in range(R):
                scratch.b[r] += model.H[q, r] * scratch.QB[q, r]
    for p in range(a.size):
        if a[p] != 0.0:
            for r in range(R):
                scratch.b[r] += model.lam * a[p] * model.F[p, r]


@part(allocates=True)
def solve_scores(
    model: ModelProducts, seen: bool, solver: ScoreSolver, w: Array, dual: Array, scratch: Parafac2Scratch
) -> None:
    """w from `scratch.b`. ADMM steps are warm-started with the previous w and its dual."""
    R = w.size
    if not seen or solver.method == NONNEGATIVE:
        for r in range(R):
            scratch.passive[r] = w[r] > 0.0
        gram = model.gram if seen else model.static_gram
        bpp(gram, scratch.b, w, scratch.passive, scratch.nnls)
    elif solver.method == UNCONSTRAINED:
        np.dot(model.inverse, scratch.b, w)
    else:
        for _ in range(solver.admm_steps):
            for r in range(R):
                scratch.s[r] = scratch.b[r] + model.rho * (w[r] + dual[r])
            np.dot(model.inverse, scratch.s, scratch.t)
            for r in range(R):
                w[r] = max(0.0, scratch.t[r] - dual[r])
                dual[r] += w[r] - scratch.t[r]


@part(allocates=True)
def patient_step(
    patients: Parafac2Patients, k: int, model: ModelProducts, solver: ScoreSolver, scratch: Parafac2Scratch
) -> float:
    """Q, then w, of one patient in place; Q_newᵀ X V is left in `scratch.QB`. Returns ‖X_k‖²."""
    shard, bases = patients.shard, patients.bases
    first, last = shard.offsets[k], shard.offsets[k + 1]
    Q, w, B = patients.Q[first:last], patients.W[k], scratch.B[: last - first]
    norm = read_visits(shard, k, model.V, B)
    if norm == 0.0:
        Q[:] = 0.0
    elif bases.shape[1] > 0:
        P = bases[first:last]
        Z = scratch.Z[: bases.shape[1]]
        np.dot(P.T, B, scratch.smooth)
        solve_Q(scratch.smooth, norm, w, model.H, Z, scratch)
        np.dot(P, Z, Q)
    else:
        solve_Q(B, norm, w, model.H, Q, scratch)
    right_hand_side(shard.static[k], model, norm > 0.0, scratch)
    solve_scores(model, norm > 0.0, solver, w, patients.duals[k], scratch)
    return norm


@kernel(autovectorize=True, allocates=True)
def step(
    patients: Parafac2Patients,
    first: int,
    last: int,
    model: ModelProducts,
    solver: ScoreSolver,
    sums: Parafac2Sums,
    scratch: Parafac2Scratch,
) -> None:
    """Q and w of patients first..last in place; `sums` receives everything except XU, which needs the next H."""
    R = model.H.shape[0]
    for k in range(first, last):
        norm = patient_step(patients, k, model, solver, scratch)
        w = patients.W[k]
        for r in range(R):
            for s in range(R):
                sums.WW_all[r, s] += w[r] * w[s]
                if norm > 0.0:
                    sums.WW[r, s] += w[r] * w[s]
                    sums.QX[r, s] += scratch.QB[r, s] * w[s]
        a = patients.shard.static[k]
        for p in range(a.size):
            if a[p] != 0.0:
                for r in range(R):
                    sums.AW[p, r] += a[p] * w[r]


@kernel(autovectorize=True, allocates=True, fastmath={"contract"})
def add_XU(
    shard: Shard, first: int, last: int, H: Array, W: Array, Q: Array, XU: Array, scratch: Parafac2Scratch
) -> None:
    """XU += Σ Xᵀ Q H diag(w), from the non-zeros of X."""
    R = H.shape[0]
    HS = np.empty((R, R))
    for k in range(first, last):
        Q_k = Q[shard.offsets[k] : shard.offsets[k + 1]]
        for r in range(R):
            for s in range(R):
                HS[r, s] = H[r, s] * W[k, s]
        U = scratch.B[: len(Q_k)]
        np.dot(Q_k, HS, U)
        for i in range(len(Q_k)):
            visit = shard.offsets[k] + i
            for n in range(shard.indptr[visit], shard.indptr[visit + 1]):
                value = np.float64(shard.data[n])
                row = XU[shard.indices[n]]
                for r in range(R):
                    row[r] += value * U[i, r]


@part(allocates=True)
def patient_loss(
    norm: float, a: Array, model: ModelProducts, seen: bool, w: Array, scratch: Parafac2Scratch
) -> float:
    """One patient's term of the objective, from the right-hand side in `scratch`."""
    gram = model.gram if seen else model.static_gram
    total = norm
    for p in range(a.size):
        total += model.lam * a[p] * a[p]
    for r in range(w.size):
        total -= 2.0 * w[r] * scratch.b[r]
        for s in range(w.size):
            total += w[r] * gram[r, s] * w[s]
    return 0.5 * total


@kernel(autovectorize=True, allocates=True)
def project(
    patients: Parafac2Patients,
    first: int,
    last: int,
    model: ModelProducts,
    solver: ScoreSolver,
    tol: float,
    max_iter: int,
    scratch: Parafac2Scratch,
) -> None:
    """Q and w under a fixed model, each patient from w = 1 until its own loss converges."""
    for k in range(first, last):
        w = patients.W[k]
        w[:] = 1.0
        previous = np.inf
        for _ in range(max_iter):
            norm = patient_step(patients, k, model, solver, scratch)
            if norm == 0.0:
                break
            loss = patient_loss(norm, patients.shard.static[k], model, True, w, scratch)
            if not previous - loss >= tol * max(loss, 1e-12 * norm):
                break
            previous = loss


@part(allocates=True)
def cosines(E: Array) -> None:
    """Orthonormal cosines, one frequency per column: directions that favour no visit."""
    visits, R = E.shape
    for r in range(R):
        size = np.sqrt((1.0 if r == 0 else 2.0) / visits)
        for i in range(visits):
            E[i, r] = size * np.cos(np.pi * r * (i + 0.5) / visits)


@part(allocates=True)
def orthogonalise(M: Array, scratch: Parafac2Scratch, out: Array) -> None:
    """The polar factor of M."""
    np.dot(M.T, M, scratch.square)
    inverse_sqrt_eigh(scratch.square, scratch.eigh, scratch.polar)
    np.dot(M, scratch.polar, out)


@part(allocates=True)
def purify(G: Array, scratch: Parafac2Scratch) -> None:
    """Round the eigenvalues of G = QᵀQ to 0 or 1 by G ← 3G² − 2G³ (McWeeny), which makes it a projection."""
    for _ in range(PURIFICATIONS):
        np.dot(G, G, scratch.square)
        np.dot(scratch.square, G, scratch.polar)
        for r in range(len(G)):
            for s in range(len(G)):
                G[r, s] = 3.0 * scratch.square[r, s] - 2.0 * scratch.polar[r, s]


@kernel(autovectorize=True, allocates=True)
def complete_Q(shard: Shard, first: int, last: int, bases: Array, Q: Array, scratch: Parafac2Scratch) -> None:
    """Complete Q_k to full column rank for patients with at least R visits; the fit does not change.

    Added is the polar factor of (I − QQᵀ) PPᵀ E (I − QᵀQ) with fixed cosines E (P = I without a smoothness
    constraint): orthonormal to Q, and independent of the basis of its null space.
    """
    R = Q.shape[1]
    for k in range(first, last):
        Q_k = Q[shard.offsets[k] : shard.offsets[k + 1]]
        visits = len(Q_k)
        if visits < R or shard.indptr[shard.offsets[k]] == shard.indptr[shard.offsets[k + 1]]:
            continue
        np.dot(Q_k.T, Q_k, scratch.QB)
        if np.trace(scratch.QB) > R - COMPLETE_TOL:
            continue
        E, N = scratch.B[:visits], scratch.Z[:visits]
        cosines(E)
        if bases.shape[1] > 0:
            P = bases[shard.offsets[k] : shard.offsets[k + 1]]
            np.dot(P.T, E, scratch.smooth)
            np.dot(P, scratch.smooth, E)
        np.dot(Q_k.T, E, scratch.work)
        np.dot(Q_k, scratch.work, N)
        for i in range(visits):
            for r in range(R):
                E[i, r] -= N[i, r]
        purify(scratch.QB, scratch)
        np.dot(E, scratch.QB, N)
        for i in range(visits):
            for r in range(R):
                N[i, r] = E[i, r] - N[i, r]
        orthogonalise(N, scratch, E)
        for i in range(visits):
            for r in range(R):
                N[i, r] = Q_k[i, r] + E[i, r]
        orthogonalise(N, scratch, Q_k)
