"""Faults of a real cluster: workers killed and stopped, damaged files, a lost scheduler."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time

import pytest

from helpers.clusters import files_under, kill_a_worker, local_cluster, worker_pids
from helpers.fits import assert_same
from phenotaste import TASTE, InputError
from phenotaste.engines.dask import DaskEngine

SETTINGS = {"rank": 5, "init": "random", "n_init": 1, "max_iter": 12, "tol": 0, "random_state": 0}
# For damage in the third iteration.
SHORT = SETTINGS | {"max_iter": 5}


@pytest.fixture(scope="module")
def by_threads(cohort):
    return TASTE(**SETTINGS).fit(cohort)


@pytest.fixture(scope="module")
def short_by_threads(cohort):
    return TASTE(**SHORT).fit(cohort)


class FaultInjector(threading.Thread):
    """The callback of a fit that injects faults at random times, from a thread of its own."""

    def __init__(self, what, rng, times):
        super().__init__(daemon=True)
        self.what, self.rng, self.times = what, rng, times
        self.done = []

    def __call__(self, progress):
        if progress.iteration == 1:  # by now everything is compiled
            self.start()
        if progress.iteration == progress.max_iter - 1:  # on a fast machine the fit waits for its faults
            self.join(60)

    def run(self):
        for _ in range(self.times):
            time.sleep(self.rng.uniform(0.0, 0.3))
            self.done.append(self.what())


def fit_through(what, cohort, cluster, folder, rng, times=2):
    injector = FaultInjector(what, rng, times)
    found = TASTE(**SETTINGS, engine=DaskEngine(cluster, folder), callback=injector).fit(cohort)
    assert len(injector.done) == times
    return found, injector.done


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_workers_killed_at_random_do_not_change_the_result(cohort, by_threads, cluster, tmp_path, seed):
    rng = random.Random(f"{os.environ.get('PYTEST_SEED', 0)} {seed}")
    kill = lambda: kill_a_worker(cluster, rng)  # noqa: E731
    found, killed = fit_through(kill, cohort, cluster, tmp_path / "work", rng)
    assert_same(found, by_threads)
    assert not set(killed) & set(worker_pids(cluster))
    assert not (tmp_path / "work").exists()


def test_a_stopped_worker_does_not_change_the_result(cohort, by_threads, cluster, tmp_path):
    """Stopped for a second in the middle of whatever it is doing, and once kept busy by somebody else's task."""
    from distributed import Client

    rng = random.Random(0)

    def pause():
        pid = rng.choice(worker_pids(cluster))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0)
        os.kill(pid, signal.SIGCONT)

    with Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2)
        busy = client.submit(time.sleep, 3, workers=list(client.scheduler_info()["workers"])[:1], pure=False)
        found, _ = fit_through(pause, cohort, cluster, tmp_path / "work", rng)
        busy.result()
    assert_same(found, by_threads)


def test_tasks_that_lost_too_many_workers_are_resubmitted(cohort, by_threads, tmp_path):
    """Where Dask itself gives a task up after one lost worker, the step is done again."""
    import dask
    import distributed  # noqa: F401 - its settings must be there before one of them is changed

    rng = random.Random(3)
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), local_cluster(2) as cluster:
        kill = lambda: kill_a_worker(cluster, rng)  # noqa: E731
        found, _ = fit_through(kill, cohort, cluster, tmp_path / "work", rng, times=1)
    assert_same(found, by_threads)


def flip(path):
    """One bit of it is another one."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    os.truncate(path, path.stat().st_size - 8)


def remove(path):
    path.unlink()


@pytest.mark.parametrize("damage", [flip, pytest.param(truncate, marks=pytest.mark.slow), remove])
def test_a_damaged_block_is_written_again(cohort, short_by_threads, cluster, tmp_path, damage):
    def hurt(progress):
        if progress.iteration == 3:
            for path in files_under(tmp_path / "work" / "blocks")[1:3]:
                damage(path)

    found = TASTE(**SHORT, engine=DaskEngine(cluster, tmp_path / "work"), callback=hurt).fit(cohort)
    assert_same(found, short_by_threads)


@pytest.mark.parametrize("damage", [flip, pytest.param(truncate, marks=pytest.mark.slow), remove])
def test_damaged_courses_are_refused(cohort, cluster, tmp_path, damage):
    def hurt(progress):
        if progress.iteration == 3:
            for path in files_under(tmp_path / "work" / "courses"):
                damage(path)

    with pytest.raises(InputError, match=r"(does not match its checksum|is missing): check the disk"):
        TASTE(**SHORT, engine=DaskEngine(cluster, tmp_path / "work"), callback=hurt).fit(cohort)


def test_a_cluster_that_loses_all_workers(cohort, tmp_path):
    def dismiss(progress):
        if progress.iteration == 2:
            cluster.scale(0)

    with local_cluster(1) as cluster:
        engine = DaskEngine(cluster, tmp_path / "work", patience=1)
        with pytest.raises(InputError, match="has had no worker for 5 seconds"):
            TASTE(**SETTINGS, engine=engine, callback=dismiss).fit(cohort)
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_tasks_that_kill_every_worker_raise(cohort, tmp_path):
    """As a block does that is too large for the workers' memory."""
    import dask
    import distributed  # noqa: F401 - its settings must be there before one of them is changed

    rng, over = random.Random(0), threading.Event()

    def kill_them_all(progress):
        if progress.iteration == 1:
            threading.Thread(target=keep_killing, daemon=True).start()

    def keep_killing():
        while not over.is_set():
            kill_a_worker(cluster, rng)

    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), local_cluster(1) as cluster:
        engine = DaskEngine(cluster, tmp_path / "work")
        with pytest.raises(InputError, match="kept dying in the same task"):
            TASTE(**SETTINGS, engine=engine, callback=kill_them_all).fit(cohort)
        over.set()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own, of forty megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_raises(cohort, short_by_threads, cluster, small_disk):
    """Seen beforehand where it can be, and otherwise a sentence, and no file left."""
    engine = DaskEngine(cluster, small_disk / "work")
    with pytest.raises(InputError, match=r"has \d+ MB left and the courses need \d+ MB"):
        TASTE(**SHORT | {"rank": 40}, engine=engine).fit(cohort)

    def fill(progress=None):
        if progress is None or progress.iteration == 2:
            with open(small_disk / "filler", "wb") as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(2**16))
                    file.flush()

    with pytest.raises(InputError, match="cannot be used: No space left on device"):
        TASTE(**SHORT, engine=engine, callback=fill).fit(cohort)
    assert [path.name for path in files_under(small_disk)] == ["filler"]
    fill()
    os.truncate(small_disk / "filler", (small_disk / "filler").stat().st_size - 2**20)
    with pytest.raises(InputError, match=r"could not be written to .*: No space left on device"):
        TASTE(**SHORT, engine=engine).fit(cohort)
    assert [path.name for path in files_under(small_disk)] == ["filler"]
    (small_disk / "filler").unlink()
    assert_same(TASTE(**SHORT, engine=engine).fit(cohort), short_by_threads)
