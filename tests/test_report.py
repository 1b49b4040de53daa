"""The summary, the page and the figures: what they say, and what they must never show."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import made_up
from phenotaste import TASTE, Cohort, report, simulate
from phenotaste.errors import InputError
from phenotaste.report import counts, figures, page
from phenotaste.report.patients import NOBODY, Patients, mean_course, patients_of, timing

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def cohort():
    made, _ = simulate.heart_failure(200, random_state=2)
    names, static_names = list(made.feature_names), list(made.static_names)
    names[0], names[1], static_names[0] = HOSTILE, r"$\frac$ 心臓" + "\n\x1b[2J", "'\"><svg onload=alert(1)>"
    ids = [f"patient-{k:04d}-secret" for k in range(len(made))]
    return Cohort(
        made.visits,
        made.offsets,
        made.static,
        patient_ids=ids,
        visit_times=made.visit_times,
        feature_names=names,
        static_names=static_names,
    )


@pytest.fixture(scope="module")
def model(cohort):
    fitted = TASTE(4, random_state=0).fit(cohort)
    fitted.V_[0], fitted.V_[1], fitted.F_[0] = 0.9, 0.8, 0.7  # so that the odd names are in every table
    return fitted


def strict_json(record):
    return json.dumps(record, allow_nan=False)


def test_summary_is_the_same_after_save_and_load(model, tmp_path):
    model.save(tmp_path / "model")
    summary = report.fit_summary(model)
    assert report.fit_summary(TASTE.load(tmp_path / "model")) == summary
    assert (summary.patients, summary.phenotypes, summary.static_features) == (200, 4, 22)
    assert json.loads(strict_json(summary.as_dict()))["converged"] is True
    lines = dict(summary.lines())
    assert lines["Patients"] == "200"
    assert lines["Outcome"] == "converged"
    assert "Time" in dict(report.fit_summary(model, seconds=1.0).lines())


def test_summary_of_a_fit_that_is_not_well(model):
    fitted = TASTE(2, max_iter=2, random_state=0).fit(made_up.cohort(n_patients=6, visits=(0, 4)))
    fitted.cpi_ = float("nan")
    summary = report.fit_summary(fitted)
    assert summary.as_dict()["cpi"] is None
    assert "raise max_iter" in dict(summary.lines())["Outcome"]
    shown = dict(summary.lines(hide_small=True))
    assert shown["Patients"] == "<11"
    assert shown["Visits"] == "not shown"
    assert shown["Empty histories"] == "<11"


def test_page_shows_every_definition_and_escapes_every_name(model, tmp_path):
    report.write(model, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in text
    for danger in ("<script", "</script", "<img", "<svg onload", "\x1b", "http:", "https:", 'src="', "url("):
        assert danger not in text, danger
    assert "default-src 'none'" in text
    table = model.phenotypes(top=page.TOP)
    assert text.count("<tr><td>") == len(table)
    widths = [float(width) for width in re.findall(r'class="(?:temporal|static)" width="([\d.]+)"', text)]
    np.testing.assert_allclose(widths, 100 * table["weight"], atol=0.051)
    assert "200" in text


def test_neither_page_nor_figures_know_patients(model, cohort, tmp_path):
    report.write(model, tmp_path / "report.html", cohort)
    paths = figures.save_all(model, tmp_path / "figures", cohort)
    assert [path.name for path in paths] == ["definitions.png", "loss.png", "courses.png", "shares.png"]
    times = {str(day) for day in cohort.visit_times}
    for path in [tmp_path / "report.html", *paths]:
        content = path.read_bytes()
        assert content.startswith((b"<!doctype html>", b"\x89PNG"))
        assert b"secret" not in content
        assert not any(day.encode() in content for day in times)
    patients = patients_of(model)
    for figure in (figures.definitions(model), figures.loss_curve(model), *drawn(patients)):
        assert "secret" not in " ".join(text.get_text() for text in figure.findobj(match=has_text))


def has_text(artist):
    return hasattr(artist, "get_text") and callable(artist.get_text)


def drawn(patients):
    return figures.courses(patients), figures.shares(patients)


def test_a_model_without_patients_has_a_page_and_two_figures(model, cohort, tmp_path):
    model.save(tmp_path / "model")
    loaded = TASTE.load(tmp_path / "model")
    assert patients_of(loaded) is None
    assert "leads in" not in page.render(loaded)
    assert len(figures.save_all(loaded, tmp_path / "without")) == 2
    assert len(figures.save_all(loaded, tmp_path / "with", cohort)) == 4
    report.write(loaded, tmp_path / "report.html", cohort)
    assert "leads in" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("rank", [1, 7])
def test_page_and_figures_of_few_and_of_many_phenotypes(rank, tmp_path):
    small = made_up.cohort(seed=3, n_patients=40, n_features=9, n_static=0)
    fitted = TASTE(rank, random_state=0, max_iter=10).fit(small)
    report.write(fitted, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert text.count('<article class="card">') == rank
    assert "About the patient" not in text
    assert len(figures.save_all(fitted, tmp_path)) == 4


def test_nothing_is_drawn_of_fewer_than_eleven(cohort):
    fitted = TASTE(2, random_state=0).fit(cohort[:15])
    patients = patients_of(fitted)
    lines = [line for axis in figures.courses(patients).axes for line in axis.lines]
    assert lines
    alone = [line for line in lines if "third" in line.get_label() or "between" in line.get_label()]
    assert all(np.isnan(line.get_ydata()).all() for line in alone)
    heights = [bar.get_height() for axis in figures.shares(patients).axes for bar in axis.patches]
    assert set(heights) <= {0, 11}
    text = page.render(fitted, patients)
    assert "leads in &lt;11 patients" in text or "leads in some patients" in text


@given(st.lists(st.one_of(st.integers(0, 12), st.integers(0, 2000)), min_size=1, max_size=8))
def test_small_counts_cannot_be_had_by_subtraction(found):
    hidden = counts.hidden_parts(found)
    assert all(count >= 11 for i, count in enumerate(found) if i not in hidden)
    secret = [found[i] for i in hidden]
    if any(secret) and len(hidden) < len(found):
        assert len(secret) >= 2
        assert sum(secret) >= 11
    for i, text in enumerate(counts.shown_parts(found)):
        assert (str(found[i]) in text.replace(",", "")) == (i not in hidden) or found[i] in (1, 11)
    steps = counts.in_steps(np.array(found))
    assert all(step == 0 or step >= 11 for step in steps)


def test_shares_intensities_and_leading_phenotypes():
    rng = np.random.default_rng(0)
    offsets = np.array([0, 3, 3, 4, 9])
    U, W = rng.random((9, 3)), rng.random((4, 3))
    W[2] = 0
    patients = Patients(W, U, offsets)
    for k in range(4):
        block = U[offsets[k] : offsets[k + 1]]
        strength = W[k] * np.linalg.norm(block, axis=0)
        total = strength.sum()
        np.testing.assert_allclose(patients.shares()[k], strength / total if total else 0)
        np.testing.assert_allclose(patients.intensities()[k], strength / np.sqrt(max(len(block), 1)))
        assert patients.leading()[k] == (strength.argmax() if total else NOBODY)
    assert sum(patients.leading_counts()) == 4
    assert patients.leading_counts()[-1] == 2


def test_mean_courses_and_timing():
    rng = np.random.default_rng(1)
    visits = rng.integers(0, 9, 30)
    offsets = np.concatenate([[0], np.cumsum(visits)])
    patients = Patients(rng.random((30, 2)), rng.random((offsets[-1], 2)), offsets)
    grid, everybody = np.linspace(0, 1, 5), np.arange(30)
    expected, middles = [], []
    for k in np.flatnonzero(visits):
        course = patients.U[offsets[k] : offsets[k + 1], 1]
        along = np.linspace(0, 1, len(course)) if len(course) > 1 else np.zeros(1)
        expected.append(patients.W[k, 1] * np.interp(grid, along, course))
        middles.append(np.sum(along * course) / course.sum())
    np.testing.assert_allclose(mean_course(patients, 1, everybody, 5), np.mean(expected, axis=0))
    np.testing.assert_allclose(timing(patients, 1)[visits > 0], middles)
    assert np.isnan(timing(patients, 1)[visits == 0]).all()
    assert mean_course(patients, 1, np.flatnonzero(visits)[:10], 5) is None


def no_space(handle):
    raise OSError(28, "No space left on device")


def test_a_page_that_fails_leaves_the_old_one(model, tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("the old one")
    monkeypatch.setattr(
        os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        report.write(model, target)
    assert target.read_text() == "the old one"
    assert os.listdir(tmp_path) == ["report.html"]
    with pytest.raises(InputError, match="does not exist"):
        report.write(model, tmp_path / "nowhere" / "report.html")


def test_matplotlib_comes_only_with_the_first_figure():
    program = """
import sys
from phenotaste import TASTE, report, simulate
from phenotaste.report import figures
assert "matplotlib" not in sys.modules
cohort, _ = simulate.recovery(n_patients=12)
figures.loss_curve(TASTE(2, max_iter=2).fit(cohort))
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
