from __future__ import annotations

import json
from typing import Any

import pytest

from app.providers.anthropic_request import anthropic_body, anthropic_messages
from app.providers.anthropic_stream import AnthropicStep
from app.providers.chunks import Chunk, Reasoning, StepEnd, Text
from app.providers.errors import ProtocolViolation, ProviderError, UpstreamRejected
from app.providers.provider import ModelRequest
from app.providers.sse_decoder import ServerEvent


def start(index: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}


def change(index: int | None, kind: str, **fields: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {"type": "content_block_delta", **place, "delta": {"type": kind, **fields}}


def stop(reason: str | None = "end_turn", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def use(index: int = 0, arguments: str = '{"q":1}', **fields: Any) -> list[dict[str, Any]]:
    begin = {"id": "tu_1", "name": "look", "input": {}, **fields}
    return [start(index, "tool_use", **begin), change(index, "input_json_delta", partial_json=arguments)]


def step_of(*events: Any) -> tuple[list[Chunk], AnthropicStep]:
    step = AnthropicStep()
    out: list[Chunk] = []
    for event in events:
        out += step.take(event if isinstance(event, ServerEvent) else ServerEvent("", json.dumps(event)))
    return out, step


def told(*events: Any) -> tuple[str, str, StepEnd]:
    chunks, step = step_of(*events)
    assert step.finished or step.done
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, Text))
    return text, "".join(chunk.text for chunk in chunks if isinstance(chunk, Reasoning)), step.end()


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("something_new", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("tool_use", "stop"),
    ],
)
def test_stop_reason_becomes_a_finish(reason: str, finish: str) -> None:
    """The dialect's words in ours; `tool_use` without a call is a stop."""
    assert told(start(0, "text", text="a"), stop(reason))[2].finish == finish


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("end_turn", "tool_calls"), ("tool_use", "tool_calls"), ("max_tokens", "length"), ("refusal", "content_filter")],
)
def test_calls_run_only_where_the_answer_ended_for_them(reason: str, finish: str) -> None:
    """Complete calls turn a stop into `tool_calls`; a cut or refused answer runs nothing. A lost block stop is no harm."""
    end = told(*use(), stop(reason))[2]
    assert end.finish == finish
    assert [(call.id, call.arguments) for call in end.tool_calls] == ([("tu_1", {"q": 1})] if finish == "tool_calls" else [])


def test_arguments_come_whole_in_the_start_or_in_pieces() -> None:
    """A filled `input` is used; pieces are joined, then parsed; broken ones are None and go back as `{}`."""
    end = told(
        start(0, "tool_use", id="a", name="one", input={"n": 1}),
        start(1, "tool_use", id="b", name="two", input={}),
        change(1, "input_json_delta", partial_json='{"t":"\\ud8'),
        change(1, "input_json_delta", partial_json='3d\\ude80"}'),
        start(2, "tool_use", id="c", name="three", input={}),
        change(2, "input_json_delta", partial_json='{"t":'),
        stop("tool_use"),
    )[2]
    assert [call.arguments for call in end.tool_calls] == [{"n": 1}, {"t": "\U0001f680"}, None]
    assert [block["input"] for block in end.blocks or []] == [{"n": 1}, {"t": "\U0001f680"}, {}]


def test_blocks_are_kept_as_they_must_go_back() -> None:
    """Thinking with its own signature, redacted thinking as it was, text and calls, in order; empty text is left out."""
    text, thinking, end = told(
        start(0, "thinking", thinking=""),
        change(0, "thinking_delta", thinking="al"),
        change(0, "thinking_delta", thinking="pha"),
        change(0, "signature_delta", signature="S1"),
        start(1, "redacted_thinking", data="R1"),
        start(2, "text", text=""),
        start(3, "text", text="He"),
        change(3, "text_delta", text="llo"),
        *use(4),
        stop("tool_use"),
    )
    assert (text, thinking) == ("Hello", "alpha")
    assert end.blocks == [
        {"type": "thinking", "thinking": "alpha", "signature": "S1"},
        {"type": "redacted_thinking", "data": "R1"},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "tu_1", "name": "look", "input": {"q": 1}},
    ]


def test_what_is_not_known_is_skipped() -> None:
    """Unknown events, blocks and deltas, the provider's own tools, pings with and without data."""
    text, _, end = told(
        ServerEvent("telemetry", "not json"),
        ServerEvent("ping", "x"),
        {"type": "new", "x": 1},
        start(0, "server_tool_use", id="s", name="web", input={}),
        change(0, "input_json_delta", partial_json="{}"),
        start(1, "web_search_tool_result", content=[]),
        start(2, "new_block"),
        change(2, "text_delta", text="not ours"),
        start(3, "text", text=""),
        change(3, "citations_delta", citation={}),
        change(3, "text_delta", text="a"),
        change(9, "input_json_delta", partial_json="{}"),
        stop(),
    )
    assert text == "a"
    assert end.tool_calls == ()


def test_deltas_without_start_or_index_find_their_block() -> None:
    """Translators leave these out; text is not lost for it."""
    text, thinking, _ = told(
        change(0, "thinking_delta", thinking="hm"),
        change(0, "text_delta", text="a"),
        change(None, "text_delta", text="b"),
        stop(),
    )
    assert (text, thinking) == ("ab", "hm")


def test_usage_of_the_end_counts() -> None:
    """Input tokens from the start, output tokens from the last word about them."""
    message = {"model": "c", "usage": {"input_tokens": 5, "output_tokens": 1}}
    end = told({"type": "message_start", "message": message}, stop(None), stop("end_turn", output_tokens=9))[2]
    assert (end.input_tokens, end.output_tokens, end.model) == (5, 9, "c")


@pytest.mark.parametrize(
    ("event", "code", "kind"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, "overloaded_error", ProviderError),
        ({"type": "error", "error": {"type": "invalid_request_error"}}, "invalid_request_error", UpstreamRejected),
        ({"error": {"type": "api_error"}}, "api_error", ProviderError),
        (ServerEvent("error", "words"), "provider_error", ProviderError),
        (ServerEvent("error", '{"message":"words"}'), "provider_error", ProviderError),
        (ServerEvent("content_block_delta", '{"type":"conte'), "protocol_error", ProtocolViolation),
        (ServerEvent("", "nonsense"), "protocol_error", ProtocolViolation),
    ],
)
def test_errors_in_the_stream_are_classified(event: Any, code: str, kind: type) -> None:
    """An error event counts by its type, whatever the response's status was; nonsense is a broken stream."""
    with pytest.raises(kind) as raised:
        step_of(start(0, "text", text="a"), event)
    assert raised.value.code == code  # type: ignore[attr-defined]


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_history_is_told_in_the_dialects_form() -> None:
    """System text apart, roles alternating, results first in the user's message after their call, images, no empty text."""
    messages = [
        {"role": "system", "content": "one"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/gif;base64,AA=="}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "https://h/i.png"}}, {"type": "text", "text": ""}],
        },
        {"role": "assistant", "content": "", "tool_calls": [call("k.1", '{"q":1}'), call("k2", '{"q":')]},
        {"role": "tool", "tool_call_id": "k.1", "content": "found"},
        {"role": "tool", "tool_call_id": "k2", "content": ""},
        {"role": "user", "content": "and?"},
        {"role": "system", "content": "two"},
    ]
    body = anthropic_body(ModelRequest(model="m", messages=messages, tools=[], max_output_tokens=9))
    assert body["system"] == "one\n\ntwo"
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                text("see"),
                {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "AA=="}},
                {"type": "image", "source": {"type": "url", "url": "https://h/i.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "k_1", "name": "look", "input": {"q": 1}},
                {"type": "tool_use", "id": "k2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "k_1", "content": "found"},
                {"type": "tool_result", "tool_use_id": "k2"},
                text("and?"),
            ],
        },
    ]
    assert [tool["name"] for tool in body["tools"]] == ["look"]
    assert body["tool_choice"] == {"type": "none"}


def test_own_blocks_go_back_as_they_were_and_those_of_others_do_not() -> None:
    """Signed thinking is verbatim and in order; unsigned thinking and calls that the message has not are left out."""
    blocks = [
        {"type": "thinking", "thinking": "a", "signature": "S1"},
        {"type": "thinking", "thinking": "b", "signature": ""},
        {"type": "redacted_thinking", "data": "R"},
        text("Hi"),
        {"type": "tool_use", "id": "k1", "name": "look", "input": {"q": 1}},
        {"type": "tool_use", "id": "gone", "name": "look", "input": {}},
        {"type": "thinking", "thinking": "c", "signature": "S3"},
    ]
    message = {
        "role": "assistant",
        "content": "Hi",
        "tool_calls": [call("k1"), call("k2")],
        "_blocks": {"dialect": "anthropic", "blocks": blocks},
    }
    go = {"role": "user", "content": "go"}
    sent = anthropic_messages([go, message])[1]["content"]
    added = {"type": "tool_use", "id": "k2", "name": "look", "input": {}}
    assert sent == [blocks[0], blocks[2], blocks[3], blocks[4], blocks[6], added]
    message["_blocks"] = {"dialect": "other", "blocks": blocks}
    assert anthropic_messages([go, message])[1]["content"][0] == text("Hi")


def test_answer_of_nothing_but_thinking_is_not_sent() -> None:
    """The API refuses it; the user's messages around it become one, and the first is always a user's."""
    thinking = {"type": "thinking", "thinking": "a", "signature": "S"}
    silent = {"role": "assistant", "content": "", "_blocks": {"dialect": "anthropic", "blocks": [thinking]}}
    user = [{"role": "user", "content": "a"}, silent, {"role": "user", "content": "b"}]
    assert anthropic_messages(user) == [{"role": "user", "content": [text("a"), text("b")]}]
    assert [m["role"] for m in anthropic_messages([{"role": "assistant", "content": "x"}])] == ["user", "assistant"]


def test_conversion_leaves_the_request_as_it_was() -> None:
    """The messages belong to the caller, who sends them again."""
    blocks = [text("Hi")]
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "Hi", "_blocks": {"dialect": "anthropic", "blocks": blocks}},
        {"role": "assistant", "content": "more"},
    ]
    before = json.dumps(messages)
    anthropic_messages(messages)
    assert json.dumps(messages) == before
