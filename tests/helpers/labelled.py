"""Labelled cohorts with an effect that only some classifiers can detect."""

import numpy as np

from phenotaste import Cohort


def presence_effect(seed=0, n_patients=300, n_features=20, n_static=3):
    """The first code and the first static feature raise the risk of being a case; columns have names."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 8, n_patients)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X = (rng.random((offsets[-1], n_features)) < 0.1).astype(float)
    A = (rng.random((n_patients, n_static)) < 0.5).astype(float)
    ever = np.array([X[offsets[k] : offsets[k + 1], 0].any() for k in range(n_patients)])
    risk = -2.0 + 3.0 * ever + 2.0 * A[:, 0]
    labels = (rng.random(n_patients) < 1 / (1 + np.exp(-risk))).astype(float)
    return Cohort(
        X,
        offsets,
        A,
        labels=labels,
        feature_names=[f"code {j}" for j in range(n_features)],
        static_names=[f"fact {p}" for p in range(n_static)],
    )


def order_effect(seed=0, n_patients=600, n_features=8, visits=(3, 7), noise=0.1):
    """Everyone has codes 0 and 1, once each: a case has 0 before 1, a control 1 before 0. The rest is noise.

    Neither the set of codes nor their counts carry information about the label.
    """
    rng = np.random.default_rng(seed)
    counts = rng.integers(visits[0], visits[1] + 1, n_patients)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    X = (rng.random((offsets[-1], n_features)) < noise).astype(float)
    X[:, :2] = 0
    labels = (rng.random(n_patients) < 0.5).astype(float)
    for k in range(n_patients):
        first, second = np.sort(rng.choice(counts[k], 2, replace=False)) + offsets[k]
        early, late = (0, 1) if labels[k] else (1, 0)
        X[first, early] = X[second, late] = 1
    return Cohort(X, offsets, labels=labels)


def shuffled_columns(c, seed=0):
    """The same patients with permuted columns, and one unknown temporal and static feature."""
    rng = np.random.default_rng(seed)
    features, facts = rng.permutation(c.n_features), rng.permutation(c.n_static)
    X = np.column_stack([np.ones(c.n_visits), c.visits.toarray()[:, features]])
    A = np.column_stack([np.ones(len(c)), c.static[:, facts]])
    return Cohort(
        X,
        c.offsets,
        A,
        labels=c.labels,
        feature_names=["unknown", *c.feature_names[features]],
        static_names=["unheard of", *c.static_names[facts]],
    )


def with_negatives(c, seed=0):
    """The same cohort with about a third of the values negated."""
    visits = c.visits.copy()
    visits.data = visits.data * np.random.default_rng(seed).choice([-1.0, 1.0, 1.0], visits.nnz)
    return Cohort(visits, c.offsets, c.static, allow_negative=True)
