"""Settings that every test shares."""

import gc
import os

# Before numpy is imported. Each core has its worker, whose threads would only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

from helpers.chromium import chromium  # noqa: F401 - a fixture
from helpers.cli import call  # noqa: F401 - a fixture
from helpers.postgres import postgres_server  # noqa: F401 - a fixture

# The first example may have to compile a kernel, so no example has a deadline; CI draws the same ones each time.
settings.register_profile(
    "tests", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

# So many modules are loaded that a full collection takes a tenth of a second, and ibis builds large trees all the time.
gc.set_threshold(50_000, 20, 50)


# Long tests, and those whose cohorts and fits are shared by a module: first in each half of the list.
LONG = (
    ("tests/engines/test_dask", "tests/prediction", "tests/cli", "tests/report", "tests/baselines"),
    ("tests/docs", "tests/studies", "tests/selection", "tests/sources/test_omop"),
)


def pytest_collection_modifyitems(items):
    """The two workers of `make test` begin with what must not be left for the end, nor be made by both."""
    halves = [[item for item in items if item.nodeid.startswith(names)] for names in LONG]
    others = [item for item in items if not item.nodeid.startswith((*LONG[0], *LONG[1]))]
    first = max(0, len(items) // 2 - len(halves[0]))
    items[:] = [*halves[0], *others[:first], *halves[1], *others[first:]]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Each worker begins with a part of the list, and one that is done takes over the end of another's.

    By default tests are given out in turn, and most modules make their cohorts and models in every worker.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None
