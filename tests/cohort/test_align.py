"""A cohort's columns brought into a model's order."""

import numpy as np
import pytest

from phenotaste import TASTE, Cohort, InputError
from phenotaste.cohort.align import Columns, align, columns_of, patients_having

X = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 4.0], [5.0, 0.0, 0.0]])
A = np.array([[1.0, 2.0], [3.0, 4.0]])


def named(features=("a", "b", "c"), static=("s", "t")):
    return Cohort(X, [0, 2, 3], A, feature_names=features, static_names=static)


def visits(aligned, width):
    shard, dense = aligned.shard, np.zeros((len(aligned.shard.indptr) - 1, width))
    for i in range(len(dense)):
        entries = slice(shard.indptr[i], shard.indptr[i + 1])
        dense[i, shard.indices[entries]] = shard.data[entries]
    return dense


def columns(features, static):
    return Columns(len(features), np.array(features), len(static), np.array(static))


def test_equal_columns_are_not_moved():
    c = named()
    aligned = align(c, columns_of(c))
    assert np.array_equal(visits(aligned, 3), X)
    assert np.array_equal(aligned.shard.static, A)
    assert np.array_equal(aligned.norms, [30, 25])
    assert (aligned.unknown_features, aligned.absent_features) == (0, 0)
    assert aligned.shard.static.base is not None or aligned.shard.static is c.static  # no copy


@pytest.mark.parametrize(
    ("features", "places", "unknown", "absent"),
    [
        (["c", "a", "b"], [1, 2, 0], 0, 0),
        (["b", "new", "a", "c"], [2, 0, 3], 0, 1),
        (["c", "x"], [-1, -1, 0], 2, 1),
        (["x", "y"], [-1, -1, -1], 3, 2),
    ],
)
def test_temporal_columns_are_matched_by_name(features, places, unknown, absent):
    aligned = align(named(), columns(features, ["s", "t"]))
    expected = np.zeros((3, len(features)))
    for mine, place in enumerate(places):
        if place >= 0:
            expected[:, place] = X[:, mine]
    assert np.array_equal(visits(aligned, len(features)), expected)
    assert (aligned.unknown_features, aligned.absent_features) == (unknown, absent)
    np.testing.assert_allclose(aligned.norms, [np.sum(expected[:2] ** 2), np.sum(expected[2:] ** 2)])
    for i in range(3):  # in order within each visit, as sparse rows are
        entries = slice(aligned.shard.indptr[i], aligned.shard.indptr[i + 1])
        assert np.all(np.diff(aligned.shard.indices[entries]) > 0)


def test_static_columns_are_matched_by_name_and_unknown_ones_dropped():
    assert np.array_equal(align(named(), columns("abc", ["t", "s"])).shard.static, A[:, ::-1])
    aligned = align(named(), columns("abc", ["u", "t", "v"]))
    assert np.array_equal(aligned.shard.static, [[0, 2, 0], [0, 4, 0]])
    assert align(named(), columns("abc", [])).shard.static.shape == (2, 0)


def test_without_names_the_number_of_columns_must_match():
    bare = Cohort(X, [0, 2, 3], A)
    assert np.array_equal(visits(align(bare, columns("xyz", "st")), 3), X)
    assert np.array_equal(align(named(), columns_of(bare)).shard.static, A)
    with pytest.raises(InputError, match=r"3 temporal features and the model 2"):
        align(bare, columns("xy", "st"))
    with pytest.raises(InputError, match=r"2 static features and the model 1"):
        align(bare, columns("xyz", "s"))
    with pytest.raises(InputError, match=r"2 static features and this cohort has none"):
        align(Cohort(X, [0, 2, 3]), columns("xyz", "st"))


def test_arrays_are_read_only_and_the_cohort_is_unchanged():
    c = named()
    writeable = c.visits.data.flags.writeable
    aligned = align(c, columns_of(c))
    for array in aligned.shard:
        assert not array.flags.writeable
    assert c.visits.data.flags.writeable == writeable
    assert np.array_equal(c.visits.toarray(), X)


def test_patients_having_a_feature_are_not_rows():
    c = Cohort(
        [[1, 0], [2, 0], [0, 1], [3, 3]], [0, 1, 2, 3, 4], [[1.0], [1], [0], [1]], groups=["a", "a", "b", "a"]
    )
    shard = align(c, columns_of(c)).shard
    temporal, static = patients_having(shard, 2, c.persons)
    assert (temporal.tolist(), static.tolist()) == ([1, 2], [1])
    temporal, static = patients_having(shard, 2)
    assert (temporal.tolist(), static.tolist()) == ([3, 2], [3])
    assert TASTE(1, max_iter=2).fit(c).feature_patients_.tolist() == [1, 2]
