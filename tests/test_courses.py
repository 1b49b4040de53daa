"""Features of courses: each defined by hand, and the cases without a course."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phenotaste import TASTE, Cohort, course_features, simulate
from phenotaste.courses import FEATURES, describe
from phenotaste.patients import Patients
from phenotaste.review import Review


def described(courses, times=None, W=None):
    """The features of one phenotype; `courses` has an array for each patient."""
    counts = [len(course) for course in courses]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    U = np.concatenate([*courses, []]).reshape(-1, 1)
    W = np.ones((len(courses), 1)) if W is None else np.array(W, float).reshape(-1, 1)
    return describe(Patients(W, U, offsets, np.ones(len(W))), times)


def test_features_by_hand():
    # Times 0, 1/4, 1/2, 3/4, 1; the visits stand for 1/8, 1/4, 1/4, 1/4 and 1/8 of the time.
    [[last, slope, peak, above]] = described([[0, 0, 1, 4, 3]])
    assert last == pytest.approx((4 * 0.5 + 3) / 8)
    line = np.polyfit(np.linspace(0, 1, 5), [0, 0, 1, 4, 3], 1)[0]
    assert slope == pytest.approx(line / (8 / 5))
    assert (peak, above) == (0.75, 0.375)


def test_times_count_where_there_are_any():
    course, days = [1, 1, 4, 2], np.array([0, 1, 2, 10])
    [[last, slope, peak, above]] = described([course], days.astype(float))
    assert last == pytest.approx(2 * (0.25 / 0.4) / 8)
    assert slope == pytest.approx(np.polyfit(days / 10, course, 1)[0] / 2)
    assert (peak, above) == pytest.approx((0.2, 0.85))
    dates = np.datetime64("2020-01-01") + days.astype("m8[D]")
    np.testing.assert_allclose(described([course], dates), [[last, slope, peak, above]])


def test_cases_without_a_course():
    constant = [0.25, 0, 0.5, 1]
    found = described([[0.7], [], [0.5, 0.5], [0, 0, 0]], W=[2, 1, 0, 1])
    np.testing.assert_allclose(found, [constant, [0] * 4, [0] * 4, [0] * 4])
    # Visits at one time are read in their order, as equal parts of the time.
    [[last, slope, peak, above]] = described([[1, 3]], np.zeros(2))
    assert (last, peak, above) == pytest.approx((0.375, 0.75, 0.5))
    assert slope == pytest.approx(2 / 0.5 / 2)
    assert described([]).shape == (0, 4)


def test_visits_at_the_same_time_within_a_history():
    found = described([[1, 1, 2]], np.array([0.0, 1.0, 1.0]))
    assert np.isfinite(found).all()
    assert found[0, 0] == pytest.approx((1 * 0.5 + 2) / 4)


histories = st.lists(st.lists(st.floats(0, 1e6), max_size=6), min_size=1, max_size=5)


@given(histories, st.integers(0, 3))
def test_features_are_finite_and_of_each_patient_alone(courses, seed):
    times = np.concatenate([np.sort(np.random.default_rng(seed).integers(0, 4, len(c))) for c in courses])
    together = described(courses, times.astype(float))
    assert np.isfinite(together).all()
    assert ((together[:, [0, 2, 3]] >= 0) & (together[:, [0, 2, 3]] <= 1 + 1e-9)).all()
    first = 0
    for k, course in enumerate(courses):
        alone = described([course], times[first : first + len(course)].astype(float))
        np.testing.assert_allclose(together[[k]], alone, rtol=1e-9, atol=1e-12)
        first += len(course)


def test_the_smallest_number_is_a_course_as_any_other():
    np.testing.assert_array_equal(described([[0.0, 5e-324]]), described([[0.0, 1.0]]))


def test_features_do_not_depend_on_the_size_of_score_and_course():
    course = [1.0, 0.5, 2.0, 3.0]
    np.testing.assert_allclose(described([course]), described([np.array(course) * 7], W=[0.01]))


@pytest.fixture(scope="module")
def fitted():
    cohort, _ = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    return TASTE(rank=3, n_init=1, init="random", random_state=0, max_iter=20).fit(cohort[:40]), cohort


def test_the_table_has_a_row_for_each_patient_and_named_columns(fitted, monkeypatch):
    model, cohort = fitted
    table = course_features(model, cohort[40:])
    assert table.index.tolist() == cohort[40:].patient_ids.tolist()
    assert table.columns.tolist() == [f"phenotype_{r}_{name}" for r in (1, 2, 3) for name in FEATURES]
    projection = model.project(cohort[40:])
    k, r = 3, 1
    rows = slice(projection.offsets[k], projection.offsets[k + 1])
    times = None if cohort.visit_times is None else cohort[40:].visit_times[rows]
    own = described([projection.U[rows, r]], times, W=[projection.W[k, r]])
    np.testing.assert_allclose(table.iloc[k, 4 * r : 4 * r + 4], own[0])
    monkeypatch.setattr("phenotaste.patients.VISITS_PER_BLOCK", 7)
    np.testing.assert_array_equal(course_features(model, cohort[40:]), table)


def test_a_reviewed_model_has_its_names(fitted):
    model, cohort = fitted
    blank = Review.blank(model, names={1: "Gout"})
    first, second, third = blank.decisions
    decisions = (first, replace(second, status="rejected"), third)
    reviewed = model.apply_review(replace(blank, decisions=decisions))
    table = course_features(reviewed, cohort[40:])
    assert table.columns[::4].tolist() == ["phenotype_Gout_last_quarter", "phenotype_3_last_quarter"]
    full = course_features(model, cohort[40:])
    np.testing.assert_allclose(table["phenotype_3_slope"], full["phenotype_3_slope"])


def test_a_cohort_without_times_counts_visits():
    cohort = Cohort(np.eye(4), [0, 4], visit_times=[0.0, 1.0, 2.0, 30.0])
    plain = Cohort(np.eye(4), [0, 4])
    U = np.array([[1.0], [2.0], [3.0], [4.0]])
    model = SimpleNamespace(
        V_=np.ones((4, 1)),
        project=lambda c: SimpleNamespace(W=np.ones((1, 1)), U=U, offsets=c.offsets, scale=np.ones(1)),
    )
    timed, counted = course_features(model, cohort), course_features(model, plain)
    assert timed["phenotype_1_last_quarter"][0] < counted["phenotype_1_last_quarter"][0]
    assert counted["phenotype_1_slope"][0] == pytest.approx(3 / 2.5)
