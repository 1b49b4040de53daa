"""Checks that commands in the documentation exist: phenotaste's commands and options, make targets, extras."""

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from phenotaste.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = "…"


def lines_of(text: str) -> list[str]:
    """The lines of a shell block, with continuation lines joined, without comments and blank lines."""
    joined = text.replace("\\\n", " ").splitlines()
    return [line for line in joined if line.strip() and not line.lstrip().startswith("#")]


def words_of(line: str, plain: bool = False) -> list[str]:
    """The words of a line; with `plain` none unless it is a `phenotaste` command that needs no shell."""
    unquoted = re.sub(r"'[^']*'|\"[^\"$`]*\"| #.*", "", line)
    unquoted = re.sub(
        r" > [\w./-]+\s*$", "", unquoted
    )  # the runner handles this and wildcards without a shell
    if plain and (not line.startswith("phenotaste ") or re.search(r"[|<>&;$`?~(){}]", unquoted)):
        return []
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quotation over several lines, in none of our commands
        return []


def check_line(line: str, strict: bool = True) -> None:
    """Assert that the command, options, make target and extras of a line exist."""
    for words in commands_of(line) if strict else [words_of(line)]:
        if words[:1] == ["phenotaste"]:
            check_command(words[1:], strict)
        if words[:1] == ["make"]:
            targets = [word for word in words[1:] if "=" not in word]
            assert set(targets) <= make_targets(), f"make has no target for: {line}"
    if "pip install" in line:
        for names in re.findall(r"phenotaste\[([\w,-]+)\]", line):
            assert set(names.split(",")) <= extras(), f"there is no such extra: {line}"


def commands_of(line: str) -> list[list[str]]:
    """The commands of a shell line with pipes, semicolons and loops."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
    reader.whitespace_split = True
    commands: list[list[str]] = [[]]
    try:
        for word in reader:
            if set(word) <= set(";&|<>()") or word in ("do", "then", "if", "while", "!"):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:  # a quotation over several lines
        return []
    return commands


def check_command(arguments: list[str], strict: bool) -> None:
    """Assert that a `phenotaste` command and its options exist and, if strict, that nothing required is missing."""
    shown = "phenotaste " + " ".join(arguments)
    command, names = typer.main.get_command(app), ["phenotaste"]
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        parts = name.split("|")  # “init|step|combine” names several, whose options are not checked
        missing = [part for part in parts if part not in command.commands]
        assert not missing, f"there is no command {' '.join(names)} {missing}: {shown}"
        command = command.commands[parts[0]]
        names.append(name)
        if len(parts) > 1:
            return
    if strict and PLACEHOLDER not in arguments:
        parse(command, arguments, shown)
        return
    known = {name for option in command.params for name in [*option.opts, *option.secondary_opts]} | {
        "--help"
    }
    given = {word.split("=")[0] for word in arguments if word.startswith("--")}
    assert given <= known, f"there is no option {given - known}: {shown}"


def parse(command: Any, arguments: list[str], shown: str) -> None:
    """Parse with the command's own parser, which refuses unknown options, missing values and missing arguments."""
    context = command.make_context("phenotaste", [], resilient_parsing=True)
    try:
        values, left, _ = command.make_parser(context).parse_args(list(arguments))
    except Exception as error:
        raise AssertionError(f"{error}: {shown}") from error
    required = {option.name for option in command.params if option.required}
    given = {name for name, value in values.items() if value not in (None, ())}
    assert not left, f"unexpected {left}: {shown}"
    assert "--help" in arguments or required <= given, f"{required - given} is missing: {shown}"


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@cache
def extras() -> set[str]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return set(declared["project"]["optional-dependencies"])
