"""The API's own page: with keys, what is tried there can be tried with one (A1)."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.service import Service

pytestmark = pytest.mark.slow


def test_a_key_can_be_given_to_the_api_page(browser: Browser) -> None:
    """Authorize takes a key, and the requests that are tried from the page bring it."""
    with Service(start=False) as service:
        key = service.make_key("ann")
        service.start()
        page = browser.new_page()
        page.goto(f"{service.url}/docs")
        page.locator("button.authorize").click()
        page.locator(".auth-container input[type=text]").first.fill(key)
        page.locator(".auth-btn-wrapper button.authorize").first.click()
        page.locator(".btn-done").first.click()
        operation = page.locator("#operations-conversations-list_conversations")
        operation.locator(".opblock-summary-control").click()
        operation.locator(".try-out__btn").click()
        operation.locator("button.execute").click()
        status = operation.locator(".live-responses-table .response .response-col_status").first
        expect(status).to_contain_text("200", timeout=20_000)
        page.close()
