"""Rows of a cohort by patient: with several index times a patient has several, which are never split up."""

import numpy as np

CONTROL_ONLY, CASE_ONLY, BOTH = range(3)


def rows_of(persons: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The rows of the chosen patients, one patient after the other; `persons` is the number of the patient of each row.

    Examples
    --------
    >>> import numpy as np
    >>> from phenotaste.cohort.persons import rows_of
    >>> rows_of(np.array([1, 0, 1, 2]), np.array([1, 2, 1])).tolist()
    [0, 2, 3, 0, 2]
    """
    order = np.argsort(persons, kind="stable")
    first = np.searchsorted(persons[order], chosen)
    count = np.searchsorted(persons[order], chosen, side="right") - first
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return order[np.repeat(first, count) + within]


def label_patterns(persons: np.ndarray, case: np.ndarray) -> np.ndarray:
    """For each patient, whether the labels of the rows are those of controls, of cases, or both.

    Examples
    --------
    >>> import numpy as np
    >>> from phenotaste.cohort.persons import label_patterns
    >>> label_patterns(np.array([0, 1, 1, 2]), np.array([True, True, False, False])).tolist()
    [1, 2, 0]
    """
    n_persons = int(persons.max(initial=-1)) + 1
    cases = np.bincount(persons, case, n_persons) > 0
    controls = np.bincount(persons, ~case, n_persons) > 0
    return np.where(cases & controls, BOTH, np.where(cases, CASE_ONLY, CONTROL_ONLY))
