"""A real Chromium for tests: Debian's package, driven by playwright. Nothing may leave the file a page is in."""

import os
from pathlib import Path

import pytest

BROWSER = Path("/usr/bin/chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def _without(why):
    """In CI a missing browser is a failure, elsewhere a skip with its reason."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def chromium():
    """The browser, for all tests of this process."""
    if not BROWSER.exists():
        _without("Chromium is not installed: run sudo apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _without("playwright is not installed: run pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(BROWSER), args=list(FLAGS))
        yield browser
        browser.close()


class Opened:
    """Pages opened from one file in one profile of the browser, and all they complained about or asked for."""

    def __init__(self, browser, address, **options):
        self.address = address
        self.context = browser.new_context(accept_downloads=True, **options)
        self.errors, self.requests = [], []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page = self.load()

    def load(self):
        page = self.context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(self.address)
        page.wait_for_selector("body[data-ready]")
        return page

    def check(self):
        assert self.errors == []
        outside = [url for url in self.requests if url != self.address and not url.startswith("blob:file:")]
        assert outside == []
