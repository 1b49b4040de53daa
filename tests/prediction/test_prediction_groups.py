"""Patients with several rows, as with several index times, are never on both sides of a split."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from phenotaste import Cohort, prediction, simulate
from phenotaste.baselines.classifier import validation_mask
from phenotaste.cohort.persons import label_patterns, rows_of
from phenotaste.errors import InputError
from phenotaste.prediction.coefficients import bootstrap_coefs
from phenotaste.prediction.measures import bootstrap_measures
from phenotaste.prediction.split_cohorts import check_sizes, draw_split, split_cohort
from phenotaste.selection.fits import task_patients
from phenotaste.selection.grid import BOOTSTRAP, HALF, FitSettings, Task


@st.composite
def labelled_rows(draw):
    """The patient and the label of each row: in any order, some patients with rows of both labels."""
    n_persons, seed = draw(st.integers(60, 200)), draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    persons = rng.permutation(np.concatenate([np.arange(n_persons), rng.integers(n_persons, size=n_persons)]))
    tendency = rng.choice([0.0, 0.5, 1.0], n_persons, p=draw(st.sampled_from([(0.5, 0.1, 0.4), (0, 1, 0)])))
    return persons, rng.random(len(persons)) < tendency[persons]


@given(labelled_rows(), st.integers(0, 5), st.integers(0, 10**6))
def test_no_patient_is_in_two_parts_of_a_split(rows, number, seed):
    persons, case = rows
    split = draw_split(case, number, seed, persons)
    assert sorted(np.concatenate(split)) == list(range(len(case)))
    people = [set(persons[part]) for part in split]
    assert not people[0] & people[1]
    assert not people[0] & people[2]
    assert not people[1] & people[2]
    pattern = label_patterns(persons, case)
    for part, share in zip(people, (0.75, 0.10, 0.15), strict=True):
        for stratum in range(3):
            members = np.flatnonzero(pattern == stratum)
            assert abs(len(part & set(members)) - share * len(members)) <= 1


@given(labelled_rows(), st.integers(0, 10**6))
def test_no_patient_is_both_trained_on_and_held_out_by_a_classifier(rows, seed):
    persons, case = rows
    mask = validation_mask(case, 0.2, np.random.default_rng(seed), persons)
    if mask is not None:
        assert not set(persons[mask]) & set(persons[~mask])
        assert len(set(case[mask])) == 2


def with_groups(n=80):
    cohort, _ = simulate.heart_failure(n, random_state=0)
    groups = np.array([f"p{k // 2}" for k in range(n)])
    return Cohort(
        cohort.visits,
        cohort.offsets,
        cohort.static,
        labels=cohort.labels,
        feature_names=cohort.feature_names,
        static_names=cohort.static_names,
        groups=groups,
    )


@hypothesis_settings(max_examples=10)
@given(st.integers(0, 20))
def test_halves_and_bootstrap_samples_are_of_patients(number):
    cohort = with_groups()
    fitted, held_out = task_patients(cohort, Task(HALF, 3, 0.1, 1.0, 0.3, number), FitSettings())
    assert not set(fitted.groups) & set(held_out.groups)
    assert len(fitted) == len(held_out) == len(cohort) // 2
    sample, _ = task_patients(cohort, Task(BOOTSTRAP, 3, 0.1, 1.0, 0.3, number), FitSettings())
    counts = dict(zip(*np.unique(sample.groups, return_counts=True), strict=True))
    assert all(count % 2 == 0 for count in counts.values())  # both rows of a patient, or none
    assert sum(counts.values()) == len(cohort)


def test_resampled_measures_and_coefficients_draw_patients():
    """One patient has all rows: every sample is the sample itself."""
    rng = np.random.default_rng(0)
    risk, case, persons = rng.random(30), rng.random(30) < 0.5, np.zeros(30, int)
    found = bootstrap_measures(risk, case, persons, 1, 20, 0)
    np.testing.assert_allclose(found.resampled, np.tile(list(found.values.values()), (20, 1)))
    coefs = bootstrap_coefs(rng.normal(size=(30, 2)), case, 1.0, 3, 0, persons)
    assert len(coefs) == 3
    np.testing.assert_array_equal(coefs, coefs[:1].repeat(3, axis=0))


def test_the_cohorts_of_a_split_keep_their_patients_and_evaluate_counts_them():
    cohort = with_groups(240)
    case = cohort.labels == 1
    split = draw_split(case, 0, 0, cohort.persons)
    parts = split_cohort(cohort, case, split)
    assert not set(parts.train.groups) & set(parts.test.groups)
    result = prediction.evaluate(
        cohort, ranks=2, splits=1, baselines=[], resamples=5, max_iter=3, trusted=True
    )
    assert result.counts["patients"] == 120
    assert result.counts["cases"] == len(set(cohort.groups[case]))
    assert result.counts["test_patients"] == len(set(parts.test.groups))


def test_rows_do_not_make_a_small_cohort_large():
    persons, case = np.repeat(np.arange(30), 40), np.arange(1200) % 2 == 0
    with pytest.raises(InputError, match="too small"):
        check_sizes(case, persons)
    with pytest.raises(InputError, match="fewer than 20 cases"):
        check_sizes(persons < 10, persons)


@given(st.lists(st.integers(0, 8), min_size=1), st.lists(st.integers(0, 8)))
def test_rows_of_patients(persons, chosen):
    persons = np.unique(persons, return_inverse=True)[1]
    chosen = np.array([k for k in chosen if k <= persons.max()], int)
    expected = [row for k in chosen for row in np.flatnonzero(persons == k)]
    assert rows_of(persons, chosen).tolist() == expected
