"""mkdocs hooks: add pages from outside docs/, rewrite the links to them, and insert the help of every command.

Links in the pages are relative to the repository (`../benchmarks/README.md`) and are rewritten for the site.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = "<!-- every command -->"
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
EXTERNAL = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/benchmarks/index.md",
} | {
    f"benchmarks/results/{file.name}": f"project/benchmarks/{file.name}"
    for file in sorted((ROOT / "benchmarks/results").glob("*.md"))
}


def on_files(files: Files, config: Any) -> Files:
    for source, uri in EXTERNAL.items():
        level = InclusionLevel.NOT_IN_NAV if "/results/" in source else InclusionLevel.INCLUDED
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source), inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    uri = page.file.src_uri
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, help_of_all_commands())
    return LINK.sub(lambda link: rewrite_link(link, uri), markdown)


def rewrite_link(link: re.Match[str], uri: str) -> str:
    """Rewrite a link on the page `uri` if the site has its target under another path."""
    before, target, anchor, after = link[1], link[2], link[3] or "", link[4]
    if ":" in target:
        return link[0]
    sources = {to: source for source, to in EXTERNAL.items()}
    source = sources.get(uri, f"docs/{uri}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path == "README.md":
        page = "index.md"
    elif path in EXTERNAL:
        page = EXTERNAL[path]
    elif path.startswith("docs/"):
        page = path.removeprefix("docs/")
    else:
        return link[0]  # mkdocs reports it
    return f"{before}{posixpath.relpath(page, posixpath.dirname(uri) or '.')}{anchor}{after}"


def help_of_all_commands() -> str:
    """The output of `--help` for each command."""
    import typer.main

    from phenotaste.cli.app import app

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
