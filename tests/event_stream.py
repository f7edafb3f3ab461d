"""A client's side of a stream: a parser written from the standard, and a connection that keeps times and raw bytes.

The parser follows WHATWG HTML, "Interpreting an event stream", line by line; it shares nothing with the service.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Seen:
    """One dispatched event: its JSON, the id it was dispatched with, its own bytes and when it was complete."""

    json: dict[str, Any]
    id: str | None
    raw: bytes
    at: float

    @property
    def type(self) -> str:
        return str(self.json.get("type"))

    @property
    def seq(self) -> int | None:
        return self.json.get("seq")

    def __getitem__(self, key: str) -> Any:
        return self.json[key]

    def get(self, key: str) -> Any:
        return self.json.get(key)

    def __repr__(self) -> str:
        return f"<{self.id} {self.type}>"


@dataclass
class SSEParser:
    """Bytes to events, however they are cut. `comments` are (time, text); `torn` counts comments inside of a frame."""

    retry: int | None = None
    last_id: str = ""
    comments: list[tuple[float, str]] = field(default_factory=list)
    torn: int = 0
    fields: list[str] = field(default_factory=list)
    _rest: bytes = b""
    _begun: bool = False
    _after_cr: bool = False
    _data: list[str] = field(default_factory=list)
    _own_id: str | None = None
    _raw: bytes = b""

    def feed(self, piece: bytes, at: float) -> list[Seen]:
        out: list[Seen] = []
        self._rest += piece
        if not self._begun:
            if len(self._rest) < 3 and b"\xef\xbb\xbf".startswith(self._rest):
                return out
            self._rest = self._rest.removeprefix(b"\xef\xbb\xbf")
            self._begun = True
        while True:
            if self._after_cr and self._rest:
                self._rest = self._rest.removeprefix(b"\n")
                self._after_cr = False
            ends = [end for end in (self._rest.find(b"\r"), self._rest.find(b"\n")) if end >= 0]
            if not ends:
                return out
            end = min(ends)
            self._after_cr = self._rest[end : end + 1] == b"\r"
            line, self._rest = self._rest[:end], self._rest[end + 1 :]
            event = self._line(line, at)
            if event is not None:
                out.append(event)

    def _line(self, line: bytes, at: float) -> Seen | None:
        if not line:
            data, own_id, raw = self._data, self._own_id, self._raw
            self._data, self._own_id, self._raw = [], None, b""
            if not data:
                return None
            return Seen(json.loads("\n".join(data)), own_id, raw, at)
        text = line.decode("utf-8")
        if text.startswith(":"):
            self.comments.append((at, text[1:].removeprefix(" ")))
            self.torn += bool(self._data) or self._own_id is not None
            return None
        self._raw += line + b"\n"
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        self.fields.append(name)
        if name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self.last_id = self._own_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry = int(value)
            self._raw = b""
        return None


class Stream:
    """An open response, read by a thread of its own: nothing is lost while a test looks elsewhere.

    `status` and `headers` are there at once; `events` grow. A response that is no stream is read whole into `body`.
    """

    def __init__(
        self, port: int, method: str, path: str, *, headers: dict[str, str], body: bytes | None, timeout: float = 30.0
    ) -> None:
        self.opened_at = time.monotonic()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self._changed = threading.Condition()
        self.events: list[Seen] = []
        self.pieces: list[tuple[float, bytes]] = []
        self.parser = SSEParser()
        self.over = False
        self.broken: Exception | None = None
        self.body = b""
        try:
            self._connection.request(method, path, body=body, headers=headers)
            self._response = self._connection.getresponse()
        except BaseException:
            self._connection.close()
            raise
        self._socket = self._connection.sock
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}
        kind = self.headers.get("content-type", "").partition(";")[0]
        self.form = {"text/event-stream": "sse", "application/x-ndjson": "ndjson"}.get(kind)
        if self.form is None:
            self.body = self._response.read()
            self.over = True
            self._connection.close()
            return
        if self._socket is not None:
            self._socket.settimeout(None)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Stream {self.status} {len(self.events)} events{' over' if self.over else ''}>"

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def raw(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event["text"] for event in self.events if event.type == "text_delta")

    @property
    def last_id(self) -> str:
        return self.parser.last_id

    def of(self, kind: str) -> list[Seen]:
        """All events of one kind so far."""
        return [event for event in self.events if event.type == kind]

    def wait_for(self, what: str | Callable[[Stream], object], timeout: float = 20.0) -> Seen:
        """The first event of the kind `what`; or the newest event once `what(stream)` is true."""
        met = (lambda stream: stream.of(what)) if isinstance(what, str) else what
        with self._changed:
            self._changed.wait_for(lambda: met(self) or self.over, timeout)
            assert met(self), f"{what} did not come: {self.events[-8:]}, over={self.over}, broken={self.broken}"
            return self.of(what)[0] if isinstance(what, str) else self.events[-1] if self.events else Seen({}, None, b"", 0)

    def read_to_end(self, timeout: float = 30.0) -> Self:
        """The stream when its body is over."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.over, timeout), f"does not end: {self.events[-5:]}"
        return self

    def close(self) -> None:
        """Leave, as a browser tab that is closed."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        if self.form is not None:
            self._thread.join(5)
        self._response.close()
        self._connection.close()

    def _read(self) -> None:
        lines = b""
        try:
            while piece := self._response.read1(1 << 16):
                now = time.monotonic()
                if self.form == "sse":
                    found = self.parser.feed(piece, now)
                else:
                    *whole, lines = (lines + piece).split(b"\n")
                    found = [Seen(json.loads(line), None, line, now) for line in whole]
                with self._changed:
                    self.pieces.append((now, piece))
                    self.events += found
                    self._changed.notify_all()
        except Exception as error:  # closed by a test, cut by the service, or not what the standard allows
            self.broken = error
        with self._changed:
            self.over = True
            self._changed.notify_all()
