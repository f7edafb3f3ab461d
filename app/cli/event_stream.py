"""An event stream as a client reads it (WHATWG HTML, "Interpreting an event stream"): ids, `retry` and data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

_LINE = re.compile(rb"\r\n|\n|\r")


class EventStream:
    """Decodes one turn's streams, over all its connections.

    `last_id` is the cursor to resume from, None before the first event with an id; `retry_ms` the wait that the service
    asked for before coming back.
    """

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.retry_ms = 2000
        self._open()

    def _open(self) -> None:
        self._buffer = b""
        self._data: list[bytes] = []
        self._id: str | None = None

    def reconnected(self) -> None:
        """Forget what the end of the last connection left unfinished."""
        self._open()

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """The events that `piece` completes, as JSON objects; data that is none is passed over."""
        self._buffer += piece
        at = 0
        for end in _LINE.finditer(self._buffer):
            if end.group() == b"\r" and end.end() == len(self._buffer):
                break  # its \n may be in the next piece
            event = self._line(self._buffer[at : end.start()])
            at = end.end()
            if event is not None:
                yield event
        self._buffer = self._buffer[at:]

    def _line(self, line: bytes) -> dict[str, Any] | None:
        if line:
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                self._data.append(value)
            elif name == b"id":
                self._id = value.decode("utf-8", "replace")
            elif name == b"retry" and value.isdigit():
                self.retry_ms = int(value)
            return None
        if self._id is not None:
            self.last_id = self._id
        data, self._data, self._id = b"\n".join(self._data), [], None
        try:
            event = msgspec.json.decode(data) if data else None
        except msgspec.DecodeError:
            return None
        return event if isinstance(event, dict) else None
