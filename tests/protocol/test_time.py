"""What every timeout becomes, and what does not count as time (PROTOCOL 6, B2 to B4). All of it waits at the same time."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.event_stream import Stream
from tests.model_history import tool_results
from tests.plan_by_words import last_words
from tests.service import Service
from tests.upstream import Finish, Hang, Head, Pause, Request, Script, Text, Thought, Upstream, Use, say

RUNGS = {
    "tool": 0.9, "turn": 6, "request": 7, "reserve": 2, "approval": 8.5,
    "model_first_token": 1.3, "model_between_tokens": 1.4,
}  # fmt: skip


def _plan(request: Request) -> Script:
    if request.body["messages"][-1]["role"] == "tool":
        return say("done")
    match last_words(request):
        case "slow tool":
            return [Use("call_1", "block", {"seconds": 3}), Finish("tool_calls")]
        case "late tool":
            # Only the reserve is left when it is asked for.
            return [*[Pause(0.5), Text(".")] * 9, Use("call_1", "look_up", {"q": "x"}), Finish("tool_calls")]
        case "tight tool":
            # Half of the tool's own time is left without the reserve.
            return [*[Pause(0.5), Text(".")] * 7, Use("call_1", "slow", {"seconds": 3}), Finish("tool_calls")]
        case "no first token":
            return [Head(), Hang()]
        case "no further token":
            return [Text("half"), Hang()]
        case "no end":
            return [Text("begun"), *[Pause(0.5), Thought("hm")] * 30]
        case "approval" | "no answer":
            return [Use("call_1", "guarded", {"value": "x"}), Finish("tool_calls")]
    return say("Hello ", "world")


@dataclass(frozen=True)
class Waited:
    """A service with turns that have all run out of some time, and the one that waited for a person."""

    service: Service
    upstream: Upstream
    streams: dict[str, Stream]
    next_in_line: Stream
    # What a client got that never sent the rest of its body, and after how many seconds.
    half_sent: tuple[bytes, float]

    def log_of(self, words: str) -> list[str]:
        turn = self.streams[words].wait_for("turn_started")["turn_id"]
        return [line for line in self.service.log().splitlines() if turn in line]


@pytest.fixture(scope="module")
def waited() -> Iterator[Waited]:
    words = ("slow tool", "late tool", "tight tool", "no first token", "no further token", "no end", "approval", "no answer")
    with Upstream(_plan) as upstream, Service(upstream, rungs=RUNGS) as service, ThreadPoolExecutor(1) as pool:
        streams = {one: service.stream(one) for one in words}
        half_sent = pool.submit(_send_half_a_body, service)
        question = streams["approval"].wait_for("approval_required")
        asked = time.monotonic()
        conversation = streams["approval"].events[0]["conversation_id"]
        following = service.stream("hello", conversation, on_busy="enqueue")
        # Longer than a whole turn may take.
        time.sleep(max(0.0, asked + RUNGS["turn"] + 0.5 - time.monotonic()))
        turn = streams["approval"].events[0]["turn_id"]
        answer = service.call("POST", f"/v1/turns/{turn}/approvals/{question['approval_id']}", {"decision": "approve"})
        assert answer.status == 200
        for stream in streams.values():
            stream.read_to_end()
        yield Waited(service, upstream, streams, following.read_to_end(), half_sent.result(40))


def _send_half_a_body(service: Service) -> tuple[bytes, float]:
    begun = time.monotonic()
    head = f"POST /v1/conversations HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\nContent-Length: 100\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
        connection.sendall(f'{head}Content-Type: application/json\r\n\r\n{{"title": '.encode())
        got = b""
        with contextlib.suppress(TimeoutError):
            while piece := connection.recv(4096):
                got += piece
    return got, time.monotonic() - begun


def _ending(stream: Stream) -> tuple[str, str, str | None]:
    [end] = [event for event in stream.events if event.type in ("completion", "error")]
    return (end.type, end.get("status") or end.get("code"), end.get("finish_reason"))


def _names(lines: list[str], rung: str, value: float) -> bool:
    """Whether one of the lines has the word, the rung and its value."""
    return any("timeout" in line and rung in line and re.search(rf"\b{value:g}\b", line) for line in lines)


@pytest.mark.parametrize(
    ("words", "rung", "ending"),
    [
        ("slow tool", "tool", ("completion", "complete", "stop")),
        ("no first token", "model_first_token", ("error", "upstream_unavailable", None)),
        ("no further token", "model_between_tokens", ("completion", "partial", "upstream_error")),
        ("no end", "turn", ("completion", "partial", "deadline")),
        ("no answer", "approval", ("completion", "complete", "stop")),
    ],
)
def test_a_timeout_is_an_event_and_a_log_line_with_its_rung(
    waited: Waited, words: str, rung: str, ending: tuple[str, str, str | None]
) -> None:
    """B3: a timeout is caught: an ending as section 5 says, a log line with the word `timeout`, the rung and its value, and
    the service goes on."""
    assert _ending(waited.streams[words]) == ending
    lines = waited.log_of(words)
    assert _names(lines, rung, RUNGS[rung]), lines
    assert waited.service.call("GET", "/readyz").status == 200


def test_a_request_that_does_not_come_to_its_end_is_refused(waited: Waited) -> None:
    """B3, section 6 `request`: a body that never ends is 408 after that time, with a log line, and the connection
    is closed. It is for requests alone: streams of this test have lived longer."""
    got, seconds = waited.half_sent
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["code"] == "request_timeout"
    assert RUNGS["request"] <= seconds < RUNGS["request"] + 8
    assert _names(waited.service.log().splitlines(), "request", RUNGS["request"])
    asked = waited.streams["no answer"]
    assert asked.events[-1].at - asked.opened_at > RUNGS["request"]


def test_a_tool_gets_its_own_time_while_there_is_enough(waited: Waited) -> None:
    """B2: with the turn's time untouched it is the tool's own; the model is told and goes on."""
    stream = waited.streams["slow tool"]
    [end] = stream.of("tool_end")
    assert end["status"] == "timeout"
    assert 800 <= end["duration_ms"] < 2500
    told = [tool_results(r) for r in waited.upstream.requests if last_words(r) == "slow tool" and tool_results(r)]
    assert len(told) == 1


def test_a_tool_gets_what_is_left_of_the_turn_without_the_reserve(waited: Waited) -> None:
    """B2: after 3.5 of 6 s, with a reserve of 2, a tool has less than its own 0.9 s; the answer still comes."""
    stream = waited.streams["tight tool"]
    [start], [end] = stream.of("tool_start"), stream.of("tool_end")
    assert end["status"] == "timeout"
    assert end.at - start.at < 0.85
    assert _ending(stream) == ("completion", "complete", "stop")


def test_a_tool_for_which_no_time_is_left_is_not_entered(waited: Waited) -> None:
    """B2: `tool_start` and `tool_end` `timeout` are sent, but the function is not entered; the reserve is for the answer."""
    stream = waited.streams["late tool"]
    turn = stream.events[0]["turn_id"]
    assert [event["status"] for event in stream.of("tool_end")] == ["timeout"]
    assert len(stream.of("tool_start")) == 1
    assert waited.service.ledger(key=f"{turn}:call_1") == []
    assert _ending(stream) == ("completion", "complete", "stop")
    assert stream.text.endswith("done")


def test_waiting_for_a_person_or_in_a_queue_does_not_count(waited: Waited) -> None:
    """B4: a turn that waited for an approval longer than a turn may take runs its tool and ends in order; so does the
    next one, which was queued behind it for as long."""
    asked = waited.streams["approval"]
    assert asked.of("approval_resolved")[0].at - asked.of("approval_required")[0].at > RUNGS["turn"]
    assert [event["status"] for event in asked.of("tool_end")] == ["ok"]
    assert _ending(asked) == ("completion", "complete", "stop")
    assert waited.next_in_line.types[0] == "queued"
    assert _ending(waited.next_in_line) == ("completion", "complete", "stop")
