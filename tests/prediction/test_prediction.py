"""The parts of an evaluation: splits, measures, calibration, curves; each held against something known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from phenotaste.disclosure import MIN_CELL_SIZE, Gate
from phenotaste.errors import InputError
from phenotaste.prediction.evaluation_tables import (
    CALIBRATED,
    bounds,
    comparison_table,
    over_splits,
    summary_table,
)
from phenotaste.prediction.measures import (
    NAMES,
    ROC_GRID,
    bootstrap_measures,
    calibration,
    measure,
    risk_groups,
    roc_curve,
)
from phenotaste.prediction.nested_split import SplitResult, Task, risk_range
from phenotaste.prediction.split_cohorts import check_sizes, draw_split

seeds = st.integers(0, 10**6)


def predictions(seed, n=200, ties=False, share=0.3):
    """Risks with some sense in them, and what became of the patients."""
    rng = np.random.default_rng(seed)
    risk = expit(rng.normal(logit(share), 1.0, n))
    if ties:
        risk = np.round(risk, 1)
    case = rng.random(n) < risk
    case[:2] = True, False
    return risk, case


@given(seed=seeds, cases=st.integers(20, 90), controls=st.integers(20, 300), number=st.integers(0, 5))
def test_a_split_is_a_stratified_partition(seed, cases, controls, number):
    case = np.random.default_rng(seed).permutation(np.r_[np.ones(cases, bool), np.zeros(controls, bool)])
    split = draw_split(case, number, seed)
    assert sorted(np.concatenate(split)) == list(range(len(case)))
    for part, share in zip(split, (0.75, 0.10, 0.15), strict=True):
        assert (np.diff(part) > 0).all()
        assert abs(case[part].sum() - share * cases) <= 1
        assert abs((~case[part]).sum() - share * controls) <= 1
    again = draw_split(case, number, seed)
    assert all((a == b).all() for a, b in zip(split, again, strict=True))
    other = draw_split(case, number + 1, seed)
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(split, other, strict=True))


def test_cohorts_too_small_to_be_split_are_refused_without_a_count():
    for case, word in (
        (np.arange(500) < 19, "fewer than 20 cases"),
        (np.arange(500) >= 19, "fewer than 20 controls"),
        (np.arange(40) < 20, "too small"),
    ):
        with pytest.raises(InputError, match=word) as refused:
            check_sizes(case)
        assert "19" not in str(refused.value)
    check_sizes(np.arange(100) < 20)


@given(seed=seeds, ties=st.booleans())
@hypothesis_settings(max_examples=20)
def test_measures_are_those_of_scikit_learn_also_for_resampled_patients(seed, ties):
    risk, case = predictions(seed, ties=ties)
    counts = np.random.default_rng(seed).integers(0, 4, (5, len(risk))).astype(float)
    counts[:, :2] += 1
    for row, weight in zip(
        np.vstack([measure(risk, case), measure(risk, case, counts)]),
        [np.ones(len(risk)), *counts],
        strict=True,
    ):
        assert row[0] == pytest.approx(roc_auc_score(case, risk, sample_weight=weight))
        assert row[1] == pytest.approx(average_precision_score(case, risk, sample_weight=weight))
        assert row[2] == pytest.approx(brier_score_loss(case, risk, sample_weight=weight))


def test_a_resample_of_one_class_has_no_measures():
    counts = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    found = measure(np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, False, True, True]), counts)
    assert np.isnan(found[0]).all()
    assert found[1, 0] == 1.0


def test_resamples_are_of_patients_and_the_same_for_every_method_and_split():
    risk, case = predictions(1, 40)
    test, K = np.arange(0, 80, 2), 80
    found = bootstrap_measures(risk, case, test, K, 300, 7)
    assert set(found.values) == set(NAMES)
    assert found.resampled.shape == (300, 3)
    rng = np.random.default_rng([7, 2])
    for row in found.resampled[:3]:
        drawn = np.bincount(rng.integers(K, size=K), minlength=K)[test]
        chosen = np.repeat(np.arange(len(test)), drawn)
        assert row[0] == pytest.approx(roc_auc_score(case[chosen], risk[chosen]))
    one_by_one = bootstrap_measures(risk, case, test, K, 3, 7).resampled
    assert (one_by_one == found.resampled[:3]).all()
    middle = np.nanmean(found.resampled[:, 0])
    assert middle == pytest.approx(found.values["auc"], abs=0.03)


def test_the_bootstrap_interval_has_its_nominal_coverage():
    """Two normal distributions of known AUC, drawn 200 times."""
    rng = np.random.default_rng(3)
    truth, covered = 0.760249938906524, 0  # Φ(1/√2)
    for trial in range(200):
        case = np.arange(150) < 50
        risk = rng.normal(case * 1.0, 1.0)
        draws = bootstrap_measures(risk, case, np.arange(150), 150, 200, trial).resampled[:, 0]
        low, high = np.quantile(draws, [0.025, 0.975])
        covered += low <= truth <= high
    assert 0.90 <= covered / 200 <= 0.99


@given(seed=seeds, shift=st.floats(-1, 1), stretch=st.floats(0.5, 2))
@hypothesis_settings(max_examples=30)
def test_calibration_is_plain_logistic_regression_on_the_log_odds(seed, shift, stretch):
    risk, case = predictions(seed, 400)
    told = expit(shift + stretch * logit(risk))
    found = calibration(told, case)
    plain = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logit(told)[:, None], case)
    assert found.slope == pytest.approx(plain.coef_[0, 0], rel=1e-3, abs=1e-3)
    assert found.slope_intercept == pytest.approx(plain.intercept_[0], rel=1e-3, abs=1e-3)
    # With the intercept put right, as many cases are expected as there are.
    assert expit(found.intercept + logit(told)).sum() == pytest.approx(case.sum(), rel=1e-6)


def test_calibration_is_nan_where_it_is_undefined():
    case = np.arange(40) < 10
    constant = calibration(np.full(40, 0.25), case)
    assert constant.intercept == pytest.approx(0.0, abs=1e-9)
    assert np.isnan(constant.slope)
    assert np.isnan(calibration(np.where(case, 0.9, 0.1), case).slope)  # told apart without fault: infinite
    extreme = calibration(np.where(np.arange(40) < 20, 1.0, 0.0), case)
    assert np.isfinite(extreme.intercept)


@given(seed=seeds, n=st.integers(30, 600), ties=st.booleans(), share=st.sampled_from([0.1, 0.4]))
def test_risk_groups_partition_the_patients_with_enough_of_each_class(seed, n, ties, share):
    risk, case = predictions(seed, n, ties, share)
    gate = Gate()
    groups = risk_groups(risk, case, gate)
    if case.sum() < gate.min_shown or (~case).sum() < gate.min_shown:
        assert not groups
        assert gate.audit
        return
    assert abs(sum(group["patients"] for group in groups) - n) < 10 * len(groups)
    assert len(groups) <= 10
    for group in groups:
        cases = round(group["observed"] * group["patients"])
        assert cases % 5 == group["patients"] % 5 == 0
        assert MIN_CELL_SIZE <= cases <= group["patients"] - MIN_CELL_SIZE
        assert group["predicted"] == round(group["predicted"], 2)
    exact = risk_groups(risk, case, Gate(trusted=True))
    assert sum(group["patients"] for group in exact) == n
    assert sum(g["observed"] * g["patients"] for g in exact) == pytest.approx(case.sum())
    assert sum(g["predicted"] * g["patients"] for g in exact) == pytest.approx(risk.sum())
    means = [group["predicted"] for group in groups]
    assert means == sorted(means)


def test_patients_of_equal_risk_are_in_one_group():
    risk = np.repeat([0.1, 0.2, 0.4], 200)
    case = np.arange(600) % 4 == 0
    groups = risk_groups(risk, case, Gate())
    assert [(group["patients"], round(group["predicted"], 9)) for group in groups] == [
        (200, 0.1),
        (200, 0.2),
        (200, 0.4),
    ]


def test_ten_cases_have_no_curve():
    risk = np.linspace(0, 1, 300)
    gate = Gate()
    assert roc_curve(risk, np.arange(300) < 10, gate) is None
    assert roc_curve(risk, np.arange(300) >= 10, gate) is None
    assert len(gate.audit) == 2
    assert roc_curve(risk, np.arange(300) < 15, gate) is not None


def test_many_patients_have_ten_groups():
    risk, case = predictions(0, 5000)
    assert len(risk_groups(risk, case, Gate())) == 10
    assert len(risk_groups(*predictions(0, 30), Gate(trusted=True))) > 1


@given(seed=seeds, n=st.integers(60, 900), ties=st.booleans())
def test_the_roc_curve_rises_and_its_area_is_near_the_auc(seed, n, ties):
    risk, case = predictions(seed, n, ties)
    curve = roc_curve(risk, case, Gate())
    if curve is None or min(case.sum(), (~case).sum()) < MIN_CELL_SIZE:
        assert curve is None
        assert min(case.sum(), (~case).sum()) < 15
        return
    assert (np.diff(curve) >= -1e-12).all()
    assert curve[-1] == 1.0
    # In steps of 11 patients the area is that of grouped risks, a little less than the AUC, and never far from it.
    coarse = np.trapezoid(curve, ROC_GRID)
    rounding = 5 / min(case.sum(), (~case).sum())
    assert abs(coarse - measure(risk, case)[0, 0]) < 0.03 + 2 * MIN_CELL_SIZE / n + rounding


def test_the_range_of_risks_is_not_that_of_a_few_patients():
    risk = np.linspace(0.1, 0.9, 81)
    found = risk_range(risk, Gate())
    assert found == {"risk_low": 0.2, "risk_high": 0.8}
    assert np.isnan(risk_range(risk[:21], Gate())["risk_low"])
    assert risk_range(risk, Gate(trusted=True)) == {"risk_low": 0.1, "risk_high": 0.9}


def test_every_step_of_a_roc_curve_is_of_many_patients():
    """40 patients, so 3 steps: between their ends the curve is straight."""
    case = np.arange(40) % 2 == 0
    risk = np.linspace(1, 0, 40)
    curve = roc_curve(risk, case, Gate())
    corners = np.flatnonzero(np.abs(np.diff(curve, 2)) > 1e-9)
    assert len(corners) <= 4  # two inner ends, each of which may fall between two points of the grid
    exact = roc_curve(risk, case, Gate(trusted=True))
    assert len(np.flatnonzero(np.abs(np.diff(exact, 2)) > 1e-9)) > 10


def test_the_interval_over_splits_accounts_for_shared_patients():
    values = [0.70, 0.74, 0.72, 0.76, 0.73]
    found = over_splits(values, "auc")
    half = (found["auc_splits_high"] - found["auc_splits_low"]) / 2
    plain = 2.7764451 * np.std(values, ddof=1) / np.sqrt(5)
    assert half == pytest.approx(plain * np.sqrt(2), rel=1e-6)  # 1/5 and 15/75 more
    assert np.isnan(over_splits([0.7], "auc")["auc_splits_low"])
    assert over_splits([0.2, 0.99], "auc")["auc_splits_high"] == 1.0
    assert over_splits([-0.9, 0.9], "difference")["difference_splits_high"] > 1.0


def test_differences_are_taken_resample_by_resample_and_split_by_split():
    """A method that is 0.05 below on every resample of every split is 0.05 below without doubt."""
    rng = np.random.default_rng(0)
    finished = {}
    for split in range(3):
        draws, auc = rng.random((50, 3)), rng.random()
        finished[Task("taste", split)] = SplitResult({"auc": auc}, {"resampled": draws})
        finished[Task("raw", split)] = SplitResult({"auc": auc - 0.05}, {"resampled": draws - [0.05, 0, 0]})
    row = comparison_table(finished).iloc[0]
    bounds = (
        "difference",
        "difference_low",
        "difference_high",
        "difference_splits_low",
        "difference_splits_high",
    )
    assert [row[name] for name in bounds] == pytest.approx([0.05] * 5)
    assert (row["better_in"], row["splits"]) == (3, 3)
    finished[Task("raw", 3)] = finished[
        Task("raw", 0)
    ]  # a split that TASTE has not done yet: nothing to pair
    assert len(comparison_table(finished)) == 0


def test_one_outlying_slope_does_not_dominate_the_summary():
    """Calibration is summed up by medians, without splits that have no slope; one split shows the other interval."""
    finished = {}
    for split, slope in enumerate((0.9, 1.1, 135.0, None)):
        figures = {"auc": 0.7, "auprc": 0.3, "brier": 0.1} | dict.fromkeys(CALIBRATED, slope)
        finished[Task("taste", split)] = SplitResult(figures, {"resampled": np.full((5, 3), 0.7)})
    row = summary_table(finished).iloc[0]
    assert row["calibration_slope"] == pytest.approx(1.1)
    assert bounds(row)[2] == "95 % interval over splits"
    single = summary_table({Task("taste", 0): finished[Task("taste", 0)]}).iloc[0]
    assert bounds(single) == (0.7, 0.7, "95 % bootstrap interval")
