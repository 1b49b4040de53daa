"""Starts at short fits: the sample, what is removed, and degenerate cohorts."""

import numpy as np
import pytest

from helpers.cohorts import cohort
from helpers.fits import weights_of
from phenotaste import TASTE, Cohort, metrics, simulate
from phenotaste.cohort.align import align, columns_of
from phenotaste.core.records import Model
from phenotaste.engines import starts


def test_a_sample_holds_the_rows_of_its_patients():
    c = cohort(1, n_patients=12, visits=(0, 6))
    aligned = align(c, columns_of(c))
    chosen = np.array([0, 3, 4, 11])
    part = starts.sample_shard(aligned.shard, chosen)
    expected = c[chosen]
    assert np.array_equal(part.offsets, expected.offsets)
    assert np.array_equal(part.static, expected.static)
    for name in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(part, name), getattr(expected.visits, name))


def test_the_smallest_and_the_most_similar_phenotypes_cost_least():
    V = np.array([[1.0, 0, 0, 0.1], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
    costs = starts.removal_costs(Model(np.eye(4), V, np.zeros((0, 4))), np.array([5.0, 5.0, 0.2, 5.0]))
    assert set(np.argsort(costs)[:3]) == {1, 2, 3}
    assert costs[0] == pytest.approx(5.0 * (1 - 0.01 / 1.01))


def test_a_model_without_one_phenotype_keeps_the_cross_products_of_the_others():
    rng = np.random.default_rng(0)
    model = Model(rng.random((4, 4)), rng.random((6, 4)), rng.random((3, 4)))
    less = starts.without(model, 1)
    keep = [0, 2, 3]
    np.testing.assert_allclose(less.H.T @ less.H, (model.H.T @ model.H)[np.ix_(keep, keep)], rtol=1e-12)
    assert np.array_equal(less.V, model.V[:, keep])
    assert np.array_equal(less.F, model.F[:, keep])


def test_phenotypes_are_removed_by_their_sizes_in_the_same_fit(monkeypatch):
    fits, judged = [], []
    fit, costs = starts.Sample.fit, starts.removal_costs
    monkeypatch.setattr(starts.Sample, "fit", lambda *args: fits.append(fit(*args)) or fits[-1])
    monkeypatch.setattr(starts, "removal_costs", lambda *args: judged.append(args) or costs(*args))
    c = cohort(5, n_patients=40, visits=(1, 8))
    aligned = align(c, columns_of(c))
    weights = weights_of("unit", aligned, 3)
    starts.best_short_fit(aligned.shard, weights, c.shape[1], 3, np.random.default_rng(0), 1)
    assert [len(sizes) for _, sizes in judged] == [6, 5, 4]
    for model, sizes in judged:
        own = next(found for found in fits if found.model is model)
        session = starts.ThreadEngine().open(aligned.shard, weights, len(sizes), c.shape[1], n_jobs=1)
        session.init_U(model)
        for _ in range(30):  # the courses of this model, wherever they begin
            sums = session.step(model)
        assert np.array_equal(sizes, own.sizes)
        assert np.corrcoef(sizes, np.diagonal(sums.UU))[0, 1] > 0.9


def test_short_fits_find_planted_phenotypes_before_the_fit_begins():
    c, truth = simulate.ehr(300, n_features=40, rank=4, random_state=3)
    aligned = align(c, columns_of(c))
    found = starts.best_short_fit(
        aligned.shard, weights_of("unit", aligned, 4), 40, 4, np.random.default_rng(0), 1
    )
    assert metrics.matched_similarity(found.V, truth.V) > 0.95


def test_a_start_does_not_depend_on_the_number_of_threads(monkeypatch):
    monkeypatch.setattr(starts, "SAMPLE_PATIENTS", 50)
    c = cohort(3, n_patients=200, visits=(0, 12))
    aligned = align(c, columns_of(c))
    weights = weights_of("unit", aligned, 3)
    one, two = (
        starts.best_short_fit(aligned.shard, weights, c.shape[1], 3, np.random.default_rng(0), n)
        for n in (1, 2)
    )
    for left, right in zip(one, two, strict=True):
        assert np.array_equal(left, right)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("rank", [1, 3, 8])
def test_degenerate_cohorts_have_a_start(rank):
    few = Cohort([[1.0, 0.0], [0.0, 2.0]], [0, 1, 2])  # fewer features and patients than phenotypes
    empty = Cohort(np.zeros((2, 3)), [0, 1, 2])
    for c in (few, empty):
        model = TASTE(rank, n_init=1, max_iter=3, random_state=0).fit(c)
        assert np.isfinite(model.V_).all()
        assert np.isfinite(model.W_).all()
