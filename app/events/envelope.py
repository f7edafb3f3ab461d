"""From an event to what goes over the wire (F3, F4): fitting sizes, ids and frames.

An event is encoded once; every viewer gets the same bytes (E7). The line of an NDJSON stream is the data of the frame.
"""

from __future__ import annotations

import msgspec

from app.events.codec import encode
from app.events.types import (
    ApprovalRequired,
    Commentary,
    Completion,
    Event,
    Notice,
    ReasoningDelta,
    TextDelta,
    ToolEnd,
    ToolStart,
)

MAX_FRAME_BYTES = 65_536
MAX_ARGUMENT_BYTES = 16_384
MAX_PREVIEW_BYTES = 2_048
# The longest escape of one character is six bytes, so a delta of this many characters always fits a frame.
_SAFE_CHARS = 10_000
_DATA = b"\ndata: "


class EventTooLarge(ValueError):
    """An event does not fit a frame and cannot be cut without changing its meaning."""


def fit(event: Event) -> list[Event]:
    """The same event in one or more that each fit a frame (F4).

    Deltas are split; arguments, previews and a completion's text are left out or cut with `truncated`; remarks are cut.

    Raises:
        EventTooLarge: an image or a card that is too large; nothing of those can be left out.
    """
    match event:
        case TextDelta(text=text) | ReasoningDelta(text=text):
            if len(text) <= _SAFE_CHARS:
                return [event]
            pieces = [text[i : i + _SAFE_CHARS] for i in range(0, len(text), _SAFE_CHARS)]
            return [msgspec.structs.replace(event, text=piece) for piece in pieces]
        case ToolStart(arguments=arguments) | ApprovalRequired(arguments=arguments):
            if arguments is not None and len(encode(arguments)) > MAX_ARGUMENT_BYTES:
                return [msgspec.structs.replace(event, arguments=None, truncated=True)]
            return [event]
        case ToolEnd(preview=preview):
            if preview is not None and len(preview.encode("utf-8", "replace")) > MAX_PREVIEW_BYTES:
                return [msgspec.structs.replace(event, preview=cut(preview, MAX_PREVIEW_BYTES), truncated=True)]
            return [event]
        case Completion(text=text):
            if text is not None and len(text) > _SAFE_CHARS and len(encode(event)) > MAX_FRAME_BYTES - 256:
                return [msgspec.structs.replace(event, text=None)]
            return [event]
        case Commentary(text=text) if len(text) > _SAFE_CHARS:
            return [msgspec.structs.replace(event, text=text[: _SAFE_CHARS - 1] + "…")]
        case Notice() if len(encode(event)) > MAX_FRAME_BYTES - 256:
            return [msgspec.structs.replace(event, text=event.text[:_SAFE_CHARS], data=None)]
    if len(encode(event)) > MAX_FRAME_BYTES - 256:
        raise EventTooLarge(f"the {event.__struct_config__.tag} is larger than {MAX_FRAME_BYTES} bytes")
    return [event]


def cut(text: str, max_bytes: int) -> str:
    """The longest beginning of `text` that takes at most `max_bytes` in UTF-8."""
    return text.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")


def event_id(turn_id: str, epoch: int, seq: int) -> str:
    """The id of an event, which is also a cursor: `<turn_id>-<epoch>-<seq>`."""
    return f"{turn_id}-{epoch}-{seq}"


def frame(data: bytes, id_: str | None = None) -> bytes:
    """One SSE frame around one line of JSON; without an id it is about the connection and not in the log."""
    if id_ is None:
        return b"data: " + data + b"\n\n"
    return b"id: " + id_.encode() + _DATA + data + b"\n\n"


def line(framed: bytes) -> bytes:
    """The same event as one NDJSON line."""
    start = framed.index(b"data: ") + 6
    return framed[start:-1]
