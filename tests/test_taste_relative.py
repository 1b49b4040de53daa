"""The default objective: a score is the size of a phenotype relative to the patient's own record, long or short."""

import numpy as np
import pytest
from scipy.optimize import nnls
from scipy.stats import spearmanr

from helpers.cohorts import cohort, dense
from phenotaste import TASTE, Cohort, metrics, simulate
from phenotaste.core.no_history import scores_from_static


def with_empty(c, rows):
    """The cohort with patients without a visit inserted before these positions, with static features of their own."""
    counts = np.insert(np.diff(c.offsets), rows, 0)
    static = np.insert(c.static, rows, 1.0, axis=0)
    return Cohort(c.visits, np.concatenate([[0], np.cumsum(counts)]), static)


def column_correlations(one, other):
    return np.array([np.corrcoef(one[:, r], other[:, r])[0, 1] for r in range(one.shape[1])])


def kept_phenotypes(before, after):
    """The lowest cosine of a phenotype with its own partner."""
    from scipy.optimize import linear_sum_assignment

    C = metrics.cosines(before.V_, after.V_)
    return C[linear_sum_assignment(-C)].min()


@pytest.fixture(scope="module")
def planted():
    return simulate.ehr(300, n_features=40, n_static=6, mean_visits=15, rank=4, random_state=3)[0]


@pytest.fixture(scope="module")
def planted_model(planted):
    return TASTE(4, n_init=1, random_state=0).fit(planted)


@pytest.mark.parametrize("settings", [{}, {"balance": 0.5}, {"objective": "paper"}])
def test_patients_without_history_take_no_part_in_a_fit(settings):
    c = cohort(3, n_patients=600, visits=(1, 10))
    settings = {"random_state": 0, "max_iter": 20, **settings}
    without, among = (TASTE(3, **settings).fit(x) for x in (c, with_empty(c, [0, 7, 600])))
    for name in ("V_", "F_", "H_", "U_", "mean_scores_", "lam_eff_"):
        assert np.array_equal(getattr(without, name), getattr(among, name)), name
    for name in ("loss_curve_", "rmse_", "cpi_"):
        np.testing.assert_allclose(getattr(without, name), getattr(among, name), rtol=1e-12)
    assert np.array_equal(without.W_, np.delete(among.W_, [0, 8, 602], axis=0))
    assert among.n_empty_ == without.n_empty_ + 3


def test_patients_whose_visits_are_empty_take_no_part_in_a_fit():
    c = cohort(3, n_patients=60, visits=(1, 10), density=0.2)
    codes = np.array([X.any() for X, _ in dense(c)])
    assert not codes.all()
    with_codes, everybody = (TASTE(3, n_init=1, random_state=0, max_iter=20).fit(x) for x in (c[codes], c))
    for name in ("V_", "F_", "H_", "mean_scores_"):
        assert np.array_equal(getattr(with_codes, name), getattr(everybody, name)), name
    assert np.array_equal(with_codes.W_, everybody.W_[codes])


def test_patients_without_history_are_scored_near_the_mean_score(planted, planted_model):
    m = planted_model
    both = with_empty(planted[:20], [5, 5])
    found = m.project(both)
    empty = [5, 6]
    assert np.array_equal(
        found.W[empty], scores_from_static(both.static[empty], m.F_, m.lam_eff_, m.mean_scores_)
    )
    penalty = np.vstack([np.eye(4), np.sqrt(m.lam_eff_) * m.F_])
    target = np.concatenate([m.mean_scores_, np.sqrt(m.lam_eff_) * both.static[5]])
    np.testing.assert_allclose(found.W[5], nnls(penalty, target)[0], atol=1e-9)
    assert np.array_equal(found.scale[empty], [1.0, 1.0])
    assert np.flatnonzero(found.weights.influence == 0).tolist() == empty


def test_fitted_scores_of_patients_without_history_are_those_of_transform(planted):
    c = with_empty(planted[:60], [0, 30])
    m = TASTE(3, n_init=1, random_state=0).fit(c)
    assert np.array_equal(m.W_[m.empty_history_], m.transform(c)[m.empty_history_])


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_scores_without_history_stay_bounded(planted_model, size):
    """No further from the mean score than the static features that this explains are worth."""
    m, static = planted_model, size * np.random.default_rng(0).random((50, 6))
    W = m.transform(Cohort(np.zeros((0, 40)), np.zeros(51, int), static))
    left = np.sum((static - m.F_ @ m.mean_scores_) ** 2, axis=1)
    assert np.all(np.sum((W - m.mean_scores_) ** 2, axis=1) <= m.lam_eff_ * left * (1 + 1e-9))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_very_large_and_very_small_values_neither_overflow_nor_vanish(scale):
    c = cohort(4, n_patients=40, visits=(0, 10))
    huge = Cohort(scale * c.visits, c.offsets, c.static)
    one, other = (TASTE(3, n_init=1, random_state=0, max_iter=20).fit(x) for x in (c, huge))
    with_history = ~one.empty_history_
    np.testing.assert_allclose(other.scale_[with_history], scale * one.scale_[with_history], rtol=1e-12)
    np.testing.assert_allclose(other.loss_curve_, one.loss_curve_, rtol=1e-6)
    np.testing.assert_allclose(other.transform(huge), one.transform(c), rtol=1e-4, atol=1e-6)
    assert np.isfinite([other.rmse_, other.cpi_]).all()
    assert np.isfinite(other.W_ * other.scale_[:, None]).all()


def test_values_of_one_cohort_may_differ_by_two_hundred_powers_of_ten():
    c = cohort(4, n_patients=40, visits=(1, 10))
    X = c.visits.toarray()
    X[: c.offsets[20]] *= 1e200
    mixed = TASTE(3, n_init=1, random_state=0, max_iter=20).fit(Cohort(X, c.offsets, c.static))
    plain = TASTE(3, n_init=1, random_state=0, max_iter=20).fit(c)
    np.testing.assert_allclose(mixed.V_, plain.V_, atol=1e-6)


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_balance_is_a_power_of_the_number_of_entries(planted, balance):
    m = TASTE(3, balance=balance, max_iter=1, n_init=1, random_state=0).fit(planted)
    entries = np.array([np.count_nonzero(X) for X, _ in dense(planted)])
    np.testing.assert_allclose(m.influence_, entries**balance)


def test_balance_decides_whose_phenotype_is_kept():
    """Two groups with a code of their own, room for one phenotype: the many short histories, or the few long ones."""
    short, long = np.tile([1.0, 0.0], (60, 1)), np.tile([0.0, 1.0], (20 * 30, 1))
    offsets = np.concatenate([np.arange(61), 60 + 30 * np.arange(1, 21)])
    c = Cohort(np.vstack([short, long]), offsets)
    leading = {
        balance: TASTE(1, balance=balance, n_init=1, random_state=0).fit(c).V_[:, 0].argmax()
        for balance in (0.0, 0.5, 1.0)
    }
    assert leading == {0.0: 0, 0.5: 1, 1.0: 1}


def test_a_single_visit_is_a_course_of_one_and_its_scores_are_a_least_squares_fit(planted, planted_model):
    m, visit = planted_model, planted.visits[planted.offsets[:20]].toarray()
    c = Cohort(visit, np.arange(21), planted.static[:20])
    found = m.project(c)
    np.testing.assert_allclose(found.U, 1, rtol=1e-15)
    for k in range(20):
        design = np.vstack([m.V_, np.sqrt(m.lam_eff_) * m.F_])
        target = np.concatenate([visit[k] / np.linalg.norm(visit[k]), np.sqrt(m.lam_eff_) * c.static[k]])
        np.testing.assert_allclose(found.W[k], nnls(design, target)[0], atol=1e-8)


@pytest.mark.parametrize("visits", [(1, 4), (1, 1)])
def test_fitted_and_projected_scores_agree_on_short_histories(visits):
    rng = np.random.default_rng(0)
    full, _ = simulate.ehr(400, n_features=40, n_static=6, mean_visits=15, rank=4, random_state=3)
    counts = np.minimum(np.diff(full.offsets), rng.integers(visits[0], visits[1] + 1, len(full)))
    rows = np.concatenate([full.offsets[k] + np.arange(n) for k, n in enumerate(counts)])
    c = Cohort(full.visits[rows], np.concatenate([[0], np.cumsum(counts)]), full.static)
    m = TASTE(4, n_init=1, random_state=0).fit(c)
    assert column_correlations(m.W_, m.transform(c)).min() >= 0.99


def test_fitted_and_projected_scores_agree(planted, planted_model):
    assert column_correlations(planted_model.W_, planted_model.transform(planted)).min() >= 0.999


def test_one_huge_entry_does_not_take_over_a_phenotype(planted, planted_model):
    visits = planted.visits.tolil()
    visits[planted.offsets[10], 7] = 300.0
    after = TASTE(4, n_init=1, random_state=0).fit(Cohort(visits.tocsr(), planted.offsets, planted.static))
    assert kept_phenotypes(planted_model, after) >= 0.95


def test_one_very_long_history_does_not_take_over_a_phenotype(planted, planted_model):
    first, last = planted.offsets[10], planted.offsets[11]
    rows = np.concatenate(
        [np.arange(first), np.tile(np.arange(first, last), 40), np.arange(last, planted.n_visits)]
    )
    counts = np.diff(planted.offsets)
    counts[10] *= 40
    offsets = np.concatenate([[0], np.cumsum(counts)])
    after = TASTE(4, n_init=1, random_state=0).fit(Cohort(planted.visits[rows], offsets, planted.static))
    assert kept_phenotypes(planted_model, after) >= 0.95


def test_scores_do_not_follow_the_number_of_visits():
    c, _ = simulate.ehr(400, n_features=60, n_static=6, rank=4, lengths="skewed", random_state=1)
    W = TASTE(4, n_init=1, random_state=0).fit(c).W_
    assert abs(spearmanr(W.sum(axis=1), np.diff(c.offsets)).statistic) <= 0.3


def test_a_history_seen_twice_has_the_same_score(planted, planted_model):
    """Twice the visits is twice the record, but not twice the phenotype."""
    few = planted[:10]
    rows = np.concatenate([np.repeat(np.arange(*few.offsets[[k, k + 1]]), 2) for k in range(10)])
    twice = planted_model.transform(Cohort(few.visits[rows], 2 * few.offsets, few.static))
    np.testing.assert_allclose(twice, planted_model.transform(few), rtol=0.05, atol=0.02)


def test_courses_and_definitions_have_unit_columns(planted, planted_model):
    m = planted_model
    for factor in (m.V_, m.H_):
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1)
    for k in range(len(planted)):
        np.testing.assert_allclose(np.linalg.norm(m.U_[m.offsets_[k] : m.offsets_[k + 1]], axis=0), 1)


def test_smooth_makes_courses_smoother(planted):
    def roughness(smooth):
        m = TASTE(4, smooth=smooth, n_init=1, random_state=0).fit(planted)
        inside = np.ones(len(m.U_) - 1, bool)
        inside[m.offsets_[1:-1] - 1] = False  # between patients
        return np.sum((np.diff(m.U_, axis=0) ** 2)[inside])

    rough, default, smooth = (roughness(value) for value in (0.0, 0.3, 3.0))
    assert rough > default > smooth
