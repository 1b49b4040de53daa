"""The simulators: what they promise about shapes, chances and truth, measured on what they draw."""

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from sklearn.decomposition import NMF
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from helpers.kernels import compiled
from phenotaste import simulate
from phenotaste.errors import InputError
from phenotaste.metrics import matched_similarity
from phenotaste.simulate import _ehr, _heart_failure, paper_phenotypes
from phenotaste.simulate._common import shares
from phenotaste.taste import TASTE

SIMULATORS = {
    "recovery": lambda seed: simulate.recovery(noise=0.1, n_patients=20, random_state=seed),
    "heart_failure": lambda seed: simulate.heart_failure(200, random_state=seed),
    "ehr": lambda seed: simulate.ehr(200, random_state=seed),
    "skewed": lambda seed: simulate.ehr(200, lengths="skewed", random_state=seed),
}


@pytest.fixture(scope="module")
def heart_failure():
    return simulate.heart_failure(3000, random_state=3)


@pytest.fixture(scope="module")
def ehr():
    return simulate.ehr(3000, random_state=3)


def cosines(truth, found):
    def unit(M):
        return M / np.linalg.norm(M, axis=0)

    return unit(truth).T @ unit(found)


def best_and_margin(truth, found):
    """Each planted column's cosine with its one-to-one match, and by how much that beats the second best."""
    C = cosines(truth, found)
    C = C[:, linear_sum_assignment(-C)[1]]
    others = C - np.diag(np.full(len(C), np.inf))
    return np.diag(C), np.diag(C) - np.maximum(others.max(axis=0), others.max(axis=1))


def code_totals(c):
    """Patients × codes: the visits of each patient added up."""
    K, n_visits = len(c), c.visits.shape[0]
    patient = np.repeat(np.arange(K), np.diff(c.offsets))
    return (
        sparse.csr_array((np.ones(n_visits), (patient, np.arange(n_visits))), (K, n_visits)) @ c.visits
    ).toarray()


def same(one, other):
    return (one is None and other is None) or np.array_equal(one, other)


# --- all of them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIMULATORS)
def test_seed_decides_everything(name):
    (c, t), (c2, t2), (c3, t3) = (SIMULATORS[name](seed) for seed in (7, 7, np.random.default_rng(7)))
    for other, truth in ((c2, t2), (c3, t3)):
        assert (c.visits != other.visits).nnz == 0
        assert all(same(getattr(c, key), getattr(other, key)) for key in ("offsets", "static", "visit_times"))
        assert all(same(getattr(t, key), getattr(truth, key)) for key in ("V", "F", "W", "H", "U", "labels"))
    assert not np.array_equal(c.static, SIMULATORS[name](8)[0].static)
    assert SIMULATORS[name](None)[0].shape == c.shape


def test_the_generator_advances():
    rng = np.random.default_rng(0)
    assert not np.array_equal(
        simulate.ehr(50, random_state=rng)[1].W, simulate.ehr(50, random_state=rng)[1].W
    )


@pytest.mark.parametrize("name", SIMULATORS)
@pytest.mark.parametrize("seed", [-1, 1.5, "0", True, np.random.RandomState(0)])
def test_bad_seed_is_refused(name, seed):
    with pytest.raises(InputError, match="random_state"):
        SIMULATORS[name](seed)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: simulate.recovery(noise=1.5), "noise"),
        (lambda: simulate.recovery(noise=float("nan")), "noise"),
        (lambda: simulate.recovery(noise_scale="big"), "noise_scale"),
        (lambda: simulate.recovery(q="other"), "q='other' must"),
        (lambda: simulate.recovery(n_visits=3), "n_visits"),
        (lambda: simulate.recovery(rank=0), "rank"),
        (lambda: simulate.recovery(n_static=2.0), "n_static"),
        (lambda: simulate.heart_failure(0), "n_patients"),
        (lambda: simulate.ehr(0), "n_patients"),
        (lambda: simulate.ehr(True), "n_patients"),
        (lambda: simulate.ehr(10, n_features=1), "n_features"),
        (lambda: simulate.ehr(10, n_features=5), "n_features"),
        (lambda: simulate.ehr(10, mean_visits=4), "mean_visits"),
        (lambda: simulate.ehr(10, codes_per_visit=0.5), "codes_per_visit"),
        (lambda: simulate.ehr(10, codes_per_visit=200), "codes_per_visit"),
        (lambda: simulate.ehr(10, separation=1.01), "separation"),
        (lambda: simulate.ehr(10, lengths="short"), "lengths"),
        (lambda: simulate.ehr(10, lengths="skewed", mean_visits=20), "mean_visits"),
        (lambda: simulate.ehr(10, lengths="skewed", codes_per_visit=3), "codes_per_visit"),
    ],
)
def test_bad_argument_is_refused_by_name(call, word):
    with pytest.raises(InputError, match=word) as refusal:
        call()
    assert str(refusal.value).endswith(".")


# --- recovery ------------------------------------------------------------------------------------------


def test_recovery_has_the_shape_of_the_supplement():
    c, t = simulate.recovery()
    assert c.shape == (100, 30)
    assert c.static.shape == (100, 20)
    assert (np.diff(c.offsets) == 100).all()
    assert [M.shape for M in (t.V, t.F, t.W, t.H, t.U)] == [(30, 4), (20, 4), (100, 4), (4, 4), (10_000, 4)]
    assert t.labels is None
    for M in (t.V, t.F, t.W, t.H):
        assert M.min() > 0
        assert M.max() < 1


@pytest.mark.parametrize("q", ["partition", "literal"])
def test_recovery_without_noise_is_the_model(q):
    c, t = simulate.recovery(q=q, n_patients=15, random_state=2)
    X = np.vstack([U * w @ t.V.T for U, w in zip(np.split(t.U, 15), t.W, strict=True)])
    np.testing.assert_allclose(c.visits.toarray(), X, rtol=0, atol=1e-12)
    np.testing.assert_allclose(c.static, t.W @ t.F.T, rtol=0, atol=1e-12)
    assert not c.allow_negative


@pytest.mark.parametrize(("q", "n_filled"), [("partition", 100), ("literal", 4)])
def test_recovery_q_is_orthonormal(q, n_filled):
    _, t = simulate.recovery(q=q, n_patients=15, random_state=2)
    for U in np.split(t.U, 15):
        Q = U @ np.linalg.inv(t.H)
        np.testing.assert_allclose(Q.T @ Q, np.eye(4), atol=1e-9)
        assert (Q > 1e-9).sum() == (np.abs(Q) > 1e-9).sum() == n_filled  # one group a visit, at most
    if q == "literal":
        np.testing.assert_allclose(Q[Q > 1e-9], 1.0)


def test_recovery_partition_leaves_no_group_empty():
    _, t = simulate.recovery(n_patients=30, n_visits=4, rank=4, random_state=2)
    for U in np.split(t.U, 30):
        np.testing.assert_allclose(U.T @ U, t.H.T @ t.H)


@pytest.mark.parametrize("scale", ["unit", "data"])
@pytest.mark.parametrize("noise", [0.05, 0.4, 1.0])
def test_recovery_noise_falls_on_that_share_of_each_matrix(noise, scale):
    c, t = simulate.recovery(noise=noise, noise_scale=scale, n_patients=15, random_state=4)
    exact = np.repeat(t.W, 100, axis=0) * t.U @ t.V.T
    added = c.visits.toarray() - exact
    changed = np.abs(added) > 1e-12
    np.testing.assert_allclose(changed.reshape(15, -1).mean(axis=1), noise)
    spread = 1.0 if scale == "unit" else exact.std()
    assert added[changed].std() == pytest.approx(spread, rel=0.05)
    in_static = c.static - t.W @ t.F.T
    changed = np.abs(in_static) > 1e-12
    assert changed.mean() == pytest.approx(noise)
    if scale == "data":
        assert in_static[changed].std() == pytest.approx((t.W @ t.F.T).std(), rel=0.4)


def test_recovery_noise_is_never_clipped():
    c, _ = simulate.recovery(noise=0.4, n_patients=15)
    assert c.allow_negative
    assert c.visits.min() < -1
    assert c.static.min() < 0
    # Half of the noise on elements near zero must be below zero: a clip would leave none.
    assert (c.visits.data < 0).mean() > 0.1


# --- heart failure -------------------------------------------------------------------------------------


def test_heart_failure_codes(heart_failure):
    c, t = heart_failure
    assert c.shape == (3000, 323)
    names = list(c.feature_names)
    assert len(set(names)) == 323
    assert sum(name.startswith("Dx_") for name in names) == 178
    assert sum(name.startswith("Rx_") for name in names) == 145
    assert (t.V.shape, t.F.shape, t.W.shape, t.U.shape) == (
        (323, 5),
        (22, 5),
        (3000, 5),
        (len(c.visit_times), 5),
    )
    assert c.visits.data.min() == 1
    assert (c.visits.data == c.visits.data.round()).all()
    assert (c.visits.data == 1).mean() > 0.95
    assert (np.diff(c.visits.indptr) > 0).all()  # nobody comes for nothing


def test_heart_failure_plants_the_weights_of_the_table(heart_failure):
    c, t = heart_failure
    names = list(c.feature_names)
    for r, weights in enumerate(paper_phenotypes.TEMPORAL_WEIGHTS):
        planted = {names[j]: t.V[j, r] for j in np.flatnonzero(t.V[:, r])}
        ratio = np.array([planted[code] / weight for code, weight in weights.items()])
        assert planted.keys() == weights.keys()
        np.testing.assert_allclose(ratio, ratio[0])


def test_heart_failure_static_levels(heart_failure):
    c, t = heart_failure
    names = list(c.static_names)
    assert len(names) == len(set(names)) == 22
    for group in paper_phenotypes.STATIC_GROUPS:
        columns = [names.index(level) for level in group]
        assert (c.static[:, columns].sum(axis=1) == 1).all()
        np.testing.assert_allclose(t.F[columns].sum(axis=0), t.F[:2, 0].sum())
    for r, weights in enumerate(paper_phenotypes.STATIC_WEIGHTS):
        listed = [t.F[names.index(level), r] for level in weights]
        unlisted = [t.F[names.index(level), r] for level in set(names) - set(weights)]
        assert np.median(listed) > 2 * np.median(unlisted)


def test_heart_failure_visits(heart_failure):
    c, _ = heart_failure
    n_visits = np.diff(c.offsets)
    assert n_visits.min() == 5
    assert n_visits.max() == 60
    assert 25 < n_visits.mean() < 31
    for k in range(200):
        days = c.visit_times[c.offsets[k] : c.offsets[k + 1]]
        assert (np.diff(days) > np.timedelta64(0, "D")).all()
        assert days[-1] - days[0] < np.timedelta64(730, "D")


def test_heart_failure_memberships_are_sparse_and_courses_differ(heart_failure):
    c, t = heart_failure
    n_phenotypes = (t.W > 0).sum(axis=1)
    assert set(n_phenotypes) == {0, 1, 2}
    assert 0.04 < (n_phenotypes == 0).mean() < 0.08
    first, last = t.U[c.offsets[:-1]][t.W > 0], t.U[c.offsets[1:] - 1][t.W > 0]
    assert (last > 1.5 * first).mean() > 0.2
    assert (first > 1.5 * last).mean() > 0.2
    assert (np.abs(first - last) < 1e-9).mean() > 0.2
    norms = np.sqrt(np.add.reduceat(t.U**2, c.offsets[:-1]))
    np.testing.assert_allclose(norms[t.W > 0], 1)


def test_heart_failure_truth_is_what_was_planted(heart_failure):
    c, t = heart_failure
    patient = np.repeat(np.arange(len(c)), np.diff(c.offsets))
    expected = ((t.U * t.W[patient]) @ t.V.T).sum(axis=0)
    background = _heart_failure._background_shares() * 1.5 * len(patient)
    seen = np.asarray(c.visits.sum(axis=0)).ravel()
    planted = expected > 0
    np.testing.assert_allclose(seen[planted], (expected + background)[planted], rtol=0.04, atol=150)
    assert np.corrcoef(seen[~planted], background[~planted])[0, 1] > 0.95
    assert seen[~planted].max() < 0.035 * len(patient)  # no background code could take a component
    F, *_ = np.linalg.lstsq(t.W, c.static, rcond=None)
    best, margin = best_and_margin(t.F, F.T)
    assert best.min() > 0.98
    assert margin.min() > 0.08
    fitted = t.W @ t.F.T
    assert (c.static * fitted).sum() / (fitted * fitted).sum() == pytest.approx(1, abs=0.05)
    level = shares(t.W) @ t.F.T / t.F[:2, 0].sum()
    some = t.W.any(axis=1)
    np.testing.assert_allclose(c.static[some].mean(axis=0), level[some].mean(axis=0), atol=0.03)


def test_heart_failure_phenotypes_are_not_too_alike(heart_failure):
    _, t = heart_failure
    for M, most in ((t.V, 0.5), (t.F, 0.9)):
        assert (cosines(M, M) - np.eye(5)).max() < most


def test_heart_failure_case_share():
    shares_of_cases = [simulate.heart_failure(3000, random_state=seed)[0].labels.mean() for seed in range(4)]
    assert np.mean(shares_of_cases) == pytest.approx(0.092, abs=0.008)
    c, t = simulate.heart_failure(100)
    assert set(np.unique(c.labels)) == {0, 1}
    assert np.array_equal(c.labels, t.labels)


def test_heart_failure_phenotypes_are_recovered():
    c, t = simulate.heart_failure(600, random_state=5)
    m = TASTE(rank=5, n_init=1, random_state=0).fit(c)
    for planted, found in ((t.V, m.V_), (t.F, m.F_)):
        best, margin = best_and_margin(planted, found)
        assert best.min() > 0.9
        assert margin.min() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_heart_failure_phenotypes_are_recovered_at_full_size(seed):
    c, t = simulate.heart_failure(random_state=seed)
    m = TASTE(rank=5, n_init=5, random_state=0).fit(c)
    for planted, found in ((t.V, m.V_), (t.F, m.F_)):
        best, margin = best_and_margin(planted, found)
        assert best.min() > 0.94
        assert margin.min() > 0.05


def lasso_auc(Z, y):
    lasso = LogisticRegression(l1_ratio=1, solver="liblinear", C=0.1)
    scores = cross_val_predict(lasso, Z, y, cv=StratifiedKFold(4), method="decision_function")
    return roc_auc_score(y, scores)


def test_heart_failure_labels_have_the_signal_of_the_paper():
    c, _ = simulate.heart_failure(10_000, random_state=3)
    occurred = (code_totals(c) > 0).astype(float)
    on_codes = lasso_auc(occurred, c.labels)
    with_static = lasso_auc(np.hstack([occurred, c.static]), c.labels)
    assert 0.715 < on_codes < 0.775  # six seeds gave 0.733 to 0.759
    assert on_codes - 0.005 < with_static < on_codes + 0.025


# --- any size ------------------------------------------------------------------------------------------


def test_ehr_has_the_shape_of_cms(ehr):
    c, t = ehr
    assert c.shape == (3000, 284)
    assert c.static.shape == (3000, 30)
    assert (t.V.shape, t.F.shape, t.W.shape, t.U, t.H) == ((284, 10), (30, 10), (3000, 10), None, None)
    n_visits = np.diff(c.offsets)
    assert n_visits.min() == 5
    assert n_visits.max() <= 200
    assert n_visits.mean() == pytest.approx(50, rel=0.05)
    assert np.median(n_visits) < n_visits.mean()
    assert c.visits.nnz / c.visits.shape[0] == pytest.approx(4.5, rel=0.01)
    assert set(np.unique(c.visits.data)) == {1, 2, 3}
    assert set(np.unique(c.static)) == {0, 1}
    assert set(np.unique(c.labels)) == {0, 1}
    assert np.array_equal(c.labels, t.labels)
    assert c.visits.dtype == np.float32
    assert (c.feature_names[0], c.feature_names[-1]) == ("code_001", "code_284")
    assert (c.static_names[0], c.static_names[-1]) == ("static_01", "static_30")
    rising = np.diff(c.visit_times) > 0
    rising[c.offsets[1:-1] - 1] = True
    assert rising.all()
    assert np.issubdtype(c.visit_times.dtype, np.integer)


def test_ehr_follows_its_sizes():
    c, t = simulate.ehr(800, n_features=40, n_static=3, mean_visits=12, codes_per_visit=2, rank=3)
    assert c.shape == (800, 40)
    assert c.static.shape == (800, 3)
    assert t.V.shape == (40, 3)
    assert np.diff(c.offsets).mean() == pytest.approx(12, rel=0.1)
    assert np.diff(c.offsets).max() <= 48
    assert c.visits.nnz / c.visits.shape[0] == pytest.approx(2, rel=0.03)


@pytest.mark.parametrize(
    "sizes",
    [
        {"n_patients": 1},
        {"n_features": 2, "rank": 1, "codes_per_visit": 1},
        {
            "n_features": 10,
            "rank": 10,
            "codes_per_visit": 5,
        },  # visits that use up what their phenotypes offer
        {"mean_visits": 5},
        {"n_static": 1, "rank": 1},
    ],
)
def test_ehr_at_the_edge_is_still_canonical(sizes):
    c, _ = simulate.ehr(**{"n_patients": 300, **sizes})
    assert c.visits.has_canonical_format
    assert (np.diff(c.visits.indptr) >= 1).all()
    assert c.visits.indices.max() < c.shape[1]


def test_ehr_with_skewed_lengths_has_short_and_long_histories_of_sparse_visits():
    c, _ = simulate.ehr(3000, lengths="skewed", random_state=3)
    n_visits, n_codes = np.diff(c.offsets), np.diff(c.visits.indptr)
    assert (n_visits.min(), n_visits.max()) == (1, 400)
    assert np.median(n_visits) == pytest.approx(10, abs=0.5)
    assert np.log(n_visits).mean() == pytest.approx(np.log(10), abs=0.1)  # as long as short on the log scale
    assert (n_codes.min(), n_codes.max()) == (3, 7)
    assert np.bincount(n_codes)[3:] / len(n_codes) == pytest.approx(0.2, abs=0.01)


def test_ehr_with_skewed_lengths_shows_its_phenotypes_in_sums_over_patients():
    c, t = simulate.ehr(1000, lengths="skewed", random_state=5)
    assert cosines(t.V, t.V)[~np.eye(10, dtype=bool)].max() > 0.1  # phenotypes share codes
    totals = code_totals(c)
    totals /= np.linalg.norm(totals, axis=1, keepdims=True)
    found = NMF(10, init="nndsvda", max_iter=500, random_state=0).fit(totals).components_.T
    assert matched_similarity(found, t.V) > 0.98


def test_ehr_visit_that_has_used_up_its_codes_takes_others():
    only_code_two = np.array([[0.0, 0.0, 1.0, 1.0, 1.0, 1.0]] * 2)
    codes = np.empty(4, np.int32)
    compiled(_ehr._draw_codes)(np.random.default_rng(0), np.ones(1), only_code_two, 0.15, codes)
    assert list(codes) == [0, 1, 2, 3]


def test_ehr_patients_show_the_codes_of_their_phenotypes(ehr):
    c, t = ehr
    totals = code_totals(c)
    for r in range(10):
        core = t.V[:, r] > 0.1
        share = totals[:, core].sum(axis=1) / totals.sum(axis=1)
        only, never = shares(t.W)[:, r] > 0.95, t.W[:, r] == 0
        assert share[only].mean() > 5 * share[never].mean()
        of_static = c.static[only].mean(axis=0) - c.static[never].mean(axis=0)
        assert np.corrcoef(of_static, t.F[:, r])[0, 1] > 0.8


def test_ehr_separation_sets_the_overlap():
    overlap = []
    for separation in (1.0, 0.8, 0.5, 0.2, 0.0):
        _, t = simulate.ehr(5, separation=separation)
        apart = ~np.eye(10, dtype=bool)
        overlap.append((cosines(t.V, t.V)[apart].mean(), cosines(t.F, t.F)[apart].mean()))
    assert (np.diff(overlap, axis=0) > 0).all()
    assert overlap[0][0] < 0.1
    assert overlap[-1] == pytest.approx((1, 1))


def test_ehr_chunks_are_drawn_independently():
    c, t = simulate.ehr(2 * _ehr.CHUNK + 1, mean_visits=6)
    chunks = [c[k * _ehr.CHUNK : (k + 1) * _ehr.CHUNK] for k in range(3)]
    n_codes = [np.diff(chunk.visits.indptr)[:1000] for chunk in chunks[:2]]
    assert not np.array_equal(*n_codes)
    assert [chunk.static.mean() for chunk in chunks[:2]] == pytest.approx([c.static.mean()] * 2, rel=0.05)
    assert t.W.any(axis=1).mean() == pytest.approx(0.97, abs=0.03)


LARGE = """
import json, resource, time
from phenotaste import simulate
simulate.ehr(10)
start = time.perf_counter()
c, t = simulate.ehr(1_000_000)
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    "visits": c.visits.shape[0], "nonzeros": int(c.visits.nnz), "index": c.visits.indices.itemsize,
    "value": c.visits.data.itemsize, "U": t.U is None,
}))
"""


@pytest.mark.slow
def test_ehr_a_million_patients_in_minutes_and_a_few_gigabytes():
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert measured["visits"] == pytest.approx(50e6, rel=0.01)
    assert measured["nonzeros"] == pytest.approx(225e6, rel=0.01)
    assert (measured["index"], measured["value"], measured["U"]) == (4, 4, True)
    assert measured["seconds"] < 240
    assert measured["GB"] < 6
