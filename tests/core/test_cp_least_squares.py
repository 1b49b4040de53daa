"""Non-negative CP, SUSTain and Granite on sparse counts against their dense references."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from phenotaste.core.cp import granite, nonnegative, sustain
from phenotaste.core.cp import reference_ls as reference
from phenotaste.core.cp.counts import Counts, Factors
from phenotaste.core.cp.mttkrp import mttkrp, other_grams, squared_error

SHAPES = [(9, 5, 4), (1, 1, 1), (4, 2, 7), (6, 1, 3)]  # with fewer rows than phenotypes


def counts_of(T):
    k, a, b = np.nonzero(T)
    starts = np.concatenate([[0], np.cumsum(np.bincount(k, minlength=len(T)))])
    return Counts(T[k, a, b].astype(float), a.astype(np.int32), b.astype(np.int32), starts, T.shape)


def random_tensor(shape, seed=0, density=0.4):
    """Counts; the first and the last patient have none, and neither do the last elements of A and B."""
    rng = np.random.default_rng(seed)
    T = rng.integers(1, 6, shape) * (rng.random(shape) < density)
    if len(T) > 2:
        T[0] = T[-1] = 0
    for mode in (1, 2):
        if T.shape[mode] > 1:
            np.moveaxis(T, mode, 0)[-1] = 0
    return T.astype(float)


def random_factors(shape, R, seed=0):
    rng = np.random.default_rng(seed)
    return Factors(*(rng.random((n, R)) + 0.05 for n in shape))


def planted(seed, shape=(60, 9, 8), R=3, size=30.0):
    rng = np.random.default_rng(seed)
    A, B = (rng.dirichlet(np.full(n, 0.3), R).T for n in shape[1:])
    return Factors(rng.gamma(1.0, size, (shape[0], R)), A, B)


def cosine(found, true):
    """The mean cosine of columns of A and B, matched one to one."""
    u, v = (F / np.maximum(np.linalg.norm(F, axis=0), 1e-300) for F in (np.vstack(found), np.vstack(true)))
    C = u.T @ v
    return C[linear_sum_assignment(-C)].mean()


def stacked(factors):
    return [F / np.maximum(np.linalg.norm(F, axis=0), 1e-300) for F in (factors.A, factors.B)]


def falls(losses, T):
    return (np.diff(losses) <= 1e-12 * np.sum(T**2)).all()


tensors = st.builds(
    random_tensor,
    st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(1, 5)),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)

# --- products with the non-zeros -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_products_and_error_equal_the_dense_ones(shape, density):
    T = random_tensor(shape, density=density)
    factors = random_factors(shape, 3)
    for mode in range(3):
        X, K = reference.unfolded(T, factors, mode)
        product, gram = mttkrp(counts_of(T), factors, mode), other_grams(factors, mode)
        np.testing.assert_allclose(product, X @ K, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(gram, K.T @ K, rtol=1e-12)
        error = squared_error(np.sum(T**2), product, gram, factors[mode])
        assert error == pytest.approx(reference.squared_error(T, factors), rel=1e-10)


# --- non-negative CP -------------------------------------------------------------------------------------------


def test_an_iteration_of_least_squares_equals_the_reference():
    T = np.random.default_rng(0).poisson(reference.model_tensor(planted(0))).astype(float)
    factors = random_factors(T.shape, 3)
    found, error = nonnegative.step(counts_of(T), np.sum(T**2), factors)
    for mode, name in enumerate("WAB"):
        factors = factors._replace(**{name: reference.nonnegative_factor(T, factors, mode)})
    assert error == pytest.approx(reference.squared_error(T, factors), rel=1e-8)
    for F, own in zip(stacked(factors), (found.A, found.B), strict=True):
        np.testing.assert_allclose(own, F, atol=1e-7)
    np.testing.assert_allclose(reference.model_tensor(found), reference.model_tensor(factors), atol=1e-7)


@settings(max_examples=25, deadline=None)
@given(tensors, st.integers(1, 4))
def test_least_squares_never_increases_the_error(T, R):
    counts = counts_of(T)
    start = nonnegative.random_start(T.shape, R, np.random.default_rng(0))
    found, losses, _ = nonnegative.fit(counts, start, 15, 0.0)
    assert falls(losses, T)
    assert losses[-1] == pytest.approx(reference.squared_error(T, found), rel=1e-8, abs=1e-9 * (1 + T.sum()))
    assert min(F.min(initial=0.0) for F in found) >= 0
    for F in (found.A, found.B):
        np.testing.assert_allclose(np.linalg.norm(F, axis=0), 1.0)


def test_least_squares_recovers_a_planted_tensor():
    truth = planted(0)
    T = reference.model_tensor(truth)
    start = nonnegative.random_start(T.shape, 3, np.random.default_rng(1))
    found, losses, _ = nonnegative.fit(counts_of(T), start, 500, 0.0)
    assert losses[-1] < 1e-6 * np.sum(T**2)
    assert cosine(stacked(found), stacked(truth)) > 0.999
    np.testing.assert_allclose(nonnegative.project(counts_of(T), found), found.W, atol=1e-3 * found.W.max())


def test_least_squares_ends_where_tensorly_does():
    tensorly = pytest.importorskip("tensorly")
    from tensorly.decomposition import non_negative_parafac_hals

    T = np.random.default_rng(0).poisson(reference.model_tensor(planted(0))).astype(float)
    start = random_factors(T.shape, 3)
    _, losses, _ = nonnegative.fit(counts_of(T), start, 300, 1e-12)
    theirs = non_negative_parafac_hals(
        tensorly.tensor(T),
        3,
        init=tensorly.cp_tensor.CPTensor((None, list(start))),
        n_iter_max=300,
        tol=1e-12,
    )
    error = float(np.sum((T - tensorly.cp_to_tensor(theirs)) ** 2))
    assert losses[-1] == pytest.approx(error, rel=1e-6)


# --- SUSTain ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1, 5])
@pytest.mark.parametrize("scale", [0.0, 0.3, 1e3])
def test_best_integers_equal_the_reference(bound, scale):
    rng = np.random.default_rng(bound)
    for target in (rng.normal(size=20), rng.gamma(0.3, size=20), -np.ones(4), np.zeros(3)):
        f, fitted = sustain.best_integers(target, scale, bound)
        expected, expected_scale = reference.best_integers(target, scale, bound)
        np.testing.assert_array_equal(f, expected)
        assert fitted == pytest.approx(expected_scale)


def test_a_column_of_integers_equals_the_reference():
    T = random_tensor((12, 6, 5))
    factors, scales = sustain.rounded(random_factors(T.shape, 3), 5)
    for mode in range(3):
        for r in range(3):
            F, own = factors[mode].copy(), scales.copy()
            product, gram = mttkrp(counts_of(T), factors, mode), other_grams(factors, mode)
            sustain.update_column(product, gram, F, own, r, 5)
            expected, scale = reference.sustain_column(T, factors, scales, mode, r, 5)
            np.testing.assert_array_equal(F[:, r], expected)
            assert own[r] == pytest.approx(scale if scale > 0 else scales[r])


@settings(max_examples=25, deadline=None)
@given(tensors, st.integers(1, 4), st.integers(1, 5))
def test_integers_stay_in_bounds_and_never_increase_the_error(T, R, bound):
    counts = counts_of(T)
    start = nonnegative.random_start(T.shape, R, np.random.default_rng(0))
    (found, scales), losses, _ = sustain.fit(counts, start, bound, 20, 0.0)
    assert falls(losses, T)
    assert (scales > 0).all()
    projected = sustain.project(counts, sustain.IntegerFactors(found, scales), bound)
    for F in (*found, projected):
        assert np.isin(F, np.arange(bound + 1)).all()
    model = found._replace(W=found.W * scales)
    assert losses[-1] == pytest.approx(reference.squared_error(T, model), rel=1e-8, abs=1e-9 * (1 + T.sum()))


@pytest.mark.parametrize("density", [0.0, 0.3, 0.8])
def test_integer_scores_equal_the_reference(density):
    T = random_tensor((20, 6, 5), density=density)
    factors, scales = sustain.rounded(random_factors(T.shape, 3), 3)
    factors.A[:, 1] = 0.0  # a phenotype without definition
    W = sustain.project(counts_of(T), sustain.IntegerFactors(factors, scales), 3)
    real = nonnegative.project(counts_of(T), factors._replace(A=factors.A * scales))
    for k in range(len(T)):
        expected = reference.sustain_row(T[k], factors.A, factors.B, scales, real[k], 3)
        np.testing.assert_array_equal(W[k], expected)


def test_integers_recover_planted_integers():
    rng = np.random.default_rng(0)
    truth = Factors(*(rng.integers(0, 6, (n, 3)) * (rng.random((n, 3)) < 0.5) for n in (60, 9, 8)))
    T = reference.model_tensor(truth)
    start = nonnegative.random_start(T.shape, 3, np.random.default_rng(2))
    (found, scales), losses, _ = sustain.fit(counts_of(T), start, 5, 50, 0.0)
    assert losses[-1] < 1e-9 * np.sum(T**2)
    assert cosine(stacked(found), stacked(truth)) > 0.999
    projected = sustain.project(counts_of(T), sustain.IntegerFactors(found, scales), 5)
    np.testing.assert_array_equal(projected, found.W)


# --- Granite ---------------------------------------------------------------------------------------------------


def granite_start(T, R, seed=0):
    return granite.random_start(counts_of(T), R, np.random.default_rng(seed))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_likelihood_gradient_and_scores_equal_the_dense_ones(shape, density):
    T = random_tensor(shape, density=density)
    factors = random_factors(shape, 3)
    seen = T > 0
    expected = np.sum(T[seen] * np.log(reference.model_tensor(factors)[seen]))
    for mode in (1, 2):
        ratios = np.zeros(factors[mode].shape)
        value = granite.log_likelihood(counts_of(T), factors, mode, ratios)
        assert value == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(ratios, reference.log_mean_gradient(T, factors, mode), rtol=1e-12)
    stepped = factors._replace(W=factors.W.copy())
    granite.update_patients(counts_of(T), stepped, 1, 0.0)
    has = T.any(axis=(1, 2))
    np.testing.assert_allclose(stepped.W[has], reference.em_patients(T, factors)[has], rtol=1e-12)


def test_gradient_of_the_penalty_is_that_of_its_reference():
    F = random_factors((6, 1, 1), 4).W
    value, slope = granite.angular(F, 0.5)
    assert value == pytest.approx(reference.angular(F, 0.5))
    assert value > 0
    for i, r in np.ndindex(F.shape):
        step = np.zeros(F.shape)
        step[i, r] = 1e-6
        numeric = (reference.angular(F + step, 0.5) - reference.angular(F - step, 0.5)) / 2e-6
        assert slope[i, r] == pytest.approx(numeric, abs=1e-8)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([1e-3, 1.0, 1e6]))
def test_projection_onto_the_simplex_equals_the_reference(seed, n, size):
    rng = np.random.default_rng(seed)
    y, metric = size * rng.normal(size=n), rng.gamma(0.5, size=n) + 1e-6
    f = granite.onto_simplex(y, metric)
    assert f.sum() == pytest.approx(1.0)
    if size < 1e6:  # where the root can be found to that precision
        np.testing.assert_allclose(f, reference.onto_simplex(y, metric), atol=1e-8)


def test_a_step_without_penalty_is_one_of_expectation_maximisation():
    T = random_tensor((12, 6, 5), density=0.8)[:, :-1, :-1][1:-1]
    factors = granite_start(T, 3)
    for mode in (1, 2):
        expected = factors[mode] * reference.log_mean_gradient(T, factors, mode)
        found, length, _ = granite.update_factor(counts_of(T), factors, mode, granite.Penalty(0.0, 0.0), 1.0)
        assert length == 1.0
        np.testing.assert_allclose(found[mode], expected / expected.sum(axis=0), rtol=1e-10)


@settings(max_examples=25, deadline=None)
@given(tensors, st.integers(1, 4), st.sampled_from([0.0, 0.1, 100.0]), st.sampled_from([0.0, 0.3]))
def test_granite_never_increases_its_objective(T, R, weight, limit):
    penalty = granite.Penalty(weight * T.sum(), limit)
    found, losses, _ = granite.fit(counts_of(T), granite_start(T, R), penalty, 20, 0.0)
    assert falls(losses, T)
    assert losses[-1] == pytest.approx(
        reference.granite_objective(T, found, penalty), rel=1e-8, abs=1e-9 * (1 + T.sum())
    )
    for F in (found.A, found.B):
        np.testing.assert_allclose(F.sum(axis=0), 1.0)
        assert F.min() >= 0


def mean_cosine(F):
    unit = F / np.linalg.norm(F, axis=0)
    return (unit.T @ unit)[~np.eye(F.shape[1], dtype=bool)].mean()


def overlapping():
    """Counts of three phenotypes that share half of their codes."""
    truth = planted(3)
    shared = Factors(truth.W, *(0.5 * F + 0.5 * F.mean(axis=1, keepdims=True) for F in truth[1:]))
    return np.random.default_rng(0).poisson(reference.model_tensor(shared)).astype(float)


def test_the_penalty_makes_phenotypes_more_distinct():
    T = overlapping()
    cosines = []
    for weight in (0.0, 0.1, 1.0):
        penalty = granite.Penalty(weight * T.sum(), 0.3)
        found, _, _ = granite.fit(counts_of(T), granite_start(T, 3), penalty, 200, 1e-6)
        cosines.append((mean_cosine(found.A) + mean_cosine(found.B)) / 2)
    assert cosines[0] > 0.5
    assert cosines[1] < cosines[0] - 0.05
    assert cosines[2] < cosines[0] - 0.1
    assert cosines[2] < cosines[1]


def test_steps_that_would_increase_the_objective_are_shortened():
    T = overlapping()
    penalty = granite.Penalty(100 * T.sum(), 0.0)
    factors = granite_start(T, 3)
    _, length, _ = granite.update_factor(counts_of(T), factors, 1, penalty, 1.0)
    assert 0 < length < 1
    _, losses, _ = granite.fit(counts_of(T), factors, penalty, 30, 0.0)
    assert falls(losses, T)


def test_granite_recovers_a_planted_tensor():
    truth = planted(0)
    T = np.random.default_rng(0).poisson(reference.model_tensor(truth)).astype(float)
    found, _, _ = granite.fit(counts_of(T), granite_start(T, 3), granite.Penalty(0.0, 1.0), 500, 1e-8)
    assert cosine(stacked(found), stacked(truth)) > 0.99
    W = granite.project(counts_of(T), found.A, found.B, 1000, 1e-10)
    np.testing.assert_allclose(W.sum(axis=1), T.sum(axis=(1, 2)), rtol=1e-8)
    ratios = reference.log_mean_gradient(
        T, found._replace(W=W), 0
    )  # of the maximum: 1 where W > 0, at most 1 elsewhere
    assert ratios.max() < 1 + 1e-3
    np.testing.assert_allclose((W * (1 - ratios)) / T.sum(), 0.0, atol=1e-5)
