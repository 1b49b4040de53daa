"""`phenotaste refit` and `fit --guides`: what they print and write, and how they refuse."""

import json

import numpy as np
import pytest

from helpers.cli import refused, succeeded
from helpers.reviewed_models import decided
from phenotaste import TASTE, baselines, simulate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cohort, a model and its review."""
    path = tmp_path_factory.mktemp("refit")
    cohort, _ = simulate.ehr(80, n_features=30, n_static=5, mean_visits=8, rank=3, random_state=2)
    cohort.save(path / "cohort")
    model = TASTE(3, random_state=0, n_init=1, max_iter=30).fit(cohort)
    model.save(path / "model")
    decided(model, "accepted", "rejected", "open", names=("Gout", "Care")).write(path / "review.json")
    return path


def test_refit_writes_a_new_model_and_says_where_phenotypes_are_from(call, folder, tmp_path):
    out = tmp_path / "model2"
    arguments = (
        "refit",
        folder / "model",
        folder / "cohort",
        "--review",
        folder / "review.json",
        "--out",
        out,
    )
    shown = succeeded(call(*arguments, "--rank", 3)).stdout
    assert "Gout" in shown
    assert "accepted, from 1, cosine 1.000" in shown
    assert "open, from 3" in shown
    assert "Care (in the fit, not shown)" in shown
    before, after = TASTE.load(folder / "model"), TASTE.load(out)
    np.testing.assert_array_equal(after.V_[:, 0], before.V_[:, 0])
    assert not out.with_name("model2.work").exists()
    refused(call(*arguments), "exists already")
    refused(call(*arguments[:-1], folder / "model"), "is the model that was reviewed")
    refused(
        call("refit", out, *arguments[2:-1], tmp_path / "model3"), "review is of another model"
    )  # that of the first model
    refused(call(*arguments[:-1], tmp_path / "model3", "--freedom", 1), "freedom=1.0 must be")


def test_refit_prints_json_and_columns_of_scores_have_the_names(call, folder, tmp_path):
    out = tmp_path / "model2"
    arguments = (
        "refit",
        folder / "model",
        folder / "cohort",
        "--review",
        folder / "review.json",
        "--out",
        out,
    )
    found = json.loads(succeeded(call(*arguments, "--freedom", 0.1, "--json")).stdout)
    assert found["refit"]["freedom"] == 0.1
    assert [row["from"] for row in found["refit"]["phenotypes"]] == [[1], [3]]
    assert found["refit"]["phenotypes"][0]["cosine"] >= 0.9
    scored = call("score", out, folder / "cohort", "--out", tmp_path / "scores.parquet", "--json")
    assert json.loads(succeeded(scored).stdout)["names"] == ["Gout", "Phenotype 2"]


def test_only_a_model_of_taste_is_fitted_again(call, folder, tmp_path):
    from phenotaste import Cohort

    baselines.CohenPlus(2, max_iter=2, n_init=1).fit(Cohort.load(folder / "cohort")).save(tmp_path / "other")
    options = ("--review", folder / "review.json", "--out", tmp_path / "model2")
    refused(call("refit", tmp_path / "other", folder / "cohort", *options), "a model of CohenPlus")


def test_fit_reads_guides(call, folder, tmp_path):
    cohort, truth = simulate.ehr(80, n_features=30, n_static=5, mean_visits=8, rank=3, random_state=2)
    codes = [str(cohort.feature_names[j]) for j in truth.V[:, 0].argsort()[-3:]]
    (tmp_path / "guides.toml").write_text(f"Gout = {json.dumps(codes)}\n")
    arguments = ("fit", folder / "cohort", "--rank", 3, "--n-init", 1, "--max-iter", 20)
    out = ("--guides", tmp_path / "guides.toml", "--out", tmp_path / "guided", "--json")
    assert json.loads(succeeded(call(*arguments, *out)).stdout)["warnings"] == []
    assert TASTE.load(tmp_path / "guided").names_ == ["Gout", "", ""]
    (tmp_path / "guides.toml").write_text('Flu = ["Dx_Flu"]\n')
    refused(call(*arguments, *out[:2], "--out", tmp_path / "other"), "No code of the guide 'Flu'")


@pytest.mark.parametrize("option", ["--guides", "--review"])
def test_a_federated_fit_refuses_guides_and_reviews(call, tmp_path, option):
    refused(
        call("federated", "init", tmp_path / "work", "--sites", "a,b", option, "x"),
        "neither --guides nor --review",
    )
    assert not (tmp_path / "work").exists()
