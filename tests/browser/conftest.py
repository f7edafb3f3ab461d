"""A real Chromium, and pages in it that tell of every error, every breach of the policy and every request to elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, sync_playwright

from tests.browser.tabs import NewTab, Tab
from tests.needs import require
from tests.service import Service

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Long enough for a busy machine; nothing waits this long when it works.
PATIENCE_MS = 20_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, once for each file. Closed before other tests run: it holds an event loop of its own."""
    path = require("Chromium", shutil.which("chromium") or shutil.which("google-chrome"), "apt-get install chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, headless=True)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def demo(browser: Browser) -> Iterator[Service]:
    """The service as it comes: the bookkeeping assistant, no key."""
    with Service() as service:
        yield service


@pytest.fixture
def new_tab(browser: Browser) -> Iterator[NewTab]:
    """Makes tabs, each a visitor of its own; in the end no tab may have had trouble."""
    tabs: list[Tab] = []

    def make(
        url: str,
        *,
        width: int = 1200,
        height: int = 860,
        scheme: Literal["light", "dark"] = "light",
        motion: Literal["no-preference", "reduce"] = "no-preference",
        touch: bool = False,
        beside: Tab | None = None,
    ) -> Tab:
        context = (
            beside.page.context
            if beside
            else browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion=motion, has_touch=touch
            )
        )
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        tab = Tab(page, url)
        page.on("console", lambda message: _note(tab, message))
        page.on("pageerror", lambda error: tab.troubles.append(str(error)))
        page.on("request", lambda request: _watch(tab, request.url))
        tabs.append(tab)
        return tab

    yield make
    for tab in tabs:
        tab.page.context.close()
    for tab in tabs:
        assert tab.troubles == []
        assert tab.elsewhere == []


def _note(tab: Tab, message: ConsoleMessage) -> None:
    if message.type == "error":
        tab.troubles.append(message.text)


def _watch(tab: Tab, url: str) -> None:
    if not url.startswith((f"{tab.url}/", "data:", "about:")):
        tab.elsewhere.append(url)
