"""A cohort for the workers."""

from phenotaste import simulate


def prepare(folder):
    cohort, _ = simulate.ehr(60, n_features=30, n_static=4, mean_visits=8, rank=3)
    cohort.save(folder / "COHORT")
