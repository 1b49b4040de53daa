"""Simulated hospitals for tests of federated fits: different patients, case mixes and columns."""

from itertools import pairwise

import numpy as np
from scipy import sparse

from phenotaste import Cohort, federated, simulate

NAMES = ("north", "south", "east")


def hospitals(sizes=(130, 170, 110), n_features=16, n_static=5, rank=3, seed=0, plain=False):
    """Cohorts whose patients have the same phenotypes in different shares.

    Unless `plain`, the second lacks a feature and has its columns in another order, and the last has one more code that
    20 patients have, and one that 4 have.
    """
    c, truth = simulate.ehr(
        2 * sum(sizes),
        n_features=n_features,
        n_static=max(n_static, 1),
        mean_visits=8,
        rank=rank,
        random_state=seed,
    )
    c = Cohort(
        c.visits,
        c.offsets,
        c.static if n_static else None,
        feature_names=[f"code {j:02d}" for j in range(n_features)],
        static_names=[f"fact {p:02d}" for p in range(n_static)] or None,
    )
    rng = np.random.default_rng(seed)
    order = np.argsort(truth.W.argmax(axis=1) + 1.5 * rng.random(len(c)))
    edges = np.cumsum([0, *sizes])
    cohorts = [c[np.sort(order[first:last])] for first, last in pairwise(edges)]
    if not plain:
        cohorts[1] = with_columns(cohorts[1], rng.permutation(n_features)[1:])
        cohorts[2] = with_codes(cohorts[2], {"own": 20, "rare": 4}, rng)
    return cohorts


def with_columns(c, columns):
    return Cohort(
        c.visits[:, columns],
        c.offsets,
        c.static,
        feature_names=c.feature_names[columns],
        static_names=c.static_names,
    )


def with_codes(c, codes, rng):
    """Add codes, each at the first visit of this number of patients."""
    added = np.zeros((c.n_visits, len(codes)))
    for j, count in enumerate(codes.values()):
        added[c.offsets[rng.choice(len(c), count, replace=False)], j] = 2.0
    return Cohort(
        sparse.hstack([c.visits, sparse.csr_array(added)]).tocsr(),
        c.offsets,
        c.static,
        feature_names=[*c.feature_names, *codes],
        static_names=c.static_names,
    )


def pooled(cohorts, features, static, min_cell_size=11):
    """All hospitals in one cohort, computed code by code, without the columns that each suppresses."""
    X, A, counts = [], [], []
    for c in cohorts:
        dense, own = c.visits.toarray(), np.zeros((c.n_visits, len(features)))
        owner = np.repeat(np.arange(len(c)), np.diff(c.offsets))
        for j, name in enumerate(c.feature_names.tolist()):
            if len(np.unique(owner[dense[:, j] > 0])) >= min_cell_size:
                own[:, features.index(name)] = dense[:, j]
        facts = np.zeros((len(c), len(static)))
        for p, name in enumerate([] if c.static is None else c.static_names.tolist()):
            having = int(np.sum(c.static[:, p] > 0))
            if having >= min_cell_size and not 0 < len(c) - having < min_cell_size:
                facts[:, static.index(name)] = c.static[:, p]
        X.append(own)
        A.append(facts)
        counts.append(np.diff(c.offsets))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return Cohort(
        np.vstack(X),
        offsets,
        np.vstack(A) if static else None,
        feature_names=features,
        static_names=static or None,
    )


def run(root, cohorts, settings, names=NAMES, **options):
    """A complete federated fit in `root`; returns the last report of `combine`."""
    names = names[: len(cohorts)]
    federated.init(root / "work", names, settings)
    while True:
        round_of_steps(root, cohorts, names, **options)
        done = federated.combine(root / "work")
        if done.next == "done":
            return done


def round_of_steps(root, cohorts, names=NAMES, **options):
    """Every site responds to the newest request."""
    return [
        federated.step(root / "work" / "exchange", c, site=name, state=root / name, **options)
        for name, c in zip(names, cohorts, strict=False)
    ]
