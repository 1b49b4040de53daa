"""The estimator: recovery, descent, projection, repeatability, degenerate cohorts, and scikit-learn's manners."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from made_up import cohort, cohorts
from phenotaste import TASTE, Cohort, InputError, metrics, simulate

PAPER = {"weights": "absolute", "normalize": False, "solver": "bpp", "init": "uniform"}


@pytest.fixture(scope="module")
def hf():
    return simulate.heart_failure(random_state=0)


@pytest.fixture(scope="module")
def hf_model(hf):
    return TASTE(rank=5, n_init=5, random_state=0).fit(hf[0])


def test_noiseless_recovery():
    """Matched similarity of V, W and F, and CPI, at least 0.999 for at least four of five seeds."""
    good = 0
    for seed in range(5):
        c, truth = simulate.recovery(random_state=seed)
        m = TASTE(rank=4, random_state=seed).fit(c)
        pairs = [(truth.V, m.V_), (truth.W, m.W_), (truth.F, m.F_)]
        figures = [metrics.matched_similarity(*pair) for pair in pairs] + [m.cpi_]
        good += min(figures) >= 0.999
    assert good >= 4


def test_heart_failure_phenotypes_are_found(hf, hf_model):
    for planted, found in ((hf[1].V, hf_model.V_), (hf[1].F, hf_model.F_)):
        C = metrics.cosines(planted, found)
        rows, columns = linear_sum_assignment(-C)
        assert C[rows, columns].mean() >= 0.9
        for r, c in zip(rows, columns, strict=True):
            assert C[r, c] - np.delete(C[r], c).max() >= 0.05


@given(
    c=cohorts,
    rank=st.integers(1, 6),
    weights=st.sampled_from(["relative", "absolute"]),
    normalize=st.booleans(),
    solver=st.sampled_from(["cd", "bpp"]),
    init=st.sampled_from(["nmf", "random", "uniform"]),
)
def test_every_cohort_fits_and_its_objective_never_rises(c, rank, weights, normalize, solver, init):
    settings = {"weights": weights, "normalize": normalize, "solver": solver, "init": init}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = TASTE(rank, max_iter=12, tol=0, random_state=0, **settings).fit(c)
    size = np.sum(c.visits.data**2) + m.lam_eff_ * (0 if c.static is None else np.sum(c.static**2))
    # A μ that outweighs the data by far puts the rounding of the uniqueness term above that of the data.
    size += 1e-6 * m.mu_k_.sum()
    assert np.all(np.diff(m.loss_curve_) <= 1e-9 * size)
    assert len(m.loss_curve_) == m.n_iter_ == 12
    assert m.loss_curve_[-1] == pytest.approx(metrics.objective(m, c), rel=1e-8, abs=1e-12 * size)
    for factor in (m.U_, m.V_, m.W_, m.F_):
        assert factor is None or (np.all(np.isfinite(factor)) and np.all(factor >= 0))
    W = m.transform(c)
    assert W.shape == (len(c), rank)
    assert np.all(np.isfinite(W))
    assert np.all(W >= 0)


@pytest.mark.parametrize("settings", [{}, PAPER, {"dtype": "float32"}, {"init": "uniform", "n_init": 2}])
def test_same_seed_same_bits_whatever_the_threads(settings):
    c = cohort(5, n_patients=150, visits=(0, 20), n_features=12)
    one, two = (TASTE(3, random_state=7, max_iter=20, n_jobs=n, **settings).fit(c) for n in (1, 2))
    for name in ("V_", "F_", "H_", "W_", "U_", "loss_curve_"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert np.array_equal(one.transform(c), two.transform(c))


def test_float32_courses_end_where_float64_do():
    c = cohort(2, n_patients=100, visits=(3, 30), n_features=15)
    single, double = (TASTE(4, random_state=0, dtype=d).fit(c) for d in ("float32", "float64"))
    assert single.U_.dtype == np.float32
    assert single.loss_curve_[-1] == pytest.approx(double.loss_curve_[-1], rel=1e-3)
    assert metrics.matched_similarity(single.V_, double.V_) > 0.999


def check_projection(m, c):
    """The bars for scoring patients with fixed definitions."""
    projected = m.project(c)
    assert projected.loss <= 1.001 * m.loss_curve_[-1]
    order = np.random.default_rng(0).permutation(len(c))
    shuffled = c[order]
    stranger = Cohort(
        shuffled.visits,
        shuffled.offsets,
        shuffled.static,
        patient_ids=np.arange(len(c)) + 10**6,
        feature_names=c.feature_names,
        static_names=c.static_names,
    )
    assert np.array_equal(m.transform(stranger), projected.W[order])
    sizes = np.linalg.norm(projected.W, axis=1) * np.linalg.norm(m.W_, axis=1)
    cosine = np.sum(projected.W * m.W_, axis=1)[sizes > 0] / sizes[sizes > 0]
    assert np.median(cosine) >= 0.99
    assert np.quantile(cosine, 0.05) >= 0.9
    for k in (0, len(c) // 2, len(c) - 1):
        assert np.array_equal(m.transform(c[k])[0], projected.W[k])


def test_projection_of_the_training_patients(hf, hf_model):
    check_projection(hf_model, hf[0])


@pytest.mark.parametrize("solver", ["cd", "bpp"])
@pytest.mark.parametrize("static", [True, False])
def test_projection_of_other_cohorts(solver, static):
    c, _ = simulate.ehr(300, n_features=60, n_static=8, mean_visits=20, rank=4, random_state=1)
    c = c if static else Cohort(c.visits, c.offsets)
    check_projection(TASTE(4, random_state=0, solver=solver).fit(c), c)


def test_transform_never_consults_the_fitted_patients(hf, hf_model):
    m = clone(hf_model)
    vars(m).update(
        {k: v for k, v in vars(hf_model).items() if k not in ("W_", "U_", "mu_k_", "patient_ids_")}
    )
    assert np.array_equal(m.transform(hf[0][:20]), hf_model.transform(hf[0][:20]))


@pytest.mark.parametrize("include_patients", [False, True])
def test_saved_model_scores_to_the_bit(tmp_path, include_patients):
    c = cohort(4, n_patients=40, visits=(0, 15))
    c = Cohort(c.visits, c.offsets, c.static, feature_names=list("abcdefg"), static_names=list("wxyz"))
    m = TASTE(3, random_state=0).fit(c)
    m.save(tmp_path / "model", include_patients=include_patients)
    again = TASTE.load(tmp_path / "model")
    assert np.array_equal(again.transform(c), m.transform(c))
    assert again.lam_eff_ == m.lam_eff_
    assert again.get_params() == m.get_params()
    pd.testing.assert_frame_equal(again.phenotypes(), m.phenotypes())
    if include_patients:
        assert np.array_equal(again.U_, m.U_)
        assert metrics.cpi(again) == m.cpi_
        assert metrics.objective(again, c) == m.loss_curve_[-1]
    else:
        with pytest.raises(AttributeError, match="without its patients"):
            _ = again.W_
        with pytest.raises(InputError, match="without its patients"):
            metrics.cpi(again)


def test_a_model_file_holds_no_patient(tmp_path):
    c = cohort(4, n_patients=40, visits=(2, 15))
    ids = np.array([f"patient-number-{k:04d}" for k in range(40)])
    m = TASTE(3, random_state=0).fit(Cohort(c.visits, c.offsets, c.static, patient_ids=ids))
    m.save(tmp_path / "model")
    content = b"".join(path.read_bytes() for path in (tmp_path / "model").iterdir())
    assert b"patient-number" not in content
    assert m.W_[0].tobytes() not in content
    m.save(tmp_path / "with", include_patients=True)
    content = b"".join(path.read_bytes() for path in (tmp_path / "with").iterdir())
    assert m.W_[0].tobytes() in content


def test_columns_are_matched_by_name():
    c = cohort(6, n_patients=30, visits=(3, 12), n_features=5)
    names, static = list("abcde"), list("wxyz")
    c = Cohort(c.visits, c.offsets, c.static, feature_names=names, static_names=static)
    m = TASTE(2, random_state=0).fit(c)
    extra = np.hstack([np.ones((c.visits.shape[0], 1)), c.visits.toarray()[:, ::-1][:, 1:]])
    other = Cohort(
        extra,
        c.offsets,
        c.static[:, ::-1],
        feature_names=["new", *names[::-1][1:]],
        static_names=static[::-1],
    )
    same = c.visits.toarray()
    same[:, 4] = 0
    same = Cohort(same, c.offsets, c.static, feature_names=names, static_names=static)
    projected = m.project(other)
    np.testing.assert_allclose(projected.W, m.transform(same), rtol=1e-9, atol=1e-12)
    assert (projected.unknown_features, projected.absent_features) == (1, 1)
    with pytest.raises(InputError, match="without names"):
        m.transform(Cohort(extra[:, :3], c.offsets, c.static))
    with pytest.raises(InputError, match="static"):
        m.transform(Cohort(c.visits, c.offsets, feature_names=names))


def test_without_static_features_it_is_nonnegative_parafac2():
    c, truth = simulate.recovery(random_state=1)
    bare = Cohort(c.visits, c.offsets)
    m = TASTE(4, random_state=0, max_iter=500).fit(bare)
    assert m.F_ is None
    assert m.lam_eff_ == 0
    assert metrics.matched_similarity(truth.V, m.V_) >= 0.99


def test_the_fit_is_blind_to_the_scale_of_the_static_features():
    c = cohort(8, n_patients=50, visits=(3, 12))
    scaled = Cohort(c.visits, c.offsets, 64 * c.static)
    one, two = (TASTE(3, random_state=0, max_iter=30).fit(x) for x in (c, scaled))
    np.testing.assert_allclose(one.V_, two.V_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(64 * one.F_, two.F_, rtol=1e-6, atol=1e-6)


def test_degenerate_cohorts():
    with pytest.warns(UserWarning, match="exceeds"):
        TASTE(6, random_state=0).fit(cohort(1, n_features=3))
    with pytest.warns(UserWarning, match="uniqueness"):
        TASTE(2, mu=0, random_state=0).fit(cohort(1))
    nobody = Cohort(np.zeros((3, 4)), [0, 2, 2, 3], np.eye(3))
    m = TASTE(2, random_state=0).fit(nobody)
    assert m.n_empty_ == 3
    assert np.all(m.U_ == 0)
    assert np.isnan(m.cpi_)
    one_static = TASTE(2, random_state=0).fit(Cohort(np.eye(4), [0, 4], np.zeros((1, 2))))
    assert one_static.lam_eff_ == 0
    assert TASTE(1, random_state=0).fit(cohort(1)).n_short_ == 0


def test_patients_without_history_are_scored_by_their_static_features():
    c = cohort(3, n_patients=40, visits=(4, 10))
    empty = Cohort(np.zeros((0, 7)), [0, 0], c.static[:1])
    m = TASTE(3, random_state=0).fit(c)
    w = m.transform(empty)[0]
    best = np.linalg.norm(c.static[0] - m.F_ @ w)
    assert best <= np.linalg.norm(c.static[0])
    assert w.any()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 2.5}, "rank"),
        ({"lam": -1}, "lam"),
        ({"mu": np.nan}, "mu"),
        ({"tol": "small"}, "tol"),
        ({"solver": "svd"}, "solver"),
        ({"init": "zeros"}, "init"),
        ({"device": "cuda"}, "device"),
        ({"engine": "dask"}, "engine"),
        ({"max_iter": 0}, "max_iter"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, word):
    with pytest.raises(InputError, match=word):
        TASTE(**settings).fit(cohort(0))


def test_only_cohorts_are_taken():
    with pytest.raises(InputError, match="Cohort"):
        TASTE(2).fit(np.eye(3))


def test_outcomes_and_callback():
    c = cohort(5, n_patients=60, visits=(3, 12))
    assert TASTE(3, tol=1e-3, random_state=0).fit(c).outcome_ == "converged"
    short = TASTE(3, max_iter=2, random_state=0).fit(c)
    assert (short.outcome_, short.converged_, short.n_iter_) == ("max_iter", False, 2)
    seen = []
    stopped = TASTE(3, random_state=0, callback=lambda p: seen.append(p) or p.iteration == 4).fit(c)
    assert stopped.outcome_ == "stopped"
    assert [p.iteration for p in seen] == [1, 2, 3, 4]


def test_more_starts_are_never_worse():
    c = cohort(5, n_patients=60, visits=(3, 12))
    one, many = (TASTE(4, n_init=n, random_state=0).fit(c) for n in (1, 4))
    assert many.loss_curve_[-1] <= one.loss_curve_[-1]
    assert many.loss_curve_[-1] == pytest.approx(metrics.objective(many, c), rel=1e-8)


def test_scikit_learns_manners():
    c, truth = simulate.ehr(150, n_features=40, n_static=6, mean_visits=10, rank=3, random_state=0)
    y = truth.labels
    pipe = make_pipeline(TASTE(2, max_iter=20, random_state=0), StandardScaler(), LogisticRegression())
    assert cross_val_score(pipe, c, y, cv=3).shape == (3,)
    grid = GridSearchCV(pipe, {"taste__rank": [2, 3]}, cv=2).fit(c, y)
    assert grid.predict_proba(c).shape == (150, 2)
    frame = TASTE(2, max_iter=20, random_state=0).set_output(transform="pandas").fit_transform(c)
    assert list(frame.columns) == ["phenotype_1", "phenotype_2"]
    assert np.array_equal(frame.index, c.patient_ids)
    m = TASTE(2, max_iter=20, random_state=0).set_output(transform="pandas").fit(c)
    assert np.array_equal(m.transform(c[5:9]).index, c.patient_ids[5:9])
    assert clone(m).get_params() == m.get_params()


def test_phenotype_table():
    c = cohort(6, n_patients=30, visits=(3, 12), n_features=5)
    m = TASTE(2, random_state=0).fit(Cohort(c.visits, c.offsets, c.static, feature_names=list("abcde")))
    table = m.phenotypes(top=3)
    assert list(table.columns) == ["phenotype", "kind", "feature", "weight"]
    assert set(table.kind) == {"temporal", "static"}
    assert table.weight.max() == 1
    assert table.weight.min() >= 0.1
    assert table.groupby(["phenotype", "kind"]).size().max() <= 3
    by_column = m.phenotypes(top=None, min_weight=0, scale="column")
    assert np.allclose(by_column.groupby(["phenotype", "kind"]).weight.max(), 1)
    with pytest.raises(InputError, match="scale"):
        m.phenotypes(scale="row")
