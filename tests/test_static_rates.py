"""Rates of static facts by phenotype: right where they are shown, and quotients of rounded counts."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phenotaste import TASTE, Cohort, simulate
from phenotaste.disclosure import MIN_CELL_SIZE, Gate, rounded
from phenotaste.patients import leading, present
from phenotaste.static_rates import static_rates

OPEN = Gate(trusted=True)


def drawn(seed, n_patients, rank):
    """Shares, and a static table of two families, a lone fact, and ages."""
    rng = np.random.default_rng(seed)
    squares = rng.exponential(size=(n_patients, rank)) ** rng.integers(1, 5)
    squares[rng.random(n_patients) < 0.05] = 0
    shares = squares / np.maximum(squares.sum(axis=1, keepdims=True), 1e-300)
    sex, band = rng.integers(0, 2, n_patients), rng.choice(4, n_patients, p=[0.5, 0.3, 0.15, 0.05])
    smoker, age = rng.random(n_patients) < 0.2, rng.integers(40, 99, n_patients)
    levels = (sex == 0, sex == 1, *(band == level for level in range(4)), smoker, age)
    static = np.column_stack(levels).astype(float)
    names = ["sex=F", "sex=M", "band=a", "band=b", "band=c", "band=d", "smoker", "age"]
    return shares, static, names


def test_rates_are_of_those_who_have_the_phenotype():
    shares, static, names = drawn(0, 400, 3)
    found = static_rates(static, names, shares, OPEN)
    has = present(shares)
    capped = static.copy()
    capped[:, 7] = np.minimum(static[:, 7], 90)
    for r in range(3):
        np.testing.assert_allclose(found.having[:, r], capped[has[:, r]].mean(axis=0), rtol=0.006)
    np.testing.assert_allclose(found.cohort, capped.mean(axis=0), rtol=0.006)


def test_rates_do_not_depend_on_the_block_of_patients(monkeypatch):
    shares, static, names = drawn(1, 100, 2)
    whole = static_rates(static, names, shares)
    monkeypatch.setattr("phenotaste.static_rates.PATIENTS_PER_BLOCK", 7)
    for ours, theirs in zip(static_rates(static, names, shares), whole, strict=True):
        np.testing.assert_allclose(ours, theirs)


def test_a_phenotype_that_nobody_has_and_a_cohort_of_few():
    shares, static, names = drawn(2, 100, 2)
    found = static_rates(static, names, np.column_stack([shares, np.zeros(100)]))
    assert np.isnan(found.having[:, 2]).all()
    few = static_rates(static[:10], names, shares[:10])
    assert np.isnan(few.having).all()
    assert np.isnan(few.cohort).all()
    nothing = static_rates(np.zeros((0, 2)), ["a", "b"], np.zeros((0, 2)))
    assert nothing.having.shape == (2, 2)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([15, 40, 120, 300]), st.integers(1, 4))
def test_rates_are_quotients_of_rounded_counts(seed, n_patients, rank):
    shares, static, names = drawn(seed, n_patients, rank)
    gate = Gate(key=str(seed))
    found = static_rates(static, names, shares, gate)
    has = present(shares)
    for r in range(rank):
        size = gate.rounded(f"phenotype {r + 1}", int(has[:, r].sum()))
        everyone = gate.rounded("patients", n_patients)
        for j, name in enumerate(names[:7]):
            count = int(static[has[:, r], j].sum())
            part = gate.rounded(f"phenotype {r + 1}/static {name}", count)
            if np.isnan(found.having[j, r]):
                total = gate.rounded(f"static {name}", int(static[:, j].sum()))
                others = size - gate.rounded(f"phenotype {r + 1}", int(np.sum(leading(shares) == r)))
                assert (
                    min(part, size - part, total - part, everyone - size - total + part) < 15 or others < 20
                )
            else:
                assert found.having[j, r] == rounded(part / size)
                assert count >= MIN_CELL_SIZE
    for j in range(7):
        if not np.isnan(found.cohort[j]):
            assert static[:, j].sum() >= MIN_CELL_SIZE


def test_a_few_odd_values_do_not_make_a_fact_a_number():
    shares, static, names = drawn(3, 200, 2)
    static[:4, 6] = 2.0
    found = static_rates(static, names, shares, Gate(key="a"))
    assert not found.numeric[6]
    assert found.numeric[7]
    static[:40, 6] = 2.0
    assert static_rates(static, names, shares, Gate(key="a")).numeric[6]


@pytest.fixture(scope="module")
def fitted():
    cohort, _ = simulate.heart_failure(300, random_state=0)
    return TASTE(rank=3, random_state=0, max_iter=20, n_init=1, init="random").fit(cohort), cohort


def test_a_saved_model_without_patients_has_them(fitted, tmp_path):
    model, cohort = fitted
    model.save(tmp_path / "model")
    again = TASTE.load(tmp_path / "model")
    np.testing.assert_array_equal(again.phenotype_rates_, model.phenotype_rates_)
    np.testing.assert_array_equal(again.static_rates_, model.static_rates_)
    table = again.phenotypes(top=None, min_weight=0)
    assert table.columns.tolist() == ["phenotype", "kind", "feature", "weight", "rate", "cohort_rate", "lift"]
    assert table.query("kind == 'temporal'")[["rate", "cohort_rate", "lift"]].isna().all(axis=None)
    told = table.query("kind == 'static'").dropna()
    assert len(told) > 10
    np.testing.assert_allclose(told["lift"], told["rate"] / told["cohort_rate"])
    row = told.iloc[0]
    column = list(cohort.static_names).index(row["feature"])
    share = model.W_**2 / np.sum(model.W_**2, axis=1, keepdims=True)
    has = present(np.nan_to_num(share))[:, row["phenotype"] - 1] & ~model.empty_history_
    assert row["rate"] == pytest.approx(cohort.static[has, column].mean(), abs=5 / has.sum())


def test_a_model_without_static_features_has_no_rates():
    cohort = Cohort(np.eye(4), [0, 2, 4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TASTE(rank=1, random_state=0, max_iter=3, n_init=1, init="random").fit(cohort)
    assert model.static_rates_ is None
    assert model.phenotype_rates_ is None
    assert model.phenotypes()["rate"].isna().all()
