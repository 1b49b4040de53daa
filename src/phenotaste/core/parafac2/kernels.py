"""PARAFAC2 with exact cross-products, X_k ≈ Q_k H diag(w_k) Vᵀ, patient by patient, compiled.

    ½ Σ (‖X_k‖² − 2⟨Q_k, X_k V diag(w_k) Hᵀ⟩ + ‖H diag(w_k) Vᵀ‖²)  with ‖Q_k‖₂ ≤ 1,  + λ/2 ‖A − W Fᵀ‖²

For orthonormal Q_k that is ½‖X_k − Q_k H diag(w_k) Vᵀ‖². Written like this it also holds for patients with fewer
visits, or fewer different ones, than phenotypes, who cannot have an orthonormal Q_k: they count as if empty visits
followed. Each block has its exact minimum, so alternating never raises it. `parafac2_reference` is the same in numpy.

Only non-zeros of X are touched. Where the courses are to be smooth, Q_k = P_k Z_k with P_k an orthonormal basis of
the smooth functions at the patient's visits, and everything else stays as it is with P_kᵀX_kV in place of X_kV.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from phenotaste.core.kernels.nnls import Solve, new_solve, pivot
from phenotaste.core.kernels.polar import Eigen, inverse_root, new_eigen, short_polar
from phenotaste.core.records import Array, Shard

SHARPENINGS = 4  # enough for eigenvalues of 0.9 and 0.1: the error is squared each time
WHOLE = 1e-6  # a Q_k whose squares add up to R less this has all its directions
NONNEGATIVE, FREE, SPLIT = 0, 1, 2  # how scores are solved: NNLS, least squares, ADMM steps


class Shared(NamedTuple):
    """A model with the products that every patient needs."""

    H: Array
    V: Array
    F: Array
    gram: Array  # (HᵀH)∘(VᵀV) + λFᵀF, the Gram matrix of every patient's scores
    static_gram: Array  # λFᵀF, that of patients without history
    inverse: Array  # (gram + ρI)⁻¹
    rho: float
    lam: float


class Slices(NamedTuple):
    """All that the updates of H, V and F need to know of the patients."""

    QX: Array  # Σ Qᵀ X V diag(w), R × R
    XU: Array  # Σ Xᵀ Q H diag(w), J × R
    WW: Array  # Σ w wᵀ over patients with history
    WW_all: Array  # Σ w wᵀ
    AW: Array  # Σ a wᵀ, P × R


class Room(NamedTuple):
    """Scratch space for one patient, allocated once for many."""

    B: Array  # X V, visits × R
    smooth: Array  # PᵀX V
    scaled: Array  # B diag(w), to unit size
    Z: Array  # Q in the basis P
    square: Array  # R × R
    polar: Array
    turn: Array
    QB: Array
    L: Array
    b: Array  # R
    t: Array
    s: Array
    passive: Array
    solve: Solve
    eigen: Eigen


def share(H: Array, V: Array, F: Array, lam: float, rho: float = 0.0) -> Shared:
    H, V, F = (np.ascontiguousarray(factor, dtype=np.float64) for factor in (H, V, F))
    static_gram = lam * (F.T @ F)
    gram = (H.T @ H) * (V.T @ V) + static_gram
    inverse = np.linalg.pinv(gram + rho * np.eye(len(gram)), rcond=1e-12, hermitian=True)
    return Shared(H, V, F, gram, static_gram, np.ascontiguousarray(inverse), float(rho), float(lam))


def no_slices(n_features: int, n_static: int, rank: int) -> Slices:
    square = (rank, rank)
    return Slices(
        np.zeros(square),
        np.zeros((n_features, rank)),
        np.zeros(square),
        np.zeros(square),
        np.zeros((n_static, rank)),
    )


def room_for(shard: Shard, first: int, last: int, R: int, smooth: int) -> Room:
    visits = int(np.diff(shard.offsets[first : last + 1]).max(initial=1))
    most = max(visits, smooth)
    return Room(
        np.empty((visits, R)),
        np.empty((smooth, R)),
        np.empty((most, R)),
        np.empty((most, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty((R, R)),
        np.empty(R),
        np.empty(R),
        np.empty(R),
        np.empty(R, np.bool_),
        new_solve(R),
        new_eigen(R),
    )


@njit(cache=True, nogil=True, fastmath={"contract"})
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


@njit(cache=True, nogil=True, fastmath={"contract"})
def find_slice(B: Array, norm: float, w: Array, H: Array, Q: Array, room: Room) -> None:
    """Q, the polar factor of M = B diag(w) Hᵀ, and QᵀB into `room.QB`.

    M is scaled to about unit size first: its polar factor does not change, and what counts as nothing then does not
    depend on the units of X. For more rows than phenotypes everything but Q itself comes from BᵀB.
    """
    rows, R = B.shape
    size = 0.0
    for r in range(R):
        size += w[r] * w[r]
    size = np.sqrt(size * norm)
    for r in range(R):
        room.s[r] = w[r] / size if size > 0.0 else 0.0
    if rows < R:
        scaled = room.scaled[:rows]
        for i in range(rows):
            for r in range(R):
                scaled[i, r] = B[i, r] * room.s[r]
        short_polar(scaled, H, room.eigen, Q)
        np.dot(Q.T, B, room.QB)
        return
    np.dot(B.T, B, room.square)
    for r in range(R):
        for q in range(R):
            room.turn[r, q] = room.s[r] * H[q, r]  # diag(s) Hᵀ
    np.dot(room.square, room.turn, room.polar)
    np.dot(room.turn.T, room.polar, room.QB)  # C = MᵀM
    inverse_root(room.QB, room.eigen, room.polar)
    np.dot(room.turn, room.polar, room.L)  # Q = B L
    np.dot(B, room.L, Q)
    np.dot(room.L.T, room.square, room.QB)


@njit(cache=True, nogil=True, fastmath={"contract"})
def right_hand_side(a: Array, shared: Shared, seen: bool, room: Room) -> None:
    """diag(Hᵀ Qᵀ X V) + λFᵀa into `room.b`; a patient without history has the second part only."""
    R = room.b.size
    for r in range(R):
        room.b[r] = 0.0
    if seen:
        for q in range(R):
            for r in range(R):
                room.b[r] += shared.H[q, r] * room.QB[q, r]
    for p in range(a.size):
        if a[p] != 0.0:
            for r in range(R):
                room.b[r] += shared.lam * a[p] * shared.F[p, r]


@njit(cache=True, nogil=True)
def solve_scores(shared: Shared, seen: bool, how: int, inner: int, w: Array, dual: Array, room: Room) -> None:
    """w from `room.b`. With ADMM steps, w and its dual go on from where they were."""
    R = w.size
    if not seen or how == NONNEGATIVE:
        for r in range(R):
            room.passive[r] = w[r] > 0.0
        gram = shared.gram if seen else shared.static_gram
        pivot(gram, room.b, w, room.passive, room.solve)
    elif how == FREE:
        np.dot(shared.inverse, room.b, w)
    else:
        for _ in range(inner):
            for r in range(R):
                room.s[r] = room.b[r] + shared.rho * (w[r] + dual[r])
            np.dot(shared.inverse, room.s, room.t)
            for r in range(R):
                w[r] = max(0.0, room.t[r] - dual[r])
                dual[r] += w[r] - room.t[r]


@njit(cache=True, nogil=True)
def advance(
    shard: Shard,
    k: int,
    bases: Array,
    shared: Shared,
    how: int,
    inner: int,
    w: Array,
    dual: Array,
    Q: Array,
    room: Room,
) -> float:
    """Q, then w, for one patient; Q_newᵀ X V is left in `room.QB`. Returns ‖X_k‖²."""
    B = room.B[: len(Q)]
    norm = read_visits(shard, k, shared.V, B)
    if norm == 0.0:
        Q[:] = 0.0
    elif bases.shape[1] > 0:
        P = bases[shard.offsets[k] : shard.offsets[k + 1]]
        Z = room.Z[: bases.shape[1]]
        np.dot(P.T, B, room.smooth)
        find_slice(room.smooth, norm, w, shared.H, Z, room)
        np.dot(P, Z, Q)
    else:
        find_slice(B, norm, w, shared.H, Q, room)
    right_hand_side(shard.static[k], shared, norm > 0.0, room)
    solve_scores(shared, norm > 0.0, how, inner, w, dual, room)
    return norm


@njit(cache=True, nogil=True)
def step(
    shard: Shard,
    first: int,
    last: int,
    bases: Array,
    shared: Shared,
    how: int,
    inner: int,
    W: Array,
    duals: Array,
    Q: Array,
    slices: Slices,
    room: Room,
) -> None:
    """Q and w of patients first..last in place, and all they add to `slices` but XU, which needs the next H."""
    R = shared.H.shape[0]
    for k in range(first, last):
        mine, w = Q[shard.offsets[k] : shard.offsets[k + 1]], W[k]
        norm = advance(shard, k, bases, shared, how, inner, w, duals[k], mine, room)
        for r in range(R):
            for s in range(R):
                slices.WW_all[r, s] += w[r] * w[s]
                if norm > 0.0:
                    slices.WW[r, s] += w[r] * w[s]
                    slices.QX[r, s] += room.QB[r, s] * w[s]
        a = shard.static[k]
        for p in range(a.size):
            if a[p] != 0.0:
                for r in range(R):
                    slices.AW[p, r] += a[p] * w[r]


@njit(cache=True, nogil=True, fastmath={"contract"})
def add_courses(
    shard: Shard, first: int, last: int, H: Array, W: Array, Q: Array, XU: Array, room: Room
) -> None:
    """XU += Σ Xᵀ Q H diag(w), from the non-zeros of X."""
    R = H.shape[0]
    HS = np.empty((R, R))
    for k in range(first, last):
        mine = Q[shard.offsets[k] : shard.offsets[k + 1]]
        for r in range(R):
            for s in range(R):
                HS[r, s] = H[r, s] * W[k, s]
        U = room.B[: len(mine)]
        np.dot(mine, HS, U)
        for i in range(len(mine)):
            visit = shard.offsets[k] + i
            for n in range(shard.indptr[visit], shard.indptr[visit + 1]):
                value = np.float64(shard.data[n])
                row = XU[shard.indices[n]]
                for r in range(R):
                    row[r] += value * U[i, r]


@njit(cache=True, nogil=True)
def patient_loss(norm: float, a: Array, shared: Shared, seen: bool, w: Array, room: Room) -> float:
    """What one patient adds to the objective, from the right-hand side that is in `room`."""
    gram = shared.gram if seen else shared.static_gram
    total = norm
    for p in range(a.size):
        total += shared.lam * a[p] * a[p]
    for r in range(w.size):
        total -= 2.0 * w[r] * room.b[r]
        for s in range(w.size):
            total += w[r] * gram[r, s] * w[s]
    return 0.5 * total


@njit(cache=True, nogil=True)
def project(
    shard: Shard,
    first: int,
    last: int,
    bases: Array,
    shared: Shared,
    how: int,
    tol: float,
    max_iter: int,
    W: Array,
    Q: Array,
    room: Room,
) -> None:
    """Q and w under a fixed model, each patient from w = 1 on until its own loss stops falling."""
    dual = np.zeros(shared.H.shape[0])
    for k in range(first, last):
        mine, w = Q[shard.offsets[k] : shard.offsets[k + 1]], W[k]
        w[:] = 1.0
        before = np.inf
        for _ in range(max_iter):
            norm = advance(shard, k, bases, shared, how, 1, w, dual, mine, room)
            if norm == 0.0:
                break
            loss = patient_loss(norm, shard.static[k], shared, True, w, room)
            if not before - loss >= tol * max(loss, 1e-12 * norm):
                break
            before = loss


@njit(cache=True, nogil=True)
def cosines(E: Array) -> None:
    """Orthonormal cosines down the rows, one frequency a column: directions that favour no visit."""
    visits, R = E.shape
    for r in range(R):
        size = np.sqrt((1.0 if r == 0 else 2.0) / visits)
        for i in range(visits):
            E[i, r] = size * np.cos(np.pi * r * (i + 0.5) / visits)


@njit(cache=True, nogil=True)
def orthogonalise(M: Array, room: Room, out: Array) -> None:
    """The polar factor of M."""
    np.dot(M.T, M, room.square)
    inverse_root(room.square, room.eigen, room.polar)
    np.dot(M, room.polar, out)


@njit(cache=True, nogil=True)
def sharpen(G: Array, room: Room) -> None:
    """Eigenvalues above ½ to 1 and those below to 0, by G ← 3G² − 2G³: QᵀQ, with its rounding, as a projection."""
    for _ in range(SHARPENINGS):
        np.dot(G, G, room.square)
        np.dot(room.square, G, room.polar)
        for r in range(len(G)):
            for s in range(len(G)):
                G[r, s] = 3.0 * room.square[r, s] - 2.0 * room.polar[r, s]


@njit(cache=True, nogil=True)
def complete(shard: Shard, first: int, last: int, bases: Array, Q: Array, room: Room) -> None:
    """Fill in the directions that Q_k lacks, for patients with at least R visits: nothing that is fitted changes.

    What is added is the polar factor of (I − QQᵀ) PPᵀ E (I − QᵀQ) with fixed cosines E (P = I where courses need not
    be smooth): orthonormal to what is there, and the same whatever basis the null space comes in.
    """
    R = Q.shape[1]
    for k in range(first, last):
        mine = Q[shard.offsets[k] : shard.offsets[k + 1]]
        visits = len(mine)
        if visits < R or shard.indptr[shard.offsets[k]] == shard.indptr[shard.offsets[k + 1]]:
            continue
        np.dot(mine.T, mine, room.QB)
        if np.trace(room.QB) > R - WHOLE:
            continue
        E, N = room.B[:visits], room.Z[:visits]
        cosines(E)
        if bases.shape[1] > 0:
            P = bases[shard.offsets[k] : shard.offsets[k + 1]]
            np.dot(P.T, E, room.smooth)
            np.dot(P, room.smooth, E)
        np.dot(mine.T, E, room.turn)
        np.dot(mine, room.turn, N)
        for i in range(visits):
            for r in range(R):
                E[i, r] -= N[i, r]
        sharpen(room.QB, room)
        np.dot(E, room.QB, N)
        for i in range(visits):
            for r in range(R):
                N[i, r] = E[i, r] - N[i, r]
        orthogonalise(N, room, E)
        for i in range(visits):
            for r in range(R):
                N[i, r] = mine[i, r] + E[i, r]
        orthogonalise(N, room, mine)
