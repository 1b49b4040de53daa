"""The real command in a process of its own: files, exit statuses, JSON, refusals, interruption."""

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

from phenotaste import TASTE, Cohort, simulate
from phenotaste.cli import app, main, options
from phenotaste.cli import fit as fit_command

HOSTILE = "</script><img src=x onerror=alert(1)>"
COMMAND = [sys.executable, "-m", "phenotaste.cli"]


def run(*arguments, folder=None, columns="80"):
    environment = os.environ | {"COLUMNS": columns}
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)


@pytest.fixture
def call(monkeypatch, capsys):
    """The command within this process, which spares loading everything anew."""

    def run_here(*arguments, folder):
        monkeypatch.setattr(sys, "argv", ["phenotaste", *map(str, arguments)])
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, end.value.code, printed.out, printed.err)

    return run_here


def refused(done, *words, status=1):
    """One sentence on standard error, and nothing else anywhere."""
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words), done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a cohort of patients with telling names, and a model fitted on it by the command."""
    folder = tmp_path_factory.mktemp("cli")
    made, _ = simulate.heart_failure(120, random_state=1)
    names = [HOSTILE, "[bold]\x1b[2Jname", *made.feature_names[2:]]
    ids = [f"patient-{k:04d}" for k in range(len(made))]
    cohort = Cohort(
        made.visits,
        made.offsets,
        made.static,
        patient_ids=ids,
        visit_times=made.visit_times,
        feature_names=names,
        static_names=made.static_names,
    )
    cohort.save(folder / "cohort")
    done = run("fit", "cohort", "--rank", 3, "--out", "model", "--threads", 1, folder=folder)
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
    assert not app.pretty_exceptions_enable  # they would print local variables, patients' data among them


def test_options_are_the_estimators():
    """The command's words and defaults are written down twice; they must stay the same."""
    kinds = {"weights": "Weights", "solver": "Solver", "init": "Init", "dtype": "Dtype"}
    for name, kind in kinds.items():
        assert tuple(getattr(options, f"{kind}Choice")) == TASTE._choices[name]
    estimator = inspect.signature(TASTE).parameters
    for name, option in inspect.signature(fit_command.fit).parameters.items():
        if name in estimator:
            assert option.default == estimator[name].default, name


def test_fit_saves_a_model_and_says_how_it_went(place):
    text = (place / "fit.txt").read_text()
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
    cohort = Cohort.load(place / "cohort")
    model, expected = TASTE.load(place / "model"), TASTE(3, random_state=0).fit(cohort)
    np.testing.assert_array_equal(model.V_, expected.V_)
    assert not (place / "model" / "patients.safetensors").exists()


def test_fit_json_is_one_object_and_nothing_else(place):
    short = ("--max-iter", 3, "--mu", 0)
    done = run("fit", "cohort", "--rank", 2, "--out", "m-json", *short, "--json", folder=place)
    assert done.stderr.startswith("Note: mu=0 drops the uniqueness term")
    assert done.stderr.count("\n") == 1
    record = json.loads(done.stdout)
    assert record["patients"] == 120
    assert record["outcome"] == "max_iter"
    assert record["converged"] is False
    assert "raise max_iter" in record["advice"]
    assert record["iterations"] == 3
    assert record["seconds"] > 0
    assert record["objective"] == pytest.approx(TASTE.load(place / "m-json").loss_curve_[-1])


def test_plan_says_what_a_fit_takes_and_writes_nothing(call, place):
    before = sorted(place.iterdir())
    done = call("fit", "cohort", "--rank", "2", "--plan", "--json", folder=place)
    expected = json.loads(done.stdout)
    assert expected["memory"] > 0
    assert expected["most_seconds"] == pytest.approx(200 * expected["seconds_per_iteration"])
    assert sorted(place.iterdir()) == before
    assert "GiB" in call("fit", "cohort", "--plan", folder=place).stdout


def test_fit_includes_patients_only_when_asked_and_replaces_only_when_asked(call, place):
    arguments = ("fit", "cohort", "--rank", 2, "--max-iter", 2, "--out", "m-twice")
    first = call(*arguments, folder=place)
    assert "max iter. The objective was still falling" in " ".join(first.stdout.split())
    refused(call(*arguments, folder=place), "m-twice exists already", "--overwrite")
    assert call(*arguments, "--overwrite", "--include-patients", folder=place).returncode == 0
    assert TASTE.load(place / "m-twice").W_.shape == (120, 2)
    refused(call(*arguments[:-1], "cohort", "--overwrite", folder=place), "cohort does not hold")


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
        (["score", "model", "cohort", "--out", "cohort/x.parquet"], "within a folder that is read"),
        (["score", "model", "cohort", "--out", "cohort"], "within a folder that is read"),
        (["score", "model", "cohort", "--out", "broken"], "is not a file"),
        (["score", "model", "cohort", "--out", "x", "--courses", "x"], "both scores and courses"),
        (["score", "model", "cohort", "--out", "x.csv"], "let it end in .parquet"),
        (["score", "model", "cohort", "--out", "x", "--courses", "x.CSV"], "let it end in .parquet"),
        (["score", "model", "narrow", "--out", "x.parquet"], "static features"),
        (["demo", "--out", "."], "not from an earlier demo"),
    ],
)
def test_bad_input_is_refused_with_one_sentence(call, place, arguments, words):
    broken, narrow = place / "broken", place / "narrow"
    if not broken.exists():
        Cohort.load(place / "cohort").save(broken)
        with open(broken / "cohort.safetensors", "r+b") as file:
            file.seek(2000)
            file.write(b"\xff\x00\xff")
        Cohort([[1.0, 2.0]], [0, 1], feature_names=["a", "b"]).save(narrow)
    before = sorted(os.listdir(place))
    refused(call(*arguments, folder=place), words)
    assert sorted(os.listdir(place)) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit"],
        ["fit", "cohort"],
        ["nonsense"],
        ["fit", "cohort", "--out", "x", "--rank", "five"],
        ["fit", "cohort", "--out", "x", "--solver", "magic"],
        ["fit", "cohort", "--out", "x", "--seed", "-1"],
    ],
)
def test_misuse_is_status_two(call, place, arguments):
    done = call(*arguments, folder=place)
    assert done.returncode == 2
    assert "Usage: phenotaste" in done.stderr
    assert "Traceback" not in done.stderr


def test_scores_are_those_of_transform(place):
    done = run(
        "score", "model", "cohort", "--out", "s.parquet", "--courses", "c.parquet", "--json", folder=place
    )
    assert json.loads(done.stdout)["patients"] == 120
    model, cohort = TASTE.load(place / "model"), Cohort.load(place / "cohort")
    scores, found = pd.read_parquet(place / "s.parquet"), model.project(cohort)
    assert list(scores["patient"]) == list(cohort.patient_ids)
    np.testing.assert_array_equal(
        scores[["phenotype_1", "phenotype_2", "phenotype_3"]], model.transform(cohort)
    )
    for k in (0, 7, 119):
        U = found.U[found.offsets[k] : found.offsets[k + 1]]
        strength = found.W[k] * np.linalg.norm(U, axis=0)
        row = scores.iloc[k]
        np.testing.assert_allclose(row["share_1":"share_3"].astype(float), strength / strength.sum())
        np.testing.assert_allclose(row["intensity_1":"intensity_3"].astype(float), strength / np.sqrt(len(U)))
        assert row["visits"] == len(U)
    np.testing.assert_allclose(scores["loss"].sum(), found.loss)
    courses = pd.read_parquet(place / "c.parquet")
    np.testing.assert_array_equal(courses[["phenotype_1", "phenotype_2", "phenotype_3"]], found.U)
    np.testing.assert_array_equal(np.array(courses["time"], "M8[D]"), cohort.visit_times)
    one = courses[courses["patient"] == "patient-0007"]
    assert list(one["visit"]) == list(range(1, len(one) + 1))
    for name in ("s.parquet", "c.parquet"):
        assert stat.S_IMODE((place / name).stat().st_mode) == 0o600


def test_score_counts_what_does_not_match_and_flags_short_histories(call, place):
    cohort = Cohort.load(place / "cohort")
    other = Cohort(
        np.ones((3, 2)),
        [0, 1, 1, 3],
        cohort.static[:3],
        feature_names=[HOSTILE, "unheard of"],
        static_names=cohort.static_names,
    )
    other.save(place / "other")
    done = call("score", "model", "other", "--out", "o.parquet", folder=place)
    assert "Unknown features  1 (not in the model, dropped)" in done.stdout
    assert "Absent features   322 (not in the cohort, taken as zero)" in done.stdout
    scores = pd.read_parquet(place / "o.parquet")
    assert scores["short_history"].all()
    empty = scores.iloc[1]["share_1":"intensity_3"]
    assert (empty == 0).all()


def test_interruption_ends_in_one_line_and_leaves_nothing(place):
    command = [*COMMAND, "fit", "cohort", "--out", "m-stopped", "--tol", "0", "--max-iter", "1000000"]
    screen, terminal = os.openpty()  # on a terminal the bar tells when the fit is under way
    child = subprocess.Popen(
        [*command, "--threads", "1"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        # A test runner in the background may have told its children to ignore the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(terminal)
    try:
        read_until(screen, "iteration 2")
        child.send_signal(signal.SIGINT)
        seen = read_until(screen, "left behind.")
        assert child.wait(timeout=60) == 130
        assert child.stdout.read() == b""
    finally:
        child.kill()
    assert "Traceback" not in seen
    assert not [name for name in os.listdir(place) if "m-stopped" in name]


def read_until(screen, words):
    """What a terminal shows until the words appear; the end of the programme is the end of it."""
    seen = ""
    with contextlib.suppress(OSError):
        while words not in seen:
            seen += os.read(screen, 65536).decode(errors="replace")
    assert words in seen, seen
    return seen


@pytest.mark.parametrize(("redirect", "complaint"), [("| true", ""), ("> /dev/full", "no space left")])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_leaves_is_no_error(place, redirect, complaint, unbuffered):
    for arguments in ("--version", *(["score model cohort --out p.parquet"] if unbuffered else [])):
        command = f"{sys.executable} -m phenotaste.cli {arguments} {redirect}"
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, shell=True, cwd=place, capture_output=True, text=True, env=environment)
        assert complaint in done.stderr
        assert done.stderr.count("\n") == (1 if complaint else 0), done.stderr


def test_names_from_the_data_do_not_steer_the_terminal(capsys):
    from phenotaste.cli.printing import print_phenotypes

    rows = [(1, "temporal", "[bold]\x1b[2J\x07name", 1.0), (1, "static", "long_name_" * 20, 0.5)]
    table = pd.DataFrame(rows, columns=["phenotype", "kind", "feature", "weight"])
    print_phenotypes(table, ["Phenotype 1"])
    text = capsys.readouterr().out
    assert "[bold]" in text
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "".join(text.replace("0.500", "").split()).count("long_name_") == 20
    assert max(map(len, text.splitlines())) <= 80


def test_demo_prints_the_tables_and_makes_everything_again(tmp_path):
    arguments = ("demo", "--out", "my demo", "--patients", 150)
    first = run(*arguments, folder=tmp_path, columns="120")
    assert first.returncode == 0, first.stderr
    text = first.stdout
    assert all(f"Phenotype {r} · " in text for r in range(1, 6))
    for part in ("Weight", "Dx_", "Rx_", "Static_", "Planted and found"):
        assert part in text
    assert "phenotaste score 'my demo/model' 'my demo/cohort' --out scores.parquet" in text
    assert "\x1b" not in text  # no colours where there is no terminal

    record = json.loads(run(*arguments, "--json", folder=tmp_path).stdout)
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
        assert part in page  # the page tells of the cohort's patients and their labels
    assert record["similarity"]["temporal"] > 0.8
    assert {row["kind"] for row in record["definitions"]} == {"temporal", "static"}
    assert len(pd.read_parquet(tmp_path / record["scores"])) == 150
