"""COPA with the static features repeated on every visit.

The baseline "COPA (+static)" of question Q3, and of the supplement's "Pure PARAFAC2 cannot handle static feature
integration", in A. Afshar et al.: "TASTE: temporal and static tensor factorization for phenotyping electronic health
records", CHIL 2020, on top of COPA (Afshar et al., CIKM 2018).
"""

import numpy as np
from scipy import sparse

from phenotaste import metrics
from phenotaste.baselines.copa import Copa
from phenotaste.cohort import Cohort
from phenotaste.cohort.align import Aligned, align, columns_of_fitted, shard_of
from phenotaste.core.records import Model, Shard, Weights
from phenotaste.engines.threads import Threads


class CopaStatic(Copa):
    """COPA of visits that carry the patient's static features as if they were codes (Afshar et al. 2020, Q3).

    V_ has the rows of the visits' features and F_ those of the static ones, from one factor. Parameters are Copa's.
    The objective counts both kinds of entries, the static ones with every visit; `rmse_` looks at the codes alone:
    A ≈ W Fᵀ is no part of this model (lam_eff_ is 0).

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = baselines.CopaStatic(rank=4, random_state=0, max_iter=20).fit(cohort)
    >>> model.V_.shape, model.F_.shape
    ((30, 4), (20, 4))
    """

    def objective(self, cohort: Cohort) -> float:
        """The squared error (halved) of all entries that this method sees; `metrics.objective` asks for it.

        Examples
        --------
        >>> from phenotaste import baselines, simulate
        >>> cohort, truth = simulate.recovery(n_patients=20)
        >>> model = baselines.CopaStatic(rank=4, random_state=0, max_iter=20).fit(cohort)
        >>> round(model.objective(cohort) / float(model.loss_curve_[-1]), 8)
        1.0
        """
        if not metrics.is_fitted_on(self, cohort):
            return self.project(cohort).loss
        shard, _ = self._factorised(align(cohort, columns_of_fitted(self)), len(self.V_))
        model = self._to_factorised(self._model())
        weights = Weights(0.0, np.zeros(len(cohort)))
        scored = Threads(shard, weights, model.H.shape[0], courses=self.U_).score(model, self.W_)
        return float(scored.loss.sum())

    def _factorised(self, aligned: Aligned, n_features: int) -> tuple[Shard, int]:
        return with_static(aligned.shard, n_features), n_features + aligned.shard.static.shape[1]

    def _to_factorised(self, model: Model) -> Model:
        return Model(model.H, np.vstack([model.V, model.F]), np.zeros((0, model.V.shape[1])))

    def _from_factorised(self, model: Model, n_features: int) -> Model:
        return Model(model.H, model.V[:n_features].copy(), model.V[n_features:].copy())


def with_static(shard: Shard, n_features: int) -> Shard:
    """Each visit's row followed by its patient's static row; memory grows by the non-zeros of those."""
    visits = sparse.csr_array(
        (shard.data, shard.indices, shard.indptr), shape=(int(shard.offsets[-1]), n_features)
    )
    owners = np.repeat(np.arange(len(shard.static)), np.diff(shard.offsets))
    repeated = sparse.csr_array(shard.static)[owners]
    joined = sparse.csr_array(sparse.hstack([visits, repeated], format="csr"))
    joined.sort_indices()
    return shard_of(joined, shard.offsets, None)
