"""The loop as a state and two steps, the one order of sums, and patients in blocks and pieces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.cohorts import cohort, cohorts
from phenotaste.cohort.align import align, columns_of
from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.kernels.sums import SumsAccumulator, tree_reduce
from phenotaste.core.model_step import model_step
from phenotaste.core.records import Model, Scored, Sums, Weights
from phenotaste.engines import threads
from phenotaste.engines.threads import Threads, block_edges, number_of_blocks, piece_edges

OPTIONS = {"normalize": True, "exact": False, "tol": 0.0}


def begin(c, rank=3):
    aligned = align(c, columns_of(c))
    engine = Threads(aligned.shard, Weights(0.1, aligned.norms / rank), rank, n_jobs=1)
    model = init_model("random", aligned.shard, c.shape[1], rank, True, np.random.default_rng(0))
    engine.start(model)
    return engine, model


def assert_equal(one, other):
    assert one.losses == other.losses
    assert one.outcome == other.outcome
    for mine, theirs in zip((*one.model, *one.patients), (*other.model, *other.patients), strict=True):
        assert np.array_equal(mine, theirs)


@settings(max_examples=15)
@given(c=cohorts, stop=st.integers(1, 7))
def test_a_fit_goes_on_from_any_state_as_if_it_had_never_stopped(c, stop):
    engine, model = begin(c)
    whole = loop.fit(engine, model, max_iter=8, **OPTIONS)
    engine, model = begin(c)
    kept = []

    def keep(state):
        if len(state.losses) == stop:
            arrays = {name: array.copy() for name, array in engine.mark().arrays.items()}
            kept.append((state, loop.Mark({}, arrays)))

    loop.fit(engine, model, max_iter=8, keep=keep, **OPTIONS)
    (state, mark), (other, _) = kept[0], begin(c)
    assert other.restore(mark)
    assert_equal(loop.fit(other, state, max_iter=8, **OPTIONS), whole)


def test_a_fit_is_made_of_its_two_steps():
    c = cohort(3, n_patients=30)
    engine, model = begin(c)
    expected = loop.fit(engine, model, max_iter=6, **OPTIONS)
    engine, model = begin(c)
    state, undone = loop.begin(model, normalize=True), 0
    for _ in range(6):
        sums = engine.step(*loop.proposal(state))
        state, back, outcome = loop.judged(state, sums, engine.weights.lam, **OPTIONS)
        if back:
            engine.undo()
            undone += 1
        assert outcome is None
    assert list(state.losses[:-1]) == expected.losses[:-1]
    assert all(np.array_equal(a, b) for a, b in zip(state.model, expected.model, strict=True))


class Falling:
    """An engine whose objectives are told in advance."""

    weights = Weights(0.0, np.zeros(1))

    def __init__(self, *losses):
        self.losses = list(losses)

    def step(self, model, reach):
        return Sums.zeros(1, 0, 1)._replace(scalars=np.array([2 * self.losses.pop(0), 0.0, 0.0, 0.0]))

    def undo(self):
        raise AssertionError("nothing was to be undone")

    def score(self, model):
        return Scored(np.zeros((1, 1)), np.zeros((1, 1)), np.ones((1, 3)))


def test_rebuilt_courses_may_raise_the_objective_once_and_do_not_end_the_fit():
    model = Model(np.eye(1), np.ones((1, 1)), np.zeros((0, 1)))
    kept = []
    options = {"normalize": True, "exact": False, "tol": 1e-6}
    loop.fit(Falling(10.0, 8.0, 7.0), model, max_iter=3, keep=kept.append, **options)
    found = loop.fit(Falling(9.0, 6.0), loop.begin_again(kept[-1]), max_iter=5, **options)
    assert found.losses[:4] == [10.0, 8.0, 7.0, 9.0]
    assert found.outcome == "max_iter"
    with pytest.raises(AssertionError, match="undone"):  # without the rebuilding it would be refused
        loop.fit(Falling(9.0, 6.0), kept[-1], max_iter=5, **options)


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


@given(c=cohorts, most=st.sampled_from([1, 5, 16]))
def test_pieces_change_no_bit(c, most):
    one, model = begin(c)
    other, _ = begin(c)
    other.piece_visits = most
    found = model
    for _ in range(3):
        mine, theirs = one.step(found, 0.3), other.step(found, 0.3)
        assert all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))
        found, _ = model_step(mine, found, one.weights.lam, normalize=True, exact=False)
    assert np.array_equal(one.courses, other.courses)
    assert sum(len(block.edges) for block in other._blocks(model)) >= len(one._blocks(model))


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    most=st.integers(1, 12),
    data=st.data(),
)
def test_pieces_are_all_patients_once_and_end_when_they_are_full(counts, most, data):
    offsets = np.concatenate([[0], np.cumsum(counts)])
    first = data.draw(st.integers(0, len(counts) - 1))
    last = data.draw(st.integers(first + 1, len(counts)))
    edges = piece_edges(offsets, first, last, most)
    assert (edges[0], edges[-1]) == (first, last)
    assert (np.diff(edges) > 0).all()
    visits = np.diff(offsets[edges])
    assert (visits < most + max(counts)).all()
    # Nobody is cut off early: two pieces in a row have more than one may have.
    assert (visits[:-1] + visits[1:] >= most - max(counts)).all()


def test_more_patients_than_a_block_takes_make_more_blocks():
    assert number_of_blocks(10**6, 300, 40) == threads.MOST_BLOCKS
    assert number_of_blocks(5 * 10**9, 300, 40) == -(-5 * 10**9 // threads.MOST_BLOCK_VISITS)
    assert number_of_blocks(100, 300, 40) == 4


def test_blocks_are_cut_by_the_data_alone():
    c = cohort(1, n_patients=50)
    aligned = align(c, columns_of(c))
    edges = block_edges(aligned.shard, 11, 3)
    assert (edges[0], edges[-1]) == (0, 50)
    for n_jobs in (1, 3):
        engine = Threads(aligned.shard, Weights(0.1, aligned.norms), 3, n_jobs=n_jobs)
        model = Model(np.eye(3), np.ones((7, 3)), np.ones((4, 3)))
        assert [block.first for block in engine._blocks(model)] == edges[:-1].tolist()
