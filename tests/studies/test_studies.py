"""What all studies share: cells on disk, resuming after an interruption, errors, tables and the page."""

import json
import string
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import toy_study
from phenotaste import InputError
from phenotaste.runs.resources import timed
from phenotaste.storage.encoding import json_value
from phenotaste.studies import Options, run, study_page
from phenotaste.studies.results import (
    CellResult,
    StudyFolder,
    cell_id,
    cell_name,
    read_results,
    summarise,
)
from phenotaste.studies.run import Jobs, environment, run_study

TIMES = ["cell_seconds", "cell_processor_seconds"]


@pytest.fixture(autouse=True)
def nothing_done():
    toy_study.done.clear()
    toy_study.stop_at.clear()


def do(out, options=None, **arguments):
    return run_study(toy_study, out, options or Options(), Jobs(1), **arguments)


def test_everything_is_written_from_the_results(tmp_path):
    found = do(tmp_path / "out")
    assert toy_study.done == [0, 1, 2, 3]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        "settings.json", "cells", "results.csv", "summary.csv", "squares.md", "squares.png", "squares.pdf",
    }  # fmt: skip
    assert sorted(found.files) == sorted(names - {"settings.json", "cells"})
    results = read_results(tmp_path / "out" / "results.csv")
    assert results["number"].tolist() == [0, 1, 2, 2, 3]
    assert results["square"].tolist() == [0, 1, 4, -4, 9]
    assert results["nothing"].isna().all()
    assert results["cell"].nunique() == 4
    assert (results["cell_seconds"] >= 0).all()
    assert results["versions"].str.contains("numpy").all()
    assert (tmp_path / "out" / "results.csv").read_text().count("numpy") == 1  # and is written once
    text = (tmp_path / "out" / "squares.md").read_text()
    assert text.startswith("# Squares\n\nWhat are the squares?\n")
    assert "The sum is 10." in text
    assert "4 cells took" in text
    assert text == study_page.page(
        toy_study, results
    )  # made again from a copy of the table, it is the same page


def test_a_finished_cell_is_not_repeated(tmp_path):
    first = do(tmp_path / "out").results
    toy_study.done.clear()
    again = do(tmp_path / "out", resume=True).results
    assert toy_study.done == []
    pd.testing.assert_frame_equal(first, again)


def test_an_interrupted_study_leaves_a_table_and_resumes(tmp_path):
    toy_study.stop_at.append(3)
    with pytest.raises(KeyboardInterrupt):
        do(tmp_path / "out")
    results = read_results(tmp_path / "out" / "results.csv")
    assert results["number"].tolist() == [0, 1, 2, 2]
    assert not (tmp_path / "out" / "squares.md").exists()
    toy_study.stop_at.clear()
    toy_study.done.clear()
    broken = do(tmp_path / "out", resume=True).results
    assert toy_study.done == [3]
    whole = do(tmp_path / "whole").results
    pd.testing.assert_frame_equal(broken.drop(columns=TIMES), whole.drop(columns=TIMES))


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "other cell"])
def test_a_damaged_cell_is_reported_and_repeated(tmp_path, harm):
    whole = do(tmp_path / "out").results
    paths = sorted((tmp_path / "out" / "cells").iterdir())
    victim = paths[1]
    content = victim.read_bytes()
    if harm == "flip":
        place = content.index(b"square") + len(b'square": ')
        content = content[:place] + b"7" + content[place + 1 :]
    victim.write_bytes(
        {"cut": content[:-3], "flip": content, "empty": b"", "other cell": paths[2].read_bytes()}[harm]
    )
    toy_study.done.clear()
    with pytest.warns(UserWarning, match=r"^1 of the files in .*cells is damaged: recomputed\.$"):
        again = do(tmp_path / "out", resume=True).results
    assert toy_study.done == [1]
    pd.testing.assert_frame_equal(again.drop(columns=TIMES), whole.drop(columns=TIMES))


def test_intact_cells_are_not_reported_as_damaged(tmp_path):
    do(tmp_path / "out")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        do(tmp_path / "out", resume=True)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda out: do(out), "already holds this study: resume it"),
        (
            lambda out: do(out, Options(seed=1), resume=True),
            r"was started with different settings \(seed\): resume it with the same",
        ),
        (
            lambda out: do(out, Options(starts=2), resume=True),
            r"was started with different settings \(starts\)",
        ),
        (
            lambda out: run("recovery", out, Options(quick=True), resume=True),
            r"holds other results \(different study\)",
        ),
        (lambda out: do(out / "cells", resume=True), "contains files that are not from a study"),
        (lambda out: do(out / "results.csv"), "is a file: choose another folder"),
    ],
)
def test_what_a_folder_holds_is_never_touched_by_another(tmp_path, harm, sentence):
    do(tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=sentence):
        harm(tmp_path / "out")
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}


def test_another_version_does_not_resume(tmp_path):
    do(tmp_path / "out")
    place = tmp_path / "out" / "settings.json"
    place.write_text(place.read_text().replace('"version": "', '"version": "0.0.'))
    with pytest.raises(InputError, match=r"was started with phenotaste 0\.0\."):
        do(tmp_path / "out", resume=True)


def test_one_run_at_a_time(tmp_path):
    with (
        StudyFolder(tmp_path / "out").locked(),
        pytest.raises(InputError, match="is in use by another process"),
    ):
        do(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (Options(largest=5), r"^The study squares has no option largest: leave it out\.$"),
        (Options(device="cpu", synpuf="x"), "no option device and synpuf"),
        (Options(starts=0), "starts=0 must be an integer of at least 1"),
        (Options(fraction=0.0), r"fraction=0\.0 must be a number above 0 and at most 1"),
        (Options(fraction=1.5), "at most 1"),
        (Options(limit_minutes=-1.0), "limit_minutes=-1.0 must be a finite number above 0"),
        (Options(size="huge"), "size='huge' must be one of 'laptop', 'paper'"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(tmp_path, options, sentence):
    with pytest.raises(InputError, match=sentence):
        do(tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_studies_that_take_times_run_alone(tmp_path):
    with pytest.raises(InputError, match="measures times, so its cells run one after another"):
        run("speed", tmp_path / "out", Options(quick=True), jobs=2)
    with pytest.raises(InputError, match="The study 'spede' does not exist: choose one of recovery, speed"):
        run("spede", tmp_path / "out")
    with pytest.raises(InputError, match="threads=0"):
        run("speed", tmp_path / "out", Options(quick=True), threads=0)


def test_progress_rises_to_the_end_by_cost(tmp_path):
    heard = []
    do(tmp_path / "out", callback=heard.append)
    shares = [now.fraction for now in heard]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert [now.done for now in heard][-1] == heard[-1].total == 4
    assert shares[1] == pytest.approx(1 / 10)  # the first cell costs 1 of 1 + 2 + 3 + 4
    assert heard[-1].seconds_left == 0


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**9), 10**9), st.floats(allow_nan=False), st.text(max_size=20)
)
CELLS = st.dictionaries(st.text(string.ascii_lowercase, min_size=1, max_size=8), VALUES, max_size=5)


@given(CELLS, CELLS)
def test_names_of_cells_are_safe_and_their_own(one, other):
    name = cell_name(one)
    assert set(name) <= set(string.ascii_letters + string.digits + ".+-")
    assert len(name) <= 120
    assert (json.dumps(one) == json.dumps(other)) == (name == cell_name(other))


@given(cell=CELLS, row=st.dictionaries(st.text(string.ascii_uppercase, min_size=1), VALUES, max_size=5))
def test_a_kept_cell_is_read_back(tmp_path_factory, cell, row):
    place = StudyFolder(tmp_path_factory.mktemp("cells"))
    place.results.mkdir()
    place.save(cell, CellResult([row, {}], {"fact": 1}))
    plain = {key: None if value in (float("inf"), -float("inf")) else value for key, value in row.items()}
    about = {"cell": cell_id(cell), "fact": 1}
    finite = {key: value for key, value in cell.items() if not isinstance(value, float) or np.isfinite(value)}
    if finite == cell:
        assert place.rows(cell) == [{**cell, **plain, **about}, {**cell, **about}]


def test_nan_becomes_blank():
    row = {
        "a": np.float64(1.5),
        "b": np.int64(2),
        "c": float("nan"),
        "d": np.inf,
        "e": "x",
        "f": np.bool_(True),
    }
    assert json_value(row) == {"a": 1.5, "b": 2, "c": None, "d": None, "e": "x", "f": True}


def test_times_are_of_the_clock_and_of_the_processor(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # set by a library that another test starts
    with timed() as taken:
        sum(range(10**6))
    assert 0 < taken["processor_seconds"] < taken["seconds"] + 0.1
    assert environment(3)["threads"] == 3
    assert environment(None)["threads"] == environment(None)["cores"] >= 1


def test_means_and_deviations_by_setting_in_order():
    rows = pd.DataFrame({"a": [2, 2, 1], "b": [np.nan, np.nan, 0.5], "x": [1.0, 3.0, 5.0]})
    found = summarise(rows, ["a", "b"], ["x"])
    assert found["a"].tolist() == [2, 1]
    assert found["count"].tolist() == [2, 1]
    assert found["x_mean"].tolist() == [2, 5]
    assert found["x_sd"].tolist()[0] == pytest.approx(2**0.5)
    assert np.isnan(found["x_sd"].tolist()[1])


def test_format_of_numbers():
    assert study_page.mean_sd(1234.5, 1.25) == "1.23e+03 ± 1.2"
    assert study_page.mean_sd(0.5, float("nan")) == "0.5"
    assert study_page.fixed_mean_sd(1.0, 0.00004) == "1.000 ± 0.000"
    assert (
        study_page.fixed_mean_sd(float("nan"))
        == study_page.mean_sd(float("nan"), 1.0)
        == study_page.format_value(None)
        == "–"
    )
    assert study_page.format_value(float("nan")) == "–"
    assert study_page.format_duration(59.94) == "59.9 s"
    assert study_page.format_duration(600) == "10 min"
    assert study_page.format_duration(7261) == "2:01:01"
    assert study_page.markdown([["x", 1.0]], ["", "y"]) == "|  | y |\n| --- | ---: |\n| x | 1 |"


@pytest.fixture
def call(call):
    """`phenotaste study` within this process: its exit status and what it prints."""

    def call_study(*arguments):
        result = call("study", *arguments)
        return result.returncode, result.stdout, result.stderr

    return call_study


def test_help_has_an_example_and_every_study(call):
    from phenotaste.cli.study import StudyChoice
    from phenotaste.studies import NAMES

    status, out, _ = call("--help")
    assert status == 0
    assert "phenotaste study recovery --out recovery" in out
    assert [choice.value for choice in StudyChoice] == list(NAMES)


def test_invalid_usage_and_errors_are_one_sentence(call):
    assert call("recover", "--out", "x")[0] == 2
    status, out, err = call("recovery", "--fraction", "0.5", "--out", "x")
    assert (status, out) == (1, "")
    assert err == "Error: The study recovery has no option fraction: leave it out.\n"
    status, _, err = call("scale", "--jobs", "2", "--out", "x")
    assert status == 1
    assert err.count("\n") == 1
