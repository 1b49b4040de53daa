"""Settings as a TOML file: read with every slip named, written with every setting and what it is for."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from phenotaste.build import defaults
from phenotaste.build.rules import Rule
from phenotaste.build.settings import RULES, SECTIONS, Settings
from phenotaste.errors import InputError

FILES = {("groups", "table"), ("groups", "multi3"), ("index", "labels")}
HEAD = (
    "# How a cohort is built: phenotaste cohort SOURCE ... --settings THIS.toml; flags override this file.\n"
)
TITLES = {
    "groups": "Which codes become which features.",
    "index": "The event that time is counted from, and the window before it.",
    "match": "Controls for each case, without replacement; they take their case's index date.",
    "static": "Static features, one-hot, each the last value before the window ends.",
}


def from_toml(path: str | os.PathLike[str], base: Settings | None = None) -> Settings:
    """The settings of a file over those of `base`; the files it names are relative to where it lies."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path of the settings.") from None
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{path} cannot be read as text in UTF-8; check the file.") from None
    try:
        return parse(text, base, Path(path).absolute().parent)
    except InputError as error:
        raise InputError(f"in {path}, {error}") from None


def parse(text: str, base: Settings | None = None, folder: Path | None = None) -> Settings:
    try:
        given = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the TOML is broken ({str(error).rstrip('.')}); correct it.") from None
    base = base or Settings()
    known(given, [*RULES, *SECTIONS], "")
    values = {name: value_of(given[name], rule) for name, rule in RULES.items() if name in given}
    for section, (kind, rules) in SECTIONS.items():
        if section not in given:
            continue
        if not isinstance(given[section], dict):
            raise InputError(f"{section} must be a table: write [{section}] above its settings.")
        known(given[section], rules, f"{section}.")
        inner = {
            name: value_of(given[section][name], rule)
            for name, rule in rules.items()
            if name in given[section]
        }
        for name in inner:
            if folder is not None and (section, name) in FILES and isinstance(inner[name], str):
                inner[name] = os.path.normpath(folder / inner[name])
        values[section] = replace(getattr(base, section) or kind(), **inner)
    return replace(base, **values)


def known(given: Mapping[str, Any], names: Any, prefix: str) -> None:
    for name in given:
        if name not in names:
            where = f"the settings of {prefix.rstrip('.')}" if prefix else "the settings"
            raise InputError(f"{prefix}{name} is no setting; {where} are {', '.join(names)}.")


def value_of(value: Any, rule: Rule) -> Any:
    """What TOML says as Python has it; whether it is allowed is for the record to check."""
    if rule.nullable and type(value) is type(rule.none) and value == rule.none:
        return None
    if isinstance(value, list):
        return tuple(value) if all(isinstance(item, str | int) for item in value) else value
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    return value


def to_toml(settings: Settings) -> str:
    """A file that gives these settings back, whatever the source's defaults that it is read over."""
    lines = [HEAD, *entries(settings, RULES)]
    for section, (_, rules) in SECTIONS.items():
        if (record := getattr(settings, section)) is not None:
            lines += [f"\n# {TITLES[section]}", f"[{section}]", *entries(record, rules)]
    return "\n".join(lines) + "\n"


def template(source: str | None = None) -> str:
    """Every setting with its default for a source, to be edited; index and matching are commented out."""
    settings = defaults.of_source(source)
    lines = [HEAD, *entries(settings, RULES)]
    for section, (kind, rules) in SECTIONS.items():
        record = getattr(settings, section)
        mark = "# " if record is None else ""
        lines += [f"\n{mark}# {TITLES[section]}", f"{mark}[{section}]"]
        lines += [mark + line for line in entries(record or kind(), rules)]
    return "\n".join(lines) + "\n"


def entries(record: Any, rules: Mapping[str, Rule]) -> Iterator[str]:
    """Two lines for each setting: what it is for and may be, and its value."""
    for name, rule in rules.items():
        value = getattr(record, name)
        other = f", or {written(rule.none)}" if rule.nullable and rule.none else ""
        yield f"# {rule.comment}: {rule.allowed()}{other}"
        yield f"{name} = {written(rule.none if value is None else value)}"


def written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
