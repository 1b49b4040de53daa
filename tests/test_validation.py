"""Settings that are out of range are refused in one sentence, and numpy's numbers are numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from phenotaste.errors import InputError
from phenotaste.validation import check_choice, check_integer, check_number, check_seed, is_integer, is_number


@pytest.mark.parametrize("value", [1, np.int8(1), np.uint64(1)])
def test_integers_of_any_kind_become_int(value):
    assert type(check_integer("n", value, min=1, max=1)) is int


@pytest.mark.parametrize("value", [0, 11, True, 2.0, "2", None, np.nan, np.array([2])])
def test_other_values_are_not_integers_from_1_to_10(value):
    with pytest.raises(InputError, match=r"^n=.* must be an integer from 1 to 10\.$"):
        check_integer("n", value, min=1, max=10)


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), Fraction(1, 2), np.float64(0.5)])
def test_numbers_of_any_kind_become_float(value):
    assert type(check_number("x", value)) is float
    assert check_number("x", value) == 0.5


@pytest.mark.parametrize("value", [-1e-9, math.inf, math.nan, 10**400, True, 1j, "1", None, np.array([1.0])])
def test_other_values_are_not_finite_numbers(value):
    with pytest.raises(InputError, match=r"^x=.* must be a finite number of at least 0\.$"):
        check_number("x", value)


@pytest.mark.parametrize(
    ("closed", "low", "high", "sentence"),
    [
        ("both", True, True, "of at least 0 and at most 1"),
        ("left", True, False, "of at least 0 and below 1"),
        ("right", False, True, "above 0 and at most 1"),
        ("neither", False, False, "above 0 and below 1"),
    ],
)
def test_bounds_belong_to_the_interval_if_they_are_closed(closed, low, high, sentence):
    assert is_number(0, 0, 1, closed) == low
    assert is_number(1, 0, 1, closed) == high
    assert is_number(0.5, 0, 1, closed)
    with pytest.raises(InputError, match=f"x=2 must be a number {sentence}."):
        check_number("x", 2, max=1, closed=closed)


@pytest.mark.parametrize("value", ["c", 1, None, ["a"], np.array(["a"]), True])
def test_only_the_choices_are_accepted(value):
    check_choice("letter", "a", ("a", "b"))
    check_choice("letter", None, (None, "b"))
    with pytest.raises(InputError, match=r"letter=.* must be one of 'a', 'b'"):
        check_choice("letter", value, ("a", "b"))


@pytest.mark.parametrize("value", [None, -1, 1.0, np.random.default_rng(0)])
def test_a_seed_is_an_integer(value):
    assert check_seed(np.int64(7)) == 7
    with pytest.raises(InputError, match="resumed run"):
        check_seed(value)


def test_large_integers_are_integers():
    assert is_integer(2**80)
    assert not is_integer(2**80, max=2**53)
