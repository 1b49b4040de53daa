"""The rule of disclosure: what is rounded, what is withheld, and what a difference between two reports can show."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phenotaste.disclosure import (
    BASE,
    MIN_CELL_SIZE,
    Gate,
    is_age,
    round_step,
    rounded,
    rounded_all,
    rounding_key,
)
from phenotaste.report import names

counts = st.integers(0, 500)
keys = st.integers(0, 10**6).map(str)


@given(keys, counts)
def test_counts_are_multiples_of_five_near_the_truth_or_withheld(key, count):
    shown = Gate(key=key).count("cases", count)
    if shown is None:
        assert count < 15
    else:
        assert shown % BASE == 0
        assert abs(shown - count) < BASE
        assert count >= MIN_CELL_SIZE
    assert count >= MIN_CELL_SIZE or shown is None  # zero looks like ten


def test_rounding_is_right_on_average_and_the_same_for_the_same_data():
    drawn = [Gate(key=str(i)).rounded("cases", 52) for i in range(2000)]
    assert set(drawn) == {50, 55}
    assert np.mean(drawn) == pytest.approx(52, abs=0.2)
    assert len({Gate(key="one").rounded("cases", 52) for _ in range(5)}) == 1
    assert (
        len({Gate(key="one").rounded(f"fact {i}", 52) for i in range(20)}) == 2
    )  # each number has its own draw


@given(st.integers(0, 60))
def test_a_difference_of_two_reports_does_not_show_one_patient(count):
    """Whatever two reports show of a count, an unchanged count and one more may both have shown it."""
    before = {Gate(key=f"{i}").count("x", count) for i in range(60)}
    same = {Gate(key=f"{i} and one").count("x", count) for i in range(60)}
    more = {Gate(key=f"{i} and one").count("x", count + 1) for i in range(60)}
    possible = {0 if shown is None else shown for shown in before | same | more}
    assert max(possible) - min(possible) <= BASE or 0 in possible
    # A count and the next one share a rounded value, so that no pair of values needs a change.
    assert same & more


@given(counts, st.integers(1, 500))
def test_a_share_and_the_rest_are_both_large_enough(part, whole):
    gate = Gate(key="a")
    shown = gate.share(gate.count("x", part), gate.rounded("patients", whole))
    if shown is not None:
        assert part >= MIN_CELL_SIZE
        assert whole - part > 0


def test_a_larger_minimum_is_kept():
    gate = Gate(min_cell_size=20, key="a")
    assert gate.min_shown == 25
    assert all(gate.count("x", n) is None for n in range(20))


def test_one_patient_moves_a_mean_by_at_most_a_fifth_of_a_step():
    rng = np.random.default_rng(0)
    values = np.r_[rng.uniform(40, 90, 99), 1e9]  # a value that no other patient comes near
    gate = Gate(key="a")
    limits = gate.limits(values)
    assert limits[1] < 90
    step = round_step(BASE * limits.range / 100)
    without, with_it = limits.clip(values[:-1]).mean(), limits.clip(values).mean()
    assert abs(with_it - without) <= step / 5
    shown = {Gate(key=str(i)).mean("age", without, limits, 100) for i in range(50)}
    assert len(shown) == 2
    assert all(abs(value - without) < step for value in shown)
    assert all((value / step) % 1 == pytest.approx(0, abs=1e-6) for value in shown)
    assert gate.mean("age", without, limits, None) is None
    assert gate.mean("age", float("nan"), limits, 100) is None
    assert gate.limits(np.r_[np.zeros(190), np.arange(1, 11)]) is None  # ten patients differ
    assert gate.limits(np.arange(21)) is None  # too few


def test_quantiles_are_of_rounded_counts():
    values = np.random.default_rng(0).integers(1, 60, 400)
    found = Gate(key="a").quantiles("visits", values)
    np.testing.assert_allclose(found, np.quantile(values, (0.25, 0.5, 0.75)), atol=5)
    assert Gate(key="a").quantiles("visits", values[:21]) is None
    assert Gate(trusted=True).quantiles("visits", [1, 2, 3]) == [1.5, 2.0, 2.5]


def test_a_sum_does_not_show_the_value_of_one_patient():
    values = np.r_[np.random.default_rng(0).integers(1, 60, 100), 100_000]
    total = Gate(key="a").total("visits", values)
    assert total % 250 == 0
    assert total < 5000
    assert Gate(trusted=True).total("visits", values) == values.sum()


def test_no_patient_dominates_a_curve():
    curves = np.r_[np.full((20, 3), 2.0), [[900.0, 2.0, 2.0]]]
    assert Gate().curve(curves, 20) == [2.0, 2.0, 2.0]
    assert Gate().curve(np.zeros((20, 3)), 20) == [0.0, 0.0, 0.0]
    assert Gate(trusted=True).curve(curves, 20)[0] > 40


def test_the_key_is_of_the_data():
    one = rounding_key(np.arange(5), np.ones((3, 2)), None)
    assert one == rounding_key(np.arange(5), np.ones((3, 2)), None)
    assert one != rounding_key(np.arange(6), np.ones((3, 2)), None)
    assert one != rounding_key(np.arange(5), np.ones((3, 2)), np.zeros(0))


def test_the_audit_holds_no_counts():
    gate = Gate()
    gate.note("here", "cases")
    gate.keyed("other").note("there", "mean")
    assert [(s.where, s.what) for s in gate.audit] == [("here", "cases"), ("there", "mean")]
    assert (
        len({s.reason for s in gate.audit}) == 1
    )  # a reason of its own would tell the small from the others


def test_a_trusted_gate_hides_nothing():
    gate = Gate(trusted=True)
    assert gate.count("", 1) == 1
    assert gate.share(1, 3) == 0.333
    assert gate.mean("", 2.0, None, 1) == 2.0
    assert gate.parts("", "", [1, 2]) == [1, 2]
    assert not gate.audit


def test_rounding():
    assert rounded(1234.5) == 1230.0
    assert rounded(-0.000123456) == -0.000123
    assert rounded(float("inf")) is None
    assert rounded(None) is None
    assert rounded_all([0.12345, 2]) == [0.123, 2.0]


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("age=93", 93, 93),
        ("age 90-94", 90, 94),
        ("age: 95+", 95, np.inf),
        ("age_90_94", 90, 94),
        ("Static_age_greater_80", 80, np.inf),
        ("Age at index: 91", 91, 91),
        ("age (90 to 94 years)", 90, 94),
        ("age: 90 or older", 90, np.inf),
        ("age<40", 0, 39),
        ("age=<90", 0, 89),
        ("age<=90", 0, 90),
        ("Static_age_less_60", 0, 59),
        ("aged 70-79", 70, 79),
    ],
)
def test_names_that_contain_an_age(name, low, high):
    found = names.age_band(name)
    assert (found.low, found.high) == (low, high)


@pytest.mark.parametrize(
    "name", ["stage 93", "language=90", "package 95", "age-related disorders [93.]", "dosage 90", "sex=F"]
)
def test_names_that_contain_no_age(name):
    assert names.age_band(name) is None
    assert not is_age(name)


def test_ages_from_ninety_on_are_one_band():
    given = ["sex=F", "age=85-89", "age=90-94", "age=95+", "age=<60"]
    assert names.old_ages(given) == {"age=90+": [2, 3]}
    assert names.old_ages(["age=93", "age=101", "x"]) == {"age=90+": [0, 1]}
    assert names.old_ages(["age=85-94", "age=95+"]) == {"age=85+": [0, 1]}
    assert names.old_ages(["age=90+", "age=80-89"]) == {}
    assert names.old_ages(["Static_age_greater_80"]) == {}
    assert names.old_ages(["age=90-94"]) == {"age=90+": [0]}  # it says that nobody is older
    assert is_age("age")
    assert is_age("Age at index")


def test_dates_in_names():
    assert names.has_date("enrolled=2014-03-02")
    assert names.has_date("on 3/2/2014")
    assert names.has_date("day=20140302")
    assert not names.has_date("Essential hypertension [98.]")
    assert not names.has_date("version 1.2.3")
    assert names.without_dates("after 2010-01-31 only") == "after (date) only"


def test_counts_of_rows_are_shown_only_where_they_are_of_enough_patients():
    gate = Gate(key="a cohort")
    several = gate.for_rows(3)  # 33 rows may be those of 11 patients; 32 are rounded to 35 at most
    assert {several.count("rows", n) for n in range(33)} == {None}
    assert several.count("rows", 40) == 40
    assert several.audit is gate.audit
    assert Gate(trusted=True).for_rows(3).count("rows", 1) == 1


@given(st.text(max_size=4), st.integers(0, 400), st.integers(0, 40))
def test_a_difference_of_rounded_counts_stands_for_enough_patients(key, part, others):
    gate = Gate(key=key)
    shown = gate.rounded("patients", part + others) - gate.rounded("group", part)
    if shown >= gate.min_difference:
        assert others >= MIN_CELL_SIZE
    assert gate.min_difference == 20
    assert Gate(trusted=True).min_difference == 0
