"""COPA: constrained PARAFAC2 for sparse and large data, and its two variants with static features.

A. Afshar, I. Perros, E. E. Papalexakis, E. Searles, J. Ho, J. Sun: "COPA: Constrained PARAFAC2 for sparse & large
datasets", CIKM 2018. COPA+ (question Q1) and COPA (+static) (question Q3, and the supplement's "Pure PARAFAC2 cannot
handle static feature integration") are baselines in A. Afshar, I. Perros, H. Park, C. deFilippi, X. Yan, W. Stewart,
J. Ho, J. Sun: "TASTE: temporal and static tensor factorization for phenotyping electronic health records", CHIL 2020.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import sparse

from phenotaste import metrics
from phenotaste.baselines._parafac2 import ExactParafac2
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import Aligned, align, columns_of_fitted, shard_of
from phenotaste.core import loop
from phenotaste.core.parafac2 import constraints, kernels
from phenotaste.core.parafac2 import loop as parafac2_loop
from phenotaste.core.records import Array, Model, Shard, Weights
from phenotaste.engines.threads import ThreadSession
from phenotaste.factorization import static_weight
from phenotaste.validation import check_integer


class Copa(ExactParafac2):
    """PARAFAC2 with constraints on every factor, by AO-ADMM (Afshar et al. 2018).

    X_k ≈ Q_k H diag(w_k) Vᵀ with Q_kᵀQ_k = I; H, V and W non-negative, V optionally sparse, and the courses
    U_k = Q_k H optionally smooth over time. Static features are not used.

    Each factor takes a few ADMM steps per iteration, and its dual variables persist between iterations (the public
    code resets them). `l0` is the proximal operator of the paper, a hard threshold at √(2·l0/ρ). During the fit, H and
    W have unit columns and V carries the scale: otherwise a small V and a large W would evade the penalty on V. The
    fitted H and V have unit columns, as in the other methods.

    Parameters
    ----------
    rank : number of phenotypes.
    l1, l0 : weights of ‖V‖₁ and ‖V‖₀ against ½‖X − X̂‖², in the units of the data; 0 for none.
    nonnegative_h : H ≥ 0, as in the paper's experiments; False for an unconstrained H.
    smooth : courses are combinations of M-splines of the visit times (of the visit index without times).
    n_splines, degree : number and degree of the splines of each patient; knots are quantiles of the patient's visit
        times.
    admm_steps : ADMM steps per factor and iteration.
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
        return ADMMUpdates(self.l1, self.l0, self.nonnegative_h, self.admm_steps)

    def _score_solver(self, fitting: bool) -> kernels.ScoreSolver:
        # A projection has no earlier iterations to warm-start ADMM from; NNLS is the limit of its steps.
        method, steps = (kernels.ADMM, self.admm_steps) if fitting else (kernels.NONNEGATIVE, 1)
        return kernels.ScoreSolver(method, steps)

    def _bases(self, cohort: Cohort) -> Array | None:
        if not self.smooth:
            return None
        return constraints.smooth_bases(numeric_times(cohort), cohort.offsets, self.n_splines, self.degree)


class CopaPlus(Copa):
    """COPA with A ≈ W Fᵀ, F ≥ 0, and afterwards U_k := max(0, Q_k H) (Afshar et al. 2020, Q1).

    The truncation makes U_k non-negative but breaks U_kᵀU_k = HᵀH, and W is not solved again: the last entry of
    loss_curve_, that of the returned factors, may exceed the previous one, and `cpi_` quantifies the loss.

    Parameters
    ----------
    lam : weight of the static features; the paper's grid is 0.1, 1, 10.
    weights : "absolute" for lam as given, as in the paper; "relative" as in TASTE.
    The others : as for Copa.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = baselines.CopaPlus(rank=4, random_state=0, max_iter=20).fit(cohort)
    >>> model.F_.shape, bool((model.U_ >= 0).all())
    ((20, 4), True)
    """

    _choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "init": ("nmf", "random"),
        "weights": ("absolute", "relative"),
    }
    _amounts: ClassVar[tuple[str, ...]] = ("tol", "l1", "l0", "lam")
    _couples_static: ClassVar[bool] = True

    def __init__(
        self,
        rank: int = 5,
        *,
        lam: float = 0.1,
        weights: Literal["absolute", "relative"] = "absolute",
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
        super().__init__(
            rank,
            l1=l1,
            l0=l0,
            nonnegative_h=nonnegative_h,
            smooth=smooth,
            n_splines=n_splines,
            degree=degree,
            admm_steps=admm_steps,
            init=init,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            n_jobs=n_jobs,
            random_state=random_state,
            callback=callback,
            verbose=verbose,
        )
        self.lam = lam
        self.weights = weights

    def _static_weight(self, aligned: Aligned) -> float:
        return static_weight(self.lam, self.weights, aligned)

    def _courses(self, Q: Array, H: Array) -> Array:
        return np.maximum(Q @ H, 0.0)


class CopaStatic(Copa):
    """COPA with the patient's static features appended to every visit as further codes (Afshar et al. 2020, Q3).

    V_ and F_ are the rows of one factor that belong to temporal and to static features. Parameters are those of Copa.
    The objective covers both, the static features once per visit; `rmse_` covers the temporal features only, since
    A ≈ W Fᵀ is not part of this model (lam_eff_ is 0).

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = baselines.CopaStatic(rank=4, random_state=0, max_iter=20).fit(cohort)
    >>> model.V_.shape, model.F_.shape
    ((30, 4), (20, 4))
    """

    def own_objective(self, cohort: Cohort) -> float:
        """Half the squared error of all entries that this method factorises; `metrics.objective` calls this.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> model = baselines.CopaStatic(rank=4, random_state=0, max_iter=20).fit(cohort)
        >>> round(model.own_objective(cohort) / float(model.loss_curve_[-1]), 8)
        1.0
        """
        if not metrics.is_fitted_on(self, cohort):
            return self.project(cohort).loss
        shard, _ = self._input_data(align(cohort, columns_of_fitted(self)), len(self.V_))
        model = self._input_model(self._model())
        weights = Weights.absolute(0.0, np.zeros(len(cohort)))
        with ThreadSession(shard, weights, self.U_, len(model.V)) as session:
            return float(session.score(model, self.W_).loss.sum())

    def _input_data(self, aligned: Aligned, n_features: int) -> tuple[Shard, int]:
        return append_static(aligned.shard, n_features), n_features + aligned.shard.static.shape[1]

    def _input_model(self, model: Model) -> Model:
        return Model(model.H, np.vstack([model.V, model.F]), np.zeros((0, model.V.shape[1])))

    def _output_model(self, model: Model, n_features: int) -> Model:
        return Model(model.H, model.V[:n_features].copy(), model.V[n_features:].copy())


def numeric_times(cohort: Cohort) -> Array:
    """Visit times as floats; the visit index for a cohort without times."""
    if cohort.visit_times is None:
        return np.arange(cohort.n_visits, dtype=np.float64)
    times = np.asarray(cohort.visit_times)
    if times.dtype.kind == "M":
        times = times.astype("datetime64[us]").astype(np.int64)
    return times.astype(np.float64)


class ADMMUpdates:
    """ADMM steps for H, V and F; keeps the dual variables of each."""

    scores_carry_size = False
    exact = False
    signed = False

    def __init__(self, l1: float, l0: float, nonnegative_h: bool, steps: int) -> None:
        self.l1, self.l0, self.steps = l1, l0, steps
        self.proximal: dict[str, Callable[[Array, float], Array]] = {
            "H": constraints.nonnegative if nonnegative_h else constraints.unconstrained,
            "V": constraints.sparse(l1, l0, positive=True),
            "F": constraints.nonnegative,
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
        X, self.duals[name] = constraints.improve(gram, right, X, dual, self.proximal[name], self.steps)
        return X

    def rho(self, model: Model, lam: float) -> float:
        gram = (model.H.T @ model.H) * (model.V.T @ model.V) + lam * (model.F.T @ model.F)
        return constraints.step_size(gram)

    def penalty(self, V: Array) -> float:
        return float(self.l1 * np.abs(V).sum() + self.l0 * np.count_nonzero(V))

    def rescale(self, H: Array, V: Array, F: Array) -> None:
        for name, factor in (("H", H), ("V", V), ("F", F)):
            if name in self.duals:
                self.duals[name] = self.duals[name] * factor


def append_static(shard: Shard, n_features: int) -> Shard:
    """Append each patient's static features to all its visits; only their non-zeros take memory."""
    visits = sparse.csr_array(
        (shard.data, shard.indices, shard.indptr), shape=(int(shard.offsets[-1]), n_features)
    )
    owners = np.repeat(np.arange(len(shard.static)), np.diff(shard.offsets))
    repeated = sparse.csr_array(shard.static)[owners]
    joined = sparse.csr_array(sparse.hstack([visits, repeated], format="csr"))
    joined.sort_indices()
    return shard_of(joined, shard.offsets, None)
