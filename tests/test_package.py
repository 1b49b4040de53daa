"""Promises of the package as a whole."""

import json
import subprocess
import sys

import pytest

import phenotaste


def test_import_is_fast_and_light():
    code = (
        "import sys, time; start = time.perf_counter(); import phenotaste; took = time.perf_counter() - start;"
        "import json; print(json.dumps([took, sorted(sys.modules)]))"
    )
    took, modules = json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    )
    assert took < 1
    assert not {"torch", "dask", "duckdb", "matplotlib"} & set(modules)


def test_using_the_estimator_imports_no_heavy_package():
    code = "import sys; from phenotaste import TASTE, Cohort, metrics, simulate; print(' '.join(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert not {"torch", "dask", "duckdb", "matplotlib"} & set(modules.split())


def test_public_names():
    for name in phenotaste.__all__:
        assert getattr(phenotaste, name) is not None
    assert set(phenotaste.__all__) <= set(dir(phenotaste))
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = phenotaste.nothing_like_this
