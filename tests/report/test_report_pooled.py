"""From saved models of methods without courses to scores, a report and a review: everything but courses."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers.chromium import Opened
from helpers.cli import refused
from phenotaste import Cohort, baselines, course_features, simulate
from phenotaste.cli.options import load_model
from phenotaste.errors import InputError
from phenotaste.patients import Patients
from phenotaste.report import content, model_figures, table_files
from phenotaste.report.writer import render
from phenotaste.review import Review, fingerprint

# Settings that make fits quick.
METHODS = {
    "PatientNMF": {"n_init": 1},
    "VisitNMF": {"n_init": 1, "max_iter": 50},
    "PatientLDA": {"max_iter": 20},
    "Limestone": {"n_init": 1, "max_iter": 10},
    "Marble": {"n_init": 1, "max_iter": 10},
    "Granite": {"n_init": 1, "max_iter": 10},
    "SUSTain": {"n_init": 1, "max_iter": 10},
    "NonnegativeCP": {"n_init": 1, "max_iter": 10},
}
RANK = 3


@pytest.fixture(scope="module")
def cohort():
    made, _ = simulate.heart_failure(250, random_state=3)
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory, cohort):
    """A folder with the cohort, and a model of every method."""
    folder = tmp_path_factory.mktemp("pooled")
    cohort.save(folder / "cohort")
    for name, settings in METHODS.items():
        getattr(baselines, name)(RANK, random_state=0, **settings).fit(cohort).save(folder / name)
    baselines.PatientSVD(RANK).fit(cohort).save(folder / "PatientSVD")
    return folder


@pytest.mark.parametrize("name", METHODS)
def test_content_has_everything_but_courses(name, place, cohort, tmp_path):
    model = load_model(place / name)
    assert type(model).__name__ == name
    built = content.build(model, cohort)
    assert not built.courses
    assert all(
        p.course.visits is None and p.course.months is None and not p.typical for p in built.phenotypes
    )
    assert all(p.profile for p in built.phenotypes if p.leading.patients)
    sizes = model.project(cohort).sizes
    squares = sizes**2 / np.maximum((sizes**2).sum(axis=1, keepdims=True), 1e-300)
    having = (squares >= 0.1) | (np.eye(RANK)[sizes.argmax(axis=1)] * sizes.any(axis=1, keepdims=True) > 0)
    for r, phenotype in enumerate(built.phenotypes):
        assert phenotype.prevalence == pytest.approx(having[:, r].mean(), abs=0.05)
    shown = dict(built.overview.figures) | dict(built.overview.cohort)
    assert not {"CPI", "RMSE", "Fitted on", f"Fewer visits than phenotypes ({RANK})"} & set(shown)
    assert {"Patients", "Outcome", "Visits per patient", "Without any phenotype"} <= set(shown)
    # The word is in the one sentence of the card that says so, and nowhere else.
    record = built.as_dict()
    text = json.dumps([record["card"], record["overview"], record["audit"]])
    assert len(re.findall("course", text)) == 1
    assert f"{name} has no courses" in text
    assert "activity" not in text.lower()
    assert not {"courses", "visits", "months"} & set(model_figures.drawings(built))
    assert not {"courses", "typical_courses"} & set(table_files.tables(built))
    page = render(built)
    assert f"codes that occur together in {model.codes_occur_in}</b>. Please" in page


@pytest.mark.parametrize("name", ["PatientNMF", "SUSTain", "PatientSVD"])
def test_scores_without_courses(name, place, cohort, call):
    done = call("score", name, "cohort", "--out", "s.parquet", "--json", folder=place)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert not {"short_histories", "objective"} & set(record)
    assert record["patients"] == len(cohort)
    assert record["model_shareable"] is False
    found = pd.read_parquet(place / "s.parquet")
    model = load_model(place / name)
    labels = range(1, RANK + 1)
    kinds = [f"{kind}_{r}" for kind in ("phenotype", "amount", "share") for r in labels]
    assert list(found.columns) == ["patient", *kinds, "visits"]
    W = model.transform(cohort)
    np.testing.assert_array_equal(found[kinds[:RANK]], W)
    amounts = found[kinds[RANK : 2 * RANK]].to_numpy()
    assert np.array_equal(amounts, W) == (name != "SUSTain")
    squares = amounts**2
    total = np.where(squares.any(axis=1), squares.sum(axis=1), 1.0)
    np.testing.assert_allclose(found[kinds[2 * RANK :]], squares / total[:, None])
    np.testing.assert_array_equal(found["visits"], cohort.visit_counts)


def test_sizes_of_sustain_are_those_of_the_parts_of_the_tensor(place, cohort):
    model = load_model(place / "SUSTain")
    found = model.project(cohort)
    k = int(found.W.sum(axis=1).argmax())
    parts = np.einsum("r,ar,br->rab", found.W[k] * model.scales_, model.A_, model.B_)
    np.testing.assert_allclose(found.sizes[k], np.linalg.norm(parts, axis=(1, 2)))
    np.testing.assert_allclose(model.score_totals_, model.project(cohort).sizes.sum(axis=0))


def test_what_has_no_meaning_is_refused_in_one_sentence(place, call):
    before = sorted(path.name for path in place.iterdir())
    requests = {
        ("score", "PatientNMF", "cohort", "--out", "x.parquet", "--courses", "c.parquet"): "has no courses",
        ("report", "PatientSVD", "--cohort", "cohort", "--out", "x.html"): "may be negative",
        ("export", "Limestone", "--to", "model", "--out", "x"): "has no shareable copy",
        ("report", "cohort", "--out", "x.html"): "does not hold a taste-model or pooled-model",
    }
    for arguments, words in requests.items():
        refused(call(*arguments, folder=place), words)
    assert sorted(path.name for path in place.iterdir()) == before
    with pytest.raises(InputError, match="PatientNMF has no courses to describe"):
        course_features(load_model(place / "PatientNMF"), Cohort.load(place / "cohort"))


def test_a_review_names_merges_and_drops(place, cohort, call):
    model = load_model(place / "Limestone")
    blank = Review.blank(model, names={1: "Gout"})
    first, second, third = blank.decisions
    decisions = (first, replace(second, status="rejected"), replace(third, status="merged", merge_with=1))
    replace(blank, decisions=decisions).write(place / "review.json")
    arguments = ("--cohort", "cohort", "--review", "review.json", "--out", "r.html", "--json")
    record = json.loads(call("report", "Limestone", *arguments, folder=place).stdout)
    assert (record["phenotypes"], record["fingerprint"]) == (["Gout"], fingerprint(model))
    done = call("score", "Limestone", "cohort", "--review", "review.json", "--out", "r.parquet", folder=place)
    assert done.returncode == 0, done.stderr
    found = pd.read_parquet(place / "r.parquet")
    W = model.transform(cohort)
    np.testing.assert_allclose(found["phenotype_Gout"], W[:, 0] + W[:, 2])
    assert set(found["share_Gout"]) <= {0.0, 1.0}
    reviewed = model.apply_review(place / "review.json")
    totals = W.sum(axis=0)[[0, 2]]
    np.testing.assert_allclose(reviewed.V_[:, 0], model.V_[:, [0, 2]] @ (totals / totals.sum()))
    assert Patients.of(reviewed.project(cohort)).U is None


def test_a_cohort_that_was_built_otherwise_is_noted(place, tmp_path, call):
    cohort = Cohort.load(place / "cohort")
    for name, visit in (("week", "week"), ("day", "day")):
        cohort.origin = {"source": "omop", "settings": {"visit": visit}}
        cohort.save(tmp_path / name)
    baselines.PatientNMF(RANK, n_init=1, random_state=0).fit(cohort).save(tmp_path / "model")
    for name, noted in (("day", False), ("week", True)):
        done = call("score", "model", name, "--out", "s.parquet", "--json", folder=tmp_path)
        assert bool(json.loads(done.stdout)["warnings"]) is noted


@pytest.mark.parametrize(("name", "heading"), [("PatientLDA", "In records"), ("Marble", "In visits")])
def test_the_page_shows_no_panel_of_courses(name, heading, place, cohort, chromium, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render(content.build(load_model(place / name), cohort)), encoding="utf-8")
    opened = Opened(chromium, path.as_uri())
    seen = opened.page.locator("#phenotypes")
    assert seen.get_by_role("heading", name=heading).count() == RANK
    assert seen.get_by_role("heading", name="Its patients compared with the rest").count() == RANK
    assert seen.get_by_role("heading", name="Course over time").count() == 0
    assert "About the patient" not in seen.inner_text()
    opened.check()
    opened.context.close()
