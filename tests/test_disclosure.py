"""The gate against a reader who adds and subtracts everything that is shown."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from phenotaste.disclosure import MIN_CELL_SIZE, Gate, rounded, rounded_all
from phenotaste.report import names

sizes = st.one_of(st.integers(0, 14), st.integers(0, 60), st.just(0))
small_tables = st.tuples(st.integers(1, 4), st.integers(2, 3)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=sizes)
)


def is_small(count):
    return 0 < count < MIN_CELL_SIZE


class Reader:
    """Knows sums of cells (equations) and that no count is negative, and solves for the rest."""

    def __init__(self, cells):
        self.truth = cells.astype(float).ravel()
        self.equations, self.totals = [], []

    def learns(self, mask):
        row = np.asarray(mask, float).ravel()
        self.equations.append(row)
        self.totals.append(row @ self.truth)
        if self.totals[-1] == 0:  # no count is negative, so all of them are zero
            for cell in np.flatnonzero(row):
                self.equations.append(np.eye(len(row))[cell])
                self.totals.append(0.0)

    def can_tell(self, sets):
        """For each set of cells whether its sum follows from the equations."""
        known = np.array(self.equations)
        projector = np.linalg.pinv(known) @ known
        return np.abs(sets @ projector - sets).max(axis=1) < 1e-8

    def bounds(self, cell):
        """The least and the largest count that a cell can have."""
        goal = np.eye(len(self.truth))[cell]
        found = [
            linprog(sign * goal, A_eq=np.array(self.equations), b_eq=self.totals, bounds=(0, None)).fun
            for sign in (1, -1)
        ]
        return found[0], -found[1]


def subsets(n):
    return (np.arange(1, 2**n)[:, None] >> np.arange(n) & 1).astype(float)


@given(small_tables)
def test_no_small_cell_of_a_table_can_be_inferred(cells):
    gate = Gate()
    rows = np.array([n is not None for n in gate.parts("", "", cells.sum(axis=1))])
    columns = np.array([n is not None for n in gate.parts("", "", cells.sum(axis=0))])
    hidden = gate.table(cells, rows, columns)
    if is_small(cells.sum()):
        assert hidden[cells > 0].all()
        return
    reader = Reader(cells)
    reader.learns(np.ones(cells.shape))
    for known, axis in ((rows, 0), (columns, 1)):
        for place in np.flatnonzero(known):
            line = np.zeros(cells.shape)
            np.moveaxis(line, axis, 0)[place] = 1
            reader.learns(line)
    for cell in np.argwhere(~hidden):
        line = np.zeros(cells.shape)
        line[tuple(cell)] = 1
        reader.learns(line)
    sets = subsets(cells.size)
    sums = sets @ reader.truth
    told = reader.can_tell(sets)
    assert not np.any(told & (sums > 0) & (sums < MIN_CELL_SIZE))
    for cell in np.flatnonzero((cells > 0) & (cells < MIN_CELL_SIZE))[:3]:
        least, most = reader.bounds(cell)
        assert most - least > 0.5


@given(st.lists(sizes, min_size=1, max_size=8))
def test_no_small_part_can_be_inferred_from_the_total(counts):
    shown = Gate().parts("", "", counts)
    assert all(n == m for n, m in zip(counts, shown, strict=True) if m is not None)
    secret = [n for n, m in zip(counts, shown, strict=True) if m is None]
    assert not any(is_small(m) for m in shown if m is not None)
    if secret and not is_small(sum(counts)):
        assert len(secret) >= 2
        assert sum(secret) >= MIN_CELL_SIZE


@given(st.lists(st.integers(0, 15), min_size=1, max_size=8), st.integers(0, 60))
def test_no_step_of_attrition_discloses_a_small_removal(removed, left):
    counts = [left + sum(removed[i:]) for i in range(len(removed) + 1)]
    shown = Gate().chain("", "", counts)
    seen = [n for n in shown if n is not None]
    assert not any(is_small(abs(n - m)) for n in seen for m in [*seen, 0])
    assert (shown[-1] is None) == is_small(left)
    for i, n in enumerate(shown):
        if n is None and not is_small(counts[i]):
            above = next((m for m in shown[:i][::-1] if m is not None), np.inf)
            below = next((m for m in shown[i:] if m is not None), 0)
            assert above > below


def test_a_table_keeps_as_many_cells_as_possible():
    gate = Gate()
    cells = np.array([[100, 100], [50, 3], [60, 40], [20, 30]])
    np.testing.assert_array_equal(
        gate.table(cells), [[False, False], [True, True], [False, False], [True, True]]
    )
    assert not gate.table(np.array([[100, 0], [50, 11]])).any()  # nobody is nobody's secret
    wide = np.array([[50, 40, 30, 4], [60, 70, 80, 90], [11, 70, 80, 90]])
    assert 4 <= gate.table(wide).sum() <= 6


def test_numbers_counts_and_the_audit():
    gate = Gate()
    assert gate.number("here", "mean", 1.23456, 11) == 1.23
    assert gate.number("here", "mean", 1.23456, 10) is None
    assert gate.number("here", "mean", float("nan"), 100) is None
    assert gate.count("here", "some", 50, 40, 10) is None
    assert gate.count("here", "some", 50, 40, 11, 0) == 50
    assert [(s.where, s.what) for s in gate.audit] == [("here", "mean"), ("here", "some")]
    assert (
        len({s.reason for s in gate.audit}) == 1
    )  # a reason of its own would tell the small from the others
    gate.parts("there", "parts", [3, 30, 40])
    gate.chain("there", "chain", [40, 38])
    assert len(gate.audit) == 4
    assert not any(digit in s.what for s in gate.audit for digit in "0123456789")


def test_a_trusted_gate_hides_nothing():
    gate = Gate(trusted=True)
    assert gate.count("", "", 1, 2) == 1
    assert gate.number("", "", 2.0, 1) == 2.0
    assert gate.number("", "", 2.0, 0) is None
    assert gate.parts("", "", [1, 2]) == [1, 2]
    assert gate.chain("", "", [5, 4]) == [5, 4]
    assert not gate.table(np.array([[1, 2], [3, 4]])).any()
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
    assert not names.is_age(name)


def test_ages_from_ninety_on_are_one_band():
    given = ["sex=F", "age=85-89", "age=90-94", "age=95+", "age=<60"]
    assert names.old_ages(given) == {"age=90+": [2, 3]}
    assert names.old_ages(["age=93", "age=101", "x"]) == {"age=90+": [0, 1]}
    assert names.old_ages(["age=85-94", "age=95+"]) == {"age=85+": [0, 1]}
    assert names.old_ages(["age=90+", "age=80-89"]) == {}
    assert names.old_ages(["Static_age_greater_80"]) == {}
    assert names.old_ages(["age=90-94"]) == {"age=90+": [0]}  # it says that nobody is older
    assert names.is_age("age")
    assert names.is_age("Age at index")


def test_dates_in_names():
    assert names.has_date("enrolled=2014-03-02")
    assert names.has_date("on 3/2/2014")
    assert names.has_date("day=20140302")
    assert not names.has_date("Essential hypertension [98.]")
    assert not names.has_date("version 1.2.3")
    assert names.without_dates("after 2010-01-31 only") == "after (date) only"
