"""What the reader is told while the service is down, and how the page comes back."""

from __future__ import annotations

import itertools
import time

import pytest
from playwright.sync_api import expect

from tests.browser.breakable_line import BreakableLine
from tests.browser.tabs import NewTab, Tab
from tests.service import Service, wait_until
from tests.upstream import Upstream, say, use

pytestmark = pytest.mark.slow

UNREACHABLE = "The service cannot be reached."
# The page tries again after two seconds at most; the rest is for a busy machine.
LONGEST_GAP_S = 6.0


def test_a_stop_that_cannot_arrive_says_so_in_words_until_the_service_is_back(new_tab: NewTab) -> None:
    """The service is killed in mid-turn: Stop tells it in the page's words, and what is over is no longer told."""
    with Service() as service:
        tab = new_tab(service.url).open()
        turn = tab.ask("Be silent for 60 seconds, then what is a VAT number?")
        turn.locator(".waiting").wait_for()
        tab.page.locator("#stop").wait_for()
        service.kill9()
        tab.page.locator("#stop").click()
        expect(tab.page.locator("#trouble")).to_have_text(UNREACHABLE)
        expect(tab.page.locator("#stop")).to_be_enabled()
        service.start()
        expect(tab.page.locator("#connection")).to_be_empty()
        expect(tab.page.locator("#trouble")).to_be_hidden()
        _leave(tab)


def test_a_message_that_cannot_be_sent_is_kept_and_sent_later(new_tab: NewTab) -> None:
    """Nobody answers: the reason stands beside the message in the page's words; Send again works once somebody does."""
    with Service() as service:
        tab = new_tab(service.url).open()
        service.kill9()
        tab.page.locator("#input").fill("What is a VAT number?")
        tab.page.locator("#input").press("Enter")
        expect(tab.page.locator(".asked-state")).to_contain_text(f"Not sent: {UNREACHABLE}")
        service.start()
        tab.page.get_by_role("button", name="Send again").click()
        tab.page.get_by_role("button", name="Good answer").wait_for()
        expect(tab.page.locator(".asked-text")).to_have_text("What is a VAT number?")
        _leave(tab)


def test_a_conversation_that_cannot_be_deleted_stays_and_says_why(new_tab: NewTab) -> None:
    """Delete while the service is down: the conversation stays in the list, and the reader is told."""
    with Service() as service:
        tab = new_tab(service.url).open()
        tab.answered("What is a VAT number?")
        service.kill9()
        tab.page.locator(".conversation").first.hover()
        tab.page.get_by_role("button", name="Delete “What is a VAT number?”").click()
        tab.page.get_by_role("button", name="Delete", exact=True).click()
        expect(tab.page.locator("#trouble")).to_have_text(UNREACHABLE)
        expect(tab.page.locator(".conversation-link")).to_have_count(1)
        _leave(tab)


def test_the_page_tries_again_every_other_second_however_long_it_takes(new_tab: NewTab, demo: Service) -> None:
    """The line stays broken: the tries go on at the same pace, and the first one that gets through is followed."""
    with BreakableLine(demo.port) as line:
        tab = new_tab(line.url).open()
        turn = tab.ask("Be silent for 60 seconds, then what is a VAT number?")
        tab.page.locator("#stop").wait_for()
        tries: list[float] = []
        tab.page.on("request", lambda asked: tries.append(time.monotonic()) if "/v1/turns/" in asked.url else None)
        line.cut()
        expect(tab.page.locator("#connection")).to_have_text("Reconnecting…")
        while len(tries) < 8:
            with tab.page.expect_request("**/v1/turns/**"):
                pass
        line.mend()
        expect(tab.page.locator("#connection")).to_be_empty()
        gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert max(gaps) < LONGEST_GAP_S
        tab.page.locator("#stop").click()
        expect(turn).to_have_attribute("aria-busy", "false")
        _leave(tab)


def test_a_tool_whose_end_nobody_saw_shows_no_time(new_tab: NewTab) -> None:
    """A crash while a tool has effect: after the restart its outcome is unknown, and so is how long it took."""
    calls = use(("c1", "charge_slowly", {"value": "x", "seconds": 60}))
    with (
        Upstream(lambda asked: say("Done.") if "tool" in _roles(asked.body) else calls) as upstream,
        Service(upstream) as service,
    ):
        tab = new_tab(service.url).open()
        turn = tab.ask("charge it")
        wait_until(lambda: service.ledger(tool="charge_slowly"), what="the charge")
        expect(turn.locator(".tool-time")).not_to_be_empty()
        service.kill9()
        service.start()
        for _ in range(2):
            expect(turn.locator(".tool-word")).to_have_text("Outcome unknown")
            expect(turn.locator(".tool-time")).to_be_empty()
            tab.reload()
        _leave(tab)


def _roles(body: dict[str, list[dict[str, object]]]) -> list[object]:
    return [message["role"] for message in body["messages"]]


def _leave(tab: Tab) -> None:
    """Close the page before its service ends, and take out what the browser says of requests that nobody answered."""
    tab.page.close()
    tab.troubles[:] = [line for line in tab.troubles if not line.startswith("Failed to load resource")]
