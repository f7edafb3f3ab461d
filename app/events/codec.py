"""Events to bytes and back.

`encode` gives one line of compact JSON. Three characters that some line readers take for line ends (U+0085, U+2028, U+2029)
leave as escapes, so no reader of lines can cut an event in two; lone surrogates become U+FFFD (F4). `decode` keeps what it
does not know: a kind from a later version comes back as `Unknown`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.events import types

_encoder = msgspec.json.Encoder()
_plain = msgspec.json.Decoder(dict[str, Any])

KNOWN: tuple[type[types.Event], ...] = (
    types.TurnStarted,
    types.Queued,
    types.TextDelta,
    types.ReasoningDelta,
    types.Commentary,
    types.ToolStart,
    types.ToolProgress,
    types.ToolEnd,
    types.Image,
    types.ActionCard,
    types.ApprovalRequired,
    types.ApprovalResolved,
    types.AttemptRestarted,
    types.Notice,
    types.Usage,
    types.Completion,
    types.Error,
    types.MessageSaved,
    types.MessageSaveFailed,
    types.Snapshot,
    types.StreamEnd,
    types.Heartbeat,
)
BY_TYPE: dict[str, type[types.Event]] = {str(kind.__struct_config__.tag): kind for kind in KNOWN}


class Unknown(msgspec.Struct, frozen=True):
    """An event of a kind that this version does not know; `fields` is all of it."""

    type: str
    fields: dict[str, Any]


def encode(value: object) -> bytes:
    """One line of compact JSON for an event or any JSON value; never raises for strange text."""
    try:
        data = _encoder.encode(value)
    except UnicodeEncodeError:
        data = _encoder.encode(clean(msgspec.to_builtins(value)))
    if b"\xe2\x80" in data:
        data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    if b"\xc2\x85" in data:
        data = data.replace(b"\xc2\x85", b"\\u0085")
    return data


def decode(data: bytes | str) -> types.Event | Unknown:
    """The event in `data`; kinds and fields that are not known are kept or passed over, never an error.

    Raises:
        msgspec.ValidationError: a known kind lacks a field or has one of a wrong type, or `data` is not a JSON object.
        msgspec.DecodeError: `data` is not JSON.
    """
    return from_fields(_plain.decode(data))


def from_fields(fields: dict[str, Any]) -> types.Event | Unknown:
    """The event that a JSON object stands for."""
    kind = BY_TYPE.get(str(fields.get("type")))
    if kind is None:
        return Unknown(type=str(fields.get("type")), fields=fields)
    return msgspec.convert(fields, kind)


def to_fields(event: types.Event) -> dict[str, Any]:
    """The JSON object of an event, without absent optional fields."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return fields


def clean(value: Any) -> Any:
    """The same JSON value with each lone surrogate replaced by U+FFFD."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {clean(k): clean(v) for k, v in value.items()}
        case list() | tuple():
            return [clean(v) for v in value]
    return value
