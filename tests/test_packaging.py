"""What is published: wheel and sdist hold what they must, install into an empty environment, and work there."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import phenotaste

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "phenotaste"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

USER = """
import numpy as np
import scipy.sparse as sp

from phenotaste import TASTE, Cohort, InputError

cohort = Cohort(sp.csr_array(np.eye(3)), np.array([0, 2, 3]))
model = TASTE(rank=1, random_state=0).fit(cohort)
first: Cohort = cohort[:1]
reveal_type(model)
reveal_type(len(cohort))
try:
    Cohort.load("nowhere")
except InputError:
    pass
"""


def run(*command, folder, **changes):
    """A command that must succeed, with nothing of the checkout in its surroundings."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=outside | changes,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist of this checkout, and the wheel built from that; with the tools that are installed here."""
    pytest.importorskip("build", reason="needs the tools that build the package: pip install -e '.[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def place(wheel, tmp_path_factory):
    """An environment of its own with the wheel in it; what the package needs is lent from this one, to save minutes."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    install = ["install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel]
    run(sys.executable, "-m", "pip", "--python", python, *install, folder=folder)
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = Path(run(python, "-c", code, folder=folder).strip())
    (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    lend_kernels(packages / "phenotaste")
    return folder


def lend_kernels(package):
    """What numba compiled from these very files: it looks at what a file holds, and older versions at its time."""
    for kept in SOURCE.rglob("*.nb[ic]"):
        there = package / kept.relative_to(SOURCE)
        there.parent.mkdir(exist_ok=True)
        shutil.copy2(kept, there)
    for file in package.rglob("*.py"):
        shutil.copystat(SOURCE / file.relative_to(package), file)


def files_of_the_package():
    every = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {f"phenotaste/{path.relative_to(SOURCE).as_posix()}" for path in every}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == files_of_the_package()
    assert {
        "phenotaste/py.typed",
        "phenotaste/core/cuda/patient_step.cu",
        "phenotaste/report/web/page.html",
    } <= names


def test_the_sdist_holds_what_make_test_needs(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tracked = set(listed.stdout.split()) or {"Makefile", "constraints.txt", "tests/conftest.py", ".ci/run"}
    assert {name for name in tracked if (ROOT / name).exists()} <= inside


def test_the_sdist_holds_no_untracked_files(tmp_path):
    """A cohort left in the folder must not be published."""
    pytest.importorskip("hatchling")
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    (copy / "cohort").mkdir()
    (copy / "cohort" / "patients.csv").write_text("id\n1\n")
    (copy / "scores.parquet").write_bytes(b"")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path / "out", folder=copy)
    with tarfile.open(next((tmp_path / "out").glob("*.tar.gz"))) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames()}
    assert not {"cohort/patients.csv", "scores.parquet"} & inside
    assert "src/phenotaste/taste.py" in inside


def test_the_demo_runs_from_the_installed_wheel(place):
    code = "import phenotaste; print(phenotaste.__file__)"
    assert place in Path(run(place / "env/bin/python", "-c", code, folder=place).strip()).parents
    command = [place / "env/bin/phenotaste", "demo", "--patients", "60", "--out", "demo", "--json"]
    record = json.loads(run(*command, folder=place))
    assert record["converged"] is True
    page = (place / "demo" / "report.html").read_text()
    assert "<script" in page
    assert "</html>" in page
    assert list((place / "demo" / "figures").iterdir())


def test_doctor_passes_on_the_installed_wheel(place):
    record = json.loads(run(place / "env/bin/phenotaste", "doctor", "--quick", "--json", folder=place))
    assert record["works"] is True
    assert {need["name"] for need in record["requirements"]} >= {"numpy", "numba"}
    assert set(record["extras"]) == set(PROJECT["optional-dependencies"]) - {"dev", "docs", "bench"}


def test_a_users_script_is_checked_against_the_types_of_the_wheel(place):
    script = place / "user.py"
    script.write_text(USER)
    # As where the extras are not installed: reading torch takes four times as long as all the rest.
    extras = "torch.*,distributed.*,dask.*,anndata.*,ehrdata.*,matplotlib.*"
    (place / "mypy.ini").write_text(f"[mypy]\n[mypy-{extras}]\nfollow_imports = skip\n")
    options = ["--strict", "--python-executable", place / "env/bin/python", "--cache-dir", place / "types"]
    text = run(sys.executable, "-m", "mypy", *options, "--config-file", "mypy.ini", script, folder=place)
    assert 'Revealed type is "phenotaste.taste.TASTE"' in text
    assert 'Revealed type is "int"' in text.replace("builtins.", "")


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert PROJECT["version"] == phenotaste.__version__ == citation["version"] == newest.split()[1]


def test_the_citation_names_the_program_and_the_paper():
    """That the file is valid is checked with cffconvert before a release; this is what must not get lost."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version"} <= set(citation)
    assert citation["license"] == PROJECT["license"]
    paper = citation["references"][0]
    assert paper["doi"] == "10.1145/3368555.3384464"
    assert paper["doi"] in (ROOT / "README.md").read_text()
    assert paper["title"].startswith("TASTE: ")
    assert [author["family-names"] for author in paper["authors"]][0::7] == ["Afshar", "Sun"]
    assert paper["year"] == 2020


def install(*arguments, folder, **changes):
    return run(sys.executable, ROOT / "scripts" / "install.py", *arguments, folder=folder, **changes)


def test_the_makefile_installs_with_uv_from_the_index_of_pip(wheel, tmp_path):
    """It may be a hospital's own. Here it is no address, which uv refuses, and pip does not need for a file."""
    pytest.importorskip("uv", reason="make installs uv")
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://global.invalid\n[install]\nindex-url = http://index:port\n"
    )
    assert not install("--dry-run", "--no-deps", wheel, folder=tmp_path)
    assert "pip does" in install(
        "--dry-run", "--no-deps", wheel, folder=tmp_path, PIP_CONFIG_FILE=str(settings)
    )


def test_pip_installs_where_uv_cannot(wheel, tmp_path):
    pytest.importorskip("uv", reason="make installs uv")
    text = install("--dry-run", "--no-deps", wheel, folder=tmp_path, UV_DEFAULT_INDEX="http://index:port")
    assert "pip does" in text


def test_lowest_versions_are_those_declared(tmp_path):
    text = run(sys.executable, ROOT / "scripts" / "lowest.py", folder=tmp_path)
    pins = dict(line.split("==") for line in text.splitlines())
    assert pins["numpy"] == next(need for need in PROJECT["dependencies"] if need.startswith("numpy"))[7:]
    assert {"ibis-framework", "psycopg", "torch", "distributed"} <= set(pins)
    assert "pytest" not in pins  # for developers only
    assert len(pins) >= len(PROJECT["dependencies"])


@pytest.mark.slow
def test_the_wheel_and_all_it_needs_install_into_an_empty_environment(wheel, tmp_path):
    """As `pip install phenotaste` does it on a machine that has nothing; from the package index pip is set up for."""
    venv.create(tmp_path / "env", with_pip=True, symlinks=True)
    constraints = ROOT / "constraints.txt"
    run(tmp_path / "env/bin/pip", "install", "-q", "-c", constraints, wheel, folder=tmp_path)
    run(tmp_path / "env/bin/pip", "check", folder=tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    phenotaste_command = tmp_path / "env/bin/phenotaste"
    run(phenotaste_command, "demo", "--patients", "60", "--out", "demo", folder=tmp_path, HOME=str(home))
    assert (tmp_path / "demo" / "report.html").exists()
    record = json.loads(run(phenotaste_command, "doctor", "--json", folder=tmp_path, HOME=str(home)))
    assert record["works"] is True
    assert record["gpu"]["state"] == "no torch"
    assert record["core"]["kernels"]["compiled"] == 0  # the demo's were kept
