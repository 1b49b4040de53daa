"""The GRU on one-hot visits: a dense reference, effects of order and time, training, errors and saved models."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from helpers.cohorts import cohort, dense
from helpers.labelled import order_effect, presence_effect, with_negatives
from phenotaste import Cohort, InputError
from phenotaste.baselines import CNTF, GRUClassifier, RawLogistic

torch = pytest.importorskip("torch", reason="the recurrent baselines need the extra 'gpu'")
torch.set_num_threads(1)

SMALL = {"hidden_size": 12, "embedding_size": 8, "max_epochs": 6, "random_state": 0}
QUICK = SMALL | {"learning_rate": 0.01, "dropout": 0.1}


def auc(model, c):
    return roc_auc_score(c.labels, model.predict_proba(c)[:, 1])


def with_labels(c, seed=0):
    labels = np.random.default_rng(seed).permutation(np.arange(len(c)) % 2).astype(float)
    # Times increase over all patients; a first visit still has no previous one.
    times = np.concatenate([100 * k + np.cumsum(np.arange(n)) for k, n in enumerate(np.diff(c.offsets))])
    times = times.astype(float)
    return Cohort(
        c.visits, c.offsets, c.static, labels=labels, visit_times=times, allow_negative=c.allow_negative
    )


def logit_of_one_patient(network, X, a, gaps):
    """The formula of the network for one patient: multi-hot visits times the embeddings, then the gates."""
    state = {name: value.detach().double().numpy() for name, value in network.state_dict().items()}
    visits = (X > 0) @ state["codes.weight"] if len(X) else np.zeros((1, state["codes.weight"].shape[1]))
    if len(a):
        visits = visits + a @ state["static.weight"].T
    if gaps is not None:
        visits = np.column_stack([visits, gaps if len(X) else [0.0]])
    h = np.zeros(network.classifier.rnn.hidden_size)
    for x in visits:
        from_x = np.split(state["classifier.rnn.weight_ih_l0"] @ x + state["classifier.rnn.bias_ih_l0"], 3)
        from_h = np.split(state["classifier.rnn.weight_hh_l0"] @ h + state["classifier.rnn.bias_hh_l0"], 3)
        r, z = (1 / (1 + np.exp(-(from_x[i] + from_h[i]))) for i in (0, 1))
        h = (1 - z) * np.tanh(from_x[2] + r * from_h[2]) + z * h
    return state["classifier.logistic.weight"][0] @ h + state["classifier.logistic.bias"][0]


@pytest.mark.parametrize("n_static", [0, 3])
@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize("negative", [False, True])
def test_network_matches_the_formula(n_static, times, negative):
    c = cohort(1, n_patients=20, n_static=n_static)
    c = with_labels(with_negatives(c) if negative else c)
    model = GRUClassifier(**SMALL, times=times).fit(c)
    assert (np.diff(c.offsets) == 0).any()
    for k, (X, a) in enumerate(dense(c)):
        t = c.visit_times[c.offsets[k] : c.offsets[k + 1]]
        gaps = np.log1p(np.diff(t, prepend=t[:1])) if times else None
        expected = 1 / (1 + np.exp(-logit_of_one_patient(model.network_, X, a, gaps)))
        assert model.predict_proba(c)[k, 1] == pytest.approx(expected, abs=1e-6)
        assert model.predict_proba(c[k])[0, 1] == pytest.approx(expected, abs=1e-6)


def test_detects_an_order_effect_that_raw_features_do_not_show():
    c = order_effect()
    train, test = c[:400], c[400:]
    assert auc(GRUClassifier(**QUICK).fit(train), test) > 0.9
    for C in (None, 1.0):
        assert abs(auc(RawLogistic(C=C, random_state=0).fit(train), test) - 0.5) < 0.1


def test_uses_static_features_of_patients_without_visits():
    rng = np.random.default_rng(0)
    A = (rng.random((300, 2)) < 0.5).astype(float)
    c = Cohort(np.zeros((0, 3)), np.zeros(301, int), A, labels=A[:, 0])
    assert auc(GRUClassifier(**QUICK).fit(c), c) > 0.95
    without = GRUClassifier(**QUICK, static=False).fit(c)
    assert np.ptp(without.predict_proba(c)[:, 1]) == 0


def test_uses_times_between_visits_only_if_requested():
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(300) % 2).astype(float)
    days = np.cumsum(np.where(labels[:, None] > 0, 200, 2) * rng.random((300, 4)), axis=1)
    dates = np.datetime64("2020-01-01T00:00") + (days * 24 * 60).astype("timedelta64[m]")
    c = Cohort(np.ones((1200, 2)), np.arange(0, 1201, 4), labels=labels, visit_times=dates.ravel())
    assert auc(GRUClassifier(**QUICK, times=True).fit(c), c) > 0.95
    assert abs(auc(GRUClassifier(**QUICK).fit(c), c) - 0.5) < 0.1
    bare = Cohort(c.visits, c.offsets, labels=labels)
    with pytest.raises(InputError, match="visit times"):
        GRUClassifier(**QUICK, times=True).fit(bare)


def test_same_seed_same_bits_and_the_global_random_state_is_untouched():
    c = presence_effect(n_patients=80)
    state = torch.random.get_rng_state()
    first = GRUClassifier(**SMALL).fit(c).predict_proba(c)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    np.testing.assert_array_equal(GRUClassifier(**SMALL).fit(c).predict_proba(c), first)
    other = GRUClassifier(**SMALL | {"random_state": 1}).fit(c).predict_proba(c)
    assert not np.array_equal(other, first)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GRUClassifier(max_epochs=3, random_state=0),
        lambda: CNTF(3, max_iter=4, max_epochs=2, random_state=0),
    ],
)
def test_bits_do_not_depend_on_torchs_threads(make):
    """With batches large enough for torch to parallelise."""
    c = presence_effect(n_patients=200, n_features=60, n_static=20)
    results = []
    try:
        for threads in (1, 2, 2):
            torch.set_num_threads(threads)
            results.append(make().fit(c).predict_proba(c))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(1)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[1], results[2])


def test_keeps_the_epoch_with_the_best_validation_auc():
    c = presence_effect(n_patients=240)
    train, held_out = c[:160], c[160:]
    settings = QUICK | {"max_epochs": 40, "learning_rate": 0.03, "patience": 3}
    model = GRUClassifier(**settings).fit(train, validation=held_out)
    assert model.outcome_ == "early_stopping"
    assert model.n_epochs_ == model.best_epoch_ + 3
    assert model.validation_curve_[model.best_epoch_ - 1] == max(model.validation_curve_)
    assert auc(model, held_out) == pytest.approx(max(model.validation_curve_), abs=1e-9)


def test_validation_patients_are_not_trained_on(monkeypatch):
    """Each epoch trains once on every training patient and evaluates the others."""
    from phenotaste.baselines import _gru_network, _recurrent

    used = {True: [], False: []}
    batch = _gru_network.VisitSequences.batch

    def spy(self, patients):
        training = "train_epoch" in {frame.function for frame in inspect.stack()[:3]}
        used[training].extend(patients)
        return batch(self, patients)

    assert _recurrent.train_epoch
    monkeypatch.setattr(_gru_network.VisitSequences, "batch", spy)
    c = presence_effect(n_patients=100)
    model = GRUClassifier(**SMALL | {"validation": 0.2}).fit(c)
    trained, validated = set(used[True]), set(used[False])
    assert trained | validated == set(range(100))
    assert not trained & validated
    assert len(validated) == pytest.approx(20, abs=1)
    assert np.mean(c.labels[list(validated)]) == pytest.approx(np.mean(c.labels), abs=0.05)
    assert sorted(used[True]) == sorted(list(trained) * model.n_epochs_)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_and_cpu_agree():
    c = presence_effect(n_patients=80)
    model = GRUClassifier(**SMALL).fit(c)
    expected = model.predict_proba(c)
    np.testing.assert_allclose(model.set_params(device="cuda").predict_proba(c), expected, atol=1e-3)
    assert auc(GRUClassifier(**QUICK, device="cuda").fit(c), c) > 0.7


def test_a_class_too_small_to_split_trains_all_epochs():
    c = presence_effect(n_patients=20)
    y = np.zeros(20)
    y[0] = 1
    model = GRUClassifier(**SMALL).fit(c, y)
    assert (model.n_epochs_, model.best_epoch_, model.outcome_) == (6, 6, "max_epochs")
    assert np.isnan(model.validation_curve_).all()


def test_balanced_classes_raise_the_probability_of_the_rare_one():
    c = presence_effect(n_patients=200)
    y = np.arange(200) % 10 == 0
    means = [
        GRUClassifier(**QUICK, class_weight=weight, validation=0.0).fit(c, y).predict_proba(c)[:, 1].mean()
        for weight in (None, "balanced")
    ]
    assert means[0] < 0.3
    assert means[1] > means[0] + 0.1


def test_the_callback_receives_progress_and_can_stop_the_fit():
    received = []

    def callback(progress):
        received.append(progress)
        return progress.epoch == 3

    c = presence_effect(n_patients=60)
    model = GRUClassifier(**SMALL, callback=callback).fit(c)
    assert [progress.epoch for progress in received] == [1, 2, 3]
    assert [progress.loss for progress in received] == list(model.loss_curve_)
    assert model.outcome_ == "stopped"


def test_saved_weights_are_checked(tmp_path):
    from phenotaste.storage import tensors

    c = presence_effect(n_patients=60)
    model = GRUClassifier(**SMALL).fit(c)
    model.save(tmp_path / "model")
    files, meta = tensors.read(tmp_path / "model", "gru-model", mmap=False)
    files["model"]["network.codes.weight"] = files["model"]["network.codes.weight"][:-1]
    tensors.write(tmp_path / "model", "gru-model", files, meta)
    with pytest.raises(InputError, match="not a complete GRUClassifier"):
        GRUClassifier.load(tmp_path / "model")


def test_refusals():
    c = presence_effect(n_patients=40)
    for setting in ({"hidden_size": 0}, {"dropout": 1.0}, {"class_weight": "even"}, {"l2": -1}):
        with pytest.raises(InputError, match=next(iter(setting))):
            GRUClassifier(**SMALL | setting).fit(c)
    with pytest.raises(InputError, match="choose 'cpu' or 'cuda'"):
        GRUClassifier(**SMALL, device="tpu").fit(c)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="not available on this machine"):
            GRUClassifier(**SMALL, device="cuda").fit(c)


def test_torch_is_imported_only_for_a_network():
    code = (
        "import sys, numpy as np; from phenotaste import Cohort, baselines;"
        "dir(baselines), baselines.RawLogistic, baselines.GRUClassifier();"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_without_torch_the_error_names_the_extra_to_install():
    code = """
import sys
from phenotaste import Cohort, baselines
class Without:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ImportError
sys.meta_path.insert(0, Without())
baselines.GRUClassifier().fit(Cohort([[1.0], [2.0]], [0, 1, 2], labels=[0, 1]))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "InputError: GRUClassifier and CNTF need torch" in run.stderr
    assert "pip install 'phenotaste[gpu]'" in run.stderr
