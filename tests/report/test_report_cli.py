"""`phenotaste report`, `review compare` and `score --review`: from a model to a page, and from a review to scores."""

import json
import os
import re
import stat
import subprocess
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers import cohorts
from helpers.cli import COMMAND, refused, run
from phenotaste import TASTE, Cohort, baselines, report, simulate
from phenotaste.errors import InputError
from phenotaste.report.scores import write_scores
from phenotaste.report.stability import read_evidence
from phenotaste.review import Review, fingerprint
from phenotaste.storage.atomic import check_output_folder, write_folder

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J[bold]"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a cohort, a model of it, a review of that, and another model."""
    folder = tmp_path_factory.mktemp("report")
    made, _ = simulate.heart_failure(150, random_state=1)
    cohort = Cohort(
        made.visits,
        made.offsets,
        made.static,
        patient_ids=[f"patient-{k:04d}" for k in range(len(made))],
        visit_times=made.visit_times,
        feature_names=[HOSTILE, *made.feature_names[1:]],
        static_names=made.static_names,
        labels=made.labels,
    )
    cohort.save(folder / "cohort")
    model = TASTE(4, n_init=1, random_state=0, max_iter=20).fit(cohort)
    model.save(folder / "model")
    TASTE(4, n_init=1, random_state=5, max_iter=3).fit(cohort).save(folder / "other")
    reviewed(model).write(folder / "review.json")
    return folder


def reviewed(model, **changes):
    """1 is named, 3 merged with it, 2 rejected, 4 left open with a name that means harm."""
    blank = Review.blank(model, "Dr A", {1: "Gout", 4: HOSTILE})
    first, second, third, fourth = blank.decisions
    decisions = (
        first,
        replace(second, status="rejected"),
        replace(third, status="merged", merge_with=1),
        fourth,
    )
    return replace(blank, decisions=decisions, order=(4, 1), **changes)


def content_of(path):
    """What a page was made from, as a browser would read it."""
    found = re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', path.read_text(), re.S)
    return json.loads(found.group(1))


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_from_a_fit_to_scores_with_names(tmp_path, place, call):
    fitted = ("fit", place / "cohort", "--rank", 4, "--max-iter", 20, "--n-init", 1, "--out", "model")
    assert call(*fitted).returncode == 0
    done = run("report", "model", "--cohort", place / "cohort", "--out", "report.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "report.html" in done.stdout
    assert "Phenotype 1; Phenotype 2; Phenotype 3; Phenotype 4" in done.stdout
    page = content_of(tmp_path / "report.html")
    model = TASTE.load(tmp_path / "model")
    assert page["fingerprint"] == fingerprint(model)
    assert page["review"] is None

    # What the page's button would save.
    reviewed(model).write(tmp_path / "review.json")
    arguments = ("model", "--cohort", place / "cohort", "--review", "review.json", "--out", "reviewed.html")
    done = call("report", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    shown = "</script><img src=x onerror=alert(1)>\ufffd[2J[bold]"
    assert record["phenotypes"] == [shown, "Gout"]
    page = content_of(tmp_path / "reviewed.html")
    assert [(kind["number"], kind["name"], kind["merged_from"]) for kind in page["phenotypes"]] == [
        (4, shown, []),
        (1, "Gout", [1, 3]),
    ]
    assert page["review"] == json.loads((tmp_path / "review.json").read_text())
    assert "onerror" not in (tmp_path / "reviewed.html").read_text().replace("\\u003cimg src=x onerror", "")

    score = ("score", "model", place / "cohort", "--review", "review.json", "--out", "s.parquet")
    done = call(*score, "--courses", "c.parquet")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "Gout" in done.stdout
    scores, courses = pd.read_parquet(tmp_path / "s.parquet"), pd.read_parquet(tmp_path / "c.parquet")
    found = model.project(Cohort.load(place / "cohort"))
    assert list(scores.columns[:3]) == ["patient", f"phenotype_{shown}", "phenotype_Gout"]
    np.testing.assert_allclose(scores["phenotype_Gout"], found.W[:, 0] + found.W[:, 2])
    np.testing.assert_array_equal(scores[f"phenotype_{shown}"], found.W[:, 3])
    total = scores["share_Gout"] + scores[f"share_{shown}"]
    none = (scores[["share_Gout", f"share_{shown}"]] == 0).all(axis=1)  # only what the review has dropped
    np.testing.assert_allclose(total, np.where(none, 0.0, 1.0))
    assert none.mean() < 0.05
    assert not [name for name in scores if name.endswith(("_2", "_3"))]
    owner = np.repeat(np.arange(150), np.diff(found.offsets))
    np.testing.assert_allclose(
        courses["phenotype_Gout"],
        found.W[owner, 0] * found.U[:, 0] + found.W[owner, 2] * found.U[:, 2],
        atol=1e-12,
    )
    for name in ("s.parquet", "c.parquet"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_history_is_short_for_the_model_however_many_phenotypes_are_left(tmp_path):
    short = cohorts.cohort(n_patients=30)
    model = TASTE(4, n_init=1, random_state=0, max_iter=2).fit(short)
    write_scores(model.apply_review(reviewed(model)), short, tmp_path / "s.parquet")
    found = pd.read_parquet(tmp_path / "s.parquet")["short_history"]
    assert list(found) == list(np.diff(short.offsets) < 4)
    assert 0 < sum(found) < 30


def test_scores_of_several_rows_of_a_patient_have_the_patient(tmp_path):
    rows = cohorts.cohort(n_patients=6)
    rows.groups = np.array(["a", "a", "b", "c", "c", "c"])
    write_scores(TASTE(2, n_init=1, random_state=0, max_iter=2).fit(rows), rows, tmp_path / "s.parquet")
    found = pd.read_parquet(tmp_path / "s.parquet")
    assert list(found["group"]) == list(rows.groups)
    assert list(found["patient"]) == list(rows.patient_ids)


def test_help_shows_examples(call):
    for command in (["report"], ["review", "compare"]):
        text = call(*command, "--help", folder=".").stdout
        assert "Example:" in text
        assert f"phenotaste {' '.join(command)} " in text
        assert "--json" in text
    assert call("review", folder=".").returncode == 2


def test_page_figures_and_tables_hold_the_same_and_no_patient(call, place, tmp_path):
    arguments = ("report", place / "model", "--cohort", place / "cohort", "--review", place / "review.json")
    outputs = ("--out", "r.html", "--figures", "figures", "--tables", "tables", "--title", HOSTILE)
    done = call(*arguments, *outputs, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["figures"], record["tables"], record["trusted"]) == ("figures", "tables", False)
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} >= {".png", ".pdf"}
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} >= {".csv", ".tex"}
    page = content_of(tmp_path / "r.html")
    assert len(page["audit"]) == record["hidden"]
    days = {str(day).encode() for day in Cohort.load(place / "cohort").visit_times.astype("M8[D]")}
    days -= {page["review"]["date"].encode()}
    for path in [tmp_path / "r.html", *(tmp_path / "figures").iterdir(), *(tmp_path / "tables").iterdir()]:
        content = path.read_bytes()
        assert b"patient-0" not in content
        assert not any(day in content for day in days)
        assert path.stat().st_mode & 0o044  # what may be passed on is not locked
    assert not [name for name in listing(tmp_path) if "partial" in name]


def test_without_a_cohort_the_page_has_definitions_and_fit(call, place, tmp_path):
    done = call("report", place / "model", "--out", "r.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    page = content_of(tmp_path / "r.html")
    assert page["overview"]["cohort"] == []
    for kind in page["phenotypes"]:
        assert kind["temporal"]
        assert kind["prevalence"] is kind["course"]["visits"] is kind["leading"]["patients"] is None


def test_trusted_reports_are_marked_and_private(call, place, tmp_path):
    arguments = ("report", place / "model", "--cohort", place / "cohort", "--tables", "t", "--out", "r.html")
    done = call(*arguments, "--trusted", folder=tmp_path)
    assert done.returncode == 0
    assert "--trusted shows numbers of fewer than 11 patients" in done.stderr
    assert "nothing is hidden" in done.stdout
    assert content_of(tmp_path / "r.html")["trusted"] is True
    assert stat.S_IMODE((tmp_path / "r.html").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "t").iterdir()} == {0o600}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "missing", "--out", "x.html"], "missing is not a saved"),
        (["report", "cohort", "--out", "x.html"], "does not hold a taste-model"),
        (["report", "model", "--cohort", "model", "--out", "x.html"], "does not hold a cohort"),
        (["report", "model", "--out", "model/x.html"], "inside an input folder"),
        (["report", "model", "--cohort", "cohort", "--out", "cohort/x.html"], "inside an input folder"),
        (["report", "model", "--out", "x.html", "--figures", "model/f"], "inside an input folder"),
        (["report", "model", "--out", "x.html", "--tables", "model"], "inside an input folder"),
        (["report", "model", "--out", "none/x.html"], "does not exist"),
        (["report", "model", "--out", "x.html", "--tables", "none/t"], "does not exist"),
        (["report", "model", "--out", "cohort"], "is not a file"),
        (["report", "model", "--out", "x", "--tables", "x"], "for the page and for a folder"),
        (["report", "model", "--out", "old.html"], "exists already"),
        (["report", "model", "--out", "x.html", "--figures", "old"], "exists already"),
        (["report", "model", "--out", "x.html", "--figures", "old.html"], "is a file"),
        (["report", "model", "--review", "none.json", "--out", "x.html"], "none.json does not exist"),
        (["report", "model", "--review", "old.html", "--out", "x.html"], "truncated or damaged"),
        (["report", "other", "--review", "review.json", "--out", "x.html"], "is of another model"),
        (
            ["report", "model", "--review", "review.json", "--out", "review.json", "--overwrite"],
            "is the review file to read",
        ),
        (["report", "model", "--selection", "model", "--out", "x.html"], "not the folder of a finished"),
        (["report", "model", "--selection", "selection", "--out", "x.html"], "chose another model"),
        (["report", "raw", "--out", "x.html"], "not a saved taste-model|does not hold a taste-model"),
        (["report", "signed", "--out", "x.html"], "may be negative"),
        (["score", "other", "cohort", "--review", "review.json", "--out", "x"], "is of another model"),
        (["score", "model", "cohort", "--review", "review.json", "--out", "review.json"], "is the review"),
        (["review", "compare", "review.json"], "two reviews or more"),
        (["review", "compare", "review.json", "none.json"], "none.json does not exist"),
        (["review", "compare", "review.json", "theirs.json"], "different models"),
    ],
)
def test_invalid_requests_are_refused_with_one_sentence(call, place, arguments, words):
    if not (place / "old").exists():
        (place / "old").mkdir()
        (place / "old" / "mine.txt").write_text("mine")
        (place / "old.html").write_text("the old one")
        cohort = Cohort.load(place / "cohort")
        reviewed(TASTE.load(place / "other")).write(place / "theirs.json")
        make_selection(place / "selection", TASTE.load(place / "other"))
        baselines.Spartan(2, nonnegative=False, max_iter=1).fit(cohort).save(place / "signed")
        baselines.RawLogistic().fit(cohort[:60]).save(place / "raw")
    before = listing(place)
    done = call(*arguments, folder=place)
    assert re.search(words, done.stderr), done.stderr
    refused(done)
    assert listing(place) == before
    assert (place / "old.html").read_text() == "the old one"


@pytest.mark.parametrize("arguments", [["report"], ["report", "model"], ["review"], ["review", "compare"]])
def test_invalid_usage_of_report_is_status_two(call, place, arguments):
    done = call(*arguments, folder=place)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_existing_report_is_replaced_only_on_request(call, place, tmp_path):
    arguments = ("report", place / "model", "--out", "r.html", "--tables", "t")
    assert call(*arguments, folder=tmp_path).returncode == 0
    (tmp_path / "t" / "mine.txt").write_text("mine")
    first = (tmp_path / "r.html").read_bytes()
    refused(call(*arguments, "--title", "New", folder=tmp_path), "exists already", "--overwrite")
    assert (tmp_path / "r.html").read_bytes() == first
    assert call(*arguments, "--title", "New", "--overwrite", folder=tmp_path).returncode == 0
    assert content_of(tmp_path / "r.html")["title"] == "New"
    assert (tmp_path / "t" / "mine.txt").read_text() == "mine"


def test_a_failed_report_changes_no_files(place, tmp_path, monkeypatch):
    model, cohort = TASTE.load(place / "model"), Cohort.load(place / "cohort")
    (tmp_path / "r.html").write_text("the old one")
    places = {"figures": tmp_path / "figures", "tables": tmp_path / "tables"}

    def stop_at(words):
        def step(text):
            if words in text:
                raise KeyboardInterrupt

        return step

    with pytest.raises(KeyboardInterrupt):
        report.write(model, tmp_path / "r.html", cohort, **places, on_step=stop_at("tables"))
    assert listing(tmp_path) == ["r.html"]
    places.pop("figures")  # drawing takes long
    with pytest.raises(KeyboardInterrupt):
        report.write(model, tmp_path / "r.html", cohort, **places, on_step=stop_at("page"))
    assert listing(tmp_path) == ["r.html"]
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        report.write(model, tmp_path / "r.html", cohort, **places)
    assert listing(tmp_path) == ["r.html"]
    assert (tmp_path / "r.html").read_text() == "the old one"


def test_a_folder_receives_all_files_or_none(tmp_path):
    for exists in (False, True):
        target = tmp_path / f"t{exists}"
        if exists:
            target.mkdir()
            (target / "a").write_text("old")
        with pytest.raises(IsADirectoryError), write_folder(target, existing="merge") as draft:  # noqa: PT012
            (draft / "a").write_text("new")
            draft.write_text("a folder is not a file")
        assert not exists or (target / "a").read_text() == "old"
        with write_folder(target, existing="merge") as draft:
            (draft / "a").write_text("new")
        assert (target / "a").read_text() == "new"
    assert listing(tmp_path) == ["tFalse", "tFalse/a", "tTrue", "tTrue/a"]
    with pytest.raises(InputError, match="is a file"):
        check_output_folder(tmp_path / "tTrue" / "a")


# --- stability -------------------------------------------------------------------------------------------------


def make_selection(folder, model, rows=None, kinds=("halves", "starts", "bootstrap")):
    """What `phenotaste select` leaves about the model it chose."""
    model.save(folder / "best")
    rng = np.random.default_rng(0)
    made = [
        (r + 1, kind, factor, similarity)
        for r in range(model.V_.shape[1])
        for kind in kinds
        for factor in ("V", "F")
        for similarity in rng.uniform(0.5, 1, 9)
    ]
    columns = ["phenotype", "kind", "factor", "similarity"]
    pd.DataFrame(rows or made, columns=columns).to_csv(folder / "evidence.csv", index=False)


def test_stability_is_taken_from_the_selection_that_chose_the_model(call, place, tmp_path):
    model = TASTE.load(place / "model")
    make_selection(tmp_path / "chosen", model)
    done = call("report", place / "model", "--selection", "chosen", "--out", "r.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "chosen" / "evidence.csv")
    table = table[table["factor"] == "V"]
    page = content_of(tmp_path / "r.html")
    assert page["overview"]["stability"] is not None
    for kind in page["phenotypes"]:
        mine = table[(table["phenotype"] == kind["number"]) & (table["kind"] == "starts")]["similarity"]
        assert kind["stability"]["starts"]["median"] == pytest.approx(mine.median(), abs=6e-4)
        assert kind["stability"]["bootstrap"]["share"] <= 1
        assert kind["stability"]["halves"]["comparisons"] == 9


def test_a_selection_of_an_earlier_version_has_no_evidence_of_halves(call, place, tmp_path):
    make_selection(tmp_path / "chosen", TASTE.load(place / "model"), kinds=("starts", "bootstrap"))
    done = call("report", place / "model", "--selection", "chosen", "--out", "r.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for kind in content_of(tmp_path / "r.html")["phenotypes"]:
        assert kind["stability"]["halves"] is None
        assert kind["stability"]["starts"]["comparisons"] == 9


@pytest.mark.parametrize(
    "rows",
    [
        [(5, "starts", "V", 0.5)],
        [(0, "starts", "V", 0.5)],
        [(1, "=cmd()", "V", 0.5)],
        [(1, "starts", "W", 0.5)],
        [(1, "starts", "V", 7.0)],
        [(1, "starts", "V", float("nan"))],
        [(1, "starts", "V", "high")],
        [(1.5, "starts", "V", 0.5)],
    ],
)
def test_evidence_that_no_selection_wrote_is_refused(place, tmp_path, rows):
    model = TASTE.load(place / "model")
    make_selection(tmp_path / "s", model, rows)
    with pytest.raises(InputError, match="cannot be read as the evidence"):
        read_evidence(tmp_path / "s", model)


def test_evidence_files_that_are_no_tables_are_refused(place, tmp_path):
    model = TASTE.load(place / "model")
    make_selection(tmp_path / "s", model)
    whole = (tmp_path / "s" / "evidence.csv").read_bytes()
    assert len(read_evidence(tmp_path / "s", model)) == 4 * 3 * 2 * 9
    for content in (b"", b"\xff\xfe", whole[:20], whole + b"1,starts\n", b"a,b\n1,2\n"):
        (tmp_path / "s" / "evidence.csv").write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as the evidence"):
            read_evidence(tmp_path / "s", model)


# --- other methods, other models -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["Spartan", "Copa", "CopaPlus", "CopaStatic", "CohenPlus"])
def test_models_of_the_baselines_have_reports(call, place, tmp_path, method):
    cohort = Cohort.load(place / "cohort")
    fitted = getattr(baselines, method)(2, random_state=0, max_iter=3).fit(cohort)
    fitted.save(tmp_path / "model")
    done = call("report", "model", "--cohort", place / "cohort", "--out", "r.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    page = content_of(tmp_path / "r.html")
    assert page["fingerprint"] == fingerprint(fitted)
    assert len(page["phenotypes"]) == 2
    assert method in json.dumps(page["card"])


# --- two reviewers ---------------------------------------------------------------------------------------------


def test_reviews_are_compared_side_by_side(call, place, tmp_path):
    model = TASTE.load(place / "model")
    mine = Review.read(place / "review.json")
    theirs = reviewed(model, reviewer="\x1b[31mDr B[/bold]")
    theirs = replace(
        theirs, decisions=(*theirs.decisions[:3], replace(theirs.decisions[3], status="accepted"))
    )
    mine.write(tmp_path / "a.json")
    theirs.write(tmp_path / "b.json")
    done = call("review", "compare", "a.json", "b.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Dr A" in done.stdout
    assert "\ufffd[31mDr B[/bold]" in "".join(done.stdout.split("\n"))
    assert "\x1b" not in done.stdout
    assert "3 of 4 phenotypes (75%)" in done.stdout
    assert "merged with 3" in " ".join(done.stdout.split())
    record = json.loads(call("review", "compare", "a.json", "b.json", "--json", folder=tmp_path).stdout)
    assert record["agreement"] == 0.75
    assert [row["agree"] for row in record["table"]] == [True, True, True, False]
    assert record["kappa"] == pytest.approx(2 / 3, abs=0.05)
    same = json.loads(call("review", "compare", "a.json", "a.json", "--json", folder=tmp_path).stdout)
    assert same["kappa"] == 1


def started(place, folder):
    """A report in a process of its own, which has begun to draw figures."""
    command = [*COMMAND, "report", place / "model", "--cohort", place / "cohort", "--out", folder / "r.html"]
    process = subprocess.Popen(
        [*map(str, command), "--figures", str(folder / "f")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not any(folder.glob(".f.*.partial")) and process.poll() is None:
        time.sleep(0.02)
    return process


def test_a_terminated_report_leaves_nothing(place, tmp_path):
    process = started(place, tmp_path)
    process.terminate()
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "Traceback" not in printed
    assert not list(tmp_path.iterdir())


def test_the_next_report_removes_what_a_killed_one_left(place, tmp_path, call):
    process = started(place, tmp_path)
    process.kill()
    process.communicate()
    (tmp_path / ".r.html.0123456789abcdef.partial").write_text("half a page")
    assert len(list(tmp_path.glob(".*.partial"))) == 2
    arguments = ("report", place / "model", "--out", tmp_path / "r.html", "--figures", tmp_path / "f")
    assert call(*arguments).returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["f", "r.html"]


def test_a_second_round_and_two_reviewers(tmp_path, place, call):
    names = ("report", place / "other", "--previous", place / "model", "--review", place / "review.json")
    done = call(*names, "--out", "second.html", "--json")
    assert done.returncode == 0, done.stderr
    changes = json.loads(done.stdout)["changes"]
    assert sum(changes[kind] for kind in ("same", "moved", "new")) == 4
    page = content_of(tmp_path / "second.html")
    assert page["review"]["based_on"][0]["reviewer"] == "Dr A"
    assert [p["change"]["kind"] for p in page["phenotypes"]].count("new") == changes["new"]
    done = call(*names, "--out", "third.html")
    assert f"{changes['same']} same, {changes['moved']} moved" in " ".join(done.stdout.split())

    reviewed(TASTE.load(place / "model"), reviewer="Dr B").write(tmp_path / "b.json")
    both = ("report", place / "model", "--review", place / "review.json", "--review", "b.json")
    done = call(*both, "--out", "both.html")
    assert done.returncode == 0, done.stderr
    assert "Dr A and Dr B agree on 4 of 4 phenotypes" in " ".join(done.stdout.split())
    refused(call(*both, "--previous", place / "model", "--out", "x.html"), "There are 2 reviews")
    other = ("report", place / "other", "--review", place / "review.json", "--out", "x.html")
    refused(call(*other), "is of another model")
    assert not (tmp_path / "x.html").exists()
