"""Peers that others wrote: aimock as the model, in both dialects and when it breaks, and npm's EventSource as the viewer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.peers import aimock, follow_with_eventsource
from tests.service import TOOLS, Service, wait_until

LONG = "The quick brown fox jumps over the lazy dog. " * 30
FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "hello"}, "response": {"content": "Hello! How can I help you today?"}},
    {
        "match": {"userMessage": "record it", "hasToolResult": False},
        "response": {"toolCalls": [{"name": "record", "arguments": '{"value": "from aimock"}'}]},
    },
    {"match": {"userMessage": "record it", "hasToolResult": True}, "response": {"content": "It is recorded."}},
    {
        "match": {"userMessage": "think", "hasToolResult": False},
        "response": {"content": "Forty-two.", "reasoning": "What is six times seven?"},
    },
    {"match": {"userMessage": "slowly"}, "response": {"content": LONG}, "latency": 20, "chunkSize": 20},
    {
        "match": {"userMessage": "be cut"},
        "response": {"content": LONG},
        "latency": 5,
        "chunkSize": 20,
        "truncateAfterChunks": 12,
    },
    {
        "match": {"userMessage": "go away"},
        "response": {"content": LONG},
        "latency": 20,
        "chunkSize": 20,
        "disconnectAfterMs": 250,
    },
    {
        "match": {"userMessage": "refuse"},
        "response": {"error": {"message": "no", "type": "invalid_request_error"}, "status": 400},
    },
    *(
        {"match": {"userMessage": f"{profile} be busy", "sequenceIndex": number}, "response": response}
        for profile in ("default", "anthropic")
        for number, response in enumerate(
            [{"error": {"message": "busy", "type": "server_error"}, "status": 503}, {"content": "Now I can."}]
        )
    ),
    {
        "match": {"userMessage": "pay out", "hasToolResult": False},
        "response": {"toolCalls": [{"name": "guarded", "arguments": '{"value": "after a restart"}'}]},
    },
    {"match": {"userMessage": "pay out", "hasToolResult": True}, "response": {"content": "It is paid."}},
]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with aimock(FIXTURES) as url:
        shared = {"base_url": url, "api_key_env": "TEST_UPSTREAM_KEY", "tools": [TOOLS], "system": "Be brief."}
        profiles = {
            "default": {"provider": "openai", "model": "gpt-4o", **shared},
            "anthropic": {"provider": "anthropic", "model": "claude-sonnet-4-5", **shared},
        }
        with Service(config={"profiles": profiles}) as running:
            yield running


both = pytest.mark.parametrize("profile", ["default", "anthropic"])


@both
def test_an_answer_comes_as_it_is_streamed(service: Service, profile: str) -> None:
    """Text in pieces, usage, and one ending."""
    stream = service.stream("hello", profile=profile).read_to_end()
    assert stream.text == "Hello! How can I help you today?"
    assert len(stream.of("text_delta")) >= 1
    assert stream.of("completion")[0]["finish_reason"] == "stop"
    assert stream.of("usage")[0]["model"]


@both
def test_a_tool_is_called_and_its_result_goes_back(service: Service, profile: str) -> None:
    """The call has whole arguments; the peer gives its second answer only to a request that has the result."""
    before = len(service.ledger(tool="record", phase="begin"))
    stream = service.stream("record it", profile=profile).read_to_end()
    [started], [ended] = stream.of("tool_start"), stream.of("tool_end")
    assert (started["arguments"], ended["status"]) == ({"value": "from aimock"}, "ok")
    assert stream.text == "It is recorded."
    assert len(service.ledger(tool="record", phase="begin")) == before + 1


@both
def test_thinking_is_told_apart(service: Service, profile: str) -> None:
    """From a field of its own, or from a thinking block."""
    stream = service.stream("think", profile=profile).read_to_end()
    assert "".join(event["text"] for event in stream.of("reasoning_delta")) == "What is six times seven?"
    assert stream.text == "Forty-two."


@both
@pytest.mark.parametrize("how", ["be cut", "go away"])
def test_a_stream_that_breaks_off_leaves_the_answer_so_far(service: Service, profile: str, how: str) -> None:
    """Truncated after so many chunks, or disconnected after so long: partial, saved, and not asked for again (section 5)."""
    conversation = service.conversation()
    stream = service.stream(how, conversation, profile=profile).read_to_end()
    ended = stream.of("completion")[0]
    assert (ended["status"], ended["finish_reason"]) == ("partial", "upstream_error")
    assert 0 < len(stream.text) < len(LONG)
    assert LONG.startswith(stream.text)
    reply = service.messages(conversation)[-1]
    assert (reply["status"], reply["text"]) == ("partial", stream.text)


@both
def test_a_refusal_is_an_apology(service: Service, profile: str) -> None:
    """400 is not tried again."""
    stream = service.stream("refuse", profile=profile).read_to_end()
    assert stream.of("error")[0]["code"] == "upstream_rejected"


@both
def test_a_model_that_is_busy_is_asked_again(service: Service, profile: str) -> None:
    """503, then an answer: one turn, with one restart."""
    stream = service.stream(f"{profile} be busy", profile=profile).read_to_end()
    assert [event["attempt"] for event in stream.of("attempt_restarted")] == [2]
    assert stream.text == "Now I can."


def test_npms_eventsource_follows_a_turn_and_stops_by_itself(service: Service) -> None:
    """Every event once, with ids in order; after the end it comes back once, is answered 204 and closes (R5)."""
    turn = service.start_turn("slowly")
    told = follow_with_eventsource(f"{service.url}/v1/turns/{turn}/events")
    events = [one["event"] for one in told if "event" in one]
    assert "".join(event["text"] for event in events if event["type"] == "text_delta") == LONG
    assert [event["type"] for event in events][-3:] == ["completion", "message_saved", "stream_end"]
    numbers = [event["seq"] for event in events if "seq" in event]
    assert numbers == list(range(1, len(numbers) + 1))
    assert all(one["id"] == f"{turn}-1-{one['event']['seq']}" for one in told if "seq" in one.get("event", {}))
    assert [one for one in told if "error" in one][-1]["error"] == 204


def test_npms_eventsource_comes_back_after_a_restart(service: Service) -> None:
    """The service is stopped while a turn waits for a person; the same EventSource sees its end (R6, section 5)."""
    turn = service.start_turn("pay out")
    wait_until(lambda: service.turn(turn)["status"] == "waiting", what="the question")
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow_with_eventsource, f"{service.url}/v1/turns/{turn}/events", seconds=50)
        opened = "earlybyte_open_viewers 1.0"
        wait_until(lambda: opened in service.call("GET", "/metrics").body.decode(), what="the viewer")
        service.sigterm()
        assert service.wait_exit() == 0
        service.start()
        wait_until(lambda: opened in service.call("GET", "/metrics").body.decode(), what="its coming back")
        [question] = service.turn(turn)["approvals"]
        path = f"/v1/turns/{turn}/approvals/{question['approval_id']}"
        assert service.call("POST", path, {"decision": "approve"}).status == 200
        told = following.result()
    events = [one["event"] for one in told if "event" in one]
    assert [event["reason"] for event in events if event["type"] == "stream_end"] == ["draining", "done"]
    assert [event["type"] for event in events if event["type"] in ("snapshot", "completion")] == ["snapshot", "completion"]
    assert "".join(event["text"] for event in events if event["type"] == "text_delta") == "It is paid."
