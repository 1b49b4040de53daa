"""The estimator: recovery, descent, projection, repeatability, degenerate cohorts, conventions of scikit-learn."""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.cohorts import cohort, cohorts, dense
from phenotaste import TASTE, Cohort, InputError, metrics, simulate, taste
from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.records import Model, Scored, Sums, Weights
from phenotaste.engines import starts
from phenotaste.model_file import PATIENTS
from phenotaste.phenotypes import definitions
from phenotaste.storage import tensors

PAPER = {"objective": "paper"}
COLUMNS = ["phenotype", "kind", "feature", "weight"]


@pytest.fixture(scope="module")
def hf():
    return simulate.heart_failure(random_state=0)


@pytest.fixture(scope="module")
def hf_model(hf):
    return TASTE(rank=5, random_state=0).fit(hf[0])


def test_noiseless_recovery():
    """Matched similarity of V, W and F, and CPI, at least 0.999 for at least four of five seeds."""
    good = 0
    for seed in range(5):
        c, truth = simulate.recovery(random_state=seed)
        m = TASTE(4, objective="paper", lam=0.1, mu=0.1, max_iter=300, random_state=seed).fit(c)
        pairs = [(truth.V, m.V_), (truth.W, m.W_), (truth.F, m.F_)]
        figures = [metrics.matched_similarity(*pair) for pair in pairs] + [m.cpi_]
        good += min(figures) >= 0.999
    assert good >= 4


def test_the_default_objective_recovers_noiseless_factors():
    """F only nearly: A = W Fᵀ holds for scores in the units of the data, not for relative ones."""
    c, truth = simulate.recovery(random_state=0)
    m = TASTE(4, smooth=0.0, random_state=0).fit(c)  # planted courses are random from visit to visit
    assert metrics.matched_similarity(truth.V, m.V_) >= 0.999
    assert metrics.matched_similarity(truth.W, m.W_ * m.scale_[:, None]) >= 0.999
    assert metrics.matched_similarity(truth.F, m.F_) >= 0.99


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
    objective=st.sampled_from(["relative", "paper"]),
    smooth=st.sampled_from([0.0, 0.3, 10.0]),
    balance=st.sampled_from([0.0, 0.5, 1.0]),
    init=st.sampled_from(["nmf", "random"]),
)
def test_every_cohort_fits_and_its_objective_never_rises(c, rank, objective, smooth, balance, init):
    # An absolute μ that outweighs ‖X‖² a million times leaves no digits for X.
    assume(objective == "relative" or c.visits.nnz == 0 or abs(c.visits).max() >= 1)
    settings = {"objective": objective, "smooth": smooth, "balance": balance, "init": init}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        m = TASTE(rank, max_iter=12, tol=0, n_init=1, random_state=0, **settings).fit(c)
    size = size_of_data(m, c)
    assert np.all(np.diff(m.loss_curve_) <= 1e-9 * size)
    assert len(m.loss_curve_) == m.n_iter_ == 12
    assert m.loss_curve_[-1] == pytest.approx(metrics.objective(m, c), rel=1e-8, abs=1e-12 * size)
    for factor in (m.U_, m.V_, m.W_, m.F_):
        assert factor is None or (np.all(np.isfinite(factor)) and np.all(factor >= 0))
    W = m.transform(c)
    assert W.shape == (len(c), rank)
    assert np.all(np.isfinite(W))
    assert np.all(W >= 0)


def size_of_data(m, c):
    """What all terms of the objective are compared with: that of a model that explains nothing, twice."""
    X2 = np.array([np.sum((X / s) ** 2) for (X, _), s in zip(dense(c), m.scale_, strict=True)])
    A2 = np.array([np.sum(a**2) for _, a in dense(c)])
    return float(m.influence_ @ (X2 + m.lam_eff_ * A2))


@pytest.mark.parametrize(
    "settings", [{}, PAPER, {"dtype": "float32"}, {"balance": 1.0, "smooth": 0.0, "init": "random"}]
)
def test_bits_depend_on_the_seed_but_not_on_n_jobs(settings):
    c = cohort(5, n_patients=150, visits=(0, 20), n_features=12)
    one, two = (TASTE(3, n_init=1, random_state=7, max_iter=20, n_jobs=n, **settings).fit(c) for n in (1, 2))
    for name in ("V_", "F_", "H_", "W_", "U_", "loss_curve_"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert np.array_equal(one.transform(c), two.transform(c))


def test_float32_and_float64_courses_agree():
    c = cohort(2, n_patients=100, visits=(3, 30), n_features=15)
    single, double = (TASTE(4, n_init=1, random_state=0, dtype=d).fit(c) for d in ("float32", "float64"))
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
    assert np.median(cosine) >= 0.999
    assert np.quantile(cosine, 0.05) >= 0.99
    for k in (0, len(c) // 2, len(c) - 1):
        assert np.array_equal(m.transform(c[k])[0], projected.W[k])


def test_projection_of_the_training_patients(hf, hf_model):
    check_projection(hf_model, hf[0])


@pytest.mark.parametrize("settings", [{}, PAPER])
@pytest.mark.parametrize("static", [True, False])
def test_projection_of_other_cohorts(settings, static):
    c, _ = simulate.ehr(300, n_features=60, n_static=8, mean_visits=20, rank=4, random_state=1)
    c = c if static else Cohort(c.visits, c.offsets)
    check_projection(TASTE(4, n_init=1, random_state=0, **settings).fit(c), c)


def test_transform_does_not_use_the_fitted_patients(hf, hf_model):
    m = clone(hf_model)
    vars(m).update({k: v for k, v in vars(hf_model).items() if k not in (*PATIENTS, "cpi_")})
    assert np.array_equal(m.transform(hf[0][:20]), hf_model.transform(hf[0][:20]))


@pytest.mark.parametrize("include_patients", [False, True])
def test_a_saved_model_scores_bitwise_equal(tmp_path, include_patients):
    c = cohort(4, n_patients=40, visits=(0, 15))
    c = Cohort(c.visits, c.offsets, c.static, feature_names=list("abcdefg"), static_names=list("wxyz"))
    m = TASTE(3, n_init=1, random_state=0).fit(c)
    m.save(tmp_path / "model", include_patients=include_patients)
    again = TASTE.load(tmp_path / "model")
    assert np.array_equal(again.transform(c), m.transform(c))
    assert again.lam_eff_ == m.lam_eff_
    assert np.array_equal(again.mean_scores_, m.mean_scores_)
    assert again.get_params() == m.get_params()
    pd.testing.assert_frame_equal(again.phenotypes(), m.phenotypes())
    if include_patients:
        assert np.array_equal(again.U_, m.U_)
        assert metrics.cpi(again) == m.cpi_
        assert metrics.objective(again, c) == m.loss_curve_[-1]
    else:
        for name in ("W_", "scale_"):
            with pytest.raises(AttributeError, match="without its patients"):
                getattr(again, name)
        with pytest.raises(InputError, match="without its patients"):
            metrics.cpi(again)


def test_a_model_file_holds_no_patient(tmp_path):
    c = cohort(4, n_patients=40, visits=(2, 15))
    ids = np.array([f"patient-number-{k:04d}" for k in range(40)])
    m = TASTE(3, n_init=1, random_state=0).fit(Cohort(c.visits, c.offsets, c.static, patient_ids=ids))
    m.save(tmp_path / "model")
    content = b"".join(path.read_bytes() for path in (tmp_path / "model").iterdir())
    assert b"patient-number" not in content
    assert m.W_[0].tobytes() not in content
    assert m.scale_[:3].tobytes() not in content
    m.save(tmp_path / "with", include_patients=True)
    content = b"".join(path.read_bytes() for path in (tmp_path / "with").iterdir())
    assert m.W_[0].tobytes() in content


def test_a_model_with_inconsistent_parts_is_refused(tmp_path):
    m = TASTE(3, n_init=1, random_state=0, max_iter=3).fit(cohort(4, n_patients=40))
    broken = {
        "V_": m.V_[:, :2],
        "H_": np.full((3, 3), np.nan),
        "F_": -1 - m.F_,
        "lam_eff_": -1.0,
        "W_": m.W_[1:],
        "offsets_": m.offsets_[::-1].copy(),
    }
    for name, value in broken.items():
        bad = clone(m)
        vars(bad).update(vars(m) | {name: value})
        bad.save(tmp_path / name, include_patients=True)
        with pytest.raises(InputError, match="not a complete TASTE model"):
            TASTE.load(tmp_path / name)


def test_a_model_of_the_first_objective_is_refused_with_its_reason(tmp_path):
    m = TASTE(3, n_init=1, random_state=0, max_iter=3).fit(cohort(4, n_patients=40))
    m.save(tmp_path / "model")
    files, meta = tensors.read(tmp_path / "model", "taste-model", mmap=False)
    meta["settings"]["weights"] = "relative"
    del meta["figures"]["cpi_present_"]
    tensors.write(
        tmp_path / "old",
        "taste-model",
        files,
        {name: meta[name] for name in ("method", "settings", "figures")},
    )
    with pytest.raises(InputError, match="saved by another version"):
        TASTE.load(tmp_path / "old")


def test_runtime_parameters_are_not_saved(tmp_path):
    rng = np.random.RandomState(0)
    m = TASTE(2, n_init=1, random_state=rng, callback=print, n_jobs=1, max_iter=1, verbose=0).fit(cohort(4))
    m.save(tmp_path / "model")
    again = TASTE.load(tmp_path / "model")
    assert (again.random_state, again.callback, again.n_jobs) == (None, None, None)


def test_columns_are_matched_by_name():
    c = cohort(6, n_patients=30, visits=(3, 12), n_features=5)
    names, static = list("abcde"), list("wxyz")
    c = Cohort(c.visits, c.offsets, c.static, feature_names=names, static_names=static)
    m = TASTE(2, n_init=1, random_state=0).fit(c)
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
    m = TASTE(4, smooth=0.0, random_state=0).fit(bare)
    assert m.F_ is None
    assert m.lam_eff_ == 0
    assert metrics.matched_similarity(truth.V, m.V_) >= 0.99


def test_the_fit_does_not_depend_on_the_scale_of_the_static_features():
    c = cohort(8, n_patients=50, visits=(3, 12))
    scaled = Cohort(c.visits, c.offsets, 64 * c.static)
    one, two = (TASTE(3, n_init=1, random_state=0, max_iter=30).fit(x) for x in (c, scaled))
    np.testing.assert_allclose(one.V_, two.V_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(64 * one.F_, two.F_, rtol=1e-6, atol=1e-6)


def test_the_fit_does_not_depend_on_the_scale_of_the_visits():
    """Every patient is divided by its own size."""
    c = cohort(8, n_patients=50, visits=(0, 12))
    one = TASTE(3, n_init=1, random_state=0, max_iter=30).fit(c)
    for scale in (2.0**-60, 2.0**60, 2.0**-600, 2.0**600):
        other = TASTE(3, n_init=1, random_state=0, max_iter=30).fit(
            Cohort(scale * c.visits, c.offsets, c.static)
        )
        for name in ("V_", "F_", "H_", "W_", "U_", "loss_curve_"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        with_history = ~one.empty_history_
        assert np.array_equal(scale * one.scale_[with_history], other.scale_[with_history])


def test_degenerate_cohorts():
    with pytest.warns(UserWarning, match="exceeds"):
        TASTE(6, n_init=1, random_state=0).fit(cohort(1, n_features=3))
    with pytest.warns(UserWarning, match="uniqueness"):
        TASTE(2, mu=0, n_init=1, random_state=0).fit(cohort(1))
    nobody = Cohort(np.zeros((3, 4)), [0, 2, 2, 3], np.eye(3))
    m = TASTE(2, n_init=1, random_state=0).fit(nobody)
    assert m.n_empty_ == 3
    assert np.all(m.U_ == 0)
    assert np.isnan(m.cpi_)
    one_static = TASTE(2, n_init=1, random_state=0).fit(Cohort(np.eye(4), [0, 4], np.zeros((1, 2))))
    assert one_static.lam_eff_ == 0
    assert TASTE(1, n_init=1, random_state=0).fit(cohort(1)).n_short_ == 0


def test_patients_without_history_are_scored_by_their_static_features():
    c = cohort(3, n_patients=40, visits=(4, 10))
    empty = Cohort(np.zeros((0, 7)), [0, 0], c.static[:1])
    m = TASTE(3, n_init=1, random_state=0).fit(c)
    w = m.transform(empty)[0]
    best = np.linalg.norm(c.static[0] - m.F_ @ w)
    assert best <= np.linalg.norm(c.static[0])
    assert w.any()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"rank": 0}, "rank"),
        ({"rank": 2.5}, "rank"),
        ({"rank": True}, "rank"),
        ({"n_init": 0}, "n_init"),
        ({"mu": np.inf}, "mu"),
        ({"objective": "none"}, "objective"),
        ({"smooth": -1}, "smooth"),
        ({"balance": -1}, "balance"),
        ({"dtype": "float16"}, "dtype"),
        ({"lam": -1}, "lam"),
        ({"mu": np.nan}, "mu"),
        ({"tol": "small"}, "tol"),
        ({"init": "uniform"}, "init"),
        ({"device": "cuda"}, "device"),
        ({"engine": "dask"}, "engine"),
        ({"max_iter": 0}, "max_iter"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, word):
    with pytest.raises(InputError, match=word):
        TASTE(**settings).fit(cohort(0))


@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_values_out_of_the_computable_range_are_refused(scale):
    with pytest.raises(InputError, match="divide"):
        TASTE(2, objective="paper").fit(cohort(0, scale=scale))
    with pytest.raises(InputError, match="static features' values"):
        TASTE(2).fit(with_static(cohort(0), scale))
    with pytest.raises(InputError, match="no temporal features"):
        TASTE(2).fit(Cohort(np.zeros((0, 0)), [0, 0]))


@pytest.mark.parametrize("objective", ["relative", "paper"])
@pytest.mark.parametrize("scale", [1e-320, 1e-300, 1e307])
def test_values_near_the_limits_of_floating_point_are_refused(scale, objective):
    c = cohort(0)
    extreme = Cohort(c.visits.astype(np.float64) * scale, c.offsets, c.static)
    with pytest.raises(InputError, match="out of range"):
        TASTE(2, objective=objective, n_init=1, random_state=0).fit(extreme)


def test_new_patients_with_values_out_of_range_are_refused():
    c = cohort(0)
    m = TASTE(2, n_init=1, random_state=0, max_iter=3).fit(c)
    with pytest.raises(InputError, match="out of range"):
        m.transform(with_static(c, 1e300))
    with pytest.raises(InputError, match="out of range"):
        m.transform(Cohort(c.visits.astype(np.float64) * 1e-300, c.offsets, c.static))


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_is_not_finite_is_refused():
    """Its definitions would be saved and used like any others."""
    with pytest.raises(InputError, match="not finite"):
        TASTE(2, lam=1e308, objective="paper", random_state=0).fit(with_static(cohort(0), 1e10))


def with_static(c, scale):
    return Cohort(c.visits, c.offsets, np.array(c.static) * scale)


def test_the_papers_start_without_uniqueness_term_fits():
    c = cohort(2, n_static=0, visits=(3, 9))
    with pytest.warns(UserWarning, match="uniqueness"):
        m = TASTE(3, mu=0, objective="paper", random_state=0).fit(c)
    assert m.loss_curve_[-1] < 0.5 * 0.5 * np.sum(c.visits.data**2)
    assert m.mu_k_.dtype == np.float64  # of an integer μ too: the kernels are compiled for each type


@pytest.mark.parametrize("objective", ["relative", "paper"])
def test_a_vanishing_phenotype_does_not_diverge(objective):
    """One that no visit needs: its scores shrink, and its static definition must not grow without end."""
    c = cohort(5, n_patients=2, n_features=5, visits=(0, 9), density=0.05, scale=1000.0, negative=True)
    m = TASTE(3, max_iter=12, tol=0, n_init=1, random_state=0, objective=objective, init="random").fit(c)
    assert m.F_.max() < 1e20
    assert np.all(np.diff(m.loss_curve_) <= 1e-9 * size_of_data(m, c))


def test_only_cohorts_are_accepted():
    with pytest.raises(InputError, match="Cohort"):
        TASTE(2).fit(np.eye(3))


def test_outcomes_and_callback():
    c = cohort(5, n_patients=60, visits=(3, 12))
    assert TASTE(3, tol=1e-3, n_init=1, random_state=0).fit(c).outcome_ == "converged"
    short = TASTE(3, max_iter=2, n_init=1, random_state=0).fit(c)
    assert (short.outcome_, short.converged_, short.n_iter_) == ("max_iter", False, 2)
    seen = []
    stopped = TASTE(3, n_init=1, random_state=0, callback=lambda p: seen.append(p) or p.iteration == 4).fit(c)
    assert stopped.outcome_ == "stopped"
    assert [p.iteration for p in seen] == [1, 2, 3, 4]
    assert [p.loss for p in seen[:3]] == stopped.loss_curve_[:3].tolist()


def test_the_callback_receives_the_start_and_can_stop_all_starts():
    c = cohort(5, n_patients=20, visits=(3, 12))
    seen = []
    settings = {"n_init": 3, "max_iter": 2, "tol": 0, "random_state": 0}
    TASTE(2, callback=seen.append, **settings).fit(c)
    assert [p[:4] for p in seen] == [(s, 3, i, 2) for s in range(3) for i in (1, 2)]
    seen.clear()
    m = TASTE(2, callback=lambda p: seen.append(p) or (p.start, p.iteration) == (1, 1), **settings).fit(c)
    assert [(p.start, p.iteration) for p in seen] == [(0, 1), (0, 2), (1, 1)]
    assert m.loss_curve_[-1] == pytest.approx(metrics.objective(m, c), rel=1e-8)


class GivenLosses:
    """A session whose objectives are given in advance; it records its calls."""

    weights = Weights.absolute(0.0, np.zeros(1))

    def __init__(self, *losses):
        self.losses, self.calls = list(losses), []

    def step(self, model, beta):
        self.calls.append(beta)
        return Sums.zeros(1, 0, 1)._replace(scalars=np.array([2 * self.losses.pop(0), 0.0, 0.0, 0.0, 0.0]))

    def undo(self):
        self.calls.append("undo")

    def score(self, model):
        self.model = model
        return Scored.allocate(np.zeros((1, 1)), np.zeros((1, 1)))._replace(
            loss=np.array([[1.0, 0.0, 0.0, 0.0]])
        )


def run(engine, max_iter, normalize=True, tol=0.0):
    model = Model(np.eye(1), np.ones((1, 1)), np.zeros((0, 1)))
    return loop.fit(engine, model, normalize=normalize, exact=False, max_iter=max_iter, tol=tol)


def test_a_step_extrapolated_too_far_is_undone_and_the_next_is_plain():
    engine = GivenLosses(10.0, 8.0, 9.0, 7.0, 6.0)
    found = run(engine, 5)
    assert engine.calls[:4] == [0.0, 0.5, pytest.approx(0.525), "undo"]
    assert engine.calls[4] == 0.0
    assert 0 < engine.calls[5] < 0.5
    assert found.losses == [10.0, 8.0, 8.0, 7.0, 1.0]  # the last is that of the closing pass
    assert found.outcome == "max_iter"


def test_without_unit_columns_every_step_is_plain():
    engine = GivenLosses(10.0, 8.0, 7.0)
    run(engine, 3, normalize=False)
    assert engine.calls == [0.0, 0.0, 0.0]


def test_an_undone_step_does_not_count_as_converged():
    engine = GivenLosses(10.0, 8.0, 9.0, 4.0, 4.0, 4.0)
    found = run(engine, 6, tol=1e-6)
    assert len(found.losses) == 5
    assert found.outcome == "converged"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_nan_objective_ends_the_fit_as_not_finite(bad):
    found = run(GivenLosses(bad, 1.0, 1.0), 3)
    assert found.outcome == "not_finite"
    assert len(found.losses) == 1
    assert all(outcome.advice for outcome in loop.Outcome)


def test_a_start_begins_at_a_short_fit_or_as_it_is_told(monkeypatch):
    seen = []

    def noted(kind, *rest):
        model = init_model(kind, *rest)
        seen.append((kind, model.V.tobytes()))
        return model

    monkeypatch.setattr(taste, "init_model", noted)
    monkeypatch.setattr(starts, "init_model", noted)
    c = cohort(5, n_patients=20, visits=(3, 12))
    TASTE(3, n_init=2, max_iter=1, random_state=0).fit(c)
    assert {kind for kind, _ in seen} <= {"nmf_visits", "random"}
    assert len({V for _, V in seen}) == 2
    seen.clear()
    TASTE(3, n_init=2, init="random", max_iter=1, random_state=0).fit(c)
    TASTE(3, objective="paper", max_iter=1, random_state=0).fit(c)
    assert [kind for kind, _ in seen] == ["random", "random", "uniform"]


def test_weights_in_absolute_terms():
    c = cohort(3, n_patients=20)
    X2 = np.array([np.sum(X**2) for X, _ in dense(c)])
    m = TASTE(3, lam=0.3, mu=2.0, max_iter=1, n_init=1, random_state=0).fit(c)
    several = (np.diff(c.offsets) > 1) & (X2 > 0)
    np.testing.assert_allclose(m.mu_k_, np.where(several, 2.0 / 3, 0.0))
    np.testing.assert_allclose(m.scale_, np.where(X2 > 0, np.sqrt(X2), 1.0))
    np.testing.assert_allclose(m.influence_, [np.sqrt(np.count_nonzero(X)) for X, _ in dense(c)])
    A2 = np.sum(c.static**2, axis=1)
    assert m.lam_eff_ == pytest.approx(0.3 * m.influence_.sum() / (m.influence_ @ A2))
    np.testing.assert_array_equal(m.project(c[::-1]).weights.mu, m.mu_k_[::-1])
    np.testing.assert_array_equal(m.project(c[::-1]).scale, m.scale_[::-1])
    m = TASTE(3, lam=0.3, mu=2.0, objective="paper", max_iter=1, random_state=0).fit(c)
    np.testing.assert_array_equal(m.mu_k_, np.where(X2 > 0, 2.0, 0.0))
    assert m.lam_eff_ == 0.3
    assert np.all(m.scale_ == 1)


def test_patient_counts_match_the_cohort():
    c = cohort(3, n_patients=40, visits=(0, 6), density=0.2)
    m = TASTE(4, max_iter=1, n_init=1, random_state=0).fit(c)
    empty = np.array([not X.any() for X, _ in dense(c)])
    assert np.array_equal(m.empty_history_, empty)
    assert m.n_empty_ == empty.sum() > 0
    assert m.n_short_ == np.sum((np.diff(c.offsets) < 4) & ~empty) > 0
    assert (m.n_patients_, m.n_visits_) == (40, c.offsets[-1])


def test_more_starts_never_give_a_higher_objective():
    c = cohort(5, n_patients=60, visits=(3, 12))
    one, many = (TASTE(4, n_init=n, random_state=0).fit(c) for n in (1, 4))
    assert many.loss_curve_[-1] <= one.loss_curve_[-1]
    assert many.loss_curve_[-1] == pytest.approx(metrics.objective(many, c), rel=1e-8)


def test_scikit_learn_conventions():
    c, truth = simulate.ehr(150, n_features=40, n_static=6, mean_visits=10, rank=3, random_state=0)
    c = Cohort(c.visits, c.offsets, c.static, patient_ids=[f"p{k}" for k in range(150)])
    y = truth.labels
    pipe = make_pipeline(
        TASTE(2, max_iter=20, n_init=1, random_state=0), StandardScaler(), LogisticRegression()
    )
    assert cross_val_score(pipe, c, y, cv=3).shape == (3,)
    grid = GridSearchCV(pipe, {"taste__rank": [2, 3]}, cv=2).fit(c, y)
    assert grid.predict_proba(c).shape == (150, 2)
    frame = (
        TASTE(2, max_iter=20, n_init=1, random_state=0, n_jobs=-1)
        .set_output(transform="pandas")
        .fit_transform(c)
    )
    assert list(frame.columns) == ["phenotype_1", "phenotype_2"]
    assert np.array_equal(frame.index, c.patient_ids)
    m = TASTE(2, max_iter=20, n_init=1, random_state=0).set_output(transform="pandas").fit(c)
    assert np.array_equal(frame, m.W_)
    assert np.array_equal(m.transform(c[5:9]).index, c.patient_ids[5:9])
    assert clone(m).get_params() == m.get_params()


def test_phenotype_table_exactly():
    V, F = np.array([[4.0, 0.0], [1.0, 2.0], [0.2, 1.0]]), np.array([[0.0, 1.0], [0.0, 0.5]])
    table = definitions(V, F, np.array(["a", "b", "c"]), None, top=2, min_weight=0.3)
    assert table[COLUMNS].values.tolist() == [
        [1, "temporal", "a", 1.0],
        [2, "temporal", "b", 0.5],
        [2, "static", "0", 1.0],
        [2, "static", "1", 0.5],
    ]
    table = definitions(V, F, np.array(["a", "b", "c"]), np.array(["s", "t"]), top=1, scale="column")
    assert table[COLUMNS].values.tolist() == [
        [1, "temporal", "a", 1.0],
        [2, "temporal", "b", 1.0],
        [2, "static", "s", 1.0],
    ]
    assert len(definitions(V, None, None, None, top=None, min_weight=0)) == 5  # no weight, no row


def test_a_fitted_model_keeps_its_rank_when_the_setting_changes():
    c = cohort(6, n_patients=30, visits=(3, 12))
    m = TASTE(2, n_init=1, random_state=0).fit(c)
    before = m.transform(c)
    assert np.array_equal(m.set_params(rank=5).transform(c), before)


def test_phenotype_table():
    c = cohort(6, n_patients=30, visits=(3, 12), n_features=5)
    m = TASTE(2, n_init=1, random_state=0).fit(
        Cohort(c.visits, c.offsets, c.static, feature_names=list("abcde"))
    )
    table = m.phenotypes(top=3)
    assert list(table.columns) == [*COLUMNS, "rate", "cohort_rate", "lift"]
    assert set(table.kind) == {"temporal", "static"}
    assert table.weight.max() == 1
    assert table.weight.min() >= 0.1
    assert table.groupby(["phenotype", "kind"]).size().max() <= 3
    by_column = m.phenotypes(top=None, min_weight=0, scale="column")
    assert np.allclose(by_column.groupby(["phenotype", "kind"]).weight.max(), 1)
    with pytest.raises(InputError, match="scale"):
        m.phenotypes(scale="row")


@pytest.mark.parametrize("objective", ["relative", "paper"])
@pytest.mark.parametrize("seed", [13, 54, 218])
def test_a_column_of_rounding_errors_is_not_listed(seed, objective):
    """With a patient who has static features alone, such a column, scaled up, would take F or W to 1e20 and beyond."""
    c = cohort(
        seed, n_patients=6, n_features=3, n_static=1, visits=(0, 9), density=0.9, scale=1000, negative=True
    )
    m = TASTE(6, max_iter=12, tol=0, n_init=1, random_state=0, objective=objective).fit(c)
    assert np.all(np.diff(m.loss_curve_) <= 1e-9 * size_of_data(m, c))
    assert m.loss_curve_[-1] == pytest.approx(metrics.objective(m, c), rel=1e-8)
    assert max(m.F_.max(), m.W_.max()) < 1e12
