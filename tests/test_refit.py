"""A model fitted again after a review: what stays to the bit, what is hidden, and where each phenotype is from."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from helpers.fits import assert_same
from helpers.reviewed_models import decided
from phenotaste import TASTE, Cohort, metrics, report, simulate
from phenotaste.engines import Checkpoint, DiskEngine
from phenotaste.errors import InputError
from phenotaste.metrics import cosines
from phenotaste.review import Decision, Review, fingerprint
from phenotaste.shareable import shareable_copy

MIXED = ("accepted", "rejected", 4, "open", "open")  # 3 is merged into 4


@pytest.fixture(scope="module")
def cohort():
    return simulate.ehr(120, n_features=40, n_static=6, mean_visits=12, rank=4, random_state=3)[0]


@pytest.fixture(scope="module")
def model(cohort):
    return TASTE(5, random_state=0, n_init=1, max_iter=60).fit(cohort)


@pytest.fixture(scope="module")
def review(model):
    return decided(model, *MIXED, names=("Gout", "Care", "", "Both", ""))


@pytest.fixture(scope="module")
def again(cohort, model, review):
    return model.refit(cohort, review, rank=4)


def with_settings(model, **settings):
    """The fitted model with other settings."""
    return copy.copy(model).set_params(**settings)


def test_accepted_and_rejected_definitions_stay_to_the_bit(model, again):
    assert (again.rank, again.V_.shape[1], again.W_.shape[1], len(again.H_)) == (4, 4, 4, 4)
    for shown, hidden, before in (
        (again.V_, again.background_.V, model.V_),
        (again.F_, again.background_.F, model.F_),
    ):
        np.testing.assert_array_equal(shown[:, 0], before[:, 0])
        np.testing.assert_array_equal(hidden[:, 0], before[:, 1])
        assert (shown[:, 2] != before[:, 4]).any()  # open: it moved
    assert (np.diff(again.loss_curve_) <= 0).all()


def test_the_record_says_where_each_phenotype_is_from(model, review, again):
    record = again.refit_
    found = [(row["phenotype"], row["from"], row["decision"], row["name"]) for row in record["phenotypes"]]
    assert found == [
        (1, [1], "accepted", "Gout"),
        (2, [3, 4], "merged", "Both"),
        (3, [5], "open", ""),
        (4, [], "new", ""),
    ]
    assert record["phenotypes"][0]["cosine"] == pytest.approx(1.0)
    assert record["phenotypes"][2]["cosine"] == pytest.approx(again.V_[:, 2] @ model.V_[:, 4])
    assert [(row["from"], row["name"]) for row in record["rejected"]] == [([2], "Care")]
    assert record["model"] == fingerprint(model) == record["rejected"][0]["model"]
    assert (record["reviewer"], record["date"]) == ("Ann", review.date)
    assert again.names_ == ["Gout", "Both", "", ""]


def test_figures_are_of_all_columns_and_scores_of_those_shown(cohort, again):
    assert metrics.objective(again, cohort) == pytest.approx(again.loss_curve_[-1], rel=1e-12)
    assert metrics.rmse(again, cohort) == pytest.approx(again.rmse_, rel=1e-12)
    assert metrics.cpi(again) == pytest.approx(again.cpi_, rel=1e-12)
    found = again.project(cohort[:9])
    assert found.W.shape == (9, 4)
    assert found.U.shape == (cohort[:9].n_visits, 4)
    assert metrics.objective(again, cohort[:9]) == pytest.approx(found.loss, rel=1e-12)
    np.testing.assert_allclose(
        again.H_.T @ again.H_, np.delete(np.delete(cross(again), 1, 0), 1, 1), atol=1e-12
    )


def cross(model):
    return model.background_.H.T @ model.background_.H


def test_merged_phenotypes_begin_at_their_sum_and_are_estimated_anew(cohort, model):
    short = with_settings(model, max_iter=1).refit(cohort, decided(model, "open", "open", 4, "open", "open"))
    merged = model.apply_review(decided(model, "open", "open", 4, "open", "open")).V_[:, 2]
    assert short.V_.shape[1] == 4
    assert cosines(short.V_[:, 2:3], merged[:, None])[0, 0] > 0.9


@pytest.mark.parametrize("freedom", [0.02, 0.3])
def test_freedom_is_how_far_the_cosine_may_fall(model, freedom):
    other = simulate.ehr(120, n_features=40, n_static=6, mean_visits=12, rank=4, random_state=8)[0]
    found = model.refit(other, decided(model, *["accepted"] * 5), freedom=freedom)
    reached = [(row["cosine"], row["static_cosine"]) for row in found.refit_["phenotypes"]]
    assert np.min(reached) >= 1 - freedom - 1e-12
    assert np.min(reached) < 1 - freedom / 2  # other patients pull
    assert (np.diff(found.loss_curve_) <= 0).all()


def test_a_review_that_decides_nothing_gives_the_fit(cohort, model):
    found = model.refit(cohort, decided(model, *["open"] * 5, names=("Gout",)))
    assert_same(found, TASTE(**model.get_params()).fit(cohort))
    assert found.names_ == ["Gout", "", "", "", ""]
    assert [row["from"] for row in found.refit_["phenotypes"]] == [[1], [2], [3], [4], [5]]


def test_where_nothing_is_left_to_fit_scores_are_those_of_transform(cohort, model):
    empty = Cohort(
        cohort.visits,
        [*cohort.offsets, cohort.n_visits],
        np.vstack([cohort.static, cohort.static[:1]]),
        feature_names=cohort.feature_names,
        static_names=cohort.static_names,
    )  # the last patient has no history
    expected = model.transform(empty)
    accepted = model.refit(empty, decided(model, *["accepted"] * 5, order=(3, 1)))
    np.testing.assert_allclose(accepted.W_, expected, atol=1e-12)
    np.testing.assert_array_equal(accepted.H_, model.H_)
    some = model.refit(empty, decided(model, "accepted", "rejected", "accepted", "accepted", "rejected"))
    np.testing.assert_allclose(some.W_, expected[:, [0, 2, 3]], atol=1e-12)
    np.testing.assert_allclose(some.transform(empty), expected[:, [0, 2, 3]], atol=1e-12)


def test_everything_is_saved_and_loaded(cohort, again, tmp_path):
    again.save(tmp_path / "model")
    loaded = TASTE.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(cohort[:9]), again.transform(cohort[:9]))
    assert (loaded.refit_, loaded.names_, loaded.n_starts_) == (again.refit_, again.names_, again.n_starts_)
    assert fingerprint(loaded) == fingerprint(again)
    assert loaded.background_.W is None
    again.save(tmp_path / "patients", include_patients=True)
    with_patients = TASTE.load(tmp_path / "patients")
    assert metrics.objective(with_patients, cohort) == pytest.approx(again.loss_curve_[-1], rel=1e-12)
    hidden = again.background_
    again.background_ = hidden._replace(V=hidden.V + 1)
    assert fingerprint(loaded) != fingerprint(again)
    again.background_ = hidden


def test_a_damaged_background_is_refused(again, tmp_path):
    hidden, wrong = again.background_, again.background_._replace(columns=np.array([7]))
    again.background_ = wrong
    again.save(tmp_path / "model")
    again.background_ = hidden
    with pytest.raises(InputError, match="not a complete TASTE model"):
        TASTE.load(tmp_path / "model")


def test_a_shareable_copy_has_a_background_without_rare_features(cohort, model, review):
    found = model.refit(cohort, decided(model, *MIXED, names=("Gout",)))
    found.refit_["phenotypes"][0]["comment"] = "the one from ward 3"
    found.feature_patients_ = np.where(np.arange(40) == 2, 3, found.feature_patients_)
    shared, dropped = shareable_copy(found)
    assert dropped.temporal >= 1
    assert len(shared.background_.V) == len(shared.V_) == 40 - dropped.temporal
    assert shared.background_.W is None
    assert "ward" not in str(shared.refit_)
    assert shared.transform(cohort[:5]).shape == (5, 3)


def test_names_and_decisions_travel_to_the_next_review_and_to_reports(cohort, again, tmp_path):
    blank = Review.blank(again)
    assert [(each.name, each.status) for each in blank.decisions] == [
        ("Gout", "accepted"),
        ("Both", "open"),
        ("", "open"),
        ("", "open"),
    ]
    content = report.write(again, tmp_path / "page.html", cohort)
    assert [phenotype.name for phenotype in content.phenotypes] == ["Gout", "Both", None, None]
    assert content.review["decisions"][0]["status"] == "accepted"


def test_a_second_round_keeps_the_first_one(cohort, model, review, again):
    blank = Review.blank(again, reviewer="Dr B")
    assert blank.authors(1) == (Review.read(review).provenance(),)
    assert blank.authors(2) == (blank.provenance(),)
    third = again.refit(
        cohort, replace(blank, decisions=(*blank.decisions[:3], Decision(4, status="rejected")))
    )
    assert Review.blank(third).authors(1) == blank.authors(1)
    second = again.refit(cohort, decided(again, "accepted", "open", "rejected", "open", names=("Gout",)))
    assert second.background_.size == 2
    assert [row["from"] for row in second.refit_["rejected"]] == [[2], [3]]
    np.testing.assert_array_equal(second.V_[:, 0], model.V_[:, 0])
    hidden = {column.tobytes() for column in second.background_.V.T}
    assert hidden == {model.V_[:, 1].tobytes(), again.V_[:, 2].tobytes()}


@pytest.mark.parametrize("freedom", [0.0, 0.05])
def test_the_disk_gives_the_bits_of_the_memory(cohort, model, review, again, tmp_path, freedom):
    expected = again if freedom == 0 else model.refit(cohort, review, rank=4, freedom=freedom)
    on_disk = with_settings(model, engine=DiskEngine(tmp_path / "work", "4GB"))
    by_disk = on_disk.refit(cohort, review, rank=4, freedom=freedom)
    assert_same(by_disk, expected)
    np.testing.assert_array_equal(by_disk.background_.U, expected.background_.U)


def test_a_refit_resumes_and_refuses_the_checkpoint_of_another_review(cohort, model, review, again, tmp_path):
    other = with_settings(model, checkpoint=Checkpoint(tmp_path / "work", every=2, keep=True))
    other.callback = lambda progress: progress.iteration == 7
    assert other.refit(cohort, review, rank=4).outcome_ == "stopped"
    other.callback, other.checkpoint = None, Checkpoint(tmp_path / "work", every=2, resume=True)
    with pytest.raises(InputError, match="of a fit with another review"):
        other.refit(cohort, decided(model, *MIXED[:-1], "accepted"), rank=4)
    assert_same(other.refit(cohort, review, rank=4), again)


def test_what_cannot_be_fitted_again_is_refused_with_a_sentence(cohort, model, review):
    with pytest.raises(InputError, match="is of another model"):
        model.refit(cohort, Review("0" * 64, review.decisions))
    with pytest.raises(InputError, match="freedom=1 must be"):
        model.refit(cohort, review, freedom=1)
    with pytest.raises(InputError, match="rank=2 is less than the 3"):
        model.refit(cohort, review, rank=2)
    with pytest.raises(InputError, match="rejects every phenotype: give rank"):
        model.refit(cohort, decided(model, *["rejected"] * 5))
    with pytest.raises(InputError, match="temporal features of the cohort"):
        model.refit(simulate.ehr(20, n_features=30, n_static=6, rank=3)[0], review)
    with pytest.raises(InputError, match="static features of the cohort"):
        model.refit(Cohort(cohort.visits, cohort.offsets, feature_names=cohort.feature_names), review)
    paper = TASTE(2, objective="paper", max_iter=2, random_state=0).fit(cohort)
    with pytest.raises(InputError, match='objective="relative"'):
        paper.refit(cohort, Review.blank(paper))


def test_all_phenotypes_may_be_rejected_if_others_are_wanted(cohort, model):
    found = model.refit(cohort, decided(model, *["rejected"] * 5), rank=1)
    assert (found.V_.shape[1], found.background_.size) == (1, 5)
    assert found.refit_["phenotypes"][0]["decision"] == "new"


@pytest.mark.parametrize("rank", [5, 6])
def test_a_rejected_nuisance_does_not_come_back(rank):
    """With rank 5 it has displaced a planted phenotype, with 6 it stands beside them."""
    cohort, truth = simulate.care_intensity(300, random_state=1)
    planted, nuisance = truth.V[:, :5], truth.V[:, 5:]
    model = TASTE(rank, random_state=0, n_init=2).fit(cohort)
    bad = int(cosines(nuisance, model.V_).argmax())
    found = model.refit(
        cohort, decided(model, *["rejected" if r == bad else "open" for r in range(rank)]), rank=5
    )
    assert cosines(planted, found.V_).max(axis=1).min() > 0.95
    assert cosines(nuisance, found.V_).max() < 0.3
