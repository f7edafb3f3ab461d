"""Bytes of an event stream in, events out (WHATWG HTML, "Interpreting an event stream").

It works on bytes because line helpers on text also split at U+2028 and U+0085, which are plain characters inside JSON.
It keeps two promises: any way of cutting the bytes into reads gives the same events, and the work is linear in the
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from app.providers.errors import LimitExceeded

_BOM = b"\xef\xbb\xbf"


class ServerEvent(msgspec.Struct, frozen=True, gc=False):
    """One dispatched event; `name` is `""` where the stream gave none. `data` is never empty."""

    name: str
    data: str


class EventDecoder:
    """An incremental decoder for one stream; not for use by two threads.

    `stream_bytes`, `event_bytes` and `line_bytes` are caps on what it takes and holds. `id` and `retry` are read over:
    nobody reconnects to a model. Bytes that are not UTF-8 become U+FFFD, as the standard says.
    """

    def __init__(self, *, stream_bytes: int = 1 << 26, event_bytes: int = 1 << 25, line_bytes: int = 1 << 25) -> None:
        self._stream_left = stream_bytes
        self._event_bytes = event_bytes
        self._line_bytes = line_bytes
        self._begun = False
        self._skip_lf = False
        self._tail = bytearray()
        self._data: list[bytes] = []
        self._held = 0
        self._name = b""

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that end in `piece`. Iterate to the end before the next call.

        Raises:
            LimitExceeded: a cap was passed; the events before that place have been given.
        """
        over = len(piece) > self._stream_left
        if over:
            piece = piece[: self._stream_left]
        self._stream_left -= len(piece)
        yield from self._lines(self._without_bom(piece))
        if over:
            raise LimitExceeded("The model's stream is longer than `upstream_bytes` allows.")

    def flush(self) -> Iterator[ServerEvent]:
        """The event that the end of the body left without its blank line, if there is one.

        The standard drops it. Endpoints that close right after the last line are common, so the caller decides: what
        does not parse was cut off.
        """
        self._begun = True
        if self._tail:
            line = bytes(self._tail)
            self._tail.clear()
            self._field(line)
        event = self._dispatch()
        if event is not None:
            yield event

    def _without_bom(self, piece: bytes) -> bytes:
        if self._begun:
            return piece
        self._tail += piece
        if len(self._tail) < len(_BOM) and _BOM.startswith(self._tail):
            return b""
        self._begun = True
        head = bytes(self._tail)
        self._tail.clear()
        return head.removeprefix(_BOM)

    def _lines(self, piece: bytes) -> Iterator[ServerEvent]:
        if not piece:
            return
        if self._skip_lf:
            self._skip_lf = False
            if piece[0] == 0x0A:
                piece = piece[1:]
        if b"\r" in piece:
            # A CR ends its line at once; if the LF of a CRLF comes with the next read, it is skipped then.
            self._skip_lf = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = piece.split(b"\n")
        for line in whole:
            if self._tail:
                self._tail += line
                line = bytes(self._tail)
                self._tail.clear()
            if len(line) > self._line_bytes:
                raise LimitExceeded("A line of the model's stream is too long.")
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                yield event
        self._tail += rest
        if len(self._tail) > self._line_bytes:
            raise LimitExceeded("A line of the model's stream is too long.")

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._held += len(value) + 1
            if self._held > self._event_bytes:
                raise LimitExceeded("An event of the model's stream is too large.")
            self._data.append(value)
        elif name == b"event":
            self._name = value

    def _dispatch(self) -> ServerEvent | None:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        name = self._name
        self._name = b""
        if not self._data:
            return None
        self._data.clear()
        self._held = 0
        if not data:
            return None
        return ServerEvent(name.decode("utf-8", "replace"), data.decode("utf-8", "replace"))

    def __repr__(self) -> str:
        return f"<EventDecoder {len(self._tail)} bytes of a line, {self._held} of an event>"
