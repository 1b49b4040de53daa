"""Compile the kernels that most tests need, before several processes would compile them at the same time."""

import warnings

import numpy as np

from phenotaste import TASTE, Cohort

RANKS = 3, 17  # batched and single patients


def small_cohort(dtype: str) -> Cohort:
    rng = np.random.default_rng(0)
    visits = rng.poisson(0.5, (60, 8)).astype(dtype)
    return Cohort(visits, np.arange(0, 61, 6), rng.integers(0, 2, (10, 3)).astype(float))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for dtype in ("float64", "float32"):
        for rank in RANKS:
            cohort = small_cohort(dtype)
            TASTE(rank, n_init=1, max_iter=2, random_state=0).fit(cohort).transform(cohort)
            TASTE(rank, objective="paper", n_init=1, max_iter=2, random_state=0).fit(cohort)
