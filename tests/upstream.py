"""A real HTTP server on loopback that plays a model endpoint: scripted turns in both dialects, or exact bytes.

A script is a list of steps, played in order: `Text`, `Thought`, `Use`, `Finish` (said in the dialect of the request),
`Raw` (exact bytes, cut as told), `Pause`, `Hang`, `Cut` (the body ends without its end), `Reset`, `Leave` (an orderly
end), `Status`. Headers leave with the first step that has something to send, or with `Head`.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Thought:
    text: str


@dataclass(frozen=True)
class Use:
    id: str
    name: str
    arguments: object


@dataclass(frozen=True)
class Finish:
    reason: str = "stop"


@dataclass(frozen=True)
class Raw:
    """Exact bytes. `size` cuts them into equal writes; `seed` into random ones; neither: one write."""

    data: bytes
    size: int | None = None
    seed: int | None = None


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Hang:
    """Send nothing more until the client leaves."""


@dataclass(frozen=True)
class Cut:
    """Close in mid-body."""


@dataclass(frozen=True)
class Reset:
    """RST in mid-body, or before the headers if it is the first step."""


@dataclass(frozen=True)
class Leave:
    """End the body in order, with no word of the dialect."""


@dataclass(frozen=True)
class Head:
    """Send the headers now."""


@dataclass(frozen=True)
class Status:
    code: int
    headers: tuple[tuple[str, str], ...] = ()
    body: str = '{"error":{"message":"scripted","type":"server_error","code":null}}'
    # More is promised than comes: the body hangs.
    hangs: bool = False


Step = Text | Thought | Use | Finish | Raw | Pause | Hang | Cut | Reset | Leave | Head | Status
Script = Iterable[Step]


def say(*pieces: str, finish: str = "stop") -> list[Step]:
    """An answer in these pieces."""
    return [*map(Text, pieces), Finish(finish)]


def use(*calls: tuple[str, str, object]) -> list[Step]:
    """A request for tools: (id, name, arguments), the arguments as a value or as raw text."""
    return [*(Use(*call) for call in calls), Finish("tool_calls")]


def drip(piece: str, count: int, gap: float) -> list[Step]:
    """The same piece `count` times, `gap` seconds between."""
    steps: list[Step] = []
    for _ in range(count):
        steps += [Text(piece), Pause(gap)]
    return [*steps, Finish()]


@dataclass(eq=False)
class Request:
    """What the endpoint was asked; `gone` is set when the client closed before the script was over."""

    path: str
    headers: dict[str, str]
    raw: bytes
    connection: int
    at: float
    gone: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def body(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.raw)
        return loaded

    @property
    def dialect(self) -> str:
        return "anthropic" if self.path.split("?")[0].endswith("/messages") else "openai"


class Upstream:
    """Serves until closed; one thread per connection. `plan` chooses the script of each request.

    `content_type` is that of every 200. With `keep_alive` a connection is used again after an orderly end.
    """

    def __init__(
        self,
        plan: Callable[[Request], Script] | Script,
        *,
        content_type: str = "text/event-stream",
        keep_alive: bool = True,
    ) -> None:
        script = None if callable(plan) else list(plan)
        self._plan = plan if callable(plan) else lambda _: script or []
        self._content_type = content_type
        self._keep_alive = keep_alive
        self._arrived = threading.Condition()
        self._open: set[socket.socket] = set()
        self.requests: list[Request] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_for(self, count: int, timeout: float = 5.0) -> Request:
        """The request number `count` (from 1), as soon as it is here."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.requests) >= count, timeout), "no such request"
            return self.requests[count - 1]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._arrived:
            left = list(self._open)
        for sock in left:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._arrived:
                self.connections += 1
                self._open.add(sock)
                number = self.connections
            threading.Thread(target=self._serve, args=(sock, number), daemon=True).start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        try:
            with sock.makefile("rb") as reader:
                while (request := _read(reader, number)) is not None:
                    with self._arrived:
                        self.requests.append(request)
                        self._arrived.notify_all()
                    again = _Player(sock, request, self._content_type, keep_alive=self._keep_alive).play(self._plan(request))
                    request.over.set()
                    if not again:
                        break
        except OSError:
            pass
        finally:
            with self._arrived:
                self._open.discard(sock)
            sock.close()


def _read(reader: Any, number: int) -> Request | None:
    line = reader.readline()
    if not line:
        return None
    headers = {}
    while (header := reader.readline().strip()) != b"":
        name, _, value = header.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    length = int(headers.get("content-length", "0"))
    raw = reader.read(length)
    if len(raw) < length:
        return None  # the client has left in the middle of its request
    return Request(line.decode().split(" ")[1], headers, raw, number, time.monotonic())


class _Player:
    def __init__(self, sock: socket.socket, request: Request, content_type: str, *, keep_alive: bool) -> None:
        self._sock = sock
        self._request = request
        self._content_type = content_type
        self._keep_alive = keep_alive
        self._encoder = Encoder(request.dialect)
        self._headed = False

    def play(self, script: Script) -> bool:
        """Play it; True when the connection may be used again."""
        try:
            for step in script:
                if not self._step(step):
                    return False
            self._body(b"")
            self._sock.sendall(b"0\r\n\r\n")
        except OSError:
            self._request.gone.set()
            return False
        return self._keep_alive

    def _step(self, step: Step) -> bool:
        match step:
            case Pause(seconds):
                return not self._gone(seconds)
            case Hang():
                self._gone(60.0)
                return False
            case Head() | Leave():
                self._body(b"")
            case Cut():
                self._body(b"")
                self._sock.shutdown(socket.SHUT_RDWR)
                return False
            case Reset():
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            case Status():
                self._status(step)
                return not step.hangs or not self._gone(60.0)
            case Raw():
                for piece in pieces(step):
                    self._body(piece)
            case _:
                self._body(self._encoder.encode(step))
        return True

    def _body(self, data: bytes) -> None:
        out = b""
        if not self._headed:
            self._headed = True
            close = "" if self._keep_alive else "Connection: close\r\n"
            out = (
                f"HTTP/1.1 200 OK\r\nContent-Type: {self._content_type}\r\n{close}Transfer-Encoding: chunked\r\n\r\n"
            ).encode()
        if data:
            out += b"%x\r\n%s\r\n" % (len(data), data)
        if out:
            self._sock.sendall(out)

    def _status(self, step: Status) -> None:
        self._headed = True
        body = step.body.encode()
        promised = len(body) + (1000 if step.hangs else 0)
        extra = "".join(f"{name}: {value}\r\n" for name, value in step.headers)
        # A chunked body, so that the end is the same as that of a 200.
        length = f"Content-Length: {promised}\r\n" if step.hangs else "Transfer-Encoding: chunked\r\n"
        head = f"HTTP/1.1 {step.code} Scripted\r\nContent-Type: application/json\r\n{length}{extra}\r\n".encode()
        self._sock.sendall(head + (body if step.hangs or not body else b"%x\r\n%s\r\n" % (len(body), body)))

    def _gone(self, seconds: float) -> bool:
        """Wait; True when the client closed meanwhile."""
        self._sock.settimeout(seconds)
        try:
            gone = self._sock.recv(1, socket.MSG_PEEK) == b""
        except TimeoutError:
            return False
        except OSError:
            gone = True
        finally:
            with contextlib.suppress(OSError):
                self._sock.settimeout(None)
        if gone:
            self._request.gone.set()
        return gone


def pieces(step: Raw) -> Iterator[bytes]:
    """The writes of a `Raw` step."""
    if step.seed is not None:
        chance = random.Random(step.seed)
        start = 0
        while start < len(step.data):
            size = chance.choice((1, 2, 3, 7, 40, 400, 4000))
            yield step.data[start : start + size]
            start += size
        return
    size = step.size or max(1, len(step.data))
    for start in range(0, len(step.data), size):
        yield step.data[start : start + size]


class Encoder:
    """Steps to the bytes of one dialect; one per answer."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._index = -1
        self._block: str | None = None
        self._begun = False

    def encode(self, step: Text | Thought | Use | Finish) -> bytes:
        return (self._openai if self._dialect == "openai" else self._anthropic)(step)

    def _openai(self, step: Text | Thought | Use | Finish) -> bytes:
        out = b"" if self._begun else _chunk({"role": "assistant", "content": ""})
        self._begun = True
        match step:
            case Text(text):
                return out + _chunk({"content": text})
            case Thought(text):
                return out + _chunk({"reasoning_content": text})
            case Use(id, name, arguments):
                self._index += 1
                function = {"name": name, "arguments": _argument_text(arguments)}
                call = {"index": self._index, "id": id, "type": "function", "function": function}
                return out + _chunk({"tool_calls": [call]})
            case Finish(reason):
                usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
                tail = b"data: " + json.dumps({"model": "scripted", "choices": [], "usage": usage}).encode() + b"\n\n"
                return out + _chunk({}, reason) + tail + b"data: [DONE]\n\n"

    def _anthropic(self, step: Text | Thought | Use | Finish) -> bytes:
        out: list[bytes] = []
        if not self._begun:
            self._begun = True
            usage = {"input_tokens": 7, "output_tokens": 1}
            message = {"id": "msg_scripted", "role": "assistant", "content": [], "model": "scripted", "usage": usage}
            out.append(_event("message_start", message=message))
        match step:
            case Text(text):
                out += self._opened("text", text="")
                out.append(self._delta({"type": "text_delta", "text": text}))
            case Thought(text):
                out += self._opened("thinking", thinking="", signature="")
                out.append(self._delta({"type": "thinking_delta", "thinking": text}))
            case Use(id, name, arguments):
                out += self._opened("tool_use", again=True, id=id, name=name, input={})
                out.append(self._delta({"type": "input_json_delta", "partial_json": _argument_text(arguments)}))
            case Finish(reason):
                out += self._closed()
                words = {
                    "stop": "end_turn",
                    "tool_calls": "tool_use",
                    "length": "max_tokens",
                    "content_filter": "refusal",
                }
                delta = {"stop_reason": words[reason], "stop_sequence": None}
                out.append(_event("message_delta", delta=delta, usage={"output_tokens": 3}))
                out.append(_event("message_stop"))
        return b"".join(out)

    def _opened(self, kind: str, *, again: bool = False, **start: object) -> list[bytes]:
        if self._block == kind and not again:
            return []
        out = self._closed()
        self._index += 1
        self._block = kind
        return [*out, _event("content_block_start", index=self._index, content_block={"type": kind, **start})]

    def _closed(self) -> list[bytes]:
        if self._block is None:
            return []
        out = []
        if self._block == "thinking":
            out.append(self._delta({"type": "signature_delta", "signature": f"signed-{self._index}"}))
        self._block = None
        return [*out, _event("content_block_stop", index=self._index)]

    def _delta(self, delta: dict[str, object]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    chunk = {"id": "scripted", "object": "chat.completion.chunk", "model": "scripted", "choices": [choice]}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _event(name: str, **fields: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields}, separators=(',', ':'))}\n\n".encode()


def _argument_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
