"""Every number on the pages in docs/studies comes out of the tables beside them: they are made again, and compared."""

from pathlib import Path

import pytest

from phenotaste.studies import NAMES
from phenotaste.studies.results import read_results
from phenotaste.studies.study import load
from phenotaste.studies.study_page import page

DOCS = Path(__file__).resolve().parents[2] / "docs" / "studies"


@pytest.mark.parametrize("name", NAMES)
def test_the_page_in_the_docs_is_the_one_its_results_make(name):
    results = read_results(DOCS / "results" / f"{name}.csv")
    assert (DOCS / f"{name}.md").read_text() == page(load(name), results)


@pytest.mark.parametrize("name", NAMES)
def test_each_page_has_its_figure(name):
    assert f"]({name}.png)" in (DOCS / f"{name}.md").read_text()
    assert (DOCS / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_no_other_files_hold_results():
    """The list of studies names them and has no figures of its own; every page belongs to a study."""
    assert {path.stem for path in DOCS.glob("*.md")} == {*NAMES, "README"}
    assert {path.stem for path in DOCS.glob("results/*")} == set(NAMES)
    listed = (DOCS / "README.md").read_text()
    assert all(f"({name}.md)" in listed for name in NAMES)
    assert not any(
        letter.isdigit()
        for letter in listed.replace("Q1", "").replace("Q2", "").replace("Q3", "").replace("Q4", "")
    )


def test_results_of_quick_runs_are_not_published():
    """A quick run must not get in here by mistake: its cells are not those of the whole study."""
    assert read_results(DOCS / "results" / "recovery.csv")["patients"].unique().tolist() == [100]
    assert sorted(read_results(DOCS / "results" / "speed.csv")["rank"].unique()) == [5, 10, 20, 40]
    assert read_results(DOCS / "results" / "scale.csv")["rank"].unique().tolist() == [40]
    assert read_results(DOCS / "results" / "heart-failure.csv")["rank"].max() == 20


def test_invariants_hold_in_the_results():
    rows = read_results(DOCS / "results" / "recovery.csv")
    ours = rows[rows["method"] == "TASTE"]
    assert ours["noise"].nunique() == 8
    assert ours.groupby(["noise_scale", "q", "noise"])["cpi"].mean().min() >= 0.99
