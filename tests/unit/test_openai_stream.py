from __future__ import annotations

import json
from typing import Any

import pytest

from app.providers.address import endpoint
from app.providers.chunks import Alive, Chunk, Reasoning, StepEnd, Text
from app.providers.errors import ProtocolViolation, ProviderError, UpstreamRejected
from app.providers.openai_stream import OpenAIStep
from app.providers.sse_decoder import ServerEvent


def delta(fields: Any, finish: object = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}], **more}


def chunks(*events: Any) -> list[Chunk]:
    """What the events bring: chunks as dicts, raw data as text, or whole events."""
    step = OpenAIStep()
    out: list[Chunk] = []
    for event in events:
        if isinstance(event, dict):
            event = json.dumps(event)
        out += step.take(event if isinstance(event, ServerEvent) else ServerEvent("", event))
    return [*out, step.end()] if step.finished or step.done else out


def told(*events: Any) -> tuple[str, str, str]:
    """(text, reasoning, finish)."""
    found = chunks(*events)
    end = found[-1]
    assert isinstance(end, StepEnd)
    return (
        "".join(chunk.text for chunk in found if isinstance(chunk, Text)),
        "".join(chunk.text for chunk in found if isinstance(chunk, Reasoning)),
        end.finish,
    )


FN = {"name": "look", "arguments": '{"q":1}'}
CALL = {"tool_calls": [{"index": 0, "id": "k1", "function": FN}]}

CASES: dict[str, tuple[list[Any], tuple[str, str, str]]] = {
    "parts": (
        [delta({"content": [{"type": "text", "text": "a"}, "b", {"type": "image_url"}, {"text": "c"}]}), "[DONE]"],
        ("abc", "", "stop"),
    ),
    "thinking parts": (
        [
            delta(
                {
                    "content": [
                        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                        {"type": "text", "text": "a"},
                    ]
                },
                "stop",
            )
        ],
        ("a", "hm", "stop"),
    ),
    "refusal": ([delta({"refusal": "No."}, "stop")], ("No.", "", "stop")),
    "both names of thinking": ([delta({"reasoning_content": "hm", "reasoning": "hm"}), "[DONE]"], ("", "hm", "stop")),
    "thinking beside its details": (
        [delta({"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}), "[DONE]"],
        ("", "hm", "stop"),
    ),
    "empty and null thinking": (
        [delta({"reasoning_content": None, "reasoning": "", "content": "a"}), "[DONE]"],
        ("a", "", "stop"),
    ),
    "thinking and text in one": ([delta({"reasoning_content": "hm", "content": "a"}, "stop")], ("a", "hm", "stop")),
    "other choices": (
        [
            {"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "length"}]},
            delta({"content": "a"}),
            "[DONE]",
        ],
        ("a", "", "stop"),
    ),
    "a choice without index": ([{"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}], ("a", "", "stop")),
    "overlapping deltas stay": (
        [delta({"content": "ha"}), delta({"content": "ha"}), delta({"content": "a"}), "[DONE]"],
        ("hahaa", "", "stop"),
    ),
    "message tail": (
        [delta({"content": "a"}), {"choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}]}],
        ("a", "", "stop"),
    ),
    "message beside delta": (
        [{"choices": [{"index": 0, "delta": {"content": "a"}, "message": {"content": "a"}, "finish_reason": "stop"}]}],
        ("a", "", "stop"),
    ),
    "empty finish": ([delta({"content": "a"}, ""), delta({"content": "b"}, ""), delta({}, "length")], ("ab", "", "length")),
    "text after the finish": ([delta({}, "stop"), delta({"content": "a"}), "[DONE]"], ("a", "", "stop")),
    "length stays": ([delta({"content": "a"}, "length"), delta({}, "stop")], ("a", "", "length")),
    "other words": ([delta({"content": "a"}, "max_tokens")], ("a", "", "length")),
    "capitals": ([delta({"content": "a"}, "SAFETY")], ("a", "", "content_filter")),
    "unknown words": ([delta({"content": "a"}, "eos")], ("a", "", "stop")),
    "calls with stop": ([delta(CALL), delta({}, "stop")], ("", "", "tool_calls")),
    "calls with done alone": ([delta(CALL), "[DONE]"], ("", "", "tool_calls")),
    "calls with length": ([delta(CALL), delta({}, "length")], ("", "", "length")),
    "tool_calls without calls": ([delta({"content": "a"}, "tool_calls")], ("a", "", "stop")),
    "function_call": (
        [
            delta({"function_call": {"name": "look", "arguments": ""}}),
            delta({"function_call": {"arguments": "{}"}}),
            delta({}, "function_call"),
        ],
        ("", "", "tool_calls"),
    ),
    "data that is none": ([": PROCESSING", " ", "null", delta({"content": "a"}), "[DONE] "], ("a", "", "stop")),
    "unknown events": (
        [ServerEvent("ping", "hello"), ServerEvent("ping", "{}"), ServerEvent("x", "[]"), delta({"content": "a"}, "stop")],
        ("a", "", "stop"),
    ),
    "named chunks": ([ServerEvent("chunk", json.dumps(delta({"content": "a"}, "stop")))], ("a", "", "stop")),
    "empty errors": ([delta({"content": "a"}, "stop", error=None), delta({}, error={}), "[DONE]"], ("a", "", "stop")),
    "strange shapes": (
        [
            {"choices": None},
            {"choices": "x"},
            {"choices": [None, 1]},
            delta("x"),
            delta({"content": 4, "tool_calls": "x", "reasoning": 3}),
            delta({"content": "a"}, 7),
            "[DONE]",
        ],
        ("a", "", "stop"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_chunks_are_read_by_the_rules(name: str) -> None:
    """Each shape that real endpoints send gives the text, thinking and finish that it means."""
    events, wanted = CASES[name]
    assert told(*events) == wanted


def test_two_function_calls_of_the_old_form_are_two_calls() -> None:
    """The old field has neither id nor index, and still runs what it says."""
    end = chunks(delta({"function_call": FN}), delta({}, "function_call"))[-1]
    assert isinstance(end, StepEnd)
    assert [(call.name, call.arguments) for call in end.tool_calls] == [("look", {"q": 1})]


def test_usage_counts_wherever_it_comes() -> None:
    """The last usage wins: in a chunk of its own, beside a choice or inside one; the model's name too."""
    end = chunks(
        delta({"content": "a"}, usage={"prompt_tokens": 1, "completion_tokens": 1}),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"completion_tokens": 5}}], "model": "m"},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": None}, "model": ""},
        {"choices": [], "usage": None},
    )[-1]
    assert isinstance(end, StepEnd)
    assert (end.input_tokens, end.output_tokens, end.model) == (9, 5, "m")


def test_fragments_of_arguments_are_a_sign_of_life() -> None:
    """What is not shown still resets the timeouts; comments and empty deltas do not."""
    assert chunks(delta(CALL), delta({"role": "assistant", "content": ""}), ": x") == [Alive()]


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (delta({"content": "x"}, "stop", error={"code": 502, "message": "gone"}), "502"),
        ({"error": "model runner stopped"}, "provider_error"),
        ({"error": {"type": "server_error", "code": None}}, "server_error"),
        ({"object": "error", "message": "m", "type": "InternalServerError", "code": 500}, "500"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "overloaded_error"),
        ({"choices": [{"index": 0, "delta": {}, "error": {"code": 503}, "finish_reason": "error"}]}, "503"),
        (delta({}, "error"), "provider_error"),
        (ServerEvent("error", '{"message":"m","code":"busy"}'), "busy"),
        (ServerEvent("error", '{"error":{"type":"t"}}'), "t"),
        (ServerEvent("error", "plain words"), "provider_error"),
        (ServerEvent("error", '"plain words"'), "provider_error"),
        ({"error": "words", "code": 503}, "503"),
    ],
)
def test_error_in_the_stream_is_an_error_whatever_else_it_says(event: Any, code: str) -> None:
    """Before a finish mark any report of an error ends the call, with the provider's code."""
    with pytest.raises(ProviderError) as raised:
        chunks(delta({"content": "a"}), event)
    assert (raised.value.code, raised.value.transient) == (code, True)


def test_error_of_a_refused_request_is_not_transient() -> None:
    """X1: a 4xx that names itself in the stream is `upstream_rejected`."""
    with pytest.raises(UpstreamRejected):
        chunks({"error": {"type": "invalid_request_error", "code": "context_length_exceeded"}})


@pytest.mark.parametrize("data", ['{"choices":[{"index":0,"delta":{"content":"ba', "nonsense", "[1]", "7", "{'a':1}"])
def test_what_is_no_chunk_stops_the_stream(data: str) -> None:
    """Skipping it would lose text without a word."""
    with pytest.raises(ProtocolViolation):
        chunks(data)


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h", "http://h/v1/chat/completions"),
        ("http://h/", "http://h/v1/chat/completions"),
        ("http://h/v1", "http://h/v1/chat/completions"),
        (" http://h/v1/ ", "http://h/v1/chat/completions"),
        ("http://h:8/api/v1", "http://h:8/api/v1/chat/completions"),
        ("http://h/openai", "http://h/openai/v1/chat/completions"),
        ("http://h/v1beta/openai/", "http://h/v1beta/openai/chat/completions"),
        ("http://h/api/paas/v4", "http://h/api/paas/v4/chat/completions"),
        ("http://h/chat/completions", "http://h/chat/completions"),
        ("http://h/v1/chat/completions/", "http://h/v1/chat/completions"),
        ("http://h/openai/deployments/d?api-version=1", "http://h/openai/deployments/d/chat/completions?api-version=1"),
        ("http://h/vault", "http://h/vault/v1/chat/completions"),
    ],
)
def test_base_url_may_end_in_a_version_or_not(base: str, url: str) -> None:
    """PROTOCOL 8: people write it both ways, with and without a slash."""
    assert endpoint(base, "chat/completions") == url
