"""The cohort and the cluster of the tests of Dask."""

import pytest

from helpers.clusters import local_cluster
from phenotaste import simulate


@pytest.fixture(scope="module")
def cohort():
    """Six blocks, so that the tree that adds them is unbalanced."""
    return simulate.ehr(1000, n_features=40, n_static=6, mean_visits=50, rank=3, random_state=1)[0]


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(2) as found:
        yield found
