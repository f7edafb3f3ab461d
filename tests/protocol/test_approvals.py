"""A person's yes or no over HTTP (PROTOCOL 1, `approvals`; 3; B4)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.event_stream import Seen, Stream
from tests.plan_by_words import by_words
from tests.service import Reply, Service
from tests.upstream import Upstream

ASK = 'call guarded {"value": "x"}'


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(by_words) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    with Service(upstream) as running:
        yield running


def _asked(service: Service) -> tuple[Stream, str, Seen]:
    stream = service.stream(ASK)
    question = stream.wait_for("approval_required")
    return stream, str(stream.events[0]["turn_id"]), question


def _answer(service: Service, turn: str, approval: str, decision: object, **more: object) -> Reply:
    return service.call("POST", f"/v1/turns/{turn}/approvals/{approval}", {"decision": decision, **more})


def _runs(service: Service, turn: str) -> int:
    return len(service.ledger(phase="begin", tool="guarded", key=f"{turn}:call_1"))


def test_an_approved_call_runs_once_and_the_turn_goes_on(service: Service) -> None:
    """Asked before `tool_start`; approved by the caller's name; then it starts, runs and ends (section 3)."""
    stream, turn, question = _asked(service)
    assert stream.types[-1] == "approval_required"
    assert question["name"] == "guarded"
    assert question["arguments"] == {"value": "x"}
    assert question["expires_at"] > question["ts"]
    assert service.turn(turn)["status"] == "waiting"
    assert _runs(service, turn) == 0
    reply = _answer(service, turn, question["approval_id"], "approve", comment="fine")
    assert (reply.status, reply.json) == (200, {"approval_id": question["approval_id"], "decision": "approve"})
    stream.read_to_end()
    kinds = [kind for kind in stream.types if kind.startswith(("approval", "tool"))]
    assert kinds == ["approval_required", "approval_resolved", "tool_start", "tool_end"]
    resolved = stream.of("approval_resolved")[0]
    assert (resolved["decision"], resolved["by"]) == ("approve", "local")
    assert stream.of("tool_end")[0]["status"] == "ok"
    assert stream.text == "done"
    assert _runs(service, turn) == 1


def test_a_denied_call_does_not_run_and_the_model_is_told(service: Service, upstream: Upstream) -> None:
    """Denied: `tool_start`, `tool_end` `denied`, and the model goes on with that as the result (section 3)."""
    stream, turn, question = _asked(service)
    assert _answer(service, turn, question["approval_id"], "deny").status == 200
    stream.read_to_end()
    assert stream.of("tool_end")[0]["status"] == "denied"
    assert stream.of("completion")[0]["finish_reason"] == "stop"
    assert _runs(service, turn) == 0
    told = upstream.requests[-1].body["messages"][-1]
    assert told["role"] == "tool"
    assert told["tool_call_id"] == "call_1"


def test_the_same_answer_is_200_at_any_time_and_another_409(service: Service) -> None:
    """A repeat is harmless while the turn runs and after its end; a change of mind is `approval_conflict` (section 1)."""
    stream, turn, question = _asked(service)
    approval = question["approval_id"]
    assert _answer(service, turn, approval, "approve").status == 200
    assert _answer(service, turn, approval, "approve").status == 200
    stream.read_to_end()
    assert _answer(service, turn, approval, "approve").status == 200
    refused = _answer(service, turn, approval, "deny")
    assert (refused.status, refused.code) == (409, "approval_conflict")
    assert _runs(service, turn) == 1


def test_a_first_answer_after_the_end_is_409_approval_closed(service: Service) -> None:
    """A cancel closes the open question as `cancelled`; an answer then comes too late (sections 1 and 3)."""
    stream, turn, question = _asked(service)
    service.call("POST", f"/v1/turns/{turn}/cancel")
    stream.read_to_end()
    assert stream.of("approval_resolved")[0]["decision"] == "cancelled"
    for decision in ("approve", "deny"):
        late = _answer(service, turn, question["approval_id"], decision)
        assert (late.status, late.code) == (409, "approval_closed")
    assert _runs(service, turn) == 0


@pytest.mark.parametrize("decision", ["yes", "", None, True, ["approve"]])
def test_an_answer_that_is_none_is_422(service: Service, decision: object) -> None:
    """Only `approve` and `deny` (section 1, H1)."""
    reply = _answer(service, "turn_1", "appr_1", decision)
    assert (reply.status, reply.code) == (422, "invalid_request")


def test_an_approval_belongs_to_its_turn(service: Service) -> None:
    """An unknown approval, and one of another turn, are 404 (section 1, A2)."""
    stream, turn, question = _asked(service)
    other = service.start_turn("hello")
    service.settled(other)
    assert _answer(service, turn, "appr_none", "approve").code == "not_found"
    assert _answer(service, other, question["approval_id"], "approve").code == "not_found"
    assert _answer(service, "turn_none", question["approval_id"], "approve").code == "not_found"
    assert _runs(service, turn) == 0
    service.call("POST", f"/v1/turns/{turn}/cancel")
    stream.read_to_end()


def test_a_question_that_nobody_answers_expires(upstream: Upstream) -> None:
    """After `approval` seconds it is `expired`, as if denied; the wait does not count for the turn (section 3, B4)."""
    rungs = {
        "approval": 2.5,
        "turn": 2.0,
        "reserve": 0.5,
        "tool": 1.0,
        "model_first_token": 1.5,
        "model_between_tokens": 1.5,
    }
    with Service(upstream, rungs=rungs) as service:
        stream, turn, question = _asked(service)
        stream.read_to_end()
        resolved = stream.of("approval_resolved")[0]
        assert resolved["decision"] == "expired"
        assert resolved.at - question.at > 2.3
        assert stream.of("tool_end")[0]["status"] == "denied"
        assert stream.of("completion")[0]["finish_reason"] == "stop"
        late = _answer(service, turn, question["approval_id"], "approve")
        assert (late.status, late.code) == (409, "approval_closed")


def test_a_snapshot_shows_open_questions_and_answered_ones(service: Service) -> None:
    """An entry without `decision` is open (`snapshot`)."""
    stream, turn, question = _asked(service)
    with service.attach(turn, query="?from=snapshot") as joined:
        snapshot = joined.wait_for("snapshot")
        [entry] = snapshot["approvals"]
        assert entry["approval_id"] == question["approval_id"]
        assert entry["prompt"] == question["prompt"]
        assert "decision" not in entry
        assert snapshot["status"] == "waiting"
        _answer(service, turn, question["approval_id"], "deny")
        joined.read_to_end()
    stream.read_to_end()
    [entry] = service.turn(turn)["approvals"]
    assert entry["decision"] == "deny"
