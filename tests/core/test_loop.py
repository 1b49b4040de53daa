"""The loop as a state and two steps, the fixed order of sums, and patients in blocks and chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.cohorts import cohort, cohorts
from helpers.fits import start_fit
from phenotaste import Cohort
from phenotaste.cohort.align import align, columns_of
from phenotaste.core import loop
from phenotaste.core.kernels.sums import SumsAccumulator, tree_reduce
from phenotaste.core.model_step import model_step
from phenotaste.core.records import Model, Scored, Sums, Weights
from phenotaste.engines import partition
from phenotaste.engines.base import Snapshot
from phenotaste.engines.partition import block_edges, blocks_of, chunk_edges, number_of_blocks
from phenotaste.engines.threads import ThreadEngine

OPTIONS = {"normalize": True, "exact": False, "tol": 0.0}


def begin(c, weights="unit"):
    return start_fit(c, 3, weights=weights)


def assert_equal(one, other):
    assert one.losses == other.losses
    assert one.outcome == other.outcome
    for mine, theirs in zip((*one.model, *one.patients), (*other.model, *other.patients), strict=True):
        assert np.array_equal(mine, theirs)


@settings(max_examples=15)
@given(c=cohorts, stop=st.integers(1, 7), weights=st.sampled_from(["unit", "absolute"]))
def test_a_fit_resumed_from_any_state_ends_as_if_it_had_never_stopped(c, stop, weights):
    engine, model = begin(c, weights)
    uninterrupted = loop.fit(engine, model, max_iter=8, **OPTIONS)
    engine, model = begin(c, weights)
    states = []

    def record(state):
        if len(state.losses) == stop:
            arrays = {name: array.copy() for name, array in engine.snapshot().arrays.items()}
            states.append((state, Snapshot({}, arrays)))

    loop.fit(engine, model, max_iter=8, on_iteration=record, **OPTIONS)
    (state, snapshot), (other, _) = states[0], begin(c, weights)
    assert other.restore(snapshot)
    assert_equal(loop.fit(other, state, max_iter=8, **OPTIONS), uninterrupted)


def test_a_fit_is_made_of_its_two_steps():
    c = cohort(3, n_patients=30)
    engine, model = begin(c)
    expected = loop.fit(engine, model, max_iter=40, **OPTIONS)
    engine, model = begin(c)
    state, undone = loop.initial_state(model, normalize=True), 0
    for _ in range(40):
        sums = engine.step(*loop.extrapolated(state))
        state, rejected, outcome = loop.apply_step(state, sums, engine.weights.lam, **OPTIONS)
        if rejected:
            engine.undo()
            undone += 1
        assert outcome is None
    assert undone > 0  # or this would not show that a rejected step is undone
    assert list(state.losses[:-1]) == expected.losses[:-1]
    assert all(np.array_equal(a, b) for a, b in zip(state.model, expected.model, strict=True))


class Falling:
    """A session whose objectives are given in advance."""

    weights = Weights.absolute(0.0, np.zeros(1))

    def __init__(self, *losses):
        self.losses = list(losses)

    def step(self, model, beta):
        return Sums.zeros(1, 0, 1)._replace(scalars=np.array([2 * self.losses.pop(0), 0.0, 0.0, 0.0, 0.0]))

    def undo(self):
        raise AssertionError("nothing was to be undone")

    def score(self, model):
        return Scored.allocate(np.zeros((1, 1)), np.zeros((1, 1)))


def test_rebuilt_courses_may_raise_the_objective_once_and_do_not_end_the_fit():
    model = Model(np.eye(1), np.ones((1, 1)), np.zeros((0, 1)))
    states = []
    options = {"normalize": True, "exact": False, "tol": 1e-6}
    loop.fit(Falling(10.0, 8.0, 7.0), model, max_iter=3, on_iteration=states.append, **options)
    found = loop.fit(Falling(9.0, 6.0), loop.restarted_state(states[-1]), max_iter=5, **options)
    assert found.losses[:4] == [10.0, 8.0, 7.0, 9.0]
    assert found.outcome == "max_iter"
    with pytest.raises(AssertionError, match="undone"):  # without the rebuilding it would be refused
        loop.fit(Falling(9.0, 6.0), states[-1], max_iter=5, **options)


@pytest.mark.parametrize(
    ("count", "order"),
    [(1, "0"), (2, "(01)"), (3, "((01)2)"), (5, "(((01)(23))4)"), (7, "(((01)(23))((45)6))")],
)
def test_parts_are_added_in_pairs_then_pairs_of_those(count, order):
    assert tree_reduce([str(n) for n in range(count)], lambda a, b: f"({a}{b})") == order


def test_the_sums_are_those_of_the_tree_to_the_bit():
    rng = np.random.default_rng(0)
    accumulator = SumsAccumulator(5, 7, 2, 3)
    accumulator.buffer[:] = rng.standard_normal(accumulator.buffer.shape) * 10.0 ** rng.integers(
        -9, 9, accumulator.buffer.shape
    )
    a, b, c, d, e = accumulator.buffer.copy()
    expected = accumulator.as_sums(((a + b) + (c + d)) + e, np.eye(3))
    for mine, theirs in zip(accumulator.sums(np.eye(3)), expected, strict=True):
        assert np.array_equal(mine, theirs)


@given(c=cohorts, max_visits=st.sampled_from([1, 5, 16]))
def test_chunks_change_no_bit(c, max_visits):
    one, model = begin(c)
    other, _ = begin(c)
    other.blocks = blocks_of(
        np.array([block.first for block in one.blocks] + [len(c)]), c.offsets, max_visits
    )
    current = model
    for _ in range(3):
        sums, others = one.step(current, 0.3), other.step(current, 0.3)
        assert all(np.array_equal(a, b) for a, b in zip(sums, others, strict=True))
        current, _ = model_step(sums, current, one.weights.lam, normalize=True, exact=False)
    assert np.array_equal(one.U, other.U)
    for (
        block
    ) in other.blocks:  # a chunk ends with the patient who fills it, and the block with its last patient
        visits = [int(v) for v in np.diff(c.offsets[block.first : block.last + 1])]
        full = [
            sum(visits[: k + 1]) // max_visits > sum(visits[:k]) // max_visits for k in range(len(visits) - 1)
        ]
        assert len(block.edges) == 2 + sum(full)


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    most=st.integers(1, 12),
    data=st.data(),
)
def test_chunks_are_all_patients_once_and_end_when_they_are_full(counts, most, data):
    offsets = np.concatenate([[0], np.cumsum(counts)])
    first = data.draw(st.integers(0, len(counts) - 1))
    last = data.draw(st.integers(first + 1, len(counts)))
    edges = chunk_edges(offsets, first, last, most)
    assert (edges[0], edges[-1]) == (first, last)
    assert (np.diff(edges) > 0).all()
    visits = np.diff(offsets[edges])
    assert (visits < most + max(counts)).all()
    # No chunk ends early: two in a row have more visits than one may have.
    assert (visits[:-1] + visits[1:] >= most - max(counts)).all()


def test_more_patients_than_a_block_takes_make_more_blocks():
    assert number_of_blocks(10**6, 300, 40) == partition.MAX_BLOCKS
    assert number_of_blocks(5 * 10**9, 300, 40) == -(-5 * 10**9 // partition.MAX_BLOCK_VISITS)
    assert number_of_blocks(100, 300, 40) == 4


def test_blocks_are_cut_by_the_data_alone():
    c = cohort(1, n_patients=50)
    aligned = align(c, columns_of(c))
    edges = block_edges(aligned.shard, 11, 3)
    assert (edges[0], edges[-1]) == (0, 50)
    for n_jobs in (1, 3):
        weights = Weights.absolute(0.1, aligned.norms)
        session = ThreadEngine().open(aligned.shard, weights, 3, c.shape[1], n_jobs=n_jobs)
        assert [block.first for block in session.blocks] == edges[:-1].tolist()


def test_blocks_of_patients_with_a_history_do_not_depend_on_the_others():
    c = cohort(1, n_patients=50, visits=(1, 9), density=0.9)
    counts = np.insert(np.diff(c.offsets), [0, 20, 20, 50], 0)
    more = Cohort(c.visits, np.concatenate([[0], np.cumsum(counts)]))
    edges = [block_edges(align(x, columns_of(x)).shard, 11, 3) for x in (c, more)]
    assert [c.offsets[edge] for edge in edges[0]] == [more.offsets[edge] for edge in edges[1]]
