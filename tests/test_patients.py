"""Sizes, amounts and shares of phenotypes, and who has which."""

import warnings

import numpy as np
import pytest

from phenotaste import TASTE, Cohort, simulate
from phenotaste.patients import (
    MIN_PRESENT_SHARE,
    NO_PHENOTYPE,
    Patients,
    SharesByBlock,
    leading,
    present,
    score_warnings,
    shares,
)


def test_sizes_amounts_shares_and_leading_phenotypes(monkeypatch):
    monkeypatch.setattr("phenotaste.patients.VISITS_PER_BLOCK", 3)
    rng = np.random.default_rng(0)
    offsets = np.array([0, 3, 3, 4, 9])
    U, W, scale = rng.random((9, 3)), rng.random((4, 3)), rng.random(4) + 1
    W[2] = 0
    patients = Patients(W, U, offsets, scale)
    for k in range(4):
        size = W[k] * np.linalg.norm(U[offsets[k] : offsets[k + 1]], axis=0)
        total = np.sum(size**2)
        np.testing.assert_allclose(patients.sizes()[k], size)
        np.testing.assert_allclose(patients.amounts()[k], size * scale[k])
        np.testing.assert_allclose(patients.shares()[k], size**2 / total if total else 0)
        assert patients.leading()[k] == (size.argmax() if total else NO_PHENOTYPE)
    assert sum(patients.leading_counts()) == 4
    assert patients.leading_counts()[-1] == 2


def test_sizes_at_visits_are_score_times_course():
    rng = np.random.default_rng(1)
    offsets = np.array([0, 2, 2, 5])
    patients = Patients(rng.random((3, 2)), rng.random((5, 2)).astype(np.float32), offsets, np.ones(3))
    chosen = np.array([2, 0])
    found = patients.sizes_at_visits(chosen)
    np.testing.assert_array_equal(patients.rows(chosen), [2, 3, 4, 0, 1])
    np.testing.assert_allclose(found, patients.U[[2, 3, 4, 0, 1]] * patients.W[[2, 2, 2, 0, 0]])
    np.testing.assert_array_equal(patients.sizes_at_visits(chosen, 1), found[:, 1])
    assert found.dtype == np.float64


def test_shares_of_extreme_sizes_are_finite_and_sum_to_one():
    sizes = np.array([[1e200, 1e200], [1e-200, 0.0], [0.0, 0.0], [-3.0, 4.0]])
    np.testing.assert_allclose(shares(sizes), [[0.5, 0.5], [1, 0], [0, 0], [0.36, 0.64]])
    assert leading(shares(sizes)).tolist() == [0, 0, NO_PHENOTYPE, 1]
    assert shares(np.zeros((0, 2))).shape == (0, 2)


def test_a_patient_has_a_phenotype_from_a_share_on():
    assert present(np.array([[MIN_PRESENT_SHARE, 1 - MIN_PRESENT_SHARE], [0.0, 0.0]])).tolist() == [
        [True, True],
        [False, False],
    ]


def test_the_leading_phenotype_is_always_present():
    even = np.full((1, 20), 0.05)
    assert present(even).sum() == 1


def test_unremarkable_scores_warn_of_nothing():
    assert score_warnings(np.ones((5, 2)), np.ones((3, 2)), np.full(5, 3)) == []
    assert score_warnings(np.zeros((5, 2)), np.zeros((3, 2)), np.full(5, 3)) == []
    assert score_warnings(np.ones((5, 2)), None, np.full(5, 3)) == []
    assert score_warnings(np.zeros((0, 2)), np.ones((3, 2)), np.zeros(0, int)) == []


def test_each_warning_on_its_own():
    W = np.ones((101, 3))
    W[0, 0] = 50
    assert score_warnings(W, None, np.full(101, 3)) == []
    W[0, 0] = 50.1
    [largest] = score_warnings(W, None, np.full(101, 3))
    assert "more than 50 times the median" in largest
    F = np.array([[1.0, 0, 0], [1, 0, 0]])
    [dead] = score_warnings(np.ones((5, 3)), F, np.full(5, 3))
    assert "phenotypes 2, 3 is zero" in dead
    [dead] = score_warnings(np.array([[1.0, 1, 0]]), F, np.array([3]))
    assert "phenotype 2 is zero" in dead
    without_history = np.arange(101) == 0  # the patient of the largest score
    assert score_warnings(W, None, np.full(101, 3), ~without_history) == []
    [short] = score_warnings(np.ones((5, 3)), None, np.array([2, 2, 1, 9, 9]))
    assert "fewer than 3 visits" in short


def test_a_fit_warns_and_its_file_remembers(tmp_path):
    cohort = Cohort(np.eye(4)[[0, 1, 2, 3, 0, 1]], np.arange(7), np.ones((6, 1)))
    with pytest.warns(UserWarning, match="fewer than 3 visits"):
        model = TASTE(rank=2, random_state=0, max_iter=5, n_init=1, init="random").fit(cohort)
    assert len(model.warnings_) >= 1
    model.save(tmp_path / "model")
    assert TASTE.load(tmp_path / "model").warnings_ == model.warnings_
    long, _ = simulate.ehr(60, n_features=30, rank=3, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TASTE(rank=3, random_state=0, max_iter=20, n_init=1, init="random").fit(long).warnings_ == []


@pytest.mark.parametrize("objective", ["relative", "paper"])
def test_shares_of_a_block_are_those_of_all_patients(objective):
    cohort, _ = simulate.ehr(40, n_features=20, rank=3, random_state=1)
    model = TASTE(rank=3, objective=objective, n_init=1, init="random", max_iter=5, random_state=0).fit(
        cohort
    )
    patients, known = Patients.of_fit(model), np.arange(40) != 7
    blocks = SharesByBlock(patients, known, model.objective == "relative")
    expected = patients.shares() * known[:, None]
    for first, last in ((0, 40), (0, 9), (9, 40), (39, 40)):
        np.testing.assert_allclose(blocks[first:last], expected[first:last], atol=1e-12)
