"""Every kind of initial model, and the visit totals of the NMF initialisation."""

import numpy as np
import pytest

from helpers.cohorts import cohort, dense
from phenotaste import Cohort
from phenotaste.cohort.align import align, columns_of
from phenotaste.core import init


def model(kind, c, rank=3, normalize=True, seed=0):
    shard = align(c, columns_of(c)).shard
    return init.init_model(kind, shard, c.shape[1], rank, normalize, np.random.default_rng(seed))


def totals(c, seed=0):
    shard = align(c, columns_of(c)).shard
    return init.visit_totals(shard, c.shape[1], np.random.default_rng(seed)).toarray()


@pytest.mark.parametrize("kind", ["nmf", "random", "uniform"])
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


@pytest.mark.parametrize("kind", ["nmf", "random"])
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


def test_nmf_recovers_definitions_from_visit_totals():
    rng = np.random.default_rng(0)
    V = np.kron(np.eye(3), np.ones((4, 1)))
    shares = np.repeat(rng.integers(0, 5, (40, 3)) * (rng.random((40, 3)) < 0.4), 3, axis=0)
    found = model("nmf", Cohort(shares @ V.T, np.arange(0, 121, 3))).V
    cosines = found.T @ (V / 2)
    assert np.all(cosines.max(axis=0) > 0.99)


def test_totals_sum_the_visits_of_each_patient():
    c = cohort(2, n_patients=15)
    np.testing.assert_allclose(totals(c), [X.sum(axis=0) for X, _ in dense(c)])


def test_negative_totals_are_clipped_for_initialisation_only():
    X = np.array([[1.0, -2.0], [-3.0, 1.0], [2.0, 2.0]])
    c = Cohort(X, [0, 2, 3], allow_negative=True)
    np.testing.assert_array_equal(totals(c), [[0.0, 0.0], [2.0, 2.0]])
    assert np.array_equal(c.visits.toarray(), X)
    assert np.all(np.isfinite(model("nmf", c, rank=2).V))


def test_a_large_cohort_is_initialised_from_a_sample_of_patients(monkeypatch):
    monkeypatch.setattr(init, "NMF_PATIENTS", 6)
    c = cohort(2, n_patients=15, visits=(1, 9))
    every = np.array([X.sum(axis=0) for X, _ in dense(c)])
    some = totals(c)
    assert len(some) == 6
    which = [int(np.flatnonzero((every == row).all(axis=1))[0]) for row in some]
    assert which == sorted(which)
    assert np.array_equal(some, totals(c))
    assert any(not np.array_equal(some, totals(c, seed)) for seed in range(1, 5))
    assert np.all(np.isfinite(model("nmf", c).V))


@pytest.mark.parametrize("X", [np.zeros((4, 5)), -np.ones((4, 5)), np.eye(4, 5)[:, [0, 0, 0, 0, 0]]])
def test_no_definition_is_zero_when_data_are_insufficient_for_nmf(X):
    found = model("nmf", Cohort(X, [0, 2, 4], allow_negative=True), rank=4)
    np.testing.assert_allclose(np.linalg.norm(found.V, axis=0), 1)
