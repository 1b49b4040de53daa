"""Runs the command, in this process or in one of its own, and checks how it ended."""

import os
import subprocess
import sys

import pytest

from phenotaste.cli.app import main

COMMAND = [sys.executable, "-m", "phenotaste.cli"]
# Prints x when the first statement of `main` has been executed.
SIGNALLING = (
    "from phenotaste.cli import exit_on_interrupt, main; exit_on_interrupt(); print('x', flush=True); main()"
)


def run(*arguments, folder=None, columns="80"):
    """Runs the command in a process of its own."""
    environment = os.environ | {"COLUMNS": columns}
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Runs the command within this process, which saves importing everything again."""

    def call_main(*arguments, folder=tmp_path):
        monkeypatch.setattr(sys, "argv", ["phenotaste", *map(str, arguments)])
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, end.value.code, printed.out, printed.err)

    return call_main


def succeeded(result):
    assert result.returncode == 0, result.stderr
    return result


def error_line(result, *words, status=1):
    """The error message, a single line after steps and notes; nothing is on standard output."""
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    *steps, message = result.stderr.splitlines()
    assert all(line.endswith(" …") or line.startswith("Note: ") for line in steps), result.stderr
    assert message.startswith("Error: ")
    assert all(word in message for word in words), message
    return message


def refused(result, *words, status=1):
    """Assert one sentence on standard error and no other output."""
    assert result.stderr == error_line(result, *words, status=status) + "\n"
