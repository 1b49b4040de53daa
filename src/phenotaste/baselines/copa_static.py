"""COPA with the static features repeated on every visit.

The baseline "COPA (+static)" of question Q3, and of the supplement's "Pure PARAFAC2 cannot handle static feature
integration", in A. Afshar et al.: "TASTE: temporal and static tensor factorization for phenotyping electronic health
records", CHIL 2020, on top of COPA (Afshar et al., CIKM 2018).
"""

import numpy as np
from scipy import sparse

from phenotaste.align import Aligned, shard_of
from phenotaste.baselines.copa import Copa
from phenotaste.core.records import Model, Shard


class CopaStatic(Copa):
    """COPA of visits that carry the patient's static features as if they were codes of that visit.

    V_ has the rows of the visits' features and F_ those of the static ones, from one factor. Parameters are Copa's.
    loss_curve_ and a projection's loss count both kinds of entries, each visit's static ones again; `metrics.objective`
    and `rmse_` look at the visits alone (lam_eff_ is 0), since A ≈ W Fᵀ is no part of this model.

    Examples
    --------
    >>> from phenotaste import baselines, simulate
    >>> cohort, truth = simulate.recovery(n_patients=20)
    >>> model = baselines.CopaStatic(rank=4, random_state=0, max_iter=20).fit(cohort)
    >>> model.V_.shape, model.F_.shape
    ((30, 4), (20, 4))
    """

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
