"""COPA+: COPA coupled with the static features, then the courses cut off at zero.

The baseline of question Q1 in A. Afshar, I. Perros, H. Park, C. deFilippi, X. Yan, W. Stewart, J. Ho, J. Sun: "TASTE:
temporal and static tensor factorization for phenotyping electronic health records", CHIL 2020, on top of COPA
(Afshar et al., CIKM 2018).
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np

from phenotaste.baselines.copa import Copa
from phenotaste.cohort.align import Aligned
from phenotaste.core import loop
from phenotaste.core.records import Array
from phenotaste.factorization import static_weight


class CopaPlus(Copa):
    """COPA with A ≈ W Fᵀ, F ≥ 0, and afterwards U_k := max(0, Q_k H) (Afshar et al. 2020, Q1).

    Cutting off makes U_k non-negative but breaks U_kᵀU_k = HᵀH, and W is not solved again: the last of loss_curve_,
    that of the factors handed out, may lie above the one before it, and `cpi_` says what was lost.

    Parameters
    ----------
    lam : weight of the static features; the paper's grid is 0.1, 1, 10.
    weights : "absolute" takes lam as it is, as the paper does; "relative" measures it as TASTE does.
    The rest : as for Copa.

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
