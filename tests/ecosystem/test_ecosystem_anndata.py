"""Cohorts and models as AnnData objects of the real package, in memory and in its files, and back."""

import json
import os
import stat
import sys

import anndata
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import cohorts
from phenotaste import TASTE, Cohort, __version__, ecosystem, simulate
from phenotaste.ecosystem import write_anndata
from phenotaste.errors import InputError
from phenotaste.review import Review, fingerprint

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
PARTS = (
    "offsets",
    "static",
    "patient_ids",
    "visit_times",
    "last_times",
    "feature_names",
    "static_names",
    "labels",
    "groups",
)
TIMES = {"none": None, "days": "M8[D]", "seconds": "M8[s]", "numbers": "f8", "steps": "i4"}


def same(found, expected):
    np.testing.assert_array_equal(found.visits.toarray(), expected.visits.toarray())
    assert found.visits.dtype == expected.visits.dtype
    for name in PARTS:
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours is None) == (theirs is None), name
        if theirs is not None:
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype.kind == theirs.dtype.kind, name
    assert (found.allow_negative, found.origin) == (expected.allow_negative, expected.origin)


def dressed(cohort, times="days", named=True, ids=None, labels=None, float32=False):
    """The cohort with everything else that one may have; names hold what files and tables trip over."""
    visits, dtype = cohort.visits, TIMES[times]
    moments = last = None
    if dtype is not None:
        moments = np.concatenate([np.arange(n) for n in cohort.visit_counts]).astype(np.int64) * 3 + 14_000
        moments = moments.astype(dtype)
        last = (np.arange(len(cohort)) + 90_000).astype(dtype)
    names = [f"code/{j}" for j in range(cohort.n_features)]
    return Cohort(
        visits.astype(np.float32) if float32 else visits,
        cohort.offsets,
        cohort.static,
        patient_ids=ids,
        visit_times=moments,
        last_times=last,
        feature_names=names if named else None,
        static_names=["visits", "label", "a/b", "a|b"][: cohort.n_static]
        if named and cohort.n_static
        else None,
        labels=labels,
        groups=None if labels is None else ids if ids is not None else np.arange(len(cohort)) // 2,
        allow_negative=cohort.allow_negative,
        origin={"source": "simulated", "steps": [1, None]} if named else None,
    )


@pytest.fixture(scope="module")
def cohort():
    made, _ = simulate.heart_failure(60, random_state=4)
    ids = [f"secret-{k:03d}" for k in range(60)]
    return Cohort(
        made.visits,
        made.offsets,
        made.static,
        patient_ids=ids,
        visit_times=made.visit_times,
        feature_names=made.feature_names,
        static_names=made.static_names,
        labels=made.labels,
    )


@pytest.fixture(scope="module")
def model(cohort):
    return TASTE(3, n_init=1, init="random", random_state=0, max_iter=10).fit(cohort)


@given(cohorts.cohorts, st.sampled_from(sorted(TIMES)), st.booleans(), st.booleans(), st.booleans())
def test_a_cohort_round_trips(made, times, named, numbered, float32):
    rng = np.random.default_rng(0)
    ids = rng.permutation(len(made)) * 7 if numbered else [f"p/{k}" for k in range(len(made))]
    labels = rng.choice([0, 1, np.nan], len(made)) if named else None
    whole = dressed(made, times, named, ids, labels, float32)
    same(ecosystem.from_anndata(ecosystem.to_anndata(whole)), whole)


@pytest.mark.parametrize("times", sorted(TIMES))
@pytest.mark.parametrize("named", [True, False])
def test_a_cohort_round_trips_through_a_file(tmp_path, times, named):
    whole = dressed(cohorts.cohort(3), times, named, [f"p/{k}" for k in range(12)] if named else None)
    write_anndata(whole, tmp_path / "x.h5ad")
    same(ecosystem.from_anndata(anndata.read_h5ad(tmp_path / "x.h5ad")), whole)


def test_a_part_of_the_object_is_that_part_of_the_cohort(cohort):
    rows, columns = [7, 3, 50], [4, 0, 9]
    part = ecosystem.from_anndata(ecosystem.to_anndata(cohort)[rows, columns])
    expected = cohort[rows]
    np.testing.assert_array_equal(part.visits.toarray(), expected.visits.toarray()[:, columns])
    assert part.feature_names.tolist() == cohort.feature_names[columns].tolist()
    for name in ("offsets", "static", "patient_ids", "visit_times", "static_names", "labels"):
        np.testing.assert_array_equal(getattr(part, name), getattr(expected, name))


def test_static_features_and_labels_are_those_of_obs_now(cohort):
    adata = ecosystem.to_anndata(cohort)
    adata.obs["Static_male"] = 0.25
    adata.obs["label"] = 1.0
    del adata.obs["Static_female"]
    found = ecosystem.from_anndata(adata)
    assert found.static_names.tolist() == [name for name in cohort.static_names if name != "Static_female"]
    assert (found.static[:, 0] == 0.25).all()
    assert (found.labels == 1).all()


def test_contents_of_x_obs_and_var(cohort):
    adata = ecosystem.to_anndata(cohort)
    for k in (0, 17, 59):
        rows = cohort[k].visits.toarray()
        np.testing.assert_allclose(np.asarray(adata.X[[k]].todense()).ravel(), rows.sum(axis=0))
    assert adata.obs_names.tolist() == cohort.patient_ids.tolist()
    assert adata.var_names.tolist() == cohort.feature_names.tolist()
    assert adata.obs["visits"].tolist() == cohort.visit_counts.tolist()
    np.testing.assert_array_equal(adata.obs[cohort.static_names.tolist()], cohort.static)
    has = np.array([cohort[k].visits.toarray().any(axis=0) for k in range(60)])
    assert adata.var["patients"].tolist() == has.sum(axis=0).tolist()
    assert "model" not in adata.uns["phenotaste"]


def test_scores_and_definitions_of_a_model(cohort, model, tmp_path):
    write_anndata(cohort, tmp_path / "x.h5ad", model)
    for adata in (ecosystem.to_anndata(cohort, model), anndata.read_h5ad(tmp_path / "x.h5ad")):
        np.testing.assert_array_equal(adata.obsm["X_taste"], model.transform(cohort))
        np.testing.assert_allclose(adata.obsm["taste_shares"].sum(axis=1), 1)
        scores = adata.obs[["phenotype_1", "phenotype_2", "phenotype_3"]]
        np.testing.assert_array_equal(scores, adata.obsm["X_taste"])
        np.testing.assert_array_equal(adata.varm["taste"], model.V_)
        about = adata.uns["phenotaste"]["model"]
        assert about["fingerprint"] == fingerprint(model)
        assert about["method"] == "TASTE"
        assert adata.uns["phenotaste"]["version"] == __version__
        assert about["settings"]["rank"] == 3
        assert about["settings"]["lam"] == model.lam
        assert not {"engine", "callback", "n_jobs", "verbose"} & set(about["settings"])
        assert about["figures"]["rmse"] == pytest.approx(model.rmse_)
        assert list(about["phenotypes"]) == ["Phenotype 1", "Phenotype 2", "Phenotype 3"]
        np.testing.assert_array_equal(about["H"], model.H_)
        np.testing.assert_array_equal(about["F"], model.F_)
        assert list(about["static_names"]) == cohort.static_names.tolist()


def test_definitions_go_by_name_where_the_cohort_has_other_features(cohort, model):
    order = np.random.default_rng(0).permutation(cohort.n_features)[:20]
    other = Cohort(
        np.column_stack([cohort.visits.toarray()[:, order], np.ones(cohort.n_visits)]),
        cohort.offsets,
        cohort.static,
        patient_ids=cohort.patient_ids,
        feature_names=[*cohort.feature_names[order], "never heard of"],
        static_names=cohort.static_names,
    )
    found = ecosystem.to_anndata(other, model)
    np.testing.assert_array_equal(found.varm["taste"][:-1], model.V_[order])
    assert not found.varm["taste"][-1].any()
    np.testing.assert_array_equal(found.obsm["X_taste"], model.transform(other))


def test_a_review_names_and_drops_phenotypes(cohort, model, tmp_path):
    blank = Review.blank(model, names={1: "Heart/failure", 2: "Static_male"}).as_dict()
    blank["decisions"][2]["status"] = "rejected"
    reviewed = model.apply_review(blank)
    write_anndata(cohort, tmp_path / "x.h5ad", reviewed)
    adata = anndata.read_h5ad(tmp_path / "x.h5ad")
    np.testing.assert_array_equal(adata.obs["phenotype_Heart|failure"], reviewed.transform(cohort)[:, 0])
    assert list(adata.uns["phenotaste"]["model"]["phenotypes"]) == ["Heart/failure", "Static_male"]
    about = adata.uns["phenotaste"]["model"]
    assert json.loads(about["review"]) == reviewed.review.provenance_record()
    assert json.loads(about["decisions"]) == [reviewed.review.decision_record(number) for number in (1, 2)]
    assert adata.varm["taste"].shape == (cohort.n_features, 2)
    same(ecosystem.from_anndata(adata), cohort)


def test_without_visits_there_is_no_way_back(cohort):
    adata = ecosystem.to_anndata(cohort, visits=False)
    assert "visits" not in adata.uns["phenotaste"]
    for wrong in (adata, anndata.AnnData(np.eye(2)), 5):
        with pytest.raises(InputError, match="contains no visits"):
            ecosystem.from_anndata(wrong)


def test_renamed_entries_are_refused_without_their_names(cohort):
    adata = ecosystem.to_anndata(cohort)
    adata.obs_names = ["secret-new", *adata.obs_names[1:]]
    with pytest.raises(InputError, match="patients without stored visits") as refusal:
        ecosystem.from_anndata(adata)
    assert "secret" not in str(refusal.value)


def test_changing_the_object_does_not_change_the_cohort(cohort):
    adata = ecosystem.to_anndata(cohort)
    before = cohort.visits.toarray()
    adata.uns["phenotaste"]["visits"]["matrix"].data[:] = 9
    adata.X.data[:] = 9
    np.testing.assert_array_equal(cohort.visits.toarray(), before)


def test_the_file_is_private_and_written_atomically(cohort, model, tmp_path):
    path = tmp_path / "x.h5ad"
    write_anndata(cohort, path)
    before = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    unnamed = Cohort(cohort.visits[:, :5], cohort.offsets, cohort.static)
    with pytest.raises(InputError):
        write_anndata(unnamed, path, model)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.h5ad"]


def test_a_missing_package_is_named_with_its_extra(cohort, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(InputError, match=r"pip install 'phenotaste\[anndata\]'"):
        ecosystem.to_anndata(cohort)
    with pytest.raises(InputError, match=r"phenotaste\[anndata\]"):
        write_anndata(cohort, tmp_path / "x.h5ad")
    assert not os.listdir(tmp_path)


def test_names_are_plain_strings_under_any_pandas(cohort):
    adata = ecosystem.to_anndata(cohort)
    assert adata.obs.index.dtype == adata.var.index.dtype == object
    assert isinstance(adata.obs, pd.DataFrame)
