"""The palette and the figure helpers."""

import re
from pathlib import Path

import pytest

import phenotaste
from phenotaste import plotting

PACKAGE = Path(phenotaste.__file__).parent


def test_colours_are_defined_in_one_module():
    coloured = [path.name for path in PACKAGE.rglob("*.py") if re.search(r"#[0-9a-f]{6}\b", path.read_text())]
    assert coloured == ["plotting.py"]


@pytest.mark.parametrize(
    ("variable", "colour"),
    [
        ("temporal", plotting.BLUE),
        ("static", plotting.RED),
        ("ink", plotting.INK),
        ("soft", plotting.GREY),
    ],
)
def test_the_page_and_the_figures_have_the_same_colours(variable, colour):
    style = (PACKAGE / "report" / "web" / "page.css").read_text()
    assert f"--{variable}: {colour};" in style


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_equal_figures_are_equal_files_without_a_date(kind):
    def draw() -> bytes:
        figure = plotting.new_figure(2, 2)
        figure.subplots().plot([1, 2], label="a")
        return plotting.encode_figure(figure, kind)

    assert draw() == draw()
    assert not re.search(rb"CreationDate|<dc:date>|tEXtSoftware", draw())


def test_a_legend_has_each_label_once_and_in_order():
    figure, axes = plotting.new_grid(1, 2, 4, 2)
    axes[0, 0].plot([1], [1], label="b")
    axes[0, 1].plot([1], [1], label="b")
    axes[0, 1].plot([1], [2], label="a")
    plotting.legend_below(figure, axes.flat, order=["a", "c"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_names_are_shortened_escaped_and_printable():
    assert plotting.escape_name("5 $ and more", 6) == r"5 \$ a…"
    assert plotting.escape_name("a\x1bb") == "a\ufffdb"
    assert plotting.wrap_name("5 $ and a\x1bb", 8) == "5 \\$ and\na\ufffdb"
    assert plotting.wrap_name("one two three four", 9) == "one two\nthree…"
