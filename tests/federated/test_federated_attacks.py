"""A hostile coordinator: crafted models are refused, and where no rule can refuse them, only noise protects.

The crafted model finds the one patient who has both of two codes that 30 patients have each: one phenotype is both
codes, two others are one of them each, so that nobody else has a score in the first one.
"""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.hospitals import hospitals, run
from phenotaste import TASTE, Cohort, federated, simulate
from phenotaste.cohort.align import align, columns_of
from phenotaste.core.records import Model, Sums
from phenotaste.engines.threads import ThreadEngine
from phenotaste.errors import InputError
from phenotaste.factorization import influence_of, relative_weights
from phenotaste.federated import Settings, messages, privacy, request_rules
from phenotaste.federated.columns import disclosable

J, RANK = 20, 8
A, B = J - 2, J - 1  # the columns of the two codes
VICTIM = 160 + 29


def hospital():
    """160 simulated patients, and 59 with one visit each: 29 have code a, 29 code b, and one has both."""
    c, _ = simulate.ehr(160, n_features=J - 2, n_static=3, mean_visits=8, rank=3, random_state=0)
    rng = np.random.default_rng(0)
    single = np.zeros((59, J))
    single[:, : J - 2] = rng.random((59, J - 2)) < 0.15
    single[:30, A] = single[29:, B] = 1
    visits = np.vstack([np.hstack([c.visits.toarray(), np.zeros((c.n_visits, 2))]), single])
    return Cohort(
        visits,
        np.concatenate([c.offsets, c.offsets[-1] + 1 + np.arange(59)]),
        np.vstack([c.static, rng.random((59, 3)) < 0.5]),
        feature_names=[*(f"code {j:02d}" for j in range(J - 2)), "a", "b"],
        static_names=[f"fact {p}" for p in range(3)],
    )


COHORT = hospital()
VISIT = COHORT.visits[[COHORT.offsets[VICTIM]]].toarray()[0]


def unit(V):
    return V / np.linalg.norm(V, axis=0)


def crafted(V, spread=0.0):
    """The model that isolates the patient with both codes; `spread` hides that its columns are two features."""
    V = V.copy()
    V[[A, B]] = 0.0
    V[:, :3] = 0.0
    V[A, :2], V[B, [0, 2]] = 1.0, 1.0
    V[:, :3] = unit(unit(V[:, :3]) + spread * unit(np.ones((J, 3))))
    return unit(V)


class Coordinator:
    """A coordinator that plays by the rules for some rounds, and then sends what it likes to its only site."""

    def __init__(self, root, honest=1, rank=RANK, **options):
        self.root, self.exchange = root, root / "work" / "exchange"
        federated.init(
            root / "work", ["north"], Settings(rank=rank, n_init=1, max_rounds=60, tol=0.0, **options)
        )
        for _ in range(honest):
            self.step(self.exchange)
            self.combined = federated.combine(root / "work")
        self.request = messages.read(self.combined.message)
        self.round, self.V = self.request.round, self.request.arrays["V.0"]

    def step(self, message, **options):
        return federated.step(message, COHORT, site="north", state=self.root / "north", **options)

    def send(self, change=lambda header, arrays: None, **options):
        """The site's response to the pending request, changed."""
        header = {name: v for name, v in self.request.header.items() if name not in ("format", "version")}
        header, arrays = json.loads(json.dumps(header)), dict(self.request.arrays)
        header["round"] = self.round
        for task in header["tasks"]:
            task.update(beta=0.0, last_round=self.round - 1, undo=False)
        change(header, arrays)
        path = self.exchange / messages.file_name(self.round)
        path.write_bytes(messages.pack(header, arrays))
        response = messages.read(self.step(path, **options).response).arrays
        self.round += 1
        return response

    def send_model(self, V, **options):
        F = self.request.arrays["F.0"].copy()
        F[:, :3] = 0.0  # the crafted phenotypes are to depend on the two codes alone
        return self.send(lambda header, arrays: arrays.update({"V.0": V, "F.0": F}), **options)


def refused(call, words):
    with pytest.raises(InputError, match=words) as error:
        call()
    assert str(error.value).endswith(".")


def is_the_patients_visit(XU):
    """Whether the first column of Σ XᵀU diag(w) is one patient's visit, up to a factor."""
    cosine = XU[:, 0] @ VISIT / np.linalg.norm(XU[:, 0]) / np.linalg.norm(VISIT)
    return cosine > 1 - 1e-9


def test_the_crafted_model_reads_one_patients_visit_where_a_site_accepts_it_unchecked(tmp_path):
    """Why the rules exist, and what --rejoin gives away."""
    attack = Coordinator(tmp_path)
    for _ in range(2):
        response = attack.send_model(crafted(attack.V), rejoin=True)
    assert is_the_patients_visit(response["XU.0"])


def test_the_crafted_model_is_refused_as_a_start(tmp_path):
    attack = Coordinator(tmp_path)
    before = (tmp_path / "north" / "site" / "manifest.json").read_bytes()
    for model in (crafted(attack.V), crafted(attack.V, spread=0.5), np.roll(attack.V, 1, axis=0)):
        refused(lambda model=model: attack.send_model(model), "agreed seed")
    assert not (attack.exchange / messages.file_name(1, "north")).exists()
    assert (tmp_path / "north" / "site" / "manifest.json").read_bytes() == before
    assert attack.send_model(attack.V)["UU.0"].shape == (RANK, RANK)  # control: the agreed start is accepted


def test_jumps_to_a_crafted_model_are_refused(tmp_path):
    attack = Coordinator(tmp_path, honest=7)
    single = np.eye(J)[
        :, -RANK:
    ]  # as many single features as there are phenotypes: their sums are counts of pairs
    for model in (crafted(attack.V), crafted(attack.V, spread=0.1), single):
        refused(lambda model=model: attack.send_model(model), "suddenly another one")
    assert attack.send_model(attack.V)["UU.0"].shape == (RANK, RANK)


def test_a_model_crafted_for_the_evaluation_is_refused(tmp_path):
    attack = Coordinator(tmp_path, honest=5)

    def evaluate(V):
        return attack.send(lambda header, arrays: (header.update(kind="evaluate"), arrays.update({"V.0": V})))

    refused(lambda: evaluate(crafted(attack.V)), "suddenly another one")
    assert evaluate(attack.V)["score_totals"].shape == (RANK,)


@pytest.mark.parametrize("rank", [J // 2 + 1, J])
def test_so_many_phenotypes_that_they_are_single_features_are_refused(tmp_path, rank):
    """V = identity would return XᵀX: how many patients have each pair of features."""
    refused(lambda: Coordinator(tmp_path, rank=rank), f"{rank} phenotypes for {J} features")


@pytest.mark.parametrize(
    ("name", "value"), [("mu", 0.0), ("mu", 1e-9), ("lam", 5.0), ("max_rounds", 10**6), ("clip", 0.0)]
)
def test_settings_under_which_sums_single_out_patients_are_refused(tmp_path, name, value):
    with pytest.raises(InputError, match=f"{name}="):
        Settings(**{name: value})
    attack = Coordinator(tmp_path)
    refused(lambda: attack.send(lambda header, arrays: header["settings"].update({name: value})), f"{name}=")


@pytest.mark.parametrize(
    "changed",
    [{"mu": 0.01}, {"lam": 0.0}, {"smooth": 0.0}, {"seed": 7}, {"balance": 0.0}, {"max_rounds": 99}],
)
def test_settings_cannot_change_after_the_first_round(tmp_path, changed):
    attack = Coordinator(tmp_path)
    refused(
        lambda: attack.send(lambda header, arrays: header["settings"].update(changed)),
        "other settings or columns than this site agreed to",
    )


def test_columns_that_the_site_named_cannot_be_left_out(tmp_path):
    """Patients would be reduced to few codes of the coordinator's choice."""
    attack = Coordinator(tmp_path)

    def only_some(header, arrays):
        header["features"] = header["features"][2:]
        arrays["V.0"] = unit(arrays["V.0"][2:])

    refused(lambda: attack.send(only_some), "leaves out 2 of the columns")


def test_columns_fixed_in_the_join_request_cannot_change(tmp_path):
    federated.init(
        tmp_path / "work", ["north"], Settings(rank=2, n_init=1), features=COHORT.feature_names.tolist()
    )
    site = {"site": "north", "state": tmp_path / "north"}
    federated.step(tmp_path / "work" / "exchange", COHORT, **site)
    message = federated.combine(tmp_path / "work").message
    request = messages.read(message)
    header = {name: v for name, v in request.header.items() if name not in ("format", "version")}
    header["features"][0] = "another"
    message.write_bytes(messages.pack(header, request.arrays))
    refused(lambda: federated.step(message, COHORT, **site), "other settings or columns")


def test_a_weight_of_static_features_that_does_not_follow_from_the_settings_is_refused(tmp_path):
    attack = Coordinator(tmp_path)
    refused(
        lambda: attack.send(lambda header, arrays: header.update(lam=2000 * header["lam"])),
        "does not follow from the agreed settings",
    )
    without = Coordinator(tmp_path / "without", lam=0.0)
    refused(
        lambda: without.send(lambda header, arrays: header.update(lam=1e-6)),
        "does not follow from the agreed settings",
    )


def test_a_start_that_was_held_back_must_begin_as_agreed(tmp_path):
    federated.init(tmp_path / "more" / "work", ["north"], Settings(rank=RANK, n_init=2, max_rounds=60))
    attack = Coordinator.__new__(Coordinator)
    attack.root, attack.exchange = tmp_path / "more", tmp_path / "more" / "work" / "exchange"
    attack.step(attack.exchange)
    attack.request = messages.read(federated.combine(attack.root / "work").message)
    attack.round, attack.V = 1, attack.request.arrays["V.1"]

    def only(start, V=None):
        def change(header, arrays):
            header["tasks"] = [task for task in header["tasks"] if task["start"] == start]
            for name in [name for name in arrays if not name.endswith(f".{start}")]:
                arrays.pop(name)
            if V is not None:
                arrays[f"V.{start}"] = V

        return change

    attack.send(only(0))
    refused(lambda: attack.send(only(1, crafted(attack.V))), "agreed seed")
    attack.send(only(1))


def test_a_site_without_state_answers_no_step_unless_told_to(tmp_path):
    attack = Coordinator(tmp_path, honest=4)
    attack.root = tmp_path / "other"  # another state folder, as if it were new
    attack.root.mkdir()
    refused(lambda: attack.send_model(crafted(attack.V)), "no state of this fit, which is in round 4")
    assert not (tmp_path / "other" / "north").exists()


def test_static_features_are_counted_over_patients_with_a_history():
    """Eleven patients have the feature, but only one of them takes part: the row would be that patient's."""
    visits = np.zeros((130, 3))
    visits[:120, :2] = 1
    static = np.zeros((130, 1))
    static[119:, 0] = 1
    c = Cohort(visits, np.arange(131), static, feature_names=list("abc"), static_names=["fact"])
    assert disclosable(c, 11)[1].tolist() == [False]
    c = Cohort(np.ones((130, 3)), np.arange(131), static, feature_names=list("abc"), static_names=["fact"])
    assert disclosable(c, 11)[1].tolist() == [True]


# What no rule refuses


def test_without_noise_a_disguised_model_in_the_second_round_still_reads_the_visit(tmp_path):
    """After one round the site has little to compare with. The docs say so first: sites must trust the coordinator."""
    attack = Coordinator(tmp_path, honest=2)
    attack.send_model(crafted(attack.V, spread=0.14))
    for _ in range(2):
        response = attack.send_model(crafted(attack.V))
    assert is_the_patients_visit(response["XU.0"])


NOISY = Settings(rank=RANK, max_rounds=20, noise=True, static_size=2.0)


def clipped_sums(c, model, chosen=NOISY):
    aligned = align(c, columns_of(c))
    influence = influence_of(chosen.influence_power, aligned)
    weights = relative_weights(aligned, chosen.rank, 0.005, chosen.mu, chosen.smooth, influence)
    with ThreadEngine().open(aligned.shard, weights, chosen.rank, c.shape[1], n_jobs=1) as session:
        session.init_U(model)
        return session.step_clipped(model, privacy.clipping(chosen))


def distance(one, two, chosen=NOISY):
    """Of two sums, in the norm in which one patient's addends are clipped."""
    parts = zip(one, two, privacy.addend_scales(chosen), strict=True)
    return np.sqrt(sum(float(np.sum(((a - b) / scale) ** 2)) for a, b, scale in parts))


def test_with_noise_the_crafted_model_does_not_find_the_patient():
    """The same model as above: the best test of whether the patient is there is hardly better than a coin."""
    rng = np.random.default_rng(0)
    model = Model(np.eye(RANK), crafted(unit(rng.random((J, RANK)))), np.zeros((3, RANK)))
    everyone = clipped_sums(COHORT, model)
    others = clipped_sums(COHORT[[k for k in range(len(COHORT)) if k != VICTIM]], model)
    assert everyone.WW[0, 0] > 0.1
    assert others.WW[0, 0] < 1e-12  # without noise this entry alone reveals the patient
    z = privacy.PrivacyBudget(1.0, 1e-5, NOISY.max_rounds).noise_multiplier
    scales = privacy.addend_scales(NOISY)
    guesses = []
    for present, sums in ((True, everyone), (False, others)) * 150:
        noisy = privacy.add_noise(sums, NOISY, z)
        # The likelihood ratio of the two known possibilities, the best test there is.
        ratio = sum(
            float(np.sum((n - (a + b) / 2) * (a - b) / scale**2))
            for n, a, b, scale in zip(noisy, everyone, others, scales, strict=True)
        )
        guesses.append((ratio > 0) == present)
    assert np.mean(guesses) < 0.62  # 0.51 expected, five standard deviations


EXTREME = st.sampled_from([0.0, 5e-324, 1e-300, 1e-160, 1e-8, 1.0, 1e8, 1e100, 1e154, 1e160, 1e300, 1.7e308])
SMALL = hospitals(plain=True)[0][:24]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.lists(EXTREME, min_size=4, max_size=4), EXTREME, st.booleans())
def test_with_noise_no_extreme_value_lets_a_patient_be_seen(seed, values, factor, same_features):
    """Whatever one patient's values and the coordinator's F are: the sums stay finite and within the clip."""
    rng = np.random.default_rng(seed)
    chosen = Settings(rank=3, noise=True, static_size=2.0)
    patient = int(rng.integers(len(SMALL)))
    visits, static = SMALL.visits.toarray().astype(float), SMALL.static.astype(float)
    rows = slice(SMALL.offsets[patient], SMALL.offsets[patient + 1])
    with np.errstate(over="ignore"):
        visits[rows] *= rng.choice(values, visits[rows].shape)
    static[patient] = rng.choice(values, static.shape[1])
    visits = np.nan_to_num(visits, posinf=1.7e308)
    names = {"feature_names": SMALL.feature_names, "static_names": SMALL.static_names}
    c = Cohort(visits, SMALL.offsets, static, **names)
    V = np.tile(rng.random((c.n_features, 1)), 3) if same_features else rng.random((c.n_features, 3))
    model = Model(np.eye(3), unit(V), factor * rng.random((c.n_static, 3)))
    with np.errstate(all="ignore"):
        everyone = clipped_sums(c, model, chosen)
        others = clipped_sums(c[[k for k in range(len(c)) if k != patient]], model, chosen)
    assert all(np.isfinite(part).all() for part in everyone)
    assert distance(everyone, others, chosen) <= chosen.clip * (1 + 1e-9)


@given(
    st.lists(st.one_of(EXTREME, st.just(np.inf), st.just(-np.inf), st.just(np.nan)), min_size=9, max_size=9)
)
def test_clipped_addends_are_finite_and_within_the_bound(values):
    scales = privacy.addend_scales(Settings(rank=1, noise=True, static_size=2.0))
    x = [np.array([[value]]) for value in values[:4]]
    addends = Sums(x[0], np.array([[values[1]], [values[4]]]), x[2], x[3], x[0], np.array(values[4:]))
    with np.errstate(all="ignore"):
        clipped = privacy.clip(addends, scales, 1.0)
    zero = Sums(*(np.zeros_like(part) for part in clipped))
    assert all(np.isfinite(part).all() for part in clipped)
    assert distance(clipped, zero, Settings(rank=1, noise=True, static_size=2.0)) <= 1 + 1e-9


def test_sums_that_show_an_extreme_value_are_not_sent(tmp_path):
    static = COHORT.static.astype(float).copy()
    static[5, 0] = 1e200
    c = Cohort(
        COHORT.visits,
        COHORT.offsets,
        static,
        feature_names=COHORT.feature_names,
        static_names=COHORT.static_names,
    )
    message = federated.init(tmp_path / "work", ["north"], Settings(rank=2))
    with np.errstate(over="ignore"):
        refused(
            lambda: federated.step(message, c, site="north", state=tmp_path / "north"),
            "not finite or above 1e",
        )
    assert not (tmp_path / "north").exists()


# Honest fits


@pytest.mark.parametrize("seed", [0, 1])
def test_honest_fits_are_never_refused(tmp_path, seed):
    """Sparse definitions, unequal sites, four starts, weights at their limits; docs/federated.md has many more."""
    options = [{}, {"mu": 0.01, "smooth": 0.0, "lam": 1.0}][seed]
    sizes = [(130, 170, 110), (110, 400, 120)][seed % 2]
    cohorts = hospitals(sizes=sizes, n_features=24, rank=4, seed=seed, plain=bool(seed % 2))
    done = run(tmp_path, cohorts, Settings(rank=5, max_rounds=12, seed=seed, **options))
    V = TASTE.load(done.model).V_
    assert np.sort(V**2, axis=0)[-2:].sum(axis=0).max() > 0.5  # at least some columns are concentrated


def test_phenotypes_may_turn_in_the_first_rounds_but_not_into_single_features():
    V, other = np.zeros((J, 2)), np.zeros((J, 2))
    V[:3], other[5:9] = 1.0, 1.0
    single = np.eye(J)[:, [7, 8]]
    request_rules.check_change(unit(other), unit(V), 5)
    refused(lambda: request_rules.check_change(unit(other), unit(V), 6), "suddenly another one")
    refused(lambda: request_rules.check_change(single, unit(V), 2), "suddenly another one")
    request_rules.check_change(single, unit(single + 0.5 * unit(V)), 9)  # approached step by step
    request_rules.check_change(np.zeros((J, 2)), unit(V), 9)  # a phenotype that no patient has left
