"""Lasso on the codes of each patient: the features, the optimum, the choice of C, and errors."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from helpers.cohorts import cohort, dense
from helpers.labelled import order_effect, presence_effect, shuffled_columns, with_negatives
from phenotaste import InputError
from phenotaste.baselines import RawLogistic
from phenotaste.baselines.raw_logistic import occurrences


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("negative", [False, True])
def test_features_are_whether_a_code_ever_occurred(seed, negative):
    c = cohort(seed, n_patients=30)
    c = with_negatives(c) if negative else c
    expected = np.array([(X > 0).any(axis=0) for X, _ in dense(c)]).astype(float)
    np.testing.assert_array_equal(occurrences(c.visits, c.offsets).toarray(), expected)


@pytest.mark.parametrize("C", [0.05, 1.0, 10.0])
def test_solution_is_the_optimum_of_the_lasso(C):
    """Subgradient conditions; the intercept is not penalised, so the residuals sum to zero."""
    c = presence_effect()
    model = RawLogistic(C=C, random_state=0).fit(c)
    X = np.hstack([occurrences(c.visits, c.offsets).toarray(), c.static])
    residual = model.predict_proba(c)[:, 1] - c.labels
    gradient = C * X.T @ residual
    selected = model.coef_ != 0
    np.testing.assert_allclose(gradient[selected], -np.sign(model.coef_[selected]), atol=0.02)
    assert np.all(np.abs(gradient[~selected]) < 1.02)
    assert abs(residual.sum()) < 0.2
    assert selected.sum() > 0


def test_finds_the_features_that_matter_and_names_them():
    c = presence_effect()
    model = RawLogistic(random_state=0).fit(c[:200])
    table = model.coefficients()
    assert set(table.feature[:2]) == {"code 0", "fact 0"}
    assert list(table.kind[table.feature == "fact 0"]) == ["static"]
    assert np.all(table.weight != 0)
    assert np.all(np.diff(table.weight.abs()) <= 0)
    assert roc_auc_score(c.labels[200:], model.predict_proba(c[200:])[:, 1]) > 0.7


def test_static_features_are_optional():
    c = presence_effect()
    model = RawLogistic(static=False, C=1.0, random_state=0).fit(c)
    assert model.coef_.shape == (20,)
    assert "static" not in set(model.coefficients().kind)
    both = RawLogistic(static=True, C=1.0, random_state=0).fit(c)
    assert both.coef_.shape == (23,)
    aucs = [roc_auc_score(c.labels, m.predict_proba(c)[:, 1]) for m in (both, model)]
    assert aucs[0] > aucs[1] + 0.05


def test_C_is_chosen_by_the_validation_patients():
    c = presence_effect()
    train, validation = c[:200], c[200:]
    chosen = RawLogistic(C=(1e-3, 0.3, 1e3), random_state=0).fit(train, validation=validation)
    candidates = {C: RawLogistic(C=C, random_state=0).fit(train) for C in (1e-3, 0.3, 1e3)}
    aucs = {
        C: roc_auc_score(validation.labels, m.predict_proba(validation)[:, 1]) for C, m in candidates.items()
    }
    assert max(aucs, key=aucs.get) == chosen.C_
    assert chosen.validation_auc_ == pytest.approx(aucs[chosen.C_])
    np.testing.assert_array_equal(chosen.coef_, candidates[chosen.C_].coef_)


def test_a_class_too_small_to_split_still_fits():
    c = presence_effect(n_patients=30)
    y = np.zeros(30)
    y[3] = 1
    model = RawLogistic(random_state=0).fit(c, y)
    assert model.C_ == 1.0
    assert np.isnan(model.validation_auc_)


def test_does_not_detect_an_order_effect():
    c = order_effect()
    model = RawLogistic(random_state=0).fit(c[:400])
    assert abs(roc_auc_score(c.labels[400:], model.predict_proba(c[400:])[:, 1]) - 0.5) < 0.1


def test_columns_are_matched_by_name():
    c = presence_effect()
    model = RawLogistic(C=1.0, random_state=0).fit(c)
    np.testing.assert_allclose(
        model.predict_proba(shuffled_columns(c)), model.predict_proba(c), rtol=0, atol=1e-12
    )


def test_refusals():
    c = presence_effect()
    model = RawLogistic(random_state=0)
    missing = c.labels.copy()
    missing[:3] = np.nan
    with pytest.raises(InputError, match="3 of 300 labels are missing"):
        model.fit(c, missing)
    with pytest.raises(InputError, match="1 class"):
        model.fit(c, np.ones(300))
    with pytest.raises(InputError, match="no labels"):
        model.fit(cohort())
    with pytest.raises(InputError, match="one label per patient"):
        model.fit(c, [0, 1])
    with pytest.raises(InputError, match="needs a Cohort"):
        model.fit(c.visits, c.labels)
    with pytest.raises(InputError, match="C must be"):
        clone(model).set_params(C=-1).fit(c)
    with pytest.raises(InputError, match="validation"):
        clone(model).set_params(validation=1.5).fit(c)


def test_labels_may_be_text(tmp_path):
    c = presence_effect()
    words = np.where(c.labels == 1, "ill", "well")
    model = RawLogistic(C=1.0, random_state=0).fit(c, words)
    assert list(model.classes_) == ["ill", "well"]
    assert set(model.predict(c)) <= {"ill", "well"}
    numbers = RawLogistic(C=1.0, random_state=0).fit(c)
    np.testing.assert_allclose(model.predict_proba(c)[:, 0], numbers.predict_proba(c)[:, 1], atol=1e-3)
    model.save(tmp_path / "model")
    assert list(RawLogistic.load(tmp_path / "model").classes_) == ["ill", "well"]
