"""Repeated stratified splits into training, validation and test patients, and the cohorts of a split.

A column that only validation or test patients have would change the random draws that a factorisation starts from, so
that it is removed before anything is fitted: nothing of the other patients, not even their columns, reaches training.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.cohort.persons import BOTH, CASE_ONLY, CONTROL_ONLY, label_patterns, rows_of
from phenotaste.core.records import Array
from phenotaste.disclosure import MIN_CELL_SIZE
from phenotaste.errors import InputError

TRAIN, VALIDATION, TEST = 0.75, 0.10, 0.15  # the paper's supplement
MIN_CLASS_SIZE = 20  # leaves two for validation and three for the test
STREAM = 1  # part of every seed: never renumber


class Split(NamedTuple):
    """Positions of patients in the cohort, in increasing order."""

    train: Array
    validation: Array
    test: Array


class SplitCohorts(NamedTuple):
    """The patients of a split, with labels and the columns that occur in training."""

    train: Cohort
    validation: Cohort
    test: Cohort
    features: Array  # positions of these columns in the cohort
    static: Array


def draw_split(case: Array, number: int, random_state: int, persons: Array | None = None) -> Split:
    """Return split `number` of a cohort, which depends on the labels, the seed and the number only.

    `persons` are the numbers of the patients of the rows, where patients have several: all rows of a patient are in one
    part.
    """
    rng = np.random.default_rng([random_state, STREAM, number])
    persons = np.arange(len(case)) if persons is None else persons
    pattern = label_patterns(persons, case)
    parts: tuple[list[Array], list[Array], list[Array]] = ([], [], [])
    for stratum in (CONTROL_ONLY, CASE_ONLY, BOTH):
        members = rng.permutation(np.flatnonzero(pattern == stratum))
        n_test, n_validation = round(TEST * len(members)), round(VALIDATION * len(members))
        cuts = np.split(members, [len(members) - n_validation - n_test, len(members) - n_test])
        for part, patients in zip(parts, cuts, strict=True):
            part.append(patients)
    return Split(*(np.sort(rows_of(persons, np.concatenate(part))) for part in parts))


def check_sizes(case: Array, persons: Array | None = None) -> None:
    """Refuse a cohort that is too small to be split; the message does not give its counts."""
    pattern = label_patterns(np.arange(len(case)) if persons is None else persons, case)
    for other, name in ((CONTROL_ONLY, "cases"), (CASE_ONLY, "controls")):
        if np.count_nonzero(pattern != other) < MIN_CLASS_SIZE:
            raise InputError(
                f"The cohort has fewer than {MIN_CLASS_SIZE} {name}, too few to be split for training, validation and "
                "test: use a larger cohort."
            )
    if sum(round(TEST * np.count_nonzero(pattern == stratum)) for stratum in range(3)) < MIN_CELL_SIZE:
        raise InputError(
            f"The cohort is too small: fewer than {MIN_CELL_SIZE} patients would be test patients; use a larger cohort."
        )


def split_cohort(cohort: Cohort, case: Array, split: Split) -> SplitCohorts:
    train = cohort[split.train]
    features = np.flatnonzero(np.bincount(train.visits.indices, minlength=cohort.n_features))
    static = np.zeros(0, np.int64) if train.static is None else np.flatnonzero(train.static.any(axis=0))
    train, validation, test = (
        with_columns(cohort[part], features, static).with_labels(case[part].astype(np.float64))
        for part in split
    )
    return SplitCohorts(train, validation, test, features, static)


def with_columns(cohort: Cohort, features: Array, static: Array) -> Cohort:
    names, static_names = cohort.feature_names, cohort.static_names
    return Cohort(
        cohort.visits[:, features],
        cohort.offsets,
        None if cohort.static is None else cohort.static[:, static],
        patient_ids=cohort.patient_ids,
        visit_times=cohort.visit_times,
        last_times=cohort.last_times,
        groups=cohort.groups,
        feature_names=None if names is None else names[features],
        static_names=None if static_names is None or not len(static) else static_names[static],
        allow_negative=cohort.allow_negative,
    )
