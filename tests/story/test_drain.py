"""SIGTERM in every state: bodies end in order, running turns finish, what waits is handed on, and the process leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.event_stream import Stream
from tests.service import Service
from tests.upstream import Upstream, drip, say, use

RUNGS = {
    "tool": 3,
    "turn": 6,
    "request": 7,
    "drain": 8,
    "shutdown": 9,
    "reserve": 0.5,
    "model_first_token": 3,
    "model_between_tokens": 3,
}


def plan(request: Any) -> Any:
    messages = request.body["messages"]
    text = str([m["content"] for m in messages if m["role"] == "user"][-1])
    if messages[-1]["role"] == "tool":
        return say("told")
    if "tool" in text:
        return use(("t1", "slow", {"seconds": 1.5}))
    if "deaf" in text:
        return use(("t1", "block", {"seconds": 30}))
    if "approval" in text:
        return use(("t1", "guarded", {"value": "v"}))
    return drip("word{} ", 40, 0.05) if "text" in text else say("at once")


@pytest.fixture(scope="module")
def drained() -> Iterator[tuple[Service, dict[str, Stream], float]]:
    """A service that was told to stop, twice, while turns were in five states; with how long it took to leave."""
    with Upstream(plan) as upstream, Service(upstream, rungs=RUNGS) as service:
        busy = service.conversation()
        streams = {name: service.stream(name) for name in ("text", "tool", "deaf", "approval")}
        streams["running"] = service.stream("text", busy)
        streams["running"].wait_for("text_delta")
        streams["queued"] = service.stream("at once", busy, on_busy="enqueue")
        done = service.start_turn("at once")
        service.settled(done)
        streams["text"].wait_for("text_delta")
        streams["tool"].wait_for("tool_start")
        streams["deaf"].wait_for("tool_start")
        streams["approval"].wait_for("approval_required")
        asked = service.sigterm()
        service.sigterm()
        refusals(service, streams["text"])
        assert service.wait_exit(RUNGS["shutdown"]) == 0
        took = time.monotonic() - asked
        for stream in streams.values():
            stream.read_to_end(5)
        yield service, streams, took


def refusals(service: Service, stream: Stream) -> None:
    """While it drains: not ready, no new turns, and an EventSource is told when to come back (R6)."""
    assert service.call("GET", "/readyz").status == 503
    assert service.call("GET", "/livez").status == 200
    turn = str(stream.events[0]["turn_id"])
    again = service.attach(turn).read_to_end(5)
    assert again.status == 200
    assert again.types == ["stream_end"]
    assert again.events[0]["reason"] == "draining"
    assert 5000 <= (again.parser.retry or 0) <= 15000
    assert service.call("POST", "/v1/conversations", {}).status in (201, 503)


def test_the_process_leaves_in_time_whatever_its_tools_do(drained: Any) -> None:
    """Section 6: within the drain, though one tool ignores everything and sleeps on in its thread."""
    _, _, took = drained
    assert took < RUNGS["drain"]


@pytest.mark.parametrize("name", ["text", "tool", "deaf", "running", "approval", "queued"])
def test_no_body_is_cut_off(name: str, drained: Any) -> None:
    """F6: every stream ends with `stream_end`, and its body in order."""
    stream = drained[1][name]
    assert stream.types[-1] == "stream_end"
    assert stream.broken is None


@pytest.mark.parametrize("name", ["text", "tool", "deaf", "running"])
def test_running_turns_finish(name: str, drained: Any) -> None:
    """Section 5, SIGTERM: viewers of turns that run here stay to their end."""
    stream = drained[1][name]
    assert stream.events[-1]["reason"] == "done"
    assert stream.of("completion")[0]["status"] == "complete"
    assert stream.of("message_saved")


@pytest.mark.parametrize("name", ["approval", "queued"])
def test_what_waits_is_handed_on(name: str, drained: Any) -> None:
    """B4: a waiting turn is left to the next process, and its viewer is told to come back."""
    stream = drained[1][name]
    assert (stream.events[-1]["reason"], stream.events[-1]["resume"]) == ("draining", True)
    assert not stream.of("completion")
    assert not stream.of("error")


def test_the_next_process_goes_on_with_what_was_handed_on(drained: Any) -> None:
    """Section 5: after the start the queued turn runs, and the open approval still lets its tool run, once."""
    service, streams, _ = drained
    service.start()
    approval = streams["approval"]
    turn = str(approval.events[0]["turn_id"])
    path = f"/v1/turns/{turn}/approvals/{approval.of('approval_required')[0]['approval_id']}"
    assert service.call("POST", path, {"decision": "approve"}).status == 200
    assert service.settled(turn)["blocks"][-1]["text"] == "told"
    assert len([row for row in service.ledger(phase="begin", tool="guarded") if row["key"].startswith(turn)]) == 1
    conversation = str(streams["running"].events[0]["conversation_id"])
    for message in service.messages(conversation):
        if message["role"] == "assistant":
            queued_turn = message["turn_id"]
    assert service.settled(queued_turn)["terminal"]["status"] == "complete"
