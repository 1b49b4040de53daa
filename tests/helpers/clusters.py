"""Real Dask clusters for tests, with worker processes on this machine."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time


@contextlib.contextmanager
def local_cluster(n_workers, processes=True, **options):
    import dask
    from distributed import LocalCluster

    # LocalCluster checks a lost worker once, after this timeout, and removes it if it has not restarted. On a busy
    # machine a restart takes longer than the default, and the check may come just after another worker was killed.
    timeout = dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"})
    with (
        timeout,
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            processes=processes,
            dashboard_address=":0",
            worker_dashboard_address=":0",
            silence_logs=50,
            **options,
        ) as cluster,
    ):
        yield cluster


def worker_pids(cluster):
    """The worker processes that are connected: neither their nannies nor those still starting."""
    known = list(cluster.scheduler.workers)
    pids = [nanny.pid for nanny in cluster.workers.values() if nanny.worker_address in known]
    return [pid for pid in pids if pid]  # a nanny without a process has no pid


def kill_a_worker(cluster, rng, seconds=60):
    """SIGKILL one of the worker processes, as soon as there is one."""
    seen = []  # the list that was not empty: a second call might return an empty one
    wait_for(lambda: seen.extend(worker_pids(cluster)) or seen, seconds)
    pid = rng.choice(seen)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return pid


def files_under(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Processes:
    """A cluster started from the command line with `dask scheduler` and `dask worker`.

    `workers` has a prefix for the command of each worker, such as one that starts it on another machine.
    """

    def __init__(self, folder, n_workers=2, options=(), host="127.0.0.1", scheduler=(), workers=None):
        self.folder, self.started = folder, []
        file = folder / f"scheduler-{time.monotonic_ns()}.json"
        where = ["--scheduler-file", str(file), "--no-dashboard", *options]
        self.scheduler = self._start(scheduler, "scheduler", "--host", host, "--port", "0", *where)
        wait_for(lambda: file.exists() and "address" in file.read_text())
        self.address = json.loads(file.read_text())["address"]
        for prefix in [()] * n_workers if workers is None else workers:
            options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(folder))
            self._start(prefix, "worker", *options, *where)

    def _start(self, prefix, kind, *options):
        command = [*prefix, sys.executable, "-m", f"distributed.cli.dask_{kind}", *options]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder
        )
        self.started.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in reversed(self.started):  # without a farewell, which takes seconds
            process.kill()
            process.wait()


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def make_certificates(folder):
    """As docs/cluster.md says; returns the options that name them to `dask scheduler` and `dask worker`."""
    for command in (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=authority -keyout ca-key.pem -out ca.pem",
        "openssl req -newkey rsa:2048 -nodes -subj /CN=cluster -keyout key.pem -out request.pem",
        "openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 30 -out cert.pem",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    files = {"ca-file": "ca.pem", "cert": "cert.pem", "key": "key.pem"}
    return [f"--tls-{what}={folder / name}" for what, name in files.items()]
