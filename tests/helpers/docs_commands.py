"""Commands in the documentation held against what exists: our commands and options, make's targets, extras."""

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from phenotaste.cli import app

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = "…"


def lines_of(text: str) -> list[str]:
    """Lines of a shell block, continued ones joined, comments and blank lines left out."""
    joined = text.replace("\\\n", " ").splitlines()
    return [line for line in joined if line.strip() and not line.lstrip().startswith("#")]


def words_of(line: str, plain: bool = False) -> list[str]:
    """The words of a line; with `plain` none unless it is a command of ours with nothing for a shell to do."""
    unquoted = re.sub(r"'[^']*'|\"[^\"$`]*\"| #.*", "", line)
    unquoted = re.sub(r" > [\w./-]+\s*$", "", unquoted)  # this, and stars, the runner does without a shell
    if plain and (not line.startswith("phenotaste ") or re.search(r"[|<>&;$`?~(){}]", unquoted)):
        return []
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quotation that goes on over lines: not one of ours
        return []


def check_line(line: str, strict: bool = True) -> None:
    """Refuse a line whose command, option, make target or extra does not exist."""
    for words in commands_of(line) if strict else [words_of(line)]:
        if words[:1] == ["phenotaste"]:
            check_ours(words[1:], strict)
        if words[:1] == ["make"]:
            targets = [word for word in words[1:] if "=" not in word]
            assert set(targets) <= make_targets(), f"make has no target for: {line}"
    if "pip install" in line:
        for asked in re.findall(r"phenotaste\[([\w,-]+)\]", line):
            assert set(asked.split(",")) <= extras(), f"there is no such extra: {line}"


def commands_of(line: str) -> list[list[str]]:
    """The commands that a line of shell joins by pipes, semicolons and loops."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
    reader.whitespace_split = True
    found: list[list[str]] = [[]]
    try:
        for word in reader:
            if set(word) <= set(";&|<>()") or word in ("do", "then", "if", "while", "!"):
                found.append([])
            else:
                found[-1].append(word)
    except ValueError:  # a quotation that goes on over lines
        return []
    return found


def check_ours(arguments: list[str], strict: bool) -> None:
    """A command of ours: it must exist, and so must its options; where strict, nothing needed may be missing."""
    told = "phenotaste " + " ".join(arguments)
    command, names = typer.main.get_command(app), ["phenotaste"]
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        parts = name.split(
            "|"
        )  # “init|step|combine” names several: they share no options, and no more is asked
        missing = [part for part in parts if part not in command.commands]
        assert not missing, f"there is no command {' '.join(names)} {missing}: {told}"
        command = command.commands[parts[0]]
        names.append(name)
        if len(parts) > 1:
            return
    if strict and PLACEHOLDER not in arguments:
        parse(command, arguments, told)
        return
    known = {name for option in command.params for name in [*option.opts, *option.secondary_opts]} | {
        "--help"
    }
    asked = {word.split("=")[0] for word in arguments if word.startswith("--")}
    assert asked <= known, f"there is no option {asked - known}: {told}"


def parse(command: Any, arguments: list[str], told: str) -> None:
    """By the command's own parser: unknown options, missing values and missing arguments are errors."""
    context = command.make_context("phenotaste", [], resilient_parsing=True)
    try:
        values, left, _ = command.make_parser(context).parse_args(list(arguments))
    except Exception as error:
        raise AssertionError(f"{error}: {told}") from error
    wanted = {option.name for option in command.params if option.required}
    given = {name for name, value in values.items() if value not in (None, ())}
    assert not left, f"{left} is too much: {told}"
    assert "--help" in arguments or wanted <= given, f"{wanted - given} is missing: {told}"


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@cache
def extras() -> set[str]:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return set(declared["project"]["optional-dependencies"])
