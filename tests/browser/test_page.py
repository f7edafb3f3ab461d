"""What a person can do on the page, with the service as it comes."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.tabs import NewTab
from tests.service import Service

pytestmark = pytest.mark.slow


def test_a_first_visitor_sees_what_may_be_asked_and_asks_it_with_one_click(new_tab: NewTab, demo: Service) -> None:
    """The five suggestions are there, and a click on one sends its words and names the conversation after them."""
    tab = new_tab(demo.url).open()
    expect(tab.page.locator(".suggestion")).to_have_count(5)
    tab.page.locator(".suggestion", has_text="What is a VAT number?").click()
    turn = tab.page.locator(".turn")
    turn.get_by_role("button", name="Good answer").wait_for()
    expect(turn.locator(".prose").last).to_contain_text("VAT number")
    expect(tab.page.locator(".asked-text")).to_have_text("What is a VAT number?")
    expect(tab.page.locator("#title")).to_have_text("What is a VAT number?")
    expect(tab.page.locator("[aria-current=page]")).to_have_text("What is a VAT number?")


def test_a_newcomer_finds_out_what_can_be_asked(new_tab: NewTab, demo: Service) -> None:
    """One suggestion asks for help, and the answer lists what the assistant understands."""
    tab = new_tab(demo.url).open()
    tab.page.get_by_role("button", name="What can you do?").click()
    tab.page.get_by_role("button", name="Good answer").wait_for()
    expect(tab.page.locator(".asked-text")).to_have_text("help")
    expect(tab.page.locator(".prose").last).to_contain_text("fail in the middle")


def test_an_answer_shows_its_tool_with_word_time_and_result(new_tab: NewTab, demo: Service) -> None:
    """A tool's line says in words how it ended and how long it took, and unfolds to what was called and came back."""
    turn = new_tab(demo.url).open().answered("Show me the transactions of last month")
    tool = turn.locator(".tool")
    expect(tool).to_have_attribute("data-status", "ok")
    expect(tool.locator(".tool-word")).to_have_text("Done")
    expect(tool.locator(".tool-time")).to_have_text(re.compile(r"^\d+(\.\d)? m?s$"))
    tool.locator("summary").click()
    expect(tool.locator("pre").first).to_contain_text("list_transactions")
    expect(tool.locator("pre").last).to_contain_text("transactions")
    expect(turn.locator(".prose table tbody tr").first).to_be_visible()


def test_a_slow_tool_ticks_while_it_runs_and_escape_stops_it(new_tab: NewTab, demo: Service) -> None:
    """The elapsed time goes on by itself; Escape stops the turn, and the line says so."""
    tab = new_tab(demo.url).open()
    turn = tab.ask("Run the slow report of the year")
    tool = turn.locator(".tool[data-status=running]")
    tool.wait_for()
    first = float(tool.locator(".tool-time").inner_text().split()[0])
    tab.page.wait_for_function(
        "first => parseFloat(document.querySelector('.tool-time').textContent) >= first + 0.5", arg=first
    )
    tab.page.keyboard.press("Escape")
    expect(turn.locator(".chip[data-reason=cancelled]")).to_have_text("Stopped")
    expect(turn.locator(".tool-word")).to_have_text(re.compile("Stopped|Outcome unknown"))
    expect(tab.page.locator("#stop")).to_be_hidden()


def test_a_reload_does_not_set_the_clock_of_a_tool_back(new_tab: NewTab, demo: Service) -> None:
    """F5 while a tool runs: its time goes on from where it was."""
    tab = new_tab(demo.url).open()
    time = tab.ask("Run the slow report of the year").locator(".tool[data-status=running] .tool-time")
    for _ in range(2):
        expect(time).to_have_text(re.compile(r"^[2-9]\.\d s$"))
        before = float(time.inner_text().split()[0])
        tab.reload()
        time.wait_for(state="attached")
        assert float(time.inner_text().split()[0]) >= before
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator(".chip[data-reason=cancelled]")).to_have_text("Stopped")
    assert tab.page.evaluate("sessionStorage.getItem('earlybyte.tools')") == "[]"


def test_the_small_print_is_the_same_after_a_reload(new_tab: NewTab, demo: Service) -> None:
    """What an answer took in tokens reads the same from the stream and from the history."""
    tab = new_tab(demo.url).open()
    tab.answered("Show me the transactions of last month")
    line = tab.page.locator(".small-print")
    expect(line).to_have_text(re.compile(r"^[\d,]+ tokens in · [\d,]+ out$"))
    before = line.inner_text()
    tab.reload()
    expect(line).to_have_text(before)


def test_a_payment_waits_for_approval_over_a_reload_and_then_happens(new_tab: NewTab, demo: Service) -> None:
    """The question with its countdown is still there after F5; Approve pays, and who comes later sees that it was."""
    tab = new_tab(demo.url).open()
    tab.ask("Pay the electricity bill of 84.50 euros").locator(".approval[data-open]").wait_for()
    tab.reload()
    question = tab.page.locator(".approval[data-open]")
    question.wait_for()
    expect(question.locator(".approval-left")).to_have_text(re.compile(r"^\d+:\d\d left$"))
    expect(question.locator("dt")).to_have_text(["Payee", "Amount"])
    question.get_by_role("button", name="Approve").click()
    turn = tab.page.locator(".turn").last
    turn.get_by_role("button", name="Good answer").wait_for()
    expect(turn.locator(".approval")).to_contain_text("Approved")
    expect(turn.locator(".tool-word")).to_have_text("Done")
    tab.reload()
    expect(tab.page.locator(".approval")).to_contain_text("Approved")
    expect(tab.page.locator(".tool-word")).to_have_text("Done")


def test_a_denied_payment_does_not_happen(new_tab: NewTab, demo: Service) -> None:
    """After Deny the tool's line says that it was not allowed."""
    tab = new_tab(demo.url).open()
    turn = tab.ask("Pay the internet bill of 30 euros")
    turn.get_by_role("button", name="Deny").click()
    turn.get_by_role("button", name="Good answer").wait_for()
    expect(turn.locator(".approval")).to_contain_text("Denied")
    expect(turn.locator(".tool-word")).to_have_text("Not allowed")
    expect(turn.locator(".tool-time")).to_be_empty()


def test_a_card_sends_its_action_as_the_next_message(new_tab: NewTab, demo: Service) -> None:
    """The invoice comes as a card with fields; its button asks for the open invoices."""
    tab = new_tab(demo.url).open()
    turn = tab.answered("Create an invoice for Northwind Traders over 1200 euros")
    card = turn.locator(".card")
    expect(card.locator("dd").filter(has_text="Northwind Traders")).to_be_visible()
    card.get_by_role("button").first.click()
    expect(tab.page.locator(".asked")).to_have_count(2)
    tab.page.locator(".turn").nth(1).get_by_role("button", name="Good answer").wait_for()


def test_a_picture_is_shown_and_the_reader_stays_at_the_end(new_tab: NewTab, demo: Service) -> None:
    """A chart loads with its alternative text, and what follows it is in sight."""
    tab = new_tab(demo.url).open()
    tab.answered("What is a VAT number?")
    turn = tab.answered("Show a chart of my spending")
    picture = turn.locator(".picture img")
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth > 0)")
    assert picture.get_attribute("alt")
    expect(turn.locator(".answer-foot")).to_be_in_viewport()
    expect(tab.page.locator("#to-end")).to_be_hidden()


def test_a_like_is_kept_changed_and_taken_back(new_tab: NewTab, demo: Service) -> None:
    """aria-pressed follows the reaction; it survives a reload, and a second press takes it back."""
    tab = new_tab(demo.url).open()
    tab.answered("What is a VAT number?")
    good = tab.page.get_by_role("button", name="Good answer")
    bad = tab.page.get_by_role("button", name="Bad answer")
    with tab.page.expect_response(lambda reply: reply.url.endswith("/reaction") and reply.ok):
        good.click()
    tab.reload()
    expect(good).to_have_attribute("aria-pressed", "true")
    with tab.page.expect_response(lambda reply: reply.url.endswith("/reaction") and reply.ok):
        bad.click()
    expect(good).to_have_attribute("aria-pressed", "false")
    with tab.page.expect_response(lambda reply: reply.request.method == "DELETE" and reply.ok):
        bad.click()
    tab.reload()
    expect(bad).to_have_attribute("aria-pressed", "false")


def test_a_reload_in_mid_answer_goes_on_where_it_was(new_tab: NewTab, demo: Service) -> None:
    """F5 while text arrives: the same conversation, the text so far, and the rest up to the end."""
    tab = new_tab(demo.url).open()
    turn = tab.ask("Please take your time: what is a VAT number?")
    expect(turn.locator(".prose[data-open]")).to_contain_text("VAT number")
    tab.reload()
    again = tab.page.locator(".turn")
    expect(again.locator(".prose[data-open]")).to_contain_text("VAT number")
    again.get_by_role("button", name="Good answer").wait_for(timeout=45_000)
    expect(tab.page.locator(".asked")).to_have_count(1)
    expect(again).to_have_count(1)


def test_two_tabs_see_the_same_answer(new_tab: NewTab, demo: Service) -> None:
    """A second tab that opens the conversation in mid-turn ends with the same words as the first."""
    first = new_tab(demo.url).open()
    first.ask("Please take your time: what is a VAT number?").locator(".prose").wait_for()
    second = new_tab(demo.url, beside=first)
    second.page.goto(first.page.url)
    for tab in (first, second):
        tab.page.get_by_role("button", name="Good answer").wait_for(timeout=45_000)
    words = [tab.page.locator(".prose").last.inner_text() for tab in (first, second)]
    assert words[0] == words[1]


def test_conversations_are_listed_opened_and_deleted(new_tab: NewTab, demo: Service) -> None:
    """New conversation begins afresh, the list leads back, and delete asks before it deletes."""
    tab = new_tab(demo.url).open()
    tab.answered("What is a VAT number?")
    tab.page.get_by_role("button", name="New conversation").click()
    expect(tab.page.locator("#welcome")).to_be_visible()
    tab.answered("What is an accrual?")
    links = tab.page.locator(".conversation-link")
    expect(links.nth(0)).to_have_text("What is an accrual?")
    links.nth(1).click()
    expect(tab.page.locator(".asked-text")).to_have_text("What is a VAT number?")
    count = links.count()
    tab.page.locator(".conversation").nth(1).hover()
    tab.page.get_by_role("button", name="Delete “What is a VAT number?”").first.click()
    tab.page.get_by_role("button", name="Keep it").click()
    expect(links).to_have_count(count)
    tab.page.get_by_role("button", name="Delete “What is a VAT number?”").first.click()
    tab.page.get_by_role("button", name="Delete", exact=True).click()
    expect(links).to_have_count(count - 1)
    expect(tab.page.locator("#welcome")).to_be_visible()


def test_the_drawer_shows_the_raw_stream(new_tab: NewTab, demo: Service) -> None:
    """Every event of the turn is listed in order, from `turn_started` to `stream_end`."""
    tab = new_tab(demo.url).open()
    tab.answered("What is a VAT number?")
    tab.page.get_by_role("button", name="Events", exact=True).click()
    kinds = tab.page.locator("#events-list .event-type")
    expect(kinds.last).to_have_text("stream_end")
    seen = [kind for kind in kinds.all_inner_texts() if kind != "heartbeat"]
    assert seen[0] == "turn_started"
    assert seen[-3:] == ["completion", "message_saved", "stream_end"]
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator("#events")).to_be_hidden()
    expect(tab.page.locator("#events-toggle")).to_be_focused()


def test_the_address_of_no_conversation_is_told_so(new_tab: NewTab, demo: Service) -> None:
    """A link to a conversation that is gone says it in words and leaves a page that works."""
    tab = new_tab(demo.url)
    tab.page.goto(f"{demo.url}/#conv_gone")
    expect(tab.page.locator("#trouble")).to_have_text("There is no such conversation any more.")
    tab.troubles.clear()  # The browser's own line about the two 404s.
    tab.page.get_by_role("button", name="New conversation").click()
    tab.answered("What is a VAT number?")
