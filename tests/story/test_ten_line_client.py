"""A client of ten lines that knows only `text_delta`, `completion` and `error` shows the right final text, whatever happens.

One turn for each row of section 5 that a client can watch without a break, all at once on one service.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.hooks_for_tests import words
from tests.plan_by_words import last_words
from tests.service import TOOLS, Service, wait_until
from tests.upstream import Cut, Finish, Hang, Head, Leave, Pause, Request, Script, Status, Text, Thought, Upstream, Use, say

PAGE = Path(__file__).parent.parent.parent / "docs" / "failure-modes.md"
SENTENCES = dict(re.findall(r"^\| `(\w+)` \| (?:yes|no) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
LONG_TEXT = "many words, " * 10_000
# How many characters the service of these tests takes for an answer.
ANSWER_CHARS = 200_000


def show(url: str, body: dict[str, Any]) -> str:
    """The client: the text that a person sees in the end."""
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    shown = ""
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as lines:
        for event in (json.loads(line[6:]) for line in lines if line.startswith(b"data: ")):
            if event["type"] == "text_delta":
                shown += event["text"]
            elif event["type"] == "completion":
                shown = event.get("text", shown)
            elif event["type"] == "error":
                shown = event["message"]
    return shown


@dataclass(frozen=True)
class Row:
    """What is asked, what the model does in each of its calls (the last for all later ones), and what must be shown."""

    what: str
    calls: tuple[list[Any], ...]
    shown: str
    body: dict[str, Any] = field(default_factory=dict)
    # What a person does once the turn has said `begun`, or runs at all: cancel or delete.
    then: str = ""


def _tool(name: str = "look_up", arguments: object = None, call: str = "call_1") -> list[Any]:
    return [Use(call, name, {"q": "x"} if arguments is None else arguments), Finish("tool_calls")]


def _denies(node: str, do: str = "deny") -> dict[str, Any]:
    return {"metadata": {"closed": {node: do}}}


def _sorry(code: str) -> str:
    return SENTENCES[code]


HELLO = say("Hello ", "world")
BROKEN = [Use("call_1", "look_up", '{"q": '), Finish("tool_calls")]
ROWS = [
    Row("an answer", (HELLO,), "Hello world"),
    Row("an answer in two blocks", ([Text("Looking. "), *_tool()], say("Found it.")), "Looking. Found it."),
    Row("an answer too long for one frame", (say(*[LONG_TEXT[:8000]] * 15),), LONG_TEXT[:8000] * 15),
    Row("a failure that passes", ([Status(503)], HELLO), "Hello world"),
    Row("a failure after thoughts that passes", ([Thought("hm"), Cut()], HELLO), "Hello world"),
    Row("a failure that stays", ([Status(503)],), _sorry("upstream_unavailable")),
    Row("a cut after text", ([Text("Half an "), Text("answer"), Cut()],), "Half an answer"),
    Row("a cut in a later call, after text", ([Text("Looking. "), *_tool()], [Status(503)]), "Looking. "),
    Row("a cut after a tool and no text", (_tool(), [Status(503)]), _sorry("upstream_interrupted")),
    Row("a rejection after a tool and no text", (_tool(), [Status(400)]), _sorry("upstream_interrupted")),
    Row("cut by length", (say("Too lo", finish="length"),), "Too lo"),
    Row("filtered after text", (say("I can", finish="content_filter"),), "I can"),
    Row("no mark at the end", ([Text("Half an answer"), Leave()],), "Half an answer"),
    Row("no mark at the end and no text", ([Head(), Leave()],), _sorry("upstream_unavailable")),
    Row("nothing", (say(),), _sorry("empty_answer")),
    Row("only thoughts", ([Thought("all in here"), Finish()],), _sorry("empty_answer")),
    Row("filtered before text", (say(finish="content_filter"),), _sorry("content_filter")),
    Row("cut by length before text", (say(finish="length"),), _sorry("limit_exceeded")),
    Row("a held piece of a think tag", (say("<thi"),), "<thi"),
    Row("a rejection", ([Status(401)],), _sorry("upstream_rejected")),
    Row("an agent that raises", (), _sorry("internal"), {"input": "early", "profile": "raises"}),
    Row("an agent that raises after text", (), "The first half", {"input": "late", "profile": "raises"}),
    Row("a tool that raises", (_tool("fail", {}), say("done")), "done"),
    Row("a tool out of time", (_tool("block", {"seconds": 3}), say("done")), "done"),
    Row("a call of no tool", (_tool("nowhere", {}), say("done")), "done"),
    Row("broken calls once", (BROKEN, say("done")), "done"),
    Row("broken calls twice", (BROKEN,), _sorry("upstream_invalid")),
    Row("broken calls twice after text", ([Text("Well. "), *BROKEN],), "Well. Well. "),
    Row("too many steps", (_tool(),), _sorry("limit_exceeded"), {"profile": "hasty"}),
    Row("too many steps with text", ([Text("Looking. "), *_tool()],), "Looking. ", {"profile": "hasty"}),
    Row("too long an answer", (say(*[LONG_TEXT[:50_000]] * 6),), LONG_TEXT[:50_000] * 4),
    Row("out of time", ([Text("begun"), *[Pause(0.5), Thought("hm")] * 40],), "begun"),
    Row("out of time before text", ([Pause(0.5), Thought("hm")] * 40,), _sorry("turn_timeout")),
    Row("a cancel", ([Text("begun"), Hang()],), "begun", then="cancel"),
    Row("a cancel before text", ([Head(), Hang()],), "", then="cancel"),
    Row("a deleted conversation", ([Text("begun"), Hang()],), "begun", then="delete"),
    Row("a denied input", (HELLO,), words("on_receive"), _denies("on_receive")),
    Row("a denied call", (HELLO,), words("before_generation"), _denies("before_generation")),
    Row(
        "a denied call after text",
        ([Text("Looking. "), *_tool()], HELLO),
        words("before_generation"),
        _denies("before_generation", "deny@2"),
    ),
    Row("a denied answer", (HELLO,), words("after_generation"), _denies("after_generation")),
    Row("a replaced answer", (HELLO,), "replaced answer", _denies("after_generation", "replace")),
    Row("a replaced answer that was cut", ([Text("x"), Cut()],), "replaced answer", _denies("after_generation", "replace")),
]
BY_WHAT = {row.what: row for row in ROWS}


class _Model:
    """Plays each row's calls in their order."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()
        # Set when the model may ask for its tool in the last test.
        self.go = threading.Event()

    def __call__(self, request: Request) -> Script:
        what = last_words(request)
        if what == "slow store":
            return say("done") if request.body["messages"][-1]["role"] == "tool" else self._when_told()
        with self._lock:
            number = self._calls[what] = self._calls.get(what, -1) + 1
        calls = BY_WHAT[what].calls
        return calls[min(number, len(calls) - 1)]

    def _when_told(self) -> Script:
        yield Text("Looking. ")
        self.go.wait(20)
        yield from _tool()


@pytest.fixture(scope="module")
def model() -> _Model:
    return _Model()


@pytest.fixture(scope="module")
def service(model: _Model) -> Iterator[Service]:
    with Upstream(model) as upstream:
        config = {
            "hooks": {"modules": ["tests.hooks_for_tests"]},
            "limits": {"answer_chars": ANSWER_CHARS},
            "profiles": {
                "raises": {"provider": "agent", "agent": "tests.agents_for_tests:raises"},
                "hasty": {
                    "provider": "openai",
                    "model": "scripted",
                    "base_url": f"{upstream.url}/v1",
                    "api_key_env": "TEST_UPSTREAM_KEY",
                    "tools": [TOOLS],
                    "max_steps": 1,
                },
            },
        }
        rungs = {"tool": 1, "turn": 10, "reserve": 1, "model_first_token": 8, "model_between_tokens": 9}
        with Service(upstream, config=config, rungs=rungs) as running:
            yield running


def _watch(service: Service, row: Row) -> tuple[str, str | None]:
    """What the client shows in the end, and the text of the message in the history (None: no history)."""
    conversation = service.conversation()
    url = f"{service.url}/v1/conversations/{conversation}/turns"
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(show, url, {"input": row.what, **row.body})
        if row.then:
            _interfere(service, conversation, row)
        final = shown.result(50)
    if row.then == "delete":
        assert service.call("GET", f"/v1/conversations/{conversation}/messages").status == 404
        return final, None
    return final, service.messages(conversation)[-1]["text"]


def _interfere(service: Service, conversation: str, row: Row) -> None:
    path = f"/v1/conversations/{conversation}"
    active = wait_until(lambda: (r := service.call("GET", f"{path}/active")).status == 200 and r.json, what="the turn")
    if "begun" in row.shown:
        wait_until(lambda: service.turn(active["turn_id"])["blocks"], what="its text")
    if row.then == "delete":
        service.call("DELETE", path)
    else:
        service.call("POST", f"/v1/turns/{active['turn_id']}/cancel")


@pytest.fixture(scope="module")
def watched(service: Service) -> Iterator[dict[str, Future[tuple[str, str | None]]]]:
    """Every row at once; each test waits for its own."""
    with ThreadPoolExecutor(len(ROWS)) as pool:
        yield {row.what: pool.submit(_watch, service, row) for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=[row.what for row in ROWS])
def test_the_client_shows_the_right_text(row: Row, watched: dict[str, Future[tuple[str, str | None]]]) -> None:
    """Section 3: `text_delta`, `completion` and `error` are all that a client needs (E1, E2, E5, F4). The text is
    the one that the row asks for, an apology is the documented sentence, and the history says the same."""
    shown, saved = watched[row.what].result(55)
    assert shown == row.shown
    if saved is not None:
        assert saved == row.shown


def test_the_client_does_not_notice_a_store_that_hangs(
    service: Service, model: _Model, watched: dict[str, Future[tuple[str, str | None]]]
) -> None:
    """Section 5, E3: with the store locked from before the tool's start on, the tool is not run, the answer comes all the
    same and `message_save_failed` tells the rest; with the store back, the message is in the history."""
    for future in watched.values():
        future.exception(55)
    conversation = service.conversation()
    with service.database() as database, ThreadPoolExecutor(1) as pool:
        shown = pool.submit(show, f"{service.url}/v1/conversations/{conversation}/turns", {"input": "slow store"})
        path = f"/v1/conversations/{conversation}/active"
        turn = wait_until(lambda: (r := service.call("GET", path)).status == 200 and r.json["turn_id"], what="the turn")
        wait_until(lambda: service.turn(turn)["blocks"], what="its text")
        database.execute("BEGIN IMMEDIATE")
        model.go.set()
        assert shown.result(40) == "Looking. done"
        events = service.attach(turn).read_to_end()
        database.rollback()
    assert [event["status"] for event in events.of("tool_end")] == ["error"]
    assert service.ledger(key=f"{turn}:call_1") == []
    assert events.of("message_save_failed")[0]["code"] == "store_unavailable"
    assert wait_until(lambda: len(m := service.messages(conversation)) == 2 and m[-1]["text"]) == "Looking. done"


def test_the_client_has_ten_lines() -> None:
    """Its body, without the docstring and the line of headers; the sentences that it is compared with are all documented."""
    lines = Path(__file__).read_text(encoding="utf-8").partition("def show")[2].partition("\n\n\n")[0].splitlines()
    assert len(lines) - 3 == 10
    assert len(SENTENCES) == 11
