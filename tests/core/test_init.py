"""Every kind of initial model, and the rows of the NMF initialisation."""

import numpy as np
import pytest

from helpers.cohorts import cohort, dense
from phenotaste import Cohort
from phenotaste.cohort.align import align, columns_of
from phenotaste.core import init


def model(kind, c, rank=3, normalize=True, seed=0):
    shard = align(c, columns_of(c)).shard
    return init.init_model(kind, shard, c.shape[1], rank, normalize, np.random.default_rng(seed))


def rows_of(kind, c, seed=0, scale=None):
    shard = align(c, columns_of(c)).shard
    return kind(shard, c.shape[1], scale, np.random.default_rng(seed)).toarray()


@pytest.mark.parametrize("kind", ["nmf", "nmf_visits", "random", "uniform"])
def test_shapes_signs_and_seeds(kind):
    c = cohort(0, n_patients=20, visits=(2, 9))
    one, same, other = (model(kind, c, seed=seed) for seed in (0, 0, 1))
    assert [factor.shape for factor in one] == [(3, 3), (7, 3), (4, 3)]
    for factor, again in zip(one, same, strict=True):
        assert np.all(factor >= 0)
        assert np.array_equal(factor, again)
    assert not np.array_equal(one.V, other.V)
    np.testing.assert_allclose(np.linalg.norm(one.V, axis=0), 1)
    np.testing.assert_allclose(np.linalg.norm(one.H, axis=0), 1)


@pytest.mark.parametrize("kind", ["nmf", "nmf_visits", "random"])
def test_F_is_zero_and_H_the_identity(kind):
    found = model(kind, cohort(0))
    assert not found.F.any()
    assert np.array_equal(found.H, np.eye(3))


def test_uniform_initialisation_of_every_factor():
    c = cohort(0, n_features=200, n_static=200)
    found = model("uniform", c, rank=20, normalize=False)
    for factor in found:
        assert 0.4 < factor.mean() < 0.6
        assert factor.min() < 0.1
        assert 0.9 < factor.max() < 1
    assert model("uniform", c, rank=20).F.any()


def test_only_nmf_definitions_depend_on_the_data():
    one, other = cohort(0, n_patients=20, visits=(2, 9)), cohort(1, n_patients=20, visits=(2, 9))
    assert np.array_equal(model("random", one).V, model("random", other).V)
    assert not np.allclose(model("nmf", one).V, model("nmf", other).V)
    assert not model("nmf", one).V[-1].any()  # the feature that never occurs


def test_nmf_recovers_definitions():
    rng = np.random.default_rng(0)
    V = np.kron(np.eye(3), np.ones((4, 1)))
    shares = np.repeat(rng.integers(0, 5, (40, 3)) * (rng.random((40, 3)) < 0.4), 3, axis=0)
    found = model("nmf", Cohort(shares @ V.T, np.arange(0, 121, 3))).V
    cosines = found.T @ (V / 2)
    assert np.all(cosines.max(axis=0) > 0.99)


def all_rows(kind, c, scale):
    """Computed one by one."""
    rows = []
    for k, (X, _) in enumerate(dense(c)):
        rows += [scale[k] * row for row in ([X.sum(axis=0)] if kind is init.patient_sums else X) if row.any()]
    return np.array(rows)


@pytest.mark.parametrize("kind", [init.patient_sums, init.sampled_visits])
def test_rows_are_scaled_and_those_without_entries_left_out(kind):
    c, scale = cohort(2, n_patients=15), np.arange(1.0, 16.0)
    np.testing.assert_allclose(rows_of(kind, c, scale=scale), all_rows(kind, c, scale))


def test_negative_sums_are_clipped_for_initialisation_only():
    X = np.array([[1.0, -2.0], [-3.0, 1.0], [2.0, 2.0]])
    c = Cohort(X, [0, 2, 3], allow_negative=True)
    assert np.all(np.isfinite(model("nmf", c, rank=2).V))
    assert np.array_equal(c.visits.toarray(), X)


@pytest.mark.parametrize("kind", [init.patient_sums, init.sampled_visits])
@pytest.mark.parametrize("at_a_time", [4, 2**20])
def test_a_large_cohort_is_initialised_from_a_sample(monkeypatch, kind, at_a_time):
    monkeypatch.setattr(init, "NMF_ROWS", 6)
    monkeypatch.setattr(init, "ROWS_AT_A_TIME", at_a_time)
    c = cohort(2, n_patients=15, visits=(0, 9), n_features=30)
    every = all_rows(kind, c, np.ones(15))
    some = rows_of(kind, c)
    which = [int(np.flatnonzero((every == row).all(axis=1))[0]) for row in some]
    assert len(which) == 6
    assert which == sorted(which)
    assert np.array_equal(some, rows_of(kind, c))
    assert any(not np.array_equal(some, rows_of(kind, c, seed)) for seed in range(1, 5))
    monkeypatch.setattr(init, "ROWS_AT_A_TIME", 7)
    assert np.array_equal(some, rows_of(kind, c))  # the sample does not depend on it


@pytest.mark.parametrize("X", [np.zeros((4, 5)), -np.ones((4, 5)), np.eye(4, 5)[:, [0, 0, 0, 0, 0]]])
def test_no_definition_is_zero_when_data_are_insufficient_for_nmf(X):
    found = model("nmf", Cohort(X, [0, 2, 4], allow_negative=True), rank=4)
    np.testing.assert_allclose(np.linalg.norm(found.V, axis=0), 1)
