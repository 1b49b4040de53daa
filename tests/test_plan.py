"""What a plan adds up is what a fit holds."""

import numpy as np
import pytest

from helpers.cohorts import cohort
from phenotaste import TASTE
from phenotaste.plan import fit_bytes, plan


def test_plan_counts_every_copy_of_the_courses():
    c = cohort(0, n_patients=300, visits=(20, 40), n_features=20)
    one = fit_bytes(TASTE(6, n_init=1), c)
    U = c.n_visits * 6 * 8
    assert 2 * U < one < 3 * U
    several = fit_bytes(TASTE(6, n_init=2), c)
    assert one + U < several < one + 1.2 * U  # scores and losses, too
    assert fit_bytes(TASTE(6), c) == several
    assert fit_bytes(TASTE(6, objective="paper"), c) == one
    assert fit_bytes(TASTE(6, n_init=1, dtype="float32"), c) == one - U


@pytest.mark.parametrize(("objective", "starts"), [("relative", 4), ("paper", 1)])
def test_plan_counts_the_default_number_of_starts(objective, starts):
    expected = plan(TASTE(2, objective=objective, max_iter=10, n_jobs=1), cohort(0, n_patients=40))
    assert np.isclose(expected.max_seconds, 10 * starts * expected.seconds_per_iteration)


def test_plan_extrapolates_from_a_sample_to_the_cohort():
    c = cohort(0, n_patients=9000, visits=(1, 3), n_features=5)
    expected = plan(TASTE(2, max_iter=50, n_init=3, n_jobs=1), c)
    assert (expected.patients, expected.visits, expected.threads) == (9000, c.n_visits, 1)
    assert expected.nonzeros == c.visits.nnz
    assert expected.seconds_per_iteration > 0
    assert np.isclose(expected.max_seconds, 150 * expected.seconds_per_iteration)
    assert dict(expected.lines())["Patients"].startswith("9,000")
    seconds, minutes = (
        dict(expected._replace(max_seconds=most).lines())["At most"].split(",")[0] for most in (2.2, 90.0)
    )
    assert (seconds, minutes) == ("3 seconds", "1.5 minutes")  # rounded up: no fit takes nothing
