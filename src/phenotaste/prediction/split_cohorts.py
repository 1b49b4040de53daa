"""The three parts of a split as cohorts with labels, cut down to the columns that training patients have.

A column that only validation or test patients have would change the draws a factorisation starts from, so it goes
before anything is fitted: nothing of the other parts, not even their columns, reaches the training.
"""

from typing import NamedTuple

import numpy as np

from phenotaste.cohort import Cohort
from phenotaste.cohort.checks import frozen
from phenotaste.core.records import Array
from phenotaste.prediction.splits import Split


class Parts(NamedTuple):
    train: Cohort
    validation: Cohort
    test: Cohort
    features: Array  # positions of the kept columns in the cohort
    static: Array


def parts_of(cohort: Cohort, case: Array, split: Split) -> Parts:
    train = cohort[split.train]
    features = np.flatnonzero(np.bincount(train.visits.indices, minlength=cohort.n_features))
    facts = np.zeros(0, np.int64) if train.static is None else np.flatnonzero(train.static.any(axis=0))
    train, validation, test = (
        labelled(with_columns(cohort[part], features, facts), case[part]) for part in split
    )
    return Parts(train, validation, test, features, facts)


def with_columns(cohort: Cohort, features: Array, facts: Array) -> Cohort:
    names, static_names = cohort.feature_names, cohort.static_names
    return Cohort(
        cohort.visits[:, features],
        cohort.offsets,
        None if cohort.static is None else cohort.static[:, facts],
        patient_ids=cohort.patient_ids,
        visit_times=cohort.visit_times,
        feature_names=None if names is None else names[features],
        static_names=None if static_names is None or not len(facts) else static_names[facts],
        allow_negative=cohort.allow_negative,
    )


def labelled(cohort: Cohort, case: Array) -> Cohort:
    """The same patients with these labels; `cohort` is not changed."""
    again = cohort[:]
    again.labels = frozen(case.astype(np.float64))
    return again
