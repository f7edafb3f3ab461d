"""Hooks in the running service: at every node, whatever they answer and however they fail (PROTOCOL 9, section 5, E2)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from app.hooks.chain import NEUTRAL_WORDS
from tests.event_stream import Stream
from tests.hooks_for_tests import LIMIT, LONG, SECRET, words
from tests.model_history import faults_of, tool_results
from tests.plan_by_words import last_words
from tests.service import Service, wait_until
from tests.upstream import Cut, Finish, Hang, Head, Pause, Request, Script, Status, Text, Upstream, Use, say

ANSWER = "Hello world"
OWN_WORDS = "Nobody is in. Come back tomorrow."
DECIDING = ("on_receive", "before_generation", "before_tool", "after_tool", "after_generation")


def _plan(request: Request) -> Script:
    said = last_words(request)
    if request.body["messages"][-1]["role"] == "tool":
        return say("done")
    match said.split(" ")[0]:
        case "tool" | "talk":
            before = [Text("Looking. ")] if said.startswith("talk") else []
            return [*before, Use("call_1", "record", {"value": "x"}), Finish("tool_calls")]
        case "broken":
            return [Use("call_1", "fail", {}), Finish("tool_calls")]
        case "cut":
            return [Text(ANSWER), Cut()]
        case "length":
            return say(ANSWER, finish="length")
        case "hang":
            return [Text(ANSWER), Hang()]
        case "overtime":
            return [Text(ANSWER), *(step for _ in range(20) for step in (Pause(0.7), Text(".")))]
        case "silent":
            return [Head(), Hang()]
        case "refuse":
            return [Status(401)]
        case "busy":
            return [Status(503)]
        case "replaced":
            return say("about ", said)
        case "drip":
            return [step for number in range(100) for step in (Text(f"{number} "), Pause(0.03))] + [Finish()]
    return say("Hello ", "world")


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(_plan) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    config = {
        "hooks": {"modules": ["tests.hooks_for_tests"]},
        "profiles": {"anthropic": {"hooks": ["tests.hooks_of_one_profile", "tests.hooks_for_tests"]}},
        "texts": {"upstream_rejected": OWN_WORDS},
    }
    rungs = {"tool": 5, "turn": 9, "reserve": 2, "model_first_token": 8, "model_between_tokens": 8.5}
    with Service(upstream, config=config, rungs=rungs) as running:
        yield running


@pytest.fixture(scope="module")
def overtime(service: Service) -> Stream:
    """A turn that only its deadline ends; it runs while other tests do."""
    stream = service.stream("overtime", metadata={"closed": {"after_generation": "replace"}})
    stream.wait_for("text_delta")
    return stream


@pytest.fixture(autouse=True)
def _early(overtime: Stream) -> None:
    """Has the slow turn begin with the first test."""


def ask(service: Service, text: str, conversation: str | None = None, **asked: dict[str, str]) -> Stream:
    """A whole turn; `asked` is what its hooks are to do."""
    return service.stream(text, conversation, metadata=asked).read_to_end()


def turn_of(stream: Stream) -> str:
    return str(stream.wait_for("turn_started")["turn_id"])


def conversation_of(stream: Stream) -> str:
    return str(stream.wait_for("turn_started")["conversation_id"])


def ending(stream: Stream) -> dict[str, Any]:
    """The one terminal event."""
    [end] = [event for event in stream.events if event.type in ("completion", "error")]
    assert stream.types[-3:] == [end.type, "message_saved", "stream_end"]
    return {key: value for key, value in end.json.items() if key not in ("seq", "ts", "usage")}


def answer(text: str, *, status: str = "complete", reason: str = "stop", replaced: bool = False) -> dict[str, Any]:
    end = {"type": "completion", "status": status, "finish_reason": reason, "chars": len(text), "text": text}
    return {**end, "replaced": True} if replaced else end


def denied(text: str) -> dict[str, Any]:
    return {"type": "error", "code": "denied", "message": text, "retryable": False}


def requests_of(upstream: Upstream, count_before: int) -> list[Request]:
    return list(upstream.requests)[count_before:]


def reply(service: Service, stream: Stream) -> dict[str, Any]:
    """The stored message."""
    [message] = [m for m in service.messages(conversation_of(stream)) if m["role"] == "assistant"]
    return message


def assert_taken_back(service: Service, upstream: Upstream, stream: Stream, *, old: str, new: str) -> None:
    """E2: whoever comes later, the history, the next model and the store know only the new text."""
    turn, conversation = turn_of(stream), conversation_of(stream)
    end = next(event for event in stream.events if event.type == "completion")
    cursors = [None, *(event.id for event in stream.events if event.seq is not None and event.seq < (end.seq or 0))]
    for cursor in cursors:
        late = service.attach(turn, cursor).read_to_end()
        assert late.types[0] == "snapshot", cursor
        assert "".join(block["text"] for block in late.events[0]["blocks"]) == new
        assert late.events[0]["terminal"]["replaced"] is True
        assert old.encode() not in late.raw
    document = service.turn(turn)
    assert "".join(block["text"] for block in document["blocks"]) == new
    message = reply(service, stream)
    assert message["text"] == new
    assert old not in json.dumps([document, message])
    before = len(upstream.requests)
    service.stream("next", conversation).read_to_end()
    [request] = requests_of(upstream, before)
    assert faults_of(request) == []
    assert old.encode() not in request.raw
    assert new in [m["content"] for m in request.body["messages"] if m["role"] == "assistant"]
    assert_stored(service, stream, present=new, absent=old)


# -- what hooks may answer


def test_an_input_that_is_denied_reaches_neither_history_nor_model(service: Service, upstream: Upstream) -> None:
    """Section 5, E5: `on_receive` denies before anything was produced: `error` `denied` in the hook's words. The model is
    not asked, and what was denied is not in the history."""
    before = len(upstream.requests)
    stream = ask(service, "a made-up card number", closed={"on_receive": "deny"})
    assert ending(stream) == denied(words("on_receive"))
    assert requests_of(upstream, before) == []
    history = service.messages(conversation_of(stream))
    assert [(m["role"], m["status"], m["text"]) for m in history] == [("assistant", "apology", words("on_receive"))]
    assert_stored(service, stream, present=words("on_receive"), absent="card number")
    following = ask(service, "next", conversation_of(stream))
    assert ending(following) == answer(ANSWER)
    assert [m["content"] for m in requests_of(upstream, before)[0].body["messages"]] == ["next"]


def test_an_input_that_is_replaced_is_stored_and_sent_as_the_hook_made_it(service: Service, upstream: Upstream) -> None:
    """PROTOCOL 9: `Replace` at `on_receive` is what is stored, too: the raw input is nowhere in the store, neither while
    the turn runs (whoever takes it over after a crash must not see it) nor after it."""
    before = len(upstream.requests)
    # The end is held up for a moment, so that the running turn can be looked at.
    asked = {"on_receive": "replace", "after_generation": "sleep"}
    stream = service.stream("a made-up card number", metadata={"open": asked})
    stream.wait_for("text_delta")
    assert service.turn(turn_of(stream))["status"] == "running"
    assert_stored(service, stream, present="replaced input", absent="card number")
    assert ending(stream.read_to_end()) == answer("about replaced input")
    assert_stored(service, stream, present="replaced input", absent="card number")
    assert [m["text"] for m in service.messages(conversation_of(stream))] == ["replaced input", "about replaced input"]
    assert b"card number" not in requests_of(upstream, before)[0].raw


def assert_stored(service: Service, stream: Stream, *, present: str, absent: str) -> None:
    """What the store's rows of a turn and of its conversation itself hold, as text or as bytes."""
    own = (turn_of(stream), f"INSERT INTO \"conversations\" VALUES('{conversation_of(stream)}'")
    with service.database() as database:
        rows = [row for row in database.iterdump() if any(one in row for one in own)]
    assert sum(own[1] in row for row in rows) == 1

    def holding(text: str) -> list[str]:
        return [row for row in rows if text in row or text.encode().hex().upper() in row]

    assert holding(present)
    assert holding(absent) == []


def test_a_denied_model_call_before_anything_is_an_apology(service: Service, upstream: Upstream) -> None:
    """Section 5: `before_generation` denies the first call: `error` `denied`; the user's message stays in the history."""
    before = len(upstream.requests)
    stream = ask(service, "plain", closed={"before_generation": "deny"})
    assert ending(stream) == denied(words("before_generation"))
    assert requests_of(upstream, before) == []
    assert [m["role"] for m in service.messages(conversation_of(stream))] == ["user", "assistant"]


def test_a_denied_model_call_after_text_takes_the_answer_back(service: Service, upstream: Upstream) -> None:
    """Section 5, E2: denied later: `completion` `refused`, `replaced`, in the hook's words, and the text is gone for whoever
    comes after."""
    stream = ask(service, "talk", closed={"before_generation": "deny@2"})
    new = words("before_generation")
    assert ending(stream) == answer(new, reason="refused", replaced=True)
    assert stream.text == "Looking. "
    assert_taken_back(service, upstream, stream, old="Looking. ", new=new)


def test_a_denied_model_call_after_a_tool_without_text_is_an_apology(service: Service) -> None:
    """E5, section 5: a tool alone is nothing produced: `error` `denied`, not retryable, with the tool in the message."""
    stream = ask(service, "tool", closed={"before_generation": "deny@2"})
    assert ending(stream) == denied(words("before_generation"))
    assert [tool["status"] for tool in reply(service, stream)["tools"]] == ["ok"]


def test_replaced_messages_are_what_the_model_sees(service: Service, upstream: Upstream) -> None:
    """PROTOCOL 9: `Replace` at `before_generation` changes the call and not the history."""
    before = len(upstream.requests)
    stream = ask(service, "plain", closed={"before_generation": "replace"})
    assert ending(stream) == answer("about replaced messages")
    assert last_words(requests_of(upstream, before)[0]) == "replaced messages"
    assert [m["text"] for m in service.messages(conversation_of(stream))] == ["plain", "about replaced messages"]


def test_a_denied_tool_call_does_not_run_and_the_model_is_told(service: Service, upstream: Upstream) -> None:
    """PROTOCOL 9: `before_tool` denies: `tool_start`, `tool_end` `denied`, nothing runs, the model goes on (E4)."""
    before = len(upstream.requests)
    stream = ask(service, "tool", closed={"before_tool": "deny"})
    assert ending(stream) == answer("done")
    [start], [end] = stream.of("tool_start"), stream.of("tool_end")
    assert (start["tool_call_id"], end["tool_call_id"], end["status"]) == ("call_1", "call_1", "denied")
    assert service.ledger(key=f"{turn_of(stream)}:call_1") == []
    [told] = tool_results(requests_of(upstream, before)[1]).values()
    assert words("before_tool") in told


def test_replaced_arguments_are_run_and_shown(service: Service) -> None:
    """PROTOCOL 9: `Replace` at `before_tool`: the tool gets what the hook made, and the event says so."""
    stream = ask(service, "tool", closed={"before_tool": "replace"})
    assert ending(stream) == answer("done")
    assert [event["arguments"] for event in stream.of("tool_start")] == [{"value": "replaced arguments"}]
    [run] = service.ledger(key=f"{turn_of(stream)}:call_1")
    assert run["arguments"] == {"value": "replaced arguments"}


@pytest.mark.parametrize(
    ("do", "told"), [("deny", words("after_tool")), ("replace", '{"replaced":"result"}')], ids=["deny", "replace"]
)
def test_a_result_is_what_the_hook_makes_of_it(service: Service, upstream: Upstream, do: str, told: str) -> None:
    """PROTOCOL 9: at `after_tool` the words of `Deny`, or what `Replace` gives, take the result's place: for the model, in
    the preview and in the message. The tool has run, and its end says so."""
    before = len(upstream.requests)
    stream = ask(service, "tool", closed={"after_tool": do})
    assert ending(stream) == answer("done")
    assert list(tool_results(requests_of(upstream, before)[1]).values()) == [told]
    [end] = stream.of("tool_end")
    assert (end["status"], end["preview"]) == ("ok", told)
    assert len(service.ledger(key=f"{turn_of(stream)}:call_1")) == 1
    assert b"recorded" not in stream.raw
    [tool] = service.turn(turn_of(stream))["tools"]
    assert tool["output"] == told


@pytest.mark.parametrize(
    ("text", "cancels", "status", "reason"),
    [
        ("plain", False, "complete", "stop"),
        ("talk", False, "complete", "stop"),
        ("cut", False, "partial", "upstream_error"),
        ("length", False, "partial", "length"),
        ("hang", True, "cancelled", "cancelled"),
    ],
)
@pytest.mark.parametrize("do", ["deny", "replace"])
def test_an_answer_is_checked_whatever_the_ending(
    service: Service, upstream: Upstream, text: str, cancels: bool, status: str, reason: str, do: str
) -> None:
    """E2: `after_generation` runs on every text to be saved. `Replace` keeps the ending and changes the text; `Deny` makes
    it `refused`. Either way `replaced` is true and the old text is gone for all that come later."""
    stream = service.stream(text, metadata={"closed": {"after_generation": do}})
    if cancels:
        stream.wait_for("text_delta")
        service.call("POST", f"/v1/turns/{turn_of(stream)}/cancel")
    end = ending(stream.read_to_end())
    new = "replaced answer" if do == "replace" else words("after_generation")
    if do == "replace":
        assert end == answer(new, status=status, reason=reason, replaced=True)
    else:
        assert end == answer(new, reason="refused", replaced=True)
    old = "Looking. done" if text == "talk" else ANSWER
    assert stream.text == old
    assert_taken_back(service, upstream, stream, old=old.split(".")[0], new=new)


def test_a_hook_that_changes_nothing_replaces_nothing(service: Service) -> None:
    """E2: without a change the text of `completion` is the deltas, `replaced` is absent and the log stays whole."""
    stream = ask(service, "plain", closed=dict.fromkeys(DECIDING, "note"))
    assert ending(stream) == answer(ANSWER)
    again = service.attach(turn_of(stream)).read_to_end()
    assert [event.raw for event in again.events] == [event.raw for event in stream.events]
    told = {row["node"]: row["told"] for row in service.ledger(hook="closed", turn=turn_of(stream))}
    assert told["on_receive"]["input"] == "plain"
    assert told["after_generation"]["text"] == ANSWER
    assert told["before_generation"]["messages"] == [{"role": "user", "content": "plain"}]
    assert {one["user_id"] for one in told.values()} == {"local"}


# -- those that watch


@pytest.mark.parametrize(
    ("text", "where"),
    [("refuse", ["model"]), ("busy", ["model"] * 3), ("cut", ["model"]), ("broken", ["tool:fail"]), ("plain", [])],
)
def test_every_error_that_was_caught_is_told(service: Service, text: str, where: list[str]) -> None:
    """PROTOCOL 9: `on_error` says where and what; each attempt that failed counts."""
    stream = ask(service, text)
    turn = turn_of(stream)
    wait_until(lambda: service.ledger(hook="counts_ends", turn=turn))
    assert wait_until(lambda: [row["where"] for row in service.ledger(hook="counts_errors", turn=turn)] == where, 5)


@pytest.mark.parametrize("do", ["sleep", "raise", "exit", "rubbish"])
def test_a_hook_that_watches_holds_up_nobody(service: Service, do: str) -> None:
    """PROTOCOL 9: whatever those that watch do, the turn ends as ever and the next one of the conversation runs at once."""
    begun = time.monotonic()
    watching = dict.fromkeys(("on_delivery", "on_turn_end", "on_error"), do)
    stream = ask(service, "broken", open=watching, open_async=watching)
    assert ending(stream) == answer("done")
    assert ending(ask(service, "next", conversation_of(stream))) == answer(ANSWER)
    assert time.monotonic() - begun < LONG
    turn = turn_of(stream)
    failed = wait_until(lambda: len(lines := failures(service, turn)) == 6 and lines, what="the log of six failures")
    assert {node for node in watching for line in failed if node in line} == set(watching)


def failures(service: Service, turn: str) -> list[str]:
    """The log's lines about hooks of a turn that failed."""
    return [line for line in service.log().splitlines() if turn in line and "hook failed" in line]


# -- hooks that fail

WAYS = [(form, do) for form in ("", "_async") for do in ("sleep", "raise", "exit", "rubbish", "wrong")]


@pytest.mark.parametrize("node", DECIDING)
@pytest.mark.parametrize("rule", ["open", "closed"])
def test_a_hook_that_fails_is_left_out_or_denies_by_its_rule(
    service: Service, upstream: Upstream, node: str, rule: str
) -> None:
    """PROTOCOL 9: each in its own time limit; one that oversleeps, raises, exits or answers rubbish is logged and passed
    over (`open`), or acts as a `Deny` in neutral words (`closed`). A timeout is a log line with its rung and value (B3)."""
    text = "tool" if node.endswith("tool") else "plain"
    begun = time.monotonic()
    with ThreadPoolExecutor(len(WAYS)) as pool:
        streams = list(pool.map(lambda way: ask(service, text, **{rule + way[0]: {node: way[1]}}), WAYS))
    assert time.monotonic() - begun < LONG + 4  # ten turns at a time on a busy machine, none of which waited for `LONG`
    for (form, do), stream in zip(WAYS, streams, strict=True):
        seconds = stream.events[-1].at - stream.opened_at
        assert seconds < LONG, (form, do)
        if do == "sleep":
            assert seconds >= LIMIT
        assert SECRET.encode() not in stream.raw
        ends = [(event["status"], event["preview"]) for event in stream.of("tool_end")]
        normal = "done" if text == "tool" else ANSWER
        if rule == "open":
            assert ending(stream) == answer(normal)
            assert ends == ([("ok", '{"recorded":"x"}')] if text == "tool" else [])
        elif node in ("on_receive", "before_generation"):
            assert ending(stream) == denied(NEUTRAL_WORDS)
        elif node == "after_generation":
            assert ending(stream) == answer(NEUTRAL_WORDS, reason="refused", replaced=True)
        else:
            assert ending(stream) == answer(normal)
            [(status, preview)] = ends
            assert status == ("denied" if node == "before_tool" else "ok")
            assert NEUTRAL_WORDS in preview
            assert len(service.ledger(key=f"{turn_of(stream)}:call_1")) == (node == "after_tool")
        mine = [line for line in failures(service, turn_of(stream)) if node in line]
        assert mine
        if do == "sleep":
            assert any("timeout" in line and "rung" in line and f"{LIMIT:g} s" in line for line in mine), mine
    assert SECRET not in service.log()


def test_a_hook_that_computes_for_seconds_freezes_no_stream(service: Service) -> None:
    """PROTOCOL 9: sync hooks run off the loop: while one computes, the viewers of another turn get their words in time,
    and its own turn goes on after the hook's limit."""
    other = service.stream("drip")
    other.wait_for("text_delta")
    spinning = ask(service, "plain", open={"on_receive": "spin"})
    assert ending(spinning) == answer(ANSWER)
    wait_until(lambda: service.ledger(hook="open", turn=turn_of(spinning)), what="the end of the computation")
    until = time.monotonic()
    other.read_to_end()
    assert ending(other) == answer("".join(f"{number} " for number in range(100)))
    times = [event.at for event in other.of("text_delta") if event.at <= until]
    gaps = sorted(late - early for early, late in pairwise(times))
    assert len(gaps) > 20
    # A frozen loop would be one gap of two seconds; the machine's own hiccups are not meant.
    assert gaps[len(gaps) * 9 // 10] < 0.1
    assert gaps[-1] < 1


# -- whose hooks, whose words


def test_a_profile_has_hooks_of_its_own(service: Service) -> None:
    """PROTOCOL 9: hooks are listed for all, and also per profile; a module in both lists counts once."""
    shouted = service.stream("HELLO", profile="anthropic").read_to_end()
    assert ending(shouted) == denied("Please do not shout.")
    assert ending(service.stream("HELLO").read_to_end()) == answer(ANSWER)
    spoken = service.stream("hello", profile="anthropic", metadata={"closed": {"on_receive": "note"}}).read_to_end()
    assert ending(spoken) == answer(ANSWER)
    turn = turn_of(spoken)
    wait_until(lambda: service.ledger(hook="counts_ends", turn=turn))
    # By order: the profile's has 10, the others 50.
    assert [row["hook"] for row in service.ledger(turn=turn)] == ["no_shouting", "closed", *_watchers(service, turn)]
    assert len(service.ledger(hook="counts_ends", turn=turn)) == 1


def _watchers(service: Service, turn: str) -> list[str]:
    return [row["hook"] for row in service.ledger(turn=turn) if row["hook"].startswith("counts_")]


def test_configured_texts_take_the_place_of_the_apologies(service: Service) -> None:
    """Section 8: `[texts]` overrides the words of an apology by its code, on the stream and in the history (section 3)."""
    stream = ask(service, "refuse")
    assert ending(stream) == {"type": "error", "code": "upstream_rejected", "message": OWN_WORDS, "retryable": False}
    assert reply(service, stream)["text"] == OWN_WORDS
    other = ending(ask(service, "busy"))
    assert (other["code"], other["retryable"]) == ("upstream_unavailable", True)
    assert other["message"].endswith("Please try again.")


def test_an_answer_out_of_time_is_checked_too(service: Service, upstream: Upstream, overtime: Stream) -> None:
    """E2, section 5: the deadline's `partial` text goes through `after_generation` as well, inside the reserve."""
    end = ending(overtime.read_to_end())
    assert end == answer("replaced answer", status="partial", reason="deadline", replaced=True)
    assert_taken_back(service, upstream, overtime, old=ANSWER, new="replaced answer")


def test_the_end_of_a_turn_is_told_once_for_every_ending(service: Service, overtime: Stream) -> None:
    """PROTOCOL 9: `on_turn_end` once, when the turn is settled, with its status and reason; `on_delivery` once, when the
    terminal event is in the log (E1)."""
    free = service.conversation()
    blocked = service.stream("hang", free)
    blocked.wait_for("text_delta")
    queued = service.start_turn("plain", free, on_busy="enqueue")
    service.call("POST", f"/v1/turns/{queued}/cancel")
    stopped = [blocked, service.stream("silent"), service.stream("hang")]
    for stream in stopped:
        service.call("POST", f"/v1/turns/{turn_of(stream)}/cancel")
    deleted = service.stream("hang")
    deleted.wait_for("text_delta")
    service.call("DELETE", f"/v1/conversations/{conversation_of(deleted)}")
    expected = {
        **{turn_of(stream): ("cancelled", "cancelled", None) for stream in (*stopped, deleted)},
        queued: ("cancelled", "cancelled", None),
        turn_of(ask(service, "plain")): ("complete", "stop", None),
        turn_of(ask(service, "tool")): ("complete", "stop", None),
        turn_of(ask(service, "cut")): ("partial", "upstream_error", None),
        turn_of(ask(service, "length")): ("partial", "length", None),
        turn_of(ask(service, "refuse")): ("apology", None, "upstream_rejected"),
        turn_of(ask(service, "plain", closed={"on_receive": "deny"})): ("apology", None, "denied"),
        turn_of(ask(service, "plain", closed={"after_generation": "deny"})): ("complete", "refused", None),
        turn_of(overtime.read_to_end()): ("partial", "deadline", None),
    }
    for turn in expected:
        wait_until(lambda turn=turn: service.ledger(hook="counts_ends", turn=turn), what=f"the end of {turn}")
        wait_until(lambda turn=turn: service.ledger(hook="counts_deliveries", turn=turn), what=f"the delivery of {turn}")
    # What would be told a second time would be told before the end of a turn that comes now.
    last = turn_of(ask(service, "plain"))
    wait_until(lambda: service.ledger(hook="counts_ends", turn=last))
    for turn, told in expected.items():
        [row] = service.ledger(hook="counts_ends", turn=turn)
        assert (row["status"], row["finish_reason"], row["code"]) == told
        assert len(service.ledger(hook="counts_deliveries", turn=turn)) == 1
    [row] = service.ledger(hook="counts_ends", turn=last)
    assert (row["text"], row["usage"]) == (ANSWER, {"input_tokens": 7, "output_tokens": 3})


def test_hooks_see_a_turn_that_outlived_its_process(upstream: Upstream) -> None:
    """E2, section 5: after a crash, too, the text to be saved goes through `after_generation`, and the end is told once."""
    config = {"hooks": {"modules": ["tests.hooks_for_tests"]}}
    with Service(upstream, config=config, rungs={"checkpoint": 0.1}) as service:
        stream = service.stream("hang", metadata={"closed": {"after_generation": "replace"}})
        stream.wait_for("text_delta")
        turn = turn_of(stream)
        # The text is on record, by a checkpoint.
        with service.database() as database:
            wait_until(lambda: database.execute("SELECT count(*) FROM journal").fetchone() != (0,), what="a checkpoint")
        service.kill9()
        service.start()
        document = service.settled(turn)
        terminal = {key: document["terminal"].get(key) for key in ("status", "finish_reason", "text", "replaced")}
        assert terminal == {"status": "partial", "finish_reason": "recovered", "text": "replaced answer", "replaced": True}
        assert_taken_back_after_a_crash(service, stream)
        wait_until(lambda: service.ledger(hook="counts_ends", turn=turn), what="the end")
        [row] = service.ledger(hook="counts_ends", turn=turn)
        assert (row["status"], row["finish_reason"]) == ("partial", "recovered")


def assert_taken_back_after_a_crash(service: Service, stream: Stream) -> None:
    late = service.attach(turn_of(stream), stream.last_id).read_to_end()
    assert late.types[0] == "snapshot"
    assert late.events[0]["blocks"] == [{"block": 1, "text": "replaced answer"}]
    assert ANSWER.encode() not in late.raw


@pytest.mark.parametrize("what", ["replace long", "deny long"])
def test_a_long_answer_in_the_place_of_another_reaches_who_watches(service: Service, what: str) -> None:
    """A completion has no room for it: a snapshot with the new text comes before (E2, F4)."""
    new = "long " * 20_000
    stream = ask(service, "hello", closed={"after_generation": what})
    stream.read_to_end()
    kinds = stream.types
    assert kinds[kinds.index("snapshot") :] == ["snapshot", "completion", "message_saved", "stream_end"]
    snapshot, ended = stream.of("snapshot")[0], stream.of("completion")[0]
    assert "".join(block["text"] for block in snapshot["blocks"]) == new
    assert "terminal" not in snapshot.json
    assert (ended["replaced"], ended["chars"], ended.get("text")) == (True, len(new), None)
    assert snapshot["last_seq"] == (ended.seq or 0) - 1
    again = service.attach(turn_of(stream)).read_to_end()
    assert again.types == ["snapshot", "stream_end"]
    assert "".join(block["text"] for block in again.events[0]["blocks"]) == new
