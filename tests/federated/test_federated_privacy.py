"""Differential privacy: the accounting is right, and no patient changes the sums by more than the clip."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.hospitals import NAMES, hospitals, round_of_steps
from phenotaste import TASTE
from phenotaste.cohort.align import align, columns_of
from phenotaste.core.records import N_SCALARS, Model, Sums
from phenotaste.engines.threads import ThreadEngine
from phenotaste.errors import InputError
from phenotaste.factorization import influence_of, relative_weights
from phenotaste.federated import Settings, combine, init, messages, privacy, status, step

COHORTS = hospitals(plain=True)
FEATURES = COHORTS[0].feature_names.tolist()
STATIC = COHORTS[0].static_names.tolist()
LAM = 0.01  # of the static features of a patient
NOISY = Settings(rank=3, max_rounds=4, noise=True, static_size=2.0)


def test_accounting_against_hand_computed_values():
    # ln(1/1e-5) = 11.512925; ρ = 0.5: 0.5 + 2 √(0.5 · 11.512925) = 0.5 + 2 · 2.399263 = 5.298526
    assert privacy.epsilon_from_rho(0.5, 1e-5) == pytest.approx(5.298526, abs=1e-6)
    # ρ = 0.02, δ = 1e-6: ln = 13.815511; 0.02 + 2 √0.27631 = 0.02 + 1.051305 = 1.071305
    assert privacy.epsilon_from_rho(0.02, 1e-6) == pytest.approx(1.071305, abs=1e-6)
    # ε = 1, δ = 1e-5: √ρ = √12.512925 − √11.512925 = 3.537361 − 3.393070 = 0.144291, ρ = 0.020820
    assert privacy.rho_from_epsilon(1.0, 1e-5) == pytest.approx(0.020820, abs=1e-6)
    # 50 rounds of it: z = √(50 / (2 · 0.020820)) = √1200.77 = 34.652
    assert privacy.PrivacyBudget(1.0, 1e-5, 50).noise_multiplier == pytest.approx(34.652, abs=2e-3)


@given(st.floats(0.01, 100), st.floats(1e-12, 0.1), st.integers(1, 1000))
def test_all_rounds_together_spend_the_budget_and_fewer_rounds_less(epsilon, delta, rounds):
    budget = privacy.PrivacyBudget(epsilon, delta, rounds)
    assert budget.spent(rounds) == pytest.approx(epsilon, rel=1e-6)
    assert budget.spent(0) == 0.0
    spent = [budget.spent(n) for n in range(rounds + 1)]
    assert np.all(np.diff(spent) > 0)


@pytest.mark.parametrize(
    "values", [(0, 1e-5, 3), (-1, 1e-5, 3), (math.nan, 1e-5, 3), (1, 0, 3), (1, 0.9, 3), (1, 1e-5, 0)]
)
def test_an_invalid_budget_is_refused(values):
    with pytest.raises(InputError):
        privacy.PrivacyBudget(*values)


def new_session(c, settings):
    aligned = align(c, columns_of(c))
    influence = influence_of(settings.influence_power, aligned)
    weights = relative_weights(aligned, settings.rank, LAM, settings.mu, settings.smooth, influence)
    return ThreadEngine().open(aligned.shard, weights, settings.rank, c.shape[1], n_jobs=1)


def some_model(rng, chosen):
    V, F = rng.random((len(FEATURES), chosen.rank)), rng.random((len(STATIC), chosen.rank))
    H = np.eye(chosen.rank) + 0.2 * rng.random((chosen.rank, chosen.rank))
    return Model(H / np.linalg.norm(H, axis=0), V / np.linalg.norm(V, axis=0), F)


def clipped_sums(c, model, chosen):
    session = new_session(c, chosen)
    session.init_U(model)
    return session.step_clipped(model, privacy.clipping(chosen)), session


def test_without_a_bound_clipped_sums_are_the_sums():
    chosen = Settings(rank=3, noise=True, clip=1e6)
    model = some_model(np.random.default_rng(0), chosen)
    actual, session = clipped_sums(COHORTS[0], model, chosen)
    other = new_session(COHORTS[0], chosen)
    other.init_U(model)
    expected = other.step(model)
    for part, exact in zip(actual, expected, strict=True):
        np.testing.assert_allclose(part, exact, rtol=1e-9, atol=1e-9 * np.abs(exact).max())
    np.testing.assert_allclose(session.U, other.U, rtol=1e-12)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.3, 5.0]))
def test_one_patients_addends_are_within_their_bounds(seed, smooth):
    """From definitions of unit norm, which requests are checked for, and a small weight of the static features."""
    rng = np.random.default_rng(seed)
    chosen = Settings(rank=3, noise=True, smooth=smooth, static_size=float(COHORTS[0].n_static))
    model, bounds = some_model(rng, chosen), privacy.addend_bounds(chosen)
    model = model._replace(F=0.3 * model.F)
    session = new_session(COHORTS[0][:20], chosen)
    session.init_U(model)
    patients = []
    session.step_clipped(model, lambda addends: patients.append(addends) or addends)
    for addends in patients:
        sizes = [
            np.linalg.norm(part) / float(bound) for part, bound in zip(addends[:5], bounds, strict=False)
        ]
        assert max(sizes) <= 1.05
        assert np.all(addends.scalars <= bounds.scalars * [1, 1, 1, 1, 4] * (1 + 1e-9))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.5, 3.0]), st.sampled_from([0.01, 2.0, 1e4]))
def test_no_patient_changes_the_sums_by_more_than_the_clip(seed, clip, size):
    rng = np.random.default_rng(seed)
    chosen = Settings(rank=3, noise=True, static_size=size, clip=clip)
    model, removed = some_model(rng, chosen), rng.integers(40)
    with_all, _ = clipped_sums(COHORTS[0][:40], model, chosen)
    without, _ = clipped_sums(COHORTS[0][[k for k in range(40) if k != removed]], model, chosen)
    change = math.sqrt(
        sum(
            float(np.sum(((a - b) / scale) ** 2))
            for a, b, scale in zip(with_all, without, privacy.addend_scales(chosen), strict=True)
        )
    )
    assert 0 < change <= clip * (1 + 1e-9)


def test_the_noise_has_the_right_scale_and_is_drawn_anew():
    sums = Sums(
        np.zeros((40, 40)),
        np.zeros((300, 40)),
        np.zeros((40, 40)),
        np.zeros((30, 40)),
        np.zeros((40, 40)),
        np.zeros(N_SCALARS),
    )
    chosen = Settings(rank=40, noise=True, static_size=2.0, clip=0.5)
    one, two = (privacy.add_noise(sums, chosen, 7.0) for _ in range(2))
    for name, part, scale in zip(Sums._fields[:5], one, privacy.addend_scales(chosen), strict=False):
        assert np.std(part) == pytest.approx(7.0 * 0.5 * float(scale), rel=0.1), name
        assert abs(np.mean(part)) < 0.2 * np.std(part), name
    np.testing.assert_array_equal(one.UU, one.UU.T)
    np.testing.assert_array_equal(one.WW, one.WW.T)
    assert not np.array_equal(one.UU, two.UU)
    assert one.scalars.std() > 0


@given(st.integers(0, 10**6), st.floats(0.1, 10))
def test_projected_grams_have_no_eigenvalue_below_the_noise(seed, floor):
    rng = np.random.default_rng(seed)
    noisy = privacy.symmetric(rng.standard_normal((5, 5)) * 3)
    sums = Sums(
        noisy,
        rng.standard_normal((4, 5)),
        noisy,
        rng.standard_normal((2, 5)),
        noisy,
        rng.standard_normal(N_SCALARS),
    )
    projected = privacy.project_sums(sums, Sums(*(np.array(floor) for _ in range(5)), np.ones(N_SCALARS)))
    assert np.linalg.eigvalsh(projected.UU)[0] >= floor * math.sqrt(5) * (1 - 1e-9)
    assert min(projected.XU.min(), projected.AW.min(), projected.scalars.min()) >= 0
    definite = noisy @ noisy.T + 100 * np.eye(5)
    np.testing.assert_allclose(privacy.raise_eigenvalues(definite, floor), definite, rtol=1e-9)


def test_a_complete_fit_with_noise(tmp_path):
    init(tmp_path / "work", NAMES, NOISY, features=FEATURES, static=STATIC)
    rounds, spent = 0, []
    while True:
        done = round_of_steps(tmp_path, COHORTS[:2], NAMES[:2], epsilon=20.0)
        done += [
            step(tmp_path / "work" / "exchange", COHORTS[2], site="east", state=tmp_path / "east", exact=True)
        ]
        spent.append(done[0].epsilon)
        assert done[2].epsilon is None
        combined = combine(tmp_path / "work")
        rounds += 1
        if combined.next == "done":
            break
    assert rounds == 1 + NOISY.max_rounds  # no evaluation: its figures would be exact
    assert spent[0] == 0.0
    assert spent[-1] == pytest.approx(20.0)
    assert np.all(np.diff(spent) > 0)
    assert status(tmp_path / "north")["epsilon_spent"] == pytest.approx(20.0)
    assert status(tmp_path / "north")["starts"] == 0  # no courses are stored
    fitted = TASTE.load(combined.model)
    assert np.isnan(fitted.rmse_)
    assert fitted.feature_patients_ is None
    assert fitted.transform(COHORTS[0]).shape == (len(COHORTS[0]), 3)
    noise = json.loads((combined.model / "federation.json").read_text())["noise"]
    assert set(noise) == {"north", "south"}
    assert noise["north"]["epsilon"] == 20.0
    assert noise["north"]["rounds"] == NOISY.max_rounds


def test_with_noise_the_join_response_holds_the_patient_count_only_and_noise_is_drawn_once(tmp_path):
    init(tmp_path / "work", ["north"], NOISY, features=FEATURES, static=STATIC)
    post, site = tmp_path / "work" / "exchange", {"site": "north", "state": tmp_path / "north"}
    first = messages.read(step(post, COHORTS[0], epsilon=5.0, **site).response)
    assert first.arrays == {}
    assert "features" not in first.header
    assert first.header["visits"] == 0  # an exact number would be about patients
    combine(tmp_path / "work")
    one = step(post, COHORTS[0], **site)
    content = one.response.read_bytes()
    again = step(post, COHORTS[0], **site)
    assert again.response.read_bytes() == content
    assert again.epsilon == one.epsilon > 0
    with pytest.raises(InputError, match="another epsilon or delta"):
        step(post, COHORTS[0], epsilon=9.0, **site)


def test_with_noise_rare_codes_are_not_suppressed(tmp_path):
    """Suppression depends on exact counts: with noise, rare codes get noise like all others instead."""
    c = hospitals()[2]
    names = c.feature_names.tolist()
    init(tmp_path / "work", ["east"], NOISY, features=names, static=STATIC)
    post, site = tmp_path / "work" / "exchange", {"site": "east", "state": tmp_path / "east"}
    step(post, c, exact=True, **site)
    combine(tmp_path / "work")
    sums = messages.read(step(post, c, **site).response).arrays["XU.0"]
    assert sums[names.index("rare")].any()


def test_with_noise_a_request_for_evaluation_is_refused(tmp_path):
    init(tmp_path / "work", ["north"], NOISY, features=FEATURES, static=STATIC)
    post, site = tmp_path / "work" / "exchange", {"site": "north", "state": tmp_path / "north"}
    step(post, COHORTS[0], epsilon=5.0, **site)
    request = messages.read(combine(tmp_path / "work").message)
    header = {name: value for name, value in request.header.items() if name not in ("format", "version")}
    (post / "round-0002.safetensors").write_bytes(
        messages.pack({**header, "kind": "evaluate", "round": 2}, request.arrays)
    )
    with pytest.raises(InputError, match="no coordinator writes"):
        step(post, COHORTS[0], **site)


def test_the_site_has_to_choose_a_budget_or_exact_sums(tmp_path):
    init(tmp_path / "noisy" / "work", ["north"], NOISY, features=FEATURES, static=STATIC)
    init(tmp_path / "exact" / "work", ["north"], Settings(rank=2))
    site = {"site": "north", "state": tmp_path / "north"}
    with pytest.raises(InputError, match="--epsilon"):
        step(tmp_path / "noisy" / "work" / "exchange", COHORTS[0], **site)
    with pytest.raises(InputError, match="--epsilon"):
        step(tmp_path / "noisy" / "work" / "exchange", COHORTS[0], epsilon=1.0, exact=True, **site)
    with pytest.raises(InputError, match="without noise"):
        step(tmp_path / "exact" / "work" / "exchange", COHORTS[0], epsilon=1.0, **site)
    assert not (tmp_path / "north").exists()


def test_settings_that_noise_requires(tmp_path):
    with pytest.raises(InputError, match="features must be given in advance"):
        init(tmp_path / "work", ["north"], NOISY)
    with pytest.raises(InputError, match="n_init=1"):
        Settings(noise=True, n_init=2)
    with pytest.raises(InputError, match="balance=0"):
        Settings(noise=True, balance=0.5)
    with pytest.raises(InputError, match=r"clip=0\.0 must be"):
        Settings(noise=True, clip=0.0)
    with pytest.raises(InputError, match="static_size"):
        init(tmp_path / "work", ["north"], Settings(noise=True), features=FEATURES, static=STATIC)
    assert not (tmp_path / "work").exists()
