"""What the page makes of every way in which a turn can end, with a model that does what the test says."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import get_args

import pytest
from playwright.sync_api import Page, Route, expect

from app.events.types import FinishReason
from tests.browser.breakable_line import BreakableLine
from tests.browser.tabs import NewTab
from tests.service import Service
from tests.upstream import (
    Cut,
    Finish,
    Hang,
    Pause,
    Raw,
    Request,
    Reset,
    Script,
    Status,
    Step,
    Text,
    Thought,
    Upstream,
    drip,
    say,
    use,
)

pytestmark = pytest.mark.slow

ATTACK = (
    '<img src=x onerror="window.owned=1"> <script>window.owned=1</script> [click](javascript:window.owned=1)\n\n'
    "![far](https://pictures.example/x.png?secret=1) <iframe src=https://elsewhere.example></iframe>\n\n"
    "- <svg/onload=window.owned=1>\n\n```html\n<script>window.owned=1</script>\n```\n"
)
MANY_FORMS = (
    "# Head\n\nSome *words*:\n\n- one\n- two\n  - deep\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n"
    "> said\n\n```py\nx = 1\n```\n\nEnd."
)
HUSH = """
from app.hooks import Replace, hook

@hook("after_generation")
async def hush(event):
    return Replace(text="I **must not** say that.")
"""
LONG = "".join(f"Paragraph **{n}** of a long answer with `code` in it.\n\n" for n in range(40))


class Model:
    """An upstream whose next scripts the test sets; the last one is used again and again."""

    def __init__(self) -> None:
        self._scripts: list[Script] = [say("hello")]
        self.upstream = Upstream(self._plan)

    def will(self, *scripts: Script) -> None:
        """Answer the next requests with these."""
        self._scripts = list(scripts)

    def _plan(self, _: Request) -> Script:
        return self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.upstream.close()


@pytest.fixture(scope="module")
def service(model: Model) -> Iterator[Service]:
    with Service(model.upstream, config={"retries": {"attempts": 1}}) as service:
        yield service


def test_hostile_text_runs_nothing_and_calls_nobody(new_tab: NewTab, service: Service, model: Model) -> None:
    """A model's markup is words: while it arrives, once it is rendered, and from the history."""
    model.will([step for letter in ATTACK for step in (Text(letter), Pause(0.002))] + [Finish()])
    tab = new_tab(service.url).open()
    turn = tab.answered("attack")
    for _ in range(2):
        expect(turn.locator("pre code")).to_have_text("<script>window.owned=1</script>\n")
        assert tab.page.evaluate("window.owned") is None
        assert turn.locator(".prose :is(img, script, svg, iframe)").count() == 0
        assert turn.locator(".prose a[href^='javascript:']").count() == 0
        tab.reload()
        turn.get_by_role("button", name="Good answer").wait_for()


def test_the_rendered_form_replaces_the_light_one_without_a_jump(new_tab: NewTab, service: Service, model: Model) -> None:
    """From the last letter to the service's own rendering no element of the text moves by a pixel."""
    model.will([*(step for part in MANY_FORMS.split(" ") for step in (Text(f"{part} "), Pause(0.01))), Finish()])
    tab = new_tab(service.url).open()
    asked = threading.Event()
    places = """() => [...document.querySelectorAll('.prose *')].map(element => {
        const { x, y, width, height } = element.getBoundingClientRect();
        return [element.tagName, x, y, width, height];
    })"""
    seen: list[object] = []

    def hold(route: Route) -> None:
        seen.append(tab.page.evaluate(places))
        asked.set()
        route.continue_()

    tab.page.route("**/v1/messages/msg_*", hold)
    turn = tab.answered("show all")
    assert asked.is_set()
    assert tab.page.evaluate(places) == seen[0]
    assert turn.locator(".prose > *").count() == 7


def test_text_before_and_after_a_tool_keeps_its_place(new_tab: NewTab, service: Service, model: Model) -> None:
    """Text, remark, picture, card and text stand in the order in which they came, and again so after a reload."""
    model.will([Text("Before **it**.\n\n"), *use(("c1", "show", {"tag": "one"}))], say("After *it*."))
    tab = new_tab(service.url).open()
    tab.page.route("https://pictures.example/*", lambda route: route.fulfill(body=b"", content_type="image/png"))
    turn = tab.answered("show one")
    for _ in range(2):
        kinds = turn.locator(".flow > *").evaluate_all("parts => parts.map(part => part.className || part.tagName)")
        assert kinds[0] == kinds[-1] == "prose"
        assert set(kinds[1:-1]) == {"tool", "commentary", "picture", "card"}
        expect(turn.locator(".prose").first.locator("strong")).to_have_text("it")
        expect(turn.locator(".prose").last.locator("em")).to_have_text("it")
        expect(turn.locator(".card a")).to_have_attribute("rel", "noopener noreferrer")
        expect(turn.locator(".card a")).to_have_attribute("target", "_blank")
        tab.reload()
        turn.get_by_role("button", name="Good answer").wait_for()
    tab.elsewhere.clear()  # The tool's own picture.


def test_thinking_is_folded_away_and_can_be_read(new_tab: NewTab, service: Service, model: Model) -> None:
    """The thoughts are behind one closed line, and open at a click."""
    model.will([Thought("First I count."), Pause(0.7), *say("Three.")])
    turn = new_tab(service.url).open().answered("think")
    expect(turn.locator(".reasoning-text")).to_be_hidden()
    expect(turn.locator(".reasoning summary")).to_contain_text("Thought for")
    turn.locator(".reasoning summary").click()
    expect(turn.locator(".reasoning-text")).to_have_text("First I count.")


def test_an_answer_that_breaks_off_is_marked_interrupted(new_tab: NewTab, service: Service, model: Model) -> None:
    """The words so far stay, with a mark, now and in the history."""
    model.will([Text("Half an answ"), Cut()])
    tab = new_tab(service.url).open()
    turn = tab.answered("break")
    for _ in range(2):
        expect(turn.locator(".prose")).to_have_text("Half an answ")
        expect(turn.locator(".chip")).to_have_text("Interrupted")
        tab.reload()


def test_an_answer_that_breaks_off_says_why_and_offers_a_way_on(new_tab: NewTab, service: Service, model: Model) -> None:
    """A sentence tells what happened; Go on asks for the rest, and is gone from an answer that others follow."""
    model.will([Text("Half an answ"), Cut()], say("The other half."))
    tab = new_tab(service.url).open()
    turn = tab.answered("break")
    go_on = tab.page.get_by_role("button", name="Go on")
    for _ in range(2):
        expect(turn.locator(".unfinished p")).to_have_text(re.compile(r"^The model broke off .*\.$"))
        expect(go_on).to_be_visible()
        tab.reload()
    go_on.click()
    expect(tab.page.locator(".prose").last).to_have_text("The other half.")
    tab.page.locator(".turn").last.get_by_role("button", name="Good answer").wait_for()
    for _ in range(2):
        expect(tab.page.locator(".asked-text")).to_have_text(["break", "Please go on."])
        expect(turn.locator(".unfinished p")).to_be_visible()
        expect(go_on).to_have_count(0)
        tab.reload()


def test_every_way_to_break_off_has_a_sentence(new_tab: NewTab, service: Service) -> None:
    """No reason for which an answer can be partial is left to a mark alone."""
    reasons = set(get_args(FinishReason)) - {"stop", "refused", "cancelled"}
    explain = """async reasons => {
        const { endingOf } = await import('/static/endings.js');
        return reasons.map(reason => endingOf('partial', reason)).map(({ name, words, why }) => [name, words, why]);
    }"""
    endings = new_tab(service.url).open().page.evaluate(explain, sorted(reasons))
    assert [name for name, _, _ in endings] == sorted(reasons)
    for part in (1, 2):
        assert len({ending[part] for ending in endings} - {""}) == len(reasons)


def test_only_the_last_apology_offers_to_try_again(new_tab: NewTab, service: Service, model: Model) -> None:
    """An apology in the middle of the conversation keeps its words and loses its button."""
    model.will([Status(503)])
    tab = new_tab(service.url).open()
    retry = tab.page.get_by_role("button", name="Try again")
    tab.ask("first")
    expect(retry).to_have_count(1)
    tab.ask("second").locator(".apology").wait_for()
    expect(tab.page.locator(".apology")).to_have_count(2)
    expect(retry).to_have_count(1)
    model.will(say("Better now."))
    tab.answered("third")
    expect(retry).to_have_count(0)


def test_one_token_is_one_token(new_tab: NewTab, service: Service, model: Model) -> None:
    """The small print counts in whole English."""
    choice = '{"index":0,"delta":{"content":"Yes."},"finish_reason":"stop"}'
    usage = '{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}'
    chunk = f'data: {{"model":"scripted","choices":[{choice}],"usage":{usage}}}\n\ndata: [DONE]\n\n'
    model.will([Raw(chunk.encode())])
    turn = new_tab(service.url).open().answered("so few")
    expect(turn.locator(".small-print")).to_have_text("1 token in · 2 out")


def test_an_answer_over_the_limit_is_marked_cut_short(new_tab: NewTab, service: Service, model: Model) -> None:
    """`length` is a mark of its own."""
    model.will(say("Too lo", finish="length"))
    expect(new_tab(service.url).open().answered("long").locator(".chip")).to_have_text("Cut short")


def test_an_apology_offers_to_try_again_and_that_works(new_tab: NewTab, service: Service, model: Model) -> None:
    """The model is down: a sentence and a button, also after a reload; the button asks the same once more."""
    model.will([Status(503)])
    tab = new_tab(service.url).open()
    apology = tab.ask("are you there").locator(".apology")
    apology.get_by_role("button", name="Try again").wait_for()
    expect(tab.page.get_by_role("button", name="Good answer")).to_have_count(0)
    tab.reload()
    model.will(say("Yes, I am."))
    tab.page.get_by_role("button", name="Try again").click()
    tab.page.get_by_role("button", name="Good answer").wait_for()
    expect(tab.page.locator(".asked-text")).to_have_text(["are you there", "are you there"])
    expect(tab.page.locator(".prose")).to_have_text("Yes, I am.")


def test_an_apology_for_a_refused_request_offers_no_second_try(new_tab: NewTab, service: Service, model: Model) -> None:
    """Where trying again cannot help, no button promises it."""
    model.will([Status(400)])
    turn = new_tab(service.url).open().ask("no")
    expect(turn.locator(".apology p")).not_to_be_empty()
    expect(turn.get_by_role("button", name="Try again")).to_have_count(0)


def test_the_stop_button_keeps_what_was_said(new_tab: NewTab, service: Service, model: Model) -> None:
    """Stop ends the turn at once; the text so far stays and is marked."""
    model.will([Text("So far."), Hang()])
    tab = new_tab(service.url).open()
    turn = tab.ask("go on for ever")
    expect(turn.locator(".prose")).to_have_text("So far.")
    tab.page.get_by_role("button", name="Stop the answer").click()
    expect(turn.locator(".chip")).to_have_text("Stopped")
    expect(turn.locator(".prose")).to_have_text("So far.")
    turn.get_by_role("button", name="Good answer").wait_for()


def test_a_broken_line_is_told_and_costs_no_letter(new_tab: NewTab, service: Service, model: Model) -> None:
    """The network goes in mid-answer: 'Reconnecting…'; when it is back the text is whole, with nothing twice."""
    model.will(drip("word ", 60, 0.05))
    with BreakableLine(service.port) as line:
        tab = new_tab(line.url).open()
        turn = tab.ask("count")
        turn.locator(".prose").get_by_text("word word").wait_for()
        line.cut()
        expect(tab.page.locator("#connection")).to_have_text("Reconnecting…")
        line.mend()
        turn.get_by_role("button", name="Good answer").wait_for()
        expect(turn.locator(".prose")).to_have_text("word " * 60)
        expect(tab.page.locator("#connection")).to_be_empty()
        _forgive_the_line(tab.troubles)


def test_a_send_whose_answer_is_lost_starts_one_turn(new_tab: NewTab, service: Service, model: Model) -> None:
    """The POST arrives but its answer does not: it is sent again under the same key, and the model is asked once."""
    model.will(say("Once."))
    tab = new_tab(service.url).open()
    keys: list[str] = []
    before = len(model.upstream.requests)

    def lose_the_first(route: Route) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) == 1:
            assert route.fetch().status == 202
            route.abort("connectionreset")
        else:
            route.continue_()

    tab.page.route("**/turns", lose_the_first)
    turn = tab.answered("only once")
    expect(turn.locator(".prose")).to_have_text("Once.")
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert len(model.upstream.requests) == before + 1
    _forgive_the_line(tab.troubles)


def test_a_send_that_is_refused_can_be_sent_again(new_tab: NewTab, service: Service, model: Model) -> None:
    """A refusal is told in words beside the message, and the words are not lost."""
    model.will(say("Now it works."))
    tab = new_tab(service.url).open()
    problem = '{"code":"over_capacity","detail":"Too many turns."}'
    refuse = {"status": 422, "content_type": "application/problem+json", "body": problem}
    tab.page.route("**/turns", lambda route: route.fulfill(**refuse), times=1)
    tab.page.locator("#input").fill("hold on to this")
    tab.page.locator("#input").press("Enter")
    expect(tab.page.locator(".asked-state")).to_contain_text("Not sent: Too many turns.")
    tab.page.get_by_role("button", name="Send again").click()
    tab.page.get_by_role("button", name="Good answer").wait_for()
    expect(tab.page.locator(".asked-text")).to_have_text("hold on to this")
    _forgive_the_line(tab.troubles)


def test_a_second_message_waits_its_turn(new_tab: NewTab, service: Service, model: Model) -> None:
    """Sent while an answer runs, it is queued and told so; then it is answered."""
    model.will([Text("First"), Pause(2.0), *say(".")], say("Second."))
    tab = new_tab(service.url).open()
    first = tab.ask("one")
    first.locator(".prose").wait_for()
    second = tab.ask("two")
    expect(second.locator(".waiting")).to_contain_text("Waiting")
    second.get_by_role("button", name="Good answer").wait_for()
    expect(second.locator(".prose")).to_have_text("Second.")
    expect(first.locator(".prose")).to_have_text("First.")


def test_a_reader_who_scrolled_up_is_left_there(new_tab: NewTab, service: Service, model: Model) -> None:
    """Text that arrives moves only a reader who is at the end; the others get a button to it."""
    paragraphs: list[Step] = [step for part in LONG.split("\n\n") for step in (Text(part + "\n\n"), Pause(0.05))]
    model.will([Text(LONG), Pause(0.5), *paragraphs, Finish()])
    tab = new_tab(service.url).open()
    turn = tab.ask("much")
    tab.page.wait_for_function("() => document.getElementById('scroller').scrollTop > 400")
    tab.page.locator("#scroller").hover()
    tab.page.mouse.wheel(0, -600)
    tab.page.locator("#to-end").wait_for()
    at = _scrolled(tab.page)
    turn.get_by_role("button", name="Good answer").wait_for()
    assert _scrolled(tab.page) == at
    tab.page.get_by_role("button", name="Latest").click()
    expect(turn.locator(".answer-foot")).to_be_in_viewport()


def test_a_service_with_keys_asks_for_one_and_streams_by_cookie(new_tab: NewTab) -> None:
    """A wrong key is told; a right one signs in; the answer streams, although an EventSource can send no key."""
    with Service(start=False) as service:
        key = service.make_key("ada")
        service.start()
        tab = new_tab(service.url)
        tab.page.goto(service.url)
        tab.page.get_by_label("Key").fill("eb_wrong")
        tab.page.get_by_role("button", name="Sign in").click()
        expect(tab.page.locator("#sign-in-trouble")).to_have_text("The service does not know this key.")
        tab.page.get_by_label("Key").fill(key)
        tab.page.get_by_role("button", name="Sign in").click()
        tab.page.locator(".suggestion").first.wait_for()
        tab.answered("What is a VAT number?")
        tab.reload()
        expect(tab.page.locator(".asked-text")).to_have_text("What is a VAT number?")
        tab.page.get_by_role("button", name="Sign out").click()
        tab.page.get_by_label("Key").wait_for()
        assert key not in service.log()
        _forgive_the_line(tab.troubles)


def test_thoughts_of_a_try_that_failed_are_taken_back(new_tab: NewTab, model: Model) -> None:
    """The model thinks, breaks and is asked again: only the thoughts of the second try are left."""
    model.will([Thought("In vain."), Pause(0.2), Reset()], [Thought("At last."), *say("Here.")])
    with Service(model.upstream) as patient:
        turn = new_tab(patient.url).open().answered("think twice")
        turn.locator(".reasoning summary").click()
        expect(turn.locator(".reasoning-text")).to_have_text("At last.")
        expect(turn.locator(".prose")).to_have_text("Here.")


def test_an_answer_that_a_hook_replaced_is_the_only_one_shown(new_tab: NewTab, model: Model) -> None:
    """What the hook wrote takes the place of what was streamed, and is rendered like any text."""
    model.will([Text("The number is 12345."), Pause(0.3), *say(" So.")])
    with Service(model.upstream, config={"hooks": {"modules": ["hush"]}}, start=False) as service:
        (service.folder / "hush.py").write_text(HUSH, encoding="utf-8")
        service.start()
        tab = new_tab(service.url).open()
        turn = tab.answered("tell me")
        for _ in range(2):
            expect(turn.locator(".prose")).to_have_text("I must not say that.")
            expect(turn.locator(".prose strong")).to_have_text("must not")
            tab.reload()
            turn.get_by_role("button", name="Good answer").wait_for()


def test_an_answer_that_cannot_be_saved_is_shown_and_says_so(new_tab: NewTab, service: Service, model: Model) -> None:
    """The store is locked while the turn ends: the words are there with 'Not saved yet', and saved in the end."""
    model.will([Text("All of it"), Pause(1.0), *say(".")])
    tab = new_tab(service.url).open()
    turn = tab.ask("keep this")
    turn.locator(".prose").wait_for()
    with service.database() as connection:
        connection.execute("BEGIN EXCLUSIVE")
        expect(turn.locator(".chip[data-reason=unsaved]")).to_have_text("Not saved yet", timeout=30_000)
        expect(turn.locator(".prose")).to_have_text("All of it.")
        expect(turn.get_by_role("button", name="Good answer")).to_have_count(0)
    tab.reload()
    expect(tab.page.locator(".prose")).to_have_text("All of it.")
    _forgive_the_line(tab.troubles)


def _scrolled(page: Page) -> float:
    return float(page.evaluate("document.getElementById('scroller').scrollTop"))


def _forgive_the_line(troubles: list[str]) -> None:
    """Take out what the browser itself says of requests that failed on purpose."""
    troubles[:] = [line for line in troubles if not line.startswith("Failed to load resource")]
