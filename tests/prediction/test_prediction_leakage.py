"""Nothing of the patients tested on reaches what is learned or tuned: bits before and after they were changed."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from phenotaste import Cohort, course_features, prediction, simulate
from phenotaste.courses import PREDICTORS
from phenotaste.prediction.methods import TuningSettings, score_features
from phenotaste.prediction.nested_split import SplitSettings, Task, run_split, tune
from phenotaste.prediction.split_cohorts import draw_split, split_cohort

GRIDS = TuningSettings(
    ranks=(3, 4),
    lams=(0.1, 1.0),
    max_iter=20,
    n_init=1,
    size=True,
    extra={
        **{name: {"max_iter": 5} for name in ("nmf", "visit-nmf", "lda", "boosting")},
        "cntf": {"max_iter": 2, "max_epochs": 1, "hidden_size": 4},
        "gru": {"max_epochs": 1, "hidden_size": 4, "embedding_size": 4},
    },
)
COMPARED = {"ranks": 5, "splits": 4, "baselines": ["copa", "raw-static"], "C": [0.1, 1.0]}
COMPARED |= {"resamples": 200, "max_iter": 20, "n_init": 1}
POOLED = ("nmf", "visit-nmf", "lda", "svd")
SCORED = ("taste", "copa", "copa-static", *POOLED)
ALL = (*SCORED, "raw", "raw-static", "boosting", "cntf", "gru")


@pytest.fixture(scope="module")
def cohort():
    return simulate.heart_failure(240, 5)[0]


@pytest.fixture(scope="module")
def case(cohort):
    return cohort.labels == 1


@pytest.fixture(scope="module")
def split(case):
    return draw_split(case, 0, 0)


@pytest.fixture(scope="module")
def unchanged(cohort, case, split):
    """What each method learns before anything is changed."""
    return functools.cache(lambda method: learned(cohort, case, split, method))


def changed(cohort, who, *, extra=False, garbage=False, seed=0):
    """The cohort with other records for these patients, or with a code and a fact that only they have."""
    rng = np.random.default_rng(seed)
    visits, static = cohort.visits.toarray(), cohort.static.copy()
    theirs = np.isin(np.repeat(np.arange(len(cohort)), cohort.visit_counts), who)
    if garbage:
        visits[theirs] = rng.poisson(0.5, visits[theirs].shape) * 7.0
        static[who] = rng.random(static[who].shape) * 50
    names, facts = list(cohort.feature_names), list(cohort.static_names)
    if extra:  # in front and behind, so that every other column moves as well
        visits = np.column_stack([theirs * 3.0, visits, theirs * 1.0])
        static = np.column_stack([np.isin(np.arange(len(cohort)), who), static])
        names, facts = ["new first", *names, "new last"], ["new fact", *facts]
    return Cohort(
        visits,
        cohort.offsets,
        static,
        visit_times=cohort.visit_times,
        feature_names=names,
        static_names=facts,
    )


def learned(cohort, case, split, method, tuning=GRIDS):
    """Everything that was learned and tuned, as bytes."""
    candidate, fitted, tried = tune(split_cohort(cohort, case, split), method, tuning, 11)
    bits = [repr(candidate), repr(tried)]
    if fitted.scores is not None:
        factors = fitted.scores.factors
        for array in (
            factors.V_,
            getattr(factors, "H_", None),
            factors.F_,
            fitted.scores.scale,
            fitted.scores.lasso.coef,
        ):
            bits.append(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return bits


@pytest.mark.parametrize("method", ALL)
def test_a_feature_of_test_patients_only_does_not_change_the_model(cohort, case, split, unchanged, method):
    again = learned(changed(cohort, split.test, extra=True), case, split, method)
    assert again == unchanged(method)


@pytest.mark.parametrize("method", ALL)
def test_neither_records_nor_labels_of_test_patients_reach_the_tuning(cohort, case, split, unchanged, method):
    other = case.copy()
    other[split.test] = ~other[split.test]
    again = learned(changed(cohort, split.test, garbage=True), other, split, method)
    assert again == unchanged(method)


@pytest.mark.parametrize("method", ["taste", "copa"])
def test_courses_of_test_patients_reach_nothing_either(cohort, case, split, method):
    one = TuningSettings(ranks=(3,), max_iter=20, n_init=1, courses=True)
    mine = learned(cohort, case, split, method, one)
    assert learned(changed(cohort, split.test, garbage=True), case, split, method, one) == mine
    fitted = tune(split_cohort(cohort, case, split), method, one, 11)[1].scores
    assert len(fitted.lasso.coef) == len(fitted.scale) == 3 * (1 + len(PREDICTORS))
    train = split_cohort(cohort, case, split).train
    courses = course_features(fitted.factors, train)
    used = [name for name in courses.columns if name.endswith(PREDICTORS)]
    expected = np.column_stack([fitted.factors.transform(train), courses[used]])
    np.testing.assert_array_equal(score_features(fitted.factors, train, True), expected)


@pytest.mark.parametrize("method", POOLED)
def test_methods_without_courses_use_their_scores_alone(cohort, case, split, method):
    """Also with courses=True, and those of training patients under the fitted definitions, not the fit's own."""
    one = replace(GRIDS, ranks=(3,), courses=True)
    fitted = tune(split_cohort(cohort, case, split), method, one, 11)[1]
    train = split_cohort(cohort, case, split).train
    assert fitted.scores.coef.shape == (3,)
    scores = fitted.scores.factors.transform(train)
    np.testing.assert_array_equal(score_features(fitted.scores.factors, train, True), scores)
    np.testing.assert_array_equal(fitted.scores.scale[:3], scores.std(axis=0))
    assert fitted.risk(train).shape == (len(train),)


@pytest.mark.parametrize("method", ["taste", "nmf"])
def test_the_size_of_the_record_is_the_last_feature(cohort, case, split, method):
    """It is of the visits in the columns of training patients, and of no others."""
    cohorts = split_cohort(changed(cohort, split.test, extra=True), case, split)
    fitted = tune(cohorts, method, replace(GRIDS, ranks=(3,)), 11)[1].scores
    found = score_features(fitted.factors, cohorts.test, False, True)
    np.testing.assert_array_equal(found[:, :3], fitted.factors.transform(cohorts.test))
    kept = np.isin(cohort.feature_names, cohorts.train.feature_names)
    visits, offsets = cohort.visits.toarray()[:, kept], cohort.offsets
    norms = [np.linalg.norm(visits[offsets[k] : offsets[k + 1]]) for k in split.test]
    np.testing.assert_allclose(found[:, 3], np.log(norms))
    assert len(fitted.lasso.coef) == len(fitted.scale) == 4
    assert len(fitted.coef) == 3


@pytest.mark.parametrize("method", SCORED)
def test_a_feature_of_validation_patients_only_does_not_change_the_definitions(cohort, case, split, method):
    mine = tune(split_cohort(cohort, case, split), method, GRIDS, 11)
    theirs = tune(split_cohort(changed(cohort, split.validation, extra=True), case, split), method, GRIDS, 11)
    for name in ("V_", "H_", "F_"):
        one, other = (getattr(found[1].scores.factors, name, None) for found in (mine, theirs))
        assert (one is None and other is None) or one.tobytes() == other.tobytes()


def test_definitions_and_scaling_use_training_patients_only(cohort, case, split):
    """Other records and labels for validation patients leave factors and scale as they are, to the bit."""
    one = TuningSettings(ranks=(4,), max_iter=20, n_init=2)
    other = case.copy()
    other[split.validation] = ~other[split.validation]
    mine = tune(split_cohort(cohort, case, split), "taste", one, 11)[1].scores
    garbage = changed(cohort, split.validation, garbage=True)
    theirs = tune(split_cohort(garbage, other, split), "taste", one, 11)[1].scores
    assert mine.factors.V_.tobytes() == theirs.factors.V_.tobytes()
    assert mine.scale.tobytes() == theirs.scale.tobytes()
    scores = mine.factors.transform(split_cohort(cohort, case, split).train)
    np.testing.assert_array_equal(mine.scale, scores.std(axis=0))


def test_the_leakage_test_detects_a_leak_of_test_patients(cohort, case, split):
    """The counterpart: what is reported does change, so the checks above look at something."""
    before = run_split(cohort, case, Task("raw", 0), SplitSettings(GRIDS, resamples=0)).figures
    garbage = changed(cohort, split.test, garbage=True)
    after = run_split(garbage, case, Task("raw", 0), SplitSettings(GRIDS, resamples=0)).figures
    assert before["tried"] == after["tried"]
    assert before["auc"] != after["auc"]


def shuffled_aucs(seed, **how):
    """AUC of every method on shuffled labels; 0.5 lies within the interval over splits.

    The interval by resampled patients takes the models as they are, and may miss it now and then: returns who did.
    """
    cohort = simulate.heart_failure(900, 3)[0]
    labels = np.random.default_rng(seed).permutation(cohort.labels)
    summary = prediction.evaluate(cohort, labels, random_state=seed, **how).summary.set_index("method")
    assert (summary["auc_splits_low"] <= 0.5).all()
    assert (summary["auc_splits_high"] >= 0.5).all()
    missed = (summary["auc_low"] > 0.5) | (summary["auc_high"] < 0.5)
    return summary["auc"], missed


def test_random_labels_are_not_predicted():
    """Two shuffles with one start: too few for a narrow bound on the mean."""
    found = [shuffled_aucs(seed, **COMPARED) for seed in range(2)]
    assert sum(missed.astype(int) for _, missed in found).max() <= 1
    assert abs(sum(auc for auc, _ in found) / 2 - 0.5).max() < 0.1


@pytest.mark.slow
def test_random_labels_are_not_predicted_in_five_shuffles():
    """0.5 is also near the mean."""
    found = [
        shuffled_aucs(seed, **COMPARED | {"splits": 5, "max_iter": 40, "n_init": None}) for seed in range(5)
    ]
    assert sum(missed.astype(int) for _, missed in found).max() <= 1
    assert abs(sum(auc for auc, _ in found) / 5 - 0.5).max() < 0.05


def test_true_labels_are_predicted():
    """The counterpart of the shuffled labels, with the same settings."""
    cohort = simulate.heart_failure(900, 3)[0]
    true = prediction.evaluate(cohort, **COMPARED).summary.set_index("method")
    assert true.loc["taste", "auc_splits_low"] > 0.5
    assert true.loc["taste", "auc_low"] > 0.55
