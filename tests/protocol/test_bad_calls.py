"""What a model or its endpoint gets wrong is told in a plain sentence, without a trace (PROTOCOL 5, X3, 9)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.plan_by_words import by_words, last_words
from tests.service import UPSTREAM_KEY, Service
from tests.upstream import Request, Script, Status, Upstream

LEAK = f"key {UPSTREAM_KEY} refused by http://inside.example:9/v1; Authorization: Bearer {UPSTREAM_KEY}"


def _plan(request: Request) -> Script:
    if last_words(request).startswith("leak"):
        return [Status(int(last_words(request).split()[1]), body=json.dumps({"error": {"message": LEAK, "type": LEAK}}))]
    return by_words(request)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(_plan) as opened:
        yield opened


@pytest.fixture(scope="module")
def service(upstream: Upstream) -> Iterator[Service]:
    with Service(upstream) as running:
        yield running


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"number": "many"}, "number"),
        ({"number": 1.5}, "number"),
        ({"number": None}, "number"),
        ({"number": [1]}, "number"),
        ({"number": 1, "exact": "perhaps"}, "exact"),
        ({}, "number"),
        ({"number": 1, "colour": "red"}, "colour"),
    ],
    ids=str,
)
def test_arguments_of_a_wrong_type_do_not_enter_the_function(
    service: Service, upstream: Upstream, arguments: dict[str, object], name: str
) -> None:
    """The call ends in `tool_end` `error`, the model is told which argument, and the turn goes on (section 5, 9)."""
    stream = service.stream(f"call count {json.dumps(arguments)}").read_to_end()
    turn = stream.events[0]["turn_id"]
    assert [event["status"] for event in stream.of("tool_end")] == ["error"]
    assert len(stream.of("tool_start")) == 1
    assert stream.of("completion")[0]["finish_reason"] == "stop"
    assert service.ledger(tool="count", key=f"{turn}:call_1") == []
    told = upstream.requests[-1].body["messages"][-1]
    assert (told["role"], told["tool_call_id"]) == ("tool", "call_1")
    assert name in told["content"]
    for inside in ("Traceback", "pydantic", ".py", "TypeError"):
        assert inside not in told["content"]


def test_a_tool_that_does_not_exist_is_told_to_the_model(service: Service, upstream: Upstream) -> None:
    """A made-up name runs nothing; the model is told and goes on (section 5)."""
    stream = service.stream("call no_such_tool {}").read_to_end()
    assert [event["status"] for event in stream.of("tool_end")] == ["error"] * len(stream.of("tool_start"))
    assert stream.of("completion")[0]["finish_reason"] == "stop"
    assert "no_such_tool" in upstream.requests[-1].body["messages"][-1]["content"]


def test_what_a_tool_raises_is_told_without_a_stack(service: Service, upstream: Upstream) -> None:
    """`tool_end` `error` with a short message for the model (section 9)."""
    stream = service.stream("call fail {}").read_to_end()
    assert stream.of("tool_end")[0]["status"] == "error"
    told = upstream.requests[-1].body["messages"][-1]["content"]
    assert "this tool fails on purpose" in told
    for inside in ("Traceback", ".py", "line "):
        assert inside not in told


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
@pytest.mark.parametrize("profile", ["default", "anthropic"])
def test_a_rejected_request_is_an_apology_and_not_retried(
    service: Service, upstream: Upstream, status: int, profile: str
) -> None:
    """A wrong key, model or request at the endpoint: `error` `upstream_rejected` after one try, details in the log (5)."""
    before, logged = len(upstream.requests), len(service.log())
    conversation = service.conversation()
    stream = service.stream(f"leak {status}", conversation, profile=profile).read_to_end()
    assert stream.types == ["turn_started", "error", "message_saved", "stream_end"]
    error = stream.of("error")[0]
    assert (error["code"], error["retryable"]) == ("upstream_rejected", False)
    assert len(upstream.requests) - before == 1
    turn = service.turn(stream.events[0]["turn_id"])
    shown = json.dumps([error.json, turn["terminal"], service.messages(conversation)[1]["text"]])
    for inside in (UPSTREAM_KEY, "inside.example", "Bearer", "127.0.0.1"):
        assert inside not in shown + stream.raw.decode()
    assert str(status) not in error["message"]
    assert str(status) in service.log()[logged:]
    assert UPSTREAM_KEY not in service.log()
    assert "Traceback" not in service.log()[logged:]
