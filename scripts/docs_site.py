"""What mkdocs needs beyond docs/: pages that lie elsewhere in the repository, links to them, and every command's help.

Links are written for readers of the repository (`../benchmarks/README.md`) and turned into the site's own here."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = "<!-- every command -->"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
BROUGHT = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/README.md": "project/benchmarks/index.md",
} | {
    f"benchmarks/results/{file.name}": f"project/benchmarks/{file.name}"
    for file in sorted((ROOT / "benchmarks/results").glob("*.md"))
}


def on_files(files: Files, config: Any) -> Files:
    for source, uri in BROUGHT.items():
        level = InclusionLevel.NOT_IN_NAV if "/results/" in source else InclusionLevel.INCLUDED
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source), inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    uri = page.file.src_uri
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, every_command())
    return LINK.sub(lambda found: in_site(found, uri), markdown)


def in_site(link: re.Match[str], uri: str) -> str:
    """The link as it has to be on the page `uri`, if it leads to a file that lies elsewhere in the site."""
    before, target, anchor, after = link[1], link[2], link[3] or "", link[4]
    if ":" in target:
        return link[0]
    elsewhere = {to: source for source, to in BROUGHT.items()}
    source = elsewhere.get(uri, f"docs/{uri}")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if wanted == "README.md":
        place = "index.md"
    elif wanted in BROUGHT:
        place = BROUGHT[wanted]
    elif wanted.startswith("docs/"):
        place = wanted.removeprefix("docs/")
    else:
        return link[0]  # mkdocs will complain
    return f"{before}{posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor}{after}"


def every_command() -> str:
    """The help of each command, as the terminal shows it."""
    import typer.main

    from phenotaste.cli import app

    parts: list[str] = []

    def add(command: Any, name: str, above: Any) -> None:
        context = command.context_class(
            command, info_name=name, parent=above, terminal_width=80, max_content_width=80
        )
        parts.append(f"## {context.command_path}\n\n```text\n{command.get_help(context).strip()}\n```\n")
        for inner, below in sorted(getattr(command, "commands", {}).items()):
            add(below, inner, context)

    add(typer.main.get_command(app), "phenotaste", None)
    return "\n".join(parts)
