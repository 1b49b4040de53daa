"""Runs the code blocks of a page of the documentation from top to bottom in a separate folder.

A block that cannot run follows a line `<!-- not run: reason -->`; only its commands and options are then checked.
"""

import doctest
import glob
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from markdown_it import MarkdownIt

from helpers.docs_commands import check_line, lines_of, words_of
from phenotaste.cli.app import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_EXECUTED = {"text", "json", "csv", "yaml", "toml", "mermaid"}
NOT_RUN = "<!-- not run:"
TIMEOUT = 600  # seconds for a shell block, on a shared machine


@dataclass
class Block:
    """A fenced code block, with the reason why it is not run, if any."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    @property
    def location(self) -> str:
        return f"{self.page.name}, line {self.line}"


def blocks_of(page: Path) -> list[Block]:
    """All code blocks of a page; blocks without a language and indented ones are errors, because they would not run."""
    blocks, reason = [], None
    for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block" and token.content.startswith(NOT_RUN):
            reason = token.content.removeprefix(NOT_RUN).split("-->")[0].strip()
            assert reason, f"{page.name}: “not run” needs a reason"
            missing = [
                file for file in re.findall(r"tests/[\w/]+\.py", reason) if not (ROOT / file).is_file()
            ]
            assert not missing, f"{page.name}: {missing} does not exist"
        elif token.type in ("fence", "code_block"):
            language = token.info.split()[0] if token.info.strip() else ""
            block = Block(page, token.map[0] + 1, language, token.content, reason)
            assert language in {"python", "sh", *NOT_EXECUTED}, f"{block.location}: the block has no language"
            blocks.append(block)
            reason = None
        elif token.type not in ("html_block", "inline"):
            reason = None
    return blocks


def inline_commands(page: Path) -> list[str]:
    """The commands within sentences."""
    tokens = MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
    codes = [child.content for t in tokens for child in t.children or () if child.type == "code_inline"]
    return [code for code in codes if code.startswith(("phenotaste ", "make "))]


def run_page(page: Path, folder: Path, setup: Callable[[Path], None] | None = None) -> int:
    """Run all blocks of a page in a folder that `setup` prepares; return the number of blocks that ran."""
    for command in inline_commands(page):
        check_line(command, strict=False)
    runnable = []
    for block in blocks_of(page):
        if block.not_run or block.language in NOT_EXECUTED:
            check(block)
        else:
            runnable.append(block)
    if runnable:
        with in_folder(folder):
            if setup is not None:
                setup(folder)
            names = {"__name__": "__main__"}
            for block in runnable:
                try:
                    run_python(block, names) if block.language == "python" else run_shell(block, folder)
                except Exception as error:
                    error.add_note(f"({block.location})")
                    raise
    return len(runnable)


@contextmanager
def in_folder(folder: Path):
    """Make an empty folder the working and home directory, with the commands of this environment first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    fonts = os.environ.get("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))  # keeps the font cache
    variables = {
        "HOME": str(folder),
        "PATH": path,
        "MPLBACKEND": "agg",
        "MPLCONFIGDIR": fonts,
        "COLUMNS": "100",
    }
    with patch.dict(os.environ, variables), chdir(folder):
        yield


def run_python(block: Block, names: dict) -> None:
    """Run a doctest, whose output must match, or plain code."""
    if ">>> " in block.text:
        test = doctest.DocTestParser().get_doctest(block.text, names, block.page.name, None, block.line)
        test.globs = names  # the parser copies them, but later blocks use the names of this one
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
    """Run a block with bash, or in this process if it has only plain `phenotaste` commands, which saves imports."""
    lines = lines_of(block.text)
    if all(words_of(line, plain=True) for line in lines):
        for line in lines:
            run_in_process(words_of(line))
        return
    command = ["bash", "-e", "-o", "pipefail", "-c", block.text]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, f"{block.text}\nended with {done.returncode}\n{done.stdout}{done.stderr}"


def run_in_process(words: list[str]) -> None:
    stdout, stderr = StringIO(), StringIO()
    words, file = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
    words = [name for word in words for name in sorted(glob.glob(word)) or [word]]
    with patch.object(sys, "argv", words), redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            main()
        except SystemExit as end:
            status = end.code
    output = stdout.getvalue() + stderr.getvalue()
    assert status == 0, f"{' '.join(words)}\nended with {status}\n{output}"
    if file:
        Path(file).write_text(stdout.getvalue(), encoding="utf-8")


def check(block: Block) -> None:
    """Check a block that is not run: Python must compile, and commands must exist with all their options."""
    if block.language == "python":
        if ">>> " not in block.text:
            compile(block.text, block.location, "exec")
    elif block.language == "sh":
        for line in lines_of(block.text):
            check_line(line)
    else:
        commands = [
            line for line in block.text.splitlines() if line.startswith(("phenotaste ", "make ", "pip "))
        ]
        assert not commands, f"{block.location}: commands belong in a block of sh"
