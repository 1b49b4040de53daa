"""A federated fit equals the fit of the pooled records, and only sums over patients are sent."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse

from helpers.hospitals import NAMES, hospitals, pooled, round_of_steps, run
from phenotaste import TASTE, Cohort, federated, simulate
from phenotaste.cohort.align import align, columns_of
from phenotaste.core import loop
from phenotaste.core.init import init_model
from phenotaste.core.kernels.sums import tree_reduce
from phenotaste.core.records import Scored, Sums
from phenotaste.engines.threads import ThreadEngine, one_blas_thread
from phenotaste.errors import InputError
from phenotaste.factorization import influence_of, relative_weights
from phenotaste.federated import Settings, messages


def relative_difference(actual, expected):
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def pooled_cohort(model, cohorts):
    static = [] if model.static_names_in_ is None else model.static_names_in_.tolist()
    return pooled(cohorts, model.feature_names_in_.tolist(), static)


def check_equal(actual, expected):
    assert actual.n_iter_ == expected.n_iter_
    np.testing.assert_allclose(actual.loss_curve_, expected.loss_curve_, rtol=1e-10)
    for name in ("V_", "H_", "F_"):
        if getattr(expected, name) is not None:
            assert relative_difference(getattr(actual, name), getattr(expected, name)) < 1e-8, name
    assert actual.outcome_ == expected.outcome_
    assert actual.lam_eff_ == pytest.approx(expected.lam_eff_, rel=1e-12)
    assert actual.rmse_ == pytest.approx(expected.rmse_, rel=1e-9)
    assert actual.cpi_ == pytest.approx(expected.cpi_, rel=1e-9)
    assert actual.cpi_present_ == pytest.approx(expected.cpi_present_, rel=1e-8)
    assert relative_difference(actual.score_totals_, expected.score_totals_) < 1e-8
    assert relative_difference(actual.mean_scores_, expected.mean_scores_) < 1e-8
    assert (actual.n_patients_, actual.n_visits_) == (expected.n_patients_, expected.n_visits_)


def test_a_federated_fit_equals_the_pooled_fit(tmp_path):
    cohorts = hospitals()
    shares = np.array(
        [c.visits.toarray().sum(axis=0)[:15] / c.visits.sum() for c in (cohorts[0], cohorts[2])]
    )
    assert np.abs(shares[0] - shares[1]).max() > 0.02  # the case mixes differ
    done = run(tmp_path, cohorts, Settings(rank=3, n_init=1, max_rounds=50, tol=0.0, seed=5))
    fitted = TASTE.load(done.model)
    assert "own" in fitted.feature_names_in_
    assert "rare" not in fitted.feature_names_in_
    everyone = pooled_cohort(fitted, cohorts)
    expected = TASTE(3, init="random", n_init=1, max_iter=50, tol=0.0, random_state=5).fit(everyone)
    check_equal(fitted, expected)
    np.testing.assert_allclose(fitted.transform(everyone), expected.transform(everyone), rtol=1e-6, atol=1e-9)


def with_empty_histories(c, count):
    """Patients without any code are added, at the end."""
    rng = np.random.default_rng(0)
    visits = sparse.vstack([c.visits, sparse.csr_array((count, c.n_features))]).tocsr()
    offsets = np.concatenate([c.offsets, c.offsets[-1] + 1 + np.arange(count)])
    static = np.vstack([c.static, rng.integers(0, 2, (count, c.n_static))])
    return Cohort(visits, offsets, static, feature_names=c.feature_names, static_names=c.static_names)


def test_patients_without_a_history_take_no_part_and_are_not_counted(tmp_path):
    cohorts = hospitals(plain=True)[:2]
    settings = Settings(rank=3, n_init=1, max_rounds=8, tol=0.0)
    added = [cohorts[0], with_empty_histories(cohorts[1], 15)]
    fitted = TASTE.load(run(tmp_path / "added", added, settings, min_cell_size=1).model)
    plain = TASTE.load(run(tmp_path / "plain", cohorts, settings, min_cell_size=1).model)
    for name in ("V_", "H_", "F_", "score_totals_", "mean_scores_"):
        assert relative_difference(getattr(fitted, name), getattr(plain, name)) < 1e-8, name
    assert fitted.n_patients_ == plain.n_patients_ == sum(map(len, cohorts))
    assert fitted.n_empty_ == 0
    np.testing.assert_array_equal(fitted.static_patients_, plain.static_patients_)
    scores = fitted.transform(added[1])[-15:]
    assert np.all(np.isfinite(scores))
    assert scores.any()


def test_a_site_with_too_few_histories_is_refused(tmp_path):
    c = with_empty_histories(hospitals(plain=True)[0][:90], 20)
    federated.init(tmp_path / "work", ["north"], Settings(rank=2))
    with pytest.raises(InputError, match="fewer than 100 patients with a history"):
        federated.step(tmp_path / "work" / "exchange", c, site="north", state=tmp_path / "north")


def test_settings_have_the_defaults_of_TASTE():
    shared = ("rank", "lam", "mu", "smooth", "tol")
    one, other = Settings(), TASTE()
    assert [getattr(one, name) for name in shared] == [getattr(other, name) for name in shared]
    assert (one.n_starts, one.max_rounds) == (other._n_starts(), other.max_iter)
    assert one.influence_power == other.balance


class Hospitals:
    """An engine over the hospitals' records in one process, with one partial sum per hospital."""

    def __init__(self, cohorts, lam, rank):
        self.parts = []
        for c in cohorts:
            aligned = align(c, columns_of(c))
            weights = relative_weights(aligned, rank, lam, 1.0, 0.3, influence_of(0.5, aligned))
            self.parts.append(ThreadEngine().open(aligned.shard, weights, rank, c.shape[1]))
        self.weights = weights

    def step(self, model, beta):
        sums = [part.step(model, beta) for part in self.parts]
        return tree_reduce(sums, lambda a, b: Sums(*(x + y for x, y in zip(a, b, strict=True))))

    def undo(self):
        for part in self.parts:
            part.undo()

    def score(self, model):
        return Scored(*map(np.concatenate, zip(*(part.score(model) for part in self.parts), strict=True)))


def test_on_the_same_shards_the_factors_are_bitwise_equal(tmp_path):
    """Also with far more phenotypes than visits, where a pooled fit, summed in another order, drifts by rounding."""
    cohorts, rank = hospitals(plain=True, n_features=30, n_static=2), 12
    settings = Settings(rank=rank, n_init=1, max_rounds=20, tol=0.0, seed=3)
    done = run(tmp_path, cohorts, settings, min_cell_size=1)
    fitted = TASTE.load(done.model)
    engine = Hospitals(cohorts, fitted.lam_eff_, rank)
    seed = np.random.RandomState(3).randint(2**31, size=1)[0]
    shard, rng = engine.parts[0].shard, np.random.default_rng(seed)
    model = init_model("random", shard, len(fitted.V_), rank, True, rng)
    with one_blas_thread():
        for part in engine.parts:
            part.init_U(model)
        expected = loop.fit(engine, model, normalize=True, exact=False, max_iter=20, tol=0.0)
    for factor, exact in zip((fitted.H_, fitted.V_, fitted.F_), expected.model, strict=True):
        np.testing.assert_array_equal(factor, exact)
    np.testing.assert_allclose(fitted.loss_curve_, expected.losses, rtol=1e-14)


def test_several_starts_equal_the_pooled_fit(tmp_path):
    cohorts = hospitals(seed=1, plain=True)
    settings = Settings(rank=3, n_init=3, max_rounds=60, tol=3e-3, seed=2)
    done = run(tmp_path, cohorts, settings)
    fitted = TASTE.load(done.model)
    expected = TASTE(3, init="random", n_init=3, max_iter=60, tol=3e-3, random_state=2)
    check_equal(fitted, expected.fit(pooled_cohort(fitted, cohorts)))
    assert fitted.outcome_ == "converged"
    history = json.loads((done.model / "federation.json").read_text())["rounds"]
    sizes = [entry["bytes_received"] for entry in history if entry["kind"] == "step"]
    assert len(set(sizes)) > 1  # finished starts are not requested again


def test_no_static_features_and_other_weights(tmp_path):
    cohorts, weights = hospitals(n_static=0, plain=True)[:2], {"mu": 5.0, "smooth": 0.0, "balance": 0.0}
    done = run(tmp_path, cohorts, Settings(rank=2, n_init=1, max_rounds=8, tol=0.0, **weights))
    fitted = TASTE.load(done.model)
    assert fitted.F_ is None
    expected = TASTE(2, init="random", n_init=1, max_iter=8, tol=0.0, random_state=0, **weights)
    check_equal(fitted, expected.fit(pooled_cohort(fitted, cohorts)))


def test_a_step_that_raises_the_objective_is_undone_at_every_site(tmp_path):
    cohorts, weights = hospitals(seed=4, plain=True), {"mu": 0.05, "smooth": 0.0}
    done = run(tmp_path, cohorts, Settings(rank=3, n_init=1, max_rounds=22, tol=0.0, seed=1, **weights))
    history = json.loads((done.model / "federation.json").read_text())["rounds"]
    assert any(entry.get("undone") for entry in history)
    fitted = TASTE.load(done.model)
    expected = TASTE(3, init="random", n_init=1, max_iter=22, tol=0.0, random_state=1, **weights)
    check_equal(fitted, expected.fit(pooled_cohort(fitted, cohorts)))


def test_a_round_of_forty_phenotypes_takes_less_than_a_megabyte(tmp_path):
    c, _ = simulate.ehr(110, mean_visits=8)
    c = Cohort(
        c.visits,
        c.offsets,
        c.static,
        feature_names=[f"c{j}" for j in range(284)],
        static_names=[f"s{p}" for p in range(30)],
    )
    federated.init(tmp_path / "work", NAMES, Settings(rank=40, n_init=1))
    for _ in range(2):
        steps = round_of_steps(tmp_path, [c, c, c], min_cell_size=1)
        done = federated.combine(tmp_path / "work")
    assert 100_000 < sum(step.bytes_sent for step in steps) == done.bytes_received
    assert done.bytes_received + done.bytes_sent < 1_000_000


def test_the_model_scores_patients_and_stores_none(tmp_path):
    cohorts = hospitals()
    done = run(tmp_path, cohorts, Settings(rank=2, max_rounds=4))
    model = TASTE.load(done.model)
    assert model.transform(cohorts[2]).shape == (len(cohorts[2]), 2)
    assert not hasattr(model, "W_")
    assert model.feature_patients_.max() <= model.n_patients_
    assert not np.any((model.feature_patients_ > 0) & (model.feature_patients_ < 11))
    assert len(model.phenotypes()) > 0


def test_a_sites_state_is_private_and_its_courses_are_deleted_at_the_end(tmp_path):
    cohorts = hospitals()[:2]
    federated.init(tmp_path / "work", NAMES[:2], Settings(rank=2, max_rounds=2))
    rounds = 0
    while True:
        round_of_steps(tmp_path, cohorts, NAMES[:2])
        files = [path for path in (tmp_path / "north").rglob("*") if path.is_file()]
        assert stat.S_IMODE((tmp_path / "north").stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
        rounds += 1
        if federated.combine(tmp_path / "work").next == "done":
            break
    assert rounds == 4
    assert max(path.stat().st_size for path in files) < 8 * cohorts[0].n_visits * 2  # no courses left


def test_the_size_of_messages_does_not_depend_on_the_number_of_patients(tmp_path):
    one, many = (
        hospitals(sizes=(120, 120, 120), plain=True)[0],
        hospitals(sizes=(600, 120, 120), plain=True)[0],
    )
    federated.init(tmp_path / "work", NAMES[:2], Settings(rank=2, max_rounds=2))
    for _ in range(4):
        small, large = round_of_steps(tmp_path, [one, many], NAMES[:2])
        assert abs(small.bytes_sent - large.bytes_sent) < 200
        federated.combine(tmp_path / "work")


def test_the_commands_in_separate_processes(tmp_path, call):
    """The steps of the hospitals at the same time, each in a process of its own."""
    cohorts, names = hospitals()[:2], NAMES[:2]
    for name, c in zip(names, cohorts, strict=True):
        c.save(tmp_path / f"cohort-{name}")

    def phenotaste(*arguments, status=0):
        return checked(call(*arguments), status, "--json" in arguments)

    def checked(done, status, as_json):
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr if status else json.loads(done.stdout) if as_json else done.stdout

    command = ("federated", "init", "work", "--sites", "north,south", "--rank", 2, "--max-rounds", 1)
    started = phenotaste(*command, "--exchange", "post", "--json")
    assert started["message"].endswith("round-0000.safetensors")
    text = phenotaste("federated", "init", "other", "--sites", "north,south", "--exchange", "letters")
    assert "federated step letters COHORT" in text
    assert "federated combine other --exchange letters" in text

    def arguments(name):
        return ("federated", "step", "post", f"cohort-{name}", "--site", name, "--state", name, "--json")

    def step(name):
        command = [sys.executable, "-m", "phenotaste.cli", *arguments(name)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )
        return checked(done, 0, True)

    for number, next_kind in enumerate(("step", "evaluate", "done")):
        if number == 0:  # at the same time, in processes of their own
            with ThreadPoolExecutor(2) as pool:
                steps = list(pool.map(step, names))
        else:
            steps = [phenotaste(*arguments(name)) for name in names]
        assert {report["round"] for report in steps} == {number}
        done = phenotaste("federated", "combine", "work", "--exchange", "post", "--json")
        assert (done["next"], done["round"]) == (next_kind, number)
        assert done["bytes_received"] == sum(report["bytes_sent"] for report in steps)
    assert "has responded" in phenotaste(
        *(
            "federated",
            "step",
            "post/round-0001.safetensors",
            "cohort-north",
            "--site",
            "north",
            "--state",
            "north",
        ),
        status=1,
    )
    assert phenotaste("federated", "status", "work", "--json")["phase"] == "done"
    phenotaste("score", "work/model", "cohort-south", "--out", "scores.parquet")
    phenotaste("report", "work/model", "--cohort", "cohort-south", "--out", "report.html")
    reference = run(tmp_path / "again", cohorts, Settings(rank=2, max_rounds=1))
    np.testing.assert_array_equal(TASTE.load(reference.model).V_, TASTE.load(tmp_path / "work" / "model").V_)


def test_messages_hold_no_patient_identifiers_and_no_per_patient_arrays(tmp_path):
    cohorts = hospitals()
    ids = [f"patient-{k:06d}-secret" for k in range(len(cohorts[0]))]
    c = Cohort(
        cohorts[0].visits,
        cohorts[0].offsets,
        cohorts[0].static,
        patient_ids=ids,
        feature_names=cohorts[0].feature_names,
        static_names=cohorts[0].static_names,
    )
    federated.init(tmp_path / "work", ["north"], Settings(rank=2, max_rounds=1))
    while True:
        step = federated.step(tmp_path / "work" / "exchange", c, site="north", state=tmp_path / "north")
        content = step.response.read_bytes()
        assert b"secret" not in content
        assert all(len(c) not in array.shape for array in messages.unpack(content, "").arrays.values())
        if federated.combine(tmp_path / "work").next == "done":
            break


def test_patients_with_several_rows_are_refused(tmp_path):
    cohort = hospitals()[0]
    grouped = Cohort(
        cohort.visits, cohort.offsets, cohort.static, feature_names=cohort.feature_names,
        static_names=cohort.static_names, groups=np.arange(len(cohort)) // 2,
    )  # fmt: skip
    message = federated.init(tmp_path / "work", NAMES, Settings(rank=2))
    with pytest.raises(InputError, match="several rows for a patient"):
        federated.step(message, grouped, site=NAMES[0], state=tmp_path / "state")
