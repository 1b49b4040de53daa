"""Fixed columns, and columns in cones: the nearest points, the model step against the reference, and descent."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.cohorts import cohort, cohorts
from helpers.fits import start_fit
from phenotaste.core import loop, reference
from phenotaste.core.constraints import Constraints, Given, Near, Within, keep_fixed
from phenotaste.core.init import init_model
from phenotaste.core.model_step import model_step, unit_columns
from phenotaste.core.records import Model

SIZES = st.integers(-3, 3).map(lambda power: 10.0**power)


def draw_near(rng, n):
    axis = rng.random(n) * (rng.random(n) < 0.7)
    axis[rng.integers(n)] = 1.0
    return Near(axis, float(rng.uniform(0.05, 0.999)))


def draw_constraints(seed, model, rank):
    """The first columns fixed, near and within, as far as the rank goes."""
    rng = np.random.default_rng(seed)
    kinds = rng.permutation(rank)[:3].tolist()
    fixed = tuple(kinds[:1])
    near = tuple((r, Near(f[:, r], 0.9)) for f in (model.V,) for r in kinds[1:2] if f[:, r].any())
    near_F = tuple((r, Near(model.F[:, r], 0.9)) for r in kinds[1:2] if model.F[:, r].any())
    rows = rng.random(len(model.V)) < 0.6
    within = tuple((r, Within(rows)) for r in kinds[2:])
    for r, _ in within:
        model.V[:, r] = np.where(rows, model.V[:, r], 0.0)
    return Constraints(fixed, (*near, *within), near_F)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), size=SIZES)
def test_the_nearest_point_of_a_cone_is_that_of_the_reference(seed, n, size):
    rng = np.random.default_rng(seed)
    y = size * rng.standard_normal(n)
    for cone in (draw_near(rng, n), Within(rng.random(n) < 0.5)):
        found = cone.nearest(y)
        np.testing.assert_allclose(found, reference.nearest_in(cone, y), atol=1e-6 * size)
        assert (found >= 0).all()


@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), size=st.sampled_from([1e-150, 1.0, 1e150]))
def test_points_near_an_axis_reach_the_cosine(seed, n, size):
    rng = np.random.default_rng(seed)
    cone = draw_near(rng, n)
    v = cone.nearest(size * rng.standard_normal(n))
    if v.any():
        assert unit_columns(cone.axis) @ unit_columns(v) >= cone.cosine - 1e-12


def test_points_of_a_cone_stay():
    cone = Near(np.array([1.0, 1.0, 0.0]), 0.8)
    y = np.array([2.0, 1.0, 0.5])
    np.testing.assert_allclose(cone.nearest(y), y, rtol=1e-15)
    np.testing.assert_array_equal(cone.nearest(np.zeros(3)), np.zeros(3))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_model_step_matches_the_reference(seed, exact):
    engine, model = start_fit(cohort(seed, n_patients=20, visits=(3, 12)), 5, exact=exact)
    for _ in range(2):
        model, _ = model_step(engine.step(model), model, engine.weights.lam, normalize=True, exact=exact)
    constraints, sums = draw_constraints(seed, model, 5), engine.step(model)
    options = {"normalize": True, "exact": exact, "constraints": constraints}
    got, _ = model_step(sums, model, engine.weights.lam, **options)
    want = reference.model_step(sums, model, True, constraints)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    (fixed,) = constraints.fixed
    np.testing.assert_array_equal(got.V[:, fixed], model.V[:, fixed])
    np.testing.assert_array_equal(got.F[:, fixed], model.F[:, fixed])


@settings(max_examples=25)
@given(c=cohorts, rank=st.integers(1, 6), seed=st.integers(0, 100), smooth=st.sampled_from([0.0, 0.3, 30.0]))
def test_the_objective_never_rises_and_columns_keep_their_constraints(c, rank, seed, smooth):
    engine, model = start_fit(c, rank, kind="random", smooth=smooth, balance=0.5)
    for _ in range(2):  # so that columns of F to be kept are not all zero
        model, _ = model_step(engine.step(model), model, engine.weights.lam, normalize=True, exact=False)
    constraints, states = draw_constraints(seed, model, rank), []
    options = {"normalize": True, "exact": False, "tol": 0.0, "constraints": constraints}
    fit = loop.fit(engine, model, max_iter=25, on_iteration=states.append, **options)
    losses = np.array(fit.losses)
    assert (np.diff(losses) <= 1e-9 * np.abs(losses[:-1]) + 1e-9).all()
    (fixed,) = constraints.fixed
    for state in states:
        for mine, theirs in zip(state.model[1:], model[1:], strict=True):
            np.testing.assert_array_equal(mine[:, fixed], theirs[:, fixed])
        extrapolated, _ = loop.extrapolated(state, constraints)
        np.testing.assert_array_equal(extrapolated.V[:, fixed], model.V[:, fixed])
    for factor, cones in ((fit.model.V, constraints.V), (fit.model.F, constraints.F)):
        for r, cone in cones:
            if isinstance(cone, Near) and factor[:, r].any():
                assert unit_columns(cone.axis) @ unit_columns(factor[:, r]) >= cone.cosine - 1e-9
            elif isinstance(cone, Within):
                assert not factor[~cone.rows, r].any()


def test_a_column_in_a_cone_lowers_the_objective_though_the_cone_binds():
    engine, model = start_fit(cohort(3, n_patients=30), 3)
    constraints = Constraints(V=((0, Near(model.V[:, 0].copy(), 0.99)),))
    options = {"normalize": True, "exact": False, "tol": 0.0, "max_iter": 30}
    near = loop.fit(engine, model, constraints=constraints, **options)
    cosine = near.model.V[:, 0] @ model.V[:, 0] / np.linalg.norm(model.V[:, 0])
    assert cosine == pytest.approx(0.99, abs=1e-6)  # it moved as far as it may
    engine, _ = start_fit(cohort(3, n_patients=30), 3)
    fixed = loop.fit(engine, model, constraints=Constraints(fixed=(0,)), **options)
    assert near.losses[-1] < fixed.losses[-1]


def test_no_constraint_changes_no_bit():
    engine, model = start_fit(cohort(3, n_patients=30), 3)
    sums, options = engine.step(model), {"normalize": True, "exact": False}
    plain, loss = model_step(sums, model, engine.weights.lam, **options)
    other, other_loss = model_step(sums, model, engine.weights.lam, constraints=Constraints(), **options)
    assert loss == other_loss
    assert all(np.array_equal(a, b) for a, b in zip(plain, other, strict=True))
    assert keep_fixed(plain, model, ()) is plain


def test_new_columns_follow_those_that_are_given():
    c = cohort(2, n_patients=30)
    engine, model = start_fit(c, 2)
    given = Given(Model(np.eye(2), model.V, np.ones((engine.shard.static.shape[1], 2))))
    rng = np.random.default_rng(0)
    found = init_model("nmf_visits", engine.shard, c.shape[1], 5, True, rng, None, given)
    assert found.V.shape == (c.shape[1], 5)
    np.testing.assert_array_equal(found.V[:, :2], model.V)
    assert not found.F[:, 2:].any()
    np.testing.assert_array_equal(found.H, np.eye(5))


def test_new_columns_are_not_those_most_similar_to_the_given_ones():
    c = cohort(2, n_patients=30)
    shard = start_fit(c, 2)[0].shard
    plain = init_model("nmf_visits", shard, c.shape[1], 5, True, np.random.default_rng(0))
    given = Given(Model(np.eye(1), plain.V[:, [3]], plain.F[:, [3]]))
    found = init_model("nmf_visits", shard, c.shape[1], 5, True, np.random.default_rng(0), None, given)
    np.testing.assert_array_equal(found.V, plain.V[:, [3, 0, 1, 2, 4]])


def test_a_digest_tells_given_columns_apart():
    model = Model(np.eye(2), np.eye(3, 2), np.ones((1, 2)))
    one = Given(model, Constraints((0,), ((1, Near(np.ones(3), 0.9)),)))
    others = [
        one._replace(background=(1,)),
        one._replace(constraints=Constraints((0,), ((1, Near(np.ones(3), 0.8)),))),
        one._replace(constraints=Constraints((1,), ((1, Near(np.ones(3), 0.9)),))),
        one._replace(model=model._replace(V=2 * model.V)),
    ]
    assert len({given.digest() for given in (one, *others)}) == 5
    assert one.digest() == one._replace(background=()).digest()
