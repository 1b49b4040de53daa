"""Runs the code blocks of README and docs as a reader would: page by page, from top to bottom, in a folder of its own.

A block that cannot run here follows a line `<!-- not run: reason -->`; it is then held against what exists. What a page
expects to find is made by `prepare(folder)` in `docs_setup/<page>.py`, which may return names for the page's Python."""

import doctest
import glob
import importlib.util
import os
import re
import subprocess
import sys
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from markdown_it import MarkdownIt

from helpers.docs_commands import check_line, lines_of, words_of
from phenotaste.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = {"text", "json", "csv", "yaml", "toml", "mermaid"}
NOT_RUN = "<!-- not run:"
LONGEST = 600  # seconds for a block of shell, on a machine that others use as well


@dataclass
class Block:
    """A fenced block: where, which language, what, and why it is not run if it is not."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    @property
    def place(self) -> str:
        return f"{self.page.name}, line {self.line}"


def blocks_of(page: Path) -> list[Block]:
    """All code blocks of a page. One that says no language, or is only indented, is an error: nobody would run it."""
    found, reason = [], None
    for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block" and token.content.startswith(NOT_RUN):
            reason = token.content.removeprefix(NOT_RUN).split("-->")[0].strip()
            assert reason, f"{page.name}: “not run” says why"
            gone = [file for file in re.findall(r"tests/[\w/]+\.py", reason) if not (ROOT / file).is_file()]
            assert not gone, f"{page.name}: {gone} runs nothing any more"
        elif token.type in ("fence", "code_block"):
            language = token.info.split()[0] if token.info.strip() else ""
            block = Block(page, token.map[0] + 1, language, token.content, reason)
            assert language in {"python", "sh", *SHOWN}, f"{block.place}: say the language of this block"
            found.append(block)
            reason = None
        elif token.type not in ("html_block", "inline"):
            reason = None
    return found


def inline_commands(page: Path) -> list[str]:
    """Commands within sentences."""
    tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    codes = [child.content for t in tokens for child in t.children or () if child.type == "code_inline"]
    return [code for code in codes if code.startswith(("phenotaste ", "make "))]


def run_page(page: Path, folder: Path) -> int:
    """Run everything on a page; the number of blocks that ran."""
    for command in inline_commands(page):
        check_line(command, strict=False)
    todo = blocks_of(page)
    for block in todo:
        if block.not_run or block.language in SHOWN:
            check(block)
    todo = [block for block in todo if not block.not_run and block.language in ("python", "sh")]
    if todo:
        with in_folder(folder):
            names = prepare(page, folder) | {"__name__": "__main__"}
            for block in todo:
                try:
                    run_python(block, names) if block.language == "python" else run_shell(block, folder)
                except Exception as error:
                    error.add_note(f"({block.place})")
                    raise
    return len(todo)


@contextmanager
def in_folder(folder: Path):
    """In an empty folder, which is home as well, with the commands of this environment first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    fonts = os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))  # looked up only once
    here = {"HOME": str(folder), "PATH": path, "MPLBACKEND": "agg", "MPLCONFIGDIR": fonts, "COLUMNS": "100"}
    with patch.dict(os.environ, here), chdir(folder):
        yield


def prepare(page: Path, folder: Path) -> dict:
    """What the page takes for granted: docs/tutorials/omop.md asks docs_setup/tutorials_omop.py."""
    name = (
        str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/") if page.is_relative_to(ROOT) else ""
    )
    file = ROOT / "tests" / "docs_setup" / f"{name.lower().replace('/', '_').replace('-', '_')}.py"
    if not file.is_file():
        return {}
    spec = importlib.util.spec_from_file_location(f"docs_setup_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.prepare(folder) or {})


def run_python(block: Block, names: dict) -> None:
    """Examples with `>>>` must print what they show; other code must run."""
    if ">>> " in block.text:
        test = doctest.DocTestParser().get_doctest(block.text, names, block.page.name, None, block.line)
        test.globs = names  # the parser copies them, but later blocks go on with what this one made
        printed: list[str] = []
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
        failed = runner.run(test, out=printed.append, clear_globs=False).failed
        assert not failed, "".join(printed)
    else:
        code = compile("\n" * block.line + block.text, str(block.page), "exec")
        with redirect_stdout(StringIO()):
            exec(code, names)


def run_shell(block: Block, folder: Path) -> None:
    """By bash, which stops at the first error; plain commands of ours run here, since loading takes the longest."""
    lines = lines_of(block.text)
    if all(words_of(line, plain=True) for line in lines):
        for line in lines:
            run_here(words_of(line))
        return
    command = ["bash", "-e", "-o", "pipefail", "-c", block.text]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST)
    assert done.returncode == 0, f"{block.text}\nended with {done.returncode}\n{done.stdout}{done.stderr}"


def run_here(words: list[str]) -> None:
    printed, complaints = StringIO(), StringIO()
    words, file = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
    words = [name for word in words for name in sorted(glob.glob(word)) or [word]]
    with patch.object(sys, "argv", words), redirect_stdout(printed), redirect_stderr(complaints):
        try:
            main()
        except SystemExit as end:
            status = end.code
    told = printed.getvalue() + complaints.getvalue()
    assert status == 0, f"{' '.join(words)}\nended with {status}\n{told}"
    if file:
        Path(file).write_text(printed.getvalue(), encoding="utf-8")


def check(block: Block) -> None:
    """Of what is not run: Python must compile, and commands must exist with all their options."""
    if block.language == "python":
        if ">>> " not in block.text:
            compile(block.text, block.place, "exec")
    elif block.language == "sh":
        for line in lines_of(block.text):
            check_line(line)
    else:
        commands = [
            line for line in block.text.splitlines() if line.startswith(("phenotaste ", "make ", "pip "))
        ]
        assert not commands, f"{block.place}: commands belong into a block of sh"
