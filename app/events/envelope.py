"""From an event to what goes over the wire (F3, F4): fitting sizes, ids and frames.

An event is encoded once; every viewer gets the same bytes (E7). The line of an NDJSON stream is the data of the frame.
"""

from __future__ import annotations

import msgspec

from app.events.codec import clean, encode
from app.events.types import (
    ApprovalRequired,
    Commentary,
    Completion,
    Error,
    Event,
    Notice,
    ReasoningDelta,
    TextDelta,
    ToolEnd,
    ToolProgress,
    ToolStart,
)

MAX_FRAME_BYTES = 65_536
MAX_ARGUMENT_BYTES = 16_384
MAX_PREVIEW_BYTES = 2_048
# The longest escape of one character is six bytes, so a delta of this many characters always fits a frame.
SAFE_CHARS = 10_000
# A prompt and a title beside arguments of the largest size still fit a frame.
_PROMPT_CHARS = 4_000
_TITLE_CHARS = 1_000
_DATA = b"\ndata: "


class EventTooLarge(ValueError):
    """An event does not fit a frame and cannot be cut without changing its meaning."""


def fit(event: Event) -> list[Event]:
    """The same event in one or more that each fit a frame (F4).

    Deltas are split; arguments, previews and a completion's text are left out or cut with `truncated`; words are cut.

    Raises:
        EventTooLarge: what is too large is no such part, as in an image or a card; nothing of those can be left out.
    """
    match event:
        case TextDelta(text=text) | ReasoningDelta(text=text):
            pieces = [text[i : i + SAFE_CHARS] for i in range(0, len(text), SAFE_CHARS)]
            return [event] if len(pieces) <= 1 else [msgspec.structs.replace(event, text=piece) for piece in pieces]
        case ToolStart() | ApprovalRequired():
            event = _without_large_arguments(event)
        case ToolEnd(preview=str(preview)) if len(clean(preview).encode()) > MAX_PREVIEW_BYTES:
            event = msgspec.structs.replace(event, preview=cut(preview, MAX_PREVIEW_BYTES), truncated=True)
        case ToolProgress(message=str(message)) if len(message) > _TITLE_CHARS:
            event = msgspec.structs.replace(event, message=_shortened(message, _TITLE_CHARS))
        case Completion(text=str(text)) if len(text) > SAFE_CHARS and _too_large(event):
            event = msgspec.structs.replace(event, text=None)
        case Error(message=message) if len(message) > SAFE_CHARS:
            event = msgspec.structs.replace(event, message=_shortened(message, SAFE_CHARS))
        case Commentary(text=text) if len(text) > SAFE_CHARS:
            event = msgspec.structs.replace(event, text=_shortened(text, SAFE_CHARS))
        case Notice(text=text) if _too_large(event):
            event = msgspec.structs.replace(event, text=_shortened(text, _PROMPT_CHARS), data=None)
    if _too_large(event):
        raise EventTooLarge(f"the {event.__struct_config__.tag} is larger than {MAX_FRAME_BYTES} bytes")
    return [event]


def _without_large_arguments(event: ToolStart | ApprovalRequired) -> ToolStart | ApprovalRequired:
    if event.arguments is not None and len(encode(event.arguments)) > MAX_ARGUMENT_BYTES:
        event = msgspec.structs.replace(event, arguments=None, truncated=True)
    if len(event.title) > _TITLE_CHARS:
        event = msgspec.structs.replace(event, title=_shortened(event.title, _TITLE_CHARS))
    if isinstance(event, ApprovalRequired) and len(event.prompt) > _PROMPT_CHARS:
        event = msgspec.structs.replace(event, prompt=_shortened(event.prompt, _PROMPT_CHARS))
    return event


def _too_large(event: Event) -> bool:
    return len(encode(event)) > MAX_FRAME_BYTES - 256


def _shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def cut(text: str, max_bytes: int) -> str:
    """The longest beginning of `text` that takes at most `max_bytes` in UTF-8; lone surrogates as U+FFFD."""
    as_sent: str = clean(text)
    return as_sent.encode()[:max_bytes].decode("utf-8", "ignore")


def event_id(turn_id: str, epoch: int, seq: int) -> str:
    """The id of an event, which is also a cursor: `<turn_id>-<epoch>-<seq>`."""
    return f"{turn_id}-{epoch}-{seq}"


def id_prefix(turn_id: str, epoch: int) -> bytes:
    """What every frame of one writer begins with, for `numbered_frame`."""
    return f"id: {turn_id}-{epoch}-".encode()


def numbered_frame(prefix: bytes, seq: int, data: bytes) -> bytes:
    """The frame of an event, as `frame` with its `event_id` makes it, in one step."""
    return b"%b%d\ndata: %b\n\n" % (prefix, seq, data)


def frame(data: bytes, id_: str | None = None) -> bytes:
    """One SSE frame around one line of JSON; without an id it is about the connection and not in the log."""
    if id_ is None:
        return b"data: " + data + b"\n\n"
    return b"id: " + id_.encode() + _DATA + data + b"\n\n"


def line(framed: bytes) -> bytes:
    """The same event as one NDJSON line."""
    start = framed.index(b"data: ") + 6
    return framed[start:-1]
