"""The GPU's patient step where there is no GPU: the kernel's own source as C++, everything around it on CPU tensors."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.cohorts import cohort, cohorts
from helpers.fits import start_fit
from helpers.host_kernel import MAX_VISITS, TILE, HostLauncher, library
from phenotaste import TASTE, Cohort, InputError
from phenotaste.core import loop
from phenotaste.core.cuda import step
from phenotaste.core.cuda.compile import MODES, Shape, shape_for
from phenotaste.core.model_step import model_step
from phenotaste.core.records import Model
from phenotaste.engines.base import Snapshot
from phenotaste.engines.cuda import (
    MEMORY_VARIABLE,
    CudaSession,
    base_bytes,
    check_cuda,
    cuda_available,
    visit_bytes,
)

torch = pytest.importorskip("torch", reason="the GPU's tensors need torch")
RANKS = (1, 3, 6)
SETTINGS = (
    {},
    {"balance": 0.5, "smooth": 2.0},
    {"smooth": 0.0, "balance": 1.0},
    {"mu": 0.0},
)


def engine_like(engine, n_features, **more):
    """The same patients and weights for the GPU's kernel."""
    return CudaSession(
        engine.shard,
        engine.weights,
        engine.rank,
        n_features,
        device="cpu",
        launcher=HostLauncher(engine.rank),
        **more,
    )


def both(c, rank, **more):
    here, model = start_fit(c, rank, **more)
    there = engine_like(here, c.shape[1])
    there.init_U(model)
    return here, there, model


def courses(engine):
    return np.concatenate([chunk.state.U.numpy() for chunk in engine.chunks])


def on(sums, model, engine):
    return model_step(sums, model, engine.weights.lam, normalize=True, exact=False)[0]


def alike(sums, expected, rtol=3e-6):
    for found, wanted in zip(sums, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max(initial=0.0))


@pytest.mark.parametrize("rank", [*RANKS, 24, 25, 40])
def test_scratch_has_the_size_that_the_kernel_uses(rank):
    assert library(rank, MODES["step"]).scratch_needed() == Shape(rank, 1, TILE).scratch


@given(rank=st.integers(1, 256))
def test_every_rank_has_a_shape_the_kernel_can_work_in(rank):
    shape = shape_for(rank)
    assert shape.threads % 32 == 0
    assert shape.threads > rank  # a column, and a right-hand side, for each thread
    assert shape.tile in (32, 64)


@settings(max_examples=25)
@given(c=cohorts, rank=st.sampled_from(RANKS))
def test_start_is_the_same(c, rank):
    here, there, _ = both(c, rank)
    np.testing.assert_allclose(courses(there), here.U, rtol=1e-6, atol=1e-6)


@settings(max_examples=40)
@given(
    c=cohorts,
    rank=st.sampled_from(RANKS),
    beta=st.sampled_from([0.0, 0.7]),
    settings=st.sampled_from(SETTINGS),
)
def test_no_cohort_breaks_a_step(c, rank, beta, settings):
    _, there, model = both(c, rank, **settings)
    for _ in range(3):
        sums = there.step(model, beta)
        assert all(np.isfinite(part).all() for part in sums)
        U, norms = courses(there), there.chunks[0].patients.norms.numpy()
        assert (U >= 0).all()
        for k, (first, last) in enumerate(pairwise(c.offsets)):
            np.testing.assert_allclose(np.linalg.norm(U[first:last], axis=0), norms[k] > 0, rtol=1e-6, atol=0)
        model = on(sums, model, there)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("beta", [0.0, 0.7])
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("seed", range(2))
def test_steps_are_those_of_the_cpu(seed, rank, beta, settings):
    c = cohort(seed, n_patients=15, n_static=8, visits=(0, 14), negative=seed % 2 == 1)
    assert 0 < np.mean(np.diff(c.offsets) > MAX_VISITS) < 1
    here, there, model = both(c, rank, **settings)
    for _ in range(4):
        expected = here.step(model, beta)
        alike(there.step(model, beta), expected)
        np.testing.assert_allclose(courses(there), here.U, rtol=1e-4, atol=1e-5)
        model = on(expected, model, here)


def test_undo_goes_back():
    _, there, model = both(cohort(1), 3)
    there.step(model)
    before = courses(there)
    there.step(model, 0.5)
    there.undo()
    np.testing.assert_array_equal(courses(there), before)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("rank", RANKS)
def test_scores_and_losses_are_those_of_the_cpu(rank, settings):
    c = cohort(2, n_patients=20, n_static=8, visits=(0, 14))
    here, there, model = both(c, rank, **settings)
    for _ in range(5):
        model = on(there.step(model), model, there)
    here.set_U(courses(there).astype(float))
    expected, found = here.score(model), there.score(model)
    for name, one, other in zip(found._fields, found, expected, strict=True):
        np.testing.assert_allclose(
            one, other, rtol=1e-6, atol=1e-6 * np.abs(other).max(initial=0), err_msg=name
        )
    total = expected.loss.sum(0)
    np.testing.assert_allclose(found.loss.sum(0), total, rtol=1e-7, atol=1e-9 * total.sum())
    assert found.present_size.any() or rank == 1 or settings.get("mu") == 0


def test_projection_ends_where_the_cpu_ends():
    c = cohort(3, n_patients=20, visits=(0, 12))
    here, there, model = both(c, 3)
    for _ in range(10):
        model = on(here.step(model), model, here)
    expected, found = here.project(model, 1e-8, 1000), there.project(model, 1e-8, 1000)
    np.testing.assert_allclose(found.loss.sum(1), expected.loss.sum(1), rtol=1e-4, atol=1e-6)
    assert found.loss.sum() == pytest.approx(expected.loss.sum(), rel=1e-5)


def test_fifty_iterations_reach_the_same_objective_without_rising():
    c = cohort(4, n_patients=40, n_features=12, visits=(0, 20))
    here, there, model = both(c, 4)
    options = {"normalize": True, "exact": False, "max_iter": 50, "tol": 0.0}
    expected, found = loop.fit(here, model, **options), loop.fit(there, model, **options)
    assert found.losses[-1] == pytest.approx(expected.losses[-1], rel=1e-5)
    assert (np.diff(found.losses) <= 1e-5 * np.array(found.losses[:-1])).all()


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_unit_of_the_data_does_not_matter(scale):
    c = cohort(5)
    larger = Cohort(c.visits * scale, c.offsets, c.static)
    _, there, model = both(c, 3)
    _, far, _ = both(larger, 3)
    for _ in range(3):
        sums = there.step(model)
        alike(far.step(model), sums)
        model = on(sums, model, there)
    np.testing.assert_allclose(courses(far), courses(there), rtol=1e-4, atol=1e-6)


def degenerate(name, model):
    H, V, F = (factor.copy() for factor in model)
    if name == "dead definition":
        V[:, 0] = 0
    elif name == "parallel columns of H":
        H[:, 1] = H[:, 0]
    elif name == "a column of H is zero":
        H[:, 0] = 0
    elif name == "all definitions the same":
        V[:] = V[:, :1]
    return Model(H, V, F)


@pytest.mark.parametrize(
    "name", ["dead definition", "parallel columns of H", "a column of H is zero", "all definitions the same"]
)
def test_degenerate_models_give_numbers_and_near_the_cpus(name):
    c = cohort(6, n_patients=20, visits=(0, 10))
    here, there, model = both(c, 4)
    model = degenerate(name, model)
    expected, found = here.step(model), there.step(model)
    assert all(np.isfinite(part).all() for part in found)
    if name in ("dead definition", "all definitions the same"):
        alike(found, expected, rtol=1e-3)
    else:  # the uniqueness term at its best Q is what H must agree on
        unique = [np.sum(sums.QU * model.H) for sums in (found, expected)]
        assert unique[0] == pytest.approx(unique[1], rel=1e-3)


def test_streamed_blocks_equal_resident_ones():
    c = cohort(8, n_patients=60, visits=(0, 9))
    here, kept, model = both(c, 3)
    allowed = base_bytes(here.shard, 3) + 4 * 40 * visit_bytes(here.shard, 3)  # four pieces of forty visits
    streamed = engine_like(here, c.shape[1], memory=allowed)
    assert streamed.streaming
    assert not kept.streaming
    assert len(streamed.chunks) > 3
    streamed.init_U(model)
    for n in range(4):
        sums = kept.step(model, 0.5 * (n > 0))
        alike(streamed.step(model, 0.5 * (n > 0)), sums, rtol=1e-12)
        model = on(sums, model, kept)
    streamed.undo()
    kept.undo()
    a, b = kept.score(model), streamed.score(model)
    np.testing.assert_array_equal(a.U, b.U)
    np.testing.assert_array_equal(a.W, b.W)
    a, b = kept.project(model, 1e-6, 20), streamed.project(model, 1e-6, 20)
    np.testing.assert_array_equal(a.U, b.U)


@given(c=cohorts, most=st.integers(1, 30))
def test_pieces_hold_every_patient_once(c, most):
    here, _ = start_fit(c, 1)
    edges = step.chunk_edges(here.shard, most)
    assert edges[0] == 0
    assert edges[-1] == len(c)
    assert (np.diff(edges) >= 1).all()
    visits = np.diff(c.offsets[edges])
    assert ((visits <= most) | (np.diff(edges) == 1)).all()


@given(c=cohorts)
def test_entries_by_feature_add_up_to_the_product(c):
    here, _ = start_fit(c, 2)
    patients = step.slice_chunk(here.shard, here.weights, 0, len(c))
    turned = step.feature_major(patients, c.shape[1])
    dense = np.zeros(c.visits.shape)
    segments, features = turned.segments.numpy(), turned.features.numpy()
    for j in range(c.shape[1]):
        for s in range(features[j], features[j + 1]):
            here_ = slice(segments[s], segments[s + 1])
            dense[turned.rows.numpy()[here_], j] += turned.values.numpy()[here_]
    scaled = np.repeat(here.weights.scale, np.diff(c.offsets))[:, None] * c.visits.toarray()
    np.testing.assert_array_equal(dense, scaled.astype(np.float32))


def test_too_little_memory_is_refused_with_the_need():
    here, _ = start_fit(cohort(1), 3)
    with pytest.raises(InputError, match=r"GiB free and at least .* GiB are needed"):
        engine_like(here, 7, memory=1000)


def test_the_memory_setting_must_be_a_number(monkeypatch):
    here, _ = start_fit(cohort(1), 3)
    monkeypatch.setenv(MEMORY_VARIABLE, "plenty")
    with pytest.raises(InputError, match="number of GiB"):
        engine_like(here, 7)


@pytest.mark.skipif(cuda_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_and_auto_is_the_cpu():
    c = cohort(1)
    with pytest.raises(InputError, match=r'needs a CUDA GPU.*device="cpu"'):
        TASTE(2, device="cuda").fit(c)
    fitted = {d: TASTE(2, device=d, max_iter=3, n_init=1, random_state=0).fit(c) for d in ("auto", "cpu")}
    np.testing.assert_array_equal(fitted["auto"].W_, fitted["cpu"].W_)


def test_patients_without_a_history_contribute_nothing():
    c = cohort(10, n_patients=12, visits=(1, 6))
    bare = Cohort(np.zeros((3, 7)), [0, 0, 3], c.static[:2])
    here, _ = start_fit(bare, 3)
    here.weights = here.weights._replace(influence=np.ones(2))
    there = engine_like(here, 7)
    _, model = start_fit(c, 3)
    model = model._replace(F=np.random.default_rng(0).random(model.F.shape))
    there.init_U(model)
    assert not any(part.any() for part in there.step(model, 0.5))
    assert not any(part.any() for part in there.score(model))


def test_the_papers_objective_is_refused():
    here, _ = start_fit(cohort(1), 3, weights="absolute")
    with pytest.raises(InputError, match=r'objective="paper" runs on the CPU only'):
        check_cuda(3, unit=here.weights.unit)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_session_resumes_from_a_snapshot_to_the_same_bits(streaming):
    c = cohort(11, n_patients=60, visits=(0, 9))
    here, _, model = both(c, 3)
    memory = base_bytes(here.shard, 3) + 4 * 40 * visit_bytes(here.shard, 3) if streaming else None
    first, second = (engine_like(here, c.shape[1], memory=memory) for _ in range(2))
    first.init_U(model)
    for n in range(3):
        model = on(first.step(model, 0.5 * (n > 0)), model, first)
    snapshot = first.snapshot()
    expected = [first.step(model, 0.5), first.step(model, 0.7)]
    first.undo()
    assert second.restore(snapshot)
    found = [second.step(model, 0.5), second.step(model, 0.7)]
    second.undo()
    for one, other in zip(expected, found, strict=True):
        alike(other, one, rtol=0)
    for one, other in zip(first.score(model), second.score(model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not second.restore(Snapshot({}, {}))  # nothing to restore: the caller rebuilds
    second.rebuild(model)
    assert second.score(model).loss.sum() < 1.05 * first.score(model).loss.sum()
