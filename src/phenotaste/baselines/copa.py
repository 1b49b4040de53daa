"""COPA: constrained PARAFAC2 for sparse and large data.

A. Afshar, I. Perros, E. E. Papalexakis, E. Searles, J. Ho, J. Sun: "COPA: Constrained PARAFAC2 for sparse & large
datasets", CIKM 2018.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np

from phenotaste.baselines._exact import ExactParafac2
from phenotaste.cohort import Cohort
from phenotaste.core import loop
from phenotaste.core.parafac2 import admm, kernels, splines
from phenotaste.core.parafac2 import loop as parafac2_loop
from phenotaste.core.records import Array, Model
from phenotaste.validation import check_integer


class Copa(ExactParafac2):
    """PARAFAC2 with constraints on every factor, by AO-ADMM (Afshar et al. 2018).

    X_k ≈ Q_k H diag(w_k) Vᵀ with Q_kᵀQ_k = I; H, V and W non-negative, V sparse if asked for, and the courses
    U_k = Q_k H smooth over time if asked for. Static features are not used.

    Each factor takes a few ADMM steps an iteration and its dual goes on from one iteration to the next (the public
    code resets them). `l0` is the proximal operator of the paper, a hard threshold at √(2·l0/ρ). While fitting, H and
    W have unit columns and V carries the size: otherwise a penalty on V could be had for nothing by making V small
    and W large. Handed out are H and V with unit columns, as everywhere.

    Parameters
    ----------
    rank : number of phenotypes.
    l1, l0 : weights of ‖V‖₁ and ‖V‖₀ against ½‖X − X̂‖², in the units of the data; 0 leaves them out.
    nonnegative_h : H ≥ 0, as in the paper's experiments; False leaves H free.
    smooth : courses that are M-splines of the visit times (of the order of visits where the cohort has no times).
    n_splines, degree : functions a patient's courses are made of, and their degree; knots lie at quantiles of the
        patient's visit times.
    admm_steps : ADMM steps for a factor in one iteration.
    init, n_init, max_iter, tol, n_jobs, random_state, callback, verbose : as for Spartan.

    Attributes
    ----------
    Those of Spartan. loss_curve_ holds the squared error, without the penalties.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = baselines.Copa(rank=4, smooth=True, random_state=0, max_iter=20).fit(cohort)
    >>> model.U_.shape, bool((model.V_ >= 0).all())
    ((2000, 4), True)
    """

    _counts: ClassVar[tuple[str, ...]] = ("rank", "n_init", "max_iter", "n_splines", "admm_steps")
    _amounts: ClassVar[tuple[str, ...]] = ("tol", "l1", "l0")

    def __init__(
        self,
        rank: int = 5,
        *,
        l1: float = 0.0,
        l0: float = 0.0,
        nonnegative_h: bool = True,
        smooth: bool = False,
        n_splines: int = 7,
        degree: int = 3,
        admm_steps: int = 5,
        init: Literal["nmf", "random"] = "nmf",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-5,
        n_jobs: int | None = None,
        random_state: Any = None,
        callback: Callable[[loop.Progress], object] | None = None,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.l1 = l1
        self.l0 = l0
        self.nonnegative_h = nonnegative_h
        self.smooth = smooth
        self.n_splines = n_splines
        self.degree = degree
        self.admm_steps = admm_steps
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.callback = callback
        self.verbose = verbose

    def _check_settings(self) -> None:
        super()._check_settings()
        check_integer("degree", self.degree, max=self.n_splines - 1)

    def _updates(self) -> parafac2_loop.Updates:
        return Constrained(self.l1, self.l0, self.nonnegative_h, self.admm_steps)

    def _how(self, fitting: bool) -> tuple[int, int]:
        # New patients have no earlier iterations to go on from: NNLS is where the ADMM steps would end.
        return (kernels.ADMM, self.admm_steps) if fitting else (kernels.NONNEGATIVE, 1)

    def _bases(self, cohort: Cohort) -> Array | None:
        if not self.smooth:
            return None
        return splines.smooth_bases(times_of(cohort), cohort.offsets, self.n_splines, self.degree)


def times_of(cohort: Cohort) -> Array:
    """Visit times as numbers; without times, the visits' order."""
    if cohort.visit_times is None:
        return np.arange(cohort.n_visits, dtype=np.float64)
    times = np.asarray(cohort.visit_times)
    if times.dtype.kind == "M":
        times = times.astype("datetime64[us]").astype(np.int64)
    return times.astype(np.float64)


class Constrained:
    """ADMM steps for H, V and F, with the duals of each."""

    scores_carry_size = False
    exact = False
    signed = False

    def __init__(self, l1: float, l0: float, nonnegative_h: bool, steps: int) -> None:
        self.l1, self.l0, self.steps = l1, l0, steps
        self.proximal: dict[str, Callable[[Array, float], Array]] = {
            "H": admm.nonnegative if nonnegative_h else admm.unconstrained,
            "V": admm.sparse(l1, l0, positive=True),
            "F": admm.nonnegative,
        }
        self.duals: dict[str, Array] = {}

    def H(self, gram: Array, right: Array, H: Array) -> Array:
        return self._improve("H", gram, right, H)

    def V(self, gram: Array, right: Array, V: Array) -> Array:
        return self._improve("V", gram, right, V)

    def F(self, gram: Array, right: Array, F: Array) -> Array:
        return self._improve("F", gram, right, F)

    def _improve(self, name: str, gram: Array, right: Array, X: Array) -> Array:
        dual = self.duals.get(name)
        dual = np.zeros_like(X) if dual is None else dual
        X, self.duals[name] = admm.improve(gram, right, X, dual, self.proximal[name], self.steps)
        return X

    def rho(self, model: Model, lam: float) -> float:
        gram = (model.H.T @ model.H) * (model.V.T @ model.V) + lam * (model.F.T @ model.F)
        return admm.step_size(gram)

    def penalty(self, V: Array) -> float:
        return float(self.l1 * np.abs(V).sum() + self.l0 * np.count_nonzero(V))

    def rescale(self, H: Array, V: Array, F: Array) -> None:
        for name, factor in (("H", H), ("V", V), ("F", F)):
            if name in self.duals:
                self.duals[name] = self.duals[name] * factor
