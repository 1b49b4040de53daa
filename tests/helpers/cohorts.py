"""Small cohorts for tests, with the degenerate cases of real ones."""

from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from phenotaste import Cohort

SHARED = Path(__file__).resolve().parents[3] / "shared"


def cohort(
    seed=0,
    n_patients=12,
    n_features=7,
    n_static=4,
    visits=(0, 9),
    density=0.3,
    scale=1.0,
    negative=False,
):
    """Ragged sparse counts: some visits are empty, some patients have none, the last feature never occurs."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(visits[0], visits[1] + 1, n_patients)
    X = rng.integers(1, 4, (counts.sum(), n_features)) * (rng.random((counts.sum(), n_features)) < density)
    X = scale * X.astype(float)
    if n_features > 1:
        X[:, -1] = 0
    if negative:
        X += 0.3 * rng.standard_normal(X.shape) * (X > 0)
    A = (rng.random((n_patients, n_static)) < 0.5).astype(float) if n_static else None
    return Cohort(X, np.concatenate([[0], np.cumsum(counts)]), A, allow_negative=negative)


def dense(c):
    """The cohort as a list of (X_k, a_k), for the reference."""
    X = c.visits.toarray().astype(float)
    A = np.zeros((len(c), 0)) if c.static is None else c.static
    return [(X[c.offsets[k] : c.offsets[k + 1]], A[k]) for k in range(len(c))]


cohorts = st.builds(
    cohort,
    seed=st.integers(0, 10_000),
    n_patients=st.integers(1, 8),
    n_features=st.integers(1, 7),
    n_static=st.sampled_from([0, 1, 4]),
    visits=st.sampled_from([(0, 3), (0, 9), (5, 12)]),
    density=st.sampled_from([0.05, 0.3, 0.9]),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    negative=st.booleans(),
)
