"""Settings that every test shares."""

import os

from hypothesis import HealthCheck, settings

from helpers.chromium import chromium  # noqa: F401 - a fixture
from helpers.cli import call  # noqa: F401 - a fixture
from helpers.postgres import postgres_server  # noqa: F401 - a fixture

# The first example may have to compile a kernel, so no example has a deadline; CI draws the same ones each time.
settings.register_profile(
    "tests", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")
