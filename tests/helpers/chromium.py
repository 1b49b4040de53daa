"""A real Chromium for tests: Debian's package, driven by playwright. Pages must not make network requests."""

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


def _skip_or_fail(why):
    """In CI a missing browser is a failure, elsewhere a skip with its reason."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def chromium():
    """The browser, for all tests of this process."""
    if not BROWSER.exists():
        _skip_or_fail("Chromium is not installed: run sudo apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _skip_or_fail("playwright is not installed: run pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(BROWSER), args=list(FLAGS))
        yield browser
        browser.close()


class Opened:
    """Pages opened from one file in one browser profile, with their errors and requests."""

    def __init__(self, browser, address, **options):
        self.address = address
        self.context = browser.new_context(accept_downloads=True, **options)
        self.errors, self.requests = [], []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page = self.load()

    def load(self):
        page = self.context.new_page()
        page.set_default_timeout(10_000)
        page.on(
            "console", lambda message: self.errors.append(message.text) if message.type == "error" else None
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(self.address)
        page.wait_for_selector("body[data-ready]")
        return page

    def check(self):
        assert self.errors == []
        outside = [url for url in self.requests if url != self.address and not url.startswith("blob:file:")]
        assert outside == []
