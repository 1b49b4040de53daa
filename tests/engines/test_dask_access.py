"""Who can connect to the local clusters of docs/cluster.md: nobody, or nobody without a certificate."""

import socket
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

pytest.importorskip("distributed")

import dask
from distributed import Client, LocalCluster, Security

from helpers.clusters import make_certificates
from phenotaste import TASTE, simulate
from phenotaste.engines import DaskEngine

LISTENING = "0A"  # the state of a socket in /proc/net/tcp


def listening_ports():
    """The TCP ports on which this process listens."""
    own = {
        link.readlink().name
        for link in Path("/proc/self/fd").iterdir()
        if link.is_symlink() and "socket:" in str(link.readlink())
    }
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {
        int(row[1].rpartition(":")[2], 16)
        for row in rows
        if row[3] == LISTENING and f"socket:[{row[9]}]" in own
    }


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="ports are read from Linux's /proc")
def test_nobody_connects_to_the_cluster_inside_one_process():
    with socket.socket() as control:
        control.bind(("127.0.0.1", 0))
        control.listen()
        assert control.getsockname()[1] in listening_ports()
    before = listening_ports()
    cohort, _ = simulate.recovery(n_patients=20)
    no_pages = {"distributed.scheduler.http.routes": [], "distributed.worker.http.routes": []}
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with dask.config.set(no_pages), LocalCluster(**options) as cluster:
        assert cluster.scheduler_address.startswith("inproc://")
        TASTE(rank=2, max_iter=2, n_init=1, engine=DaskEngine(cluster)).fit(cohort)
        ports = listening_ports() - before
        assert ports  # Dask's HTTP servers, without a page
        for port in ports:
            for page in (
                "",
                "info/main/workers.html",
                "json/counts.json",
                "metrics",
                "health",
                "statics/css/base.css",
            ):
                with pytest.raises(HTTPError, match="404"):
                    urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10)


def test_nobody_connects_to_the_local_cluster_without_its_certificate(tmp_path):
    for name in ("certs", "others"):
        (tmp_path / name).mkdir()
        make_certificates(tmp_path / name)

    def security(name):
        files = {
            f"tls_{role}_{part}": str(tmp_path / name / f"{part}.pem")
            for role in ("client", "scheduler", "worker")
            for part in ("cert", "key")
        }
        return Security(tls_ca_file=str(tmp_path / name / "ca.pem"), require_encryption=True, **files)

    with LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, security=security("certs"), silence_logs=50
    ) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://127.0.0.1:")
        (worker,) = cluster.scheduler_info["workers"]
        assert worker.startswith("tls://127.0.0.1:")
        for at, certificates in (
            (address.replace("tls", "tcp"), None),
            (worker.replace("tls", "tcp"), None),
            (address, security("others")),
        ):
            with pytest.raises((OSError, TimeoutError)):
                Client(at, security=certificates, timeout=2)
        with Client(address, security=security("certs"), timeout=20) as client:
            assert client.submit(sum, [1, 2]).result() == 3
