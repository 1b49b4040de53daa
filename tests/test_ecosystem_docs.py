"""docs/ecosystem.md: its examples in Python and its commands, run."""

import doctest
import shlex
from pathlib import Path

import numpy as np
import pytest

from phenotaste import TASTE, Cohort, simulate
from phenotaste.review import Review
from test_cli import call  # noqa: F401 - a fixture

PAGE = Path(__file__).resolve().parents[1] / "docs" / "ecosystem.md"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def commands():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.startswith("    phenotaste ")]


def test_the_examples_in_python_run():
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags, encoding="utf-8")
    assert found.failed == 0
    assert found.attempted > 25


def test_the_commands_run(call, tmp_path):  # noqa: F811
    made, _ = simulate.heart_failure(40, random_state=0)
    cohort = Cohort(
        made.visits,
        made.offsets,
        made.static,
        patient_ids=np.arange(40) + 100,
        visit_times=made.visit_times,
        feature_names=made.feature_names,
        static_names=made.static_names,
    )
    cohort.save(tmp_path / "COHORT")
    model = TASTE(3, random_state=0, max_iter=5).fit(cohort)
    model.save(tmp_path / "MODEL")
    Review.blank(model, names={1: "Heart failure"}).write(tmp_path / "review.json")
    assert len(commands()) == 4
    for command in commands():
        done = call(*shlex.split(command)[1:], folder=tmp_path)
        assert done.returncode == 0, done.stderr
        out = command.split("--out ")[1].split()[0]
        assert (tmp_path / out).exists()
