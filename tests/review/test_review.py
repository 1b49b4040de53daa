"""Reviews: the file, what a model becomes under one, and two of them compared."""

import json
import os
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from helpers import cohorts
from phenotaste import TASTE, Cohort, baselines, simulate
from phenotaste.errors import InputError
from phenotaste.review import Decision, Provenance, Review, Reviewed, compare, fingerprint
from phenotaste.review.comparison import agreed, kappa_in_words, settled
from phenotaste.review.reviewed import unique
from phenotaste.storage import tensors

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\u202e\x00'\"=1+1"
FACTORS = ("H_", "V_", "F_", "W_", "U_", "loss_curve_", "score_totals_", "feature_patients_")


@pytest.fixture(scope="module")
def cohort():
    made, _ = simulate.heart_failure(60, random_state=4)
    return made


@pytest.fixture(scope="module")
def model(cohort):
    return TASTE(5, n_init=1, init="random", random_state=0, max_iter=15).fit(cohort)


def decided(model, **changes):
    """A review of the model; `p1={"status": ...}` says what is decided about phenotype 1."""
    blank = Review.blank(model, "Dr A")
    decisions = [replace(each, **changes.get(f"p{each.phenotype}", {})) for each in blank.decisions]
    return replace(blank, decisions=tuple(decisions))


def into(number, **more):
    return {"status": "merged", "merge_with": number, **more}


REJECTED, ACCEPTED = {"status": "rejected"}, {"status": "accepted"}


# --- the file ----------------------------------------------------------------------------------------------


@st.composite
def reviews(draw):
    R = draw(st.integers(1, 7))
    decisions = []
    for number in draw(st.permutations(range(1, R + 1))):
        # Merging only with smaller numbers cannot circle, and these are never rejected.
        statuses = ["open", "accepted"] + (["rejected"] if number > 1 else []) + ["merged"] * (number > 1)
        decisions.append([number, draw(st.sampled_from(statuses))])
    rejected = {number for number, status in decisions if status == "rejected"}
    text = st.text(st.characters(codec="utf-8"), max_size=20)
    found = [
        Decision(
            number,
            draw(text),
            draw(text),
            status,
            draw(st.sampled_from([n for n in range(1, number) if n not in rejected]))
            if status == "merged"
            else None,
        )
        for number, status in sorted(decisions)
    ]
    order = draw(st.permutations(range(1, R + 1)))[: draw(st.integers(0, R))]
    n = draw(st.integers(0, 3))
    based_on = [Provenance(draw(text), "2026-01-31", "ab" * 32, f"{i}c" * 32) for i in range(n)]
    sources = st.lists(st.integers(1, n), unique=True) if n else st.just([])
    found = [replace(decision, sources=tuple(draw(sources))) for decision in found]
    return Review("ab" * 32, tuple(found), tuple(order), draw(text), "2026-02-28", tuple(based_on))


@given(reviews())
def test_a_review_round_trips_through_its_file(tmp_path_factory, review):
    path = tmp_path_factory.mktemp("review") / "review.json"
    review.write(path)
    assert Review.read(path) == review
    assert Review.read(review.as_dict()) == review
    assert Review.read(review) == review
    assert os.listdir(path.parent) == ["review.json"]
    kept = [number for group in review.groups() for number in group.members]
    rejected = [each.phenotype for each in review.decisions if each.status == "rejected"]
    assert sorted(kept + rejected) == list(range(1, len(review.decisions) + 1))
    listed = [group.number for group in review.groups() if group.number in review.order]
    assert listed == [number for number in review.order if number in listed]


@given(reviews())
def test_the_digest_of_a_review_is_that_of_its_contents(review):
    record = review.as_dict()
    assert Review.read(json.loads(json.dumps(record))).provenance() == review.provenance()
    other = replace(
        review, decisions=(replace(review.decisions[0], comment="else" * 9), *review.decisions[1:])
    )
    assert other.provenance().review != review.provenance().review


def test_a_file_of_the_first_version_is_read(model):
    review = decided(model, p1=ACCEPTED)
    record = review.as_dict() | {"version": 1}
    del record["based_on"]
    for decision in record["decisions"]:
        del decision["sources"]
    assert Review.read(record) == review
    assert review.authors(1) == (review.provenance(),)


def test_decisions_may_stand_in_any_order_and_the_order_may_be_short(model):
    found = decided(model, p2=into(4, name="B"), p4={"name": "D"}).as_dict()
    found["decisions"].reverse()
    found["order"] = [5, 2, 4]  # 2 is merged, so it has no place of its own
    groups = Review.read(found).groups()
    assert [(group.number, group.name, group.members) for group in groups] == [
        (5, "", (5,)),
        (4, "D", (2, 4)),
        (1, "", (1,)),
        (3, "", (3,)),
    ]


SOURCE = {"reviewer": "Dr B", "date": "2026-01-31", "model": "ab" * 32, "review": "cd" * 32}


def broken(**changes):
    return lambda found: found | changes


def first(**changes):
    return lambda found: found | {"decisions": [found["decisions"][0] | changes, *found["decisions"][1:]]}


def without(name):
    return lambda found: {key: value for key, value in found.items() if key != name}


FAULTS = {
    "not an object": (lambda found: [found], "not saved by a phenotaste report"),
    "another format": (broken(format="else"), "not saved by a phenotaste report"),
    "a newer version": (broken(version=3), "newer phenotaste"),
    "version as text": (broken(version="1"), "version is not an integer"),
    "version true": (broken(version=True), "version is not an integer"),
    "unknown key": (broken(extra=1), "entries that this version does not know"),
    "no date": (without("date"), "date is missing"),
    "date": (broken(date="2026-02-30"), "date is not a date"),
    "date in other digits": (broken(date="２０２６-01-01"), "date is not a date"),
    "fingerprint": (broken(model="AB" * 32), "model is not the fingerprint"),
    "reviewer": (broken(reviewer=["x"]), "reviewer is not a text"),
    "long reviewer": (broken(reviewer="x" * 201), "reviewer is not a text of at most 200"),
    "no phenotypes": (broken(phenotypes=0), "phenotypes is not an integer from 1"),
    "phenotypes as a fraction": (broken(phenotypes=5.0), "phenotypes is not an integer"),
    "too many phenotypes": (broken(phenotypes=10**9), "phenotypes is not an integer"),
    "another number": (broken(phenotypes=6), "decisions for 5 of its 6"),
    "fewer": (broken(phenotypes=4), "decisions is not a list of at most 4"),
    "decisions": (broken(decisions={}), "decisions is not a list"),
    "decision": (broken(decisions=[1] * 5), "a decision is not an object"),
    "order": (broken(order=[1, 1]), "names a number twice"),
    "order outside": (broken(order=[0]), "numbers that are not from 1 to 5"),
    "order of texts": (broken(order=["1"]), "numbers that are not from 1 to 5"),
    "order of truths": (broken(order=[True]), "numbers that are not from 1 to 5"),
    "based on a text": (broken(based_on="x"), "based_on is not a list of at most 100"),
    "based on a number": (broken(based_on=[1]), "a review that it is based on is not an object"),
    "based on too many": (broken(based_on=[SOURCE] * 101), "based_on is not a list of at most 100"),
    "based on less": (broken(based_on=[{"model": "ab" * 32}]), "reviewer of a review that it is based on"),
    "based on more": (broken(based_on=[SOURCE | {"x": 1}]), "entries of a review that it is based on"),
    "based on no date": (
        broken(based_on=[SOURCE | {"date": "2026-13-01"}]),
        "date of a review that it is based",
    ),
    "based on no model": (
        broken(based_on=[SOURCE | {"model": "x"}]),
        "model of a review that it is based on",
    ),
    "based on no review": (
        broken(based_on=[SOURCE | {"review": 5}]),
        "review of a review that it is based on",
    ),
    "based on nothing": (without("based_on"), "based_on is missing"),
    "version 1 with more": (broken(version=1), "entries that this version does not know"),
    "no such source": (first(sources=[1]), "sources of phenotype 1 is not a list of at most 0"),
    "source": (first(sources=1), "sources of phenotype 1 is not a list"),
    "twice": (first(phenotype=2), "two decisions on a phenotype"),
    "outside": (first(phenotype=6), "phenotype of a decision is not an integer from 1 to 5"),
    "long name": (first(name="x" * 201), "name of phenotype 1 is not a text of at most 200"),
    "long comment": (first(comment="x" * 5001), "comment of phenotype 1 is not a text of at most 5,000"),
    "name": (first(name=None), "name of phenotype 1 is not a text"),
    "status": (first(status="maybe"), "status of phenotype 1 is not one of open, accepted"),
    "key of a decision": (first(more=""), "entries of phenotype 1 that this version does not know"),
    "merged with nothing": (first(status="merged"), "phenotype 1 is merged but has no merge_with"),
    "open and merged": (first(merge_with=2), "phenotype 1 is open but has a merge_with"),
    "merged outside": (first(status="merged", merge_with=9), "merge_with of phenotype 1 is not an integer"),
    "merged with itself": (first(status="merged", merge_with=1), "merges phenotype 1 in a circle"),
    "merged with 2.0": (
        first(status="merged", merge_with=2.0),
        "merge_with of phenotype 1 is not an integer",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_invalid_review_is_refused_with_a_sentence(model, tmp_path, fault):
    change, words = FAULTS[fault]
    path = tmp_path / "review.json"
    Review.read(decided(model).as_dict())
    path.write_text(json.dumps(change(decided(model).as_dict())))
    with pytest.raises(InputError) as refused:
        Review.read(path)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)
    assert str(refused.value).endswith(".")


def test_circles_and_merges_with_rejected_ones_are_refused(model):
    for changes, words in (
        ({"p1": into(2), "p2": into(1)}, "in a circle"),
        ({"p1": into(3), "p3": into(5), "p5": into(1)}, "in a circle"),
        ({"p4": into(1), "p1": into(2), "p2": into(1)}, "in a circle"),
        ({"p1": into(3), "p3": REJECTED}, "phenotype 1 with phenotype 3, which it rejects"),
        ({"p1": into(3), "p3": into(5), "p5": REJECTED}, "with phenotype 5, which it rejects"),
    ):
        with pytest.raises(InputError, match=words):
            Review.read(decided(model, **changes).as_dict())
    assert Review.read(decided(model, p1=into(3), p3=into(5)).as_dict()).merge_target(1) == 5


def test_files_that_are_not_review_json_are_refused(model, tmp_path):
    sound = json.dumps(decided(model).as_dict()).encode()
    path = tmp_path / "review.json"
    for content in (
        b"",
        sound[:-1],
        sound[: len(sound) // 2],
        sound + b"x",
        b"\xff" + sound,
        sound.replace(b'"order"', b'"date": "2026-01-01", "order"'),
        sound.replace(b'"phenotypes": 5', b'"phenotypes": NaN'),
        sound.replace(b'"phenotypes": 5', b'"phenotypes": ' + b"9" * 5000),
        b"[" * 200_000,
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is truncated or damaged"):
            Review.read(path)
    path.write_bytes(b"\xef\xbb\xbf" + sound)  # some editors put a mark in front
    assert Review.read(path) == decided(model)
    with open(path, "wb") as file:
        file.truncate(2**26)
    for huge in (path, tmp_path):
        with pytest.raises(InputError, match="is not a file of at most 32 MB"):
            Review.read(huge)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is not a file"):
        Review.read(tmp_path / "pipe")
    with pytest.raises(InputError, match="does not exist"):
        Review.read(tmp_path / "none.json")


def test_lone_surrogates_are_replaced_and_other_text_is_kept(model, tmp_path):
    path = tmp_path / "review.json"
    path.write_text(json.dumps(decided(model, p1={"name": "heart \ud83d", "comment": HOSTILE}).as_dict()))
    review = Review.read(path)
    assert review.decisions[0].name == "heart \ufffd"
    assert review.decisions[0].comment == HOSTILE
    review.write(path)
    assert Review.read(path) == review


def test_a_write_that_fails_leaves_the_old_file(model, tmp_path, monkeypatch):
    path = tmp_path / "review.json"
    path.write_text("the old one")
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        decided(model).write(path)
    assert path.read_text() == "the old one"
    assert os.listdir(tmp_path) == ["review.json"]
    with pytest.raises(InputError, match="in a circle"):
        decided(model, p1=into(1)).write(tmp_path / "other.json")
    assert os.listdir(tmp_path) == ["review.json"]


# --- fingerprints and totals ---------------------------------------------------------------------------------


def test_the_fingerprint_is_the_models_own(cohort, model, tmp_path):
    model.save(tmp_path / "model")
    found = fingerprint(model)
    loaded = TASTE.load(tmp_path / "model")
    assert fingerprint(loaded) == found
    loaded.V_ = np.asfortranarray(loaded.V_)
    assert fingerprint(loaded) == found
    assert len(found) == 64
    for name in ("H_", "V_", "F_"):
        other = TASTE.load(tmp_path / "model")
        factor = getattr(other, name).copy()
        factor[0, 0] = np.nextafter(factor[0, 0], 2)
        setattr(other, name, factor)
        assert fingerprint(other) != found
    for name, value in (
        ("feature_names_in_", None),
        ("static_names_in_", np.roll(model.static_names_in_, 1)),
        ("F_", None),
    ):
        other = TASTE.load(tmp_path / "model")
        setattr(other, name, value)
        assert fingerprint(other) != found
    # Names are told apart by where they end, too.
    other.feature_names_in_ = np.array(["ab", "c", *model.feature_names_in_[2:]])
    moved = fingerprint(other)
    other.feature_names_in_ = np.array(["a", "bc", *model.feature_names_in_[2:]])
    assert fingerprint(other) != moved


@given(cohorts.cohorts)
def test_a_fit_counts_the_patients_of_each_feature(c):
    fitted = TASTE(1, init="random", n_init=1, random_state=0, max_iter=1).fit(c)
    patients = cohorts.dense(c)
    expected = np.sum([(X != 0).any(axis=0) for X, _ in patients], axis=0)
    np.testing.assert_array_equal(fitted.feature_patients_, expected)
    assert fitted.feature_patients_.dtype == np.int64
    if fitted.F_ is None:
        assert fitted.static_patients_ is None
    else:
        np.testing.assert_array_equal(fitted.static_patients_, np.sum([a != 0 for _, a in patients], axis=0))
        assert fitted.static_patients_.dtype == np.int64
    np.testing.assert_array_equal(fitted.score_totals_, fitted.W_.sum(axis=0))


def test_counting_in_parts_is_the_same(monkeypatch):
    from phenotaste.cohort import align

    c = cohorts.cohort(seed=5, n_patients=30)
    shard = align.align(c, align.columns_of(c)).shard
    whole = align.patients_having(shard, c.shape[1])
    monkeypatch.setattr(align, "ENTRIES_PER_COUNT", 7)
    np.testing.assert_array_equal(align.patients_having(shard, c.shape[1])[0], whole[0])


@pytest.mark.parametrize("method", [TASTE, baselines.Spartan, baselines.CopaPlus, baselines.CohenPlus])
def test_counts_and_totals_are_in_the_model_file_and_older_files_load(cohort, tmp_path, method):
    fitted = method(2, random_state=0, max_iter=2).fit(cohort)
    fitted.save(tmp_path / "model")
    loaded = method.load(tmp_path / "model")
    for name in ("feature_patients_", "static_patients_", "score_totals_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(fitted, name))
    files, meta = tensors.read(tmp_path / "model", "taste-model", mmap=False)
    assert set(files) == {"model"}
    assert all(len(cohort) not in array.shape for array in files["model"].values())
    for name in ("feature_patients_", "static_patients_", "score_totals_"):
        files["model"].pop(name, None)
    tensors.write(tmp_path / "old", "taste-model", files, meta)
    old = method.load(tmp_path / "old")
    assert old.feature_patients_ is old.static_patients_ is old.score_totals_ is None
    assert fingerprint(old) == fingerprint(fitted)
    old.save(tmp_path / "again")
    assert method.load(tmp_path / "again").score_totals_ is None
    files["model"]["score_totals_"] = np.array([1.0, np.nan])
    tensors.write(tmp_path / "odd", "taste-model", files, meta)
    with pytest.raises(InputError, match="not a complete"):
        method.load(tmp_path / "odd")


# --- applied ---------------------------------------------------------------------------------------------------


def by_hand(model, W, U, offsets, sets):
    """Scores, courses and definitions of sets of phenotypes (counted from 0), patient by patient."""
    scores, courses = np.zeros((len(W), len(sets))), np.zeros((len(U), len(sets)))
    V, F = np.zeros((len(model.V_), len(sets))), np.zeros((len(model.F_), len(sets)))
    totals = model.W_.sum(axis=0)
    for g, members in enumerate(sets):
        for r in members:
            part = totals[r] / sum(totals[i] for i in members)
            V[:, g] += part * model.V_[:, r]
            F[:, g] += part * model.F_[:, r]
            for k in range(len(W)):
                scores[k, g] += W[k, r]
                rows = slice(offsets[k], offsets[k + 1])
                courses[rows, g] += W[k, r] * U[rows, r]
    return scores, courses, V, F


def test_merged_scores_courses_and_definitions_are_those_by_hand(model, cohort):
    before = {name: np.array(getattr(model, name)) for name in FACTORS}
    review = decided(
        model, p1={"name": "First"}, p2=into(5), p4=into(2), p3=REJECTED, p5={**ACCEPTED, "name": "Last"}
    )
    reviewed = model.apply_review(replace(review, order=(5, 1)).as_dict())
    assert reviewed.names == ["Last", "First"]
    sets = [[1, 3, 4], [0]]
    found = model.project(cohort)
    scores, courses, V, F = by_hand(model, found.W, found.U, found.offsets, sets)
    projected = reviewed.project(cohort)
    owner = np.repeat(np.arange(len(cohort)), np.diff(cohort.offsets))
    np.testing.assert_allclose(reviewed.transform(cohort), scores, rtol=1e-12)
    np.testing.assert_allclose(projected.W, scores, rtol=1e-12)
    np.testing.assert_allclose(projected.W[owner] * projected.U, courses, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(reviewed.V_, V, rtol=1e-12)
    np.testing.assert_allclose(reviewed.F_, F, rtol=1e-12)
    np.testing.assert_array_equal(projected.U[:, 1], found.U[:, 0])  # what is not merged stays to the bit
    np.testing.assert_array_equal(reviewed.V_[:, 1], model.V_[:, 0])
    fitted, courses_, _, _ = by_hand(model, model.W_, model.U_, model.offsets_, sets)
    np.testing.assert_allclose(reviewed.W_, fitted, rtol=1e-12)
    np.testing.assert_allclose(reviewed.W_[owner] * reviewed.U_, courses_, rtol=1e-9, atol=1e-12)
    assert reviewed.rmse_ == model.rmse_
    assert projected.loss == found.loss
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(model, name), array)


def test_definitions_keep_the_models_scale(model):
    heaviest = int(model.V_.max(axis=0).argmax())
    number, other = heaviest + 1, (heaviest + 1) % 5 + 1
    reviewed = model.apply_review(decided(model, **{f"p{number}": REJECTED, f"p{other}": {"name": "Kept"}}))
    table, whole = reviewed.phenotypes(top=None, min_weight=0), model.phenotypes(top=None, min_weight=0)
    assert list(table.columns) == [
        "phenotype",
        "name",
        "kind",
        "feature",
        "weight",
        "rate",
        "cohort_rate",
        "lift",
    ]
    assert set(table["name"][table["phenotype"] == other]) == {"Kept"}
    expected = whole[whole["phenotype"] != number].reset_index(drop=True)
    pd.testing.assert_frame_equal(table.drop(columns="name"), expected)
    by_column = reviewed.phenotypes(top=1, min_weight=0, scale="column")
    np.testing.assert_allclose(by_column["weight"], 1)
    assert len(reviewed.phenotypes(top=2, min_weight=0.5)) <= 4 * 2 * 2


def test_merging_everything_gives_one_phenotype_and_rejecting_everything_is_refused(model, cohort):
    review = decided(model, p1=into(2), p2=into(3), p3=into(4), p4=into(5), p5={"name": "All"})
    one = model.apply_review(review)
    np.testing.assert_allclose(one.transform(cohort)[:, 0], model.transform(cohort).sum(axis=1))
    assert one.names == ["All"]
    assert one.V_.shape == (model.V_.shape[0], 1)
    nothing = decided(model, **{f"p{r}": REJECTED for r in range(1, 6)})
    with pytest.raises(InputError, match="rejects every phenotype"):
        model.apply_review(nothing)


@pytest.mark.parametrize("rank", [1, 2])
def test_one_phenotype_no_static_features_no_names(rank):
    c = cohorts.cohort(n_static=0, n_patients=9)
    fitted = TASTE(rank, n_init=1, init="random", random_state=0, max_iter=5).fit(c)
    changes = {} if rank == 1 else {"p1": into(2)}
    reviewed = fitted.apply_review(decided(fitted, **changes))
    assert reviewed.F_ is None
    assert reviewed.names == [f"Phenotype {rank}"]
    projected = reviewed.project(c)
    assert projected.W.shape == (9, 1)
    assert projected.U.shape == (c.n_visits, 1)
    assert set(reviewed.phenotypes(min_weight=0)["kind"]) == {"temporal"}
    assert len(c) == len(reviewed.frame(c))


def test_a_patient_with_none_of_the_merged_phenotypes_keeps_finite_courses(model):
    reviewed = model.apply_review(decided(model, p1=into(2)))
    W, U = np.ones((2, 5)), np.arange(15.0).reshape(3, 5)
    W[0, :2] = 0
    found = reviewed.courses(W, U, np.array([0, 2, 3]))
    np.testing.assert_allclose(found[:, 0], [0.5, 5.5, 10.5])


def test_phenotypes_without_patients_are_merged_evenly(model):
    dead = TASTE(5)
    dead.__dict__.update(model.__dict__)
    dead.score_totals_ = np.array([0.0, 0.0, 1.0, 1.0, 1.0])
    reviewed = dead.apply_review(decided(dead, p1=into(2)))
    np.testing.assert_allclose(reviewed.V_[:, 0], model.V_[:, :2].mean(axis=1))


def test_a_model_without_patients_or_totals(model, cohort, tmp_path):
    review = decided(model, p1=into(2), p5=REJECTED)
    model.save(tmp_path / "model")
    loaded = TASTE.load(tmp_path / "model")
    reviewed = loaded.apply_review(review)
    np.testing.assert_array_equal(reviewed.transform(cohort), model.apply_review(review).transform(cohort))
    np.testing.assert_array_equal(reviewed.V_, model.apply_review(review).V_)
    for name in ("W_", "U_"):
        with pytest.raises(AttributeError, match="saved without its patients"):
            getattr(reviewed, name)
    with pytest.raises(AttributeError, match="no attribute 'H_'"):
        reviewed.H_  # noqa: B018
    loaded.score_totals_ = None
    with pytest.raises(InputError, match="without the totals of its scores"):
        loaded.apply_review(review)
    assert loaded.apply_review(decided(model, p5=REJECTED)).V_.shape[1] == 4  # only merges need them
    old = TASTE(5)
    old.__dict__.update(model.__dict__ | {"score_totals_": None})
    np.testing.assert_array_equal(old.apply_review(review).V_, reviewed.V_)


def test_another_models_review_is_refused(model, cohort):
    other = TASTE(5, n_init=1, init="random", random_state=1, max_iter=14).fit(cohort)
    with pytest.raises(InputError, match="is of another model"):
        other.apply_review(decided(model))
    fewer = decided(model).as_dict()
    fewer["decisions"], fewer["phenotypes"] = fewer["decisions"][:4], 4
    with pytest.raises(InputError, match="is of another model"):
        model.apply_review(fewer)


def test_scores_that_may_be_negative_are_not_merged(cohort):
    fitted = baselines.Spartan(2, nonnegative=False, random_state=0, max_iter=2).fit(cohort)
    with pytest.raises(InputError, match="may be negative"):
        fitted.apply_review(decided(fitted, p1=into(2)))
    plain = baselines.Spartan(2, random_state=0, max_iter=2).fit(cohort)
    assert isinstance(plain.apply_review(decided(plain, p1=into(2))), Reviewed)


def test_names_are_one_line_and_unique(model, cohort):
    reviewed = model.apply_review(
        decided(
            model,
            p1={"name": "Gout"},
            p2={"name": " Gout\n"},
            p3={"name": "Gout (2)"},
            p4={"name": HOSTILE},
        )
    )
    hostile = "</script><img src=x onerror=alert(1)> \ufffd\ufffd'\"=1+1"
    assert reviewed.names == ["Gout", "Gout (3)", "Gout (2)", hostile, "Phenotype 5"]
    frame = reviewed.frame(cohort)
    assert list(frame.columns) == reviewed.names == list(reviewed.get_feature_names_out())
    assert list(frame.index) == list(cohort.patient_ids)
    np.testing.assert_array_equal(frame["Gout (3)"], model.transform(cohort)[:, 1])


@given(st.lists(st.sampled_from(["a", "b", "a (2)", "a (3)", "a (2) (2)"]), max_size=8))
def test_unique_names_are_unique_and_first_ones_stay(names):
    found = unique(names)
    assert len(set(found)) == len(names)
    for place, name in enumerate(names):
        if name not in names[:place]:
            assert found[place] == name
        else:
            assert found[place].startswith(f"{name} (")


# --- compared --------------------------------------------------------------------------------------------------


def test_two_reviews_side_by_side(model):
    one = decided(model, p1={**ACCEPTED, "name": "Gout"}, p2=into(3), p3=ACCEPTED, p4=REJECTED, p5=REJECTED)
    other = decided(
        model, p1={**ACCEPTED, "name": " gout "}, p2=ACCEPTED, p3=into(2), p4=ACCEPTED, p5=REJECTED
    )
    found = compare([one, replace(other, reviewer="")])
    assert found.reviewers == ["Dr A", "reviewer 2"]
    assert list(found.table["agree"]) == [True, True, True, False, True]
    assert list(found.table["same_name"]) == [True] * 5
    assert list(found.table["status_1"]) == ["accepted", "merged", "accepted", "rejected", "rejected"]
    assert list(found.table["merged_with_2"]) == ["", "3", "2", "", ""]
    assert (found.agreed, found.phenotypes, found.agreement) == (4, 5, 0.8)
    words = [
        ["accepted", "merged", "merged", "rejected", "rejected"],
        ["accepted", "merged", "merged", "accepted", "rejected"],
    ]
    assert found.kappa == pytest.approx(cohen_kappa_score(*words))
    json.dumps(found.as_dict(), allow_nan=False)


@given(st.lists(st.tuples(*[st.sampled_from(["open", "accepted", "rejected"])] * 2), min_size=1, max_size=9))
def test_kappa_is_the_known_one(pairs):
    both = [
        Review("0" * 64, tuple(Decision(r + 1, status=s) for r, s in enumerate(words)), date="2026-01-01")
        for words in zip(*pairs, strict=True)
    ]
    found = compare(both)
    assert found.agreement == np.mean([a == b for a, b in pairs])
    if len({word for pair in pairs for word in pair}) == 1:
        assert found.kappa is None
    else:
        assert found.kappa == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True)))


def test_merging_with_others_or_rejecting_apart_is_no_agreement(model):
    one, other = decided(model, p1=into(2)), decided(model, p1=into(3))
    assert list(compare([one, other]).table["agree"]) == [False, False, False, True, True]
    kept, dropped = decided(model, p1=into(2), p2=ACCEPTED), decided(model, p1=into(2))
    assert list(compare([kept, dropped]).table["agree"]) == [False, False, True, True, True]
    three = compare([one, one, other])
    assert three.agreed == 2
    assert three.kappa == pytest.approx((1 + 2 * cohen_kappa_score(list("mmooo"), list("momoo"))) / 3)


def test_several_reviewers_agree_on_verdicts_merges_and_names(model):
    gout = {**ACCEPTED, "name": "Gout"}
    one = decided(model, p1={**gout, "comment": "x"}, p2=into(1), p3=gout, p4=REJECTED, p5={"name": "Flu"})
    other = replace(
        decided(
            model, p1={**ACCEPTED, "comment": "y"}, p2=into(1), p3=ACCEPTED | {"name": "Flu"}, p4=ACCEPTED
        ),
        reviewer="Dr B",
    )
    assert settled([one, other]) == [True, True, False, False, True]
    start = agreed([one, other])
    assert Review.read(start) == start
    assert [(each.name, each.status, each.sources) for each in start.decisions] == [
        ("Gout", "accepted", (1, 2)),
        ("", "merged", (1, 2)),
        ("Gout", "open", ()),  # the name is disputed
        ("", "open", ()),
        ("Flu", "open", ()),  # both left it open
    ]
    assert start.decisions[0].comment == "Dr A: x\nDr B: y"
    assert start.based_on == (one.provenance(), other.provenance())
    assert [author.reviewer for author in start.authors(2)] == ["Dr A", "Dr B"]
    # Where the name of one of those merged is disputed, none of them is settled.
    renamed = replace(other, decisions=(replace(other.decisions[0], name="Flu"), *other.decisions[1:]))
    assert settled([one, renamed])[:2] == [False, False]
    assert [each.status for each in agreed([one, renamed]).decisions[:2]] == ["open", "open"]


def test_decisions_keep_their_first_authors(model):
    first = decided(model, p1=ACCEPTED)
    carried = {**ACCEPTED, "sources": (1,)}
    one, other = (
        replace(decided(model, p1=carried, p2=ACCEPTED), reviewer=who, based_on=(first.provenance(),))
        for who in ("Dr B", "Dr C")
    )
    start = agreed([one, other])
    assert [[author.reviewer for author in start.authors(number)] for number in (1, 2)] == [
        ["Dr A"],
        ["Dr B", "Dr C"],
    ]
    assert start.based_on == (one.provenance(), other.provenance(), first.provenance())


@pytest.mark.parametrize(
    ("kappa", "word"),
    [
        (-0.1, "poor"),
        (0, "slight"),
        (0.2, "slight"),
        (0.21, "fair"),
        (0.6, "moderate"),
        (0.75, "substantial"),
        (1, "almost perfect"),
    ],
)
def test_kappa_in_words(kappa, word):
    assert kappa_in_words(kappa) == word


def test_agreement_in_words(model):
    one, other = decided(model, p1=ACCEPTED), replace(decided(model, p1=REJECTED), reviewer="Dr B")
    assert compare([one, other]).text().startswith("Dr A and Dr B agree on 4 of 5 phenotypes. Cohen's kappa")
    assert "Dr A, Dr B and Dr A agree" in (three := compare([one, other, one]).text())
    assert "the mean over all pairs, is" in three
    assert "undefined" in compare([decided(model), decided(model)]).text()


def test_reviews_of_different_models_cannot_be_compared(model, cohort):
    with pytest.raises(InputError, match="two reviews or more"):
        compare([decided(model)])
    other = TASTE(5, n_init=1, init="random", random_state=1, max_iter=2).fit(cohort)
    with pytest.raises(InputError, match="different models"):
        compare([decided(model), decided(other)])


def test_reviews_hold_no_patients(model, tmp_path):
    named = Cohort(
        np.eye(12),
        np.arange(13),
        patient_ids=[f"secret-{k}" for k in range(12)],
        visit_times=np.arange("2020-01-01", "2020-01-13", dtype="M8[D]"),
    )
    fitted = TASTE(2, n_init=1, init="random", random_state=0, max_iter=2).fit(named)
    Review.blank(fitted, "Dr A").write(tmp_path / "review.json")
    assert "secret" not in (tmp_path / "review.json").read_text() + repr(
        fitted.apply_review(tmp_path / "review.json")
    )
