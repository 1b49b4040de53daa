"""`phenotaste select`: what it prints, writes and refuses."""

import json
import re

import pandas as pd
import pytest

from phenotaste import TASTE, simulate
from phenotaste.cli.select import parse_numbers, parse_ranks

QUICK = ("--jobs", "1", "--init", "random", "--max-iter", "50")
FEW = ("--ranks", "2", "--n-init", "2", "--bootstraps", "0", "--halves", "0", *QUICK)
GRID = ("--ranks", "2:3", "--n-init", "3", "--bootstraps", "2", "--halves", "1", *QUICK)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("select")
    simulate.ehr(60, n_features=20, mean_visits=10, rank=2, random_state=1)[0].save(folder / "cohort")
    return folder


@pytest.fixture
def call(call, place):
    """`phenotaste select` within this process: its exit status and what it prints."""

    def call_select(*arguments):
        result = call("select", *arguments, folder=place)
        return result.returncode, result.stdout, result.stderr

    return call_select


def test_from_cohort_to_model_and_resumed(call, place):
    status, out, err = call("cohort", "--out", "choice", *GRID)
    assert status == 0, err
    assert "← chosen" in out
    assert re.search(r"Phenotype 1 +\d of 2 halves, \d of 2 other starts, \d of 2 bootstrap samples\s", out)
    assert "fit, halves" in out
    assert re.search(r"CPI [01]\.\d+  V [01]\.\d+  F [01]\.\d+  ← chosen", out)
    folder = place / "choice"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "settings.json", "fits", "table.csv", "times.csv", "evidence.csv", "reproducibility.csv", "best", "figures",
        "selection.md",
    }  # fmt: skip
    rank = TASTE.load(folder / "best").rank
    assert rank in (2, 3)
    assert pd.read_csv(folder / "evidence.csv")["phenotype"].max() == rank
    status, out, err = call("cohort", "--out", "choice", *GRID, "--resume", "--json")
    assert status == 0, err
    record = json.loads(out)
    assert (record["rank"], record["model"], record["rule"]) == (rank, "choice/best", "replication")
    row = pd.read_csv(folder / "table.csv").set_index("rank").loc[rank]
    assert record["split_half_cosine"] == row["split_half_cosine"]
    assert record["split_half_cosine_static_min"] == row["split_half_cosine_static_min"]
    status, out, err = call("cohort", "--out", "choice", *GRID, "--resume", "--json", "--rule", "stability")
    assert json.loads(out)["rule"] == "stability"


def test_a_choice_at_the_edge_of_the_grid_warns_in_one_sentence(call, place):
    quick = ("--n-init", "2", "--bootstraps", "0", "--halves", "0", *QUICK, "--rule", "cpi-floor", "--json")
    status, out, err = call("cohort", "--out", "edge", "--ranks", "1:2", *quick)
    sentence = "The choice is at the edge of the grid (rank=2 is the largest): extend the grid and resume."
    assert (status, err) == (0, f"Note: {sentence}\n")
    assert json.loads(out)["warning"] == sentence
    assert sentence in (place / "edge" / "selection.md").read_text()
    status, out, err = call("cohort", "--out", "single", "--ranks", "2", *quick)
    assert (status, err, json.loads(out)["warning"]) == (0, "", None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--ranks", "5:3"), "ranks is empty"),
        (("--ranks", "0:3"), "ranks contains 0"),
        (("--ranks", "2:3", "--n-init", 1), "n_init=1 is too few"),
        (("--ranks", "2:3", "--lams", ","), "lams is empty"),
        (("--ranks", "2:3", "--mus", "-1"), "mus contains -1"),
        (("--ranks", "2:3", "--smooths", "-1"), "smooths contains -1"),
        (("--ranks", "2:3", "--smooths", "1", "--objective", "paper"), 'objective="paper" has no smoothness'),
    ],
)
def test_refused_with_one_sentence(call, place, options, sentence):
    status, out, err = call("cohort", "--out", "refused", *options)
    assert (status, out) == (1, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert not (place / "refused").exists()


def test_folders_of_others_are_refused(call, place):
    simulate.ehr(60, n_features=20, mean_visits=10, rank=2, random_state=2)[0].save(place / "other")
    assert call("cohort", "--out", "mine", *FEW)[0] == 0
    for options, sentence in (
        ((), "already holds this selection"),
        (("--resume", "--seed", "7"), "different settings (random_state)"),
    ):
        status, _, err = call("cohort", "--out", "mine", *FEW, *options)
        assert status == 1
        assert sentence in err
    status, _, err = call("other", "--out", "mine", *FEW, "--resume")
    assert status == 1
    assert "holds other results (different cohort)" in err
    status, _, err = call("cohort", "--out", "cohort/choice", *FEW)
    assert status == 1
    assert "within the cohort's folder" in err


@pytest.mark.parametrize(
    "options", [("--ranks", "three"), ("--ranks", "2:3:4:5"), ("--ranks", "2", "--lams", "x")]
)
def test_unreadable_options_are_invalid_usage(call, options):
    status, out, err = call("cohort", "--out", "misuse", *options)
    assert (status, out) == (2, "")
    assert "Traceback" not in err


def test_ranges_and_lists():
    assert parse_ranks("3:6") == [3, 4, 5, 6]
    assert parse_ranks("3:9:3, 4") == [3, 6, 9, 4]
    assert parse_ranks("7") == [7]
    assert parse_ranks("") == parse_ranks("5:3") == []
    assert parse_numbers("0.01, 1", "--lams") == [0.01, 1.0]


def test_help_shows_an_example(call):
    status, out, _ = call("--help")
    assert status == 0
    assert "phenotaste select cohort --ranks 3:20 --out choice" in out
