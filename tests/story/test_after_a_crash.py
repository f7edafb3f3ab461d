"""`kill -9` at the worst moments, then a start on the same store: forward where nothing happens twice, else settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.event_stream import Stream
from tests.service import Service, wait_until
from tests.upstream import Finish, Head, Pause, Text, Upstream, drip, say, use

MARKS = ("mid-text", "mid-unsafe", "mid-safe", "between", "approval", "next")


def mark_of(request: Any) -> str:
    texts = [str(m.get("content")) for m in request.body["messages"] if m["role"] == "user"]
    return next(mark for mark in MARKS if f"[{mark}]" in texts[-1])


def answered(request: Any) -> bool:
    """Whether the newest message is a tool's result."""
    return bool(request.body["messages"][-1]["role"] == "tool")


def plan(request: Any) -> Any:
    match mark_of(request):
        case "mid-text":
            return drip("word{} ", 200, 0.05)
        case "mid-unsafe":
            return say("told") if answered(request) else use(("u1", "charge_slowly", {"value": "x", "seconds": 20}))
        case "mid-safe":
            return say("told") if answered(request) else use(("s1", "slow", {"seconds": 5}))
        case "between":
            if answered(request):
                return [Head(), Pause(3.0), Text("told"), Finish()]
            return use(("b1", "record", {"value": "y"}))
        case "approval":
            return say("told") if answered(request) else use(("a1", "guarded", {"value": "z"}))
    return say("still here")


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[Upstream, Service, dict[str, tuple[str, Stream]]]]:
    """One service that was killed while five turns were each at their worst moment, and started again."""
    with Upstream(plan) as upstream, Service(upstream) as service:
        before: dict[str, tuple[str, Stream]] = {}
        for mark in MARKS[:-1]:
            conversation = service.conversation()
            before[mark] = (conversation, service.stream(f"[{mark}]", conversation))
        before["mid-text"][1].wait_for(lambda s: len(s.of("text_delta")) > 40)
        for mark, kind in (("mid-unsafe", "tool_start"), ("mid-safe", "tool_start"), ("between", "tool_end")):
            before[mark][1].wait_for(kind)
        before["approval"][1].wait_for("approval_required")
        wait_until(lambda: len([r for r in upstream.requests if mark_of(r) == "between"]) == 2, what="the second call")
        service.kill9()
        service.start()
        yield upstream, service, before


def after(world: Any, mark: str) -> tuple[Stream, dict[str, Any], str]:
    """The stream of a viewer that comes back with its old id, the turn when it is done, and its conversation."""
    _, service, before = world
    conversation, stream = before[mark]
    turn = str(stream.events[0]["turn_id"])
    back = service.attach(turn, stream.last_id)
    if mark == "approval":
        approval = stream.of("approval_required")[0]["approval_id"]
        service.call("POST", f"/v1/turns/{turn}/approvals/{approval}", {"decision": "approve"})
    back.read_to_end()
    return back, service.settled(turn), conversation


def runs(world: Any, mark: str) -> list[str]:
    _, service, before = world
    turn = before[mark][1].events[0]["turn_id"]
    return [row["key"] for row in service.ledger(phase="begin") if row["key"].startswith(turn)]


@pytest.mark.parametrize("mark", MARKS[:-1])
def test_a_viewer_that_comes_back_gets_one_snapshot_and_one_ending(world: Any, mark: str) -> None:
    """E1, E7: the epoch is higher, so the old id gives one snapshot, then live; there is one terminal event."""
    back, done, conversation = after(world, mark)
    assert back.types[0] == "snapshot"
    assert back.types.count("snapshot") == 1
    assert back.events[0]["epoch"] == 2
    endings = [e for e in back.events if e.type in ("completion", "error")]
    assert len(endings) + (back.events[0].get("terminal") is not None) == 1
    assert done["terminal"]
    roles = [(m["role"], m["status"]) for m in world[1].messages(conversation)]
    assert [role for role, _ in roles] == ["user", "assistant"]


def test_text_up_to_the_last_checkpoint_survives(world: Any) -> None:
    """Section 5, "the process dies": what was shown until a second before is kept, and the answer is marked as recovered."""
    _, done, conversation = after(world, "mid-text")
    shown = world[2]["mid-text"][1].text
    assert (done["terminal"]["status"], done["terminal"]["finish_reason"]) == ("partial", "recovered")
    text = done["blocks"][0]["text"]
    assert shown.startswith(text)
    assert len(text) > len(shown) / 4
    assert world[1].messages(conversation)[1]["text"] == text


def test_an_unsafe_tool_is_never_started_twice(world: Any) -> None:
    """X2: its end is unknown, the model is told, and the turn goes forward."""
    _, done, _ = after(world, "mid-unsafe")
    assert [t["status"] for t in done["tools"]] == ["unknown"]
    assert (done["terminal"]["status"], done["blocks"][-1]["text"]) == ("complete", "told")
    assert len(runs(world, "mid-unsafe")) == 1


def test_a_safe_tool_runs_again_under_the_same_key(world: Any) -> None:
    """X2: an open call without side effects is run again, with the same id, key and `tool_start`, and one `tool_end`."""
    _, done, _ = after(world, "mid-safe")
    assert [t["status"] for t in done["tools"]] == ["ok"]
    assert done["blocks"][-1]["text"] == "told"
    keys = runs(world, "mid-safe")
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_finished_tool_does_not_run_again(world: Any) -> None:
    """X1: the next model call is made with the journaled result."""
    _, done, _ = after(world, "between")
    assert (done["terminal"]["status"], done["blocks"][-1]["text"]) == ("complete", "told")
    assert len(runs(world, "between")) == 1


def test_an_open_approval_is_waited_for_again(world: Any) -> None:
    """B4, section 5: the question stays open over the restart, and its answer lets the tool run, once."""
    _, done, _ = after(world, "approval")
    assert [a["decision"] for a in done["approvals"]] == ["approve"]
    assert done["blocks"][-1]["text"] == "told"
    assert len(runs(world, "approval")) == 1


@pytest.mark.parametrize("mark", MARKS[:-1])
def test_the_conversation_is_usable_and_its_history_well_formed(world: Any, mark: str) -> None:
    """X4: the next turn's request has a result for every tool call."""
    upstream, service, before = world
    after(world, mark)
    next_one = service.stream("[next]", before[mark][0]).read_to_end()
    assert next_one.text == "still here"
    open_ids: list[str] = []
    for message in upstream.requests[-1].body["messages"]:
        if message["role"] == "tool":
            open_ids.remove(message["tool_call_id"])
        else:
            assert not open_ids
        open_ids += [call["id"] for call in message.get("tool_calls") or []]
    assert not open_ids
