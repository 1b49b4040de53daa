"""The patient step on a real GPU, beside the CPU's; `make gpu` runs these where there is one."""

from itertools import pairwise

import numpy as np
import pytest

from helpers.cohorts import cohort
from helpers.fits import start_fit
from helpers.reviewed_models import decided
from phenotaste import TASTE, Cohort, InputError, metrics, simulate
from phenotaste.core import loop
from phenotaste.core.model_step import model_step
from phenotaste.engines import Checkpoint
from phenotaste.engines.cuda import CudaSession, cuda_available, resident_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not cuda_available(), reason="torch finds no CUDA GPU here"),
]
RANKS = (1, 2, 5, 10, 16, 17, 32, 33, 40, 43, 64, 85, 86, 128)  # at the edges of every layout


def both(c, rank, **more):
    here, model = start_fit(c, rank, n_jobs=None, **more)
    there = CudaSession(here.shard, here.weights, rank, c.shape[1])
    there.init_U(model)
    return here, there, model


def courses(engine):
    return np.concatenate([chunk.state.U.cpu().numpy() for chunk in engine.chunks])


def alike(sums, expected, rtol):
    for found, wanted in zip(sums, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max(initial=0.0))


def degenerate(rank, seed=0):
    """Ragged patients, some empty, histories shorter than the rank and too long for the scratch."""
    longest = 150 if rank < 64 else 450
    return cohort(seed, n_patients=150, n_features=60, n_static=8, visits=(0, longest), density=0.08)


@pytest.mark.parametrize("rank", RANKS)
def test_steps_are_those_of_the_cpu(rank):
    c = degenerate(rank)
    here, there, model = both(c, rank, balance=0.5)
    np.testing.assert_allclose(courses(there), here.U, rtol=1e-5, atol=1e-6)
    for n in range(3):
        beta = 0.5 if n else 0.0
        expected, found = here.step(model, beta), there.step(model, beta)
        if rank <= 40:  # beyond, the scores of a short history with few codes are not the only best ones
            alike(found, expected, rtol=2e-5)
        options = {"normalize": True, "exact": False}
        other, loss = model_step(found, model, here.weights.lam, **options)
        model, wanted = model_step(expected, model, here.weights.lam, **options)
        assert loss == pytest.approx(wanted, rel=1e-3 if rank > 40 else 1e-6)
        assert all(np.isfinite(factor).all() for factor in other)
    here.set_U(courses(there).astype(float))
    expected, found = here.score(model), there.score(model)
    total = expected.loss.sum(0)
    np.testing.assert_allclose(found.loss.sum(0), total, rtol=1e-7, atol=1e-9 * total.sum())
    for name in ("visit_error", "static_error", "cp_gap", "present_gap", "present_size"):
        one, other = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose(one.sum(), other.sum(), rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("rank", [1, 10, 40, 128])
def test_short_histories_and_dead_columns_give_numbers(rank):
    c = cohort(1, n_patients=200, n_features=9, visits=(0, 4), density=0.2)
    _, there, model = both(c, rank)
    model.V[:, 0] = 0
    for n in range(5):
        sums = there.step(model, 0.5 if n else 0.0)
        assert all(np.isfinite(part).all() for part in sums)
        model, loss = model_step(sums, model, there.weights.lam, normalize=True, exact=False)
        assert np.isfinite(loss)
    assert np.isfinite(there.score(model).loss).all()


@pytest.mark.parametrize("rank", [5, 40])
def test_fifty_iterations_reach_the_same_objective_without_rising(rank):
    c, _ = simulate.ehr(600, random_state=0)
    here, there, model = both(c, rank)
    options = {"normalize": True, "exact": False, "max_iter": 50, "tol": 0.0}
    expected, found = loop.fit(here, model, **options), loop.fit(there, model, **options)
    assert found.losses[-1] == pytest.approx(expected.losses[-1], rel=1e-5)
    there.init_U(model)
    losses = []
    for _ in range(50):  # plain steps, of which none is ever undone
        model, loss = model_step(there.step(model), model, there.weights.lam, normalize=True, exact=False)
        losses.append(loss)
    assert (np.diff(losses) <= 1e-5 * np.array(losses[:-1])).all()


def test_repeated_fits_are_bitwise_equal():
    c, _ = simulate.ehr(3000, random_state=1)
    found = []
    for _ in range(2):
        _, there, model = both(c, 12)
        for _ in range(3):
            sums = there.step(model, 0.5)
        found.append(sums)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_streamed_blocks_equal_resident_ones():
    c, _ = simulate.ehr(3000, random_state=2)
    here, kept, model = both(c, 20)
    allowed = resident_bytes(here.shard, 20) / 2
    streamed = CudaSession(here.shard, here.weights, 20, c.shape[1], memory=allowed)
    assert streamed.streaming
    assert len(streamed.chunks) > 3
    streamed.init_U(model)
    for n in range(4):
        sums = kept.step(model, 0.5 if n else 0.0)
        alike(streamed.step(model, 0.5 if n else 0.0), sums, rtol=1e-10)
        model, _ = model_step(sums, model, kept.weights.lam, normalize=True, exact=False)
    a, b = kept.score(model), streamed.score(model)
    np.testing.assert_array_equal(a.U, b.U)
    np.testing.assert_array_equal(a.W, b.W)


def test_the_estimator():
    c, _ = simulate.ehr(800, random_state=3)
    here = TASTE(6, random_state=0, n_init=2).fit(c)
    there = TASTE(6, random_state=0, n_init=2, device="cuda").fit(c)
    assert there.loss_curve_[-1] == pytest.approx(
        here.loss_curve_[-1], rel=1e-4
    )  # their last iterations may differ
    assert there.loss_curve_[-1] == pytest.approx(metrics.objective(there, c), rel=1e-8)
    assert there.rmse_ == pytest.approx(metrics.rmse(there, c), rel=1e-6)
    assert there.cpi_ == pytest.approx(metrics.cpi(there), rel=1e-5)
    assert there.cpi_present_ == pytest.approx(metrics.present_cpi(there, c), rel=1e-5)
    assert (there.n_short_, there.n_empty_) == (here.n_short_, here.n_empty_)


def test_projection_agrees_and_does_not_depend_on_other_patients():
    c, _ = simulate.ehr(500, random_state=4)
    fitted = TASTE(6, random_state=0).fit(c)
    here = fitted.project(c)
    there = fitted.set_params(device="cuda").project(c)
    assert there.loss == pytest.approx(here.loss, rel=1e-5)
    alone = np.vstack([fitted.transform(c[k]) for k in (0, 17, 499)])
    np.testing.assert_array_equal(alone, there.W[[0, 17, 499]])


def test_auto_selects_the_gpu_and_the_papers_objective_stays_on_the_cpu():
    c = cohort(1)
    TASTE(2, device="auto", max_iter=3).fit(c)
    TASTE(2, device="auto", objective="paper", max_iter=3).fit(c)
    with pytest.raises(InputError, match="CPU only"):
        TASTE(2, device="cuda", objective="paper").fit(c)


@pytest.mark.parametrize("rank", [3, 40])
def test_short_and_long_histories_leave_unit_columns(rank):
    """Every number of threads per visit, also where one column is all a sweep has."""
    lengths = np.concatenate([np.arange(1, 140), [300, 1000]])
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    c = Cohort((rng.random((offsets[-1], 50)) < 0.1).astype(float), offsets)
    here, there, model = both(c, rank)
    model.V[:, 1:] = 0  # only one phenotype can have a score
    alike(there.step(model), here.step(model), rtol=2e-5)
    U = courses(there)
    norms = [np.linalg.norm(U[first:last], axis=0) for first, last in pairwise(offsets)]
    np.testing.assert_allclose(norms, 1, rtol=1e-6)
    np.testing.assert_allclose(U, here.U, rtol=1e-3, atol=1e-5)


def test_an_interrupted_fit_resumes_to_the_same_bits(tmp_path):
    c, _ = simulate.ehr(600, random_state=6)
    options = {"rank": 6, "device": "cuda", "random_state": 0, "max_iter": 12, "tol": 0, "n_init": 2}
    expected = TASTE(**options).fit(c)

    def interrupt(progress):
        if progress.start == 1 and progress.iteration == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TASTE(**options, checkpoint=Checkpoint(tmp_path / "work", every=5), callback=interrupt).fit(c)
    iterations = []
    checkpoint = Checkpoint(tmp_path / "work", every=5, resume=True)
    resumed = TASTE(
        **options, checkpoint=checkpoint, callback=lambda now: iterations.append(now) and None
    ).fit(c)
    assert len(iterations) == 7
    for name in ("H_", "V_", "F_", "W_", "U_", "loss_curve_"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(expected, name))
    assert not (tmp_path / "work").exists()


def test_a_refit_keeps_definitions_to_the_bit():
    c = simulate.ehr(300, n_features=40, n_static=6, rank=4, random_state=1)[0]
    model = TASTE(4, random_state=0, n_init=1, device="cuda").fit(c)
    review = decided(model, "accepted", "rejected", "open", "open")
    found = model.refit(c, review, rank=4)
    np.testing.assert_array_equal(found.V_[:, 0], model.V_[:, 0])
    np.testing.assert_array_equal(found.F_[:, 0], model.F_[:, 0])
    np.testing.assert_array_equal(found.background_.V[:, 0], model.V_[:, 1])
    assert (np.diff(found.loss_curve_[:-1]) <= 0).all()
    expected = model.set_params(device="cpu").refit(c, review, rank=4)
    assert found.loss_curve_[-1] == pytest.approx(expected.loss_curve_[-1], rel=1e-3)
