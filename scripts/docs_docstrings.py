"""A griffe extension that converts docstrings to Markdown: sections become lists, examples code, comments field texts.

Parameters are documented as `rank : number of phenotypes.`, without the type and the indented line of numpydoc.
"""

import re
from typing import Any

import griffe

HEADING = re.compile(r"(Parameters|Attributes|Examples|Returns)")
ENTRY = re.compile(r"([\w*]+(?:, [\w*]+)*|The rest) : (.*)")
RECORDS = ("dataclass", "dataclasses.dataclass")


class Docstrings(griffe.Extension):
    """The extension named in mkdocs.yml."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        if obj.docstring is None:
            return
        text = markdown(obj.docstring.value)
        if is_record(obj) and "**Attributes**" not in text:
            head, examples, rest = text.partition("**Examples**")
            text = f"{head.rstrip()}\n\n**Attributes**\n\n{fields(obj)}\n\n{examples}{rest}"
        obj.docstring.value = text


def is_record(obj: Any) -> bool:
    """Whether an object is a dataclass or a NamedTuple, whose fields are public."""
    if not obj.is_class:
        return False
    decorated = any(decorator.callable_path in RECORDS for decorator in obj.decorators)
    return decorated or any(str(base).endswith("NamedTuple") for base in obj.bases)


def fields(record: Any) -> str:
    """The fields of a record as a list, each with its comment."""
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
    output: list[str] = []
    start, listing = 0, False
    while start < len(lines):
        line, end = lines[start], start + 1
        entry = ENTRY.fullmatch(line)
        if bool(entry) != listing and not line.startswith(" "):
            output.append("")  # Markdown needs an empty line before and after a list
            listing = bool(entry)
        if entry:
            names = ", ".join(f"`{name}`" if name != "The rest" else name for name in entry[1].split(", "))
            output.append(f"- {names}: {entry[2]}")
        elif HEADING.fullmatch(line) and "".join(lines[end : end + 1]).startswith("---"):
            output += [f"**{line}**", ""]
            end += 1
        elif line.startswith(">>> "):
            end = next((n for n in range(start, len(lines)) if not lines[n].strip()), len(lines))
            output += ["```pycon", *lines[start:end], "```"]
        else:
            output.append(line)
        start = end
    return "\n".join(output)
