"""Fits on a Dask cluster: the same bits as on threads for any workers, and no files left."""

import stat
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.base import clone

from helpers import cohorts
from helpers.clusters import files_under, local_cluster
from helpers.fits import assert_same, assert_same_projection, start_fit
from helpers.reviewed_models import decided
from phenotaste import TASTE, InputError
from phenotaste.engines.dask import DaskEngine

SETTINGS = {"rank": 4, "init": "random", "n_init": 1, "max_iter": 8, "tol": 0, "random_state": 0}


@pytest.fixture(scope="module")
def by_threads(cohort):
    return TASTE(**SETTINGS).fit(cohort)


@pytest.mark.parametrize("n_workers", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 4))])
def test_bits_do_not_depend_on_the_number_of_workers(cohort, by_threads, tmp_path, n_workers):
    with local_cluster(n_workers) as cluster:
        found = TASTE(**SETTINGS, engine=DaskEngine(cluster, tmp_path / "work")).fit(cohort)
    assert_same(found, by_threads)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 3, "objective": "paper"},
        {"rank": 3, "objective": "paper", "dtype": "float32"},
        {"rank": 3, "init": "random", "dtype": "float32", "balance": 1.0, "smooth": 2.0},
        {"rank": 3, "smooth": 0.0, "mu": 0.1, "lam": 1.0, "balance": 0.5},
        {"rank": 17, "max_iter": 4},
        {"rank": 8, "max_iter": 12},  # whole vectors: nothing is padded, so nothing is copied on the way
        {"rank": 2, "n_init": 3, "max_iter": 5},
        {"rank": 2, "tol": 1e-2, "max_iter": 100},
    ],
)
def test_every_setting_gives_the_bits_of_the_local_fit(cluster, options):
    cohort = cohorts.cohort(3, n_patients=40, n_static=3, n_features=20)
    options = SETTINGS | {"init": "short_fits"} | options
    expected = TASTE(**options).fit(cohort)
    assert_same(TASTE(**options, engine=DaskEngine(cluster)).fit(cohort), expected)


@pytest.mark.parametrize("freedom", [0.0, 0.05])
def test_a_refit_gives_the_bits_of_the_local_one(cluster, freedom):
    cohort = cohorts.cohort(3, n_patients=40, n_static=3, n_features=20)
    model = TASTE(**SETTINGS | {"tol": 1e-5}).fit(cohort)
    review = decided(model, "accepted", "rejected", "open", "open")
    expected = model.refit(cohort, review, rank=4, freedom=freedom)
    found = model.set_params(engine=DaskEngine(cluster)).refit(cohort, review, rank=4, freedom=freedom)
    assert_same(found, expected)
    np.testing.assert_array_equal(found.background_.U, expected.background_.U)


@settings(max_examples=10)
@given(cohort=cohorts.cohorts)
def test_any_cohort_gives_the_bits_of_the_local_fit(cluster, cohort):
    options = SETTINGS | {"rank": 2, "max_iter": 4}
    expected = TASTE(**options).fit(cohort)
    assert_same(TASTE(**options, engine=DaskEngine(cluster)).fit(cohort), expected)


def test_a_step_has_the_sums_of_threads(cluster):
    c = cohorts.cohort(3, n_patients=40, n_static=3, n_features=20)
    threads, model = start_fit(c, 3)
    with DaskEngine(cluster).open(threads.shard, threads.weights, 3, c.shape[1]) as session:
        session.init_U(model)
        for one, other in zip(session.step(model), threads.step(model), strict=True):
            assert np.array_equal(one, other)


def test_an_undone_step_restores_the_previous_files(cluster):
    """A cohort on which extrapolation overshoots: the curve has a step that was refused."""
    cohort = cohorts.cohort(1, n_patients=30)
    options = SETTINGS | {"init": "short_fits", "rank": 3, "max_iter": 60}
    expected = TASTE(**options).fit(cohort)
    assert np.any(np.diff(expected.loss_curve_[:-1]) == 0)
    assert_same(TASTE(**options, engine=DaskEngine(cluster)).fit(cohort), expected)


def test_projection_by_the_cluster(cluster, cohort, by_threads, tmp_path):
    model = TASTE.load(saved(by_threads, tmp_path))
    expected = model.project(cohort[:300])
    model.engine = DaskEngine(cluster, tmp_path / "work")
    found = model.project(cohort[:300])
    assert_same_projection(found, expected)
    assert not (tmp_path / "work").exists()


def saved(model, folder):
    model.save(folder / "model")
    return folder / "model"


def test_files_are_private_and_few(cluster, cohort, tmp_path):
    """Two generations of courses at most, whatever the number of iterations, and no drafts."""
    seen = []

    def look(progress):
        folders = [path for path in (tmp_path / "work").rglob("*") if path.is_dir()]
        modes = {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "work", *folders]}
        files = files_under(tmp_path / "work")
        assert modes == {0o700}
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
        seen.append(
            [
                sum(path.relative_to(tmp_path / "work").parts[0] == part for path in files)
                for part in ("blocks", "courses")
            ]
        )

    TASTE(**SETTINGS, engine=DaskEngine(cluster, tmp_path / "work"), callback=look).fit(cohort)
    assert seen == [[6, 12]] * 8


def test_kept_files_are_reused(cluster, cohort, tmp_path):
    engine = DaskEngine(cluster, tmp_path / "work", keep=True)
    TASTE(**SETTINGS | {"max_iter": 2}, engine=engine).fit(cohort)
    blocks = {path: path.stat().st_mtime_ns for path in files_under(tmp_path / "work" / "blocks")}
    assert len(blocks) == 6
    TASTE(**SETTINGS | {"max_iter": 2}, engine=engine).fit(cohort)
    assert {path: path.stat().st_mtime_ns for path in files_under(tmp_path / "work" / "blocks")} == blocks
    (tmp_path / "work" / "notes.txt").write_text("a file of the user's")
    TASTE(**SETTINGS | {"max_iter": 2}, engine=DaskEngine(cluster, tmp_path / "work")).fit(cohort)
    assert (tmp_path / "work" / "notes.txt").exists()
    assert not (tmp_path / "work" / "blocks").exists()


def test_an_object_store_is_supported(tmp_path):
    """fsspec's store in memory, which workers share where they are threads, and do not see where they are processes."""
    cohort = cohorts.cohort(2, n_patients=30)
    options = SETTINGS | {"rank": 2}
    with local_cluster(2, processes=False, protocol="inproc://") as cluster:
        found = TASTE(**options, engine=DaskEngine(cluster, "memory://work")).fit(cohort)
    assert_same(found, TASTE(**options).fit(cohort))
    import fsspec

    assert fsspec.filesystem("memory").find("work") == []


def test_workers_without_access_to_the_folder_are_reported(cluster, cohort, tmp_path):
    with pytest.raises(InputError, match="2 of 2 workers do not see the work folder memory://work"):
        TASTE(**SETTINGS, engine=DaskEngine(cluster, "memory://work")).fit(cohort)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file: choose a folder for the work files"):
        TASTE(**SETTINGS, engine=DaskEngine(cluster, tmp_path / "file")).fit(cohort)
    with pytest.raises(InputError, match=r"work folder .* cannot be written to"):
        TASTE(**SETTINGS, engine=DaskEngine(cluster, "/proc/phenotaste")).fit(cohort)
    with pytest.raises(InputError, match=r"work folder .* cannot be written to"):
        TASTE(**SETTINGS, engine=DaskEngine(cluster, "nonsense://work")).fit(cohort)


def test_a_client_or_an_address_is_accepted(cluster, tmp_path):
    from distributed import Client

    cohort = cohorts.cohort(4, n_patients=20)
    options = SETTINGS | {"rank": 2, "max_iter": 2}
    expected = TASTE(**options).fit(cohort)
    with Client(cluster, set_as_default=False) as client:
        assert_same(TASTE(**options, engine=DaskEngine(client)).fit(cohort), expected)
        assert client.status == "running"  # it is the user's
    with pytest.raises(InputError, match="asynchronous or closed"):
        TASTE(**options, engine=DaskEngine(client)).fit(cohort)
    for address in (cluster.scheduler_address, cluster.scheduler_address.replace("tcp://", "dask://")):
        assert_same(TASTE(**options, engine=DaskEngine(address)).fit(cohort), expected)
    with pytest.raises(InputError, match="not int"):
        TASTE(**options, engine=DaskEngine(8786)).fit(cohort)


def test_the_dask_engine_is_not_saved_with_a_model(cluster, tmp_path):
    cohort = cohorts.cohort(4, n_patients=20)
    engine = DaskEngine(cluster)
    model = clone(TASTE(rank=2, n_init=1, max_iter=2, random_state=0, engine=engine))
    assert model.engine is engine
    model.fit(cohort).save(tmp_path / "model")
    assert TASTE.load(tmp_path / "model").engine is None


def test_a_cluster_without_workers(cohort):
    with (
        local_cluster(0) as cluster,
        pytest.raises(InputError, match="had no worker for 1 seconds: start workers"),
    ):
        TASTE(**SETTINGS, engine=DaskEngine(cluster, patience=1)).fit(cohort)


def test_without_dask_the_error_names_the_extra_and_dask_is_imported_lazily():
    code = """
import sys
sys.modules["distributed"] = None
import numpy as np
from phenotaste import TASTE, Cohort, InputError
from phenotaste.engines.dask import DaskEngine
try:
    TASTE(rank=1, engine=DaskEngine("tcp://127.0.0.1:8786")).fit(Cohort(np.ones((4, 2)), [0, 2, 4]))
except InputError as error:
    print(error)
del sys.modules["distributed"]
print([name for name in ("dask", "distributed", "fsspec") if name in sys.modules])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [
        "A Dask cluster needs the package distributed: pip install 'phenotaste[dask]'.",
        "[]",
    ]
