"""Settings as TOML: read with precise errors, written with every setting and its description."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from phenotaste.build.rules import Rule
from phenotaste.build.settings import RULES, SECTIONS, Settings, SourceOptions, source_defaults
from phenotaste.errors import InputError
from phenotaste.storage.input_files import read_text

SOURCE = "source"
FILES = {
    ("", "like"),
    ("groups", "table"),
    ("groups", "multi3"),
    ("groups", "names"),
    ("index", "labels"),
    ("measurements", "ranges"),
    ("measurements", "learn_from"),
}
HEAD = (
    "# Settings of a cohort: phenotaste cohort SOURCE ... --settings THIS.toml; flags override this file.\n"
)
TITLES = {
    "groups": "Grouping of codes to features.",
    "index": "The index event, and the observation window before it.",
    "match": "Controls for each case, without replacement; they take their case's index date.",
    "static": "Static features, one-hot encoded, each the last value before the window ends.",
    "measurements": "Results of measurements, where kinds has measurement; each is low, normal or high.",
    "weights": "Factors by which the entries of each kind are multiplied.",
    SOURCE: "The source and the options with which it was read, as on the command line.",
}


def from_toml(path: str | os.PathLike[str], base: Settings | None = None) -> Settings:
    """Read settings from a file, with defaults from `base`; file names in it are relative to its folder."""
    text = read_text(path, "the settings")
    try:
        return parse(text, base, Path(path).absolute().parent)
    except InputError as error:
        raise InputError(f"in {path}, {error}") from None


def parse(text: str, base: Settings | None = None, folder: Path | None = None) -> Settings:
    try:
        given = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the TOML is invalid ({str(error).rstrip('.')}); correct it.") from None
    base = base or Settings()
    check_names(given, [*RULES, *SECTIONS, SOURCE], "")
    values = values_of(given, RULES, "", folder)
    for section, (kind, rules) in SECTIONS.items():
        if section in given:
            table = checked_table(given, section)
            check_names(table, rules, f"{section}.")
            inner = values_of(table, rules, section, folder)
            values[section] = replace(getattr(base, section) or kind(), **inner)
    if SOURCE in given:
        table = checked_table(given, SOURCE)
        options = {
            name: tuple(v) if isinstance(v, list) else v for name, v in table.items() if name != "name"
        }
        values[SOURCE] = SourceOptions(table.get("name", ""), options)
    return replace(base, **values)


def checked_table(given: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    table = given[section]
    if not isinstance(table, dict):
        raise InputError(f"{section} must be a table: write [{section}] above its settings.")
    return table


def values_of(
    given: Mapping[str, Any], rules: Mapping[str, Rule], section: str, folder: Path | None
) -> dict[str, Any]:
    """The given settings of a section; files are relative to `folder`."""
    values = {name: from_toml_value(given[name], rule) for name, rule in rules.items() if name in given}
    for name, value in values.items():
        if folder is not None and (section, name) in FILES and isinstance(value, str):
            values[name] = os.path.normpath(folder / value)
    return values


def check_names(given: Mapping[str, Any], names: Any, prefix: str) -> None:
    for name in given:
        if name not in names:
            where = f"the settings of {prefix.rstrip('.')}" if prefix else "the settings"
            raise InputError(f"{prefix}{name} is not a setting; {where} are {', '.join(names)}.")


def from_toml_value(value: Any, rule: Rule) -> Any:
    """Convert a TOML value to Python; the record validates it."""
    if rule.nullable and type(value) is type(rule.none) and value == rule.none:
        return None
    if isinstance(value, list):
        return tuple(value) if all(isinstance(item, str | int | float) for item in value) else value
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    return value


def to_toml(settings: Settings) -> str:
    """Write all settings, so that reading the file gives them back regardless of the source's defaults."""
    lines = [HEAD, *setting_lines(settings, RULES)]
    for section, (_, rules) in SECTIONS.items():
        if (record := getattr(settings, section)) is not None:
            lines += [f"\n# {TITLES[section]}", f"[{section}]", *setting_lines(record, rules)]
    if settings.source is not None:
        options = {"name": settings.source.name, **settings.source.options}
        lines += [f"\n# {TITLES[SOURCE]}", f"[{SOURCE}]"]
        lines += [f"{name} = {to_toml_value(value)}" for name, value in options.items()]
    return "\n".join(lines) + "\n"


def template(source: str | None = None) -> str:
    """A file to edit with every setting and its default for a source; index and matching are commented out."""
    settings = source_defaults(source)
    lines = [HEAD, *setting_lines(settings, RULES)]
    for section, (kind, rules) in SECTIONS.items():
        record = getattr(settings, section)
        mark = "# " if record is None else ""
        lines += [f"\n{mark}# {TITLES[section]}", f"{mark}[{section}]"]
        lines += [mark + line for line in setting_lines(record or kind(), rules)]
    return "\n".join(lines) + "\n"


def setting_lines(record: Any, rules: Mapping[str, Rule]) -> Iterator[str]:
    """Two lines for each setting: a comment with its description and allowed values, and its value."""
    for name, rule in rules.items():
        value = getattr(record, name)
        other = f", or {to_toml_value(rule.none)}" if rule.nullable and rule.none else ""
        yield f"# {rule.comment}: {rule.allowed()}{other}"
        yield f"{name} = {to_toml_value(rule.none if value is None else value)}"


def to_toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(to_toml_value, value))}]"
    if isinstance(value, str):
        # JSON's escapes are valid in TOML, which also requires DEL to be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
