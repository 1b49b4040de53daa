"""The table of phenotypes in the README is that of the study of ICU stays."""

import re
from pathlib import Path

import pytest

from phenotaste.comparison.methods import METHODS
from phenotaste.studies import evidence
from phenotaste.studies.results import read_results

ROOT = Path(__file__).parents[2]
RANK = 10
ROWS = {
    "codes, mean cosine between halves": ("v_cosine", "{:.3f}"),
    "phenotypes found again": ("v_share", "{:.0%}"),
    "static facts, mean cosine between halves": ("f_cosine", "{:.3f}"),
    "AUC of death in hospital, from the scores": ("auc", "{:.3f}"),
    "and from static features and the size of the record": ("auc_size", "{:.3f}"),
}


@pytest.fixture(scope="module")
def table():
    found = evidence.table(read_results(ROOT / "docs" / "studies" / "results" / "icu.csv"))
    return found[found["sets"] == evidence.HALF]


def section():
    text = (ROOT / "README.md").read_text()
    return text.split("## How good are the phenotypes?")[1].split("\n## ")[0]


def test_every_number_of_the_table_is_that_of_the_study(table):
    header, _, *lines = (line for line in section().splitlines() if line.startswith("|"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, *lines)]
    names = {method.label: name for name, method in METHODS.items()}
    rows = table[table["rank"] == RANK].set_index("method")
    assert [row[0] for row in cells[1:]] == list(ROWS)
    for row in cells[1:]:
        column, form = ROWS[row[0]]
        for label, shown in zip(cells[0][1:], row[1:], strict=True):
            assert shown == with_interval(rows.loc[names[label]], column, form), (row[0], label)


def with_interval(row, column, form):
    """A mean with the interval of the study, where there is one: equal values have none."""
    value, low, high = (row[f"{column}_{name}"] for name in ("mean", "low", "high"))
    if value != value:
        return "–"
    shown = form.format(value) + (f" ({form.format(low)} to {form.format(high)})" if low == low else "")
    return shown.replace("%", " %")


def test_what_the_text_says_is_in_the_study(table):
    rows = table[table["rank"] == RANK].set_index("method")
    more = table[table["rank"] == 20].set_index("method")["v_cosine_mean"]
    networks = table.set_index("method").loc[["boosting", "gru"], "auc_mean"]
    assert re.search(r"predicts better \((0\.\d+)\)", section())[1] == f"{networks['boosting']:.3f}"
    assert networks.min() > rows["auc_size_mean"].max()
    assert f"[{len(rows)} methods" in section()
    for rank in (5, RANK):
        cosines = table[table["rank"] == rank].set_index("method")["v_cosine_mean"]
        assert cosines["taste"] == cosines.max()
        assert cosines["visit-nmf"] >= cosines.max() - 0.001
    assert more["nmf"] == more.max()
    assert f"({more['nmf']:.3f} and {more['taste']:.3f})" in section()
    assert rows.loc["taste", "auc_size_mean"] >= rows["auc_size_mean"].max() - 0.005
    assert rows.loc["taste", "seconds_mean"] > 10 * rows.loc["nmf", "seconds_mean"]
