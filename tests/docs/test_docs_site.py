"""The site: no warnings, no dead links, next steps on every page, nothing loaded from other hosts."""

import re
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from phenotaste.studies import NAMES

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
LINKING = [*ROOT.glob("*.md"), *PAGES, *sorted((ROOT / "benchmarks").rglob("*.md"))]
GENERATED = {ROOT / "docs" / "studies" / f"{name}.md" for name in NAMES}
LOADS = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "video": "src"}


def name_of(path):
    return str(path.relative_to(ROOT))


def tokens_of(path):
    return MarkdownIt().enable("table").parse(path.read_text(encoding="utf-8"))


def links_of(tokens):
    inner = [child for token in tokens for child in token.children or ()]
    found = [child.attrs["href"] for child in inner if child.type == "link_open"]
    return found + [child.attrs["src"] for child in inner if child.type == "image"]


def anchors_of(path):
    """The anchors of the headings, on the site and where Markdown is rendered: letters, digits, dashes."""
    tokens = tokens_of(path)
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_the_site_builds_without_a_warning_and_has_every_page(site):
    built = {str(file.relative_to(site).with_suffix("")) for file in site.rglob("*.html")}
    pages = {name_of(page).removeprefix("docs/").removesuffix(".md") for page in PAGES}
    assert {page.replace("README", "index") for page in pages} <= built
    assert {
        "project/changelog",
        "project/contributing",
        "project/security",
        "project/benchmarks/index",
    } <= built


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_no_link_is_dead(page):
    for link in links_of(tokens_of(page)):
        if re.match(r"(https?|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} does not exist"
        if anchor:
            assert anchor in anchors_of(target), f"{link}: no such heading"


def test_anchors_of_headings(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# What sums can [reveal](x.md)\n\n## λ, μ & `rank`\n\ntext\n")
    assert anchors_of(page) == {"what-sums-can-reveal", "λ-μ-rank"}


@pytest.mark.parametrize("page", [page for page in PAGES if page not in GENERATED], ids=name_of)
def test_every_page_ends_with_next_steps(page):
    text = page.read_text(encoding="utf-8")
    last = re.split(r"^(?=## Next steps$)", text, flags=re.MULTILINE)
    assert len(last) > 1, "the last section is “Next steps”"
    end = MarkdownIt().parse(last[-1])
    assert sum(token.type == "heading_open" for token in end) <= 1, "no section follows “Next steps”"
    assert links_of(end)


@pytest.mark.parametrize("page", sorted(GENERATED), ids=name_of)
def test_generated_pages_link_to_the_next_page_in_the_footer(site, page):
    text = (site / "studies" / f"{page.stem}.html").read_text(encoding="utf-8")
    assert "md-footer__link--next" in text


class Loads(HTMLParser):
    """The resources that a page loads: scripts, styles, images, frames; not its links."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in LOADS and (tag != "link" or values.get("rel") not in ("canonical", "next", "prev")):
            self.found.append(values.get(LOADS[tag]) or "")


def test_no_page_loads_resources_from_another_host(site):
    for file in site.rglob("*.html"):
        reader = Loads()
        reader.feed(file.read_text(encoding="utf-8"))
        outside = [address for address in reader.found if re.match(r"(https?:)?//", address)]
        assert not outside, f"{file.name} loads {outside}"
    for file in site.rglob("*.css"):
        assert not re.findall(
            r"(?:url\(|@import )[\"']?(?:https?:)?//[^)]*", file.read_text(encoding="utf-8")
        )


def test_a_browser_contacts_no_other_host(site, chromium):
    """Scripts could load resources, so the pages are opened and the search is used."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    requests, errors = [], []
    try:
        home = f"http://127.0.0.1:{server.server_port}/"
        page = chromium.new_context().new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        for name in ("index.html", "method.html", "reference/cli.html"):
            page.goto(home + name)
        page.goto(home + "index.html")
        page.fill("input.md-search__input", "hospitals")
        page.wait_for_selector(".md-search-result__item", state="attached", timeout=60_000)
        page.context.close()
    finally:
        server.shutdown()
        server.server_close()
    assert len(requests) > 5
    assert [url for url in requests if not url.startswith((home, "blob:", "data:"))] == []
    assert errors == []


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_the_page_of_commands_has_every_option_of_every_command(site):
    import typer.main

    from phenotaste.cli.app import app

    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")

    def check(command, name):
        assert f"{name}" in text
        for option in command.params:
            for spelled in option.opts if option.param_type_name == "option" and not option.hidden else ():
                assert spelled in text, f"{name} {spelled}"
        for inner, below in getattr(command, "commands", {}).items():
            check(below, f"{name} {inner}")

    check(typer.main.get_command(app), "phenotaste")
