"""A cluster of two machines: two hosts of their own network, as the kernel makes them, and what crosses it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import cohorts
from helpers.clusters import Processes, make_certificates
from helpers.fits import assert_same
from phenotaste import TASTE, InputError
from phenotaste.engines.dask import DaskEngine

HERE, THERE = "10.213.7.1", "10.213.7.2"
OPTIONS = ["--rank", "2", "--max-iter", "4", "--tol", "0", "--n-init", "1", "--include-patients"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    return folder, make_certificates(folder)


@pytest.fixture(scope="module")
def hosts():
    """The words that start a command on each of two hosts, which see each other and nothing else."""
    names = [f"taste{os.getpid()}{letter}" for letter in "ab"]
    ends = [f"t{os.getpid()}{letter}" for letter in "ab"]
    commands = [f"netns add {name}" for name in names]
    commands.append(f"link add {ends[0]} netns {names[0]} type veth peer name {ends[1]} netns {names[1]}")
    for name, end, number in zip(names, ends, (HERE, THERE), strict=True):
        commands += [f"-n {name} addr add {number}/24 dev {end}", f"-n {name} link set {end} up"]
        commands.append(f"-n {name} link set lo up")
    try:
        try:
            for command in commands:
                subprocess.run(["ip", *command.split()], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"hosts of one's own need root and iproute2: {error}")
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            if Path(f"/run/netns/{name}").exists():
                subprocess.run(["ip", "netns", "del", name], check=False)


def fit(host, folder, out, *options):
    command = [
        *host,
        sys.executable,
        "-m",
        "phenotaste.cli",
        "fit",
        "cohort",
        "--out",
        out,
        *OPTIONS,
        *options,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_two_machines_with_certificates(hosts, certificates, tmp_path):
    """The scheduler and a worker on one, another worker and the user on the other."""
    folder, files = certificates
    cohort = cohorts.cohort(5, n_patients=30)
    cohort.save(tmp_path / "cohort")
    with Processes(tmp_path, options=files, host=HERE, scheduler=hosts[0], workers=hosts) as cluster:
        assert cluster.address.startswith(f"tls://{HERE}:")
        engine = ["--engine", cluster.address.replace("tls", "dask")]
        assert fit(hosts[1], tmp_path, "model", *engine, "--tls", str(folder)) == (0, "")
        status, said = fit(hosts[1], tmp_path, "never", *engine)
        assert (status, "no certificates were given" in said) == (1, True)
    expected = TASTE(rank=2, max_iter=4, tol=0, n_init=1, random_state=0).fit(cohort)
    assert_same(TASTE.load(tmp_path / "model"), expected)


def test_two_machines_without_encryption_only_on_request(hosts, tmp_path):
    """Also where the scheduler is on the user's own machine and only a worker is elsewhere."""
    cohort = cohorts.cohort(5, n_patients=30)
    cohort.save(tmp_path / "cohort")
    with Processes(tmp_path, host=HERE, scheduler=hosts[0], workers=hosts[1:]) as cluster:
        engine = ["--engine", cluster.address.replace("tcp", "dask")]
        plain = ["--engine", f"dask://{cluster.address}"]
        for host, who, address in ((hosts[1], "scheduler", plain), (hosts[0], "worker", engine)):
            status, said = fit(host, tmp_path, "never", *address)
            assert status == 1
            assert f"the {who} at tcp://" in said
            assert "unencrypted" in said
        assert fit(hosts[1], tmp_path, "model", *engine, "--insecure")[0] == 0
    expected = TASTE(rank=2, max_iter=4, tol=0, n_init=1, random_state=0).fit(cohort)
    assert_same(TASTE.load(tmp_path / "model"), expected)


def test_certificates_on_one_machine(certificates, tmp_path):
    folder, files = certificates
    cohort = cohorts.cohort(5, n_patients=30)
    options = {"rank": 2, "max_iter": 3, "tol": 0, "n_init": 1, "random_state": 0}
    with Processes(tmp_path, options=files) as cluster:
        assert cluster.address.startswith("tls://127.0.0.1:")
        found = TASTE(**options, engine=DaskEngine(cluster.address, tls=folder)).fit(cohort)
        assert_same(found, TASTE(**options).fit(cohort))
        with pytest.raises(InputError, match="no certificates were given"):
            TASTE(**options, engine=DaskEngine(cluster.address)).fit(cohort)
        with pytest.raises(InputError, match="No Dask scheduler answered"):
            TASTE(**options, engine=DaskEngine(cluster.address.replace("tls", "tcp"))).fit(cohort)
