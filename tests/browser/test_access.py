"""Everybody can use the page: by keyboard, by screen reader, on a phone, in the dark, without motion."""

from __future__ import annotations

import http.client
import re
from typing import Literal

import pytest
from playwright.sync_api import expect

from tests.browser.tabs import NewTab
from tests.service import Service

pytestmark = pytest.mark.slow

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: https:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Every text colour on every ground that it may stand on.
CONTRASTS = """() => {
    const root = document.documentElement;
    const probe = document.body.appendChild(document.createElement('span'));
    const light = name => {
        probe.style.color = `var(${name})`;
        const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const pairs = [];
    for (const text of ['--ink', '--ink-2', '--ink-3', '--accent', '--good', '--warn', '--bad'])
        for (const ground of ['--paper', '--side', '--sunk', '--raised']) pairs.push([text, ground]);
    pairs.push(['--accent-ink', '--accent'], ['--accent-ink', '--accent-hover'], ['--ink', '--accent-soft']);
    pairs.push(['--warn', '--warn-soft'], ['--bad', '--bad-soft'], ['--ink', '--bad-soft'], ['--ink', '--warn-soft']);
    pairs.push(['--ink-2', '--warn-soft'], ['--ink-2', '--accent-soft'], ['--ink', '--hover'], ['--ink-2', '--hover']);
    const found = pairs.map(([text, ground]) => {
        const [dim, bright] = [light(text), light(ground)].sort((a, b) => a - b);
        return [text, ground, (bright + 0.05) / (dim + 0.05)];
    });
    probe.remove();
    return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_colour_can_be_read(new_tab: NewTab, demo: Service, scheme: Literal["light", "dark"]) -> None:
    """All pairs of text and ground reach 4.5:1, the AA of WCAG 2, in both themes."""
    pairs = new_tab(demo.url, scheme=scheme).open().page.evaluate(CONTRASTS)
    assert len(pairs) > 30
    assert [pair for pair in pairs if pair[2] < 4.5] == []


def test_a_theme_chosen_by_hand_stays(new_tab: NewTab, demo: Service) -> None:
    """The button goes round automatic, light and dark; a reload keeps the choice, before the first paint."""
    tab = new_tab(demo.url, scheme="light").open()
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(ground)
    button = tab.page.locator("#theme")
    button.click()
    button.click()
    expect(button).to_have_text("Theme: dark")
    dark = tab.page.evaluate(ground)
    assert dark != light
    tab.reload()
    assert tab.page.evaluate(ground) == dark
    tab.page.locator("#theme").click()
    assert tab.page.evaluate(ground) == light


def test_the_whole_way_can_be_gone_by_keyboard(new_tab: NewTab, demo: Service) -> None:
    """The first stop is the skip link, it leads to the message box; buttons that matter can be reached and pressed."""
    tab = new_tab(demo.url).open()
    keys = tab.page.keyboard
    first = "() => document.querySelector('a[href], button, input, textarea, [tabindex]').id"
    assert tab.page.evaluate(first) == "skip"
    tab.page.locator("#skip").focus()
    expect(tab.page.locator("#skip")).to_be_in_viewport()
    keys.press("Enter")
    expect(tab.page.locator("#input")).to_be_focused()
    keys.type("Pay the phone bill")
    keys.press("Shift+Enter")
    keys.type("of 20 euros")
    keys.press("Enter")
    expect(tab.page.locator(".asked-text")).to_have_text("Pay the phone bill\nof 20 euros")
    deny = tab.page.get_by_role("button", name="Deny")
    deny.wait_for()
    for _ in range(10):
        keys.press("Shift+Tab")
        if deny.evaluate("button => button === document.activeElement"):
            break
    expect(deny).to_be_focused()
    keys.press("Enter")
    tab.page.get_by_role("button", name="Good answer").wait_for()
    expect(tab.page.locator("#input")).to_be_focused()


def test_a_screen_reader_hears_the_answer_once_and_in_pieces(new_tab: NewTab, demo: Service) -> None:
    """The live region gets the tool and the whole answer, in far fewer pieces than there were deltas."""
    tab = new_tab(demo.url).open()
    tab.page.evaluate(
        """() => {
            window.heard = [];
            const hear = nodes => nodes.forEach(node => heard.push(node.textContent));
            const watch = new MutationObserver(records => records.forEach(record => hear(record.addedNodes)));
            watch.observe(document.getElementById('announcer'), {childList: true});
        }"""
    )
    turn = tab.answered("What is a VAT number?")
    heard = tab.page.evaluate("() => heard")
    said = turn.locator(".prose").last.inner_text()
    assert " ".join(" ".join(heard).split()).endswith(said.split(":")[1].strip())
    assert any("Looking up" in line for line in heard)
    assert len(heard) < 8
    assert tab.page.locator("#feed [aria-live]").count() == 0
    expect(turn).to_have_attribute("aria-busy", "false")


def test_everything_that_is_pressed_has_a_name(new_tab: NewTab, demo: Service) -> None:
    """No button, link or field is without words for who cannot see its sign; every picture has an alternative."""
    tab = new_tab(demo.url).open()
    tab.answered("Create an invoice for Northwind Traders over 1200 euros")
    nameless = tab.page.evaluate(
        """() => [...document.querySelectorAll('button, a, textarea, input, img:not([alt])')].filter(element =>
            !(element.getAttribute('aria-label') || element.textContent.trim() || element.labels?.length)
        ).map(element => element.outerHTML)"""
    )
    assert nameless == []
    ids = tab.page.evaluate("() => [...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))


def test_a_phone_has_room_for_everything(new_tab: NewTab, demo: Service) -> None:
    """At 360 px nothing sticks out sideways, touch targets have 44 px, and the list is a drawer."""
    tab = new_tab(demo.url, width=360, height=740, touch=True).open()
    expect(tab.page.locator(".sidebar")).to_be_hidden()
    tab.answered("Show me the transactions of last month")
    assert tab.page.evaluate("() => document.documentElement.scrollWidth") <= 360
    small = tab.page.evaluate(
        """() => [...document.querySelectorAll('button, summary, .conversation-link')].filter(e => e.offsetParent).map(e => {
            const { width, height } = e.getBoundingClientRect();
            return [e.className, Math.round(width), Math.round(height)];
        }).filter(([, width, height]) => width < 44 || height < 44)"""
    )
    assert small == []
    tab.page.get_by_role("button", name="Conversations").click()
    expect(tab.page.locator(".sidebar")).to_be_visible()
    expect(tab.page.locator("#sidebar-close")).to_be_focused()
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator(".sidebar")).to_be_hidden()
    tab.page.get_by_role("button", name="Conversations").click()
    tab.page.locator("#sidebar").get_by_role("button", name="New conversation").click()
    expect(tab.page.locator(".sidebar")).to_be_hidden()
    expect(tab.page.locator("#welcome")).to_be_visible()


@pytest.mark.parametrize("words", ["Show me the transactions of last month", "Show my open invoices"])
def test_no_date_or_amount_is_torn_apart_on_a_phone(new_tab: NewTab, demo: Service, words: str) -> None:
    """At 390 px each date and each amount stands on one line; the table scrolls in its own box, not the page."""
    tab = new_tab(demo.url, width=390, height=844, touch=True).open()
    tab.answered(words)
    cells = tab.page.evaluate(
        """() => [...document.querySelectorAll('.prose td')].map(cell => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return [cell.textContent, new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size];
        })"""
    )
    one_piece = re.compile(r"\d{4}-\d\d-\d\d|[-−+]?[€$]?[\d.,]+")
    whole = [cell for cell in cells if one_piece.fullmatch(cell[0].strip())]
    assert len(whole) >= 4
    assert [cell for cell in whole if cell[1] != 1] == []
    assert tab.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    scroll = tab.page.locator(".table-scroll").first
    assert scroll.evaluate("box => getComputedStyle(box).overflowX") == "auto"
    assert scroll.evaluate("box => box.getBoundingClientRect().right") <= 390


def test_who_wants_no_motion_gets_none(new_tab: NewTab, demo: Service) -> None:
    """With reduced motion no animation runs for longer than an instant."""
    tab = new_tab(demo.url, motion="reduce").open()
    tab.ask("Pay the electricity bill of 84.50 euros").locator(".approval[data-open]").wait_for()
    running = tab.page.evaluate("() => document.getAnimations().filter(one => one.playState === 'running').length")
    assert running == 0


def test_the_message_box_grows_to_a_limit(new_tab: NewTab, demo: Service) -> None:
    """Lines make it taller up to about eight; beyond, it scrolls; after sending it is small again."""
    tab = new_tab(demo.url).open()
    box = tab.page.locator("#input")
    height = "box => box.getBoundingClientRect().height"
    one = box.evaluate(height)
    box.fill("a\nb\nc")
    three = box.evaluate(height)
    box.fill("\n".join("abcdefghijklmnopqrst"))
    most = box.evaluate(height)
    assert one < three < most <= 201
    box.fill("What is a VAT number?\n\nPlease.")
    box.press("Enter")
    assert box.evaluate(height) == one
    tab.page.get_by_role("button", name="Good answer").wait_for()


def test_every_file_is_ours_and_under_the_policy(demo: Service) -> None:
    """The page and its files carry the strict policy and an ETag; a second visit is answered 304; no path leads out."""
    page = demo.call("GET", "/")
    assert page.headers["content-security-policy"] == POLICY
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"style=" not in page.body
    assert b"//" not in page.body.replace(b"http://www.w3.org", b"")
    for name, kind in {"main.js": "text/javascript", "page.css": "text/css", "favicon.svg": "image/svg+xml"}.items():
        first = demo.call("GET", f"/static/{name}")
        assert first.status == 200
        assert first.headers["content-type"].split(";")[0] == kind
        assert first.headers["cache-control"] == "no-cache"
        assert first.headers["content-security-policy"] == POLICY
        assert first.headers["x-content-type-options"] == "nosniff"
        again = demo.call("GET", f"/static/{name}", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
    for path in ("/static/nothing.js", "/static/..%2Fmarkdown.py", "/static/%2e%2e/markdown.py", "/static/"):
        assert demo.call("GET", path).status == http.client.NOT_FOUND
