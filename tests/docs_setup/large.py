"""A cohort that would fit into memory many times: what is run is the way, not the size."""

from phenotaste import simulate


def prepare(folder):
    cohort, _ = simulate.ehr(60, n_features=60, n_static=4, mean_visits=8, rank=3)
    cohort.save(folder / "cohort")
