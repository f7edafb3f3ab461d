"""How values become columns: JSON documents as text, and text that every database takes.

Two kinds of characters cannot be stored everywhere: lone surrogates (not UTF-8; PROTOCOL F4 makes them U+FFFD) and, in
PostgreSQL, the character NUL. Plain text gets U+FFFD for both. In JSON a NUL is stored as its escape, so it comes back.
"""

from __future__ import annotations

from typing import Any

import msgspec

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def to_text(text: str) -> str:
    """`text` as it can be stored: surrogate pairs are joined, lone surrogates and NUL become U+FFFD."""
    return _joined(text).replace("\x00", "\ufffd")


def to_text_or_none(text: str | None) -> str | None:
    """Like `to_text`; None stays None."""
    return None if text is None else to_text(text)


def to_json(value: object) -> str:
    """`value` (what msgspec can encode) as compact JSON text without lone surrogates and without a raw NUL."""
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:
        return _encoder.encode(_cleaned(msgspec.to_builtins(value))).decode()


def to_json_or_none(value: object) -> str | None:
    """Like `to_json`; None becomes NULL."""
    return None if value is None else to_json(value)


def from_json(text: str | None) -> Any:
    """The value that `to_json` was given, as plain lists, dicts, strings and numbers; None for NULL."""
    return None if text is None else _decoder.decode(text)


def _joined(text: str) -> str:
    """`text` with surrogate pairs joined to one character and lone ones replaced; the same object in the usual case."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _cleaned(value: Any) -> Any:
    match value:
        case str():
            return _joined(value)
        case dict():
            return {_cleaned(key): _cleaned(item) for key, item in value.items()}
        case list() | tuple():
            return [_cleaned(item) for item in value]
        case _:
            return value
