"""The installed command in a separate process: files, exit statuses, JSON, errors, interruption."""

import contextlib
import inspect
import json
import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from helpers.cli import COMMAND, refused, run
from phenotaste import TASTE, Cohort, simulate
from phenotaste.cli import fit as fit_command
from phenotaste.cli import options
from phenotaste.cli.app import app

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A folder with a cohort whose names are hostile to HTML and terminals, and a model fitted by the command."""
    folder = tmp_path_factory.mktemp("cli")
    simulated, _ = simulate.heart_failure(120, random_state=1)
    names = [HOSTILE, "[bold]\x1b[2Jname", *simulated.feature_names[2:]]
    ids = [f"patient-{k:04d}" for k in range(len(simulated))]
    cohort = Cohort(
        simulated.visits,
        simulated.offsets,
        simulated.static,
        patient_ids=ids,
        visit_times=simulated.visit_times,
        feature_names=names,
        static_names=simulated.static_names,
    )
    cohort.save(folder / "cohort")
    one = ("--n-init", 1, "--threads", 1)
    done = run("fit", "cohort", "--rank", 3, "--out", "model", *one, folder=folder)
    assert done.returncode == 0, done.stderr
    (folder / "fit.txt").write_text(done.stdout)
    return folder


def test_help_is_quick_to_load_and_shows_an_example(call):
    loaded = "import sys, phenotaste.cli; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    ).stdout
    assert not {"numpy", "numba", "pandas", "pyarrow", "matplotlib", "sklearn"} & set(modules.split())
    for command in ("demo", "fit", "score", "report"):
        text = call(command, "--help", folder=".").stdout
        assert "Example:" in text
        assert f"phenotaste {command} " in text
        assert "--json" in text
    assert call("--version", folder=".").stdout.startswith("phenotaste 0.")
    assert not app.pretty_exceptions_enable  # they print local variables, which may hold patient data


def test_options_are_the_estimators():
    """The command repeats the values and defaults of the estimator; both must agree."""
    kinds = {"objective": "Objective", "init": "Init", "dtype": "Dtype", "device": "Device"}
    for name, kind in kinds.items():
        assert tuple(getattr(options, f"{kind}Choice")) == TASTE._choices[name]
    estimator = inspect.signature(TASTE).parameters
    for name, option in inspect.signature(fit_command.fit).parameters.items():
        if name in estimator:
            assert option.default == estimator[name].default, name


def test_fit_saves_a_model_and_prints_a_summary(workdir):
    text = (workdir / "fit.txt").read_text()
    for label in (
        "Patients         120",
        "Visits",
        "Short histories",
        "Empty histories",
        "RMSE",
        "CPI",
        "Outcome",
    ):
        assert label in text
    cohort = Cohort.load(workdir / "cohort")
    model, expected = TASTE.load(workdir / "model"), TASTE(3, n_init=1, random_state=0).fit(cohort)
    np.testing.assert_array_equal(model.V_, expected.V_)
    assert not (workdir / "model" / "patients.safetensors").exists()


def test_fit_json_is_one_object_and_nothing_else(call, workdir):
    short = ("--n-init", 1, "--max-iter", 3, "--mu", 0)
    done = call("fit", "cohort", "--rank", 2, "--out", "m-json", *short, "--json", folder=workdir)
    assert done.stderr.startswith("Note: mu=0 drops the uniqueness term")
    assert done.stderr.count("\n") == 1
    record = json.loads(done.stdout)
    assert record["patients"] == 120
    assert record["outcome"] == "max_iter"
    assert record["converged"] is False
    assert "raise max_iter" in record["advice"]
    assert record["iterations"] == 3
    assert record["seconds"] > 0
    assert record["objective"] == pytest.approx(TASTE.load(workdir / "m-json").loss_curve_[-1])


def test_plan_prints_an_estimate_and_writes_nothing(call, workdir):
    before = sorted(workdir.iterdir())
    done = call("fit", "cohort", "--rank", "2", "--plan", "--json", folder=workdir)
    expected = json.loads(done.stdout)
    assert expected["memory"] > 0
    assert expected["max_seconds"] == pytest.approx(
        4 * 200 * expected["seconds_per_iteration"]
    )  # four starts
    assert sorted(workdir.iterdir()) == before
    assert "GiB" in call("fit", "cohort", "--plan", folder=workdir).stdout


def test_fit_includes_patients_and_overwrites_only_on_request(call, workdir):
    arguments = ("fit", "cohort", "--rank", 2, "--n-init", 1, "--max-iter", 2, "--out", "m-twice")
    first = call(*arguments, folder=workdir)
    assert "max iter. The objective was still decreasing" in " ".join(first.stdout.split())
    refused(call(*arguments, folder=workdir), "m-twice exists already", "--overwrite")
    assert call(*arguments, "--overwrite", "--include-patients", folder=workdir).returncode == 0
    assert TASTE.load(workdir / "m-twice").W_.shape == (120, 2)
    refused(call(*arguments[:-1], "cohort", "--overwrite", folder=workdir), "cohort does not hold")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "missing", "--out", "x"], "missing is not a saved cohort"),
        (["fit", "model", "--out", "x"], "does not hold a cohort"),
        (["fit", "broken", "--out", "x"], "does not match its checksum"),
        (["fit", "cohort", "--rank", "0", "--out", "x"], "rank=0 must be"),
        (["fit", "cohort", "--lam", "nan", "--out", "x"], "lam=nan must be"),
        (["fit", "cohort", "--out", "fit.txt"], "fit.txt is a file"),
        (["score", "missing", "cohort", "--out", "x.parquet"], "missing is not a saved"),
        (["score", "model", "broken", "--out", "x.parquet"], "does not match its checksum"),
        (["score", "model", "cohort", "--out", "none/x.parquet"], "does not exist"),
        (["score", "model", "cohort", "--out", "cohort/x.parquet"], "inside an input folder"),
        (["score", "model", "cohort", "--out", "cohort"], "inside an input folder"),
        (["score", "model", "cohort", "--out", "broken"], "is not a file"),
        (["score", "model", "cohort", "--out", "x", "--courses", "x"], "both scores and courses"),
        (["score", "model", "cohort", "--out", "x.csv"], "end its name in .parquet"),
        (["score", "model", "cohort", "--out", "x", "--courses", "x.CSV"], "end its name in .parquet"),
        (["score", "model", "narrow", "--out", "x.parquet"], "static features"),
        (["demo", "--out", "."], "not from an earlier demo"),
    ],
)
def test_invalid_input_is_refused_with_one_sentence(call, workdir, arguments, words):
    broken, narrow = workdir / "broken", workdir / "narrow"
    if not broken.exists():
        Cohort.load(workdir / "cohort").save(broken)
        with open(broken / "cohort.safetensors", "r+b") as file:
            file.seek(2000)
            file.write(b"\xff\x00\xff")
        Cohort([[1.0, 2.0]], [0, 1], feature_names=["a", "b"]).save(narrow)
    before = sorted(os.listdir(workdir))
    refused(call(*arguments, folder=workdir), words)
    assert sorted(os.listdir(workdir)) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit"],
        ["fit", "cohort"],
        ["nonsense"],
        ["fit", "cohort", "--out", "x", "--rank", "five"],
        ["fit", "cohort", "--out", "x", "--objective", "magic"],
        ["fit", "cohort", "--out", "x", "--seed", "-1"],
    ],
)
def test_invalid_usage_is_status_two(call, workdir, arguments):
    done = call(*arguments, folder=workdir)
    assert done.returncode == 2
    assert "Usage: phenotaste" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--weights", "--solver", "--normalize"])
def test_settings_of_the_first_objective_are_refused_by_name(call, workdir, option):
    done = call("fit", "cohort", "--out", "x", option, "relative", folder=workdir)
    assert done.returncode == 2
    assert f"No such option: {option}" in done.stderr


def test_the_objective_of_the_paper_has_one_start(call, workdir):
    own = ("--objective", "paper", "--lam", 0.1, "--mu", 0.1, "--max-iter", 4)
    done = call("fit", "cohort", "--rank", 2, "--out", "m-paper", *own, "--json", folder=workdir)
    assert json.loads(done.stdout)["iterations"] == 4
    cohort, model = Cohort.load(workdir / "cohort"), TASTE.load(workdir / "m-paper")
    assert (model.objective, model._n_starts()) == ("paper", 1)
    expected = TASTE(2, objective="paper", lam=0.1, mu=0.1, max_iter=4, random_state=0).fit(cohort)
    np.testing.assert_array_equal(model.V_, expected.V_)


def test_scores_are_those_of_transform(call, workdir):
    done = call(
        "score", "model", "cohort", "--out", "s.parquet", "--courses", "c.parquet", "--json", folder=workdir
    )
    assert json.loads(done.stdout)["patients"] == 120
    model, cohort = TASTE.load(workdir / "model"), Cohort.load(workdir / "cohort")
    scores, found = pd.read_parquet(workdir / "s.parquet"), model.project(cohort)
    assert list(scores["patient"]) == list(cohort.patient_ids)
    np.testing.assert_array_equal(
        scores[["phenotype_1", "phenotype_2", "phenotype_3"]], model.transform(cohort)
    )
    for k in (0, 7, 119):
        U = found.U[found.offsets[k] : found.offsets[k + 1]]
        size = found.W[k] * np.linalg.norm(U, axis=0)
        row = scores.iloc[k]
        np.testing.assert_allclose(row["share_1":"share_3"].astype(float), size**2 / np.sum(size**2))
        np.testing.assert_allclose(row["amount_1":"amount_3"].astype(float), size * found.scale[k])
        assert row["visits"] == len(U)
    np.testing.assert_allclose(scores["loss"].sum(), found.loss)
    courses = pd.read_parquet(workdir / "c.parquet")
    owner = np.repeat(np.arange(120), np.diff(found.offsets))
    sizes = courses[["phenotype_1", "phenotype_2", "phenotype_3"]]
    np.testing.assert_array_equal(sizes, found.W[owner] * found.U)
    np.testing.assert_array_equal(np.array(courses["time"], "M8[D]"), cohort.visit_times)
    one = courses[courses["patient"] == "patient-0007"]
    assert list(one["visit"]) == list(range(1, len(one) + 1))
    for name in ("s.parquet", "c.parquet"):
        assert stat.S_IMODE((workdir / name).stat().st_mode) == 0o600


def test_score_counts_unmatched_features_and_flags_short_histories(call, workdir):
    cohort = Cohort.load(workdir / "cohort")
    other = Cohort(
        np.ones((3, 2)),
        [0, 1, 1, 3],
        cohort.static[:3],
        feature_names=[HOSTILE, "unknown"],
        static_names=cohort.static_names,
    )
    other.save(workdir / "other")
    done = call("score", "model", "other", "--out", "o.parquet", folder=workdir)
    assert "Unknown features  1 (not in the model, dropped)" in done.stdout
    assert "Absent features   322 (not in the cohort, set to zero)" in done.stdout
    scores = pd.read_parquet(workdir / "o.parquet")
    assert scores["short_history"].all()
    empty = scores.iloc[1]["amount_1":"share_3"]
    assert (empty == 0).all()


def test_interruption_prints_one_line_and_leaves_no_files(workdir):
    command = [*COMMAND, "fit", "cohort", "--out", "m-stopped", "--tol", "0", "--max-iter", "1000000"]
    screen, terminal = os.openpty()  # the bar on a terminal shows when the fit has started
    child = subprocess.Popen(
        [*command, "--threads", "1"],
        cwd=workdir,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        # A test runner in the background may make its children ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(terminal)
    try:
        read_until(screen, "iteration 2")
        child.send_signal(signal.SIGINT)
        seen = read_until(screen, "files were left.")
        assert child.wait(timeout=60) == 130
        assert child.stdout.read() == b""
    finally:
        child.kill()
    assert "Traceback" not in seen
    assert not [name for name in os.listdir(workdir) if "m-stopped" in name]


def read_until(screen, words):
    """Read the terminal until the words appear or the process ends."""
    seen = ""
    with contextlib.suppress(OSError):
        while words not in seen:
            seen += os.read(screen, 65536).decode(errors="replace")
    assert words in seen, seen
    return seen


@pytest.mark.parametrize(("redirect", "complaint"), [("| true", ""), ("> /dev/full", "no space left")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_not_an_error(workdir, redirect, complaint, unbuffered):
    for arguments in ("--version", *(["score model cohort --out p.parquet"] if unbuffered else [])):
        command = f"{sys.executable} -m phenotaste.cli {arguments} {redirect}"
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(
            command, shell=True, cwd=workdir, capture_output=True, text=True, env=environment
        )
        assert complaint in done.stderr
        assert done.stderr.count("\n") == (1 if complaint else 0), done.stderr


def test_names_from_the_data_do_not_control_the_terminal(capsys):
    from phenotaste.cli.terminal import print_phenotypes

    rows = [(1, "temporal", "[bold]\x1b[2J\x07name", 1.0), (1, "static", "long_name_" * 20, 0.5)]
    table = pd.DataFrame(rows, columns=["phenotype", "kind", "feature", "weight"])
    print_phenotypes(table, ["Phenotype 1"])
    text = capsys.readouterr().out
    assert "[bold]" in text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "".join(text.replace("0.500", "").split()).count("long_name_") == 20
    assert max(map(len, text.splitlines())) <= 80


def test_demo_prints_the_tables_and_can_be_repeated(tmp_path, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    arguments = ("demo", "--out", "my demo", "--patients", 150)
    first = call(*arguments)
    assert first.returncode == 0, first.stderr
    text = first.stdout
    assert all(f"Phenotype {r} · " in text for r in range(1, 6))
    for part in ("Weight", "Dx_", "Rx_", "Static_", "Recovery of the planted"):
        assert part in text
    assert "phenotaste score 'my demo/model' 'my demo/cohort' --out scores.parquet" in text
    assert "\x1b" not in text  # no colours where there is no terminal

    record = json.loads(call(*arguments, "--json").stdout)
    for name in ("report", "figures", "tables", "cohort", "model", "scores", "readme"):
        assert (tmp_path / record[name]).exists()
    figures = set(os.listdir(tmp_path / record["figures"]))
    assert {"courses.png", "courses.pdf", "definitions.png", "definitions.pdf", "loss.png"} <= figures
    assert {"definitions.csv", "definitions.tex"} <= set(os.listdir(tmp_path / record["tables"]))
    page = (tmp_path / record["report"]).read_text()
    assert len(page) < 5e6
    for part in (
        '"outcome":{"name"',
        '"typical":[{"label"',
        '"course":{"visits":{"x"',
        '"profile":[{"feature"',
    ):
        assert part in page  # the page describes the patients of the cohort and their labels
    assert record["similarity"]["temporal"] > 0.8
    assert {row["kind"] for row in record["definitions"]} == {"temporal", "static"}
    assert len(pd.read_parquet(tmp_path / record["scores"])) == 150
