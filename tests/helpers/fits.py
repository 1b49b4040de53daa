"""A fit of a small cohort in progress, and the comparison of finished ones."""

import numpy as np

from phenotaste.cohort.align import align, columns_of
from phenotaste.core.init import init_model
from phenotaste.core.model_step import model_step
from phenotaste.core.records import Weights
from phenotaste.engines.threads import ThreadEngine
from phenotaste.factorization import influence_of, relative_static_weight, relative_weights

FITTED = (
    "H_",
    "V_",
    "F_",
    "W_",
    "U_",
    "loss_curve_",
    "mu_k_",
    "scale_",
    "feature_patients_",
    "score_totals_",
    "mean_scores_",
)
FIGURES = ("lam_eff_", "n_iter_", "outcome_", "rmse_", "cpi_", "cpi_present_")


def start_fit(
    c,
    rank,
    *,
    weights="unit",
    exact=False,
    kind="random",
    normalize=True,
    seed=0,
    mu=1.0,
    smooth=0.3,
    balance=0.0,
    n_jobs=1,
    dtype="float64",
):
    """A session with its initial U, and the initial model.

    `weights` are those of the default objective ("unit"), of Cohen+ ("relative") or of the paper ("absolute").
    """
    aligned = align(c, columns_of(c))
    engine = ThreadEngine().open(
        aligned.shard,
        weights_of(weights, aligned, rank, mu, smooth, balance),
        rank,
        c.shape[1],
        exact=exact,
        n_jobs=n_jobs,
        dtype=dtype,
    )
    rng = np.random.default_rng(seed)
    model = init_model(kind, aligned.shard, c.shape[1], rank, normalize, rng, engine.weights.scale)
    if kind == "uniform" and weights != "unit":
        engine.init_U_uniform(rng)
    else:
        engine.init_U(model)
    return engine, model


def weights_of(kind, aligned, rank, mu=1.0, smooth=0.3, balance=0.0):
    static = aligned.shard.static
    has_history = (aligned.sizes > 0).astype(float)
    if kind == "unit":
        influence = influence_of(balance, aligned)
        lam = relative_static_weight(0.1, static, influence)
        return relative_weights(aligned, rank, lam, mu, smooth, influence)
    if kind == "absolute":
        return Weights.absolute(0.1, mu * has_history, has_history)
    size = np.sum(static**2)
    lam = 0.1 * aligned.norms.sum() / size if size > 0 else 0.0
    return Weights.absolute(lam, mu * aligned.norms / rank, has_history)


def after_iterations(c, rank, exact=False, **settings):
    """The same after three iterations, when F and H have left their starting values."""
    engine, model = start_fit(c, rank, exact=exact, **settings)
    for _ in range(3):
        model, _ = model_step(engine.step(model), model, engine.weights.lam, normalize=True, exact=exact)
    return engine, model


def assert_same(model, expected):
    """Assert that two fitted models are bitwise equal."""
    for name in FITTED:
        one, other = getattr(model, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        assert one is None or (one.dtype == other.dtype and np.array_equal(one, other)), difference(
            name, one, other
        )
    for name in FIGURES:
        one, other = getattr(model, name), getattr(expected, name)
        assert one == other or (one != one and other != other), name


def difference(name, one, other):
    """How two arrays differ, for the message of a test."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{name}: {one.dtype} {one.shape} instead of {other.dtype} {other.shape}"
    differing = np.argwhere(one != other)
    largest = np.max(np.abs(one - other), initial=0.0)
    return f"{name}: {len(differing)} of {one.size} entries differ, by up to {largest:.1e}, from {differing[0]} on"


def assert_same_projection(found, expected):
    """Assert that two projections are bitwise equal."""
    for name in found._fields:
        one, other = getattr(found, name), getattr(expected, name)
        pairs = zip(one, other, strict=True) if name == "weights" else [(one, other)]
        assert all(np.array_equal(*pair) for pair in pairs), name
