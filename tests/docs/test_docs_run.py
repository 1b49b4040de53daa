"""Runs every command and snippet of README and docs, and tests that the runner detects failures."""

import pytest

from helpers.docs_commands import check_line
from helpers.docs_run import PAGES, ROOT, inline_commands, run_page
from helpers.docs_setup import SETUP


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_on_the_page_runs(page, tmp_path):
    run_page(page, tmp_path, SETUP.get(str(page.relative_to(ROOT))))


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md"])
def test_commands_on_other_pages_exist(name):
    for command in inline_commands(ROOT / name):
        check_line(command, strict=False)


def page_with(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    folder = tmp_path / "reader"
    folder.mkdir()
    return run_page(page, folder)


WORKS = """Steps:

```python
a = 1
```

- in a list

    ```python
    >>> a + 1
    2
    >>> b = a + 2

    ```

```sh
echo "$HOME" > home.txt    # a comment
test -s home.txt
```

```python
assert (a, b) == (1, 3)
assert open("home.txt").read().strip().endswith("reader")
```

```sh
phenotaste cohort omop --template > study.toml   # every setting
```

```sh
grep -q min_visits study.toml
```

<!-- not run: takes hours -->
```sh
phenotaste fit COHORT --rank 40 \\
    --out MODEL
```
"""


def test_blocks_of_a_page_run_in_order_in_one_folder_with_the_same_names(tmp_path):
    assert page_with(tmp_path, WORKS) == 6


BROKEN = {
    "python that fails": "```python\n1 / 0\n```",
    "an example that prints something else": "```python\n>>> 1 + 1\n3\n\n```",
    "a command that fails, not the last one": "```sh\nfalse\ntrue\n```",
    "a pipe that fails": "```sh\nfalse | cat\n```",
    "ours, refused": "```sh\nphenotaste fit nowhere --out MODEL\n```",
    "ours, misused": "```sh\nphenotaste fit --nothing-like-this\n```",
    "not run, unknown option": "<!-- not run: no GPU -->\n```sh\nphenotaste fit COHORT --devise cuda --out M\n```",
    "not run, unknown command": "<!-- not run: no GPU -->\n```sh\nphenotaste fitt COHORT\n```",
    "not run, argument missing": "<!-- not run: no GPU -->\n```sh\nphenotaste fit --out MODEL\n```",
    "not run, too many": "<!-- not run: no GPU -->\n```sh\nphenotaste fit COHORT MODEL\n```",
    "not run, no Python": "<!-- not run: no GPU -->\n```python\nTASTE(device=\n```",
    "not run, no target": "<!-- not run: hours -->\n```sh\nmake everything\n```",
    "not run, no extra": "<!-- not run: network -->\n```sh\npip install 'phenotaste[gpus]'\n```",
    "not run, without a reason": "<!-- not run: -->\n```sh\ntrue\n```",
    "not run, of another block": "<!-- not run: hours -->\n\nText.\n\n```python\n1 / 0\n```",
    "no language": "```\nphenotaste demo\n```",
    "indented": "Run\n\n    phenotaste demo\n",
    "a language that is not run": "```perl\n1;\n```",
    "a command as mere text": "```text\nphenotaste demo\n```",
    "not run, by a test that is gone": "<!-- not run: tests/test_nothing.py does -->\n```sh\ntrue\n```",
    "in a sentence, no target": "Give `make everything`.",
    "in a sentence, unknown option": "Give `phenotaste fit --devise cuda`.",
    "in a sentence, unknown command": "Give `phenotaste federated init|stop`.",
}


@pytest.mark.parametrize("what", BROKEN)
def test_failures_are_detected(what, tmp_path):
    with pytest.raises((AssertionError, ZeroDivisionError, SyntaxError)):
        page_with(tmp_path, BROKEN[what])


def test_lines_within_loops_and_pipes_are_checked_too():
    check_line("for site in a b; do phenotaste federated status work; done")
    with pytest.raises(AssertionError, match="nowhere"):
        check_line("cat x | phenotaste nowhere")
