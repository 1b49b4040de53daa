"""CP-APR, with and without a bias: the compiled version against NumPy and pyttb, and what the mathematics promises."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phenotaste.core.cp import apr, bias, reference
from phenotaste.core.cp.apr import AprOptions, Passes, Stop, cp_apr, random_start, zero_small
from phenotaste.core.cp.counts import Counts, Factors

KINDS = ["poisson", "zero patients", "one non-zero", "feature of no patient", "constant", "large"]


def counts_of(X):
    """A dense tensor as Counts."""
    k, a, b = np.nonzero(X)
    starts = np.searchsorted(k, np.arange(len(X) + 1)).astype(np.int64)
    return Counts(X[k, a, b].astype(np.float64), a.astype(np.int32), b.astype(np.int32), starts, X.shape)


def tensor(kind, rng, shape=(7, 4, 5)):
    X = rng.poisson(rng.gamma(0.4, 2.0, shape)).astype(float)
    if kind == "zero patients":
        X[[0, 3]] = 0
    if kind == "one non-zero":
        X[:] = 0
        X[2, 1, 3] = 3
    if kind == "feature of no patient":
        X[:, 1] = X[:, :, 4] = 0
    if kind == "constant":
        X[:] = 2
    if kind == "large":
        X *= 1e5
    return X


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = tuple(draw(st.integers(low, 8)) for low in (4, 2, 5))
    return tensor(draw(st.sampled_from(KINDS)), rng, shape), draw(st.integers(1, 10)), rng


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(apr, "MIN_BLOCK", 3)
    monkeypatch.setattr(apr, "MAX_BLOCKS", 10**6)


def assert_same(found, expected, scale=1.0):
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9 * scale)


# --- against NumPy -------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(problem=problems())
def test_equals_the_reference(problem):
    X, R, rng = problem
    start, options = random_start(X.shape, R, rng), AprOptions(max_iter=4)
    found = cp_apr(Passes(counts_of(X)), start, options)
    factors, losses = reference.cp_apr(X, start, options)
    assert_same(found.factors, factors, X.sum())
    np.testing.assert_allclose(found.losses, losses, rtol=1e-8, atol=1e-9 * X.sum())


def test_zeros_are_lifted_as_in_the_reference():
    rng = np.random.default_rng(0)
    X = tensor("poisson", rng)
    start = random_start(X.shape, 3, rng)
    for factor in start:
        factor[:2] = 0  # which multiplicative updates alone would leave at zero
    lifted = cp_apr(Passes(counts_of(X)), start, AprOptions(max_iter=5))
    assert_same(lifted.factors, reference.cp_apr(X, start, AprOptions(max_iter=5))[0])
    stuck = cp_apr(Passes(counts_of(X)), start, AprOptions(max_iter=5, kappa=0.0))
    assert not stuck.factors.A[:2].any()
    assert lifted.factors.A[:2].any()
    assert lifted.losses[-1] < stuck.losses[-1]


@settings(max_examples=25)
@given(problem=problems())
def test_bias_equals_the_reference(problem):
    X, R, rng = problem
    start, options = random_start(X.shape, R + 1, rng), AprOptions(max_iter=4, tol=0.0)
    found = bias.fit(Passes(counts_of(X)), start, 0.15, options)
    factors, losses = reference.cp_apr_bias(X, start, 0.15, options)
    assert_same(found.factors, factors, X.sum())
    np.testing.assert_allclose(found.losses, losses, rtol=1e-8, atol=1e-9 * X.sum())


@settings(max_examples=25)
@given(problem=problems())
def test_projection_equals_the_reference(problem):
    X, R, rng = problem
    A, B = rng.random((X.shape[1], R)), rng.random((X.shape[2], R))
    A[:, R // 2] *= rng.random() < 0.5  # a phenotype without features
    found = Passes(counts_of(X)).project(A, B, Stop(1e-8, 30))
    expected = [reference.project(x, A, B, 1e-8, 30) for x in X]
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9 * X.max())


def test_projection_is_the_maximum_of_the_likelihood():
    rng = np.random.default_rng(3)
    X = tensor("poisson", rng)
    A, B = random_start(X.shape, 3, rng)[1:]
    passes = Passes(counts_of(X))
    W = passes.project(A, B, Stop(1e-12, 10_000))
    best = reference.divergence(X, Factors(W, A, B))
    for _ in range(20):
        other = np.abs(W + 0.01 * rng.standard_normal(W.shape))
        assert reference.divergence(X, Factors(other, A, B)) > best


@pytest.mark.usefixtures("small_blocks")
def test_blocks_of_patients_change_only_the_rounding_and_threads_no_bit():
    rng = np.random.default_rng(4)
    X = tensor("poisson", rng, (40, 4, 5))
    counts, start, options = counts_of(X), random_start(X.shape, 3, rng), AprOptions(max_iter=5)
    alone = Passes(counts)
    assert len(alone.blocks) > 10
    assert alone.blocks[0][0] == 0
    assert alone.blocks[-1][1] == 40
    with ThreadPoolExecutor(3) as pool:
        found, threaded = cp_apr(alone, start, options), cp_apr(Passes(counts, pool.map), start, options)
    assert_same(found.factors, reference.cp_apr(X, start, options)[0])
    for ours, theirs in zip(found.factors, threaded.factors, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- against pyttb -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "max_iter"), [(1, 30), (3, 5), (3, 80), (6, 40)])
def test_equals_pyttb_from_the_same_start(rank, max_iter, capsys):
    ttb = pytest.importorskip("pyttb", reason="needs the extra 'dev'")
    rng = np.random.default_rng(rank + max_iter)
    X = tensor("zero patients", rng, (30, 6, 7))
    start = random_start(X.shape, rank, rng)
    # pyttb lifts zeros wherever a multiplier is above 0; the paper, and the default here, where it is above 1.
    found = cp_apr(Passes(counts_of(X)), start, AprOptions(max_iter=max_iter, kappa_above=0.0))
    where = np.nonzero(X)
    theirs = ttb.cp_apr(
        ttb.sptensor(np.column_stack(where), X[where][:, None], X.shape),
        rank,
        init=ttb.ktensor([factor.copy() for factor in start]),
        maxiters=max_iter,
        printitn=10**6,
    )[2]
    means = reference.means(found.factors)
    likelihood = np.sum(X[where] * np.log(means[where])) - means.sum()
    assert likelihood == pytest.approx(theirs["obj"], rel=1e-6)
    assert len(found.losses) == len(theirs["kktViolations"])
    assert found.violations == pytest.approx(list(theirs["kktViolations"]), rel=1e-5, abs=1e-9)


# --- what the mathematics promises ---------------------------------------------------------------------------


@settings(max_examples=25)
@given(problem=problems())
def test_the_likelihood_never_falls(problem):
    X, R, rng = problem
    found = cp_apr(Passes(counts_of(X)), random_start(X.shape, R, rng), AprOptions(max_iter=6, kappa=0.0))
    losses = np.array(found.losses)
    assert np.isfinite(losses).all()
    assert (np.diff(losses) <= 1e-9 * X.sum()).all()


def test_the_fit_keeps_all_counts_and_its_columns_sum_to_one():
    rng = np.random.default_rng(5)
    X = tensor("feature of no patient", rng, (20, 4, 5))
    W, A, B = cp_apr(Passes(counts_of(X)), random_start(X.shape, 3, rng), AprOptions(max_iter=30)).factors
    np.testing.assert_allclose(A.sum(axis=0), 1.0)
    np.testing.assert_allclose(B.sum(axis=0), 1.0)
    assert W.sum() == pytest.approx(X.sum())  # a stationary point of the likelihood has the total of the data
    assert not A[1].any()
    assert not B[4].any()


def test_ends_when_the_conditions_hold_or_the_loss_has_settled():
    rng = np.random.default_rng(6)
    X = tensor("poisson", rng, (20, 4, 5))
    passes, start = Passes(counts_of(X)), random_start(X.shape, 2, rng)
    exact = cp_apr(passes, start, AprOptions(max_iter=500))
    assert exact.outcome == "converged"
    assert exact.violations[-1] < 1e-4
    early = cp_apr(passes, start, AprOptions(max_iter=500, loss_tol=1e-4))
    assert len(early.losses) < len(exact.losses)
    assert abs(early.losses[-2] - early.losses[-1]) < 1e-4 * early.losses[-1]
    assert cp_apr(passes, start, AprOptions(max_iter=3)).outcome == "max_iter"


def planted(rng, n_patients=400, bias_share=0.6):
    """Counts from three sparse phenotypes and a dense bias, with the definitions of both."""
    A, B = np.zeros((20, 4)), np.zeros((15, 4))
    for r in range(3):
        A[5 * r : 5 * r + 4, r] = rng.dirichlet(np.full(4, 5.0))
        B[4 * r : 4 * r + 3, r] = rng.dirichlet(np.full(3, 5.0))
    A[:, 3], B[:, 3] = rng.dirichlet(np.full(20, 3.0)), rng.dirichlet(np.full(15, 3.0))
    W = rng.gamma(0.5, 60.0, (n_patients, 4))
    W[:, 3] = bias_share * rng.gamma(5.0, 12.0, n_patients)
    return rng.poisson(np.einsum("kr,ar,br->kab", W, A, B)).astype(float), Factors(W, A, B)


def cosine(x, y):
    return x @ y / np.linalg.norm(x) / np.linalg.norm(y)


def test_a_planted_bias_is_recovered_and_so_are_the_phenotypes():
    X, truth = planted(np.random.default_rng(7))
    passes, options = Passes(counts_of(X)), AprOptions(max_iter=60, loss_tol=1e-7)
    found = bias.fit(
        passes, bias.warm_start(passes, 3, options, np.random.default_rng(0)), 0.02, options
    ).factors
    for ours, true in zip(found, truth, strict=True):
        assert cosine(ours[:, 3], true[:, 3]) > 0.98
        assert ours[:, 3].min() > 0
    for ours, true in ((found.A, truth.A), (found.B, truth.B)):
        match = [max(range(3), key=lambda r: cosine(ours[:, r], true[:, s])) for s in range(3)]
        assert sorted(match) == [0, 1, 2]
        assert min(cosine(ours[:, r], true[:, s]) for s, r in enumerate(match)) > 0.995
        assert (ours[:, match] > 0).sum() < 1.3 * (true[:, :3] > 0).sum()


def test_a_bias_keeps_features_that_no_patient_has_positive():
    rng = np.random.default_rng(8)
    X = tensor("feature of no patient", rng, (30, 4, 5))
    passes, options = Passes(counts_of(X)), AprOptions(max_iter=20)
    found = bias.fit(passes, bias.warm_start(passes, 2, options, rng), 0.05, options).factors
    assert 0 < found.A[1, 2] < 1e-5
    assert min(factor[:, 2].min() for factor in found) > 0


def test_entries_that_became_zero_do_not_keep_a_fit_from_ending():
    X, _ = planted(np.random.default_rng(9), n_patients=60)
    passes, options = Passes(counts_of(X)), AprOptions(max_iter=300, tol=0.05)
    start = bias.warm_start(passes, 3, options, np.random.default_rng(0))
    found = bias.fit(passes, start, 0.15, options)
    assert found.outcome == "converged"
    multipliers = reference.multipliers(X, found.factors, 1, 1e-10)[:, :3]
    assert (multipliers[found.factors.A[:, :3] == 0] > 1.05).any()  # the threshold alone keeps it at zero


def test_small_entries_become_zero_and_the_largest_remains():
    factor = np.array([[0.5, 0.3, 0.0], [0.46, 0.4, 0.0], [0.04, 0.3, 0.0]])
    np.testing.assert_allclose(zero_small(factor, 0.05)[:, 0], [0.5 / 0.96, 0.46 / 0.96, 0.0])
    np.testing.assert_allclose(zero_small(factor, 0.9)[:, 1], [0.0, 1.0, 0.0])
    assert not zero_small(factor, 0.05)[:, 2].any()
