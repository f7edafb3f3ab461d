"""How a model call ends on the network: statuses, cuts, silence, cancels, and what becomes of the connection."""

from __future__ import annotations

import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.limits.cancel import Cancel
from app.providers.anthropic_messages import AnthropicMessages
from app.providers.chunks import Chunk, Reasoning, StepEnd, Text, ToolCall
from app.providers.errors import LimitExceeded, ProviderError, StreamIncomplete, UpstreamRejected, UpstreamUnavailable
from app.providers.http import UpstreamLimits
from app.providers.openai_chat import OpenAIChat
from app.providers.provider import ModelRequest, Provider, ToolSpec
from tests import upstream as play
from tests.upstream import Cut, Finish, Hang, Head, Pause, Raw, Reset, Status, Thought, Upstream, Use, say, use

KEY = "sk-made-up-key-0123456789"
DONE = b"data: [DONE]\n\n"
DIALECTS: dict[str, Callable[..., Provider]] = {"openai": OpenAIChat, "anthropic": AnthropicMessages}

both = pytest.mark.parametrize("dialect", DIALECTS)


def request(**changes: Any) -> ModelRequest:
    fields: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "go"}],
        "tools": [],
        "max_output_tokens": 50,
    }
    return ModelRequest(**{**fields, **changes})


def call(provider: Provider, cancel: Cancel | None = None, **changes: Any) -> list[Chunk]:
    return list(provider.stream(request(**changes), cancel or Cancel()))


def failure(provider: Provider) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        call(provider)
    return raised.value


def text(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, Text))


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Provider]]:
    made: list[Provider] = []

    def build(url: str, dialect: str = "openai", key: str | None = KEY, **limits: Any) -> Provider:
        made.append(DIALECTS[dialect](base_url=url, api_key=key, limits=UpstreamLimits(**limits)))
        return made[-1]

    yield build
    for provider in made:
        provider.close()


class Running:
    """One call in a thread of its own, as the service makes it."""

    def __init__(self, provider: Provider) -> None:
        self.cancel = Cancel()
        self.first = threading.Event()
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._provider = provider
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            for _ in self._provider.stream(request(), self.cancel):
                self.first.set()
        except BaseException as error:
            self.error = error
        self.over.set()


@both
def test_answer_with_thinking_and_tools_comes_through(dialect: str, make: Any) -> None:
    """Both dialects give the same chunks for the same turn, with usage and model."""
    script = [Thought("hm"), play.Text("On "), play.Text("it."), Use("k1", "look", {"q": "x"}), Finish("tool_calls")]
    with Upstream(script) as upstream:
        chunks = call(make(upstream.url, dialect))
    end = chunks[-1]
    assert isinstance(end, StepEnd)
    assert text(chunks) == "On it."
    assert [chunk.text for chunk in chunks if isinstance(chunk, Reasoning)] == ["hm"]
    assert end.tool_calls == (ToolCall("k1", "look", {"q": "x"}),)
    assert (end.finish, end.input_tokens, end.output_tokens, end.model) == ("tool_calls", 7, 3, "scripted")
    if dialect == "anthropic":
        assert end.blocks == [
            {"type": "thinking", "thinking": "hm", "signature": "signed-0"},
            {"type": "text", "text": "On it."},
            {"type": "tool_use", "id": "k1", "name": "look", "input": {"q": "x"}},
        ]


def test_request_is_sent_in_the_form_of_its_dialect(make: Any) -> None:
    """Address, headers and body are what each API wants; private keys stay at home."""
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "go", "_note": 1}]
    tools = [ToolSpec("look", "Looks.", {"type": "object"})]
    with Upstream(say("ok")) as upstream:
        call(make(upstream.url + "/v1/"), messages=messages, tools=tools)
        call(make(upstream.url, "anthropic"), messages=messages, tools=tools)
        call(make(upstream.url, key=None))
        first, second, third = upstream.requests
    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.body == {
        "model": "m",
        "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "go"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 50,
        "tools": [
            {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
        ],
    }
    assert second.path == "/v1/messages"
    assert (second.headers["x-api-key"], second.headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert second.body == {
        "model": "m",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "go"}]}],
        "stream": True,
        "system": "be kind",
        "tools": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
    }
    assert "authorization" not in third.headers
    assert "tools" not in third.body


@both
def test_cancel_before_the_headers_frees_the_thread_and_the_upstream(dialect: str, make: Any) -> None:
    """A cancel while the endpoint is silent ends the call in under a second, and the endpoint sees the close."""
    with Upstream([Hang()]) as upstream:
        running = Running(make(upstream.url, dialect))
        asked = upstream.wait_for(1)
        started = time.monotonic()
        running.cancel.cancel()
        assert running.over.wait(1)
        assert asked.gone.wait(1)
        assert time.monotonic() - started < 1
    assert isinstance(running.error, ProviderError)


@both
def test_cancel_in_mid_body_frees_the_thread_and_the_upstream(dialect: str, make: Any) -> None:
    """The same after the first token."""
    with Upstream([play.Text("one"), Hang()]) as upstream:
        running = Running(make(upstream.url, dialect))
        assert running.first.wait(5)
        running.cancel.cancel()
        assert running.over.wait(1)
        assert upstream.requests[0].gone.wait(1)
    assert isinstance(running.error, ProviderError)


def test_cancel_before_the_call_sends_nothing(make: Any) -> None:
    """A call that is cancelled while it waits for its thread never reaches the endpoint."""
    with Upstream(say("ok")) as upstream:
        cancel = Cancel()
        cancel.cancel()
        with pytest.raises(ProviderError):
            call(make(upstream.url), cancel)
        assert upstream.connections == 0


def test_cancel_on_a_connection_used_before_frees_the_thread(make: Any) -> None:
    """A connection out of the pool has no connect step, and is cut all the same; the next call gets a new one."""
    scripts = [say("one"), [Hang()], say("three")]
    with Upstream(lambda _: scripts.pop(0)) as upstream:
        provider = make(upstream.url)
        assert text(call(provider)) == "one"
        running = Running(provider)
        upstream.wait_for(2)
        running.cancel.cancel()
        assert running.over.wait(1)
        assert text(call(provider)) == "three"
        assert [asked.connection for asked in upstream.requests] == [1, 1, 2]


def test_late_cancel_does_not_hit_the_next_call(make: Any) -> None:
    """A switch that is set after its call has ended leaves the connection alone."""
    with Upstream(say("ok")) as upstream:
        provider = make(upstream.url)
        cancel = Cancel()
        call(provider, cancel)
        cancel.cancel()
        assert text(call(provider)) == "ok"
        assert upstream.connections == 1


def test_abandoned_stream_closes_its_connection(make: Any) -> None:
    """A consumer that stops in the middle leaves no open connection behind."""
    with Upstream([play.Text("one"), Hang()]) as upstream:
        stream: Any = make(upstream.url).stream(request(), Cancel())
        next(stream)
        stream.close()
        assert upstream.requests[0].gone.wait(1)


def test_close_ends_running_streams(make: Any) -> None:
    """Closing the provider ends open streams with an error, and no call starts after it."""
    with Upstream([play.Text("one"), Hang()]) as upstream:
        provider = make(upstream.url)
        running = Running(provider)
        assert running.first.wait(5)
        provider.close()
        assert running.over.wait(1)
        assert isinstance(running.error, StreamIncomplete)
        assert failure(provider).code == "closed"


@both
@pytest.mark.parametrize("end", [Cut(), Reset()], ids=["cut", "reset"])
def test_cut_is_transient_and_keeps_what_came(end: Any, dialect: str, make: Any) -> None:
    """A connection that breaks in mid-answer is `stream_incomplete`; the text before it stands."""
    with Upstream([play.Text("half"), Pause(0.05), end]) as upstream:
        got: list[Chunk] = []
        with pytest.raises(StreamIncomplete) as raised:
            for chunk in make(upstream.url, dialect).stream(request(), Cancel()):
                got.append(chunk)
    assert text(got) == "half"
    assert raised.value.transient


@pytest.mark.parametrize("script", [[Reset()], [Head(), Cut()], [Head(), play.Leave()]], ids=["reset", "cut", "end"])
def test_break_before_the_first_token_is_transient(script: Any, make: Any) -> None:
    """Nothing said, and then gone: may be tried again (X1)."""
    with Upstream(script) as upstream:
        assert failure(make(upstream.url)).transient


def test_refused_connection_is_unavailable(make: Any) -> None:
    """Nobody listens: `upstream_unavailable`, transient, and no retry below."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    error = failure(make(f"http://127.0.0.1:{port}"))
    assert isinstance(error, UpstreamUnavailable)
    assert error.transient


def test_silence_ends_at_the_read_timeout(make: Any) -> None:
    """The safety net: an endpoint that says nothing is given up, and that is transient."""
    for script in ([Hang()], [play.Text("a"), Hang()]):
        with Upstream(script) as upstream:
            error = failure(make(upstream.url, read_timeout=0.2))
            assert (error.code, error.transient) == ("timeout", True)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, UpstreamRejected), (401, UpstreamRejected), (404, UpstreamRejected), (302, UpstreamRejected)]
    + [(status, UpstreamUnavailable) for status in (408, 425, 429, 500, 503, 529)],
)
@both
def test_status_decides_and_is_asked_for_once(status: int, kind: type, dialect: str, make: Any) -> None:
    """X1: the status alone decides whether trying again may help; nothing here tries again."""
    with Upstream([Status(status, (("Retry-After", "1.5"), ("Location", "/elsewhere")))]) as upstream:
        error = failure(make(upstream.url, dialect))
        assert len(upstream.requests) == 1
    assert isinstance(error, kind)
    assert error.retry_after == (1.5 if kind is UpstreamUnavailable else None)
    assert "scripted" in error.detail


def test_endless_error_body_is_not_waited_for(make: Any) -> None:
    """An error whose body hangs is reported by its status within the seconds set for it."""
    with Upstream([Status(503, hangs=True)]) as upstream:
        started = time.monotonic()
        error = failure(make(upstream.url, error_body_timeout=0.2))
    assert error.code == "server_error"
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    "script",
    [
        [Status(401, body=json.dumps({"error": {"message": f"bad key {KEY}", "code": f"x {KEY}"}}))],
        [Raw(b'data: {"error":{"message":"bad key %s","type":"t %s"}}\n\n' % (KEY.encode(), KEY.encode()))],
        [Raw(b"data: %s\n\n" % KEY.encode())],
        [Raw(b'{"error": "%s"}' % KEY.encode())],
    ],
    ids=["status", "stream", "malformed", "document"],
)
def test_key_is_in_no_error(script: Any, make: Any) -> None:
    """A4: an endpoint that echoes the key does not get it into an error, its detail or its code."""
    with Upstream(script) as upstream:
        error = failure(make(upstream.url))
    assert KEY not in f"{error} {error.detail} {error.code}"


@pytest.mark.parametrize("key", ["sk-bad\nkey-0123456789", "sk-schlüssel-0123456789"])
def test_key_that_cannot_be_a_header_is_not_shown(key: str, make: Any) -> None:
    """A key with a line break or other letters is refused without being quoted, in the printed chain too."""
    with Upstream(say("never")) as upstream:
        error = failure(make(upstream.url, key=key))
        assert upstream.requests == []
    assert isinstance(error, UpstreamRejected)
    shown = "".join(traceback.format_exception(error)) + error.detail
    assert "0123456789" not in shown


def test_connection_is_used_again_after_a_clean_end(make: Any) -> None:
    """One call after the other share a connection; calls at the same time do not."""
    with Upstream(say("ok")) as upstream:
        provider = make(upstream.url)
        for _ in range(5):
            assert text(call(provider)) == "ok"
        assert upstream.connections == 1


def test_connection_that_the_server_closed_is_replaced(make: Any) -> None:
    """`Connection: close` and idle closes cost the next call nothing but a new connection."""
    with Upstream(say("ok"), keep_alive=False) as upstream:
        provider = make(upstream.url)
        for _ in range(3):
            assert text(call(provider)) == "ok"
        assert upstream.connections == 3


@pytest.mark.parametrize("tail", [[Hang()], [Raw(b"data: nonsense\n\n"), Hang()]], ids=["silent", "talks on"])
def test_open_socket_after_done_is_not_waited_for(tail: Any, make: Any) -> None:
    """After `[DONE]` the answer is out at once, bytes after it are ignored, and the thread is free within a second."""
    with Upstream([play.Text("ok"), Finish(), *tail]) as upstream:
        started = time.monotonic()
        chunks = call(make(upstream.url))
        assert time.monotonic() - started < 1
    assert text(chunks) == "ok"
    assert isinstance(chunks[-1], StepEnd)


def test_finish_mark_without_done_is_waited_for_a_little(make: Any) -> None:
    """A stream that stays open after its finish mark ends as finished, in a few seconds."""
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":"stop"}]}\n\n'
    with Upstream([Raw(chunk), Hang()]) as upstream:
        started = time.monotonic()
        chunks = call(make(upstream.url, after_finish_timeout=0.3))
        assert time.monotonic() - started < 2
    assert text(chunks) == "ok"
    assert isinstance(chunks[-1], StepEnd)
    assert chunks[-1].finish == "stop"


def test_what_comes_after_a_finish_mark_is_part_of_the_answer(make: Any) -> None:
    """There are endpoints that send the mark first: a silence ends the answer, not the time since the mark."""
    words = [step for n in range(8) for step in (Pause(0.15), Raw(_said(f"{n} ")))]
    with Upstream([Raw(_said("", finish="stop")), *words, Raw(b"data: [DONE]\n\n")]) as upstream:
        chunks = call(make(upstream.url, after_finish_timeout=0.6))
    assert text(chunks) == "0 1 2 3 4 5 6 7 "
    assert isinstance(chunks[-1], StepEnd)


def _said(words: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": words}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize("late", [Cut(), Reset(), Raw(b'data: {"error":"late"}\n\n'), Raw(b"data: {bro\n\n")])
def test_nothing_after_a_finish_mark_spoils_the_answer(late: Any, make: Any) -> None:
    """A cut, an error event or nonsense after the finish mark is only logged."""
    chunk = b'data: {"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":"stop"}]}\n\n'
    with Upstream([Raw(chunk), Pause(0.05), late]) as upstream:
        chunks = call(make(upstream.url))
    assert text(chunks) == "ok"
    assert isinstance(chunks[-1], StepEnd)


@both
def test_endpoint_that_does_not_stream_is_understood(dialect: str, make: Any) -> None:
    """One JSON document instead of a stream gives the same chunks, whatever it is called."""
    documents = {
        "openai": {
            "model": "m",
            "choices": [
                {
                    "message": {
                        "content": "Hi",
                        "reasoning_content": "hm",
                        "tool_calls": [{"id": "k1", "function": {"name": "look", "arguments": '{"q":1}'}}],
                    },
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        },
        "anthropic": {
            "type": "message",
            "model": "m",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "Hi"},
                {"type": "tool_use", "id": "k1", "name": "look", "input": {"q": 1}},
            ],
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
    }
    data = b"\xef\xbb\xbf\n " + json.dumps(documents[dialect]).encode()
    for content_type in ("application/json", "text/event-stream"):
        with Upstream([Raw(data, size=1)], content_type=content_type) as upstream:
            chunks = call(make(upstream.url, dialect))
        end = chunks[-1]
        assert isinstance(end, StepEnd)
        assert text(chunks) == "Hi"
        assert [chunk.text for chunk in chunks if isinstance(chunk, Reasoning)] == ["hm"]
        assert end.tool_calls == (ToolCall("k1", "look", {"q": 1}),)
        assert (end.finish, end.input_tokens, end.output_tokens) == ("tool_calls", 1, 2)


def test_stream_that_is_called_json_is_still_a_stream(make: Any) -> None:
    """The first byte tells a stream from a document, not the content type."""
    with Upstream(say("ok"), content_type="application/json") as upstream:
        assert text(call(make(upstream.url))) == "ok"


@both
def test_error_document_with_status_200_is_an_error(dialect: str, make: Any) -> None:
    """An error object counts whatever the status says."""
    body = b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}'
    with Upstream([Raw(body)], content_type="application/json") as upstream:
        error = failure(make(upstream.url, dialect))
    assert isinstance(error, UpstreamRejected)
    assert error.code == "invalid_request_error"


@pytest.mark.parametrize("size", [1, 100, 100_000])
def test_stream_over_its_cap_is_stopped(size: int, make: Any) -> None:
    """`upstream_bytes` ends the call with `limit_exceeded`, not transient; the text before it stands."""
    line = b'data: {"choices":[{"index":0,"delta":{"content":"abcd"}}]}\n\n'
    with Upstream([Raw(line * 10, size=size), Raw(DONE)]) as upstream:
        got: list[Chunk] = []
        with pytest.raises(LimitExceeded) as raised:
            for chunk in make(upstream.url, upstream_bytes=len(line) * 5).stream(request(), Cancel()):
                got.append(chunk)
    assert text(got) == "abcd" * 5
    assert (raised.value.code, raised.value.transient) == ("limit_exceeded", False)


def test_calls_at_the_same_time_do_not_disturb_each_other(make: Any) -> None:
    """Twenty threads with one provider: each gets its own whole answer."""
    with Upstream(lambda asked: say(*asked.body["messages"][0]["content"])) as upstream:
        provider = make(upstream.url)
        answers: dict[str, str] = {}

        def one(words: str) -> None:
            for _ in range(5):
                chunks = call(provider, messages=[{"role": "user", "content": words}])
                answers[words] = answers.get(words, "") + text(chunks)

        threads = [threading.Thread(target=one, args=(f"words of {n}",)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert answers == {f"words of {n}": f"words of {n}" * 5 for n in range(20)}
        assert upstream.connections <= 20


def test_tools_of_both_dialects_round_trip(make: Any) -> None:
    """The second request of a tool turn is well-formed and carries the signed thinking as it was."""
    with Upstream(
        lambda asked: say("done") if len(asked.body["messages"]) > 1 else [Thought("hm"), *use(("k1", "look", {"q": 1}))]
    ) as upstream:
        provider = make(upstream.url, "anthropic")
        end = call(provider)[-1]
        assert isinstance(end, StepEnd)
        function = {"name": "look", "arguments": '{"q":1}'}
        messages = [
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "k1", "type": "function", "function": function}],
                "_blocks": {"dialect": "anthropic", "blocks": end.blocks},
            },
            {"role": "tool", "tool_call_id": "k1", "content": "found"},
        ]
        assert text(call(provider, messages=messages)) == "done"
        sent = upstream.requests[1].body["messages"]
    assert sent[1]["content"] == end.blocks
    assert sent[2] == {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "k1", "content": "found"}]}
