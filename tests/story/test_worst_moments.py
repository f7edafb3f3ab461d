"""`kill -9` at more of the worst moments, twice in a row, each time with a start on the same store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.event_stream import Stream
from tests.model_history import faults_of, tool_results
from tests.plan_by_words import last_words
from tests.service import Service
from tests.upstream import Hang, Request, Script, Text, Thought, Upstream, drip, say, use

# Inserting a reply that holds these words takes some seconds: so long is the time between an ending and its save.
SLOW_SAVE = """
CREATE TRIGGER slow_save BEFORE INSERT ON messages WHEN NEW.text = 'saved slowly'
BEGIN
    SELECT count(*) FROM (
        WITH RECURSIVE steps(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM steps LIMIT 80000000) SELECT n FROM steps
    );
END
"""
# Each turn of the second crash, with what its viewer has seen when it comes.
MOMENTS = {
    "first": "text_delta",
    "second": "queued",
    "thinking": "reasoning_delta",
    "text": lambda s: len(s.of("text_delta")) > 70,
    "idempotent": "tool_start",
    "batch": lambda s: len(s.of("tool_start")) == 2,
    "cancelled": "text_delta",
    "cancelled tool": "tool_start",
}
_thought: list[Request] = []


def _plan(request: Request) -> Script:
    words = last_words(request)
    if request.body["messages"][-1]["role"] == "tool":
        return say("told")
    match words:
        case "save":
            return say("saved ", "slowly")
        case "text":
            return drip("word ", 400, 0.05)
        case "thinking":
            _thought.append(request)
            return [Thought("lost"), Hang()] if len(_thought) == 1 else [Thought("kept"), *say("thought anew")]
        case "idempotent":
            return use(("call_i", "stamp_slowly", {"value": "x", "seconds": 3}))
        case "batch":
            calls = [("b1", "record", {"value": "1"}), ("b2", "charge_slowly", {"value": "2", "seconds": 30})]
            return use(*calls, ("b3", "record", {"value": "3"}))
        case "cancelled" | "first":
            return [Text("begun"), Hang()]
        case "cancelled tool":
            # Deaf, so that its turn has not ended when the process dies.
            return use(("call_c", "block", {"seconds": 20}))
        case "approval":
            return use(("call_a", "guarded", {"value": "z"}))
    return say("still here")


@dataclass
class World:
    """The service after both crashes; `before` are the streams that broke, `back` those of viewers that came again."""

    upstream: Upstream
    service: Service
    before: dict[str, Stream]
    back: dict[str, Stream]
    ready_at: float

    def turn(self, moment: str) -> str:
        return _turn(self.before[moment])

    def conversation(self, moment: str) -> str:
        return str(self.before[moment].of("turn_started")[0]["conversation_id"])

    def runs(self, moment: str, tool: str) -> list[dict[str, Any]]:
        turn = self.turn(moment)
        return [row for row in self.service.ledger(phase="begin", tool=tool) if row["key"].startswith(turn)]


def _turn(stream: Stream) -> str:
    return str(stream.of("turn_started")[0]["turn_id"])


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with Upstream(_plan) as upstream, Service(upstream) as service:
        with service.database() as connection:
            connection.execute(SLOW_SAVE)
        before = {"approval": service.stream("approval")}
        before["approval"].wait_for("approval_required")
        before["save"] = service.stream("save")
        before["save"].wait_for("completion")
        service.kill9()
        with service.database() as connection:
            connection.execute("DROP TRIGGER slow_save")
        service.start()

        busy = service.conversation()
        for name, seen in MOMENTS.items():
            more = {"on_busy": "enqueue"} if name == "second" else {}
            before[name] = service.stream(name, busy if name in ("first", "second") else None, **more)
            before[name].wait_for(seen)
        for name in ("cancelled", "cancelled tool"):
            assert service.call("POST", f"/v1/turns/{_turn(before[name])}/cancel").status in (200, 202)
        service.kill9()
        service.start()
        ready_at = time.monotonic()
        back = {name: service.attach(_turn(s), s.last_id) for name, s in before.items() if name != "second"}
        approval = before["approval"].of("approval_required")[0]["approval_id"]
        path = f"/v1/turns/{_turn(before['approval'])}/approvals/{approval}"
        assert service.call("POST", path, {"decision": "approve"}).status == 200
        for stream in back.values():
            stream.read_to_end()
        yield World(upstream, service, before, back, ready_at)


EXPECTED = {
    "approval": (3, "complete", "stop"),
    "save": (2, "complete", "stop"),
    "text": (2, "partial", "recovered"),
    "thinking": (2, "complete", "stop"),
    "idempotent": (2, "complete", "stop"),
    "batch": (2, "complete", "stop"),
    "cancelled tool": (2, "cancelled", "cancelled"),
    "first": (2, "partial", "recovered"),
}


@pytest.mark.parametrize("moment", EXPECTED)
def test_a_returning_viewer_sees_one_snapshot_and_the_turn_has_one_ending(world: World, moment: str) -> None:
    """E1, E7: the epoch rises with each crash, seq goes on from what survived, and the one ending is the right one."""
    epoch, status, reason = EXPECTED[moment]
    stream = world.back[moment]
    assert stream.types[0] == "snapshot"
    assert stream.types.count("snapshot") == 1
    snapshot = stream.events[0]
    assert snapshot["epoch"] == epoch
    after = [event.seq for event in stream.events[1:-1]]
    assert after == list(range(snapshot["last_seq"] + 1, snapshot["last_seq"] + 1 + len(after)))
    endings = [e.json for e in stream.events if e.type in ("completion", "error")]
    endings += [snapshot["terminal"]] if snapshot.get("terminal") else []
    assert [(e["status"], e["finish_reason"]) for e in endings] == [(status, reason)]
    assert stream.types[-1] == "stream_end"
    assert stream.events[-1]["reason"] == "done"


@pytest.mark.parametrize("moment", ["save", "text", "cancelled tool", "first"])
def test_what_cannot_go_on_has_its_ending_within_five_seconds(world: World, moment: str) -> None:
    """Section 5, "the process dies": on restart within 5 s; no viewer hangs on a dead turn."""
    assert world.back[moment].events[-1].at - world.ready_at < 5


@pytest.mark.parametrize("moment", [*EXPECTED, "cancelled", "second"])
def test_user_and_answer_are_in_the_history_once(world: World, moment: str) -> None:
    """E1, section 5: however often the process died, the history has one message of each."""
    conversation = world.conversation(moment if moment != "second" else "first")
    mine = world.service.messages(conversation)
    if moment in ("first", "second"):
        assert [m["text"] for m in mine[:4]] == ["first", "begun", "second", "still here"]
        mine = mine[:2] if moment == "first" else mine[2:4]
    assert [m["role"] for m in mine[:2]] == ["user", "assistant"]
    assert len({m["turn_id"] for m in mine[:2]}) == 1
    assert all(m["turn_id"] != mine[0]["turn_id"] for m in mine[2:])


def test_a_stored_ending_stays_the_ending_though_its_save_was_cut_off(world: World) -> None:
    """E1: once an ending is stored no other can follow: the next process completes it, without asking the model."""
    told = world.before["save"].of("completion")[0]
    assert "message_saved" not in world.before["save"].types
    stored = world.service.turn(world.turn("save"))["terminal"]
    same = ("type", "status", "finish_reason", "chars", "text", "usage")
    assert {name: stored[name] for name in same} == {name: told[name] for name in same}
    assert len([r for r in world.upstream.requests if last_words(r) == "save"]) == 1
    assert world.service.messages(world.conversation("save"))[1]["text"] == "saved slowly"


def test_text_that_was_shown_over_a_second_before_is_kept(world: World) -> None:
    """Section 5: a crash costs the text since the last checkpoint, which is at most 1 s old; half a second for the write."""
    deltas = world.before["text"].of("text_delta")
    older = "".join(d["text"] for d in deltas if d["ts"] < deltas[-1]["ts"] - 1500)
    kept = world.service.turn(world.turn("text"))["blocks"][0]["text"]
    assert older
    assert kept.startswith(older)
    assert world.before["text"].text.startswith(kept)


def test_thoughts_that_had_shown_nothing_are_thought_anew(world: World) -> None:
    """X1, E7: only reasoning was seen, so the model is asked again, and nothing of the first thoughts is left."""
    assert world.service.turn(world.turn("thinking"))["reasoning"] == [{"block": 1, "text": "kept"}]
    assert world.before["thinking"].of("reasoning_delta")[0]["text"] == "lost"
    assert [e["text"] for e in world.back["thinking"].of("reasoning_delta")] in ([], ["kept"])


def test_an_idempotent_call_runs_again_under_its_key(world: World) -> None:
    """X2: same id, key and `tool_start`, one `tool_end`."""
    runs = world.runs("idempotent", "stamp_slowly")
    assert len(runs) == 2
    assert {run["key"] for run in runs} == {f"{world.turn('idempotent')}:call_i"}
    assert world.back["idempotent"].types.count("tool_start") == 0
    assert [(e["tool_call_id"], e["status"]) for e in world.back["idempotent"].of("tool_end")] == [("call_i", "ok")]


def test_of_a_batch_each_unsafe_call_is_begun_once(world: World) -> None:
    """X2: what had ended stays, what was open is unknown and told so, what had not begun is run now."""
    tools = world.service.turn(world.turn("batch"))["tools"]
    assert [(t["tool_call_id"], t["status"]) for t in tools] == [("b1", "ok"), ("b2", "unknown"), ("b3", "ok")]
    assert [run["arguments"]["value"] for run in world.runs("batch", "record")] == ["1", "3"]
    assert len(world.runs("batch", "charge_slowly")) == 1
    [told] = [r for r in world.upstream.requests if last_words(r) == "batch" and r.body["messages"][-1]["role"] == "tool"]
    assert "unknown" in tool_results(told)["b2"]


@pytest.mark.parametrize("moment", ["cancelled", "cancelled tool"])
def test_a_cancel_that_was_answered_outlives_the_process(world: World, moment: str) -> None:
    """Section 5: a stored cancel is settled as `cancelled`: nothing runs again, no model is asked."""
    assert world.service.turn(world.turn(moment))["terminal"]["finish_reason"] == "cancelled"
    assert len([r for r in world.upstream.requests if last_words(r) == moment]) == 1
    assert len(world.runs(moment, "block")) == (1 if moment == "cancelled tool" else 0)


def test_a_question_stays_open_over_two_crashes(world: World) -> None:
    """B4, X2: asked once, answered once, run once."""
    assert [a["decision"] for a in world.service.turn(world.turn("approval"))["approvals"]] == ["approve"]
    assert len(world.runs("approval", "guarded")) == 1


def test_a_queued_turn_runs_after_the_one_before_it(world: World) -> None:
    """H4, section 5: it had not begun; it keeps its place and begins in the next process."""
    [second] = [r for r in world.upstream.requests if last_words(r) == "second"]
    assert [m["content"] for m in second.body["messages"]] == ["first", "begun", "second"]


@pytest.mark.parametrize("moment", [*EXPECTED, "cancelled"])
def test_the_next_turn_of_each_conversation_is_well_formed(world: World, moment: str) -> None:
    """X4: every call has a result, nothing is there twice, and the conversation is free."""
    conversation = world.conversation(moment)
    count = len(world.upstream.requests)
    answer = world.service.stream(f"after {moment}", conversation).read_to_end()
    assert answer.text == "still here"
    assert faults_of(world.upstream.requests[count]) == []
