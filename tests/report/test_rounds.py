"""The second round: what changed since the last review, what is carried over, and what stays hidden."""

import copy
import json
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from helpers.rounds import NAMES, first_model, first_review, second_model
from phenotaste import TASTE, report, simulate
from phenotaste.disclosure import Gate
from phenotaste.errors import InputError
from phenotaste.metrics import cosines
from phenotaste.report import content, table_files
from phenotaste.report.definitions import definitions, feature_counts_at_fit
from phenotaste.report.rounds import (
    MIN_CHANGE,
    SAME_COSINE,
    LastReview,
    carry_over,
    cosines_by_name,
    match,
)
from phenotaste.review import Review, fingerprint
from phenotaste.selection.matching import MIN_COSINE


@pytest.fixture(scope="module")
def rounds():
    """Cohort, first model, its review, second model and the content of its page."""
    cohort, first = first_model()
    review = first_review(first)
    second = second_model(first, review)
    return cohort, first, review, second, content.build(second, cohort, last=LastReview.of(first, review))


def test_what_stayed_moved_came_back_is_new_or_gone(rounds):
    _, first, _, second, shown = rounds
    found = [
        (p.name, p.status, p.change.kind, p.change.earlier and p.change.earlier.name)
        for p in shown.phenotypes
    ]
    assert found == [
        (NAMES[1], "accepted", "same", NAMES[1]),
        (NAMES[4], "open", "moved", NAMES[4]),
        (NAMES[2], "rejected", "same", NAMES[2]),
        (NAMES[5], "accepted", "same", NAMES[5]),
        (None, "open", "new", None),
    ]
    merged, moved, back = (shown.phenotypes[r].change for r in range(3))
    assert (merged.earlier.merged_from, merged.similarity) == ([1, 3], 1.0)
    assert back.earlier.status == "rejected"
    whole = cosines(first.V_[:, [3]], second.V_[:, [1]])[0, 0]
    assert moved.similarity == pytest.approx(whole, abs=0.006)
    assert [(gone.earlier.number, gone.earlier.status) for gone in shown.changes.gone] == [(6, "open")]
    heaviest = second.feature_names_in_[np.argsort(-first.V_[:, 5])[0]]
    assert shown.changes.gone[0].codes[0] in heaviest
    assert (shown.changes.reviewer, shown.changes.date) == ("Dr Ada Byron", "2026-05-12")
    assert shown.changes.model == fingerprint(first)


def test_codes_that_changed_are_shares_of_the_weights_shown(rounds):
    shown = rounds[-1]
    change = shown.phenotypes[1].change
    assert change.gained
    assert change.lost
    for code in (*change.gained, *change.lost):
        features = shown.features.temporal if code.kind == "temporal" else shown.features.static
        j = [feature.name for feature in features].index(code.name)
        weights = dict(
            shown.phenotypes[1].temporal if code.kind == "temporal" else shown.phenotypes[1].static
        )
        assert code.now == pytest.approx(weights.get(j, 0) / sum(weights.values()), abs=0.003)
        assert abs(code.now - code.before) >= MIN_CHANGE - 0.001
    differences = [code.now - code.before for code in change.gained]
    assert differences == sorted(differences, reverse=True)
    assert min(differences) > 0 > max(code.now - code.before for code in change.lost)


def test_decisions_are_carried_over_with_their_authors(rounds):
    _, _, review, second, shown = rounds
    start = Review.read(shown.review)
    assert start.model == fingerprint(second)
    assert start.based_on == (review.provenance(),)
    assert (start.reviewer, shown.carried) == ("", True)
    assert [(each.name, each.status, each.comment, each.sources) for each in start.decisions] == [
        (NAMES[1], "accepted", "Clear.", (1,)),
        (NAMES[4], "open", "", ()),
        (NAMES[2], "rejected", "How often they come.", (1,)),
        (NAMES[5], "accepted", "", (1,)),
        ("", "open", "", ()),
    ]
    assert shown.phenotypes[1].change.earlier.comment == "Kidneys, too."
    # A third round of the same model: the decision on 1 is still Ada's, that on 2 of whoever made it.
    decided = replace(start.decisions[1], status="accepted")
    second_review = replace(
        start, reviewer="Ben", decisions=(start.decisions[0], decided, *start.decisions[2:])
    )
    last = LastReview.of(second, second_review)
    third = carry_over(last, match(last, second), second)
    assert [[author.reviewer for author in third.authors(n)] for n in (1, 2)] == [["Dr Ada Byron"], ["Ben"]]
    assert third.based_on == (second_review.provenance(), review.provenance())


def test_tables_and_card_say_who_decided(rounds):
    _, _, review, _, shown = rounds
    tables = table_files.tables(shown)
    header, rows = tables["phenotypes"]
    columns = [header.index(name) for name in ("name", "status", "decided_by", "decided_on")]
    assert [[row[c] for c in columns] for row in rows][:2] == [
        [NAMES[1], "accepted", "Dr Ada Byron", "2026-05-12"],
        [NAMES[4], "open", "", ""],
    ]
    header, rows = tables["changes"]
    assert [row[:2] for row in rows] == [
        (1, "same"),
        (2, "moved"),
        (3, "same"),
        (4, "same"),
        (5, "new"),
        (None, "gone"),
    ]
    assert rows[0][3:] == (1, NAMES[1], "accepted")
    lines = dict(shown.card[-1].lines)
    assert "Dr Ada Byron, 2026-05-12" in lines["Based on the review by"]
    assert review.provenance().review[:12] in lines["Based on the review by"]
    assert lines["Decisions"] == "2 open, 2 accepted, 1 rejected"


def test_the_parts_of_a_merged_phenotype_are_found_apart(rounds):
    """The same model again: one part has moved away from the merged definition, the other one is new."""
    _, first, review, *_ = rounds
    shown = content.build(first, last=LastReview.of(first, review))
    moved, new = sorted((shown.phenotypes[r] for r in (0, 2)), key=lambda p: p.change.kind)
    assert (moved.change.kind, moved.name, moved.status) == ("moved", NAMES[1], "open")
    assert moved.change.earlier.merged_from == [1, 3]
    assert (new.change.kind, new.name, new.change.similarity) == ("new", None, 1.0)
    assert (new.change.earlier.number, new.change.earlier.name) == (new.number, NAMES[1])
    assert [p.change.kind for p in shown.phenotypes if p.number not in (1, 3)] == ["same"] * 4
    assert not shown.changes.gone


def of_columns(V, F=None, names=None):
    return SimpleNamespace(V_=V, F_=F, feature_names_in_=names, static_names_in_=None)


def last_of(V, F=None, names=None):
    return LastReview(of_columns(V, F, names), None, (), V, F)


@given(
    arrays(
        np.float64, st.tuples(st.just(3), st.integers(1, 4)), elements=st.sampled_from([0.0, 1.0, 1.1, 3.0])
    ),
    arrays(
        np.float64, st.tuples(st.just(3), st.integers(1, 4)), elements=st.sampled_from([0.0, 1.0, 1.1, 3.0])
    ),
)
@example(np.array([[1, 1], [0, 0.4], [0, 0]]), np.array([[1, 0.95], [0, 0], [0, 0.4]]))
def test_the_matching_is_the_best_of_all(old, new):
    """As many that are the same as possible, then the highest sum of cosines from MIN_COSINE on."""
    found = match(last_of(old), of_columns(new))
    C = cosines_by_name(old, None, new, None)
    width = max(C.shape)
    padded = np.zeros((width, width))
    padded[: C.shape[0], : C.shape[1]] = C

    def value(pairs):
        return (
            sum(padded[r, c] >= SAME_COSINE for r, c in pairs),
            sum(padded[r, c] for r, c in pairs if padded[r, c] >= MIN_COSINE),
        )

    best = max(value(list(enumerate(order))) for order in permutations(range(width)))
    pairs = [(each.partner, c) for c, each in enumerate(found) if each.partner is not None]
    assert len({r for r, _ in pairs}) == len(pairs)
    assert all(C[r, c] >= MIN_COSINE for r, c in pairs)
    assert value(pairs)[0] == best[0] == sum(each.same for each in found)
    assert value(pairs)[1] == pytest.approx(best[1])


def test_a_refit_says_where_its_phenotypes_are_from(rounds):
    """Although their definitions resemble others more, or nothing."""
    _, first, review, second, _ = rounds
    last, refitted = LastReview.of(first, review), copy.copy(second)
    groups = {group.name: group for group in last.phenotypes}
    wanted = {0: groups[NAMES[4]], 4: groups[NAMES[5]]}
    rows = [{"phenotype": c + 1, "from": list(group.members)} for c, group in wanted.items()]
    refitted.refit_ = {"model": review.model, "phenotypes": [*rows, {"phenotype": 2, "from": []}]}
    found = match(last, refitted)
    assert {c: last.phenotypes[found[c].partner] for c in wanted} == wanted
    partners = [each.partner for each in found if each.partner is not None]
    assert len(set(partners)) == len(partners)
    assert (
        last.phenotypes[found[2].partner].name == NAMES[2]
    )  # the rejected one is still found by its definition
    refitted.refit_["model"] = "0" * 64  # after another review
    assert match(last, refitted) == match(last, second)


def test_facts_count_for_what_is_the_same():
    V, F = np.eye(3)[:, :2], np.array([[1.0, 1.0], [0.0, 0.2]])
    same = match(last_of(V, F), of_columns(V, F))
    assert [each.same for each in same] == [True, True]
    other = match(last_of(V, F), of_columns(V, F * [[1.0, 1.0], [1.0, 4.0]]))
    assert [(each.partner, each.same) for each in other] == [(0, True), (1, False)]
    assert [each.same for each in match(last_of(V, F), of_columns(V))] == [True, True]  # one has no facts


def test_features_are_matched_by_their_names():
    V = np.array([[3.0, 0.0], [1.0, 2.0], [0.0, 1.0]])
    names = np.array(["a", "b", "c"])
    order = [2, 0, 1]
    C = cosines_by_name(V, names, V[order], names[order])
    np.testing.assert_allclose(np.diag(C), 1)
    more = np.vstack([V, [9.0, 0.0]])  # a feature that the first model does not have
    C = cosines_by_name(V, names, more, np.array(["a", "b", "c", "new"]))
    np.testing.assert_allclose(np.diag(C), [10**0.5 / (10 + 81) ** 0.5, 1])
    empty = np.zeros((3, 1))
    np.testing.assert_array_equal(cosines_by_name(empty, None, np.hstack([empty, empty + 1]), None), [[1, 0]])
    with pytest.raises(InputError, match="no feature in common"):
        cosines_by_name(V, names, V, np.array(["x", "y", "z"]))
    with pytest.raises(InputError, match="3 features and this one 4, both without names"):
        cosines_by_name(V, None, more, None)


def test_codes_that_one_of_the_pages_hides_are_not_named(rounds):
    """The earlier model was fitted on fewer patients, so that its page shows fewer codes; and the other way round."""
    cohort, *_ = rounds
    small, large = (
        TASTE(2, n_init=1, random_state=0, max_iter=4).fit(cohort[rows]) for rows in (slice(60), slice(None))
    )
    gate = Gate(key=small.rounding_key_)
    shown_before = definitions(small, feature_counts_at_fit(small, None, gate), gate).temporal.names
    rare = [j for j, name in enumerate(small.feature_names_in_) if name not in shown_before][:5]
    shown_now = content.build(large).features.temporal
    assert {small.feature_names_in_[j][3:] for j in rare} & {feature.name for feature in shown_now}
    for model in (small, large):  # codes that would be named first
        model.V_[rare, 0] = 0.5 * model.V_.max()
    for model, previous in ((large, small), (small, large)):
        review = Review.blank(previous, "Dr A")
        shown = content.build(model, last=LastReview.of(previous, review))
        text = json.dumps([shown.as_dict()["changes"], [p["change"] for p in shown.as_dict()["phenotypes"]]])
        gate = Gate(key=previous.rounding_key_)
        allowed = definitions(previous, feature_counts_at_fit(previous, None, gate), gate)
        allowed = {name[3:] for name in allowed.temporal.names}
        hidden = {name[3:] for name in previous.feature_names_in_} - allowed
        named = {code for gone in shown.changes.gone for code in gone.codes}
        named |= {
            code.name
            for p in shown.phenotypes
            for code in (*p.change.gained, *p.change.lost)
            if code.kind == "temporal"
        }
        assert len(hidden) > 10
        assert named <= allowed
        assert not [name for name in hidden if json.dumps(name)[1:-1] in text]


def test_a_review_that_rejects_everything_is_followed_by_another(rounds):
    _, first, *_ = rounds
    blank = Review.blank(first, "Dr A")
    nothing = replace(blank, decisions=tuple(replace(each, status="rejected") for each in blank.decisions))
    shown = content.build(first, last=LastReview.of(first, nothing))
    assert [(p.status, p.change.kind) for p in shown.phenotypes] == [("rejected", "same")] * 6


def test_reviews_that_do_not_fit_are_refused(rounds, tmp_path):
    _, first, review, second, _ = rounds
    page = tmp_path / "r.html"
    for given_review, previous, words in (
        (review, second, "is of another model"),
        (None, first, "There are 0 reviews of the previous model"),
        ([review, review], first, "There are 2 reviews of the previous model"),
        ([review, Review.blank(second)], None, "is of another model"),
    ):
        with pytest.raises(InputError, match=words):
            report.write(first, page, review=given_review, previous=previous)
    other = TASTE(2, n_init=1, random_state=0, max_iter=2).fit(simulate.ehr(30, n_features=9, rank=2)[0])
    with pytest.raises(InputError, match="no feature in common"):
        report.write(other, page, review=review, previous=first)
    assert not page.exists()


def test_several_reviews_side_by_side(rounds, tmp_path):
    _, first, review, *_ = rounds
    ben = first_review(first, "Ben")
    rejected = replace(ben.decisions[3], status="rejected", comment="Two diseases.")
    ben = replace(ben, decisions=(*ben.decisions[:3], rejected, *ben.decisions[4:]))
    shown = report.write(first, tmp_path / "r.html", review=[review, ben])
    assert [p.disputed for p in shown.phenotypes] == [False, False, False, True, False, False]
    assert shown.agreement.startswith("Dr Ada Byron and Ben agree on 5 of 6 phenotypes. Cohen's kappa")
    assert [(p.status, len(p.authors)) for p in shown.phenotypes] == [
        ("accepted", 2),
        ("rejected", 2),
        ("merged", 2),
        ("open", 0),
        ("accepted", 2),
        ("open", 0),
    ]
    assert [each.merged_with for each in shown.phenotypes[0].opinions] == [[3], [3]]
    header, rows = table_files.tables(shown)["reviews"]
    assert len(rows) == 12
    assert dict(zip(header, rows[7], strict=True)) | {"date": ""} == {
        "phenotype": 4,
        "reviewer": "Ben",
        "date": "",
        "status": "rejected",
        "merge_with": None,
        "name": "Diabetes",
        "comment": "Two diseases.",
    }
    assert Review.read(shown.review).based_on == (review.provenance(), ben.provenance())
