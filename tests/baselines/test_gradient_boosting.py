"""Gradient boosting on sums: scikit-learn's predictions from plain arrays, the number of trees, damaged files."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from threadpoolctl import threadpool_limits

from helpers.cohorts import cohort, dense
from helpers.labelled import presence_effect
from phenotaste import InputError
from phenotaste.baselines import RawGradientBoosting
from phenotaste.storage import tensors

FEW = {"max_iter": 15, "min_samples_leaf": 5, "random_state": 0}


@pytest.fixture(scope="module")
def patients():
    return presence_effect(n_patients=200)


@pytest.mark.parametrize("static", [False, True])
def test_predictions_are_those_of_scikit_learn(static, patients):
    """A canary too: the trees are read from attributes that scikit-learn does not document."""
    model = RawGradientBoosting(static, validation=0.0, **FEW).fit(patients)
    X = np.array([visits.sum(axis=0) for visits, _ in dense(patients)])
    X = np.hstack([X, patients.static]) if static else X
    engine = HistGradientBoostingClassifier(
        max_iter=15,
        min_samples_leaf=5,
        early_stopping=False,
        random_state=np.random.RandomState(0).randint(2**31),
    )
    with threadpool_limits(1, user_api="openmp"):
        engine.fit(X, patients.labels)
    assert model.n_trees_ == 15
    np.testing.assert_allclose(model.predict_proba(patients), engine.predict_proba(X), rtol=1e-10)
    assert len(model.trees_.feature) > 45


def test_the_number_of_trees_has_the_best_validation_auc(patients):
    train, validation = patients[:140], patients[140:]
    model = RawGradientBoosting(**FEW).fit(train, validation=validation)
    aucs = [
        roc_auc_score(
            validation.labels,
            RawGradientBoosting(**{**FEW, "max_iter": n}, validation=0.0)
            .fit(train)
            .predict_proba(validation)[:, 1],
        )
        for n in range(1, 16)
    ]
    assert model.n_trees_ == int(np.argmax(aucs)) + 1
    assert model.validation_auc_ == pytest.approx(max(aucs))
    held_out = RawGradientBoosting(**FEW).fit(patients)
    assert 0 <= held_out.validation_auc_ <= 1
    assert len(held_out.trees_.roots) == held_out.n_trees_


def test_counts_matter_not_only_presence():
    """Every patient has the code; cases have it often."""
    rng = np.random.default_rng(0)
    c = cohort(0, 120, n_features=3, n_static=0, visits=(6, 9), density=0.0)
    often = rng.random(120) < 0.5
    X = np.zeros((c.n_visits, 3))
    for k in range(120):
        X[c.offsets[k] : c.offsets[k] + (5 if often[k] else 1), 0] = 1
    c = type(c)(X, c.offsets, labels=often.astype(float))
    risk = RawGradientBoosting(**FEW).fit(c).predict_proba(c)[:, 1]
    assert roc_auc_score(often, risk) == 1.0


def test_damaged_trees_are_refused(tmp_path, patients):
    model = RawGradientBoosting(**FEW).fit(patients)
    for name, position, value in (
        ("tree_left", 0, 0),  # the root leads back to itself on one side
        ("tree_right", 0, 10**6),
        ("tree_feature", 0, 99),
        ("tree_roots", 0, -1),
        ("tree_value", -1, np.nan),
    ):
        model.save(tmp_path / "model")
        files, meta = tensors.read(tmp_path / "model", model._kind, mmap=False)
        files["model"][name][position] = value
        tensors.write(tmp_path / "model", model._kind, files, meta)
        with pytest.raises(InputError, match="not a complete"):
            RawGradientBoosting.load(tmp_path / "model")


def test_invalid_settings_are_refused(patients):
    for setting, value in (
        ("max_iter", 0),
        ("learning_rate", 0.0),
        ("max_leaf_nodes", 1),
        ("min_samples_leaf", 0),
        ("l2", -1.0),
        ("validation", 1.0),
    ):
        with pytest.raises(InputError, match=setting):
            RawGradientBoosting(**{setting: value}).fit(patients)
