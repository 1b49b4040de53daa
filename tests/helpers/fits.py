"""A fit of a small cohort in progress, and the comparison of finished ones."""

import numpy as np

from phenotaste.cohort.align import align, columns_of
from phenotaste.core.init import init_model
from phenotaste.core.model_step import model_step
from phenotaste.core.records import Weights
from phenotaste.engines.threads import ThreadEngine

FITTED = ("H_", "V_", "F_", "W_", "U_", "loss_curve_", "mu_k_", "feature_patients_", "score_totals_")
FIGURES = ("lam_eff_", "n_iter_", "outcome_", "rmse_", "cpi_")


def start_fit(
    c,
    rank,
    *,
    exact=False,
    relative=True,
    kind="random",
    normalize=True,
    seed=0,
    mu=1.0,
    n_jobs=1,
    dtype="float64",
):
    """A session with its initial U, and the initial model."""
    aligned = align(c, columns_of(c))
    lam, weight = 0.1, mu * (aligned.norms > 0)
    size = np.sum(aligned.shard.static**2)
    if relative:
        lam, weight = (0.1 * aligned.norms.sum() / size if size > 0 else 0.0), mu * aligned.norms / rank
    weights = Weights(lam, weight)
    engine = ThreadEngine().open(
        aligned.shard, weights, rank, c.shape[1], exact=exact, n_jobs=n_jobs, dtype=dtype
    )
    rng = np.random.default_rng(seed)
    model = init_model(kind, aligned.shard, c.shape[1], rank, normalize, rng)
    if kind == "uniform":
        engine.init_U_uniform(rng)
    else:
        engine.init_U(model)
    return engine, model


def after_iterations(c, rank, exact, dtype="float64"):
    """The same after three iterations, when F and H have left their starting values."""
    engine, model = start_fit(c, rank, exact=exact, dtype=dtype)
    for _ in range(3):
        model, _ = model_step(engine.step(model), model, engine.weights.lam, normalize=True, exact=exact)
    return engine, model


def assert_same(model, expected):
    """Assert that two fitted models are bitwise equal."""
    for name in FITTED:
        one, other = getattr(model, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        assert one is None or (one.dtype == other.dtype and np.array_equal(one, other)), name
    for name in FIGURES:
        one, other = getattr(model, name), getattr(expected, name)
        assert one == other or (one != one and other != other), name
