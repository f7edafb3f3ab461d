"""A model endpoint that speaks the Chat Completions wire format, for load: one process, raw sockets, one timer a stream.

    python -m benchmarks.upstream --port 9001 --speed 10

A user's message that is a wish (`benchmarks.tokens.Wish` as JSON) gets exactly that many tokens at that rate. Everything
else gets the field's distribution of turn lengths (half under 2 s, nine in ten under 15 s, 99 in 100 under 30 s, one in
500 over 60 s), and one turn in five calls tools first, if the request offers any. `--speed 10` plays it ten times as fast.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from benchmarks.tokens import Wish, stamped

# The distribution of turn lengths: share of the turns, seconds.
_LENGTHS = ((0.0, 0.4), (0.5, 2.0), (0.9, 15.0), (0.99, 30.0), (0.998, 60.0), (1.0, 90.0))
_WITH_TOOLS = 0.2
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_REFUSAL = (
    b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n"
    b'{"error":{"message":"no such endpoint"}}'
)


@dataclass(frozen=True)
class Answer:
    """One answer: `calls` of tools, or `tokens` at `rate` a second, after `wait` seconds."""

    tokens: int
    rate: float
    wait: float = 0.0
    calls: tuple[tuple[str, str], ...] = ()


class Field:
    """How long turns take out there, and how they use tools."""

    def __init__(self, *, speed: float, seed: int) -> None:
        self._speed = speed
        self._random = random.Random(seed)

    def length(self) -> float:
        """Seconds of a turn; straight lines between the known points on a logarithmic scale."""
        share = self._random.random()
        for (below, short), (above, long) in pairwise(_LENGTHS):
            if share <= above:
                part = (share - below) / (above - below)
                return math.exp(math.log(short) + part * (math.log(long) - math.log(short)))
        raise AssertionError

    def answer(self, request: dict[str, Any]) -> Answer:
        """What the model says to `request`."""
        messages = request.get("messages") or []
        steps = 0
        for message in reversed(messages):
            if message.get("role") == "user":
                break
            steps += message.get("role") == "tool"
        tools = request.get("tools") or []
        wants_tools = tools and (
            (steps == 0 and self._random.random() < _WITH_TOOLS) or (steps == 1 and self._random.random() < 0.3)
        )
        if wants_tools:
            chosen = self._random.sample(tools, k=min(len(tools), self._random.choice((1, 1, 2))))
            calls = tuple((tool["function"]["name"], json.dumps(_arguments(tool["function"]))) for tool in chosen)
            return Answer(tokens=0, rate=1, wait=0.3 / self._speed, calls=calls)
        seconds = self.length() / (1 + steps)
        rate = self._random.uniform(20, 80)
        first = min(0.2 * seconds, 0.5)
        return Answer(tokens=max(1, int((seconds - first) * rate)), rate=rate * self._speed, wait=first / self._speed)


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    """Arguments that fit a tool's schema."""
    schema = function.get("parameters") or {}
    made: dict[str, Any] = {}
    for name in schema.get("required") or []:
        kind = (schema.get("properties") or {}).get(name) or {}
        if "enum" in kind:
            made[name] = kind["enum"][0]
        else:
            samples = {"string": "example", "number": 1.5, "integer": 1, "boolean": True, "array": [], "object": {}}
            made[name] = samples.get(kind.get("type", "string"), "example")
    return made


class Connection(asyncio.Protocol):
    """One connection; requests on it come one after the other."""

    def __init__(self, field: Field, speed: float) -> None:
        self._field = field
        self._speed = speed
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        assert self._transport is not None
        if b"/chat/completions" not in lines[0]:
            self._transport.write(_REFUSAL)
            return
        self._begin(json.loads(rest[:length]))

    def _begin(self, request: dict[str, Any]) -> None:
        said = next((m["content"] for m in reversed(request["messages"]) if m.get("role") == "user"), "")
        wish = Wish.of(said) if isinstance(said, str) else None
        if wish is not None:
            answer = Answer(tokens=wish.tokens, rate=wish.rate, wait=max(0.0, wish.at - time.monotonic()))
        else:
            answer = self._field.answer(request)
        assert self._transport is not None
        self._transport.write(_HEAD)
        self._opening = _opening(str(request.get("model", "benchmark")))
        self._write(self._event('{"role":"assistant","content":""}'))
        start = self._loop.time() + answer.wait
        self._go_on(answer, iter(range(answer.tokens)), start)

    def _go_on(self, answer: Answer, left: Iterator[int], start: float) -> None:
        """Say what is due, then wait for the next."""
        if self._transport is None:
            return
        now = self._loop.time()
        if now < start:
            self._timer = self._loop.call_at(start, self._go_on, answer, left, start)
            return
        for number in left:
            due = start + number / answer.rate if answer.rate else now
            if due > now:
                self._timer = self._loop.call_at(due, self._say, answer, left, start, due)
                return
            self._token(now - due)
        self._end(answer)

    def _say(self, answer: Answer, left: Iterator[int], start: float, due: float) -> None:
        if self._transport is not None:
            self._token(max(0.0, self._loop.time() - due))
            self._go_on(answer, left, start)

    def _token(self, late: float) -> None:
        self._write(self._event('{"content":"' + stamped(late) + '"}'))

    def _end(self, answer: Answer) -> None:
        for index, (name, arguments) in enumerate(answer.calls):
            call = {"index": index, "id": f"call_{random.getrandbits(48):x}", "type": "function"}
            opened = {"tool_calls": [{**call, "function": {"name": name, "arguments": ""}}]}
            self._write(self._event(json.dumps(opened)))
            for start in range(0, len(arguments), 12):
                piece = {"tool_calls": [{"index": index, "function": {"arguments": arguments[start : start + 12]}}]}
                self._write(self._event(json.dumps(piece)))
        self._write(self._event("{}", "tool_calls" if answer.calls else "stop"))
        usage = {"prompt_tokens": 100, "completion_tokens": answer.tokens, "total_tokens": 100 + answer.tokens}
        self._write(f'{self._opening}"choices":[],"usage":{json.dumps(usage)}}}\n\n'.encode())
        self._write(b"data: [DONE]\n\n")
        if self._transport is not None:
            self._transport.write(b"0\r\n\r\n")

    def _event(self, delta: str, finish: str | None = None) -> bytes:
        reason = f'"{finish}"' if finish else "null"
        choice = f'{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}'
        return f'{self._opening}"choices":[{choice}]}}\n\n'.encode()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))


def _opening(model: str) -> str:
    about = {"id": f"chatcmpl-{random.getrandbits(64):x}", "object": "chat.completion.chunk", "created": int(time.time())}
    return "data: " + json.dumps({**about, "model": model}, separators=(",", ":"))[:-1] + ","


async def serve(host: str, port: int, *, speed: float, seed: int) -> None:
    """Serve until cancelled."""
    field = Field(speed=speed, seed=seed)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(field, speed), host, port, backlog=4096)
    print(f"model endpoint on http://{host}:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9001)
    parser.add_argument("--speed", type=float, default=1.0, help="how many times as fast as in the field")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(given.host, given.port, speed=given.speed, seed=given.seed))


if __name__ == "__main__":
    main()
