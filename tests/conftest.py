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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Each worker has a half of the list, so that modules and their fixtures stay together, and gives some of it away.

    By default workers get tests in turn from everywhere, and most modules make their cohorts and models twice.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None
