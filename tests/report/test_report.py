"""The page, the figures and the tables: what they say, and what they must never show."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers import cohorts
from phenotaste import TASTE, Cohort, baselines, report, simulate
from phenotaste.disclosure import Gate, rounded
from phenotaste.errors import InputError
from phenotaste.plotting import encode_figure
from phenotaste.report import content, model_figures, table_files
from phenotaste.report.patients import patients_of
from phenotaste.report.writer import render

HOSTILE = "</script><img src=x onerror=alert(1)>"
MIN_CELL_SIZE = 11


@pytest.fixture(scope="module")
def cohort():
    made, _ = simulate.heart_failure(200, random_state=2)
    names, static_names = list(made.feature_names), list(made.static_names)
    names[0], names[1], static_names[0] = HOSTILE, r"$\frac$ 心臓" + "\n\x1b[2J", "'\"><svg onload=alert(1)>"
    names[2] = '=HYPERLINK("x")'
    ids = [f"patient-{k:04d}-secret" for k in range(len(made))]
    return Cohort(
        made.visits,
        made.offsets,
        made.static,
        patient_ids=ids,
        visit_times=made.visit_times,
        feature_names=names,
        static_names=static_names,
        labels=made.labels,
    )


@pytest.fixture(scope="module")
def model(cohort):
    fitted = TASTE(4, n_init=1, random_state=0).fit(cohort)
    fitted.V_[0], fitted.V_[1], fitted.F_[0] = 0.9, 0.8, 0.7  # so that the odd names are in every table
    fitted.V_[2] = 0.6
    return fitted


@pytest.fixture(scope="module")
def built(model, cohort):
    return content.build(model, cohort)


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


def test_summary_of_a_problematic_fit():
    fitted = TASTE(2, max_iter=2, n_init=1, init="random", random_state=0).fit(
        cohorts.cohort(n_patients=6, visits=(0, 4))
    )
    fitted.cpi_ = float("nan")
    summary = report.fit_summary(fitted)
    assert summary.as_dict()["cpi"] is None
    assert "raise max_iter" in dict(summary.lines())["Outcome"]
    assert dict(summary.lines())["CPI"] == "undefined"


# Figures and tables show what the content says


def texts(figure):
    return [
        artist.get_text()
        for artist in figure.findobj(match=lambda a: hasattr(a, "get_text") and callable(a.get_text))
    ]


def test_every_figure_as_png_and_pdf_without_the_date(built, tmp_path):
    paths = model_figures.save_all(built, tmp_path)
    names = ["definitions", "loss", "map", "prevalence", "courses", "visits", "months", "profiles"]
    assert [path.name for path in paths if path.stem != "outcome"] == [
        f"{name}.{kind}" for name in names for kind in ("png", "pdf")
    ]
    for path in paths:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG" if path.suffix == ".png" else b"%PDF")
        assert b"CreationDate" not in data
        assert b"secret" not in data
    assert encode_figure(model_figures.definitions(built), "png") == paths[0].read_bytes()


def test_figures_match_the_content(built):
    first = model_figures.panels.typical_courses(built)
    for axis, phenotype in zip(first.axes, built.phenotypes, strict=True):
        assert [list(line.get_ydata()) for line in axis.lines] == [t.curve for t in phenotype.typical]
    bars = model_figures.prevalence(built).axes[0].patches
    shown = [x for p in built.phenotypes for x in (p.prevalence, p.leading.share) if x is not None]
    np.testing.assert_allclose([bar.get_width() for bar in bars], 100 * np.array(shown))
    meshes = [axis.images[0].get_array() for axis in model_figures.definitions(built).axes if axis.images]
    assert {float(value) for mesh in meshes for value in mesh.ravel()} <= {0.0} | {
        w for p in built.phenotypes for _, w in (*p.temporal, *p.static)
    }
    band = built.phenotypes[0].course.months
    assert list(model_figures.panels.over_months(built).axes[0].lines[0].get_ydata()) == band.median


def test_figures_of_a_model_alone_and_with_a_cohort(model, cohort, tmp_path):
    model.save(tmp_path / "model")
    loaded = TASTE.load(tmp_path / "model")
    assert patients_of(loaded) is None
    alone = model_figures.save_all(loaded, tmp_path / "without", formats=("png",))
    assert [path.stem for path in alone] == ["definitions", "loss", "map"]
    assert len(model_figures.drawings(content.build(loaded, cohort))) >= 7


@pytest.mark.parametrize("rank", [1, 7])
def test_figures_and_tables_of_few_and_of_many_phenotypes(rank, tmp_path):
    small = cohorts.cohort(seed=3, n_patients=40, n_features=9, n_static=0)
    shown = content.build(TASTE(rank, n_init=1, init="random", random_state=0, max_iter=10).fit(small), small)
    assert model_figures.save_all(shown, tmp_path, formats=("png",))
    assert table_files.save_all(shown, tmp_path)
    tiny = content.build(
        TASTE(rank, n_init=1, init="random", random_state=0, max_iter=10).fit(small[:9]), small[:9]
    )
    assert next(iter(model_figures.drawings(tiny))) == "definitions"
    assert model_figures.save_all(tiny, tmp_path / "tiny", formats=("png",))
    assert table_files.save_all(tiny, tmp_path / "tiny")


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_tables_match_the_content(built, tmp_path):
    paths = {path.name: path for path in table_files.save_all(built, tmp_path)}
    rows = read(paths["definitions.csv"])
    assert len(rows) == sum(len(p.temporal) + len(p.static) for p in built.phenotypes)
    assert sum(float(row["weight"]) for row in rows) == pytest.approx(
        sum(w for p in built.phenotypes for _, w in (*p.temporal, *p.static))
    )
    assert any(row["feature"] == HOSTILE for row in rows)
    assert any(row["feature"] == '\'=HYPERLINK("x")' for row in rows)
    for row, phenotype in zip(read(paths["phenotypes.csv"]), built.phenotypes, strict=True):
        for column, value in (
            ("prevalence", phenotype.prevalence),
            ("leading_patients", phenotype.leading.patients),
            ("odds_ratio", phenotype.outcome.odds_ratio),
        ):
            assert row[column] == ("" if value is None else str(value))
    assert len(read(paths["hidden.csv"])) == len(built.audit)
    assert len(read(paths["typical_courses.csv"])) == 21 * sum(len(p.typical) for p in built.phenotypes)
    assert "DISCLOSURE_CONTROL_IS_OFF.txt" not in paths


def test_latex_in_the_layout_of_the_paper(built, tmp_path):
    text = table_files.definitions_tex(built)
    assert text.count(r"\begin{longtable}") == text.count(r"\end{longtable}") == 1
    assert text.count(r"\midrule") == 4
    assert r"\textbf{Phenotype 1} & \textbf{Weight} & \textbf{Rate} \\" in text
    assert text.count("\\textcolor{static}{") == 1 + 3 * sum(
        w >= 0.1 for p in built.phenotypes for _, w in p.static
    )
    assert text.count("{") == text.count("}")
    assert r"\textless{}/script\textgreater{}" in text
    assert r"\$\textbackslash{}frac\$" in text
    assert "\x1b" not in text


def test_latex_escapes_every_special_character():
    assert table_files.escape_tex("a_b & 5% {x} ~^\\ #$\n[y]") == (
        r"a\_b \& 5\% \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{} \#\$ {[}y{]}"
    )


def test_trusted_figures_and_tables_are_marked(model, cohort, tmp_path):
    loud = content.build(model, cohort, gate=Gate(trusted=True))
    figure = model_figures.prevalence(loud)
    model_figures.mark_trusted(figure, loud)
    assert any("OFF" in text for text in texts(figure))
    assert (tmp_path / "DISCLOSURE_CONTROL_IS_OFF.txt") in table_files.save_all(loud, tmp_path)
    assert "OFF" in (tmp_path / "definitions.tex").read_text()
    assert '"trusted":true' in render(loud).replace(" ", "")


# Nothing of fewer than eleven patients, no id, no date: random small cohorts

DATES = [np.datetime64("1987-06-05") + day for day in range(4000)]
STATIC = ["sex=F", "sex=M", "sex=zxother", "age=80-89", "age=90-94", "age=95+", "zxcount", "zxrare"]


def secret_cohort(seed, n_patients, n_features):
    """Ids, dates and names that can be searched for, rare features, small groups, labels with gaps."""
    rng = np.random.default_rng(seed)
    visits = rng.integers(0, 6, n_patients)
    kind = rng.choice(3, n_patients, p=[0.6, 0.3, 0.1])
    owner = np.repeat(np.arange(n_patients), visits)
    chance = np.where(np.arange(n_features) % 3 == kind[owner][:, None], 0.6, 0.05)
    chance = chance * rng.choice([0.02, 0.3, 1.0], n_features)
    chance[:, 0] = rng.choice([0.3, 0.95])  # what nearly everybody has tells who has not
    X = (rng.random(chance.shape) < chance).astype(float)
    sex = rng.choice(3, n_patients, p=[0.55, 0.4, 0.05])
    age = rng.choice(3, n_patients, p=[0.7, 0.2, 0.1])
    count = rng.poisson(0.3, n_patients)
    rare = rng.random(n_patients) < 0.08
    start = rng.integers(0, 3000, n_patients)
    step = rng.integers(1, 90, len(owner))
    offsets = np.concatenate([[0], np.cumsum(visits)])
    days = start[owner] + np.concatenate([np.cumsum(step[a:b]) for a, b in pairwise(offsets)] or [[]]).astype(
        int
    )
    labels = rng.choice([0.0, 1.0, np.nan], n_patients, p=[0.6, 0.3, 0.1])
    return Cohort(
        X,
        offsets,
        np.column_stack([np.eye(3)[sex], np.eye(3)[age], count, rare]),
        patient_ids=[f"zxid{k:05d}" for k in rng.permutation(n_patients)],
        visit_times=np.array(DATES)[days],
        feature_names=[f"Dx_zxcode{j:03d}" for j in range(n_features)],
        static_names=STATIC,
        labels=labels,
        origin={
            "attrition": [
                {"step": "zxfirst", "patients": n_patients + int(rng.integers(0, 40))},
                {"step": "after 1990-01-02", "patients": n_patients},
            ]
        },
    )


def everything_shown(shown, folder):
    """The bytes of the page and of the tables, and every text of the figures."""
    found = [render(shown)]
    found += [path.read_text() for path in table_files.save_all(shown, folder)]
    for draw in model_figures.drawings(shown).values():
        found += texts(draw(shown))
    return "\n".join(found)


def static_of(cohort):
    found = {name: cohort.static[:, j] for j, name in enumerate(STATIC)}
    old = found.pop("age=90-94") + found.pop("age=95+")
    return found | {"age=90+": old}


def has_feature(cohort, name):
    j = list(cohort.feature_names).index(f"Dx_{name}")
    rows = cohort.visits.toarray()[:, j] > 0
    return np.array([rows[a:b].any() for a, b in pairwise(cohort.offsets)])


class ByHand:
    """Who is in which group, from the raw data and the factors, in plain loops."""

    def __init__(self, model, cohort, fitted_on):
        self.cohort, self.K, self.fitted_on = cohort, len(cohort), fitted_on
        R = model.V_.shape[1]
        patients = patients_of(model, cohort)
        squares = np.zeros((self.K, R))
        for k in range(self.K):
            rows = slice(cohort.offsets[k], cohort.offsets[k + 1])
            sizes = 1.0 if patients.U is None else np.linalg.norm(patients.U[rows], axis=0)
            squares[k] = (patients.W[k] * sizes) ** 2
        total = squares.sum(axis=1, keepdims=True)
        self.share = np.divide(squares, total, out=np.zeros_like(squares), where=total > 0)
        self.lead = np.where(total[:, 0] > 0, self.share.argmax(axis=1), R)
        self.static, self.static_at_fit = static_of(cohort), static_of(fitted_on)

    def check(self, shown):
        """Every statistic that is shown is of nobody or of at least eleven, and so is what it leaves out."""
        for feature in shown.features.temporal:
            self.safe(has_feature(self.cohort, feature.name), feature.share)
            assert has_feature(self.fitted_on, feature.name).sum() >= MIN_CELL_SIZE
        for feature in shown.features.static:
            assert np.count_nonzero(self.static_at_fit[feature.name]) >= MIN_CELL_SIZE
            if feature.name != "zxcount":
                self.safe(self.static[feature.name] > 0, feature.share)
        for r, phenotype in enumerate(shown.phenotypes):
            mine = self.lead == r
            self.safe(self.share[:, r] >= 0.1, phenotype.prevalence)
            self.safe(mine, phenotype.leading.share)
            for fact in phenotype.profile:
                self.check_contrast(fact, mine)
            if phenotype.outcome is not None and phenotype.outcome.odds_ratio is not None:
                assert all(np.sum(mine & (self.cohort.labels == label)) >= MIN_CELL_SIZE for label in (0, 1))
            if phenotype.typical:
                assert mine.sum() >= MIN_CELL_SIZE * len(phenotype.typical)
            self.check_bands(phenotype.course, mine)

    def safe(self, members, shown):
        if shown is not None:
            n = int(members.sum())
            assert n >= MIN_CELL_SIZE
            near = [m * 5 for m in range(100) if abs(m * 5 - n) < 5]
            sizes = [m * 5 for m in range(1, 100) if abs(m * 5 - self.K) < 5]
            assert shown in [rounded(part / size) for part in near for size in sizes]

    def check_contrast(self, fact, mine):
        if fact.leading is None:
            assert fact.rest is None
            assert fact.effect is None
            return
        assert mine.sum() >= MIN_CELL_SIZE
        assert (~mine).sum() >= MIN_CELL_SIZE
        if fact.feature in ("visits", "months of follow-up"):
            return
        values = self.static[fact.feature]
        if fact.kind == "share":
            assert np.sum(mine & (values > 0)) >= MIN_CELL_SIZE
            assert fact.leading == pytest.approx(np.mean(values[mine] > 0), abs=9 / (mine.sum() - 4))

    def check_bands(self, course, mine):
        visits = self.cohort.visit_counts
        if course.visits is not None:
            assert min(np.sum(mine & (visits >= x)) for x in course.visits.x) >= MIN_CELL_SIZE
        if course.months is not None:
            times, offsets = self.cohort.visit_times, self.cohort.offsets
            for x in course.months.x:
                there = 0
                for k in np.flatnonzero(mine):
                    days = (times[offsets[k] : offsets[k + 1]] - times[offsets[k]]) / np.timedelta64(1, "D")
                    there += bool(np.any(np.floor(days / (365.25 / 12)) == x))
                assert there >= MIN_CELL_SIZE or course.months.x[1] - course.months.x[0] > 1

    def small_statistics(self):
        """Texts of shares of one to ten patients of a group, to be searched for."""
        found = set()
        groups = [self.lead == r for r in range(self.share.shape[1])] + [np.ones(self.K, bool)]
        for group in [*groups, *(~group for group in groups[:-1])]:
            for members in (*(v > 0 for v in self.static.values()), self.cohort.labels == 1):
                n = np.sum(members & group)
                if 0 < n < MIN_CELL_SIZE:
                    found.add(str(rounded(n / group.sum())))
        return {text for text in found if len(text) >= 5}  # shorter ones are in any text


def statistics(shown):
    """The part of the content that is about patients: weights and curves are numbers by the thousand."""
    record = shown.as_dict()
    for phenotype in record["phenotypes"]:
        for model_part in ("temporal", "static", "mass", "course", "typical", "similar", "stability"):
            del phenotype[model_part]
    for model_part in ("map", "loss"):
        del record["overview"][model_part]
    figures = record["overview"]["figures"]
    record["overview"]["figures"] = [line for line in figures if line[0] not in ("CPI", "RMSE")]
    lines = record["overview"]["cohort"]  # quartiles are of all patients with visits, or none
    record["overview"]["cohort"] = [line for line in lines if "quartiles" not in line[1]]
    del record["fingerprint"], record["card"]
    return json.dumps(record)


def numbers_in(text):
    return set(re.findall(r"\d+(?:\.\d+)?", text))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**31),
    n_patients=st.integers(8, 140),
    rank=st.integers(1, 4),
    others=st.booleans(),
    courses=st.sampled_from([True, True, False]),
)
@example(seed=70447149, n_patients=139, rank=1, others=False, courses=True)
@example(seed=0, n_patients=14, rank=4, others=True, courses=True)
@example(seed=35269418, n_patients=63, rank=1, others=False, courses=True)  # nine others
def test_no_output_describes_fewer_than_eleven_patients(seed, n_patients, rank, others, courses, tmp_path):
    cohort = secret_cohort(seed, n_patients, 12)
    fitted_on = secret_cohort(seed + 1, 100, 12) if others else cohort
    if not fitted_on.visits.nnz:
        return
    if courses:
        model = TASTE(rank, max_iter=4, n_init=1, init="random", random_state=0).fit(fitted_on)
    else:
        model = baselines.PatientNMF(rank, max_iter=4, random_state=0).fit(fitted_on)
    shown = content.build(model, cohort)
    by_hand = ByHand(model, cohort, fitted_on)
    by_hand.check(shown)
    text = everything_shown(shown, tmp_path)
    assert "zxid" not in text
    assert not re.search(r"19[89]\d-\d\d-\d\d", text)
    for j in range(12):
        if has_feature(fitted_on, f"zxcode{j:03d}").sum() < MIN_CELL_SIZE:
            assert f"zxcode{j:03d}" not in text
    for name, values in by_hand.static_at_fit.items():
        if np.count_nonzero(values) < MIN_CELL_SIZE:
            assert name not in text
    assert "age=9" not in text.replace("age=90+", "")
    if n_patients < MIN_CELL_SIZE:
        assert shown.overview.cohort == []
        return
    sizes = range(MIN_CELL_SIZE, n_patients + 1)
    safe = {str(rounded(n / m)) for m in sizes for n in (0, *range(MIN_CELL_SIZE, m + 1))}
    if others:  # rates are of the patients of the fit, and one of them may equal a share of these patients
        safe |= {str(rate) for p in shown.phenotypes for rate in p.rates}
    effects = {str(abs(c.effect)) for p in shown.phenotypes for c in p.profile if c.effect}
    odds = {
        str(x)
        for p in shown.phenotypes
        if p.outcome
        for x in (p.outcome.odds_ratio, p.outcome.low, p.outcome.high)
    }
    means = {
        str(x) for p in shown.phenotypes for c in p.profile if c.kind == "mean" for x in (c.leading, c.rest)
    }
    forbidden = by_hand.small_statistics() - safe - effects - odds - means
    assert not forbidden & numbers_in(statistics(shown))


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31))
def test_trusted_use_shows_small_counts_and_is_marked(seed, tmp_path):
    cohort = secret_cohort(seed, 30, 12)
    model = TASTE(2, max_iter=4, n_init=1, init="random", random_state=0).fit(cohort)
    shown = content.build(model, cohort, gate=Gate(trusted=True))
    text = everything_shown(shown, tmp_path)
    assert "zxrare" in text
    assert "age=95+" in text
    assert "zxid" not in text
    assert not re.search(r"19[89]\d-\d\d-\d\d", text)
    assert "switched off" in text
    assert all(c.leading is not None for p in shown.phenotypes for c in p.profile)
    assert [p.leading.patients for p in shown.phenotypes] == patients_of(model).leading_counts()[:-1]


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


def test_matplotlib_is_imported_with_the_first_figure_only():
    program = """
import sys
from phenotaste import TASTE, report, simulate
from phenotaste.report import content, model_figures
cohort, _ = simulate.recovery(n_patients=12)
shown = content.build(TASTE(2, max_iter=2, n_init=1, init="random").fit(cohort), cohort)
assert "matplotlib" not in sys.modules
model_figures.loss(shown)
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_summary_claims_uniqueness_only_where_cpi_is_informative():
    patients, _ = simulate.ehr(60, n_features=30, rank=3, mean_visits=12, random_state=1)
    found = report.fit_summary(TASTE(3, n_init=1, random_state=0).fit(patients))
    assert found.cpi > 0.9 > found.short_histories / found.patients
    for summary, words in (
        (found, "the phenotypes are unique"),
        (replace(found, cpi=0.5), "not unique: try a larger mu"),
        (replace(found, short_histories=31), "most histories are short"),
        (replace(found, cpi=float("nan")), "undefined"),
    ):
        assert words in dict(summary.lines())["CPI"]
