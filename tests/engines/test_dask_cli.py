"""`phenotaste fit --engine dask://…`: real schedulers and workers, their loss, and encryption."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import distributed
import pytest

import phenotaste
from helpers import cohorts
from helpers.clusters import Processes, files_under, wait_for
from helpers.fits import assert_same
from phenotaste import TASTE, Cohort, InputError, simulate
from phenotaste.engines.checkpoint import Checkpoint
from phenotaste.engines.dask import DaskEngine
from phenotaste.engines.dask.engine import check_encrypted, full_address

COMMAND = [sys.executable, "-m", "phenotaste.cli", "fit", "cohort"]
OPTIONS = {"rank": 3, "tol": 0, "max_iter": 12, "n_init": 2, "random_state": 0}
SETTINGS = ["--rank", "3", "--tol", "0", "--max-iter", "12", "--n-init", "2", "--include-patients"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    simulate.ehr(200, n_features=30, n_static=4, mean_visits=20, rank=3, random_state=1)[0].save(
        folder / "cohort"
    )
    cohort = Cohort.load(folder / "cohort")
    TASTE(**OPTIONS).fit(cohort).save(folder / "plain", include_patients=True)
    return folder


def fit(place, out, *options):
    command = [*COMMAND, "--out", out, *SETTINGS, *options]
    return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def checkpoints(folder):
    """Something that changes with every checkpoint."""
    return {path.stat().st_mtime_ns for path in folder.glob("state-*/manifest.json")}


@pytest.mark.parametrize("victim", ["scheduler", "client"])
def test_a_fit_resumes_after_losing_its_scheduler_or_client(place, call, tmp_path, victim):
    work = place / f"{victim}.work"
    with Processes(tmp_path, n_workers=1) as cluster:
        engine = ("--engine", cluster.address.replace("tcp", "dask"), "--checkpoint-every", "3")
        process = fit(place, victim, *engine)
        seen = set()
        wait_for(lambda: seen.update(checkpoints(work)) or len(seen) >= 5)  # in its second start
        (cluster.scheduler if victim == "scheduler" else process).kill()
        said = process.communicate(timeout=60)[1]
    assert not (place / victim).exists()
    assert files_under(work / "courses")
    if victim == "scheduler":
        assert process.returncode == 1
        assert "Error: The connection to the Dask scheduler was lost" in said
        assert "with --resume" in said
        assert "Traceback" not in said
    with Processes(tmp_path, n_workers=1) as cluster:
        engine = ("--engine", cluster.address.replace("tcp", "dask"))
        resumed = call("fit", "cohort", "--out", victim, *SETTINGS, *engine, "--resume", folder=place)
    assert resumed.returncode == 0, resumed.stderr
    assert "begins anew" not in resumed.stderr
    assert_same(TASTE.load(place / victim), TASTE.load(place / "plain"))
    assert not work.exists()


def test_files_of_a_killed_fit_without_checkpoint_are_removed(place, call, tmp_path):
    work = place / "swept.work"
    with Processes(tmp_path, n_workers=1) as cluster:
        engine = ("--engine", cluster.address.replace("tcp", "dask"))
        process = fit(place, "swept", *engine)
        wait_for(lambda: len(files_under(work / "courses")) >= 8)  # two generations of four blocks
        process.kill()
        process.wait()
        assert files_under(work)
        assert call("fit", "cohort", "--out", "swept", *SETTINGS, *engine, folder=place).returncode == 0
    assert_same(TASTE.load(place / "swept"), TASTE.load(place / "plain"))
    assert not work.exists()


def test_courses_lost_with_the_checkpoint_are_rebuilt(place, tmp_path):
    """One block's courses are torn: that block is projected anew, and the fit ends as low as it would have."""
    expected, cohort = TASTE.load(place / "plain"), Cohort.load(place / "cohort")
    with Processes(tmp_path, n_workers=1) as cluster:

        def engine(resume):
            checkpoint = Checkpoint(tmp_path / "kept", every=1, resume=resume)
            return {"engine": DaskEngine(cluster.address, tmp_path / "work"), "checkpoint": checkpoint}

        def interrupt(progress):
            if progress.start == 1 and progress.iteration == 6:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            TASTE(**OPTIONS, **engine(False), callback=interrupt).fit(cohort)
        lost = sorted(files_under(tmp_path / "work" / "courses"))[0]
        os.truncate(lost, 100)
        with pytest.warns(UserWarning, match="were missing or damaged and are rebuilt"):
            found = TASTE(**OPTIONS, **engine(True)).fit(cohort)
    assert found.n_iter_ == 12
    assert found.loss_curve_[-1] == pytest.approx(expected.loss_curve_[-1], rel=0.02)
    assert not (tmp_path / "work").exists()
    assert not (tmp_path / "kept").exists()


def test_an_interrupted_fit_without_checkpoint_leaves_no_files(tmp_path):
    def interrupt(progress):
        assert files_under(tmp_path / "work")
        raise KeyboardInterrupt

    cohort = cohorts.cohort(1)
    with Processes(tmp_path, n_workers=1) as cluster, pytest.raises(KeyboardInterrupt):
        TASTE(
            rank=2, n_init=1, engine=DaskEngine(cluster.address, tmp_path / "work"), callback=interrupt
        ).fit(cohort)
    assert not (tmp_path / "work").exists()


def test_workers_with_other_code_are_refused(tmp_path):
    """One has a phenotaste with a line more in it, one has none that works."""
    here = Path(phenotaste.__file__).parent
    shutil.copytree(here, tmp_path / "other" / "phenotaste", ignore=shutil.ignore_patterns("__pycache__"))
    with open(tmp_path / "other" / "phenotaste" / "core" / "loop.py", "a") as file:
        file.write("\n# another line\n")
    (tmp_path / "broken" / "phenotaste").mkdir(parents=True)
    (tmp_path / "broken" / "phenotaste" / "__init__.py").write_text("raise ImportError")
    for name, words in (("other", "another version of phenotaste"), ("broken", "cannot run phenotaste")):
        worker = ["env", f"PYTHONPATH={tmp_path / name}"]
        with Processes(tmp_path, workers=[worker]) as cluster, pytest.raises(InputError, match=words):
            TASTE(rank=2, n_init=1, engine=DaskEngine(cluster.address)).fit(cohorts.cohort(1))


def test_invalid_combinations_are_refused_with_a_sentence(place, call, monkeypatch):
    class Impatient(distributed.Client):
        """Ten seconds for a scheduler that is not there are spent on nothing."""

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options | {"timeout": "0.5s"})

    monkeypatch.setattr(distributed, "Client", Impatient)
    for options, status, words in (
        (("--engine", "dask://127.0.0.1:1"), 1, "No Dask scheduler answered at tcp://127.0.0.1:1"),
        (("--engine", "tcp://127.0.0.1:1"), 1, "No Dask scheduler answered at tcp://127.0.0.1:1"),
        (("--engine", "dask://nowhere"), 1, "is not the address of a Dask scheduler"),
        (("--engine", "ray://127.0.0.1:1"), 2, "use dask://HOST:PORT"),
        (("--engine", "dask://127.0.0.1:1", "--memory", "4GB"), 1, "--engine excludes --memory"),
        (("--engine", "dask://127.0.0.1:1", "--tls", "."), 1, "lacks ca.pem, cert.pem, key.pem"),
    ):
        refused = call("fit", "cohort", "--out", "never", *SETTINGS, *options, folder=place)
        assert refused.returncode == status, refused.stderr
        assert words in " ".join(refused.stderr.split())
        assert "Traceback" not in refused.stderr
    assert not (place / "never").exists()
    assert not (place / "never.work").exists()


# --- who may listen ------------------------------------------------------------------------------------------

# Numbers that documentation uses, and nobody has (RFC 5737, 3849): nothing is sent there.
ELSEWHERE = ("198.51.100.1", "[2001:db8::1]")


@pytest.mark.parametrize("host", ELSEWHERE)
def test_unencrypted_connections_to_other_machines_are_refused(host):
    for who in ("scheduler", "worker"):
        with pytest.raises(InputError, match=rf"the {who} at tcp://.*unencrypted.*allow_plain=True"):
            check_encrypted(f"tcp://{host}:8786", False, who)
        check_encrypted(f"tcp://{host}:8786", True, who)
        check_encrypted(f"tls://{host}:8786", False, who)
    with pytest.raises(InputError, match="unencrypted"):
        TASTE(rank=2, engine=DaskEngine(f"tcp://{host}:8786")).fit(cohorts.cohort(1))
    with pytest.raises(InputError, match="no certificates were given"):
        TASTE(rank=2, engine=DaskEngine(f"dask://{host}:8786")).fit(cohorts.cohort(1))


@pytest.mark.parametrize(
    ("address", "allow_plain", "encrypted", "expected"),
    [
        ("dask://198.51.100.1:8786", False, False, "tls://198.51.100.1:8786"),
        ("198.51.100.1:8786", False, False, "tls://198.51.100.1:8786"),
        ("dask://198.51.100.1:8786", True, False, "tcp://198.51.100.1:8786"),
        ("dask://198.51.100.1:8786", True, True, "tls://198.51.100.1:8786"),
        ("dask://localhost:8786", False, False, "tcp://localhost:8786"),
        ("dask://127.0.0.1:8786", False, True, "tls://127.0.0.1:8786"),
        ("dask://[::1]:8786", False, False, "tcp://[::1]:8786"),
        ("dask://tls://198.51.100.1:8786", False, False, "tls://198.51.100.1:8786"),
        ("tcp://198.51.100.1:8786", False, False, "tcp://198.51.100.1:8786"),
        ("inproc://x", False, False, "inproc://x"),
    ],
)
def test_addresses(address, allow_plain, encrypted, expected):
    assert full_address(address, allow_plain, encrypted) == expected


@pytest.mark.parametrize(
    "address", ["dask://", "dask://host", "host", "dask://host:port", "dask://host:99999999"]
)
def test_invalid_addresses_are_refused(address):
    with pytest.raises(InputError, match="is not the address of a Dask scheduler"):
        full_address(address, False, False)
