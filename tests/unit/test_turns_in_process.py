"""Whole turns on a real store with scripted models: what the wire cannot show, and what a dead process leaves behind."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from app.agents.transcript import STOPPED
from app.clock import now_ms
from app.hooks import Deny, hook
from app.limits.budget import Timeouts
from app.providers.chunks import Text
from app.store import approvals
from app.store.engine import Store
from app.tools import tool
from tests.performers import STOP, ScriptedProvider, wants
from tests.workshop import Workshop, kinds, left_behind, store_in, told

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Store]:
    async with store_in(tmp_path) as opened:
        yield opened


def step(text: str | None, *calls: tuple[str, str, str]) -> tuple[str, dict[str, Any]]:
    """A journal entry: the assistant's part of a step; calls are (id, name, arguments)."""
    return (
        "step",
        {
            "role": "assistant",
            "content": text,
            "tool_calls": [
                {"id": i, "type": "function", "function": {"name": n, "arguments": arguments}} for i, n, arguments in calls
            ],
        },
    )


def shown(*events: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    return ("events", list(events))


def result(call_id: str, content: str = "r", status: str = "ok") -> tuple[str, dict[str, Any]]:
    return ("result", {"tool_call_id": call_id, "status": status, "content": content})


START = {"type": "tool_start", "tool_call_id": "c1", "name": "pay", "title": "Paying", "side_effects": "unsafe"}
END = {"type": "tool_end", "tool_call_id": "c1", "status": "ok", "duration_ms": 1, "seq": 4, "ts": 1}


def text(words: str, *, block: int = 1, seq: int = 2) -> dict[str, Any]:
    return {"type": "text_delta", "block": block, "text": words, "seq": seq, "ts": 1}


async def test_a_turn_is_told_saved_and_gone(store: Store) -> None:
    """E1, E3: started, text, completion, message_saved; both messages in the history, the journal empty."""
    async with Workshop(store, ScriptedProvider([Text("Hello"), STOP])).work() as shop:
        log = await shop.answer("hi")
        assert kinds(log) == ["turn_started", "text_delta", "usage", "completion", "message_saved"]
        assert [event["seq"] for event in told(log)] == [1, 2, 3, 4, 5]
        assert [(m.role, m.text, m.status) for m in await shop.messages()] == [
            ("user", "hi", "complete"),
            ("assistant", "Hello", "complete"),
        ]
        row = await shop.row(log.turn_id)
        assert row is not None
        assert (row.status, row.owner, row.last_seq) == ("done", None, 5)
        assert await shop.journal(log.turn_id) == []


async def test_the_next_turn_is_shown_what_an_unknown_tool_was_answered(store: Store) -> None:
    """X4: a call has the result that the model was told, in this turn and in every later one."""
    provider = ScriptedProvider([wants(("c1", "no_such", {}))], [Text("ok"), STOP], [Text("bye"), STOP])
    async with Workshop(store, provider).work() as shop:
        await shop.answer("one")
        await shop.answer("two")
        now, later = [[m["content"] for m in r.messages if m["role"] == "tool"] for r in provider.requests[1:]]
        assert now == later
        assert "no tool called 'no_such'" in now[0]


# -- cancel


async def test_a_tool_that_comes_back_after_the_cancel_is_cancelled_whatever_else_ended_before(store: Store) -> None:
    """PROTOCOL 3, tool_end: `cancelled` when it returned after the cancel; a call that a hook denied in the same batch must
    not make the service believe that nothing runs."""
    begun = threading.Event()

    @tool(side_effects="none")
    def wait(ctx: Any) -> str:
        stop = threading.Event()
        ctx.on_cancel(stop.set)
        begun.set()
        stop.wait(20)
        return "late"

    @tool(side_effects="unsafe")
    def pay() -> str:
        return "paid"

    @hook("before_tool")
    async def never_pay(event: Any) -> Any:
        while event.name == "pay" and not begun.is_set():
            await anyio.sleep(0.01)
        return Deny("no") if event.name == "pay" else None

    provider = ScriptedProvider([wants(("c1", "wait", {}), ("c2", "pay", {}))], [STOP])
    async with Workshop(store, provider, tools=[wait, pay], hooks=[never_pay]).work() as shop:
        turn_id = (await shop.ask()).turn_id
        log = shop.log(turn_id)
        while "tool_end" not in kinds(log):
            await anyio.sleep(0.01)
        shop.supervisor.cancel(shop.live(turn_id))
        await shop.settled(turn_id)
        ends = {event["tool_call_id"]: event["status"] for event in told(log) if event["type"] == "tool_end"}
        assert ends == {"c1": "cancelled", "c2": "denied"}


# -- recovery


async def test_a_recovered_ending_keeps_the_steps_and_the_text_for_the_next_model(store: Store) -> None:
    """X4, section 5: partial messages go in like any other, tool calls and their results always do, also when the process
    died in the answer after them."""
    turn_id = await left_behind(
        store,
        shown(text("Let me pay. ")),
        step("Let me pay. ", ("c1", "pay", '{"n":1}')),
        shown(START),
        shown(END),
        result("c1", "paid 1"),
        shown(text("I paid", block=2, seq=5)),
    )
    provider = ScriptedProvider([Text("next"), STOP])
    async with Workshop(store, provider).work() as shop:
        log = await shop.settled(turn_id)
        assert told(log)[-2]["finish_reason"] == "recovered"
        assert told(log)[-2]["text"] == "Let me pay. I paid"
        await shop.answer("go on")
    sent = provider.requests[0].messages
    assert [m["role"] for m in sent] == ["assistant", "tool", "assistant", "user"]
    assert [m["content"] for m in sent] == ["Let me pay. ", "paid 1", "I paid", "go on"]
    assert sent[0]["tool_calls"][0]["id"] == sent[1]["tool_call_id"] == "c1"


@pytest.mark.parametrize("way", ["cancelled", "stored", "deadline"])
async def test_every_recovered_ending_knows_what_the_tools_did(store: Store, way: str) -> None:
    """X4: a stored cancel, a stored ending, a passed deadline: the next model is shown the step and its result."""
    columns: dict[str, Any] = {
        "cancelled": {"cancel_requested": True},
        "stored": {
            "terminal": {
                "type": "completion",
                "status": "partial",
                "finish_reason": "length",
                "chars": 1,
                "text": "x",
                "seq": 6,
            },
            "status": "ended",
        },
        "deadline": {"deadline_at": now_ms() - 1},
    }[way]
    turn_id = await left_behind(
        store,
        step(None, ("c1", "pay", "{}")),
        shown(START),
        shown(END),
        result("c1", "paid"),
        shown(text("x", seq=5)),
        **columns,
    )
    provider = ScriptedProvider([Text("next"), STOP])
    async with Workshop(store, provider).work() as shop:
        log = await shop.settled(turn_id)
        reason = {"cancelled": "cancelled", "stored": "length", "deadline": "recovered"}[way]
        assert [e["finish_reason"] for e in told(log) if e["type"] == "completion"] == [reason]
        await shop.answer("go on")
    sent = [m for m in provider.requests[0].messages if m["content"] != STOPPED]
    assert [m["role"] for m in sent] == ["assistant", "tool", "assistant", "user"]
    assert [m["content"] for m in sent] == [None, "paid", "x", "go on"]


async def test_a_turn_that_goes_forward_says_the_rest_after_what_was_said(store: Store) -> None:
    """X1, X2: the open call is `unknown`, the model is told, and the answer goes on in the next block; all is saved."""
    turn_id = await left_behind(
        store,
        shown(text("Paying. ")),
        step("Paying. ", ("c1", "pay", "{}")),
        shown(START),
        deadline_at=now_ms() + 60_000,
    )
    ran: list[int] = []

    @tool(side_effects="unsafe")
    def pay() -> None:
        ran.append(1)

    provider = ScriptedProvider([Text("Not sure."), STOP], [Text("next"), STOP])
    async with Workshop(store, provider, tools=[pay]).work() as shop:
        log = await shop.settled(turn_id)
        assert [e["status"] for e in told(log) if e["type"] == "tool_end"] == ["unknown"]
        assert told(log)[-2]["text"] == "Paying. Not sure."
        await shop.answer("go on")
    assert ran == []
    assert [m["content"] for m in provider.requests[1].messages if m["role"] == "assistant"] == ["Paying. ", "Not sure."]


async def test_a_turn_whose_start_was_not_stored_is_not_begun_anew_after_a_tool(store: Store) -> None:
    """X1, X2: the row still says `queued` when the store was slow at the start; its journal says that a tool has begun."""
    turn_id = await left_behind(store, step(None, ("c1", "pay", "{}")), shown(START), status="queued")
    ran: list[int] = []

    @tool(side_effects="unsafe")
    def pay() -> None:
        ran.append(1)

    provider = ScriptedProvider([Text("Not sure."), STOP], [STOP])
    async with Workshop(store, provider, tools=[pay]).work() as shop:
        log = await shop.settled(turn_id)
        assert ran == []
        assert kinds(log) == ["tool_end", "text_delta", "usage", "completion", "message_saved"]
        assert [m["role"] for m in provider.requests[0].messages] == ["user", "assistant", "tool"]
        assert [m.role for m in await shop.messages()] == ["user", "assistant"]


async def test_a_turn_that_had_not_begun_begins(store: Store) -> None:
    """A queued turn of a dead process runs as if nothing had happened."""
    turn_id = await left_behind(store, status="queued")
    async with Workshop(store, ScriptedProvider([Text("hi"), STOP])).work() as shop:
        log = await shop.settled(turn_id)
        assert kinds(log) == ["turn_started", "text_delta", "usage", "completion", "message_saved"]
        assert told(log)[0]["epoch"] == 2


async def test_one_turn_that_cannot_be_read_does_not_keep_the_service_from_starting(store: Store) -> None:
    """A journal of another version must not take the other turns down; it stays as it is, for whoever can read it."""
    broken = await left_behind(store, shown({"type": "text_delta", "block": "x"}))
    fine = await left_behind(store, status="queued", place=2)
    async with Workshop(store, ScriptedProvider([Text("hi"), STOP])).work() as shop:
        assert kinds(await shop.settled(fine))[-1] == "message_saved"
        row = await shop.row(broken)
        assert row is not None
        assert row.status == "running"


# -- approvals over a change of hands


@tool(name="pay", side_effects="unsafe", approval=True)
def pay_when_allowed() -> str:
    return "paid"


async def test_a_turn_that_waits_for_a_person_is_handed_on_and_asks_nobody_twice(store: Store) -> None:
    """B4, section 5 SIGTERM: in a drain it is handed on at once; the next process waits on under the same approval."""
    asked = [wants(("c1", "pay", {}))]
    async with Workshop(store, ScriptedProvider(asked), tools=[pay_when_allowed]).work() as first:
        turn_id = (await first.ask()).turn_id
        log = first.log(turn_id)
        while "approval_required" not in kinds(log):
            await anyio.sleep(0.01)
        await first.supervisor.drain(5)
        assert "approval_resolved" not in kinds(log)
        row = await first.row(turn_id)
        assert row is not None
        assert (row.status, row.owner) == ("waiting", None)
    approval = next(event for event in told(log) if event["type"] == "approval_required")
    async with Workshop(store, ScriptedProvider([Text("done"), STOP]), tools=[pay_when_allowed]).work() as second:
        turn = second.live(turn_id)
        while turn.log.status != "waiting":
            await anyio.sleep(0.01)
        assert turn.log.content.approvals.keys() == {approval["approval_id"]}
        turn.answer(approval["approval_id"], "approve", "ann", None)
        log = await second.settled(turn_id)
    assert kinds(log) == [
        "approval_resolved", "tool_start", "tool_end", "text_delta", "usage", "completion", "message_saved",
    ]  # fmt: skip


async def test_an_approval_that_was_given_before_the_crash_is_not_asked_for_again(store: Store) -> None:
    """PROTOCOL 3, approval_resolved: approved: `tool_start`, and it runs; also when the process died in between."""
    ask = {
        "type": "approval_required", "approval_id": "a1", "tool_call_id": "c1", "name": "pay", "title": "Pay",
        "prompt": "Pay?", "expires_at": now_ms() + 60_000, "seq": 2, "ts": 1,
    }  # fmt: skip
    yes = {"type": "approval_resolved", "approval_id": "a1", "decision": "approve", "by": "ann", "seq": 3, "ts": 1}
    turn_id = await left_behind(
        store, step(None, ("c1", "pay", "{}")), shown(ask), shown(yes), deadline_at=now_ms() + 60_000
    )
    row = approvals.Approval(id="a1", turn_id=turn_id, tool_call_id="c1", expires_at=ask["expires_at"])
    await store.write(lambda conn: approvals.insert(conn, row))
    await store.write(lambda conn: approvals.decide(conn, "a1", decision="approve", by="ann", at=now_ms()))
    async with Workshop(store, ScriptedProvider([Text("done"), STOP]), tools=[pay_when_allowed]).work() as shop:
        log = await shop.settled(turn_id)
    assert kinds(log) == ["tool_start", "tool_end", "text_delta", "usage", "completion", "message_saved"]


# -- faults of ours


class Unstorable:
    """What no journal takes."""


async def test_a_turn_whose_journal_cannot_be_stored_ends_and_leaves_the_others_alone(store: Store) -> None:
    """E1: one terminal event whatever happens; checkpoints of other turns go on, and so does the service."""
    go = threading.Event()
    provider = ScriptedProvider([Text("a"), lambda cancel: go.wait(20), Text("b"), STOP], [Text("fine"), STOP])
    async with Workshop(store, provider, timeouts=Timeouts(checkpoint=0.02)).work() as shop:
        turn_id = (await shop.ask()).turn_id
        log = shop.log(turn_id)
        while "text_delta" not in kinds(log):
            await anyio.sleep(0.01)
        recorder = shop.live(turn_id).recorder
        assert recorder is not None
        recorder.note("events", [Unstorable()])
        await anyio.sleep(0.1)
        go.set()
        await shop.settled(turn_id)
        assert kinds(log)[-2:] == ["completion", "message_saved"]
        assert kinds(await shop.answer("next"))[-2:] == ["completion", "message_saved"]


async def test_an_ending_that_breaks_is_replaced_by_a_plain_one(store: Store) -> None:
    """E1: a stored ending that nobody can read is a fault of ours; the viewers still get one ending, and the save."""
    turn_id = await left_behind(store, shown(text("some")), status="ended", terminal={"type": "later"})
    async with Workshop(store).work() as shop:
        log = await shop.settled(turn_id)
        ending, saved = told(log)[-2:]
        assert (ending["type"], ending["finish_reason"], ending["text"]) == ("completion", "upstream_error", "some")
        assert saved["type"] == "message_saved"


async def test_an_event_that_cannot_be_encoded_leaves_no_gap(store: Store) -> None:
    """F3: seq without gaps, and the log agrees with the content: what an agent of yours sends may hold anything."""

    def agent(ctx: Any) -> Any:
        yield "some"
        yield {"type": "notice", "level": "info", "code": "c", "text": "t", "data": {"x": Unstorable()}}

    async with Workshop(store, agent=agent).work() as shop:
        log = await shop.answer()
        assert [event["seq"] for event in told(log)] == list(range(1, log.last_seq + 1))
        assert log.last_seq == log.content.last_seq
        assert told(log)[-2]["finish_reason"] == "upstream_error"


async def test_arguments_of_an_own_agent_that_no_journal_takes_fail_that_agent_only(store: Store) -> None:
    """`call_tool` with what is no JSON: `internal`, and the next turn works."""

    @tool(side_effects="none")
    def look(x: Any = None) -> str:
        return "seen"

    def agent(ctx: Any) -> Any:
        if ctx.input == "bad":
            ctx.call_tool("look", {"x": Unstorable()})
        yield str(ctx.call_tool("look", {"x": 1}))

    async with Workshop(store, agent=agent, tools=[look], timeouts=Timeouts(checkpoint=0.02)).work() as shop:
        bad = await shop.answer("bad")
        assert told(bad)[-2]["code"] == "internal"
        good = await shop.answer("good")
        assert told(good)[-2]["text"] == "seen"
