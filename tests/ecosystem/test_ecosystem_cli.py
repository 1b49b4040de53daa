"""`phenotaste export` and the names in files of scores: the command, its files, its refusals."""

import json
import os
import stat
from dataclasses import replace

import anndata
import meds
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from helpers.cli import refused, run, succeeded
from helpers.source_files import write_meds
from phenotaste import TASTE, Cohort, ecosystem, simulate
from phenotaste.ecosystem import Rule, write_meds_labels
from phenotaste.ecosystem.membership import MEASURES, find_members
from phenotaste.report.scores import write_scores
from phenotaste.review import Provenance, Review, fingerprint

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
SECRET = "secret-patient"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, a review of it, and cohorts: one with dates and whole ids, one without dates, one with texts as ids."""
    folder = tmp_path_factory.mktemp("export")
    made, _ = simulate.heart_failure(80, random_state=1)
    parts = {"feature_names": made.feature_names, "static_names": made.static_names}
    ids, times = 5000 + 3 * np.arange(80), made.visit_times
    whole = Cohort(made.visits, made.offsets, made.static, patient_ids=ids, visit_times=times, **parts)
    whole.save(folder / "cohort")
    Cohort(made.visits, made.offsets, made.static, patient_ids=ids, **parts).save(folder / "undated")
    texts = [f"{SECRET}-{k}" for k in range(80)]
    Cohort(made.visits, made.offsets, made.static, patient_ids=texts, visit_times=times, **parts).save(
        folder / "texts"
    )
    model = TASTE(3, n_init=1, init="random", random_state=0, max_iter=15).fit(whole)
    model.save(folder / "model")
    blank = Review.blank(model, names={2: "Heart failure"})
    earlier = Provenance("Dr B", "2026-01-31", "ab" * 32, "cd" * 32)
    carried = replace(blank.decisions[1], status="accepted", sources=(1,))
    decisions = (blank.decisions[0], carried, blank.decisions[2])
    replace(blank, decisions=decisions, based_on=(earlier,)).write(folder / "review.json")
    return folder


def test_help_shows_an_example(call):
    text = call("export", "--help", folder=".").stdout
    assert "phenotaste export model cohort --to omop-cohort --out cohorts" in text
    assert "patient-level" in text
    assert "export" in call("--help", folder=".").stdout


def test_meds_labels(call, place, tmp_path):
    arguments = ("--to", "meds-labels", "--threshold", 0.4, "--out", tmp_path / "labels")
    done = call("export", "model", "cohort", *arguments, "--review", "review.json", folder=place)
    assert done.returncode == 0, done.stderr
    assert "patient-level" in done.stdout
    assert "Heart failure" in done.stdout
    names = ["definition.json", *(f"phenotype_{r}.parquet" for r in (1, 2, 3))]
    assert sorted(os.listdir(tmp_path / "labels")) == names
    table = pq.read_table(tmp_path / "labels" / "phenotype_2.parquet")
    meds.LabelSchema.validate(table)
    model, cohort = TASTE.load(place / "model"), Cohort.load(place / "cohort")
    expected = find_members(model, cohort, Rule("share", 0.4))
    np.testing.assert_array_equal(table["boolean_value"].to_numpy(), expected.members[:, 1])


def test_a_threshold_with_few_members_is_reported(call, place, tmp_path):
    for threshold, reported in ((0.999, True), (0.2, False)):
        out = ("--threshold", threshold, "--out", tmp_path / str(threshold))
        done = call("export", "model", "cohort", "--to", "meds-labels", *out, folder=place)
        assert ("another --threshold may suit better" in " ".join(done.stdout.split())) is reported


def test_omop_cohort_as_a_process_of_its_own(place, tmp_path):
    by = ("--by", "amount", "--threshold", "1.5", "--first-id", 70)
    done = run(
        "export",
        "model",
        "cohort",
        "--to",
        "omop-cohort",
        *by,
        "--out",
        tmp_path / "o",
        "--json",
        folder=place,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["format"] == "omop-cohort"
    assert record["patient_level"] is True
    assert record["names"] == ["Phenotype 1", "Phenotype 2", "Phenotype 3"]
    assert [os.path.basename(file) for file in record["files"]] == sorted(os.listdir(tmp_path / "o"))
    rows = pd.read_csv(tmp_path / "o" / "cohort.csv")
    found = find_members(
        TASTE.load(place / "model"), Cohort.load(place / "cohort"), Rule("amount", 1.5)
    ).members
    counts = rows.groupby("cohort_definition_id").size().reindex([70, 71, 72], fill_value=0)
    assert counts.tolist() == found.sum(axis=0).tolist()
    # Rounded at random to a multiple of 5.
    assert all(abs(n - count) < 5 and n % 5 == 0 for n, count in zip(record["members"], counts, strict=True))


def test_anndata(call, place, tmp_path):
    out = tmp_path / "x.h5ad"
    done = call("export", "model", "texts", "--to", "anndata", "--out", out, folder=place)
    assert done.returncode == 0, done.stderr
    assert "patient-level" in done.stdout
    assert SECRET not in done.stdout
    adata = anndata.read_h5ad(out)
    cohort, model = Cohort.load(place / "texts"), TASTE.load(place / "model")
    np.testing.assert_array_equal(adata.obsm["X_taste"], model.transform(cohort))
    assert ecosystem.from_anndata(adata).patient_ids.tolist() == cohort.patient_ids.tolist()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    again = ("export", "model", "texts", "--to", "anndata", "--out", out)
    refused(call(*again, folder=place), "exists already")
    done = call(*again, "--overwrite", "--json", folder=place)
    assert json.loads(done.stdout)["files"] == [str(out)]


def test_from_meds_to_phenotypes_to_labels_and_into_a_cohort(call, tmp_path):
    """The labels of a phenotype are labels for the next cohort of the same data."""
    write_meds(tmp_path / "meds")
    succeeded(call("cohort", "meds", "meds", "--out", "COHORT", folder=tmp_path))
    succeeded(call("fit", "COHORT", "--rank", 2, "--out", "MODEL", folder=tmp_path))
    succeeded(call("export", "MODEL", "COHORT", *MEDS, "--out", "labels", folder=tmp_path))
    labels = ("--labels", "labels/phenotype_1.parquet", "--short-history")
    succeeded(call("cohort", "meds", "meds", *labels, "--out", "NEXT", folder=tmp_path))
    table = pq.read_table(tmp_path / "labels" / "phenotype_1.parquet").to_pydict()
    expected = dict(zip(table["subject_id"], table["boolean_value"], strict=True))
    found = Cohort.load(tmp_path / "NEXT")
    assert len(found) > 5
    assert [expected[subject] for subject in found.patient_ids.tolist()] == [bool(y) for y in found.labels]


MEDS, OMOP, ANNDATA = (("--to", name) for name in ("meds-labels", "omop-cohort", "anndata"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model", "texts", *MEDS, "--out", "new"], "integer"),
        (["model", "texts", *OMOP, "--out", "new"], "integer"),
        (["model", "undated", *OMOP, "--out", "new"], "dated visits"),
        (["model", "cohort", *OMOP, "--by", "score", "--out", "new"], "give --threshold"),
        (["model", "cohort", *OMOP, "--threshold", "-1", "--out", "new"], "above zero"),
        (["model", "cohort", *OMOP, "--threshold", "nan", "--out", "new"], "above zero"),
        (["model", "cohort", *MEDS, "--threshold", "2", "--out", "new"], "no share exceeds 1"),
        (["model", "cohort", *MEDS, "--first-id", "2", "--out", "new"], "leave out --first-id"),
        (["model", "cohort", *ANNDATA, "--threshold", "0.5", "--out", "new"], "leave out --threshold"),
        (["model", "cohort", *ANNDATA, "--by", "score", "--out", "new"], "leave out --threshold"),
        (["model", "cohort", *OMOP, "--first-id", "0", "--out", "new"], "first_id"),
        (["model", "cohort", *OMOP, "--out", "model"], "inside an input folder"),
        (["model", "cohort", *OMOP, "--out", "undated"], "exists already"),
        (["model", "cohort", *OMOP, "--out", "undated", "--overwrite"], "not part of an export"),
        (["model", "cohort", *OMOP, "--out", "none/new"], "does not exist"),
        (["model", "cohort", *ANNDATA, "--out", "none/new"], "does not exist"),
        (["model", "cohort", *ANNDATA, "--review", "review.json", "--out", "review.json"], "is the review"),
        (["cohort", "cohort", *OMOP, "--out", "new"], "does not hold a taste-model"),
    ],
)
def test_refusals(call, place, arguments, words):
    before = sorted(path for path in place.rglob("*"))
    done = call("export", *arguments, folder=place)
    refused(done, words)
    assert SECRET not in done.stderr
    assert sorted(path for path in place.rglob("*")) == before


def test_the_choices_are_those_of_the_library():
    from phenotaste.cli.export import MeasureChoice

    assert tuple(MeasureChoice) == MEASURES


def test_the_command_imports_no_heavy_package():
    import subprocess
    import sys

    code = "import sys, phenotaste.cli.export; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "numba", "pandas", "pyarrow", "anndata", "ehrdata"} & set(loaded.split())


def test_a_score_file_names_its_model_and_phenotypes(place, tmp_path):
    model, cohort = TASTE.load(place / "model"), Cohort.load(place / "cohort")
    reviewed = model.apply_review(place / "review.json")
    for chosen, names, labels in (
        (model, ["Phenotype 1", "Phenotype 2", "Phenotype 3"], ["1", "2", "3"]),
        (reviewed, ["Phenotype 1", "Heart failure", "Phenotype 3"], ["1", "Heart failure", "3"]),
    ):
        write_scores(chosen, cohort, tmp_path / "s.parquet", tmp_path / "c.parquet")
        for name in ("s.parquet", "c.parquet"):
            schema = pq.read_schema(tmp_path / name)
            about = json.loads(schema.metadata[b"phenotaste"])
            assert about["model"] == fingerprint(model)
            assert about["reviewed"] is (chosen is reviewed)
            assert about.get("review") == (
                reviewed.review.provenance_record() if chosen is reviewed else None
            )
            authors = [
                each["decided_by"][0]["reviewer"] for each in about["phenotypes"] if "decided_by" in each
            ]
            assert authors == (["", "Dr B", ""] if chosen is reviewed else [])
            assert [each["name"] for each in about["phenotypes"]] == names
            assert [each["numbers"] for each in about["phenotypes"]] == [[1], [2], [3]]
            assert [each["label"] for each in about["phenotypes"]] == labels
            assert {f"phenotype_{label}" for label in labels} <= set(schema.names)
            assert pq.read_table(tmp_path / name).to_pandas().shape[1] == len(schema.names)


def test_the_library_and_the_command_write_the_same(call, place, tmp_path):
    call("export", "model", "cohort", *MEDS, "--out", tmp_path / "one", folder=place)
    write_meds_labels(TASTE.load(place / "model"), Cohort.load(place / "cohort"), tmp_path / "two")
    for name in sorted(os.listdir(tmp_path / "two")):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
