"""Agents of a user's own in the running service: every form, every way to end, and what a viewer gets of it (PROTOCOL 9)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.agents_for_tests import SECRET
from tests.event_stream import Seen, Stream
from tests.service import TOOLS, Service, wait_until

AGENTS = "tests.agents_for_tests"
FORMS = ("generator", "async_generator", "callback", "coroutine")
NAMES = (
    *FORMS,
    *(
        "from_many_threads",
        "leaves_a_thread",
        "looks_around",
        "thinks_in_tags",
        "all_events",
        "only_an_image",
        "only_commentary",
    ),
    *("says_nothing", "raises", "async_raises", "exits", "passing", "transient", "rubbish", "deaf", "async_deaf"),
    *("talks_on", "waits_to_be_freed", "drips", "uses_tools", "async_uses_tools", "raises_after_a_tool"),
    *("white_space", "reports_progress", "odd_arguments", "partial_of_async", "partial_of_callback", "polls"),
)


def _config(*names: str, **more: Any) -> dict[str, Any]:
    own = {"provider": "agent", "tools": [TOOLS], **more}
    return {"profiles": {"default": {"provider": "demo"}, **{name: {**own, "agent": f"{AGENTS}:{name}"} for name in names}}}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(config=_config(*NAMES), rungs={"tool": 5}) as running:
        yield running


def ask(service: Service, agent: str, text: str = "hi", **more: Any) -> Stream:
    """A whole turn of `agent`."""
    return service.stream(text, service.conversation(profile=agent), **more).read_to_end()


def ending(stream: Stream) -> tuple[Any, ...]:
    """The one terminal event: (completion, status, finish_reason) or (error, code, retryable)."""
    [end] = [event for event in stream.events if event.type in ("completion", "error")]
    assert stream.types[-3:] == [end.type, "message_saved", "stream_end"]
    if end.type == "completion":
        assert end["text"] == stream.text
        return (end.type, end["status"], end["finish_reason"])
    return (end.type, end["code"], end["retryable"])


def turn_of(stream: Stream) -> str:
    return str(stream.wait_for("turn_started")["turn_id"])


def blocks(stream: Stream) -> list[tuple[int, str]]:
    said: dict[int, str] = {}
    for event in stream.of("text_delta"):
        said[event["block"]] = said.get(event["block"], "") + event["text"]
    return list(said.items())


def rows(service: Service, stream: Stream) -> list[dict[str, Any]]:
    return service.ledger(turn=turn_of(stream))


def without(event: Seen, *names: str) -> dict[str, Any]:
    return {key: value for key, value in event.json.items() if key not in ("seq", "ts", *names)}


# -- forms


@pytest.mark.parametrize("agent", FORMS)
def test_every_form_of_agent_speaks_in_blocks_and_ends(service: Service, agent: str) -> None:
    """PROTOCOL 9: text is `text_delta`, None a boundary; `""` and a boundary with no text since the last one are nothing.
    The end of the function is the end of the stream (E1, E2)."""
    stream = ask(service, agent)
    assert ending(stream) == ("completion", "complete", "stop")
    assert blocks(stream) == [(1, "Hello hi"), (2, "world")]
    assert all(event["text"] for event in stream.of("text_delta"))
    [row] = rows(service, stream)
    on_loop = agent in ("async_generator", "coroutine")
    assert (row["thread"] == "MainThread") is on_loop  # sync ones run in a thread of their own
    reply = service.messages(service.turn(turn_of(stream))["conversation_id"])[-1]
    assert (reply["text"], reply["status"]) == ("Hello hiworld", "complete")


def test_a_callback_may_be_called_from_many_threads(service: Service) -> None:
    """PROTOCOL 9: each word arrives once, and those of one thread in their order."""
    stream = ask(service, "from_many_threads")
    assert ending(stream) == ("completion", "complete", "stop")
    words = stream.text.split()
    assert len(words) == 400
    for name in "abcdefgh":
        assert [word for word in words if word[0] == name] == [f"{name}{number}" for number in range(50)]


def test_an_agent_sees_its_input_history_user_and_time(service: Service) -> None:
    """PROTOCOL 9: `input`, `history` in Chat Completions form without the new message, `user_id`, `profile`, `deadline`; an
    apology is no part of it (X4)."""
    conversation = service.conversation(profile="looks_around")
    first = service.stream("one", conversation).read_to_end()
    service.stream("late", conversation, profile="raises").read_to_end()
    service.stream("early", conversation, profile="raises").read_to_end()
    second = service.stream("two", conversation).read_to_end()
    assert [row["input"] for stream in (first, second) for row in rows(service, stream)] == ["one", "two"]
    [row] = rows(service, second)
    assert [(m["role"], m["content"]) for m in row["history"]] == [
        ("user", "one"),
        ("assistant", "seen 0"),
        ("user", "late"),
        ("assistant", "The first half"),
        ("user", "early"),
    ]
    assert (row["user"], row["profile"], row["cancelled"]) == ("local", "looks_around", False)
    assert 100 < row["left"] <= 120


@pytest.mark.parametrize(
    ("text", "thought", "said", "end"),
    [
        ("closed", "weigh it", "<thi", ("completion", "complete", "stop")),
        ("open", "weigh it</thi", "", ("error", "empty_answer", True)),
    ],
)
def test_the_think_filter_is_emptied_at_the_end(
    service: Service, text: str, thought: str, said: str, end: tuple[Any, ...]
) -> None:
    """PROTOCOL 9: before the terminal event a held piece that is no tag becomes text, an open tag's content stays
    reasoning."""
    stream = ask(service, "thinks_in_tags", text)
    assert "".join(event["text"] for event in stream.of("reasoning_delta")) == thought
    assert stream.text == said
    assert ending(stream) == end


# -- events


def test_an_agents_own_events_are_told_in_order(service: Service) -> None:
    """PROTOCOL 9: every allowed kind, in its place between the text, and afterwards in the snapshot and the message."""
    stream = ask(service, "all_events")
    assert stream.types == [
        *("turn_started", "reasoning_delta", "text_delta", "notice", "tool_start", "tool_progress", "tool_end"),
        *("commentary", "image", "action_card", "text_delta", "usage", "completion", "message_saved", "stream_end"),
    ]
    assert ending(stream) == ("completion", "complete", "stop")
    assert blocks(stream) == [(1, "Before "), (2, "after.")]
    assert without(stream.of("notice")[0]) == {
        "type": "notice",
        "level": "warning",
        "code": "slow",
        "text": "this may take a while",
    }
    assert without(stream.of("tool_progress")[0])["fraction"] == 0.5
    [image], [card] = stream.of("image"), stream.of("action_card")
    assert without(image) == {
        "type": "image",
        "url": "https://pictures.example/stone.png",
        "alt": "a stone",
        "width": 20,
        "height": 10,
    }
    assert card["fields"] == [{"label": "Weight", "value": "2 kg"}]
    assert card["actions"] == [{"title": "Again", "input": "dig again"}, {"title": "Map", "url": "https://maps.example/1"}]
    assert without(stream.of("usage")[0]) == {"type": "usage", "input_tokens": 11, "output_tokens": 5, "model": "own-model"}
    assert stream.of("completion")[0]["usage"] == {"input_tokens": 11, "output_tokens": 5}

    [snapshot] = service.attach(turn_of(stream), query="?from=snapshot").read_to_end().of("snapshot")
    assert [(extra["type"], extra["after_block"]) for extra in snapshot["extras"]] == [
        ("commentary", 1),
        ("image", 1),
        ("action_card", 1),
    ]
    [dig] = snapshot["tools"]
    assert (dig["name"], dig["status"], dig["after_block"]) == ("dig", "ok", 1)
    reply = service.messages(snapshot["conversation_id"])[-1]
    assert [extra["type"] for extra in reply["extras"]] == ["commentary", "image", "action_card"]
    assert reply["text"] == "Before after."


@pytest.mark.parametrize(
    ("agent", "end"),
    [
        ("only_an_image", ("completion", "complete", "stop")),
        ("only_commentary", ("error", "empty_answer", True)),
        ("says_nothing", ("error", "empty_answer", True)),
    ],
)
def test_an_image_is_an_answer_and_commentary_is_none(service: Service, agent: str, end: tuple[Any, ...]) -> None:
    """E5: text, an image or a card ends in `completion`, anything less in `error`."""
    assert ending(ask(service, agent)) == end


# -- failures


@pytest.mark.parametrize("agent", ["raises", "async_raises", "exits"])
@pytest.mark.parametrize(
    ("when", "end"), [("early", ("error", "internal", False)), ("late", ("completion", "partial", "upstream_error"))]
)
def test_an_agent_that_fails_is_not_tried_again(service: Service, agent: str, when: str, end: tuple[Any, ...]) -> None:
    """Section 5: the agent's own code raises, or its thread dies: never again (X1); what was said stays, and the user sees
    nothing of what it raised."""
    stream = ask(service, agent, when)
    assert ending(stream) == end
    assert stream.text == ("The first half" if when == "late" else "")
    assert len(rows(service, stream)) == 1
    assert SECRET.encode() not in stream.raw
    assert service.call("GET", "/livez").status == 200


def test_a_failure_that_passes_is_tried_again(service: Service) -> None:
    """X1: `Transient` before anything visible: `attempt_restarted` counts the tries, each drops the thoughts before it,
    and the third answers."""
    stream = ask(service, "passing")
    assert ending(stream) == ("completion", "complete", "stop")
    assert stream.text == "third time lucky"
    assert [event["attempt"] for event in stream.of("attempt_restarted")] == [2, 3]
    assert len(rows(service, stream)) == 3
    [snapshot] = service.attach(turn_of(stream), query="?from=snapshot").read_to_end().of("snapshot")
    assert [thought["text"] for thought in snapshot["reasoning"]] == ["try 3"]


@pytest.mark.parametrize(
    ("when", "runs", "end"),
    [
        ("early", 3, ("error", "upstream_unavailable", True)),
        ("late", 1, ("completion", "partial", "upstream_error")),
        ("remark", 1, ("error", "upstream_unavailable", True)),
        ("tool", 1, ("error", "upstream_interrupted", False)),
    ],
)
def test_transient_helps_only_before_anything_was_seen_or_called(
    service: Service, when: str, runs: int, end: tuple[Any, ...]
) -> None:
    """X1: an own agent is started again only before anything visible and before any `call_tool`."""
    stream = ask(service, "transient", when)
    assert ending(stream) == end
    assert len([row for row in service.ledger(agent="transient") if row["turn"] == turn_of(stream)]) == runs
    assert SECRET.encode() not in stream.raw


@pytest.mark.parametrize(
    "what",
    ["number", "bytes", "completion", "text_delta", "message_saved", "unknown", "untyped", "misshapen", "unpaired"],
)
@pytest.mark.parametrize("when", ["early", "late"])
def test_what_an_agent_may_not_send_ends_its_turn(service: Service, what: str, when: str) -> None:
    """PROTOCOL 9: anything but text, boundaries and the allowed events is `internal`; none of it is seen (E1)."""
    stream = ask(service, "rubbish", f"{what} {when}")
    late = when == "late"
    assert ending(stream) == (("completion", "partial", "upstream_error") if late else ("error", "internal", False))
    assert stream.text == ("The first half" if late else "")
    assert len(rows(service, stream)) == 1


def test_an_agent_that_fails_after_a_tool_says_that_work_was_done(service: Service) -> None:
    """Section 5: own code that raises is `internal`, also after a tool, which ran once and is in the message (E4, X1)."""
    stream = ask(service, "raises_after_a_tool", "v1")
    assert ending(stream) == ("error", "internal", False)
    assert stream.types[1:3] == ["tool_start", "tool_end"]
    assert len(service.ledger(tool="record", phase="begin", arguments={"value": "v1"})) == 1
    reply = service.messages(service.turn(turn_of(stream))["conversation_id"])[-1]
    assert [(tool["name"], tool["status"]) for tool in reply["tools"]] == [("record", "ok")]


# -- cancels


@pytest.mark.parametrize("agent", ["deaf", "async_deaf"])
def test_an_agent_that_ignores_its_cancel_holds_up_nobody(service: Service, agent: str) -> None:
    """PROTOCOL 9: the turn ends at once as `cancelled`, other turns do not notice, and the conversation is free (E6)."""
    conversation = service.conversation(profile=agent)
    other = service.stream("hi", service.conversation(profile="drips"))
    other.wait_for("text_delta")
    stream = service.stream("hi", conversation)
    stream.wait_for("text_delta")
    asked = time.monotonic()
    assert service.call("POST", f"/v1/turns/{turn_of(stream)}/cancel").status in (200, 202)
    end = stream.wait_for("completion")
    assert end.at - asked < 2
    assert ending(stream.read_to_end()) == ("completion", "cancelled", "cancelled")
    assert stream.text == "begun"
    following = service.stream("hi", conversation, profile="generator").read_to_end()
    assert ending(following) == ("completion", "complete", "stop")
    other.read_to_end()
    assert ending(other) == ("completion", "complete", "stop")
    assert other.text == "".join(f"{number} " for number in range(60))
    times = [event.at for event in other.of("text_delta")]
    assert max(late - early for early, late in pairwise(times)) < 1


def test_a_deaf_agents_thread_keeps_its_place() -> None:
    """PROTOCOL 9: a thread that ignored its cancel is counted and keeps its place in `[limits] turns`: with the only place
    gone, the next turn waits (H5). A task that did holds no thread and takes no place."""
    with Service(config={**_config("deaf", "async_deaf", "generator"), "limits": {"turns": 1}}) as service:
        for agent in ("async_deaf", "deaf"):
            stream = service.stream("hi", service.conversation(profile=agent))
            stream.wait_for("text_delta")
            service.call("POST", f"/v1/turns/{turn_of(stream)}/cancel")
            assert ending(stream.read_to_end()) == ("completion", "cancelled", "cancelled")
        following = service.stream("hi", service.conversation(profile="generator"))
        following.wait_for("queued")
        assert re.search(r"^earlybyte_abandoned_threads 1\.0$", service.call("GET", "/metrics").body.decode(), re.MULTILINE)


def test_a_cancelled_callback_gets_turn_over_and_no_word_in_any_more(service: Service) -> None:
    """PROTOCOL 9, E6: after a cancel `on_delta` raises `TurnOver` in the agent's thread, and nothing it held is told."""
    stream = service.stream("hi", service.conversation(profile="talks_on"))
    stream.wait_for(lambda s: len(s.text) > 40)
    service.call("POST", f"/v1/turns/{turn_of(stream)}/cancel")
    assert ending(stream.read_to_end()) == ("completion", "cancelled", "cancelled")
    [row] = wait_until(lambda: rows(service, stream), what="the agent's word that it is over")
    assert (row["over"], row["cancelled"]) == ("turn_over", True)
    assert stream.types.index("completion") > max(i for i, kind in enumerate(stream.types) if kind == "text_delta")
    assert service.turn(turn_of(stream))["blocks"] == [{"block": 1, "text": stream.text}]


def test_a_thread_that_an_agent_left_behind_gets_no_word_in(service: Service) -> None:
    """PROTOCOL 9: the end of the function is the end of the stream; after it `on_delta` raises `TurnOver`."""
    stream = ask(service, "leaves_a_thread")
    assert ending(stream) == ("completion", "complete", "stop")
    assert stream.text == "all there is"
    [row] = wait_until(lambda: rows(service, stream), what="the thread's end")
    assert row["over"] == "turn_over"


def test_on_cancel_frees_what_an_agent_blocks_on(service: Service) -> None:
    """PROTOCOL 9: `on_cancel(fn)` is called when the turn is cancelled, and the thread is free at once."""
    stream = service.stream("hi", service.conversation(profile="waits_to_be_freed"))
    stream.wait_for("text_delta")
    service.call("POST", f"/v1/turns/{turn_of(stream)}/cancel")
    assert ending(stream.read_to_end()) == ("completion", "cancelled", "cancelled")
    [row] = wait_until(lambda: rows(service, stream), 5, "the agent's release")
    assert row["cancelled"] is True


# -- tools


@pytest.mark.parametrize("agent", ["uses_tools", "async_uses_tools"])
def test_call_tool_brings_events_results_and_refusals(service: Service, agent: str) -> None:
    """PROTOCOL 9: `call_tool` runs a tool with its events (E4) and its key (X2), opens a new block of text, returns what the
    tool returned and raises with the tool's status; the next turn's agent is shown all of it, well-formed (X4)."""
    conversation = service.conversation(profile=agent)
    stream = service.stream("hi", conversation).read_to_end()
    assert ending(stream) == ("completion", "complete", "stop")
    assert blocks(stream) == [(1, "Looking. "), (2, "Found about tide. "), (3, "Done.")]
    assert [(event["name"], event["title"]) for event in stream.of("tool_start")] == [
        ("look_up", "Looking up"),
        ("fail", "Failing"),
    ]
    assert [event["status"] for event in stream.of("tool_end")] == ["ok", "error"]
    ids = [event["tool_call_id"] for event in stream.of("tool_start")]
    assert ids == [event["tool_call_id"] for event in stream.of("tool_end")]
    [run] = service.ledger(tool="look_up", key=f"{turn_of(stream)}:{ids[0]}")
    assert run["arguments"] == {"q": "tide"}
    assert [row["status"] for row in rows(service, stream)] == ["error", "error"]
    assert "no_such_tool" in rows(service, stream)[1]["words"]

    service.stream(f"look {agent}", conversation, profile="looks_around").read_to_end()
    [row] = [row for row in service.ledger(agent="looks_around") if row["input"] == f"look {agent}"]
    history = row["history"]
    asked = [call["id"] for message in history for call in message.get("tool_calls") or []]
    assert asked[:2] == ids
    assert len(asked) == 3
    assert [message["tool_call_id"] for message in history if message["role"] == "tool"] == asked
    assert history[-1] == {"role": "assistant", "content": "Done."}


# -- crashes


@pytest.fixture(scope="module")
def crashed() -> Iterator[tuple[Service, dict[str, Stream]]]:
    """A service that was killed with four turns under way, and has come back; their streams up to the crash."""
    config = _config("charges", "silent_at_first", restartable=True)
    config["profiles"]["once"] = {**config["profiles"]["silent_at_first"], "restartable": False}
    with Service(config=config) as service:
        asked = {"early": "charges", "late": "charges", "again": "silent_at_first", "once": "once"}
        streams = {text: service.stream(text, service.conversation(profile=agent)) for text, agent in asked.items()}
        wait_until(lambda: len(service.ledger(tool="charge_slowly")) == 2, what="the charges")
        wait_until(lambda: len(service.ledger(agent="silent_at_first")) == 2, what="the agents' starts")
        service.kill9()
        for stream in streams.values():
            stream.read_to_end()
        service.start()
        yield service, streams


@pytest.mark.parametrize(
    ("when", "end"), [("early", ("error", "recovered", False)), ("late", ("completion", "partial", "recovered"))]
)
def test_a_crash_in_an_agents_unsafe_tool_runs_nothing_again(
    crashed: tuple[Service, dict[str, Stream]], when: str, end: tuple[Any, ...]
) -> None:
    """X2, E4: `call_tool` is journaled before the tool runs, so after a crash the call ends as `unknown` and is not made
    again; nor is the agent, restartable or not (X1)."""
    service, streams = crashed
    stream = streams[when]
    assert stream.types[-1] == "tool_start"
    document = service.settled(turn_of(stream))
    [charge] = document["tools"]
    assert (charge["name"], charge["status"]) == ("charge_slowly", "unknown")
    terminal = document["terminal"]
    assert (
        terminal["type"],
        terminal.get("code") or terminal["status"],
        terminal.get("finish_reason") or terminal["retryable"],
    ) == end
    assert len(service.ledger(tool="charge_slowly", key=f"{turn_of(stream)}:{charge['tool_call_id']}", phase="begin")) == 1
    assert len(rows(service, stream)) == 1
    after = service.attach(turn_of(stream), stream.last_id).read_to_end()
    assert after.types[0] == "snapshot"
    assert after.types[-1] == "stream_end"


def test_only_a_restartable_agent_is_started_again_after_a_crash(crashed: tuple[Service, dict[str, Stream]]) -> None:
    """Section 8, X1: with `restartable = true` an agent that had shown nothing is started again and answers; else its
    turn ends as `recovered`, for the user to try again."""
    service, streams = crashed
    again, once = (service.settled(turn_of(streams[text]))["terminal"] for text in ("again", "once"))
    assert (again["type"], again.get("text")) == ("completion", "answer of start 2")
    assert (once["type"], once.get("code"), once.get("retryable")) == ("error", "recovered", True)
    assert [len(rows(service, streams[text])) for text in ("again", "once")] == [2, 1]


# -- what was found wanting


@pytest.mark.parametrize(("agent", "said"), [("partial_of_async", "partial hi"), ("partial_of_callback", "told hi")])
def test_an_async_agent_behind_a_partial_runs_on_the_loop(service: Service, agent: str, said: str) -> None:
    """PROTOCOL 9: what the function is decides, not how it was wrapped."""
    stream = ask(service, agent)
    assert (stream.text, ending(stream)) == (said, ("completion", "complete", "stop"))


def test_white_space_alone_is_no_answer(service: Service) -> None:
    """Section 5: nothing that can be seen."""
    assert ending(ask(service, "white_space")) == ("error", "empty_answer", True)


def test_progress_of_an_own_agent_is_coalesced(service: Service) -> None:
    """PROTOCOL 3: five a second."""
    stream = ask(service, "reports_progress")
    told = stream.of("tool_progress")
    assert 1 <= len(told) <= 10, "a hundred in half a second or more"
    assert all(later.at - earlier.at > 0.1 for earlier, later in pairwise(told))
    assert stream.text == "dug"


def test_arguments_of_call_tool_are_json(service: Service) -> None:
    """What cannot be sent is refused where it was asked for; a lone surrogate becomes U+FFFD, as everywhere (F4)."""
    stream = ask(service, "odd_arguments")
    assert stream.text == "'x\\ufffd' error error error error "
    assert ending(stream) == ("completion", "complete", "stop")
    assert len(stream.of("tool_start")) == 1


def test_an_agent_that_only_asks_whether_it_may_go_on_hears_that_it_may_not(service: Service) -> None:
    """PROTOCOL 9: after a cancel `on_delta` raises `TurnOver`, whatever it is given."""
    stream = service.stream("hi", service.conversation(profile="polls"))
    stream.wait_for("text_delta")
    service.call("POST", f"/v1/turns/{turn_of(stream)}/cancel")
    stream.read_to_end()
    wait_until(lambda: [row for row in service.ledger(agent="polls") if row.get("heard")], what="TurnOver in the agent")
