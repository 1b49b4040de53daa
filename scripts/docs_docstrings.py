"""Docstrings as the site shows them: their sections as lists, their examples as code, a field's comment as its text.

Docstrings here say `rank : number of phenotypes.`, where numpydoc would want a type and a line below it.
"""

import re
from typing import Any

import griffe

HEADING = re.compile(r"(Parameters|Attributes|Examples|Returns)")
ENTRY = re.compile(r"([\w*]+(?:, [\w*]+)*|The rest) : (.*)")
RECORDS = ("dataclass", "dataclasses.dataclass")


class Docstrings(griffe.Extension):
    """Given to mkdocstrings in mkdocs.yml."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        if obj.docstring is None:
            return
        text = markdown(obj.docstring.value)
        if is_record(obj) and "**Attributes**" not in text:
            head, examples, rest = text.partition("**Examples**")
            text = f"{head.rstrip()}\n\n**Attributes**\n\n{fields(obj)}\n\n{examples}{rest}"
        obj.docstring.value = text


def is_record(found: Any) -> bool:
    """Whether it is a dataclass or a NamedTuple, whose fields are part of what users see."""
    if not found.is_class:
        return False
    decorated = any(decorator.callable_path in RECORDS for decorator in found.decorators)
    return decorated or any(str(base).endswith("NamedTuple") for base in found.bases)


def fields(record: Any) -> str:
    """The fields of a record as a list, each with the comment that stands behind it."""
    lines = record.filepath.read_text().splitlines()
    listed = []
    for name, field in record.attributes.items():
        if name.startswith("_") or field.annotation is None or "property" in field.labels:
            continue
        source = lines[field.lineno - 1 : field.endlineno]
        comment = " ".join(line.partition("  # ")[2] for line in source).strip()
        listed.append(f"- `{name}`: {comment}" if comment else f"- `{name}`")
    return "\n".join(listed)


def markdown(text: str) -> str:
    lines = text.splitlines()
    found: list[str] = []
    place, listing = 0, False
    while place < len(lines):
        line, end = lines[place], place + 1
        entry = ENTRY.fullmatch(line)
        if bool(entry) != listing and not line.startswith(" "):
            found.append("")  # Markdown begins and ends a list with an empty line
            listing = bool(entry)
        if entry:
            names = ", ".join(f"`{name}`" if name != "The rest" else name for name in entry[1].split(", "))
            found.append(f"- {names}: {entry[2]}")
        elif HEADING.fullmatch(line) and "".join(lines[end : end + 1]).startswith("---"):
            found += [f"**{line}**", ""]
            end += 1
        elif line.startswith(">>> "):
            end = next((n for n in range(place, len(lines)) if not lines[n].strip()), len(lines))
            found += ["```pycon", *lines[place:end], "```"]
        else:
            found.append(line)
        place = end
    return "\n".join(found)
