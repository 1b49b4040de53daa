"""SWoTTeD in a process of its own: what goes there, what is accepted of what comes back, and what is refused."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from phenotaste import InputError, baselines, metrics, simulate
from phenotaste.baselines.swotted import VARIABLE, interpreter
from phenotaste.cohort import Cohort
from phenotaste.comparison.methods import MethodSettings, checked_methods, default_methods

QUICK = {"max_iter": 3, "random_state": 0}
# Speaks the protocol of the process without swotted: phenotype r is feature r at every visit of the window.
STAND_IN = """
import numpy as np
with np.load(asked, allow_pickle=False) as file:
    given = {name: file[name] for name in file.files}
K, N, R = len(given["offsets"]) - 1, int(given["n_features"]), int(given["rank"])
owner = np.repeat(np.repeat(np.arange(K), np.diff(given["offsets"])), np.diff(given["indptr"]))
totals = np.zeros((K, N))
np.add.at(totals, (owner, given["indices"]), 1.0)
windows = np.zeros((R, N, int(given["window"])))
windows[np.arange(R), np.arange(R)] = 1.0
found = {"totals": totals[:, :R]}
if "windows" not in given:
    found |= {"windows": windows, "loss": float(given["seed"])}
np.savez(answered, **found)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Sets the interpreter to a program that runs this text, with the two files as `asked` and `answered`."""

    def set_program(text):
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\nimport sys\nasked, answered = sys.argv[-2:]\n{text}\n")
        path.chmod(0o700)
        monkeypatch.setenv(VARIABLE, str(path))

    return set_program


@pytest.fixture(scope="module")
def cohort():
    visits = np.random.default_rng(0).poisson(0.6, (40, 6)).astype(float)
    visits[7] = 0.0
    return Cohort(visits, [0, 0, 7, 8, 20, 40], feature_names=list("abcdef"))


def test_patients_go_there_and_scores_come_back(program, cohort, tmp_path):
    program(STAND_IN)
    model = baselines.SWoTTeD(3, window=2, **QUICK).fit(cohort)
    present = np.array([(cohort.visits[a:b] > 0).sum(axis=0)[:3] for a, b in zip(*ends(cohort), strict=True)])
    np.testing.assert_array_equal(model.V_, np.eye(6)[:, :3])
    np.testing.assert_array_equal(model.W_, 2.0 * present)  # the norm of the sum over the window is 2
    np.testing.assert_array_equal(model.transform(cohort), model.W_)
    assert not model.W_[[0, 2]].any()  # neither visits nor codes
    assert model.empty_history_.tolist() == [True, False, True, False, False]
    model.save(tmp_path / "model")
    again = baselines.SWoTTeD.load(tmp_path / "model")
    np.testing.assert_array_equal(again.transform(cohort), model.W_)
    assert baselines.SWoTTeD(3, **QUICK | {"random_state": 1}).fit(cohort).loss_curve_ != model.loss_curve_
    nobody = Cohort(np.zeros((0, 6)), [0, 0], feature_names=list("abcdef"))
    assert not model.transform(nobody).any()


def ends(cohort):
    return cohort.offsets[:-1], cohort.offsets[1:]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("raise ModuleNotFoundError('no module of that name')", "ModuleNotFoundError"),
        ("open(answered, 'wb').write(b'not an archive')", "SWoTTeD failed in"),
        ("import numpy as np; np.savez(answered, windows=np.array([{}]))", "SWoTTeD failed in"),  # a pickle
        ("import numpy as np; np.savez(answered, windows=np.zeros((1, 1, 1)))", "something else than finite"),
        (STAND_IN.replace("1.0\nfound", "np.nan\nfound"), "something else than finite"),
        ("import time; time.sleep(30)", "took more than 0.5 seconds"),
    ],
)
def test_what_fails_there_is_one_sentence_without_patients(program, cohort, text, sentence):
    program(text)
    limit = 0.5 if "sleep" in text else 60
    with pytest.raises(InputError, match=sentence) as refused:
        baselines.SWoTTeD(3, time_limit=limit, **QUICK).fit(cohort)
    assert "no module of that name" not in str(refused.value) or "ModuleNotFoundError" in sentence


def test_without_an_interpreter_it_says_what_to_install(cohort, monkeypatch, tmp_path):
    for value in ("", str(tmp_path), str(tmp_path / "nothing")):
        monkeypatch.setenv(VARIABLE, value)
        with pytest.raises(InputError, match=f"install swotted there, and set {VARIABLE}"):
            baselines.SWoTTeD(3).fit(cohort)
        with pytest.raises(InputError, match=f"swotted cannot be compared: {VARIABLE}"):
            checked_methods("swotted", cohort, MethodSettings())
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert checked_methods("swotted", cohort, MethodSettings()) == ["swotted"]
    assert "swotted" not in default_methods(cohort, MethodSettings())  # it takes minutes
    with pytest.raises(InputError, match="time_limit"):
        baselines.SWoTTeD(3, time_limit=0).fit(cohort)


@pytest.mark.skipif(interpreter() is None, reason=f"{VARIABLE} names no interpreter with swotted")
def test_swotted_finds_planted_phenotypes_and_scores_each_patient_on_their_own():
    assert Path(os.environ[VARIABLE]).exists()
    cohort, truth = simulate.ehr(40, n_features=20, rank=2, mean_visits=20, random_state=1)
    model = baselines.SWoTTeD(2, max_iter=300, random_state=0).fit(cohort)
    assert metrics.matched_similarity(truth.V, model.V_) > 0.9
    scores = model.transform(cohort[:5])
    np.testing.assert_array_equal(model.transform(cohort[3]), scores[[3]])
    assert np.corrcoef(model.transform(cohort).ravel(), model.W_.ravel())[0, 1] > 0.9
