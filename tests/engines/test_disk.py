"""Fits within a given memory: the same bits as without, and refusals that say what is needed."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from helpers.cohorts import cohort, cohorts
from helpers.fits import assert_same, assert_same_projection
from helpers.interrupted import StopAfter, fill, small_disk
from phenotaste import TASTE, Cohort, metrics
from phenotaste.cli.app import app
from phenotaste.engines import Checkpoint, DiskEngine, disk
from phenotaste.engines.cuda import cuda_available
from phenotaste.engines.disk import FitSize
from phenotaste.errors import InputError
from phenotaste.plan import plan
from phenotaste.storage import mapped

FIVE = {"n_init": 1, "init": "random", "max_iter": 5, "tol": 0, "random_state": 0}


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of about eight visits, so that small cohorts have many."""
    monkeypatch.setattr(disk, "CHUNK_VISITS", 8)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"init": "short_fits", "n_init": 3},
        {"balance": 0.5, "smooth": 0.0},
        {"dtype": "float32", "rank": 18},
        {"objective": "paper"},
        {"objective": "paper", "dtype": "float32", "n_init": 2},
        {"n_jobs": 1},
    ],
    ids=str,
)
def test_a_fit_on_disk_is_the_fit_in_memory_to_the_bit(small_chunks, tmp_path, options):
    c = cohort(1, n_patients=60, visits=(0, 30), n_features=20)
    options = FIVE | {"rank": 4} | options
    expected = TASTE(**options).fit(c)
    found = TASTE(engine=DiskEngine(tmp_path / "work"), **options).fit(c)
    assert_same(found, expected)
    assert found.rmse_ == metrics.rmse(expected, c)
    assert not (tmp_path / "work").exists()


@settings(max_examples=15)
@given(c=cohorts, rank=st.integers(1, 6))
def test_degenerate_cohorts_fit_on_disk_as_in_memory(tmp_path_factory, c, rank):
    work = tmp_path_factory.mktemp("work")
    expected = TASTE(rank, **FIVE).fit(c)
    assert_same(TASTE(rank, engine=DiskEngine(work), **FIVE).fit(c), expected)


def test_projections_run_on_disk_too(small_chunks, tmp_path):
    c = cohort(2, n_patients=40, visits=(0, 20))
    model = TASTE(3, **FIVE).fit(c)
    expected = model.project(c)
    model.engine = DiskEngine(tmp_path / "work")
    found = model.project(c)
    assert_same_projection(found, expected)


def test_a_loaded_cohort_needs_no_copy_in_memory(small_chunks, tmp_path):
    """Loaded, the first entries of the visits are of a type that the kernels do not take."""
    c = cohort(1, n_patients=60, visits=(0, 30))
    c.save(tmp_path / "cohort")
    loaded = Cohort.load(tmp_path / "cohort")
    assert loaded.visits.indptr.dtype == np.int32
    engine = DiskEngine(tmp_path / "work")
    model = TASTE(3, engine=engine, **FIVE)
    aligned = model._read(loaded)
    assert all(mapped.page_range(array) is not None for array in aligned.shard if array.size)
    assert_same(model.fit(loaded), TASTE(3, **FIVE).fit(c))


def test_all_large_arrays_are_files_readable_by_the_owner_only(tmp_path):
    c = cohort(1, n_patients=60, visits=(0, 30))
    seen = []

    def look(progress):
        seen.append({path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "work").iterdir()})
        assert (tmp_path / "work").stat().st_mode & 0o777 == 0o700

    checkpoint = Checkpoint(tmp_path / "work", every=2)
    model = TASTE(3, engine=DiskEngine(tmp_path / "work"), checkpoint=checkpoint, callback=look, **FIVE).fit(
        c
    )
    names = set().union(*seen)
    assert sum(name.startswith("courses-") for name in names) >= 4
    assert all(mode == 0o600 for files in seen for name, mode in files.items() if name.startswith("courses-"))
    assert all(mapped.page_range(array) is not None for array in (model.U_, model.W_))
    assert not (tmp_path / "work").exists()


def test_without_checkpoints_all_files_are_unnamed(tmp_path):
    c = cohort(1, n_patients=60, visits=(0, 30))
    look = lambda progress: seen.extend((tmp_path / "work").iterdir())  # noqa: E731
    seen = []
    TASTE(3, engine=DiskEngine(tmp_path / "work"), callback=look, **FIVE).fit(c)
    assert seen == []


def test_too_little_memory_is_refused_with_the_required_amount(tmp_path):
    c = cohort(1, n_patients=60, visits=(0, 30))
    with pytest.raises(InputError, match="at least") as refused:
        TASTE(3, engine=DiskEngine(tmp_path / "work", memory="100MB")).fit(c)
    assert not (tmp_path / "work").exists()
    needed = re.search(r"at least ([\d,.]+ [MG]B)", str(refused.value))[1].replace(",", "")
    assert mapped.parse_bytes(needed) > 10**8
    TASTE(3, engine=DiskEngine(tmp_path / "work", memory=needed), **FIVE).fit(c)


def test_an_initialisation_larger_than_memory_is_refused(tmp_path, monkeypatch):
    c = cohort(1, n_patients=60, visits=(0, 30))
    monkeypatch.setattr(disk, "NMF_ENTRY_BYTES", 10**10 // c.visits.nnz)
    with pytest.raises(InputError, match=r"initialisation.*10.46 GB.*init=.random"):
        TASTE(3, engine=DiskEngine(tmp_path / "work"), **FIVE | {"init": "short_fits"}).fit(c)
    assert not (tmp_path / "work").exists()
    TASTE(3, engine=DiskEngine(tmp_path / "work"), **FIVE).fit(c)


def test_less_memory_means_smaller_chunks_and_more_patients_more_memory():
    c = cohort(1, n_patients=60, visits=(0, 30))
    entry_bytes = c.visits.data.nbytes + c.visits.indices.nbytes
    size = FitSize.of(c.offsets, entry_bytes, (c.n_features, c.n_static), 40, 8, 2)
    size = size._replace(visits=10**8, patients=2 * 10**6)
    minimum = size.min_memory()
    assert size.chunk_visits(minimum) < size.chunk_visits(minimum + 10**8)
    assert size.chunk_visits(10**12) == disk.CHUNK_VISITS
    assert size._replace(patients=10**8).min_memory() > minimum + 10**9
    assert size.disk(1, checkpoints=False) >= 2 * 10**8 * 40 * 8
    assert size.disk(2, checkpoints=True) >= 5 * 10**8 * 40 * 8


@pytest.mark.parametrize(
    ("text", "count"), [("4GB", 4 * 10**9), ("512MiB", 2**29), ("1.5g", 15 * 10**8), ("800", 800), (7, 7)]
)
def test_memory_amounts_accept_common_units(text, count):
    assert mapped.parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "lots", "-3GB", "0", "3iB", "3 PB", True, 2.5])
def test_other_amounts_are_refused(text):
    with pytest.raises(InputError, match="amount of memory"):
        mapped.parse_bytes(text)


@given(count=st.integers(1, 10**13))
def test_the_reported_memory_suffices(count):
    assert mapped.parse_bytes(mapped.format_bytes(count).replace(",", "")) >= count


CHILD = """
import json, sys, time
import numpy as np
from pathlib import Path
from phenotaste.storage import mapped
array = mapped.create_mapped((40_000_000,), np.float64, Path(sys.argv[1]))
for first in range(0, len(array), 2**17):  # written, and so dirty
    array[first : first + 2**17] = 1.0
mapped.evict_all()
before = mapped.resident_bytes()
with mapped.evict_above(before + int(sys.argv[2])):
    total = 0.0
    for first in range(0, len(array), 2**17):
        total += float(array[first : first + 2**17].sum())
        time.sleep(0.002)  # no faster than a disk
    time.sleep(0.2)
print(json.dumps({"total": total, "before": before, "after": mapped.resident_bytes()}))
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="the system does not tell a process's memory"
)
@pytest.mark.parametrize(("allowed", "stays_below"), [(40 * 10**6, 160 * 10**6), (10**9, None)])
def test_mapped_pages_are_evicted_without_loss_when_memory_is_short(tmp_path, allowed, stays_below):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path, str(allowed)], capture_output=True, text=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert found["total"] == 40_000_000
    grown = found["after"] - found["before"]
    assert grown < stays_below if stays_below else grown > 300 * 10**6


def test_a_disk_that_is_too_small_is_refused_before_the_fit_begins(tmp_path):
    c = cohort(1, n_patients=300, visits=(20, 30))
    with small_disk(tmp_path / "disk", "256k") as folder:
        begun = []
        with pytest.raises(InputError, match="the courses need") as refused:
            TASTE(5, engine=DiskEngine(folder / "work"), callback=begun.append).fit(c)
        assert begun == []
        assert "free disk space" in str(refused.value)
        assert list(folder.iterdir()) == []


def test_a_disk_that_fills_up_during_the_fit_raises_an_error(tmp_path):
    """And with the checkpoint that was written before, it goes on when there is room again."""
    c = cohort(1, n_patients=300, visits=(20, 30))
    options = FIVE | {"max_iter": 9}
    expected = TASTE(5, **options).fit(c)
    with small_disk(tmp_path / "disk", "4m") as folder:
        work = folder / "work"

        def others(progress):
            if (
                progress.iteration == 4
            ):  # the next step needs one more file, for the checkpoint has the others
                fill(folder)

        disk_options = {"engine": DiskEngine(work), "checkpoint": Checkpoint(work, every=3)}
        with pytest.raises(InputError, match=r"no space left.*free disk space"):
            TASTE(5, **disk_options, callback=others, **options).fit(c)
        (folder / "filler").unlink()
        count = StopAfter()
        disk_options["checkpoint"] = Checkpoint(work, every=3, resume=True)
        assert_same(TASTE(5, **disk_options, callback=count, **options).fit(c), expected)
        assert count.seen == 6


def test_a_fit_without_checkpoints_allocates_its_disk_space_at_the_start(tmp_path):
    c = cohort(1, n_patients=300, visits=(20, 30))
    with small_disk(tmp_path / "disk", "4m") as folder:
        others = lambda progress: fill(folder)  # noqa: E731
        found = TASTE(5, engine=DiskEngine(folder / "work"), callback=others, **FIVE).fit(c)
        assert_same(found, TASTE(5, **FIVE).fit(c))


def test_the_engine_is_not_saved_with_a_model(tmp_path):
    c = cohort(1)
    model = TASTE(2, engine=DiskEngine(tmp_path / "work"), **FIVE).fit(c)
    model.save(tmp_path / "model")
    assert TASTE.load(tmp_path / "model").engine is None
    assert clone(model).fit(c).V_.shape == model.V_.shape


@pytest.mark.parametrize(
    ("options", "match"), [({"engine": "disk"}, "engine"), ({"device": "cuda"}, "exclude each other")]
)
def test_invalid_engines_are_refused(tmp_path, options, match):
    with pytest.raises(InputError, match=match):
        TASTE(2, **({"engine": DiskEngine(tmp_path)} | options)).fit(cohort(1))


def test_a_plan_reports_disk_and_memory():
    c = cohort(1, n_patients=60, visits=(0, 30))
    expected = plan(TASTE(3, n_jobs=1), c)
    assert expected.min_memory >= disk.PROCESS_BYTES
    assert expected.disk >= 4 * c.n_visits * 3 * 8
    assert "of disk" in dict(expected.lines())["With --memory"]


def test_the_command_line_fits_within_a_memory_limit(tmp_path, capsys):
    c = cohort(1, n_patients=60, visits=(0, 30))
    c.save(tmp_path / "cohort")
    arguments = ["fit", str(tmp_path / "cohort"), "--rank", "3", "--max-iter", "5", "--tol", "0"]
    for name, more in (("plain", []), ("disk", ["--memory", "2GB", "--include-patients"])):
        app([*arguments, "--out", str(tmp_path / name), *more], standalone_mode=False)
    one, other = TASTE.load(tmp_path / "plain"), TASTE.load(tmp_path / "disk")
    for name in ("H_", "V_", "F_", "loss_curve_", "rmse_", "cpi_", "score_totals_"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert other.U_.shape == (c.n_visits, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cohort", "disk", "plain"]


@pytest.mark.skipif(cuda_available(), reason="there is a GPU, which --device auto takes")
def test_without_a_gpu_auto_is_the_cpu_with_all_its_options(tmp_path):
    cohort(1, n_patients=60, visits=(0, 30)).save(tmp_path / "cohort")
    arguments = ["fit", str(tmp_path / "cohort"), "--rank", "3", "--max-iter", "5", "--device", "auto"]
    app([*arguments, "--out", str(tmp_path / "model"), "--memory", "2GB", "--resume"], standalone_mode=False)
    with pytest.raises(InputError, match="needs --device cpu"):
        app(
            [*arguments[:-1], "cuda", "--out", str(tmp_path / "other"), "--memory", "2GB"],
            standalone_mode=False,
        )
