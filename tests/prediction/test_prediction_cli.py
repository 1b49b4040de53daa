"""`phenotaste predict`: what it prints, writes and refuses."""

import json

import pandas as pd
import pytest

from phenotaste import Cohort, simulate
from phenotaste.cli.options import labels_from
from phenotaste.cli.predict import parse_methods

SMALL = ("--ranks", "3", "--splits", "2", "--baselines", "raw", "--resamples", "40")
SMALL += ("--max-iter", "20", "--n-init", "1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    cohort = simulate.heart_failure(500, 3)[0]
    cohort.save(folder / "cohort")
    table = pd.DataFrame({"patient": cohort.patient_ids, "label": cohort.labels})
    table.sample(frac=1.0, random_state=0).to_csv(folder / "labels.csv", index=False)
    table.to_parquet(folder / "labels.parquet", index=False)
    table.iloc[:-3].to_csv(folder / "some.csv", index=False)
    table.assign(patient="x" + table["patient"].astype(str)).to_csv(folder / "strangers.csv", index=False)
    pd.concat([table, table.head(1)]).to_csv(folder / "twice.csv", index=False)
    table.assign(label="yes").to_csv(folder / "words.csv", index=False)
    table.rename(columns={"label": "outcome"}).to_csv(folder / "unnamed.csv", index=False)
    (folder / "torn.parquet").write_bytes(b"PAR1")
    return folder


@pytest.fixture
def call(call, place):
    """`phenotaste predict` within this process: its exit status and what it prints."""

    def call_predict(*arguments):
        result = call("predict", *arguments, folder=place)
        return result.returncode, result.stdout, result.stderr

    return call_predict


def test_from_cohort_to_page_and_resumed(call, place):
    status, out, err = call("cohort", "--out", "found", *SMALL)
    assert status == 0, err
    for words in (
        "AUC on test patients, mean of 2 splits",
        "TASTE's AUC minus that of",
        "odds ratio",
        "prediction.md",
    ):
        assert words in out
    assert not (place / "found" / "predictions.parquet").exists()
    status, out, err = call("cohort", "--out", "found", *SMALL, "--resume", "--json")
    assert status == 0, err
    record = json.loads(out)
    assert [row["method"] for row in record["methods"]] == ["taste", "raw"]
    assert record["model"] == "found/model"
    assert record["size"] is True
    status, _, err = call("cohort", "--out", "found", *SMALL, "--resume", "--no-size")
    assert (status, "different settings (size)" in err) == (1, True)
    assert record["rank"] == 3


def test_courses_stand_beside_the_scores(call, place):
    few = (
        "--ranks",
        "2",
        "--splits",
        "1",
        "--baselines",
        "none",
        "--resamples",
        "5",
        "--max-iter",
        "10",
        "--n-init",
        "1",
    )
    status, _, err = call("cohort", "--out", "courses", "--courses", *few)
    assert status == 0, err
    table = pd.read_csv(place / "courses" / "coefficients.csv")
    assert set(table["feature"]) == {"score", "last_quarter", "slope"}
    assert len(table) == 2 * 3


@pytest.mark.parametrize(
    "names", ["patient,label", "patient,time,value", "subject_id,prediction_time,boolean_value"]
)
def test_labels_may_have_the_names_that_label_tables_of_cohorts_have(place, names):
    cohort = Cohort.load(place / "cohort")
    rows = [
        (identifier, int(label)) for identifier, label in zip(cohort.patient_ids, cohort.labels, strict=True)
    ]
    middle = "2020-01-01," if names.count(",") == 2 else ""
    lines = [f"{identifier},{middle}{label}" for identifier, label in rows]
    file = place / "named.csv"
    file.write_text("\n".join([names, *lines]) + "\n")
    assert labels_from(file, cohort).tolist() == cohort.labels.tolist()


def test_labels_of_a_file_are_matched_by_patient(call, place):
    few = (*SMALL, "--splits", 1)
    of_cohort = json.loads(call("cohort", "--out", "own", *few, "--json")[1])
    for file in ("labels.csv", "labels.parquet"):
        status, out, err = call("cohort", "--out", file[-3:], *few, "--json", "--labels", file)
        assert status == 0, err
        assert json.loads(out)["methods"] == of_cohort["methods"]
    status, out, err = call("cohort", "--out", "few", *few, "--labels", "some.csv")
    assert (status, out) == (1, "")
    assert "3 of 500 labels are missing" in err
    status, out, err = call(
        "cohort", "--out", "few", *few, "--json", "--labels", "some.csv", "--drop-unlabelled"
    )
    assert status == 0, err
    assert json.loads(out)["patients"] in (495, 500)  # 497, rounded


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--splits", 0), "splits=0"),
        (("--baselines", "svm"), "method 'svm' does not exist"),
        (("--labels", "strangers.csv"), "no label for any patient"),
        (("--labels", "twice.csv"), "two rows for one patient"),
        (("--labels", "words.csv"), "not a number"),
        (("--labels", "unnamed.csv"), "no column label"),
        (("--labels", "torn.parquet"), "neither a valid CSV nor a valid Parquet"),
        (("--labels", "nowhere.csv"), "nowhere.csv"),
        (("--tol", -1), "tol=-1"),
    ],
)
def test_refused_with_one_sentence(call, place, options, sentence):
    status, out, err = call("cohort", "--out", "refused", "--ranks", "3", *options)
    assert (status, out) == (1, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert not (place / "refused").exists()


def test_patient_level_and_trusted_output_are_announced(call, place):
    status, out, err = call("cohort", "--out", "private", *SMALL, "--splits", 1, "--patients", "--trusted")
    assert status == 0, err
    assert "fewer than 11 patients: keep these files with the data" in err
    assert "predictions.parquet" in out
    assert len(pd.read_parquet(place / "private" / "predictions.parquet")) == 2 * 75


@pytest.mark.parametrize("options", [("--ranks", "three"), ("--lams", "x")])
def test_unreadable_options_are_invalid_usage(call, options):
    status, out, err = call("cohort", "--out", "misuse", *options)
    assert (status, out) == (2, "")
    assert "Traceback" not in err


def test_methods_by_name():
    assert parse_methods(None, True) is None
    assert parse_methods("none", True) == []
    assert parse_methods("copa, gru", True) == ["copa", "gru"]
    simple = ["nmf", "visit-nmf", "lda", "svd", "boosting"]
    assert parse_methods("all", True) == ["copa", "copa-static", "cntf", "gru", "raw", "raw-static", *simple]
    assert parse_methods("all", False) == ["copa", "cntf", "gru", "raw", *simple]


def test_help_shows_an_example(call):
    status, out, _ = call("--help")
    assert status == 0
    assert "phenotaste predict cohort --out prediction" in out
