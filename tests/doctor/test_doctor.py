"""`phenotaste doctor`, `--version` and shell completion: correct, fast, and without data that identify the machine."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phenotaste.cli.doctor import core_lines, gpu_line, machine_lines, print_report
from phenotaste.core.kernels import kernel_cache
from phenotaste.doctor import bug_report, packages, probes
from phenotaste.doctor.packages import Extra, Requirement
from phenotaste.doctor.report import DoctorReport
from phenotaste.runs import resources
from phenotaste.runs.resources import Machine

HEAVY = {"numpy", "numba", "scipy", "pandas", "pyarrow", "matplotlib", "sklearn", "torch", "dask", "duckdb"}
AMPLE = Machine(4, 4, None, 2**36, 2**35, 2**36)
SATISFIED = Requirement("numpy", "numpy>=2.0", "2.4.6", satisfied=True)


def run(*arguments, path=None, **environment):
    """Run the command in a process; the folders in `path` come first on its module path."""
    changes = {name: str(value) for name, value in environment.items()}
    folders = [*map(str, path or []), *filter(None, [os.environ.get("PYTHONPATH")])]
    changes |= {"PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run(
        [sys.executable, "-m", "phenotaste.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | changes,
    )


def report(**changes):
    """A report without problems, except for the changes."""
    kernels = {"location": "package", "cached": True, "loaded": 7, "compiled": 0}
    parts = {
        "versions": [("phenotaste", "0")],
        "machine": AMPLE,
        "requirements": [SATISFIED],
        "core": {"state": "works", "kernels": kernels, "seconds": 0.1},
        "gpu": {"state": "cpu torch", "driver": False},
        "extras": [],
    }
    return DoctorReport(**parts | changes)


@pytest.fixture(scope="module")
def record():
    done = run("doctor", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_report_of_a_trial_fit(record):
    assert record["works"] is True
    assert record["core"]["state"] == "works"
    assert record["core"]["kernels"]["loaded"] + record["core"]["kernels"]["compiled"] > 0
    assert record["machine"]["cores"] == resources.available_cores()
    assert record["machine"]["memory"] > record["machine"]["memory_free"] > 0
    assert record["machine"]["disk_free"] > 0
    assert {need["name"] for need in record["requirements"]} >= {"numpy", "numba", "duckdb", "psycopg-binary"}
    assert record["versions"]["numpy"] == __import__("numpy").__version__


def test_the_output_identifies_neither_machine_nor_users_nor_folders(tmp_path):
    """The output goes into bug reports."""
    home = tmp_path / "private home"
    home.mkdir()
    settings = {"HOME": home, "TMPDIR": home, "NUMBA_CACHE_DIR": home / "kernels", "USER": "somebody"}
    texts = []
    for arguments in (("doctor", "--quick"), ("doctor", "--quick", "--json"), ("--version",)):
        done = run(*arguments, **settings)
        assert done.returncode == 0, done.stderr
        texts.append(text := done.stdout + done.stderr)
        names = {socket.gethostname(), str(home), "somebody", str(Path.home()), str(Path.cwd()), sys.prefix}
        assert not [name for name in names - {"", "/"} if name in text]
        assert not re.search(r"(^|[\s\"'])(/|[A-Z]:\\)\w", text), text  # no absolute path at all
    assert "in NUMBA_CACHE_DIR" in texts[0]


@given(
    st.text(max_size=60), st.sampled_from(["/home/ann", "C:\\Users\\ann", "ann@host"]), st.text(max_size=60)
)
def test_error_messages_with_paths_are_not_reported(before, path, after):
    text = probes.describe_error(OSError(f"{before}{path}{after}"))
    assert "/home" not in text
    assert "\\" not in text
    assert "@" not in text
    assert text.startswith("OSError")


def test_the_first_sentence_of_other_messages_is_reported():
    error = RuntimeError("Found no NVIDIA driver on your system. Please check …\nsecond line")
    assert probes.describe_error(error) == "RuntimeError: Found no NVIDIA driver on your system"
    assert probes.describe_error(OSError()) == "OSError"


@pytest.mark.parametrize(
    ("torch", "state", "sentence"),
    [
        (
            "raise OSError('/home/ann/lib/libcudart.so: no such file')",
            "broken torch",
            "cannot be imported (OSError)",
        ),
        ("import os; os.kill(os.getpid(), 11)", "crashes", "crashes (killed by signal 11)"),
        ("class version: cuda = None", "cpu torch", "built for the CPU only"),
        (
            "class version: cuda = '13.0'\nclass cuda:\n    is_available = lambda: False\n"
            "    def init(): raise RuntimeError('The NVIDIA driver on your system is too old. Update it')",
            "no gpu",
            "The NVIDIA driver on your system is too old",
        ),
    ],
)
def test_a_torch_that_does_not_work(tmp_path, monkeypatch, torch, state, sentence):
    """A module of that name precedes the real one on the path, since tests run without CUDA."""
    (tmp_path / "torch.py").write_text(torch)
    monkeypatch.syspath_prepend(tmp_path)
    result = probes.run_probe("gpu")
    assert result["state"] == state
    assert sentence in gpu_line(result)
    assert "ann" not in json.dumps(result)
    assert report(gpu=result).works  # the core does not need torch


def test_without_torch_the_advice_is_to_install_it():
    needs = [Requirement("torch", "torch>=2.11", None, satisfied=False)]
    advice = dict(report(extras=[Extra("gpu", "fits on a GPU", needs)]).advice)
    assert advice == {"extra gpu": 'pip install "torch>=2.11" for fits on a GPU'}
    code = "import sys; sys.path[:] = [p for p in sys.path if not 'site-packages' in p];"
    code += "from phenotaste.doctor import probes; print(probes.probe_gpu()['state'])"
    source = os.environ | {"PYTHONPATH": str(Path(packages.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=source)
    assert done.stdout == "no torch\n", done.stderr
    assert "torch is not installed" in gpu_line({"state": "no torch", "driver": False})


def test_a_core_that_cannot_be_imported_is_one_line_and_status_1(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.3 or less')")
    done = run("doctor", path=[tmp_path])
    assert done.returncode == 1
    assert done.stdout.startswith("phenotaste does not work here.")
    assert "ImportError: Numba needs NumPy 2.3 or less" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_missing_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "numba.py").write_text("import nothing_like_this")
    monkeypatch.syspath_prepend(tmp_path)
    result = probes.run_probe("import")
    assert result == {"state": "missing", "error": "the module nothing_like_this is missing"}
    assert not report(core=result).works


@pytest.mark.parametrize(("folder", "location"), [("a", "temporary"), (None, "memory")])
def test_no_writable_folder_for_kernels(folder, location, monkeypatch):
    monkeypatch.setattr(kernel_cache, "CACHE", folder is not None)
    folders = {f"/tmp/{kernel_cache.FOLDER}-7/{folder}"} if folder else set()
    found = probes.cache_location(folders)
    assert found == location
    kernels = {"location": found, "cached": False, "loaded": 0, "compiled": 3}
    result = report(core={"state": "works", "kernels": kernels, "seconds": 1.0})
    assert result.works
    assert ("kernels" in dict(result.advice)) == (location == "memory")
    assert dict(core_lines(result.core))["Kernels"].startswith("compiled just now, cached ")


def test_a_failing_trial_fit_is_reported(monkeypatch):
    from phenotaste import TASTE

    fit = TASTE.fit

    def rising(self, cohort):
        fit(self, cohort).loss_curve_ = [1.0, 2.0, 3.0, 4.0, 5.0]
        return self

    monkeypatch.setattr(TASTE, "fit", rising)
    assert probes.trial_fit("cpu") == {"state": "wrong", "error": "the objective does not decrease"}
    monkeypatch.setattr(TASTE, "fit", lambda self, cohort: 1 / 0)
    assert probes.trial_fit("cpu")["state"] == "broken"
    assert not report(core=probes.trial_fit("cpu")).works


def test_a_probe_that_hangs_is_stopped(monkeypatch):
    monkeypatch.setattr(probes, "SCRIPT", "import time; time.sleep(60)")
    assert probes.run_probe("core", timeout=0.5)["state"] == "hangs"
    monkeypatch.setattr(probes, "SCRIPT", "print('no record')")
    assert probes.run_probe("core")["state"] == "crashes"


def test_each_problem_has_one_line_of_advice():
    missing = Requirement("scipy", "scipy>=1.13", None, satisfied=False)
    old = Requirement("pyarrow", "pyarrow>=17", "16.0", satisfied=False)
    assert report().works
    assert report().advice == []
    assert report(requirements=[SATISFIED, missing, old]).advice == [
        ("installation", 'pip install "scipy>=1.13" "pyarrow>=17"')
    ]
    assert not report(requirements=[missing]).works
    assert report(requirements=[old]).works  # an old version is not an error where the fit works
    assert report(requirements=None).advice[0][0] == "installation"
    assert report(core={"state": "broken", "error": "x"}).advice[0][0] == "core"
    quota = report(machine=AMPLE._replace(cpu_quota=1.5)).advice
    assert quota == [("cores", "use --threads 1: the container allows no more CPU time")]
    assert "--plan" in dict(report(machine=AMPLE._replace(memory_free=2**30)).advice)["memory"]
    assert "TMPDIR" in dict(report(machine=AMPLE._replace(disk_free=None)).advice)["disk"]
    for state in ("cpu torch", "no gpu", "broken torch", "broken", "hangs", "wrong"):
        gpu = {"state": state, "driver": True, "error": "x"}
        assert len(report(gpu=gpu).advice) == 1, state
    assert report(gpu={"state": "no gpu", "driver": False, "error": "x"}).advice == []
    works = {"state": "works", "name": "H200", "memory": 2**37, "memory_free": 2**36, "driver": True}
    assert report(gpu=works).advice == []
    assert gpu_line(works) == "H200, 64.0 GiB of 128.0 GiB free; a small fit works"


def test_the_printed_report(capsys):
    missing = Requirement("torch", "torch>=2.11", None, satisfied=False)
    old = Requirement("pyarrow", "pyarrow>=17", "16.0", satisfied=False)
    print_report(
        report(
            requirements=[SATISFIED, old],
            extras=[Extra("gpu", "fits", [missing]), Extra("dask", "", [SATISFIED])],
        )
    )
    text = capsys.readouterr().out
    assert "phenotaste works here." in text
    assert "pyarrow 16.0, pyarrow>=17 is required" in text
    assert "gpu             not ready: torch is missing" in text
    assert "dask            ready: numpy 2.4.6" in text
    assert 'extra gpu       pip install "torch>=2.11" for fits' in text
    assert machine_lines(AMPLE._replace(cores=2, cpu_quota=0.5))[0] == (
        "Cores",
        "2 of 4, limited to the CPU time of 0.5 cores",
    )
    kernels = {"location": "user", "cached": False, "loaded": 0, "compiled": 3}
    assert "none compiled yet" in core_lines({"state": "works", "kernels": kernels})[0][1]
    assert "just now" in core_lines({"state": "works", "kernels": kernels, "seconds": 1.0})[0][1]


def test_extras_are_those_of_the_metadata_and_have_a_purpose():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    users = set(project["optional-dependencies"]) - set(packages.DEVELOPER_EXTRAS)
    assert users == set(packages.PURPOSES)
    gpu = next(extra for extra in packages.extras() if extra.name == "gpu")
    assert [need.specifier for need in gpu.requirements] == ["torch>=2.11"]
    assert not {need.name for need in gpu.requirements} & {
        need.name for need in packages.core_requirements() or []
    }


def test_requirements_are_compared_with_installed_versions(tmp_path, monkeypatch):
    """Metadata of simulated packages, as an installer writes them."""
    for name, version, lines in (
        (
            "simulated",
            "1.0",
            ["old>=2", "new>=1,<3", "gone>=1; extra == 'more'", "never; python_version < '3'"],
        ),
        ("old", "1.9", []),
        ("new", "2.0rc1", []),
        ("with-inner", "1.0", ["simulated[more]"]),
    ):
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        needs = "".join(f"Requires-Dist: {line}\n" for line in lines)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    monkeypatch.syspath_prepend(tmp_path)
    fits = {need.name: (need.version, need.satisfied) for need in packages.requirements_of("simulated", "")}
    assert fits == {"old": ("1.9", False), "new": ("2.0rc1", True)}
    assert packages.requirements_of("simulated", "more") == [
        Requirement("gone", "gone>=1", None, satisfied=False)
    ]
    assert {need.name for need in packages.requirements_of("with-inner", "")} == {"simulated", "gone"}


def test_memory_and_cpu_limits_of_a_container(tmp_path, monkeypatch):
    """Simulated files of Linux: the smallest limit among the ancestors applies."""
    inner = tmp_path / "system.slice" / "job"
    inner.mkdir(parents=True)
    (tmp_path / "own").write_text("1:name=systemd:/x\n0::/system.slice/job\n")
    (tmp_path / "meminfo").write_text("MemTotal:  8388608 kB\nMemAvailable: 4194304 kB\n")
    for name, path in (("CGROUP", ""), ("OWN_CGROUP", "own"), ("MEMINFO", "meminfo")):
        monkeypatch.setattr(resources, name, tmp_path / path)
    assert resources.machine()[2:5] == (None, 2**33, 2**32)
    (inner / "memory.max").write_text("max\n")
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "memory.max").write_text(f"{2**30}\n")
    (inner.parent / "memory.current").write_text(f"{2**29}\n")
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(f"{2**31}\n")
    (tmp_path / "cpu.max").write_text("200000 100000\n")
    assert resources.machine()[2:5] == (1.5, 2**30, 2**29)
    monkeypatch.setattr(resources, "MEMINFO", tmp_path / "missing")
    monkeypatch.setattr(resources, "OWN_CGROUP", tmp_path / "missing")
    assert resources.machine().memory  # of sysconf
    assert resources.cpu_quota() is None


@pytest.mark.parametrize("threads", ["", "1", "0", "many", "4096"])
def test_cores_are_those_a_fit_would_use(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert resources.machine().cores == resources.available_cores()


def test_running_from_source_without_being_installed(monkeypatch):
    monkeypatch.setattr(packages, "installed_version", lambda name: None)
    assert packages.extras() == []
    assert packages.core_requirements() == [Requirement("packaging", "packaging", None, satisfied=False)]
    monkeypatch.setattr(packages, "installed_version", lambda name: "1" if name == "packaging" else None)
    assert packages.core_requirements() is None
    assert dict(bug_report())["numpy"] == "not installed"


def test_version_prints_what_a_bug_report_needs_and_imports_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "phenotaste.cli", "--version"],
        capture_output=True,
        text=True,
    )
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(lines)[:3] == ["phenotaste", "Python", "System"]
    assert {"numpy", "scipy", "numba", "scikit-learn", "torch", "dask"} <= set(lines)
    assert lines["Python"] == sys.version.split()[0]
    assert lines["numba"] == __import__("numba").__version__
    assert not HEAVY & imported(done.stderr)


def imported(listing):
    """The modules in the output of `-X importtime`."""
    return {line.split("|")[-1].strip() for line in listing.splitlines() if line.startswith("import time:")}


def test_completion_in_a_shell(tmp_path):
    """Run bash with the completion script, and read the completions it offers."""
    script = (
        "phenotaste() { '" + sys.executable + '\' -m phenotaste.cli "$@"; }; export -f phenotaste;'
        'eval "$(phenotaste --show-completion; true)";'
        "complete -p phenotaste > /dev/null || exit 9;"
        "COMP_WORDS=($WORDS); COMP_CWORD=$((${#COMP_WORDS[@]} - 1));"
        "_phenotaste_completion phenotaste; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    # Bash calls the command by name to complete words.
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "phenotaste").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m phenotaste.cli "$@"\n')
    (folder / "phenotaste").chmod(0o755)
    for words, expected in (("phenotaste doc", "doctor"), ("phenotaste fit --ra", "--rank")):
        environment = os.environ | {"WORDS": words, "PATH": f"{folder}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment)
        assert done.stdout.split() == [expected], done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_imports_nothing_heavy(shell):
    settings = {
        "_PHENOTASTE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "phenotaste fit --objective ",
        "COMP_CWORD": "3",
        "_TYPER_COMPLETE_ARGS": "phenotaste fit --objective ",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "phenotaste.cli"],
        capture_output=True,
        text=True,
        env=os.environ | settings,
    )
    assert {"relative", "paper"} <= set(re.findall(r"\w+", done.stdout)), done.stderr[-500:]
    assert not HEAVY & imported(done.stderr)


def test_completion_is_installed_for_the_shell_in_use(tmp_path):
    script = f"'{sys.executable}' -m phenotaste.cli --install-completion; true"
    settings = os.environ | {"HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=settings)
    assert "bash completion installed" in done.stdout, done.stderr
    assert "phenotaste" in (tmp_path / ".bashrc").read_text()
    assert "_PHENOTASTE_COMPLETE" in next(tmp_path.glob(".bash_completions/phenotaste.sh")).read_text()
