"""The client side of a turn's stream: decoding, and going on after a break (PROTOCOL 4)."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, aclosing
from typing import Any

import anyio
import anyio.abc
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.chat_client import ChatClient, Refused
from app.cli.event_stream import EventStream
from app.limits.groups import task_group

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n: ok\nretry: 10\n"


def frame(seq: int, **event: Any) -> bytes:
    return b"id: turn_1-1-%d\ndata: %s\n\n" % (seq, json.dumps(event).encode())


END = b'data: {"type":"stream_end","reason":"done","resume":false}\n\n'


class Scripted:
    """A server on a real socket that answers each connection with the next piece of its script, and then hangs up."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[str] = []

    async def answer(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            self.requests.append((await stream.receive()).decode())
            await stream.send(self.answers.pop(0))


async def events_of(server: Scripted) -> list[dict[str, Any]]:
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(await anyio.create_tcp_listener(local_host="127.0.0.1"))
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False))
        tasks = await stack.enter_async_context(task_group())
        tasks.start_soon(listener.serve, server.answer)
        try:
            with anyio.fail_after(10):
                async with aclosing(ChatClient(http).events("turn_1")) as events:
                    return [event async for event in events]
        finally:
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_after_a_break_the_stream_goes_on_behind_the_last_id_without_gap_or_repetition() -> None:
    """R2, F6: the end of the body without `stream_end` is a break; half a frame before it counts for nothing."""
    server = Scripted(
        HEAD + frame(1, type="turn_started") + frame(2, type="text_delta", text="a") + frame(3, type="cut")[:20],
        HEAD + frame(3, type="text_delta", text="b") + frame(4, type="completion") + END,
    )
    got = await events_of(server)
    assert [event["type"] for event in got] == ["turn_started", "text_delta", "text_delta", "completion", "stream_end"]
    assert [event.get("text") for event in got[1:3]] == ["a", "b"]
    assert "last-event-id" not in server.requests[0].lower()
    assert "last-event-id: turn_1-1-2\r\n" in server.requests[1].lower()


@pytest.mark.anyio
async def test_a_stream_that_asks_to_come_back_is_come_back_to() -> None:
    """R5, R8: `rotated` and `draining` have `resume: true`; a 502 of a proxy meanwhile is a break like any other."""
    server = Scripted(
        HEAD + frame(1, type="turn_started") + b'data: {"type":"stream_end","reason":"rotated","resume":true}\n\n',
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        HEAD + frame(2, type="completion") + END,
    )
    assert [event["type"] for event in await events_of(server)][-2:] == ["completion", "stream_end"]
    assert "last-event-id: turn_1-1-1\r\n" in server.requests[2].lower()


@pytest.mark.anyio
async def test_a_turn_that_is_over_is_not_asked_for_again() -> None:
    """R5: 204 stops a client that knows all."""
    server = Scripted(HEAD + frame(1, type="completion"), b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    assert [event["type"] for event in await events_of(server)] == ["completion"]


@pytest.mark.anyio
async def test_a_refusal_ends_it_with_the_services_words() -> None:
    """R6: 401, 403 and 404 are no reason to try again."""
    body = b'{"title":"Not found","detail":"There is no turn turn_1."}'
    server = Scripted(
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/problem+json\r\nContent-Length: %d\r\n\r\n%s"
        % (len(body), body)
    )
    with pytest.raises(Refused, match=r"\(404\): There is no turn turn_1\."):
        await events_of(server)
    assert len(server.requests) == 1


@given(data=st.data(), line_end=st.sampled_from([b"\n", b"\r\n"]))
def test_any_cutting_of_the_bytes_gives_the_same_events(data: st.DataObject, line_end: bytes) -> None:
    """WHATWG: where a read ends means nothing; comments and unknown fields are read over."""
    texts = data.draw(st.lists(st.text(), max_size=5))
    stream = b": ok\nretry: 77\n" + b"".join(frame(n, text=text) for n, text in enumerate(texts)) + b": ping\nodd: x\n"
    stream = stream.replace(b"\n", line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = EventStream()
    got = [
        event
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for event in decoder.feed(stream[start:end])
    ]
    assert [event["text"] for event in got] == texts
    assert decoder.retry_ms == 77
    assert decoder.last_id == (f"turn_1-1-{len(texts) - 1}" if texts else None)
