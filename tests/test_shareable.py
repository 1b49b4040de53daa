"""Models that may be passed on: nothing of too few patients is in any file, and they still score."""

import json

import numpy as np
import pytest

from helpers.cli import succeeded
from phenotaste import TASTE, Cohort, baselines, report, simulate
from phenotaste.errors import InputError
from phenotaste.report import content

RARE, LEVEL = "Dx_zxrare", "origin=zxlevel"


@pytest.fixture(scope="module")
def cohort():
    """Of the first patient alone: a code, a level and nothing else unusual."""
    made, _ = simulate.heart_failure(300, random_state=0)
    visits = np.column_stack([made.visits.toarray(), np.zeros(made.n_visits)])
    visits[0, -1] = 3.0
    level = np.zeros(len(made))
    level[0] = 1.0
    return Cohort(
        visits,
        made.offsets,
        np.column_stack([made.static, level]),
        visit_times=made.visit_times,
        feature_names=[*made.feature_names, RARE],
        static_names=[*made.static_names, LEVEL],
        labels=made.labels,
    )


@pytest.fixture(scope="module")
def model(cohort):
    return TASTE(3, random_state=0, max_iter=10, n_init=1, init="random").fit(cohort)


@pytest.fixture(scope="module")
def shared(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared") / "model"
    return folder, model.save(folder, shareable=True)


def every_byte(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_nothing_of_one_patient_is_in_any_file(model, shared, tmp_path):
    folder, dropped = shared
    model.save(tmp_path / "kept")
    for name in (RARE, LEVEL):
        assert name[3:].encode() in every_byte(tmp_path / "kept")
        assert name[3:].encode() not in every_byte(folder)
    again = TASTE.load(folder)
    assert dropped.temporal == len(model.V_) - len(again.V_) > 0
    assert dropped.static == len(model.F_) - len(again.F_) > 0
    for name, having in (
        *zip(model.feature_names_in_, model.feature_patients_, strict=True),
        *zip(model.static_names_in_, model.static_patients_, strict=True),
    ):
        if having < 11:
            assert name not in again.feature_names_in_
            assert name not in again.static_names_in_
    for counts in (again.feature_patients_, again.static_patients_, [again.n_patients_]):
        assert np.min(counts) >= 15
        assert not np.any(np.remainder(counts, 5))
    assert again.n_empty_ is None
    assert again.rounding_key_ is None


def test_it_scores_as_a_model_without_the_dropped_features(model, shared, cohort):
    again = TASTE.load(shared[0])
    others = cohort[200:]
    kept = np.isin(model.feature_names_in_, again.feature_names_in_)
    facts = np.isin(model.static_names_in_, again.static_names_in_)
    reduced = TASTE(**model.get_params())
    vars(reduced).update(vars(model))
    reduced.V_, reduced.feature_names_in_ = model.V_[kept], model.feature_names_in_[kept]
    reduced.F_, reduced.static_names_in_ = model.F_[facts], model.static_names_in_[facts]
    reduced.n_features_in_, reduced.mean_scores_ = int(kept.sum()), again.mean_scores_
    np.testing.assert_array_equal(again.transform(others), reduced.transform(others))
    close = np.abs(again.transform(others) - model.transform(others)).max(axis=1)
    assert np.median(close) < 0.05
    assert (
        again.phenotypes()["feature"]
        .isin(again.feature_names_in_.tolist() + again.static_names_in_.tolist())
        .all()
    )


def test_manifests_say_whether_a_model_is_shareable(model, shared, cohort, tmp_path):
    folder, dropped = shared
    manifest = json.loads((folder / "manifest.json").read_text())["meta"]
    assert manifest["shareable"] is True
    assert manifest["dropped"] == dropped._asdict()
    again = TASTE.load(folder)
    assert again.shareable_
    again.save(tmp_path / "copy")
    assert TASTE.load(tmp_path / "copy").shareable_
    model.save(tmp_path / "kept")
    manifest = json.loads((tmp_path / "kept" / "manifest.json").read_text())["meta"]
    assert manifest["shareable"] is False
    assert "keep it where the data is" in manifest["sharing"]
    assert not TASTE.load(tmp_path / "kept").shareable_
    again.set_params(max_iter=2, n_init=1).fit(cohort).save(tmp_path / "fitted")  # on other data than it was
    assert not TASTE.load(tmp_path / "fitted").shareable_


def test_a_report_of_it_shows_what_that_of_the_model_shows(model, shared, cohort, tmp_path):
    ours = content.build(TASTE.load(shared[0]))
    theirs = content.build(model, cohort)
    assert [f.name for f in ours.features.temporal] == [f.name for f in theirs.features.temporal]
    assert [f.name for f in ours.features.static] == [f.name for f in theirs.features.static]
    assert [p.rates for p in ours.phenotypes] == [p.rates for p in theirs.phenotypes]
    report.write(TASTE.load(shared[0]), tmp_path / "report.html", cohort)
    assert "zxrare" not in (tmp_path / "report.html").read_text()


def test_what_cannot_be_made_shareable(model, cohort, tmp_path):
    with pytest.raises(InputError, match="holds no patients"):
        model.save(tmp_path / "model", include_patients=True, shareable=True)
    few = TASTE(2, random_state=0, max_iter=2, n_init=1, init="random").fit(cohort[:10])
    with pytest.raises(InputError, match="too few patients"):
        few.save(tmp_path / "model", shareable=True)
    settings = {"rank": 2, "beta": 0, "predictor": None, "max_iter": 2}
    pytest.importorskip("torch")
    with pytest.raises(InputError, match="CNTF"):
        baselines.CNTF(**settings, random_state=0).fit(cohort[:60]).save(tmp_path / "model", shareable=True)
    assert not list(tmp_path.iterdir())


def test_features_without_names_keep_their_positions(cohort, tmp_path):
    bare = Cohort(cohort.visits, cohort.offsets, cohort.static)
    model = TASTE(2, random_state=0, max_iter=3, n_init=1, init="random").fit(bare)
    dropped = model.save(tmp_path / "model", shareable=True)
    again = TASTE.load(tmp_path / "model")
    assert again.V_.shape == model.V_.shape
    assert not again.V_[-1].any()
    assert not again.F_[-1].any()
    assert np.sum(again.feature_patients_ == 0) == dropped.temporal
    assert again.transform(bare[:5]).shape == (5, 2)


def test_thresholds_of_few_patients_are_dropped(model, tmp_path):
    row = {"vocabulary": "LOINC", "unit": "mg", "low": 1.23456, "high": 9.87654, "values": 1234}
    changed = TASTE(**model.get_params())
    vars(changed).update(vars(model))
    changed.cohort_thresholds_ = [
        row | {"code": "zxfew", "patients": 4},
        row | {"code": "many", "patients": 400},
    ]
    assert changed.save(tmp_path / "model", shareable=True).thresholds == 1
    assert b"zxfew" not in every_byte(tmp_path / "model")
    (kept,) = TASTE.load(tmp_path / "model").cohort_thresholds_
    assert (kept["low"], kept["patients"], kept["values"]) == (1.23, 400, 1200)


def test_commands(cohort, tmp_path, call):
    cohort.save(tmp_path / "cohort")
    fit = ["fit", "cohort", "--rank", "2", "--max-iter", "3", "--n-init", "1"]
    assert json.loads(succeeded(call(*fit, "--out", "model", "--json")).stdout)["shareable"] is False
    exported = succeeded(call("export", "model", "--to", "model", "--out", "shared", "--json"))
    assert json.loads(exported.stdout)["dropped"]["temporal"] > 0
    direct = succeeded(call(*fit, "--out", "direct", "--shareable", "--json"))
    assert json.loads(direct.stdout)["dropped"]["static"] > 0
    for name, shareable in (("model", False), ("shared", True), ("direct", True)):
        scored = succeeded(call("score", name, "cohort", "--out", "scores.parquet", "--json"))
        assert json.loads(scored.stdout)["model_shareable"] is shareable
        assert (b"zxrare" in every_byte(tmp_path / name)) is not shareable
    assert "not shareable" in call("score", "model", "cohort", "--out", "scores.parquet").stdout
    for wrong, words in (
        (["export", "model", "cohort", "--to", "model", "--out", "x"], "takes the model only"),
        (["export", "model", "--to", "anndata", "--out", "x.h5ad"], "give the folder of their cohort"),
        (["export", "model", "--to", "model", "--out", "model"], "is the model itself"),
        ([*fit, "--out", "x", "--shareable", "--include-patients"], "excludes"),
    ):
        refused = call(*wrong)
        assert refused.returncode == 1
        assert words in refused.stderr
    assert not (tmp_path / "x").exists()
