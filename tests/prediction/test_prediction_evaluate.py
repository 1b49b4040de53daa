"""`prediction.evaluate`: the record, the folder, breaks and resumption, refusals, and what is not shown."""

import json
import os
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from phenotaste import TASTE, Cohort, InputError, course_features, prediction, simulate
from phenotaste.prediction import evaluation, figures
from phenotaste.prediction.methods import LABELS, SCORED, TuningSettings, checked_methods
from phenotaste.prediction.nested_split import EvaluationFolder, SplitSettings, Task, run_split
from phenotaste.prediction.split_cohorts import draw_split

SMALL = {"ranks": (3, 5), "splits": 2, "baselines": ["raw"], "resamples": 60, "C": [0.1, 1.0]}
SMALL |= {"max_iter": 20, "n_init": 1}
FILES = {
    "settings.json", "splits", "splits.csv", "summary.csv", "comparison.csv", "tuning.csv", "roc.csv",
    "calibration.csv", "coefficients.csv", "model", "figures", "prediction.md",
}  # fmt: skip


@pytest.fixture(scope="module")
def cohort():
    """A quarter are cases, by two of the phenotypes and chance: enough to be tested on for curves to be shown."""
    made, truth = simulate.heart_failure(700, 3)
    risk = truth.W[:, 0] + truth.W[:, 4] + np.random.default_rng(0).normal(0, 1, 700)
    labels = (risk > np.quantile(risk, 0.75)).astype(float)
    return Cohort(
        made.visits, made.offsets, made.static, visit_times=made.visit_times, labels=labels,
        feature_names=made.feature_names, static_names=made.static_names,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(cohort, tmp_path_factory):
    """A finished evaluation on disk; tests only look at it."""
    place = tmp_path_factory.mktemp("prediction") / "found"
    prediction.evaluate(cohort, out=place, **SMALL)
    return place


@pytest.fixture(scope="module")
def found(cohort):
    return prediction.evaluate(cohort, patients=True, **SMALL)


def bytes_of(place):
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.parent.name != "model"  # holds the time of its making
    }


def test_figures_are_those_of_the_predictions(found, cohort):
    """AUC of every split by scikit-learn, from the risks that were asked for."""
    table = found.predictions
    assert table.columns.tolist() == ["patient", "split", "method", "case", "risk"]
    for (method, split), part in table.groupby(["method", "split"]):
        row = found.splits[(found.splits["method"] == method) & (found.splits["split"] == split)].iloc[0]
        assert row["auc"] == pytest.approx(roc_auc_score(part["case"], part["risk"]))
        assert row["auc_low"] < row["auc"] < row["auc_high"]
        expected = draw_split(cohort.labels == 1, split, 0).test
        assert part["patient"].tolist() == cohort.patient_ids[expected].tolist()
        assert (part["case"] == (cohort.labels[part["patient"]] == 1)).all()
    by_hand = found.splits.groupby("method")["auc"].mean()
    for _, row in found.summary.iterrows():
        assert row["auc"] == pytest.approx(by_hand[row["method"]])
        assert row["auc_splits_low"] <= row["auc"] <= row["auc_splits_high"]


def test_settings_are_chosen_by_validation_auc_alone(found):
    for _, row in found.splits.iterrows():
        tried = found.tuning[
            (found.tuning["method"] == row["method"]) & (found.tuning["split"] == row["split"])
        ]
        assert row["validation_auc"] == tried["validation_auc"].max()
        best = tried[tried["validation_auc"] == row["validation_auc"]].iloc[0]
        np.testing.assert_equal([best["rank"], best["lam"], best["C"]], [row["rank"], row["lam"], row["C"]])
    means = found.tuning[found.tuning["method"] == "taste"].groupby("rank")["validation_auc"].mean()
    assert found.model.rank == means.idxmax()


def test_differences_are_paired(found):
    row = found.comparison.iloc[0]
    ours, raw = (found.splits[found.splits["method"] == name]["auc"].to_numpy() for name in ("taste", "raw"))
    assert row["difference"] == pytest.approx((ours - raw).mean())
    assert row["better_in"] == np.sum(ours > raw)
    # On the same resampled patients the difference is surer than either AUC.
    either = found.summary.set_index("method")
    widths = [either.loc[name, "auc_high"] - either.loc[name, "auc_low"] for name in ("taste", "raw")]
    assert row["difference_high"] - row["difference_low"] < np.hypot(*widths)


def test_phenotypes_that_carry_the_planted_risk_are_named():
    """Risk by the first and the last phenotype above all: their codes stand by the highest odds ratios."""
    cohort, truth = simulate.heart_failure(1000, 1)
    labels = (truth.W[:, 0] > np.quantile(truth.W[:, 0], 0.85)).astype(float)
    few = {"max_iter": 30, "n_init": 1, "resamples": 60}
    found = prediction.evaluate(cohort, labels, ranks=5, splits=2, baselines=[], **few)
    first = found.coefficients.iloc[0]
    column = found.model.V_[:, first["phenotype"] - 1]
    assert truth.V[:, 0] @ column / np.linalg.norm(column) > 0.95
    assert first["odds_ratio"] > 2
    assert first["odds_ratio_low"] > 1.5
    assert first["kept"] == 1.0
    assert first["reproduced_in_splits"] == 2
    assert first["splits_minimum"] > 1.5
    assert cohort.feature_names[column.argmax()] in first["definition"]
    others = found.coefficients.iloc[1:]["odds_ratio"]
    assert np.abs(np.log(others)).max() < np.log(first["odds_ratio"])


def test_courses_that_carry_the_planted_risk_are_named():
    """Cases are those in whom the first phenotype rises; the size of no phenotype tells them."""
    cohort, truth = simulate.heart_failure(900, 1)
    model = TASTE(rank=5, random_state=0, max_iter=30, n_init=1).fit(cohort)
    r = int(np.argmax([cohort_cosine(truth.V[:, 0], column) for column in model.V_.T]))
    rises = course_features(model, cohort)[f"phenotype_{r + 1}_slope"].to_numpy()
    labels = (rises > np.quantile(rises, 0.8)).astype(float)
    settings = {"ranks": 5, "splits": 2, "baselines": [], "resamples": 20, "max_iter": 30, "n_init": 1}
    found = prediction.evaluate(cohort, labels, courses=True, **settings)
    assert found.auc > prediction.evaluate(cohort, labels, **settings).auc + 0.1
    first = found.coefficients.iloc[0]
    assert len(found.coefficients) == 5 * 3
    assert cohort_cosine(truth.V[:, 0], found.model.V_[:, first["phenotype"] - 1]) > 0.9
    assert first["feature"] in ("slope", "last_quarter")
    assert first["reproduced_in_splits"] == 2
    page = evaluation.render(found)
    assert "Phenotype scores and courses of TASTE" in page
    assert f"| {first['phenotype']}, {first['feature'].replace('_', ' ')} |" in page
    found.plot("phenotypes")


def test_a_risk_that_grows_with_the_record_needs_its_size(cohort):
    """Scores of TASTE are relative to the size of the record, and those of NMF contain it."""
    norms = np.sqrt(
        np.bincount(np.repeat(np.arange(700), cohort.visit_counts), cohort.visits.power(2).sum(axis=1))
    )
    labels = (norms > np.quantile(norms, 0.75)).astype(float)
    few = SMALL | {"ranks": 3, "splits": 1, "baselines": ["nmf", "raw"], "resamples": 20}
    sized, unsized = (prediction.evaluate(cohort, labels, size=size, **few) for size in (True, False))
    assert sized.auc > 0.99
    assert unsized.auc < 0.8
    assert unsized.row("nmf")["auc"] > 0.95
    assert sized.row("raw")["auc"] == unsized.row("raw")["auc"]  # codes alone: it has no scores
    for found, words in ((sized, "TASTE and the size of the record predict"), (unsized, "TASTE predict")):
        assert found.as_dict()["size"] is (found is sized)
        assert len(found.coefficients) == 3
        assert words in evaluation.render(found)


def cohort_cosine(one, other):
    return one @ other / (np.linalg.norm(one) * np.linalg.norm(other))


def test_the_folder_is_complete_and_holds_no_patients(folder, cohort, found):
    assert {path.name for path in folder.iterdir()} == FILES
    page = (folder / "prediction.md").read_text()
    assert f"AUC of {found.auc:.3f}" in page
    for picture in ("roc", "calibration", "auc", "phenotypes"):
        assert f"figures/{picture}.png" in page
        assert (folder / "figures" / f"{picture}.png").stat().st_size > 5000
    saved = pd.read_csv(folder / "summary.csv").astype(found.summary.dtypes)  # 1.0 reads as an integer
    pd.testing.assert_frame_equal(saved, found.summary, rtol=1e-3)
    assert TASTE.load(folder / "model").V_.tobytes() == found.model.V_.tobytes()
    # Neither risks nor labels of single patients are in any file, nor a number for each test patient.
    tested = len(draw_split(cohort.labels == 1, 0, 0).test)
    for path in (folder / "splits").iterdir():
        arrays = EvaluationFolder(folder).load(Task(*_task(path))).arrays
        assert "risk" not in arrays
        assert all(tested not in array.shape for array in arrays.values())


def _task(path):
    method, _, split = path.stem.rpartition("-")
    return method, int(split)


def test_bits_do_not_depend_on_the_threads(cohort, found):
    again = prediction.evaluate(cohort, n_jobs=1, patients=True, **SMALL)
    assert again.predictions["risk"].to_numpy().tobytes() == found.predictions["risk"].to_numpy().tobytes()


def test_an_interrupted_run_resumes_to_the_same_result(cohort, folder, tmp_path):
    place = tmp_path / "broken"

    def break_off(now):
        if now.task.split == 1 and now.task.method == "taste":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prediction.evaluate(cohort, out=place, callback=break_off, **SMALL)
    assert len(pd.read_csv(place / "splits.csv")) == 2  # both methods of the first split
    kept = {path.name: path.stat().st_mtime_ns for path in (place / "splits").iterdir()}
    assert set(kept) == {"taste-0.safetensors", "raw-0.safetensors"}
    with pytest.raises(InputError, match="already holds this prediction"):
        prediction.evaluate(cohort, out=place, **SMALL)
    damaged = place / "splits" / "raw-0.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 1
    damaged.write_bytes(content)
    seen = []
    with pytest.warns(UserWarning, match="damaged: recomputed"):
        prediction.evaluate(cohort, out=place, resume=True, callback=seen.append, **SMALL)
    assert (place / "splits" / "taste-0.safetensors").stat().st_mtime_ns == kept["taste-0.safetensors"]
    assert [(now.task.method, now.task.split) for now in seen] == [
        ("raw", 0),
        ("taste", 1),
        ("taste", 1),
        ("raw", 1),
    ]
    assert (seen[-1].done, seen[-1].total, seen[-1].fraction) == (6, 6, 1.0)
    assert seen[0].done == 3  # two fits were done before the break
    assert bytes_of(place) == bytes_of(folder)


def test_splits_and_methods_may_be_added_but_no_setting_changed(cohort, tmp_path):
    place, small = tmp_path / "grown", SMALL | {"ranks": 3, "splits": 1, "baselines": []}
    first = prediction.evaluate(cohort, out=place, **small)
    grown = prediction.evaluate(cohort, out=place, resume=True, **small | {"splits": 2, "baselines": ["raw"]})
    assert grown.splits["auc"].iloc[0] == first.splits["auc"].iloc[0]
    assert len(grown.splits) == 4
    for other, word in ((SMALL, "ranks"), (small | {"random_state": 1}, "random_state")):
        with pytest.raises(InputError, match=rf"started with different settings \({word}\)"):
            prediction.evaluate(cohort, out=place, resume=True, **other)
    with pytest.raises(InputError, match=r"other results \(different labels\)"):
        prediction.evaluate(cohort, 1 - cohort.labels, out=place, resume=True, **small)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("")
    with pytest.raises(InputError, match="not from a prediction"):
        prediction.evaluate(cohort, out=tmp_path / "theirs", resume=True, **small)


def test_patient_risks_are_written_only_on_request_and_privately(cohort, tmp_path):
    place = tmp_path / "private"
    small = SMALL | {"ranks": 3, "splits": 1, "baselines": []}
    found = prediction.evaluate(cohort, out=place, patients=True, **small)
    table = pd.read_parquet(place / "predictions.parquet")
    assert table["risk"].to_numpy().tobytes() == found.predictions["risk"].to_numpy().tobytes()
    assert os.stat(place / "predictions.parquet").st_mode & 0o077 == 0
    assert os.stat(place / "splits").st_mode & 0o077 == 0
    assert prediction.evaluate(cohort, **small).predictions is None


def labels_with(cohort, **changes):
    labels = np.array(cohort.labels, float)
    for position, value in changes.items():
        labels[int(position[1:])] = value
    return labels


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"y": "nothing"}, "The cohort has no labels"),
        ({"y": "missing"}, "1 of 700 labels are missing"),
        ({"y": "one class"}, "1 class"),
        ({"y": "three classes"}, "3 class"),
        ({"y": "few"}, "fewer than 20 cases"),
        ({"y": "short"}, "one label per patient"),
        ({"splits": 0}, "splits=0"),
        ({"ranks": [0]}, "ranks contains 0"),
        ({"lams": []}, "lams is empty"),
        ({"C": [-1]}, "C must be"),
        ({"baselines": ["svm"]}, "method 'svm' does not exist"),
        ({"settings": {"gru": {"max_epochs": 2}}}, "gru, which is not among the methods"),
        ({"settings": {"raw": {"depth": 2}}}, "settings of raw contains a setting"),
        ({"max_iter": 0}, "max_iter=0"),
        ({"random_state": -1}, "random_state=-1"),
    ],
)
def test_refused_with_one_sentence_before_anything_is_written(cohort, tmp_path, arguments, sentence):
    labels = {
        "missing": labels_with(cohort, p5=np.nan),
        "one class": np.ones(700),
        "three classes": labels_with(cohort, p5=2.0),
        "few": (np.arange(700) < 15).astype(float),
        "short": np.ones(699),
    }
    arguments = SMALL | arguments
    y, used = arguments.pop("y", None), cohort
    if y == "nothing":
        used = Cohort(cohort.visits, cohort.offsets, cohort.static)
    with pytest.raises(InputError) as refused:
        prediction.evaluate(used, labels.get(y), out=tmp_path / "out", **arguments)
    assert sentence in str(refused.value)
    assert str(refused.value).count("\n") == 0
    assert not (tmp_path / "out").exists()


def test_unlabelled_patients_are_dropped_on_request(cohort):
    labels = labels_with(cohort, p5=np.nan, p9=np.nan)
    small = SMALL | {"ranks": 3, "splits": 1, "baselines": []}
    found = prediction.evaluate(cohort, labels, drop_unlabelled=True, patients=True, **small)
    assert found.counts["patients"] in (695, 700)  # 698, rounded
    assert not set(found.predictions["patient"]) & {5, 9}
    texts = np.where(cohort.labels == 1, "yes", "no").astype(object)
    texts[7] = None
    assert prediction.evaluate(cohort, texts, drop_unlabelled=True, **small).counts["patients"] in (695, 700)
    with pytest.raises(InputError, match="No patient has a label"):
        prediction.evaluate(cohort, np.full(700, np.nan), drop_unlabelled=True, **small)


def test_results_are_not_written_into_the_cohort_folder(cohort, tmp_path):
    cohort.save(tmp_path / "cohort")
    with pytest.raises(InputError, match="within the cohort's folder"):
        prediction.evaluate(tmp_path / "cohort", out=tmp_path / "cohort" / "found", **SMALL)


def test_few_cases_show_no_curves(tmp_path):
    """8 cases are tested on: an AUC of 105 patients may be told, curves and counts that give 8 away may not."""
    cohort = simulate.heart_failure(700, 3)[0]
    labels = np.zeros(700)
    labels[np.flatnonzero(cohort.labels)[:50]] = 1
    small = SMALL | {"ranks": 3, "splits": 1}
    found = prediction.evaluate(cohort, labels, out=tmp_path / "out", **small)
    assert found.counts["test_cases"] is None
    assert len(found.roc) == len(found.calibration) == 0
    assert {entry.where for entry in found.audit} >= {"ROC curve", "calibration", "prediction"}
    assert not (tmp_path / "out" / "figures" / "roc.png").exists()
    assert "too few test patients" in (tmp_path / "out" / "prediction.md").read_text()
    with pytest.raises(InputError, match="too few test patients"):
        found.plot("roc")
    open_gate = prediction.evaluate(cohort, labels, trusted=True, out=tmp_path / "trusted", **small)
    assert open_gate.counts["test_cases"] == 8
    assert len(open_gate.roc) > 0
    assert "Disclosure control is off" in (tmp_path / "trusted" / "prediction.md").read_text()


def test_rare_codes_are_not_named_with_a_phenotype(cohort):
    """A code of ten patients that leads a phenotype stays unnamed on the page."""
    visits = cohort.visits.toarray()
    mine = cohort.offsets[:10]
    visits = np.column_stack([visits, np.zeros(len(visits))])
    visits[mine, -1] = 500.0
    rare = Cohort(
        visits, cohort.offsets, cohort.static, labels=cohort.labels,
        feature_names=[*cohort.feature_names, "a rare disease"], static_names=cohort.static_names,
    )  # fmt: skip
    # With the paper's objective the largest entries lead.
    small = SMALL | {"ranks": 3, "splits": 1, "baselines": [], "objective": "paper"}
    found = prediction.evaluate(rare, **small)
    assert found.model.V_[-1].max() > 0.5
    assert not found.coefficients["definition"].str.contains("rare").any()
    assert (
        prediction.evaluate(rare, trusted=True, **small).coefficients["definition"].str.contains("rare").any()
    )


def test_methods_that_need_static_features_need_them(cohort):
    bare = Cohort(cohort.visits, cohort.offsets, labels=cohort.labels)
    assert checked_methods(None, static=False) == ["taste", "copa", "raw"]
    assert checked_methods(["raw", "taste", "raw"], static=True) == ["taste", "raw"]
    with pytest.raises(InputError, match="no static features"):
        prediction.evaluate(bare, **SMALL | {"baselines": ["raw-static"]})
    found = prediction.evaluate(bare, **SMALL | {"splits": 1, "ranks": 3})
    assert found.methods == ["taste", "raw"]


def test_all_methods_on_one_split(cohort):
    """Every method, networks of two epochs: risks are risks, figures finite."""
    settings = {"cntf": {"max_iter": 3, "max_epochs": 2}, "gru": {"max_epochs": 2, "hidden_size": 8}}
    settings |= {name: {"max_iter": 5} for name in ("nmf", "visit-nmf", "lda", "boosting")}
    case = cohort.labels == 1
    for method in set(LABELS) - {"taste", "raw"}:
        tuning = TuningSettings(ranks=(3,), max_iter=20, n_init=1, extra=settings)
        common = SplitSettings(tuning, resamples=5, keep_risk=True)
        found = run_split(cohort, case, Task(method, 0), common)
        risk = found.arrays["risk"]
        assert ((risk >= 0) & (risk <= 1)).all()
        assert 0 <= found.figures["auc"] <= 1
        assert ("V" in found.arrays) == (method in SCORED)


def test_every_method_has_a_line_of_its_own_in_figures():
    lines = [(figures.COLOURS[method], figures.DASHES.get(method, "-")) for method in LABELS]
    assert len(set(lines)) == len(lines)


def test_methods_without_courses_in_one_evaluation(cohort, tmp_path):
    """From the grid to the page; their own settings are reachable, and others refused."""
    simple = {"baselines": ["nmf", "svd"], "splits": 1, "settings": {"nmf": {"loss": "kullback-leibler"}}}
    found = prediction.evaluate(cohort, out=tmp_path / "out", **SMALL | simple)
    assert found.methods == ["taste", "nmf", "svd"]
    assert set(found.tuning[found.tuning["method"] == "svd"]["rank"]) == {3, 5}
    assert "| NMF |" in (tmp_path / "out" / "prediction.md").read_text()
    with pytest.raises(InputError, match="settings of svd"):
        prediction.evaluate(cohort, **SMALL | simple | {"settings": {"svd": {"tol": 1}}})
    negative = Cohort(-cohort.visits, cohort.offsets, labels=cohort.labels, allow_negative=True)
    with pytest.raises(InputError, match="negative"):
        prediction.evaluate(negative, **SMALL | {"baselines": ["lda"]})


def test_json_holds_no_number_that_json_lacks(found):
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert record["methods"][0]["method"] == "taste"
    assert record["phenotypes"][0]["odds_ratio"] > 0


def test_figures_by_name(found):
    for what in ("roc", "calibration", "auc", "phenotypes"):
        assert found.plot(what).axes
    with pytest.raises(InputError, match="no figure 'pie'"):
        found.plot("pie")


def test_mu_zero_warns_once(cohort):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        prediction.evaluate(cohort, **SMALL | {"ranks": 3, "splits": 1, "mus": 0.0, "baselines": []})
    assert sum("mu=0" in str(warning.message) for warning in said) == 1


def test_the_remaining_time_is_weighted_by_cost(cohort):
    seen = []
    prediction.evaluate(
        cohort,
        **SMALL | {"ranks": (3, 12), "splits": 1, "baselines": "raw", "max_iter": 2, "callback": seen.append},
    )
    assert [progress.done for progress in seen] == [1, 2, 3]
    assert [(progress.task.method, progress.task.candidate.rank) for progress in seen] == [
        ("taste", 3),
        ("taste", 12),
        ("raw", None),
    ]
    fractions = [progress.fraction for progress in seen]
    assert fractions[0] < fractions[1] - fractions[0]
    assert fractions[-1] == 1.0
